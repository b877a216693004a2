"""Speaks NRI, containerd's node resource interface, as a plugin that connects to the runtime's socket.

`frames` cuts and joins the bytes of the connection, `messages` names what is said, `session` knows which
request an answer belongs to; none of them does any input or output. `plugin` is the loop around them.
"""

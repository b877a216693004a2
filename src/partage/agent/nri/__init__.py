"""Speaks NRI, containerd's node resource interface, as a plugin that connects to the runtime's socket.

`frames` cuts and joins the bytes of the connection, `messages` declares the messages, `session` matches answers to
requests; none of them does any input or output. `plugin` is the loop around them.
"""

"""Speaks NRI, containerd's node resource interface, as a plugin that connects to the runtime's socket.

Only `plugin` does input and output.
"""

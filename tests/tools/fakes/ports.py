"""A port for a server of a test that has to be told one before it listens."""

import socket

__all__ = ["free_port"]


def free_port() -> int:
    """A port of the loopback that nobody listens on now; between asking and listening another may take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

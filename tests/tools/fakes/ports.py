"""A port for a server of a test that needs a number before it listens."""

import os
import socket
from contextlib import suppress
from itertools import count, islice

__all__ = ["free_port"]

_PORTS, _PORTS_EACH = 12000, 2000
_tried = count(os.getpid())


def free_port() -> int:
    """A port of the loopback on which no server listens, and that no other of these tests gets.

    Between asking and listening another could take it: it lies below those that the kernel assigns by itself, and each
    of several processes that test side by side has a range of its own. Sessions that do not know of each other begin at
    different places of it.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _PORTS + worker * _PORTS_EACH
    for number in islice(_tried, _PORTS_EACH):
        port = first + number % _PORTS_EACH
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port is free from {first} on")

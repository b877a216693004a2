"""A reader of the metrics holds rows of every card until it has read them, even if it reads slowly."""

import socket
import time

from wire_client import Running
from world import card, device, node

from partage.serving.limits import Limits

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def first_line(one: socket.socket) -> bytes:
    """Of the answer."""
    return one.recv(4096).partition(b"\r\n")[0]


def test_who_reads_slowly_has_few_and_others_are_served() -> None:
    """Connections ask and never read. Another address gets an answer, and the same address gets one later."""
    nodes = [node(f"n{n}") for n in range(400)]
    devices = [device(f"n{n}", *(card(m) for m in range(8))) for n in range(400)]
    with Running(*nodes, *devices, limits=Limits(patience=1000.0)) as site:
        held = []
        for _ in range(12):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(240)
            one.connect(("127.0.0.1", site.port))
            one.sendall(REQUEST)
            held.append(one)
        refused = 0
        for one in held:
            refused += b" 429 " in first_line(one) + b" "
        assert refused == 8
        with socket.create_connection(("127.0.0.1", site.port), 240, ("127.0.0.2", 0)) as other:
            other.sendall(REQUEST)
            assert b" 200 " in first_line(other)
        for one in held:
            one.close()
        end = time.monotonic() + 240
        while site.get("/metrics")[0] != 200:
            assert time.monotonic() < end

"""What a Service does that selects the leader's label: connections go to the pod that has it.

Nothing routes to pods here, so pods of the scheduler service are objects that stand for processes:
each process gets its pod's name, labels that pod as it would anywhere, and this forwards a port
to whichever process has the label, as kube-proxy would.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

CHUNK = 65536
BELIEVED_SECONDS = 0.3


class LeaderService:
    """One port of a Service.

    Attributes:
        port: where it listens on loopback.
    """

    def __init__(
        self, port: int, leader: Callable[[], int | None], address: str = "127.0.0.1"
    ) -> None:
        """Listen.

        Args:
            port: where.
            leader: the port of the leader; None while no instance does, OSError where that is not known.
            address: where the pods listen.
        """
        self._address = address
        self.port = port
        self._leader = leader
        self._known: int | None = None
        self._asked = 0.0
        self._listening = socket.create_server(("127.0.0.1", port), backlog=128)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with caller:
            target = self._target()
            if target is None:
                return
            with suppress(OSError), socket.create_connection((self._address, target), 5) as server:
                server.settimeout(None)
                back = threading.Thread(target=_pump, args=(server, caller), daemon=True)
                back.start()
                _pump(caller, server)
                back.join()

    def _target(self) -> int | None:
        """The leader's port; the last known one while the API server cannot say."""
        if time.monotonic() > self._asked + BELIEVED_SECONDS:
            with suppress(OSError):
                self._known = self._leader()
            self._asked = time.monotonic()
        return self._known


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)

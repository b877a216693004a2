"""gRPC servers at sockets that only root may use, with any umask: they start containers and prepare devices."""

import errno
from pathlib import Path
from typing import Any, Final

import grpc

from partage.agent.protobuf import M
from partage.wire.protobuf import Malformed

_OWNER: Final = 0o600
PROMPT: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""Options of a channel: a server that was away for long is asked again within a second, not within two minutes."""


def listen(server: Any, path: Path) -> None:
    """Make a gRPC server that has not started listen at a path, in place of an earlier run's file. Raises `OSError`."""
    path.unlink(missing_ok=True)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise OSError(errno.EADDRNOTAVAIL, str(error), str(path)) from error
    path.chmod(_OWNER)


def identity(path: Path) -> tuple[int, int] | None:
    """The identity of a socket's file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


async def read(of: type[M], data: bytes, context: Any) -> M:
    """A call's message; bytes that are none end the call."""
    try:
        return of.decode(data)
    except Malformed as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"partage: {error}")
        raise

"""Sockets of gRPC servers that root alone may speak to, whatever the process's umask: they start containers and prepare devices."""

from pathlib import Path
from typing import Any, Final

_OWNER: Final = 0o600


def listen(server: Any, path: Path) -> None:
    """Have a gRPC server, which is not started yet, listen at a path; what another run left there is removed.

    Raises:
        OSError: the path cannot be used.
        RuntimeError: so says gRPC.
    """
    path.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{path}")
    path.chmod(_OWNER)

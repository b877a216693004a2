"""The agent's sockets start containers and prepare devices, so no other user of the node may speak to them."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

grpc = pytest.importorskip("grpc")

from partage.agent.sockets import listen  # noqa: E402 # it needs grpc

SOURCE = Path(__file__).parents[2] / "src" / "partage"


async def test_a_socket_is_its_owners_whatever_the_umask() -> None:
    """A service manager, or an image, may have set any."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.sock"
        path.write_text("left by another run")
        before = os.umask(0)
        server = grpc.aio.server()
        try:
            listen(server, path)
        finally:
            os.umask(before)
        await server.start()
        try:
            mode = path.stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o600
        finally:
            await server.stop(None)


def test_every_server_of_the_agent_listens_so() -> None:
    """They all use one function."""
    found = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "add_insecure_port(" in path.read_text()
    ]
    assert found == ["agent/sockets.py"]

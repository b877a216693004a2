"""The kernel says which user is at the other end; only those who are named get to speak."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from partage.serving.unix import Link, UnixServer

OTHER = 65533
ASK = """
import os, socket, sys
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))  # the group, which may open the socket, stays
with socket.socket(socket.AF_UNIX) as one:
    one.settimeout(60)
    one.connect(sys.argv[1])
    try:
        one.sendall(b"\\x00\\x00\\x00\\x02hi")
        print(one.recv(6).decode("latin-1")[4:])
    except (BrokenPipeError, ConnectionResetError):
        print("")
"""


class Echo:
    """Says what it is told."""

    def __init__(self, link: Link, begun: list[Link]) -> None:
        begun.append(link)
        self._link = link

    def took(self, frame: bytes) -> None:
        """See `serving.unix.Talk`."""
        self._link.send(frame)

    def ended(self) -> None:
        """See `serving.unix.Talk`."""


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that our group may enter."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o710)
        yield Path(made)


@asynccontextmanager
async def listening(*users: int) -> AsyncIterator[tuple[Path, list[Link]]]:
    """A server for these users; with whom it began to speak."""
    begun: list[Link] = []
    with folder() as made:
        path = made / "s"
        server = UnixServer(path, lambda link: Echo(link, begun), users, 100)
        await server.start()
        try:
            yield path, begun
        finally:
            await server.stop()


async def asks(path: Path, user: int | None = None) -> str:
    """What a process of that user hears; empty where it is turned away."""
    given = [str(path)] if user is None else [str(path), str(user)]
    run = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", ASK, *given], check=True, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    return str(run.stdout).strip()


def test_who_is_not_named_is_turned_away_before_a_byte_is_read() -> None:
    """Whoever may open the socket may still be somebody else."""

    async def test() -> None:
        async with listening(os.getuid()) as (path, begun):
            assert await asks(path) == "hi"
            assert len(begun) == 1
        async with listening(os.getuid() + 1) as (path, begun):
            assert await asks(path) == ""
            assert not begun

    asyncio.run(test())


@pytest.mark.skipif(os.getuid() != 0, reason="only root may start processes of other users")
def test_another_user_may_be_named() -> None:
    """As kube-scheduler's container has a user of its own; then the engine's own may not come."""

    async def test() -> None:
        async with listening(OTHER) as (path, begun):
            assert await asks(path, OTHER) == "hi"
            assert await asks(path) == ""
            assert len(begun) == 1
        async with listening(os.getuid()) as (path, begun):
            assert await asks(path, OTHER) == ""
            assert not begun

    asyncio.run(test())

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
    """Repeats what it receives."""

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
    """A server for these users, and the links with which it began to speak."""
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
    """What a process of that user receives; empty where it is refused."""
    given = [str(path)] if user is None else [str(path), str(user)]
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", ASK, *given],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return str(run.stdout).strip()


def test_who_is_not_named_is_turned_away_before_a_byte_is_read() -> None:
    """File permissions may let other users open the socket, so the server checks the user itself."""

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
    """kube-scheduler's container has a user of its own, for example; then the engine's own may not come."""

    async def test() -> None:
        async with listening(OTHER) as (path, begun):
            assert await asks(path, OTHER) == "hi"
            assert await asks(path) == ""
            assert len(begun) == 1
        async with listening(os.getuid()) as (path, begun):
            assert await asks(path, OTHER) == ""
            assert not begun

    asyncio.run(test())


async def test_what_others_make_meanwhile_has_the_usual_mode() -> None:
    """The socket's mask would leave a folder that its owner cannot enter."""
    with folder() as made:

        async def another() -> None:
            (made / "folder").mkdir()

        making = asyncio.create_task(another())
        server = UnixServer(made / "s", lambda link: Echo(link, []), [os.getuid()], 16)
        await server.start()
        await making
        assert (made / "folder").stat().st_mode & 0o700 == 0o700
        assert (made / "s").stat().st_mode & 0o777 == 0o660
        await server.stop()


def test_a_caller_that_floods_has_a_bound_and_the_log_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds connections with half a frame, and sends giant frames; the present callers are still served."""
    monkeypatch.setattr("partage.serving.unix._MOST_LINKS", 8)

    async def closed(reader: asyncio.StreamReader) -> bool:
        try:
            return await asyncio.wait_for(reader.read(1), 240) == b""
        except ConnectionResetError:
            return True

    async def test() -> None:
        async with listening(os.getuid()) as (path, begun):
            first = await asyncio.open_unix_connection(path)
            held = [await asyncio.open_unix_connection(path) for _ in range(7)]
            for _, writer in held:
                writer.write(b"\x00\x00\x00\x50half")
            for _ in range(20):
                reader, writer = await asyncio.open_unix_connection(path)
                assert await closed(reader)
                writer.close()
            assert len(begun) == 8
            assert sum("of the unix socket is refused" in line for line in caplog.messages) == 1
            first[1].write(b"\x00\x00\x00\x02hi")
            assert await asyncio.wait_for(first[0].readexactly(6), 240) == b"\x00\x00\x00\x02hi"
            held[0][1].write(b"x" * 200)  # ends the frame; what follows says that it is a giant
            assert await asyncio.wait_for(held[0][0].readexactly(84), 240)
            assert await closed(held[0][0])
            again = await asyncio.open_unix_connection(path)
            again[1].write(b"\x00\x00\x00\x02hi")
            assert await asyncio.wait_for(again[0].readexactly(6), 240) == b"\x00\x00\x00\x02hi"
            for _, writer in (first, again, *held):
                writer.close()

    with caplog.at_level("WARNING", "partage.serving"):
        asyncio.run(test())

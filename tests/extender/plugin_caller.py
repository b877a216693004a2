"""A kube-scheduler with the plugin at the service's own socket, message by message."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from world import World

from partage.daemon.plugin import PluginOptions, PluginServer
from partage.wire import plugin as wire


class Caller:
    """The other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._id = 0
        self.pushed: list[dict[str, Any]] = []

    async def ask(self, verb: str, **given: Any) -> dict[str, Any]:
        """The answer; pushes in between are kept."""
        self._id += 1
        body = json.dumps({"verb": verb, "id": self._id, **given}).encode()
        self._writer.write(len(body).to_bytes(4, "big") + body)
        while True:
            async with asyncio.timeout(240):
                head = await self._reader.readexactly(4)
                found = json.loads(await self._reader.readexactly(int.from_bytes(head, "big")))
            if found.get("id") == self._id:
                return dict(found)
            self.pushed.append(found)


@asynccontextmanager
async def listening(
    world: World, *, claims: bool = False
) -> AsyncIterator[tuple[Path, list[bool]]]:
    """The service at a socket, and what kube-scheduler claims of its Lease."""
    claimed: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        server = PluginServer(
            PluginOptions(path), world.service, lambda: True, claimed.append, claims=claims
        )
        await server.start()
        try:
            yield path, claimed
        finally:
            await server.stop()


@asynccontextmanager
async def calling(path: Path, incarnation: str) -> AsyncIterator[Caller]:
    """A kube-scheduler that has said hello and that it holds its Lease."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        caller = Caller(reader, writer)
        await caller.ask("hello", protocol=wire.PROTOCOL, incarnation=incarnation)
        await caller.ask("leading", leading=True)
        yield caller
    finally:
        writer.close()


@asynccontextmanager
async def connected(
    world: World, *, claims: bool = False
) -> AsyncIterator[tuple[Caller, list[bool]]]:
    """A service with one kube-scheduler, and what that claimed of its Lease."""
    async with listening(world, claims=claims) as (path, claimed), calling(path, "one") as caller:
        yield caller, claimed

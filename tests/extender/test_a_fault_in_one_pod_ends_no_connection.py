"""kube-scheduler asks about all pods by one connection, so a fault of ours in one pod must affect that pod alone."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from world import World, device, document, node, pod, run, whole

from partage.daemon.plugin import PluginOptions, PluginServer
from partage.extender.attempts import Attempts
from partage.wire import plugin as wire
from partage.wire import translation


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
async def connected(
    world: World, *, claims: bool = False
) -> AsyncIterator[tuple[Caller, list[bool]]]:
    """A kube-scheduler that has said hello, and what it claimed of its Lease."""
    claimed: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        server = PluginServer(
            PluginOptions(path), world.service, lambda: True, claimed.append, claims=claims
        )
        await server.start()
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            caller = Caller(reader, writer)
            await caller.ask("hello", protocol=wire.PROTOCOL, incarnation="one")
            await caller.ask("leading", leading=True)
            yield caller, claimed
        finally:
            writer.close()
            await server.stop()


@pytest.mark.parametrize("verb", ["propose", "bind"])
def test_the_others_are_decided_and_the_leader_stays(
    verb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pod also gets an answer, so that kube-scheduler tries it again, and connection and lead are kept."""
    plain: Any = getattr(Attempts, verb)

    def poisoned(self: Attempts, question: Any, *more: Any) -> Any:
        if question.uid == "uid-poison":
            raise KeyError(question.uid)
        return plain(self, question, *more)

    monkeypatch.setattr(Attempts, verb, poisoned)

    @run
    async def story() -> None:
        world = await World().start(node(), device())
        world.create(pod("web", whole()))
        async with connected(world) as (caller, claims):
            for _ in range(3):
                failed = await caller.ask(verb, uid="uid-poison", attempt=1, node="n1")
                assert failed["code"] == "StaleAttempt"
                assert "log" in failed["message"]
            told = await caller.ask("propose", uid="uid-web", attempt=1)
            assert told["nodes"] == ["n1"]
            assert claims == [True]

    story()
    assert caplog.text.count("KeyError") >= 3


@run
async def test_a_pod_that_cannot_be_read_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may write such a pod: it is reported as a problem, and the books go on."""
    plain = translation.translate_pod

    def poisoned(document: Any, context: Any) -> Any:
        if document.name == "poison":
            raise KeyError("x")
        return plain(document, context)

    monkeypatch.setattr(translation, "translate_pod", poisoned)
    world = await World().start(node(), device())
    world.create(pod("poison", whole()))
    await world.place(pod("web", whole()))
    assert world.service.books.engine.ledger.allocation("uid-web") is not None
    problems = world.service.books.cluster_cache.problems
    assert any("KeyError" in text for text in problems.values())
    world.service.gone(document(pod("poison", whole())))
    assert problems == {}

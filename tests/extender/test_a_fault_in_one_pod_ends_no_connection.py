"""kube-scheduler asks about all pods by one connection, so a fault of ours in one pod must affect that pod alone."""

from typing import Any

import pytest
from plugin_caller import connected
from world import World, device, document, node, pod, run, whole

from partage.extender.attempts import Attempts
from partage.wire import translation


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

"""A node whose agent is away is closed to new pods with devices, and to nothing else.

Other tests cover when an agent counts as silent (`controllers.heartbeats`), and the write of that (the daemon).
"""

import json
from typing import Any

from world import Manifest, World, device, document, half, node, pod, run, whole

from partage.extender.explain import explain
from partage.extender.preemption import proposed
from partage.model.policy import Policy
from partage.model.reason import ReasonCode, Refusal
from partage.scheduler.engine import State
from partage.sim.predicted import predicted
from partage.vendors import names
from partage.wire.documents import decode
from partage.wire.snapshot import Snapshot, plain, snapshot_lines

SINCE = "2026-11-22T08:00:00Z 60"


def _silent(name: str = "n1", version: int = 2) -> Manifest:
    return node(name, version, annotations={names.AGENT_SILENT: SINCE})


@run
async def test_a_new_pod_waits_with_the_reason_and_no_eviction_would_help() -> None:
    """kube-scheduler learns that preemption is useless there; explain has the numbers."""
    world = await World().start(node(), device())

    world.service.changed(document(_silent()))
    answer = world.filter(world.create(pod("web", whole())))

    assert not answer["NodeNames"]
    assert not answer["FailedNodes"]
    assert answer["FailedAndUnresolvableNodes"]["n1"].startswith("AgentSilent: ")
    assert world.told == [("web", "AgentSilent")]
    told = explain(world.service.books, "team", "web")
    assert told is not None
    assert "since 2026-11-22T08:00:00Z; the limit is 60 s" in told["reason"]["message"]
    assert "agent" in told["next"]


@run
async def test_pods_without_devices_go_there_as_ever() -> None:
    """They need no agent."""
    world = await World().start(_silent(), device())

    assert world.filter(pod("plain"))["NodeNames"] == ["n1"]


@run
async def test_who_runs_there_keeps_everything() -> None:
    """Nothing is released, and the audit finds nothing."""
    world = await World().start(node(), device())
    await world.place(pod("web", half()))
    before = world.service.books.engine.ledger.allocation("uid-web")

    world.service.changed(document(_silent()))

    engine = world.service.books.engine
    assert engine.ledger.allocation("uid-web") == before
    assert engine.states["uid-web"] is State.BOUND
    assert world.service.audit().clean
    assert world.quarantined == []


@run
async def test_a_place_that_was_kept_there_is_given_up_at_bind() -> None:
    """The agent becomes silent between filter and bind."""
    world = await World().start(node(), device())
    world.filter(world.create(pod("web", whole())))

    world.service.changed(document(_silent()))

    assert "AgentSilent" in await world.bind("web")
    assert world.service.books.engine.ledger.allocation("uid-web") is None


@run
async def test_who_was_refused_is_woken_when_the_agent_is_back() -> None:
    """No pod is woken when the agent becomes silent, or when its silence is reported again."""
    world = await World().start(node(), device())
    world.service.changed(document(_silent()))
    manifest = world.create(pod("web", whole()))
    world.filter(manifest)
    later = node(version=3, annotations={names.AGENT_SILENT: "2026-11-22T09:00:00Z 60"})
    world.service.changed(document(later))
    assert world.woken == []

    world.service.changed(document(node(version=4)))

    assert world.woken == ["uid-web"]
    assert world.filter(manifest)["NodeNames"] == ["n1"]


@run
async def test_other_nodes_take_over() -> None:
    """kube-scheduler's proposals for preemption avoid the closed node too."""
    world = await World().start(_silent(), device(), node("n2"), device("n2"))
    manifest = world.create(pod("web", whole()))

    assert world.filter(manifest)["NodeNames"] == ["n2"]

    books = world.service.books
    entry = books.cluster_cache.pods.get("uid-web")
    assert entry is not None
    assert proposed(books.cycle, entry.pod, {"n1": ["unknown"]}, {}.get, 0.0) == {}


@run
async def test_a_snapshot_decides_alike() -> None:
    """The snapshot's Node contains the fact."""
    objects: list[dict[str, Any]] = []
    for manifest in (_silent(), device(), pod("web", whole())):
        found = plain(document(manifest))
        assert found is not None
        objects.append(found)
    lines = b"".join(snapshot_lines(Snapshot(), objects))

    ((_, decision),) = await predicted(decode("s.json", lines).documents, Policy())

    assert isinstance(decision, Refusal)
    assert decision.code is ReasonCode.AGENT_SILENT
    assert json.loads(lines.splitlines()[1])["metadata"]["annotations"] == {
        names.AGENT_SILENT: SINCE
    }

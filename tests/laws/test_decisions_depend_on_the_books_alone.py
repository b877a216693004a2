"""A decision follows from the books, not from how they came about, and not from names."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from learnt import tables
from ledgers import allocations
from msgspec import structs
from worlds import node_lists, pods, policies

from answers import feasible
from fakes.builders import make_pod, share, whole
from partage.model.allocation import Allocation, Grant
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.model.reason import Refusal
from partage.placement.tables import Tables
from partage.scheduler.engine import Engine
from partage.scheduler.events import (
    NodeGone,
    NodeSeen,
    Placement,
    PodGone,
    PolicyChanged,
    TablesChanged,
)
from partage.sim.compiled.scorers import CompiledScorers


def engine_of(
    policy: Policy, nodes: list[Node], held: list[Allocation], *, accelerate: bool = False
) -> Engine:
    """A fresh engine that has never decided anything."""
    engine = Engine(policy, CompiledScorers() if accelerate else None)
    for node in nodes:
        engine.handle(NodeSeen(node))
    for allocation in held:
        engine.ledger.apply(allocation)
    return engine


def _ours(policy: Policy, pod: Pod) -> bool:
    """Whether no strategy draws lots: those follow the number of changes on purpose."""
    return Strategy.RANDOM not in (policy.node, policy.card, pod.request.node_strategy)


@given(st.data())
def test_scores_kept_up_to_date_are_those_of_a_fresh_scan(data: st.DataObject) -> None:
    """An engine that has decided and released much decides as one that starts now."""
    policy = data.draw(policies())
    nodes = data.draw(node_lists())
    names = [node.name for node in nodes]
    engine = engine_of(policy, nodes, [], accelerate=data.draw(st.booleans()))
    wishes = [data.draw(pods(f"class-{i}")) for i in range(3)]

    for i in range(data.draw(st.integers(1, 8))):
        held = list(engine.ledger.allocations())
        step = data.draw(
            st.sampled_from(["schedule", "schedule", "gone", "fact", "policy", "node", "back"])
        )
        if step == "gone" and held:
            engine.handle(PodGone(data.draw(st.sampled_from(held)).uid))
        elif step == "fact":
            engine.ledger.apply(data.draw(allocations(f"fact-{i}", names)))
        elif step == "policy":
            policy = data.draw(policies())
            engine.handle(PolicyChanged(policy))
        elif step == "node":
            place = data.draw(st.integers(0, len(nodes) - 1))
            healthy = data.draw(st.booleans())
            devices = tuple(replace(d, healthy=healthy) for d in nodes[place].devices)
            nodes[place] = replace(nodes[place], devices=devices)
            engine.handle(NodeSeen(nodes[place]))
        elif step == "back":
            moved = nodes.pop(data.draw(st.integers(0, len(nodes) - 1)))
            nodes.append(moved)  # a node that comes back is the last in order
            engine.handle(NodeGone(moved.name))
            engine.audit()
            engine.handle(NodeSeen(moved))
        else:
            pod = replace(data.draw(st.sampled_from(wishes)), uid=f"pod-{i}", name=f"pod-{i}")
            fresh = engine_of(policy, nodes, held)
            expected, able = fresh.evaluate(pod), feasible(fresh, pod)
            if not _ours(policy, pod):
                continue
            assert feasible(engine, pod) == able
            decision = engine.schedule(pod)
            assert decision == expected
            assert isinstance(decision, Placement) == bool(able)
            if isinstance(decision, Placement):
                assert decision.allocation.node in able


SIMPLE = st.sampled_from([share(30), share(60), whole(1), whole(2)])
LEARNERS = st.sampled_from([Policy(), Policy(Strategy.FGD, Strategy.FGD)])


@pytest.mark.parametrize("learnt", [False, True])
@given(data=st.data())
def test_names_decide_nothing(data: st.DataObject, *, learnt: bool) -> None:
    """With nodes and devices renamed, the same positions are chosen, whatever was learnt."""
    policy = data.draw(LEARNERS if learnt else policies())
    known = data.draw(tables) if learnt else Tables()
    nodes = data.draw(node_lists())
    if learnt:  # alike, so that several fit and nothing but their names could tell them apart
        nodes = [_renamed_node(nodes[0], f"node-{number}") for number in range(3)]
    names = data.draw(st.permutations(["z", "node-0", "k"]))
    renamed = dict(zip((node.name for node in nodes), names, strict=False))
    one = engine_of(policy, nodes, [])
    two = engine_of(policy, [_renamed_node(node, renamed[node.name]) for node in nodes], [])
    for engine in (one, two):
        engine.handle(TablesChanged(known))

    for i in range(data.draw(st.integers(1, 4))):
        simple = SIMPLE.map(partial(make_pod, f"pod-{i}"))
        pod = data.draw(st.one_of(pods(f"pod-{i}"), simple) if learnt else pods(f"pod-{i}"))
        left, right = one.schedule(pod), two.schedule(_renamed_pod(pod, renamed))
        assert _positions(left, one) == _positions(right, two)


def _uuid(node: str, uuid: str, name: str) -> str:
    """Another UUID, in another order than the old ones."""
    return f"{name}/{uuid.removeprefix(node)[::-1]}"


def _renamed_node(node: Node, name: str) -> Node:
    devices = tuple(replace(d, uuid=_uuid(node.name, d.uuid, name)) for d in node.devices)
    links = {
        _pair(_uuid(node.name, a, name), _uuid(node.name, b, name)): score
        for (a, b), score in node.links.items()
    }
    return replace(node, name=name, devices=devices, links=links)


def _pair(one: str, two: str) -> tuple[str, str]:
    return (one, two) if one < two else (two, one)


def _renamed_pod(pod: Pod, names: Mapping[str, str]) -> Pod:
    def renamed(uuids: tuple[str, ...]) -> tuple[str, ...]:
        split = [(uuid[: len("node-0")], uuid) for uuid in uuids]
        return tuple(_uuid(node, uuid, names.get(node, node)) for node, uuid in split)

    groups = []
    for group in pod.request.groups:
        wanted = group.request.filter
        other = replace(
            wanted,
            use_uuids=renamed(wanted.use_uuids),
            avoid_uuids=renamed(wanted.avoid_uuids),
        )
        groups.append(replace(group, request=replace(group.request, filter=other)))
    return replace(pod, request=replace(pod.request, groups=tuple(groups)))


def _positions(decision: Placement | Refusal, engine: Engine) -> object:
    if isinstance(decision, Refusal):
        return decision.code, decision.counts
    allocation = decision.allocation
    grants = [_nameless(grant) for grant in allocation.grants]
    return engine.ledger.index[allocation.node], grants


def _nameless(grant: Grant) -> Grant:
    return structs.replace(grant, uuid="")


@settings(max_examples=25)
@given(st.data())
def test_counts_in_large_clusters_are_those_of_each_node(data: st.DataObject) -> None:
    """Beyond a hundred nodes, codes are counted from the columns, as node by node."""
    patterns = data.draw(node_lists())
    held = [data.draw(allocations(f"fact-{i}", [n.name for n in patterns])) for i in range(3)]
    pod = data.draw(pods("pod"))
    pod = replace(pod, request=replace(pod.request, groups=pod.request.groups[:1], joint=None))
    # Free virtual functions are known to the exact rule alone, card by card.
    assume(all(group.request.filter.functions is None for group in pod.request.groups))
    copies = 101 // len(patterns) + 1
    nodes = [
        _renamed_node(node, f"{node.name}{'' if copy == 0 else f'-{copy}'}")
        for copy in range(copies)
        for node in patterns
    ]
    moved = [
        structs.replace(
            a,
            uid=f"{a.uid}-{copy}",
            node=f"{a.node}{'' if copy == 0 else f'-{copy}'}",
            grants=tuple(structs.replace(g, uuid="") for g in a.grants),
        )
        for copy in range(copies)
        for a in held
    ]
    blind = [
        structs.replace(a, grants=tuple(structs.replace(g, uuid="") for g in a.grants))
        for a in held
    ]
    small = engine_of(Policy(), [_renamed_node(n, n.name) for n in patterns], blind).evaluate(pod)

    large = engine_of(Policy(), nodes, moved).evaluate(pod)

    assert type(large) is type(small)
    if isinstance(small, Refusal) and isinstance(large, Refusal):
        assert large.counts == {code: count * copies for code, count in small.counts.items()}
        assert large.code is small.code
        assert sum(large.counts.values()) == len(nodes)

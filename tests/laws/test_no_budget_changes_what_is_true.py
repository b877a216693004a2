"""Sums, columns, memory, equal nodes and a budget make decisions cheap; none of them changes what is decided."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from worlds import PROTOCOLS, device_requests, node_lists, nodes, pod_requests, pods

from drawn import sampled
from fakes.builders import GIB, card, make_node
from partage.inventory import plane
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType, Topology
from partage.model.node import Node, Verdict
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.model.reason import NodeReason, ReasonCode, Refusal
from partage.model.request import (
    CardFilter,
    ContainerAsk,
    DeviceRequest,
    PodRequest,
    RequestGroup,
    Scope,
)
from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Selector,
    Taint,
    Toleration,
)
from partage.placement import kernel
from partage.placement import pod as search
from partage.placement.card import MOST_A_NODE, Work
from partage.placement.greedy import taking_all
from partage.placement.node import Eligibility, NodeColumns, objection, opened
from partage.placement.pod import GIVEN_UP, place
from partage.placement.sums import room_together
from partage.scheduler.classes import kinds_of
from partage.scheduler.engine import Engine
from partage.scheduler.equal_nodes import EqualNodes
from partage.scheduler.events import NodeSeen, Placement

ENOUGH = 30_000
"""Units of work with which searches of these tests hardly ever end early."""

SIZES = st.tuples(
    st.integers(1, 3),
    sampled([0, 100, 240, 300, 340, 510, 700, 1000]),
    sampled([0, 1, 2, 3, 5, 8]),
)


def _plain(size: tuple[int, int, int], **more: object) -> DeviceRequest:
    count, core, memory = size
    made = DeviceRequest(
        DeviceType.GPU, count, core_milli=core, memory_bytes=memory * GIB, claims_core=True
    )
    return replace(made, **more)  # type: ignore[arg-type] # fields of the request


def _groups(
    requests: Sequence[DeviceRequest], protocols: Sequence[str]
) -> tuple[RequestGroup, ...]:
    return tuple(
        RequestGroup(protocol, request, (ContainerAsk(f"c{i}", position=i),))
        for i, (request, protocol) in enumerate(zip(requests, protocols, strict=True))
    )


def _ledger(*listed: Node) -> Ledger:
    ledger = Ledger()
    for node in listed:
        ledger.upsert_node(node)
    return ledger


def _cards(ledger: Ledger, index: int = 0) -> Mapping[DeviceType, list[object]]:
    return {type_: ledger.cards(type_, index) for type_ in DeviceType}  # type: ignore[misc]


def _columns(ledger: Ledger, request: PodRequest) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The right cards for each kind of group, and those that serve it now."""
    everywhere = slice(None)
    suits = [
        kernel.suited(ledger, kind.request, kind.group.protocol, everywhere)
        for kind in kinds_of(request)
    ]
    fits = [
        kernel.fitting(ledger, kind.request, right, everywhere)
        for kind, right in zip(kinds_of(request), suits, strict=True)
    ]
    return suits, fits


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    """Requests of a few containers of all kinds, several of which ask the same."""
    kinds = draw(st.lists(st.one_of(device_requests(), SIZES.map(_plain)), min_size=1, max_size=3))
    chosen = draw(st.lists(sampled(kinds), min_size=2, max_size=6))
    protocol = draw(sampled(PROTOCOLS))
    return PodRequest(_groups(chosen, [protocol] * len(chosen)))


@given(node=nodes("node-0"), request=requests())
def test_sums_refuse_no_node_on_which_a_place_is_found(node: Node, request: PodRequest) -> None:
    """Whatever the exact rule places passes what is asked of all nodes before."""
    ledger = _ledger(node)
    found = place(node, _cards(ledger), request, Strategy.BINPACK, work=Work(ENOUGH))  # type: ignore[arg-type]
    assume(not isinstance(found, NodeReason))
    _, fits = _columns(ledger, request)
    assert room_together(ledger, kinds_of(request), fits, slice(None))[0]


@given(listed=node_lists(most=6), request=requests())
def test_sums_say_of_a_node_among_others_what_they_say_of_it_alone(
    listed: list[Node], request: PodRequest
) -> None:
    """Nodes that have too little in sum are asked no further, and change nothing for the others."""
    ledger = _ledger(*listed)
    kinds, (_, fits) = kinds_of(request), _columns(ledger, request)
    together = room_together(ledger, kinds, fits, slice(None))
    for index in range(len(listed)):
        alone = np.array([index])
        found = room_together(ledger, kinds, [one[:, alone] for one in fits], alone)
        assert found[0] == together[index]


@given(node=nodes("node-0"), request=requests())
def test_what_is_known_of_dead_ends_changes_nothing(node: Node, request: PodRequest) -> None:
    """The same grants, or the same refusal, as of a search that remembers none."""

    class Forgetful(set[object]):
        def add(self, _state: object) -> None:
            """Remember nothing."""

    ledger = _ledger(node)
    cards = _cards(ledger)
    plain = place(node, cards, request, Strategy.BINPACK, work=Work(ENOUGH))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "set", Forgetful, raising=False)
        again = place(node, cards, request, Strategy.BINPACK, work=Work(ENOUGH))  # type: ignore[arg-type]
    assume(again is not GIVEN_UP)
    assert plain == again


def _other(node: Node) -> Node:
    """The same node under another name, with cards of other names."""
    devices = tuple(replace(d, uuid=f"other-{d.uuid}") for d in node.devices)
    links = {tuple(sorted(f"other-{one}" for one in pair)): n for pair, n in node.links.items()}
    return replace(node, name="other", devices=devices, links=links)  # type: ignore[arg-type]


def _renamed(request: PodRequest) -> PodRequest:
    """The same request of containers of other names."""
    groups = (
        replace(g, containers=tuple(replace(c, name=f"x{c.name}") for c in g.containers))
        for g in request.groups
    )
    return replace(request, groups=tuple(groups))


@given(st.data())
def test_an_equal_node_is_answered_as_if_it_were_searched(data: st.DataObject) -> None:
    """The same grants of its own cards, or the same refusal, and as much work counted."""
    node = data.draw(nodes("node-0"))
    request = data.draw(st.one_of(requests(), pod_requests()))
    assume(request.fault is None and len(request.groups) > 1)
    ledger = _ledger(node, _other(node))
    for index in range(2):
        for one in ledger.cards(DeviceType.GPU, index):
            if one.device.minor == 0 and data.draw(st.booleans()):
                part = Grant("c", DeviceType.GPU, 0, one.device.uuid, 300, GIB, GrantMode.SHARE)
                name = ledger.node_at(index).name
                ledger.apply(Allocation(f"on-{name}", "team", "p", name, (part,)))
    equals = EqualNodes(OrderedDict(), 0)
    asked = {"obstacle": data.draw(st.booleans())}
    for wanted in (request, _renamed(request)):
        for index in (0, 1, 0):
            on, cards = ledger.node_at(index), _cards(ledger, index)
            work, mine = Work(ENOUGH), Work(ENOUGH)
            plain = place(on, cards, wanted, Strategy.BINPACK, None, work, **asked)  # type: ignore[arg-type]
            told = equals.place(on, cards, wanted, Strategy.BINPACK, None, mine, **asked)  # type: ignore[arg-type]
            assert told == plain
            assert mine.done == work.done


_CHANGED: Mapping[str, dict[str, object]] = {
    "ill": {"healthy": False, "health_detail": "hot"},
    "ill in another way": {"healthy": False, "health_detail": "cold"},
    "smaller": {"memory_bytes": 2 * GIB},
    "with one slot": {"slots": 1},
    "of another model": {"model": "another"},
    "of another number": {"minor": 7},
    "elsewhere": {"topology": Topology(1, "other")},
    "cut": {"vendor_cut": True},
    "with less": {},
}


@pytest.mark.parametrize("changed", _CHANGED)
def test_a_node_of_which_a_card_is_another_is_searched_by_itself(changed: str) -> None:
    """One card may differ in any respect; both nodes are answered as they are."""
    cards = [
        card(minor, prefix="a", memory=8, topology=Topology(0, "switch")) for minor in range(2)
    ]
    if "ill" in changed:
        cards[0] = replace(cards[0], healthy=False, health_detail="old")
    node = make_node("node", cards)
    other = _other(node)
    first = replace(other.devices[0], **_CHANGED[changed])  # type: ignore[arg-type]
    ledger = _ledger(node, replace(other, devices=(first, other.devices[1])))
    if changed == "with less":
        part = Grant("c", DeviceType.GPU, 0, first.uuid, 500, GIB, GrantMode.SHARE)
        ledger.apply(Allocation("u", "team", "p", "other", (part,)))
    avoided = CardFilter(avoid_types=("another",))
    one, two = _plain((1, 510, 3)), _plain((1, 100, 1), count=2, scope=Scope.PCIE)
    for sizes in ([one, one], [one, one, one], [two, two], [replace(one, filter=avoided)] * 2):
        request = PodRequest(_groups(sizes, ["hami"] * len(sizes)))
        equals = EqualNodes(OrderedDict(), 0)
        for index in range(2):
            on, mine = ledger.node_at(index), _cards(ledger, index)
            plain = place(on, mine, request, Strategy.BINPACK)  # type: ignore[arg-type]
            found = equals.place(on, mine, request, Strategy.BINPACK, None, Work(MOST_A_NODE))  # type: ignore[arg-type]
            assert found == plain


def test_equal_nodes_are_searched_once() -> None:
    """The second of two nodes takes no work, and counts as much as the first."""
    listed = [
        make_node(f"n{i}", [card(minor, prefix=f"GPU-{i}") for minor in range(4)])
        for i in range(2)
    ]
    sizes = [_plain((1, 510, 1)), _plain((1, 520, 1)), _plain((2, 530, 2))]
    request = PodRequest(_groups(sizes, ["hami"] * 3))
    ledger = _ledger(*listed)
    equals, work = EqualNodes(OrderedDict(), 0), Work(ENOUGH)
    for index in range(2):
        part = Work(ENOUGH)
        equals.place(
            ledger.node_at(index), _cards(ledger, index), request, Strategy.BINPACK, None, part
        )  # type: ignore[arg-type]
        work.include(part)
    assert work.done == 2 * work.recalled > 0


@given(
    listed=st.lists(nodes("node"), min_size=1, max_size=3),
    sizes=st.lists(SIZES, min_size=1, max_size=6),
    more=sampled([{}, {"sharers": 2}, {"exclusive": True}, {"unused": True}]),
    at_a_time=sampled([1, 2**21]),
)
def test_first_tries_agree_with_the_columns(
    listed: list[Node],
    sizes: list[tuple[int, int, int]],
    more: dict[str, object],
    at_a_time: int,
) -> None:
    """Without scopes and instances, all nodes at once come out as each by itself."""
    listed = [replace(node, name=f"n{i}", single_numa=False) for i, node in enumerate(listed)]
    ledger = _ledger(*listed)
    kinds = [_plain(size, **more) for size in sizes]
    request = PodRequest(_groups(kinds, ["hami"] * len(kinds)))
    suits, _ = _columns(ledger, request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plane, "_AT_A_TIME", at_a_time)
        told = taking_all(ledger, kinds_of(request), suits, np.arange(len(listed)))
    for index, node in enumerate(listed):
        cards = _cards(ledger, index)
        found = place(node, cards, request, Strategy.BINPACK, work=Work(0))  # type: ignore[arg-type]
        assert isinstance(found, NodeReason) is not told[index]


@settings(max_examples=60)
@given(st.data())
def test_columns_of_labels_agree_with_the_plain_rule(data: st.DataObject) -> None:
    """Every operator, on labels and on names, taints and tolerations; as nodes come, change and go."""
    words = sampled(["a", "b", "1", "2", "07", "-3", "n0", "n1", "x"])
    keys = sampled(["zone", "size", "kubernetes.io/hostname", "metadata.name", "none"])

    def requirement(key: st.SearchStrategy[str]) -> st.SearchStrategy[Requirement]:
        listed = st.builds(
            lambda k, o, v: Requirement(k, o, tuple(v)),
            key,
            sampled([Operator.IN, Operator.NOT_IN]),
            st.lists(words, min_size=1, max_size=3),
        )
        bare = st.builds(
            lambda k, o: Requirement(k, o, ()),
            key,
            sampled([Operator.EXISTS, Operator.DOES_NOT_EXIST]),
        )
        compared = st.builds(
            lambda k, o, v: Requirement(k, o, (v,)),
            key,
            sampled([Operator.GT, Operator.LT]),
            sampled(["-1", "0", "1", "5"]),
        )
        return st.one_of(listed, bare, compared)

    labels = st.lists(requirement(keys), max_size=3).map(tuple)
    fields = st.lists(requirement(sampled(["metadata.name", "other"])), max_size=2).map(tuple)
    terms = st.builds(NodeTerm, labels, fields)
    effects = sampled(["NoSchedule", "NoExecute", "PreferNoSchedule"])
    keys_of_taints = sampled(["k", "l", "node.kubernetes.io/not-ready"])
    verdicts = st.builds(
        Verdict,
        sampled(["", "hami", "other"]),
        sampled([ReasonCode.AGENT_SILENT, ReasonCode.MODE_MISMATCH]),
        st.just("no"),
    )
    taints = st.builds(Taint, keys_of_taints, sampled(["", "v"]), effects)
    tolerations = st.builds(
        Toleration,
        sampled(["", "k", "l", "node.kubernetes.io/unschedulable"]),
        sampled(["Equal", "Exists"]),
        sampled(["", "v"]),
        sampled(["", "NoSchedule", "NoExecute"]),
    )

    def node(name: str, version: int) -> Node:
        return Node(
            name,
            labels=data.draw(st.dictionaries(keys, words, max_size=3)),
            taints=tuple(data.draw(st.lists(taints, max_size=2))),
            unschedulable=data.draw(st.booleans()),
            verdicts=tuple(data.draw(st.lists(verdicts, max_size=2))),
            version=version,
        )

    ledger = _ledger(*[node(f"n{i}", 1) for i in range(data.draw(st.integers(1, 5)))])
    columns = NodeColumns(ledger)
    constraint = NodeConstraint(
        Selector(data.draw(labels)),
        data.draw(st.one_of(st.none(), st.lists(terms, max_size=3).map(tuple))),
        tuple((5, one) for one in data.draw(st.lists(terms, max_size=2))),
    )
    pod = Pod(
        "u",
        "team",
        "p",
        constraint=constraint,
        tolerations=tuple(data.draw(st.lists(tolerations, max_size=2))),
        request=PodRequest(
            (RequestGroup("hami", DeviceRequest(DeviceType.GPU), (ContainerAsk(""),)),)
        ),
    )
    judged = Eligibility(pod, columns)
    for version in range(2, 5):
        judged.refresh(ledger)
        accepted = columns.accepting_opened(pod)
        for index, one in enumerate(ledger.nodes):
            if one is None:
                assert not judged.allowed[index]
                assert not accepted[index]
                continue
            assert accepted[index] == (objection(opened(one), pod) is None)
            plain = objection(one, pod)
            assert judged.allowed[index] == (plain is None)
            told = [code for code, which in judged.codes.items() if which[index]]
            assert told == ([] if plain is None else [plain.code])
            if plain is None:
                liked = sum(w for w, t in constraint.preferred if t.matches(one.name, one.labels))
                assert judged.preference[index] == liked
        name = f"n{data.draw(st.integers(0, 5))}"
        if data.draw(st.booleans()) and name in ledger.index:
            ledger.remove_node(name)
        else:
            ledger.upsert_node(node(name, version))


@settings(max_examples=40)
@given(listed=node_lists(), pod=pods("u"), request=requests())
def test_asking_about_nodes_first_changes_no_decision(
    listed: list[Node], pod: Pod, request: PodRequest
) -> None:
    """What the exact rule refused before is counted as if it were asked again."""
    pod = replace(pod, request=request, node=None)
    assume(request.fault is None)
    fresh, asked = Engine(Policy()), Engine(Policy())
    for engine in (fresh, asked):
        for node in listed:
            engine.handle(NodeSeen(node))
    asked.candidates(pod)
    one, other = fresh.evaluate(pod, reasons=False), asked.evaluate(pod, reasons=False)
    assert isinstance(one, Refusal) == isinstance(other, Refusal)
    if isinstance(one, Placement) and isinstance(other, Placement):
        assert one.allocation == other.allocation
    elif isinstance(one, Refusal) and isinstance(other, Refusal):
        assert one.code is other.code


@settings(max_examples=60)
@given(listed=node_lists(most=5), pod=pods("u"), data=st.data())
def test_devices_alone_are_decided_about_as_if_that_were_the_only_question(
    listed: list[Node], pod: Pod, data: st.DataObject
) -> None:
    """Nodes that refused the whole pod for their cards are not searched again, and refuse it all the same."""
    request = data.draw(st.one_of(requests(), pod_requests()))
    whole = replace(pod, request=request, node=None, host={"cpu": 3000, "pods": 1})
    alone = replace(whole, host={})
    assume(request.fault is None)
    cpu = [data.draw(sampled([1000, 4000])) for _ in listed]
    listed = [
        replace(node, allocatable={"cpu": amount, "pods": 9})
        for node, amount in zip(listed, cpu, strict=True)
    ]
    policy = data.draw(sampled([Policy(), Policy.parse("binpack")]))
    together, first, then = Engine(policy), Engine(policy), Engine(policy)
    for engine in (together, first, then):
        for node in listed:
            engine.handle(NodeSeen(node))
    told = together.evaluate(whole, alone=alone, work=Work(4 * ENOUGH))
    expected = first.evaluate(whole, work=Work(ENOUGH))
    if isinstance(expected, Refusal) and ReasonCode.NODE_RESOURCES in expected.counts:
        expected = then.evaluate(alone, work=Work(ENOUGH))
    assume(not isinstance(expected, Refusal) or ReasonCode.SEARCH_LIMIT not in expected.counts)
    assert told == expected


@pytest.mark.parametrize("count", [9, 120])
def test_nodes_that_refused_the_whole_pod_are_counted_for_its_devices_alone(count: int) -> None:
    """No node has room for its cards, every second one has no CPU for it; the reason is that of the devices."""
    sizes = [_plain((1, size, 1)) for size in (700, 410, 400, 390)]
    request = PodRequest(_groups(sizes, ["hami"] * 4))
    whole = Pod("u", "team", "p", request=request, host={"cpu": 3000})
    alone = replace(whole, host={})
    together, then = Engine(), Engine()
    for engine in (together, then):
        for i in range(count):
            cards = [card(minor, prefix=f"GPU-{i}", memory=80) for minor in range(2)]
            node = make_node(f"n{i}", cards, allocatable={"cpu": 1000 + 3000 * (i % 2)})
            engine.handle(NodeSeen(node))
    work = Work(ENOUGH)
    assert together.evaluate(whole, alone=alone, work=work) == then.evaluate(alone)
    told = together.evaluate(alone)
    assert isinstance(told, Refusal)
    assert sum(told.counts.values()) == count
    assert ReasonCode.NODE_RESOURCES not in told.counts

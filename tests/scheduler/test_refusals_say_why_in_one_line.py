"""A pod that waits has its reason: one line, a code, and each node's own reason with figures."""

import re

import pytest

from fakes.builders import GIB, card, make_node, make_pod, share, whole
from partage.model.device import Device, DeviceType, SliceMode, Topology
from partage.model.node import Node, Verdict
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal, phrase
from partage.model.request import CardFilter, DeviceRequest, Fault, PodRequest, Scope
from partage.model.selector import NodeConstraint, Operator, Requirement, Selector, Taint
from partage.placement.reasons import Finding, refusal_of
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeGone, NodeSeen, Placement


def refusal(pod: Pod, *nodes: Node) -> Refusal:
    """Why the pod waits in a cluster of these nodes."""
    engine = Engine()
    for node in nodes:
        engine.handle(NodeSeen(node))
    found = engine.schedule(pod)
    assert isinstance(found, Refusal), found
    return found


def used(name: str, free: float, memory: int = 16) -> Node:
    """A node whose only card has so many GiB in all."""
    return make_node(name, devices=[card(0, memory=memory, memory_bytes=int(free * GIB))])


def test_the_line_of_the_brief() -> None:
    """Codes by how many nodes they concern, with what was asked and the most that is free."""
    sick = make_node("node-3", devices=[card(0, memory=32, healthy=False)])

    found = refusal(make_pod("a", share(memory=20)), used("node-1", 12), used("node-2", 8), sick)

    assert found.message == (
        "0/3 nodes: 2 insufficient gpu-memory (asked 20Gi, most free 12Gi on node-1 card 0), "
        "1 unhealthy"
    )
    assert found.code is ReasonCode.INSUFFICIENT_MEMORY
    assert found.counts == {ReasonCode.INSUFFICIENT_MEMORY: 2, ReasonCode.UNHEALTHY: 1}
    assert set(found.nodes) == {"node-1", "node-2", "node-3"}


@pytest.mark.parametrize("count", [3, 120])
def test_among_equals_the_first_in_order_is_named(count: int) -> None:
    """A node that went and came back is the last, whatever place it has in the books."""
    nodes = [used(f"node-{number}", 8) for number in range(count)]
    engine = Engine()
    for node in nodes:
        engine.handle(NodeSeen(node))
    engine.handle(NodeGone("node-0"))
    engine.handle(NodeSeen(nodes[0]))

    found = engine.schedule(make_pod("a", share(memory=20)))

    assert isinstance(found, Refusal)
    assert found == refusal(make_pod("a", share(memory=20)), *nodes[1:], nodes[0])
    assert "most free 8Gi on node-1 card 0" in found.message


def test_no_node_is_said() -> None:
    """An empty cluster is a reason of its own."""
    found = refusal(make_pod("a", share(1)))

    assert (found.message, found.nodes) == ("0/0 nodes: there is no node", {})


def test_a_fault_of_the_request_comes_first() -> None:
    """A request that breaks a rule waits with its own message, whatever the cluster."""
    found = refusal(make_pod("a", request=PodRequest(fault=Fault("core 3 is no multiple of 5"))))

    assert (found.code, found.message) == (
        ReasonCode.INVALID_REQUEST,
        "core 3 is no multiple of 5",
    )


FAST = Selector((Requirement("speed", Operator.EXISTS),))


@pytest.mark.parametrize(
    ("device", "request_", "code", "part"),
    [
        pytest.param(
            card(0),
            share(memory=20),
            ReasonCode.INSUFFICIENT_MEMORY,
            "1 card short of gpu-memory (asked 20Gi, most free 16Gi on card 0)",
            id="memory",
        ),
        pytest.param(
            card(0, core_milli=500),
            share(80),
            ReasonCode.INSUFFICIENT_CORE,
            "1 card short of gpu-core (asked 80%, most free 50% on card 0)",
            id="core",
        ),
        pytest.param(
            card(0, core_milli=0),
            share(claims_core=True),
            ReasonCode.INSUFFICIENT_CORE,
            "all compute is taken, and none was asked",
            id="no core to claim",
        ),
        pytest.param(
            card(0, slots=0),
            share(1),
            ReasonCode.INSUFFICIENT_SLOTS,
            "without a free slot",
            id="slots",
        ),
        pytest.param(
            card(0),
            share(1, sharers=0),
            ReasonCode.INSUFFICIENT_SLOTS,
            "without a free slot",
            id="sharers",
        ),
        pytest.param(
            card(0),
            share(extras=(("npu", 3),)),
            ReasonCode.INSUFFICIENT_DEVICES,
            "asked 3, most free 0 on card 0; npu",
            id="native units",
        ),
        pytest.param(
            card(0, healthy=False, health_detail="Xid 79"),
            share(1),
            ReasonCode.UNHEALTHY,
            "1 card unhealthy (Xid 79)",
            id="unhealthy",
        ),
        pytest.param(
            card(0, cordoned=True), share(1), ReasonCode.CORDONED, "cordoned", id="cordoned"
        ),
        pytest.param(
            card(0, hidden_from=frozenset({"test"})),
            share(1),
            ReasonCode.CORDONED,
            "closed to test pods",
            id="hidden",
        ),
        pytest.param(
            card(0, vendor="huawei"),
            share(1, filter=CardFilter(vendors=("nvidia",))),
            ReasonCode.TYPE_MISMATCH,
            "a huawei card",
            id="vendor",
        ),
        pytest.param(
            card(0, model="Tesla T4"),
            share(1, filter=CardFilter(use_types=("A100",))),
            ReasonCode.TYPE_MISMATCH,
            "it is Tesla T4",
            id="type",
        ),
        pytest.param(
            card(0),
            share(1, filter=CardFilter(use_types=("A100",))),
            ReasonCode.TYPE_MISMATCH,
            "it is of unknown model",
            id="unknown type",
        ),
        pytest.param(
            card(0, model="Tesla T4"),
            share(1, filter=CardFilter(avoid_types=("t4",))),
            ReasonCode.TYPE_MISMATCH,
            "Tesla T4 is refused",
            id="avoided type",
        ),
        pytest.param(
            card(0),
            share(1, filter=CardFilter(use_uuids=("GPU-1",))),
            ReasonCode.UUID_MISMATCH,
            "it is GPU-0, asked GPU-1",
            id="uuid",
        ),
        pytest.param(
            card(0),
            share(1, filter=CardFilter(avoid_uuids=("GPU-0",))),
            ReasonCode.UUID_MISMATCH,
            "GPU-0 is refused",
            id="avoided uuid",
        ),
        pytest.param(
            card(0),
            share(1, filter=CardFilter(modes=(SliceMode.MIG,))),
            ReasonCode.MODE_MISMATCH,
            "it is in mode hami-core",
            id="mode",
        ),
        pytest.param(
            card(0, mode=SliceMode.MIG),
            share(1),
            ReasonCode.MIG_PLACEMENT,
            "in MIG mode",
            id="instances only",
        ),
        pytest.param(
            card(0),
            share(1, filter=CardFilter(selector=FAST)),
            ReasonCode.INSUFFICIENT_DEVICES,
            "its labels do not match the selector",
            id="selector",
        ),
        pytest.param(
            card(0),
            share(1, filter=CardFilter(functions=Selector())),
            ReasonCode.INSUFFICIENT_DEVICES,
            "no free virtual function matches",
            id="functions",
        ),
        pytest.param(
            card(0),
            whole(2),
            ReasonCode.INSUFFICIENT_CARDS,
            "the node has 1 card, 2 asked",
            id="too many",
        ),
        pytest.param(
            card(0),
            DeviceRequest(DeviceType.RDMA),
            ReasonCode.INSUFFICIENT_DEVICES,
            "the node has 0 rdma devices, 1 asked",
            id="no such device",
        ),
        pytest.param(
            card(0),
            share(memory=2, extras=(("npu", 2),), templated=True),
            ReasonCode.TEMPLATE_MISMATCH,
            "no matched GPU shared resource template for memory 2Gi, npu 2 (templates: none)",
            id="template",
        ),
    ],
)
def test_each_rule_has_its_sentence(
    device: Device, request_: DeviceRequest, code: ReasonCode, part: str
) -> None:
    """The node's reason names the rule, what was asked and what was there."""
    found = refusal(make_pod("a", request_), make_node(devices=[device]))

    reason = found.nodes["node-1"]
    assert (found.code, reason.code) == (code, code)
    assert part in reason.message


def test_what_lacks_is_called_what_it_is() -> None:
    """A share of a network card that is too large speaks of rdma, in the line and in the sentence, and never of gpu-core."""
    nic = Device(type=DeviceType.RDMA, minor=0, uuid="0000:1f:00.0", core_milli=400)
    asked = DeviceRequest(DeviceType.RDMA, core_milli=600)

    found = refusal(make_pod("a", asked), make_node(devices=[nic]))

    assert found.code is ReasonCode.INSUFFICIENT_CORE
    assert found.message == (
        "0/1 nodes: 1 insufficient rdma (asked 60%, most free 40% on node-1 rdma 0)"
    )
    assert found.nodes["node-1"].message == (
        "0 of 1 rdma devices fit, 1 needed: "
        "1 rdma device with too little left (asked 60%, most free 40% on rdma 0)"
    )


def test_a_taken_device_is_not_called_a_card() -> None:
    """A whole network card that another pod has lacks as rdma, in code, line and sentence."""
    nic = Device(type=DeviceType.RDMA, minor=0, uuid="0000:1f:00.0")
    asked = DeviceRequest(DeviceType.RDMA, whole=True)
    engine = Engine()
    engine.handle(NodeSeen(make_node(devices=[nic])))
    assert isinstance(engine.schedule(make_pod("a", asked)), Placement)

    found = engine.schedule(make_pod("b", asked))

    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.INSUFFICIENT_DEVICES
    assert found.counts == {ReasonCode.INSUFFICIENT_DEVICES: 1}
    assert found.message == "0/1 nodes: 1 insufficient rdma (asked 1, at most 0 on node-1)"
    assert found.nodes["node-1"].message == (
        "0 of 1 rdma devices fit, 1 needed: 1 rdma device lacking (held by one pod alone)"
    )


def test_the_card_that_came_closest_leads() -> None:
    """The one nearest to success of several reasons on one node speaks for it."""
    devices = [
        card(0, healthy=False),
        card(1, memory_bytes=4 * GIB),
        card(2, memory_bytes=6 * GIB),
        card(3, core_milli=100),
        card(4, mode=SliceMode.MIG),
    ]

    reason = refusal(make_pod("a", share(20, 8)), make_node(devices=devices)).nodes["node-1"]

    assert (reason.code, reason.card) == (ReasonCode.INSUFFICIENT_MEMORY, 2)
    assert (reason.asked, reason.free) == (8 * GIB, 6 * GIB)
    assert reason.message == (
        "0 of 5 cards fit, 1 needed: "
        "2 cards short of gpu-memory (asked 8Gi, most free 6Gi on card 2), "
        "1 card short of gpu-core (asked 20%, most free 10% on card 3), "
        "1 card unhealthy, 1 card in MIG mode (the card is cut into instances only)"
    )
    assert len(reason.cards) == 5


def test_whole_cards_tell_busy_from_full() -> None:
    """A card that holds shares is not idle; one that is taken is taken."""
    engine = Engine()
    engine.handle(NodeSeen(make_node(devices=[card(0), card(1)])))
    for pod in (make_pod("a", whole()), make_pod("b", share(10))):
        assert isinstance(engine.schedule(pod), Placement)

    found = engine.schedule(make_pod("c", whole()))

    assert isinstance(found, Refusal)
    assert found.message == "0/1 nodes: 1 no idle card"
    assert "1 card not idle (1 container is on it), 1 card taken" in found.nodes["node-1"].message


def test_a_detail_of_one_card_names_it_among_others() -> None:
    """`2 cards not idle (2 containers are on it)` left open on which."""
    engine = Engine()
    engine.handle(NodeSeen(make_node(devices=[card(0), card(1)])))
    for name, percent in (("a", 60), ("b", 70), ("c", 10)):
        assert isinstance(engine.schedule(make_pod(name, share(percent))), Placement)

    found = engine.schedule(make_pod("d", whole()))

    assert isinstance(found, Refusal)
    told = found.nodes["node-1"].message
    assert re.search(r"2 cards not idle \(card \d: [12] containers? (is|are) on it\)", told)


@pytest.mark.parametrize(
    ("fields", "pod", "line"),
    [
        ({"unschedulable": True}, {}, "1 node unschedulable"),
        ({"taints": (Taint("t", "", "NoSchedule"),)}, {}, "1 untolerated taint (t:NoSchedule)"),
        ({}, {"constraint": NodeConstraint(terms=())}, "1 node affinity (nothing)"),
        (
            {"allocatable": {"cpu": 500}},
            {"host": {"cpu": 600}},
            "1 insufficient node resources (cpu: asked 600m, free 500m on node-1)",
        ),
    ],
    ids=["cordon", "taint", "affinity", "resources"],
)
def test_kubernetes_rules_are_told_too(
    fields: dict[str, object], pod: dict[str, object], line: str
) -> None:
    """Rules of Kubernetes itself appear in the same line."""
    node = make_node(devices=[card(0)], **fields)

    assert refusal(make_pod("a", share(1), **pod), node).message == f"0/1 nodes: {line}"


def test_devices_speak_before_kubernetes_rules() -> None:
    """With both kinds of reason the code is that of the devices."""
    nodes = [make_node(f"n{i}", unschedulable=True) for i in range(3)]

    found = refusal(make_pod("a", share(memory=20)), *nodes, used("node-1", 12))

    assert found.code is ReasonCode.INSUFFICIENT_MEMORY
    assert found.message.startswith("0/4 nodes: 3 node unschedulable, 1 insufficient gpu-memory")


def test_a_card_that_is_named_and_nowhere_is_told() -> None:
    """The line says which card was asked; the kinds of all cards would be too many."""
    asked = CardFilter(use_uuids=tuple(f"GPU-{number}" for number in range(20, 30)))
    nodes = [make_node(f"n{i}", devices=[card(i)]) for i in range(3)]

    found = refusal(make_pod("a", share(10, filter=asked)), *nodes)

    named = " or ".join(asked.use_uuids[:8])
    assert found.message == f"0/3 nodes: 3 other card uuid (asked {named} or 2 more)"


@pytest.mark.parametrize("sign", ["\u200b", "\ufeff", "\u202e", "\n", "\x00"], ids=ascii)
def test_a_sign_that_nobody_sees_is_shown(sign: str) -> None:
    """Otherwise the line would say that the card is A100 and that A100 was asked."""
    nodes = [make_node("n", devices=[card(0, model="A100")])]

    by_type = refusal(
        make_pod("a", share(10, filter=CardFilter(use_types=(f"A100{sign}",)))), *nodes
    )
    by_uuid = refusal(
        make_pod("b", share(10, filter=CardFilter(use_uuids=(f"GPU-0{sign}",)))), *nodes
    )

    shown = repr(f"A100{sign}")
    assert by_type.message == f"0/1 nodes: 1 other card type (it is A100, asked {shown})"
    assert by_uuid.message.isprintable()


def test_a_wish_that_keeps_free_cards_apart_speaks_first() -> None:
    """Without it the pod would have its place at once, whatever other nodes lack."""
    apart = make_node(
        "n0", devices=[card(minor, topology=Topology(minor, f"p{minor}")) for minor in range(2)]
    )

    found = refusal(
        make_pod("a", whole(2, scope=Scope.NUMA, scope_code=ReasonCode.NUMA_MISMATCH)),
        apart,
        *(make_node(f"n{i}", devices=[card(0)]) for i in range(1, 4)),
    )

    assert found.code is ReasonCode.NUMA_MISMATCH
    assert found.counts[ReasonCode.INSUFFICIENT_CARDS] == 3


def test_every_taint_is_told() -> None:
    """One toleration would not do."""
    nodes = [
        make_node(f"n{i}", taints=(Taint(key, "", "NoSchedule"),)) for i, key in enumerate("aab")
    ]

    found = refusal(make_pod("a", share(10)), *nodes)

    assert found.message == "0/3 nodes: 3 untolerated taint (a:NoSchedule or b:NoSchedule)"


@pytest.mark.parametrize("wrong", [{"vendor": "metax"}, {"mode": SliceMode.MIG}])
def test_a_rule_of_a_node_speaks_before_the_wrong_cards(wrong: dict[str, object]) -> None:
    """Nodes whose cards would never do say less than the one that objects to something that can be changed."""
    verdict = Verdict("test", ReasonCode.NOT_SHAREABLE, "no sharing here", sharing_only=True)
    nodes = [make_node(f"n{i}", devices=[card(0, **wrong)]) for i in range(3)]
    asked = share(10, filter=CardFilter(vendors=("nvidia",)))

    found = refusal(make_pod("a", asked), *nodes, make_node("n9", verdicts=(verdict,)))

    assert found.code is ReasonCode.NOT_SHAREABLE


def test_every_code_has_words() -> None:
    """No code lacks its phrase."""
    assert all(phrase(code) for code in ReasonCode)


# --- large clusters ------------------------------------------------------------------------------


def test_large_clusters_are_counted_in_full_and_name_the_closest() -> None:
    """Beyond a hundred nodes every node is counted, and the figures are of the best node."""
    nodes = [used(f"node-{i}", 4 + (i == 150) * 8) for i in range(200)]
    nodes += [make_node(f"sick-{i}", devices=[card(0, healthy=False)]) for i in range(40)]
    nodes += [make_node(f"off-{i}", unschedulable=True, devices=[card(0)]) for i in range(10)]

    found = refusal(make_pod("a", share(memory=14)), *nodes)

    assert found.message == (
        "0/250 nodes: 200 insufficient gpu-memory (asked 14Gi, most free 12Gi on node-150 card 0), "
        "40 unhealthy, 10 node unschedulable"
    )
    assert sum(found.counts.values()) == 250
    assert 0 < len(found.nodes) <= 100


def test_large_clusters_name_the_most_compute_too() -> None:
    """The same for compute."""
    cores = [100, 300] * 60 + [400]
    nodes = [make_node(f"n{i}", devices=[card(0, core_milli=c)]) for i, c in enumerate(cores)]

    found = refusal(make_pod("a", share(50)), *nodes)

    assert found.message == (
        "0/121 nodes: 121 insufficient gpu-core (asked 50%, most free 40% on n120 card 0)"
    )


def test_large_clusters_name_the_node_with_the_most_cards_left() -> None:
    """Smaller nodes come before it in the order, and must not hide that it has three."""
    nodes = [make_node(f"n{i}", devices=[card(0)]) for i in range(120)]
    nodes.append(make_node("near", devices=[card(0), card(1), card(2)]))

    found = refusal(make_pod("a", whole(4)), *nodes)

    assert "(asked 4, at most 3 on near)" in found.message
    assert found.nodes["near"].free == 3


def test_nodes_that_only_the_exact_rule_refuses_are_counted() -> None:
    """Cards that fit one by one but not together are counted by the rule that failed."""
    nodes = [make_node(f"n{i}", devices=[card(0), card(1)]) for i in range(120)]

    found = refusal(make_pod("a", whole(2, scope=Scope.PCIE)), *nodes)

    assert found.counts == {ReasonCode.TOPOLOGY_SCOPE: 120}


def test_summaries_of_nothing_and_of_plain_reasons() -> None:
    """`refusal_of` works on findings from anywhere."""
    assert refusal_of({}, {}, 0).message == "0/0 nodes: there is no node"
    reasons = refusal(make_pod("a", share(memory=20)), used("n", 4)).nodes
    findings: dict[ReasonCode, Finding] = {}
    for name, reason in reasons.items():
        findings.setdefault(reason.code, Finding()).add(name, reason)
    again = refusal_of(findings, reasons, 1)
    assert (
        again.message
        == "0/1 nodes: 1 insufficient gpu-memory (asked 20Gi, most free 4Gi on n card 0)"
    )


@pytest.mark.parametrize("copies", [1, 60])
def test_each_model_of_a_mixed_fleet_is_named(copies: int) -> None:
    """The line names more than the first one, in a large cluster too, where few nodes get a sentence."""
    nodes = [
        make_node(f"{model}-{n}", devices=[card(0, model=model)])
        for model in ("T4", "A10", "L4")
        for n in range(copies)
    ]
    pod = make_pod("a", share(10, filter=CardFilter(use_types=("H100",))))

    found = refusal(pod, *nodes)

    total = 3 * copies
    assert found.message == (
        f"0/{total} nodes: {total} other card type (it is A10 or L4 or T4, asked H100)"
    )


def test_what_was_asked_is_said_once_for_all_cards_that_lack_it() -> None:
    """It is in the order of names, not in that of the nodes."""
    nodes = [
        make_node("a", devices=[card(0, model="T4")]),
        make_node("b", devices=[card(0, model="A10")]),
        make_node("m", devices=[card(0, model="C500", vendor="metax")]),
    ]
    pod = make_pod("a", share(10, filter=CardFilter(use_types=("H100",), vendors=("nvidia",))))

    told = refusal(pod, *nodes).message

    assert told == refusal(pod, *reversed(nodes)).message
    assert "(a metax card, asked nvidia; it is A10 or T4, asked H100)" in told


def test_many_models_are_not_all_named() -> None:
    """The line stays a line."""
    nodes = [make_node(f"n{n}", devices=[card(0, model=f"M{n}")]) for n in range(9)]

    found = refusal(make_pod("a", share(10, filter=CardFilter(use_types=("H100",)))), *nodes)

    assert (
        "(it is M0 or M1 or M2 or M3 or M4 or M5 or M6 or M7 or 1 more, asked H100)"
        in found.message
    )

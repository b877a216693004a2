"""Which nodes are out of the question for a pod, and the first rule that says so."""

from dataclasses import replace

import pytest

from fakes.builders import GIB, make_node, make_pod, share, whole
from partage.model.device import DeviceType
from partage.model.node import Node, Verdict
from partage.model.pod import Pod
from partage.model.reason import ReasonCode
from partage.model.request import DeviceRequest, LabelRule
from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    Toleration,
)
from partage.placement.node import amount, objection, shortage

TAINT = Taint("gpu", "yes", "NoSchedule")
ZONE = NodeConstraint(terms=(NodeTerm((Requirement("zone", Operator.IN, ("a",)),)),))
RULE = LabelRule("isolation", "hami", ReasonCode.ISOLATION_PROVIDER, "no isolation")
RDMA = DeviceRequest(DeviceType.RDMA, core_milli=10)


def no_sharing(protocol: str = "test", *, sharing_only: bool = True) -> Verdict:
    """A protocol's objection to sharing on a node."""
    return Verdict(
        protocol, ReasonCode.NOT_SHAREABLE, "no sharing here", sharing_only=sharing_only
    )


@pytest.mark.parametrize(
    ("node", "pod", "code"),
    [
        pytest.param({}, {}, None, id="nothing"),
        pytest.param({"unschedulable": True}, {}, ReasonCode.NODE_UNSCHEDULABLE, id="cordoned"),
        pytest.param(
            {"unschedulable": True},
            {"tolerations": (Toleration("node.kubernetes.io/unschedulable", "Exists"),)},
            None,
            id="cordoned and tolerated",
        ),
        pytest.param({"taints": (TAINT,)}, {}, ReasonCode.TAINT, id="tainted"),
        pytest.param(
            {"taints": (replace(TAINT, effect="PreferNoSchedule"),)}, {}, None, id="only asked"
        ),
        pytest.param(
            {"taints": (TAINT, Taint("x", "", "NoExecute"))},
            {"tolerations": (Toleration("gpu", "Exists"),)},
            ReasonCode.TAINT,
            id="one of two tolerated",
        ),
        pytest.param(
            {"labels": {"zone": "b"}}, {"constraint": ZONE}, ReasonCode.NODE_AFFINITY, id="zone"
        ),
        pytest.param({"labels": {"zone": "a"}}, {"constraint": ZONE}, None, id="right zone"),
        pytest.param(
            {"unschedulable": True, "taints": (TAINT,)},
            {"constraint": ZONE},
            ReasonCode.NODE_AFFINITY,
            id="the first of three",
        ),
        pytest.param(
            {"unschedulable": True, "taints": (TAINT,)},
            {},
            ReasonCode.NODE_UNSCHEDULABLE,
            id="cordon before taint",
        ),
    ],
)
def test_kubernetes_own_rules_come_in_order(
    node: dict[str, object], pod: dict[str, object], code: ReasonCode | None
) -> None:
    """Affinity first, as a taint of a node that the pod excludes is nothing to act on; then cordon and taints."""
    found = objection(make_node(**node), make_pod("a", share(10), **pod))

    assert (found.code if found else None) is code


@pytest.mark.parametrize(
    ("pod", "verdict", "refused"),
    [
        pytest.param(make_pod("a", share(10)), no_sharing(), True, id="a share"),
        pytest.param(make_pod("a", whole()), no_sharing(), False, id="a whole card"),
        pytest.param(make_pod("a", whole(), RDMA), no_sharing(), False, id="a card and rdma"),
        pytest.param(make_pod("a", RDMA), no_sharing(), False, id="rdma alone"),
        pytest.param(make_pod("a", whole(), share(10)), no_sharing(), True, id="both"),
        pytest.param(make_pod("a", share(10)), no_sharing("other"), False, id="another protocol"),
        pytest.param(make_pod("a", share(10)), no_sharing(""), True, id="every protocol"),
        pytest.param(
            make_pod("a", whole()), no_sharing(sharing_only=False), True, id="all requests"
        ),
        pytest.param(make_pod("a"), no_sharing(sharing_only=False), False, id="no devices"),
    ],
)
def test_protocols_object_to_their_own_requests(
    pod: Pod, verdict: Verdict, *, refused: bool
) -> None:
    """A verdict concerns its protocol, and shares of cards alone where it says so."""
    found = objection(make_node(verdicts=(verdict,)), pod)

    assert (found is not None) is refused
    assert found is None or (found.code, found.message) == (verdict.code, verdict.message)


def test_a_request_may_demand_a_label() -> None:
    """The label must be there with that value; the rule names its own code."""
    pod = make_pod("a", share(10))
    pod = replace(pod, request=replace(pod.request, node_labels=(RULE,)))

    def code(node: Node) -> ReasonCode | None:
        found = objection(node, pod)
        return found.code if found else None

    assert code(make_node()) is ReasonCode.ISOLATION_PROVIDER
    assert code(make_node(labels={"isolation": "other"})) is ReasonCode.ISOLATION_PROVIDER
    assert code(make_node(labels={"isolation": "hami"})) is None


@pytest.mark.parametrize(
    ("resource", "asked", "free", "text"),
    [
        ("cpu", 1500, 500, "insufficient cpu (asked 1500m, free 500m)"),
        ("cpu", 2000, -100, "insufficient cpu (asked 2, free 0)"),
        ("memory", 8 * GIB, GIB, "insufficient memory (asked 8Gi, free 1Gi)"),
        (
            "ephemeral-storage",
            2 * GIB,
            GIB,
            "insufficient ephemeral-storage (asked 2Gi, free 1Gi)",
        ),
        ("hugepages-2Mi", 2**21, 0, "insufficient hugepages-2Mi (asked 2Mi, free 0)"),
        ("pods", 1, 0, "insufficient pods (asked 1, free 0)"),
        ("example.com/x", 2000, 1000, "insufficient example.com/x (asked 2k, free 1k)"),
    ],
)
def test_shortages_are_told_in_the_units_of_kubernetes(
    resource: str, asked: int, free: int, text: str
) -> None:
    """One sentence with both figures."""
    found = shortage({"first": 0, resource: asked}, {resource: free})

    assert found is not None
    assert (found.code, found.message) == (ReasonCode.NODE_RESOURCES, text)
    assert amount(resource, asked) in text


def test_nothing_asked_is_never_short() -> None:
    """A resource of which nothing is asked does not matter, even where it is overdrawn."""
    assert shortage({"cpu": 0, "pods": 1}, {"cpu": -5, "pods": 1}) is None

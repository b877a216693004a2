"""Scenarios 2, 5, 7 and 8 before the genuine API server: writes that fail, watches that break.

What is broken, and what must hold afterwards, are those of `tests/faults`; server, kube-scheduler,
chart and roles are genuine here. kube-scheduler tries a refused pod again by its own backoff.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from stack import SYSTEM, Stack, eventually, pod
from ways import WAYS
from wired import Wired, wired

from fakes.wire import Fault

SEAMS = ("extender", "plugin")
NODE = "wired"
PODS = "/api/v1/namespaces/default/pods"
WHOLE = {"koordinator.sh/gpu": "100"}
HALF = {"koordinator.sh/gpu": "50"}
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/partage-scheduler"
BINDING = {"method": "POST", "path": "/binding"}
WRITES = {
    "patch of a waiting pod": {"method": "PATCH", "path": f"{PODS}/c"},
    "Lease": {"method": "PATCH", "path": LEASE},
    "event": {"method": "POST", "path": "/events"},
    "the leader's label": {"method": "PATCH", "path": f"/api/v1/namespaces/{SYSTEM}/pods/"},
}


@pytest.fixture(scope="module")
def cluster(stack: Stack) -> Iterator[Wired]:
    """The service behind a wire, and a node with two cards of its own."""
    card = {
        "type": "gpu",
        "health": True,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "80Gi",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
    }
    cards = [card | {"id": f"GPU-wired-{number}", "minor": number} for number in range(2)]
    stack.add_nodes(
        [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": NODE, "labels": {"wired": "yes"}},
                "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}},
            },
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "Device",
                "metadata": {"name": NODE, "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}},
                "spec": {"devices": cards},
            },
        ]
    )
    with wired(stack, NODE) as made:
        eventually("node totals are written", lambda: totals(stack).get("koordinator.sh/gpu"))
        yield made
    stack.plane.call("DELETE", f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{NODE}")
    stack.plane.call("DELETE", f"/api/v1/nodes/{NODE}")


@pytest.fixture(autouse=True)
def emptied(cluster: Wired) -> Iterator[None]:
    """Nothing fails any more, and no pod is left."""
    yield
    cluster.do(cluster.wire.heal)
    cluster.stack.plane.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    eventually("the node is empty", lambda: not cluster.look().pods)


def totals(stack: Stack) -> dict[str, str]:
    """What the node can give, by the API server."""
    found: dict[str, str] = stack.plane.call("GET", f"/api/v1/nodes/{NODE}")["status"].get(
        "allocatable", {}
    )
    return found


def comes(cluster: Wired, name: str, limits: dict[str, str], **spec: Any) -> None:
    """A pod for the node."""
    cluster.stack.create(pod(name, limits, nodeSelector={"wired": "yes"}, **spec))


def waits(cluster: Wired, name: str) -> None:
    """Wait until kube-scheduler has written why a pod waits."""

    def told() -> bool:
        conditions = cluster.stack.pod(name)["status"].get("conditions") or ()
        return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)

    eventually(f"{name} waits", told)


def gone(cluster: Wired, name: str) -> None:
    """Delete a pod by force."""
    cluster.stack.plane.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def work(cluster: Wired) -> None:
    """Two pods get the two cards, a third waits, and gets the card that the first releases."""
    comes(cluster, "a", WHOLE)
    comes(cluster, "b", HALF)
    for name in "ab":
        cluster.stack.bound(name)
    comes(cluster, "c", WHOLE)
    waits(cluster, "c")
    gone(cluster, "a")
    cluster.stack.bound("c")


def hit(cluster: Wired, path: str) -> int:
    """How many requests to a path were hit so far."""
    return int(cluster.do(lambda: sum(path in one for _, one in cluster.wire.struck)))


def fails(cluster: Wired, *faults: Fault) -> None:
    """Set faults."""
    cluster.do(lambda: cluster.wire.fail(*faults))


@pytest.mark.parametrize("fault", WAYS)
def test_a_binding_may_fail_in_every_way(cluster: Wired, fault: str) -> None:
    """Carried out or not: all get their place, none twice, and the books say the same."""
    before = hit(cluster, "/binding")
    fails(cluster, Fault(**BINDING, **WAYS[fault], times=1 if "delay" in WAYS[fault] else 2))

    work(cluster)

    assert hit(cluster, "/binding") > before
    cluster.sound()


@pytest.mark.parametrize("fault", ["conflict", "too many requests", "no answer though done"])
@pytest.mark.parametrize("write", WRITES)
def test_other_writes_may_fail(cluster: Wired, write: str, fault: str) -> None:
    """Whatever the write was for, it is made in the end, or was not needed."""
    where = WRITES[write]
    before = hit(cluster, where["path"])
    fails(cluster, Fault(**where, **WAYS[fault], times=2))
    if write == "the leader's label":
        cluster.stack.restart("wired")
        eventually("it leads again", cluster.stack.ready)

    work(cluster)

    eventually("it was hit", lambda: hit(cluster, where["path"]) > before)
    cluster.sound()


def cut(cluster: Wired) -> None:
    """Connections of all watches end."""
    cluster.do(cluster.wire.cut_watches)


def expire(cluster: Wired) -> None:
    """Each watch's stream says that its version is too old."""
    cluster.do(cluster.wire.expire_watches)


def gone_at_the_start(cluster: Wired) -> None:
    """New watches are expired too, before their first event."""
    fails(cluster, Fault(watch=True, status=410, reason="Expired", times=12))
    cut(cluster)


def held_back(cluster: Wired) -> None:
    """Watches send nothing for a while, and then all at once."""
    cluster.do(cluster.wire.hold_back)
    cluster.do(lambda: cluster.loop.call_later(3.0, cluster.wire.let_go))


def doubled(cluster: Wired) -> None:
    """Every event comes twice."""
    cluster.do(lambda: setattr(cluster.wire, "distort", lambda event: [event, event]))


def away(cluster: Wired) -> None:
    """No request gets through for a while."""
    cluster.do(lambda: setattr(cluster.wire, "cut", True))
    time.sleep(1.0)
    cluster.do(lambda: setattr(cluster.wire, "cut", False))


@pytest.mark.parametrize("breaks", [cut, expire, gone_at_the_start, held_back, doubled, away])
def test_watches_may_break_while_pods_come_and_go(cluster: Wired, breaks: Any) -> None:
    """The service catches up on what it missed: a pod that went, another one that came under its name."""
    comes(cluster, "a", WHOLE)
    comes(cluster, "b", WHOLE)
    for name in "ab":
        cluster.stack.bound(name)
    breaks(cluster)
    gone(cluster, "a")
    eventually("it is gone", lambda: cluster.stack.pod("a") is None)
    comes(cluster, "a", HALF)
    comes(cluster, "c", HALF)

    for name in "ac":
        cluster.stack.bound(name)

    cluster.sound()


def test_a_binding_may_arrive_after_its_sender_was_killed(cluster: Wired) -> None:
    """A dead instance sent it and read no answer: the next one counts it, and allocates the card to no other pod."""
    before = hit(cluster, "/binding")
    fails(cluster, Fault(**BINDING, executed=True, under_way=3.0))
    comes(cluster, "a", WHOLE)
    eventually("its Binding is on its way", lambda: hit(cluster, "/binding") > before)
    for process in cluster.stack.pod_of("wired"):
        cluster.stack.restart(process.name, crash=True)
    for name in "bc":
        comes(cluster, name, WHOLE)

    eventually("both cards are given", lambda: sum(map(placed(cluster), "abc")) == 2)

    cluster.sound()


def placed(cluster: Wired) -> Any:
    """Whether a pod has a node."""
    return lambda name: bool(cluster.stack.pod(name)["spec"].get("nodeName"))


def test_a_card_is_bound_again_and_again_after_each_release(cluster: Wired) -> None:
    """Twenty releases while a pod waits, and requests that fail now and then."""
    comes(cluster, "p0", {"koordinator.sh/gpu": "200"})
    cluster.stack.bound("p0")
    for number in range(1, 21):
        comes(cluster, f"p{number}", {"koordinator.sh/gpu": "200"})
        waits(cluster, f"p{number}")
        if number % 4 == 0:
            fails(cluster, Fault(**BINDING, **WAYS["timeout though done"]))
        gone(cluster, f"p{number - 1}")
        cluster.stack.bound(f"p{number}")

    cluster.sound()

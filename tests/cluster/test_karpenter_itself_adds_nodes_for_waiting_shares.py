"""Karpenter adds nodes for pods whose shares wait, and Partage places them there: genuine both.

In one of two namespaces pods ask by ResourceClaims instead of the names that they have. A node that Karpenter adds is an
object: what its kubelet and its agent would report is reported here. PARTAGE_MIXES says how many mixes of shares come.
"""

import asyncio
import os
import random
import signal
import threading
import urllib.error
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import stack as partage_stack
from neighbours import Karpenter, program, told
from stack import MERGE, Layout, Stack, eventually, pod

from partage.agent.device_document import device_document
from partage.agent.discovery.found import Found, Inventory
from partage.agent.dra.publishing import Publisher
from partage.agent.dra.slices import Offered, resource_slices
from partage.agent.metrics import Tallies
from partage.agent.notes import Notes
from partage.kube.client import Client
from partage.kube.errors import KubeError
from partage.kube.loading import load_config
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.vendors.names import CLAIMS_LABEL, CLAIMS_TRANSLATE, QGPU_CORE, QGPU_MEMORY

CLAIMS, NAMES = "claims", "default"
"""Namespaces: whose pods become claims, and whose stay as they are."""
CARDS = {"one": 1, "two": 2, "untold": 2}
"""Cards of a node by its instance type; Karpenter does not know the slices of the last one."""
MORE = {"one": 2, "two": 1}
"""Nodes above the fewest, at most. kube-scheduler takes one pod after the other and moves none: best fit in any order
needs up to two more of one card."""
CORE, MEMORY, GIB = 100, 80, 2**30
"""Of a card: percent, and GiB."""
LAYOUT = Layout(
    plugged=True,
    lease=60,  # on a busy machine one of five seconds ends, and kube-scheduler chooses nodes by itself meanwhile
    options=(
        "--set",
        "agent.enabled=true,agent.dra.enabled=true,agent.nodeSelector.nowhere=here",
        "--set",
        "scheduler.claims=true,scheduler.claimTemplates=true",
    ),
)
Share = tuple[int, int]
MIXES, TOGETHER = int(os.environ.get("PARTAGE_MIXES", "2")), 10
"""Mixes in all, and how many come at once, each for nodes of its own."""
MIX = "example.com/mix"
"""Label of nodes by the mix that they came for."""
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
pytestmark = pytest.mark.timeout(600 + 60 * MIXES)


def cards(node: str, kind: str) -> tuple[Device, ...]:
    """The cards of a node."""
    model = "A100-SXM4-80GB"
    return tuple(
        Device(DeviceType.GPU, n, f"GPU-{node}-{n}", "nvidia", model, memory_bytes=MEMORY * GIB)
        for n in range(CARDS[kind])
    )


class Machines:
    """What kubelet and agent of each node report once it is there."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.quiet = threading.Event()
        self._reported: set[str] = set()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Report nothing more."""
        self.quiet.set()
        self._thread.join()

    def _live(self) -> None:
        while not self.quiet.wait(0.2):
            # On a busy machine the API server may not answer in time: the next look reports again.
            with suppress(OSError, KubeError):
                for one in self.stack.plane.call("GET", "/api/v1/nodes")["items"]:
                    if one["metadata"]["uid"] not in self._reported:
                        self._report(one["metadata"])
                        self._reported.add(one["metadata"]["uid"])

    def _report(self, head: dict[str, Any]) -> None:
        name = head["name"]
        found = cards(name, head["labels"]["karpenter.sh/nodepool"])
        inventory = Inventory(tuple(Found(one) for one in found))
        device = device_document(name, inventory, None, "2026-01-01T00:00:00Z", head["uid"])
        try:
            self.stack.create(device)
        except urllib.error.HTTPError as error:
            if error.code != 409:  # a look before came so far
                raise
        # Partage knows the cards by now, and before by the node's totals: kube-scheduler does from here on.
        asyncio.run(self._publish(Node(name, devices=found)))
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        self.stack.plane.call("PATCH", f"/api/v1/nodes/{name}/status", ready, kind=MERGE)

    async def _publish(self, node: Node) -> None:
        async with Client(load_config({}, kubeconfig=self.stack.plane.kubeconfig())) as client:
            own = Publisher(client, node.name, Inventory, Tallies(), Notes(), instances=False)
            await own.once(node)


def offered(kind: str) -> list[dict[str, Any]]:
    """The specs of the slices that a node of an instance type publishes."""
    node = Node(kind, devices=cards(kind, kind))
    made = resource_slices(node, Inventory(), "", 1, Offered(instances=False, taints=True))
    return [one["spec"] for one in made]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A cluster with Partage and Karpenter, and without a node."""
    program("karpenter")
    with partage_stack.stack(tmp_path_factory.mktemp("karpenter"), layout=LAYOUT) as made:
        space: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace"}
        made.create(
            {**space, "metadata": {"name": CLAIMS, "labels": {CLAIMS_LABEL: CLAIMS_TRANSLATE}}}
        )
        for tenths in range(10):
            head = {"metadata": {"name": f"tenths-{tenths}"}}
            ranks = {"value": tenths, "preemptionPolicy": "Never"}
            made.plane.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", head | ranks)
        sizes = {
            kind: {
                "cpu": str(32 * number),
                "memory": f"{256 * number}Gi",
                QGPU_CORE: str(CORE * number),
                QGPU_MEMORY: str(MEMORY * number),
            }
            for kind, number in CARDS.items()
        }
        Karpenter(made).start(sizes, {kind: offered(kind) for kind in ("one", "two")}, [MIX])
        machines = Machines(made)
        yield made
        machines.stop()


@pytest.fixture(autouse=True)
def emptied(stack: Stack) -> Iterator[None]:
    """Leave the cluster without pods and nodes."""
    yield
    empty(stack)


def empty(stack: Stack) -> None:
    """Delete all pods, and with them the nodes that came for them."""
    for space in (CLAIMS, NAMES):
        stack.plane.call("DELETE", f"/api/v1/namespaces/{space}/pods")
        eventually("no pod is left", lambda space=space: not pods(stack, space))
    stack.plane.call("DELETE", NODE_CLAIMS)
    eventually("no node is left", lambda: not nodes(stack))


def pods(stack: Stack, space: str) -> list[dict[str, Any]]:
    """The pods of a namespace."""
    return list(stack.plane.call("GET", f"/api/v1/namespaces/{space}/pods")["items"])


def nodes(stack: Stack) -> list[str]:
    """Names of all nodes."""
    return [one["metadata"]["name"] for one in stack.plane.call("GET", "/api/v1/nodes")["items"]]


def waiting(stack: Stack, space: str) -> list[dict[str, Any]]:
    """The pods of a namespace without a node."""
    return [one for one in pods(stack, space) if not one["spec"].get("nodeName")]


@contextmanager
def unseen(stack: Stack) -> Iterator[None]:
    """Let Karpenter stand still: pods that come one after the other wait all when it looks.

    How many nodes hold them is decided for all together then, however slow the machine is.
    """
    karpenter = stack.plane.processes["karpenter"]
    karpenter.signal(signal.SIGSTOP)
    yield
    karpenter.signal(signal.SIGCONT)


def refused(one: Mapping[str, Any]) -> bool:
    """Whether a pod waits as Karpenter asks: kube-scheduler has no node, and a translated pod has its claim."""
    status = one["status"]
    translated = one["metadata"]["namespace"] == CLAIMS
    return ("resourceClaimStatuses" in status or not translated) and any(
        found["type"] == "PodScheduled" and found.get("reason") == "Unschedulable"
        for found in status.get("conditions", ())
    )


def rejected(stack: Stack) -> int:
    """How many of the pods had nodes proposed for their claims on which kube-scheduler could allocate none of them."""
    there = {one["metadata"]["uid"] for one in pods(stack, CLAIMS)}
    told = stack.plane.call("GET", f"/api/v1/namespaces/{CLAIMS}/events")["items"]
    said = ("cannot allocate all claims", "kube-scheduler tries other nodes next")
    rest = [one for one in told if all(text in one["message"] for text in said)]
    return len(there & {one["involvedObject"]["uid"] for one in rest})


def ask(
    stack: Stack,
    space: str,
    kind: str,
    name: str,
    share: Share,
    of: str = "none",
    *,
    ranked: bool = False,
) -> None:
    """Make a pod with a share, for nodes of one instance type and mix.

    It asks for CPU as it does for the card: by that Karpenter takes the largest first. So does kube-scheduler with `ranked`.
    """
    core, memory = share
    part = max(core / CORE, memory / MEMORY)
    limits = {QGPU_CORE: str(core), QGPU_MEMORY: str(memory), "cpu": f"{part * 1000:.0f}m"}
    body = pod(name, limits, nodeSelector={"karpenter.sh/nodepool": kind, MIX: of})
    if ranked:
        body["spec"]["priorityClassName"] = f"tenths-{int(part * 10)}"
    stack.plane.call("POST", f"/api/v1/namespaces/{space}/pods", body)


def says(stack: Stack, space: str, name: str, reason: str) -> str:
    """What Karpenter says of a pod, by an event's reason."""

    def asked() -> list[str]:
        return [
            one["message"]
            for one in stack.events(name, space)
            if one["reason"] == reason and one["source"].get("component") == "karpenter"
        ]

    return str(eventually(f"Karpenter says {reason} of {name}", asked)[-1])


def mix(seed: int) -> list[Share]:
    """Shares of some pods, for two cards at the least."""
    draw = random.Random(seed)  # noqa: S311 # a mix
    some = range(draw.randrange(5, 15))
    return [(draw.randrange(10, 80, 5), draw.randrange(4, 64)) for _ in some]


def fewest(shares: Sequence[Share]) -> int:
    """The fewest cards that hold all shares, by trying all ways."""
    ordered = sorted(shares, key=lambda one: max(one[0] / CORE, one[1] / MEMORY), reverse=True)
    floor = max(-(-sum(c for c, _ in shares) // CORE), -(-sum(m for _, m in shares) // MEMORY))
    best = len(ordered)

    def place(left: Sequence[Share], used: tuple[Share, ...]) -> None:
        nonlocal best
        if len(used) >= best or best == floor:
            return
        if not left:
            best = len(used)
            return
        (core, memory), *rest = left
        for one in {u for u in used if u[0] + core <= CORE and u[1] + memory <= MEMORY}:
            others = list(used)
            others.remove(one)
            place(rest, (*others, (one[0] + core, one[1] + memory)))
        place(rest, (*used, (core, memory)))

    place(ordered, ())
    return best


@pytest.mark.parametrize(
    ("space", "kind", "ranked"),
    [
        (CLAIMS, "two", False),
        (CLAIMS, "one", False),
        (CLAIMS, "one", True),
        (NAMES, "one", False),
    ],
)
def test_nodes_come_for_shares_that_wait_and_hardly_more_than_must(
    stack: Stack, space: str, kind: str, *, ranked: bool
) -> None:
    """From none: every pod is placed, on at most one node of two cards more than the fewest that hold the mix.

    With `ranked`, larger pods have a higher priority, and in more mixes the fewest nodes come.
    """
    found: list[dict[str, int]] = []
    in_vain = 0
    for first in range(0, MIXES, TOGETHER):
        mixes = {seed: mix(seed) for seed in range(first, min(first + TOGETHER, MIXES))}
        with unseen(stack):
            for seed, shares in mixes.items():
                for number, share in enumerate(shares):
                    ask(
                        stack, space, kind, f"pod-{seed}-{number}", share, str(seed), ranked=ranked
                    )
            eventually("every pod is refused", lambda: all(map(refused, pods(stack, space))))
        eventually("every pod has a node", lambda: not waiting(stack, space))
        # A node that is still to come counts: every pod may have found another before it is there.
        came = Counter(
            one["metadata"]["labels"][MIX] for one in stack.plane.call("GET", NODE_CLAIMS)["items"]
        )
        for seed, shares in mixes.items():
            least = -(-fewest(shares) // CARDS[kind])
            found.append({"pods": len(shares), "fewest": least, "nodes": came[str(seed)]})
        told(f"karpenter-{space}-{kind}{'-ranked' if ranked else ''}", found)
        in_vain += rejected(stack)
        empty(stack)
    # A few may be: kube-scheduler counts a claim twice in the moment in which it is stored.
    assert in_vain <= sum(one["pods"] for one in found) // 5
    assert [one for one in found if one["nodes"] < one["fewest"]] == []
    assert [one for one in found if one["nodes"] > one["fewest"] + MORE[kind]] == []


def test_a_claim_that_no_card_has_left_gets_a_node_though_totals_would_hold_it(
    stack: Stack,
) -> None:
    """Three times 60 percent of a card on a node of two: Karpenter counts cards where pods have claims."""
    for name in ("first", "second", "third"):
        ask(stack, CLAIMS, "two", name, (60, 10))
    eventually("every pod has a node", lambda: not waiting(stack, CLAIMS))

    assert len(nodes(stack)) == 2


def test_by_names_totals_hide_that_no_card_has_as_much_left(stack: Stack) -> None:
    """The same by a protocol's names: Karpenter counts totals, believes that the third pod has room, and adds none."""
    for name in ("first", "second"):
        ask(stack, NAMES, "two", name, (60, 10))
        stack.bound(name, NAMES)
    ask(stack, NAMES, "two", "third", (60, 10))

    (there,) = nodes(stack)
    assert there in says(stack, NAMES, "third", "Nominated")
    (third,) = waiting(stack, NAMES)
    (scheduled,) = (c for c in third["status"]["conditions"] if c["type"] == "PodScheduled")
    assert scheduled["reason"] == "Unschedulable"
    assert "nominatedNodeName" not in third["status"]


def test_a_provider_that_tells_no_slices_has_no_node_for_a_claim(stack: Stack) -> None:
    """Karpenter's kwok provider as it is: the devices of a node are not known before the node is there."""
    ask(stack, CLAIMS, "untold", "pod", (60, 10))

    said = says(stack, CLAIMS, "pod", "FailedScheduling")
    assert not nodes(stack)
    assert "dynamic resources" in said

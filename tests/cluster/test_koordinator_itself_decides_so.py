"""Koordinator's own scheduler beside Partage's engine: fit and choice of one pod after another, in the same state.

The worlds are those of tests/fidelity, which states Koordinator's rules in its own code; here its program is asked. The
state is what Partage's earlier decisions led to, which Koordinator reads from the annotations that Partage writes.
PARTAGE_CASES says how many worlds; the outcome goes to build/neighbours/koordinator.json, of which
docs/compatibility/koordinator.md has the table.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any
from urllib.error import HTTPError

import koordinator_rules as rules
import pytest
from control_plane import ControlPlane, control_plane
from decisions import Decision, cases, decided
from hypothesis import HealthCheck, Phase, given, settings
from koordinator_worlds import Pod, World, worlds
from neighbours import Koordinator, told
from stack import eventually

from partage.model.quantity import Quantity
from partage.wire.cluster import assemble
from partage.wire.documents import decode
from partage.wire.nodes import device_totals

pytestmark = pytest.mark.timeout(7200)
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
PODS = "/api/v1/namespaces/default/pods"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
SPREADS, PACKS = "koord-scheduler", "koord-scheduler-packs"
Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """Where a pod goes, or None: minors of its cards, and minor and function of its network cards."""

    node: str | None
    gpus: tuple[int, ...] = ()
    nics: tuple[tuple[int, str], ...] = ()
    why: str = ""


@pytest.fixture(scope="module")
def koordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koordinator]:
    """An API server and Koordinator's scheduler, under a name for each way of scoring."""
    with control_plane(tmp_path_factory.mktemp("koordinator")) as plane:
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        plane.call("POST", "/api/v1/namespaces/default/serviceaccounts", account)
        made = Koordinator(plane)
        made.define()
        made.schedule((SPREADS, "LeastAllocated"), (PACKS, "MostAllocated"))
        yield made


def delete(plane: ControlPlane, path: str) -> None:
    """At once, where it is."""
    with suppress(HTTPError):
        plane.call("DELETE", path, {"gracePeriodSeconds": 0})


class Play:
    """One world in the cluster; what is in it goes with it."""

    def __init__(self, plane: ControlPlane, world: World) -> None:
        self.plane, self.world = plane, world
        documents = world.documents()
        self.manifests = {
            one["metadata"]["name"]: one for one in documents if one["kind"] == "Pod"
        }
        self.paths: list[str] = []
        # Nodes first: Koordinator forgets a Device whose node it does not know.
        for kind, where in (("Node", "/api/v1/nodes"), ("Device", DEVICES)):
            for one in documents:
                if one["kind"] == kind:
                    self.plane.call("POST", where, one)
                    self.paths.append(f"{where}/{one['metadata']['name']}")
        # A node whose Device has not reached Koordinator takes every pod, without a device.
        eventually("Koordinator has read the Devices", lambda: self._probe() is None)

    def _probe(self) -> str | None:
        """Where a pod goes that asks more than there is; None for nowhere."""
        limits = {"koordinator.sh/gpu": "1000000"}
        return self.ask(Pod("probe", (limits,), rules.Ask())).node

    def ask(self, pod: Pod) -> Answer:
        """Create the pod, have it decided, and take it away again."""
        manifest = self._manifest(pod)
        manifest["spec"]["schedulerName"] = PACKS if self.world.nodes[0].packs else SPREADS
        name = manifest["metadata"]["name"] = f"{pod.name}-asked"
        try:
            self.plane.call("POST", PODS, manifest)
        except HTTPError as error:
            return Answer(None, why=json.load(error)["message"])

        def answer() -> Answer | None:
            found = self.plane.call("GET", f"{PODS}/{name}")
            if node := found["spec"].get("nodeName"):
                return self._read(node, found["metadata"].get("annotations", {}))
            conditions = found["status"].get("conditions", [])
            return next(
                (
                    Answer(None, why=c["message"])
                    for c in conditions
                    if c["type"] == "PodScheduled"
                ),
                None,
            )

        try:
            said = eventually(f"Koordinator decides {name}", answer, 240)
        finally:
            delete(self.plane, f"{PODS}/{name}")
        assert isinstance(said, Answer)
        return said

    @staticmethod
    def _read(node: str, annotations: Json) -> Answer:
        given = json.loads(annotations.get(ALLOCATED, "{}"))

        def function(one: Json) -> str:
            found = (one.get("extension") or {}).get("vfs") or [{"busID": ""}]
            return str(found[0]["busID"])

        return Answer(
            node,
            tuple(sorted(one["minor"] for one in given.get("gpu", ()))),
            tuple(sorted((one["minor"], function(one)) for one in given.get("rdma", ()))),
        )

    def place(self, pod: Pod, found: Decision) -> None:
        """The pod as Partage binds it."""
        manifest = self._manifest(pod)
        manifest["metadata"].setdefault("annotations", {}).update(found.annotations)
        manifest["spec"]["nodeName"] = found.node
        self.plane.call("POST", PODS, manifest)
        self.paths.append(f"{PODS}/{pod.name}")

    def end(self) -> None:
        """Take everything away."""
        for path in reversed(self.paths):
            delete(self.plane, path)

    def _manifest(self, pod: Pod) -> Json:
        manifest = deepcopy(self.manifests.get(pod.name) or pod.document())
        for container in manifest["spec"]["containers"]:
            container["image"] = "example"
        return manifest


def renamed(world: World, prefix: str) -> World:
    """The same world with nodes and pods of its own names, so that nothing is left of the one before."""
    return replace(
        world,
        nodes=[replace(node, name=prefix + node.name) for node in world.nodes],
        pods=[replace(pod, name=prefix + pod.name) for pod in world.pods],
    )


def mine(found: Decision) -> Answer:
    """Partage's decision in the same form."""
    nics = {(minor, bus) for _, kind, minor, _, bus in found.devices if kind == "rdma"}
    return Answer(
        found.node, tuple(found.minors("gpu")), tuple(sorted(nics)), why=found.reason or ""
    )


def compared(nodes: dict[str, rules.Node], ask: rules.Ask, ours: Answer, theirs: Answer) -> str:
    """How the two answers compare, in the words of the page; with the row of it that says why, where they differ."""
    if ours.node is None and theirs.node is None:
        return "both wait"
    if ours.node is None:
        assert theirs.node is not None
        unseen = ask.joint and ask.same and not known(nodes[theirs.node])
        return row("only Koordinator places it", rules.UNSEEN if unseen else "")
    if theirs.node is None:
        return row("only Partage places it", refused(nodes[ours.node], ask))
    if ours.node != theirs.node:
        scores = {rules.node_score(nodes[name], ask) for name in (ours.node, theirs.node)}
        return "an equal node" if len(scores) == 1 else "another node"
    if ours.gpus != theirs.gpus:
        return row("other cards", chosen(nodes[ours.node], ask, theirs))
    if ours.nics == theirs.nics:
        return "the same devices"
    return row("other network cards", rules.FAR if ask.joint else "")


def row(outcome: str, why: str) -> str:
    """The outcome, and the row that explains it."""
    return f"{outcome}: {why}" if why else outcome


def refused(node: rules.Node, ask: rules.Ask) -> str:
    """Why Koordinator may refuse what Partage places, or nothing."""
    if ask.scope == "Device":
        return rules.DEVICE_SCOPE
    if ask.scope == "Node" and not known(node):
        return rules.NODE_SCOPE
    return rules.Q15 if ask.joint else ""


def chosen(node: rules.Node, ask: rules.Ask, theirs: Answer) -> str:
    """Why Koordinator may take other cards of the same node, or nothing."""
    if ask.joint:
        return rules.Q15
    if not ask.shared:
        tables = {
            size: table for size, table in (node.partitions or {}).items() if size >= ask.gpus
        }
        if any(len({one.score for one in table}) > 1 for table in tables.values()):
            given = {one.minors for one in tables.get(ask.gpus, ())}
            return rules.Q5 if theirs.gpus in given else ""
        found = rules.from_scope(node, ask, ours=False)
        return rules.SWITCHES if found and tuple(sorted(found[2])) == theirs.gpus else ""
    fits = all(card.fits(ask.gpu) for card in node.gpus if card.minor in theirs.gpus)
    return rules.Q6 if fits and known(node) and ask.gpus == len(theirs.gpus) == 1 else ""


def known(node: rules.Node) -> bool:
    """Whether the topology of its cards is known."""
    return all(card.pcie is not None for card in node.gpus)


EXPLAINED = {"both wait", "the same devices", "an equal node"}


def kind(pod: Pod) -> str:
    """What about a pod decides where it may go, for the table."""
    ask = pod.ask
    if ask.joint:
        return "cards and network cards jointly"
    if ask.rdma:
        return "network cards" if not ask.gpu else "cards and network cards"
    if ask.partition:
        return "partitions"
    if ask.scope:
        return "a scope"
    if ask.shared:
        return "a share" if ask.gpus == 1 else "shares of several cards"
    return "whole cards"


def play(koordinator: Koordinator, world: World) -> Iterator[tuple[str, str, Json]]:
    """Kind, outcome and what was said, of each pod of a world."""
    run = Play(koordinator.plane, world)
    try:
        for pod, found in zip(world.pods, decided(world.documents(), world.policy), strict=True):
            nodes = {node.name: node for node in world.nodes}
            ours, theirs = mine(found), run.ask(pod)
            outcome = compared(nodes, pod.ask, ours, theirs)
            if outcome not in EXPLAINED:
                time.sleep(1)  # a Device, or what Partage placed before, may not have reached it
                theirs = run.ask(pod)
                outcome = compared(nodes, pod.ask, ours, theirs)
            all_of_it = {
                "pod": run.manifests[pod.name],
                "partage": vars(ours),
                "koordinator": vars(theirs),
                "ask": str(pod.ask),
                "nodes": [str(node) for node in world.nodes],
            }
            yield kind(pod), outcome, all_of_it
            if found.node is not None:
                node = next(one for one in world.nodes if one.name == found.node)
                rules.charge(node, pod.ask, rules.Given(ours.gpus, ours.nics))
                run.place(pod, found)
    finally:
        run.end()


def test_koordinator_itself_decides_what_partage_decides(koordinator: Koordinator) -> None:
    """Fit, node and devices; where they differ a row of docs/compatibility/koordinator.md says so."""
    table: Counter[tuple[str, str]] = Counter()
    unexplained: list[Json] = []
    number = 0

    def one(world: World) -> None:
        nonlocal number
        number += 1
        for sort, outcome, said in play(koordinator, renamed(world, f"w{number}-")):
            table[sort, outcome] += 1
            if outcome not in EXPLAINED and ":" not in outcome:
                unexplained.append({"outcome": outcome, "kind": sort, **said})

    plan = settings(
        max_examples=cases(500) // 5,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for which in (
        worlds(),
        worlds(uneven=True),
        worlds(nics=True),
        worlds(sizes=(4, 8), tables=True),
        worlds(nodes=3, sizes=(2, 4)),
    ):
        plan(given(which)(one))()
    rows = [[*key, count] for key, count in sorted(table.items())]
    told("koordinator", {"worlds": number, "rows": rows, "unexplained": unexplained})
    assert not unexplained, f"{len(unexplained)} of {table.total()}: {unexplained[:1]}"


def test_koordinators_manager_writes_the_totals_that_partage_writes(
    koordinator: Koordinator,
) -> None:
    """The cases are a full node, one with an ill card, and one with network cards."""
    plane = koordinator.plane
    nodes = [
        rules.Node("full", [rules.Device(minor, True, 0, "0") for minor in range(4)]),
        rules.Node("ill", [rules.Device(minor, minor > 0, 0, "0") for minor in range(4)]),
        rules.Node(
            "wired",
            [rules.Device(0, True, 0, "0")],
            [rules.Device(minor, True, 0, "0") for minor in range(1, 3)],
        ),
    ]
    documents = World(nodes, []).documents()
    for one in documents:
        plane.call("POST", DEVICES if one["kind"] == "Device" else "/api/v1/nodes", one)
    koordinator.manage()
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}).encode()
    mine = {
        node.name: {
            key: amount
            for key, amount in device_totals(node).items()
            if key.startswith("koordinator.sh/")
        }
        for node in assemble([decode("case.json", listed)]).nodes
    }

    def theirs(name: str) -> dict[str, Quantity]:
        found = plane.call("GET", f"/api/v1/nodes/{name}")["status"]["allocatable"]
        return {
            key: Quantity.parse(text)
            for key, text in found.items()
            if key.startswith("koordinator.sh/")
        }

    for name, totals in mine.items():

        def same(name: str = name, totals: Mapping[str, Quantity] = totals) -> bool:
            return theirs(name) == totals

        eventually(f"Koordinator writes the totals of {name}: {totals}", same, 240)

"""HAMi's own scheduler and webhook beside Partage's engine: fit and choice of one pod after another, in the same state.

The worlds are those of tests/fidelity, which states HAMi's rules in its own code; here its program is asked. The state
is what Partage's earlier decisions led to, which HAMi reads from the annotations that Partage writes. PARTAGE_CASES
says how many worlds; the outcome goes to build/neighbours/hami.json, of which docs/compatibility/hami.md has the table.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any
from urllib.error import HTTPError

import hami_rules as rules
import pytest
from control_plane import ControlPlane, control_plane
from decisions import Decision, cases, decided
from hami_worlds import Pod, World, worlds
from hypothesis import HealthCheck, Phase, given, settings
from neighbours import Hami, told
from stack import eventually

pytestmark = pytest.mark.timeout(7200)
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
PODS = "/api/v1/namespaces/default/pods"
Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What HAMi says to one pod: a node and the cards of each container, or None and why not."""

    node: str | None
    cards: tuple[frozenset[str], ...] = ()
    why: str = ""


@pytest.fixture(scope="module")
def hami(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hami]:
    """An API server, HAMi's extender and its webhook; nothing schedules by itself."""
    with control_plane(tmp_path_factory.mktemp("hami")) as plane:
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        plane.call("POST", "/api/v1/namespaces/default/serviceaccounts", account)
        made = Hami(plane)
        made.start(schedules=False)
        hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        plane.call("POST", hooks, made.webhook("Fail"))
        yield made


def renamed(world: World, prefix: str) -> World:
    """The same world with nodes and cards of its own names, so that nothing is left of the one before."""
    nodes = [
        rules.Node(
            prefix + node.name,
            [replace(card, uuid=prefix + card.uuid) for card in node.cards],
            {frozenset(prefix + one for one in pair): worth for pair, worth in node.links.items()},
        )
        for node in world.nodes
    ]
    pods = [
        replace(
            pod,
            name=prefix + pod.name,
            annotations={
                key: ",".join(prefix + one for one in text.split(","))
                if key.endswith("gpuuuid")
                else text
                for key, text in pod.annotations.items()
            },
        )
        for pod in world.pods
    ]
    return replace(world, nodes=nodes, pods=pods)


def delete(plane: ControlPlane, path: str) -> None:
    """At once, where it is."""
    with suppress(HTTPError):
        plane.call("DELETE", path, {"gracePeriodSeconds": 0})


class Play:
    """One world in the cluster; what is in it goes with it."""

    def __init__(self, hami: Hami, world: World) -> None:
        self.hami, self.plane, self.world = hami, hami.plane, world
        self.names = [node.name for node in world.nodes]
        documents = world.documents()
        self.manifests = {
            one["metadata"]["name"]: one for one in documents if one["kind"] == "Pod"
        }
        for one in documents[: len(self.names)]:
            self.plane.call("POST", "/api/v1/nodes", one)
        probe = Pod("probe", ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9999999"},), {})
        asked = {
            **probe.document(),
            "metadata": {"name": "probe", "namespace": "default", "uid": "p"},
        }

        def registered() -> bool:
            failed = hami.filtered(asked, self.names)["FailedNodes"] or {}
            return len(failed) == len(self.names) and "node unregistered" not in failed.values()

        eventually("HAMi has read the nodes", registered)

    def ask(self, pod: Pod) -> Answer:
        """Create the pod, have it decided, and take it away again."""
        manifest = deepcopy(self.manifests[pod.name])
        manifest["metadata"]["annotations"] = self.world.wishes(pod)
        for container in manifest["spec"]["containers"]:
            container["image"] = "example"
        try:
            made = self.plane.call("POST", PODS, manifest)
        except HTTPError as error:
            return Answer(None, why=json.load(error)["message"])
        try:
            said = self.hami.filtered(made, self.names)
            if not said.get("NodeNames"):
                return Answer(None, why=str(said.get("Error") or said.get("FailedNodes")))
            notes = self.plane.call("GET", f"{PODS}/{pod.name}")["metadata"]["annotations"]
        finally:
            delete(self.plane, f"{PODS}/{pod.name}")
        cards = tuple(
            frozenset(device.split(",")[0] for device in part.split(":") if device)
            for part in notes[TO_ALLOCATE].removesuffix(";").split(";")
        )
        return Answer(said["NodeNames"][0], cards)

    def place(self, pod: Pod, found: Decision) -> None:
        """The pod as Partage binds it, which HAMi's webhook leaves alone."""
        manifest = deepcopy(self.manifests[pod.name])
        manifest["metadata"].update(
            annotations={**pod.annotations, **found.annotations},
            labels={"hami.io/webhook": "ignore"},
        )
        manifest["spec"]["nodeName"] = found.node
        for container in manifest["spec"]["containers"]:
            container["image"] = "example"
        self.plane.call("POST", PODS, manifest)

    def end(self) -> None:
        """Take everything away."""
        for name in self.manifests:
            delete(self.plane, f"{PODS}/{name}")
        for name in self.names:
            delete(self.plane, f"/api/v1/nodes/{name}")


def mine(pod: Pod, found: Decision) -> tuple[frozenset[str], ...]:
    """Cards of each container by Partage."""
    return tuple(
        frozenset(uuid for c, _, _, uuid, _ in found.devices if c == f"c{index}")
        for index in range(len(pod.containers))
    )


def as_read(node: rules.Node, pod: Pod, theirs: tuple[frozenset[str], ...]) -> bool:
    """Whether HAMi's choice is the one that its rules give where of equal cards the last is taken: row 20 of the page."""
    state = deepcopy(node)
    for limits, group in zip(pod.containers, theirs, strict=True):
        asked = rules.request(limits)
        if group not in rules.choices(state, asked, pod.annotations, upstream=True):
            return False
        rules.charge(state, group, asked)
    return True


def compared(node_of: dict[str, rules.Node], pod: Pod, found: Decision, said: Answer) -> str:
    """How the two answers compare, in the words of the page."""
    if found.node is None or said.node is None:
        if found.node == said.node:
            return "both wait"
        if said.node is None and len(pod.containers) > 1:
            return "only Partage places it: several containers"
        return "only HAMi places it" if found.node is None else "only Partage places it"
    ours = mine(pod, found)
    if found.node != said.node:
        same = rules.node_score(node_of[found.node]) == rules.node_score(node_of[said.node])
        return "an equal node" if same else "another node"
    if ours == said.cards:
        return "the same node and cards"
    read = as_read(node_of[found.node], pod, said.cards)
    return "the same node, the last of equal cards" if read else "the same node, other cards"


def kind(pod: Pod) -> str:
    """What about a pod decides where it may go, for the table."""
    notes = {
        key: text for key, text in pod.annotations.items() if not key.startswith("hami.io/node")
    }
    chain = notes.pop("hami.io/gpu-scheduler-policy", "")
    if notes:
        wishes = {
            "numa-bind": "one NUMA node",
            "type": "card types",
            "uuid": "card UUIDs",
            "weights": "weights of scores",
        }
        return next(words for part, words in wishes.items() if part in next(iter(notes)))
    if chain not in ("", "binpack", "spread"):
        return "several orders of cards" if "topology" not in chain else "links among cards"
    if len(pod.containers) > 1:
        return "several containers"
    (limits,) = pod.containers
    if limits["nvidia.com/gpu"] != "1":
        return "several cards"
    return "a share of one card" if len(limits) > 1 else "one whole card"


EXPLAINED = {
    "both wait",
    "the same node and cards",
    "the same node, the last of equal cards",
    "an equal node",
    "only Partage places it: several containers",
}


def play(hami: Hami, world: World) -> Iterator[tuple[str, str, Json]]:
    """Kind, outcome and what was said, of each pod of a world."""
    run = Play(hami, world)
    state = {node.name: node for node in deepcopy(world.nodes)}
    try:
        for plain, found in zip(world.pods, decided(world.documents(), world.policy), strict=True):
            pod = replace(plain, annotations=world.wishes(plain))
            said = run.ask(plain)
            outcome = compared(state, pod, found, said)
            if outcome not in EXPLAINED:
                time.sleep(1)  # what Partage placed before may not have reached HAMi
                said = run.ask(plain)
                outcome = compared(state, pod, found, said)
            all_of_it = {
                "pod": run.manifests[plain.name],
                "policy": world.policy,
                "reason": found.reason,
                "partage": [found.node, [sorted(one) for one in mine(pod, found)]],
                "hami": [said.node, [sorted(one) for one in said.cards], said.why],
                "cards": {
                    n.name: [vars(c) for c in n.cards] for n in deepcopy(list(state.values()))
                },
            }
            yield kind(plain), outcome, all_of_it
            if found.node is not None:
                for limits, group in zip(pod.containers, mine(pod, found), strict=True):
                    rules.charge(state[found.node], group, rules.request(limits))
                run.place(plain, found)
    finally:
        run.end()


def test_hami_itself_decides_what_partage_decides(hami: Hami) -> None:
    """Fit, node and cards; where they differ a row of docs/compatibility/hami.md says so."""
    table: Counter[tuple[str, str]] = Counter()
    unexplained: list[Json] = []
    number = 0

    def one(world: World) -> None:
        nonlocal number
        number += 1
        for sort, outcome, said in play(hami, renamed(world, f"w{number}-")):
            table[sort, outcome] += 1
            if outcome not in EXPLAINED:
                unexplained.append({"outcome": outcome, "kind": sort, **said})

    plan = settings(
        max_examples=cases(500) // 2,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for which in (worlds(nodes=1, cards=4), worlds(nodes=3, cards=2)):
        plan(given(which)(one))()
    rows = [[*key, count] for key, count in sorted(table.items())]
    told("hami", {"worlds": number, "rows": rows, "unexplained": unexplained})
    assert not unexplained, f"{len(unexplained)} of {table.total()}: {unexplained[:1]}"

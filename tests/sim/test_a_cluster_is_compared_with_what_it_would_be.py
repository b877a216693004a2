"""`partage simulate cluster`: policies, nodes and shares compared on manifests."""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from partage.cli.main import main
from partage.cli.reading import batches
from partage.model.device import DeviceType, ForeignInstance
from partage.model.mig import MigSlice
from partage.model.node import Verdict
from partage.model.policy import Policy
from partage.model.reason import ReasonCode
from partage.model.selector import Taint
from partage.placement.fragmentation import Workload
from partage.placement.learning import asks_of
from partage.placement.tables import Tables
from partage.scheduler.events import Placement, TablesChanged
from partage.sim.offline import queue, schedule, started
from partage.sim.page import page
from partage.sim.predicted import predicted
from partage.sim.whatif import Change, changed, evaluate
from partage.wire.cluster import Cluster, assemble
from partage.wire.documents import decode

NODE = """
apiVersion: v1
kind: Node
metadata:
  name: {name}
  labels: {{node.koordinator.sh/gpu-model: A100, kubernetes.io/hostname: {name}}}
status:
  allocatable: {{cpu: "64", memory: 256Gi, pods: "110"}}
---
apiVersion: scheduling.koordinator.sh/v1alpha1
kind: Device
metadata:
  name: {name}
spec:
  devices:
"""
CARD = """
  - health: {health}
    id: GPU-{name}-{minor}
    minor: {minor}
    type: gpu
    resources:
      kubernetes.io/gpu-core: "100"
      kubernetes.io/gpu-memory: 80Gi
      kubernetes.io/gpu-memory-ratio: "100"
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}, uid: {name}{notes}}}
spec:
  {place}
  containers:
  - name: main
    image: example
    resources:
      limits: {{{asks}}}
"""
WHOLE = 'koordinator.sh/gpu-core: "100", koordinator.sh/gpu-memory-ratio: "100"'
HALF = 'koordinator.sh/gpu-core: "50", koordinator.sh/gpu-memory-ratio: "50"'
TWO = 'koordinator.sh/gpu-core: "200", koordinator.sh/gpu-memory-ratio: "200"'


def node(name: str, cards: int = 2, *, healthy: bool = True) -> str:
    """A node and its Device object."""
    card = (CARD.format(name=name, minor=m, health=str(healthy).lower()) for m in range(cards))
    return NODE.format(name=name) + "".join(card)


def pod(name: str, asks: str, on: str = "", minor: int = 0) -> str:
    """A pod; with `on`, it runs there and holds one whole card."""
    record = {
        "gpu": [
            {
                "minor": minor,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": "80Gi",
                    "koordinator.sh/gpu-memory-ratio": "100",
                },
            }
        ]
    }
    text = json.dumps(json.dumps(record))
    notes = f", annotations: {{scheduling.koordinator.sh/device-allocated: {text}}}" if on else ""
    return POD.format(name=name, asks=asks, place=f"nodeName: {on}" if on else "", notes=notes)


def manifests(*documents: str) -> str:
    """Documents in one stream."""
    return "\n---\n".join(documents)


def run(tmp_path: Path, text: str, *options: str) -> Result:
    """`partage simulate cluster` on a text."""
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return CliRunner().invoke(main, ["simulate", "cluster", str(file), *options])


def cases(tmp_path: Path, text: str, *options: str) -> list[dict[str, object]]:
    """The same, as JSON."""
    result = run(tmp_path, text, *options, "-o", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, object]] = json.loads(result.stdout)
    return found


FULL = manifests(
    node("a"),
    pod("one", WHOLE, on="a", minor=0),
    pod("two", WHOLE, on="a", minor=1),
    pod("three", WHOLE),
)


def test_more_nodes_let_waiting_pods_run(tmp_path: Path) -> None:
    """Two copies of the node carry the pod that waits, and three more."""
    today, more = cases(tmp_path, FULL, "--add-nodes", "a=2")
    assert (today["running"], today["waiting"]) == (2, {"InsufficientCards": 1})
    assert (more["nodes"], more["cards"], more["running"], more["waiting"]) == (3, 6, 3, {})
    assert more["kinds"] == [
        {"asks": "1 whole gpu", "pods": 3, "running": 3, "more": 3, "more_bounded": False}
    ]


def test_shares_let_more_pods_run_on_the_same_cards(tmp_path: Path) -> None:
    """Three pods of one card each need two halves and a half: a card is free for one more."""
    today, shared = cases(tmp_path, FULL, "--share", "50")
    assert today["running"] == 2
    assert (shared["running"], shared["cards"], shared["shared_cards"]) == (3, 2, 1)
    assert shared["core_milli"] == {"total": 2000, "used": 1500}
    assert shared["kinds"][0]["more"] == 1  # type: ignore[index]


def test_pods_with_many_cards_keep_them(tmp_path: Path) -> None:
    """A share is for pods with one card; a pod that asks for two gets two."""
    _, shared = cases(tmp_path, manifests(node("a"), pod("many", TWO)), "--share", "10")
    assert shared["core_milli"] == {"total": 2000, "used": 2000}


def test_pods_of_removed_nodes_look_for_another_place(tmp_path: Path) -> None:
    """Without node `a` one of its pods fits on `b`, the other waits, and nothing is lost."""
    text = manifests(node("b", 1), FULL)
    today, less = cases(tmp_path, text, "--remove-nodes", "a*")
    assert (today["running"], today["pods"]) == (3, 3)
    assert (less["nodes"], less["running"], less["pods"]) == (1, 1, 3)


def test_another_policy_places_running_pods_anew(tmp_path: Path) -> None:
    """Two halves share a card under binpack, and have one each under spread."""
    text = manifests(node("a"), node("b"), pod("one", HALF), pod("two", HALF))
    _, packed, spread = cases(tmp_path, text, "--policy", "binpack", "--policy", "spread")
    assert (packed["policy"], packed["idle_cards"], packed["shared_cards"]) == ("binpack", 3, 1)
    assert (spread["policy"], spread["idle_cards"], spread["shared_cards"]) == ("spread", 2, 0)


def test_closed_cards_are_no_room(tmp_path: Path) -> None:
    """Unhealthy cards have a count of their own, and count neither as cards nor as idle."""
    text = manifests(node("a", 1), node("b", 2, healthy=False), pod("one", WHOLE))
    (today,) = cases(tmp_path, text)
    assert (today["cards"], today["closed_cards"], today["idle_cards"]) == (1, 2, 0)


def test_nothing_asked_for_shows_the_cluster_as_it_is(tmp_path: Path) -> None:
    """Without a change there is one case."""
    result = run(tmp_path, FULL)
    assert result.exit_code == 0
    assert "Today 2 pods of 3 run on 2 cards, and none of these are idle." in result.stdout
    assert "default/three" in result.stdout


def test_copies_share_no_identity_with_their_model() -> None:
    """Names and devices of a copy are its own, even where a name is taken."""
    known = assemble([decode("text", manifests(node("a"), node("a-copy1", 1)).encode())])
    after = changed(known, Change(add=(("a", 2),)))
    assert [n.name for n in after.nodes] == ["a", "a-copy1", "a-copy2", "a-copy3"]
    uuids = [device.uuid for n in after.nodes for device in n.devices]
    assert len(uuids) == len(set(uuids)) == 7


def test_copies_are_empty_and_healthy() -> None:
    """Faults of their model at the moment do not matter."""
    known = assemble([decode("text", manifests(node("a", 1, healthy=False)).encode())])
    (model,) = known.nodes
    card = replace(
        model.devices[0],
        cordoned=True,
        doubt="MIG mode is switched",
        foreign=(ForeignInstance(MigSlice("1g.5gb", 0, 1)),),
    )
    ill = replace(
        model,
        unschedulable=True,
        taints=(Taint("node.kubernetes.io/not-ready", "", "NoSchedule"),),
        verdicts=(Verdict("", ReasonCode.AGENT_SILENT, "its agent is away"),),
        devices=(card,),
    )

    _, copy = changed(replace(known, nodes=(ill,)), Change(add=(("a", 1),))).nodes

    assert (copy.unschedulable, copy.taints, copy.verdicts) == (False, (), ())
    (found,) = copy.devices
    assert (found.healthy, found.cordoned, found.doubt, found.foreign) == (True, False, "", ())


def test_counting_room_leaves_no_trace_and_ends() -> None:
    """Room is counted up to a bound, each kind alone."""
    known = assemble([decode("text", manifests(node("a"), pod("one", HALF)).encode())])
    found = evaluate(known, Change(), "today", most=2)
    assert [(kind.more, kind.bounded) for kind in found.kinds] == [(2, True)]
    assert found.core_milli == 500


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--add-nodes", "z=1"), "no node is called 'z' to copy; there are a"),
        (("--add-nodes", "a"), "--add-nodes a: it must be NODE=N"),
        (("--add-nodes", "a=9999999"), "it must be NODE=N with N from 1 to 10,000"),
        (("--add-nodes", "a=0"), "0 copies of node a"),
        (("--add-nodes", "a=9999", "--add-nodes", "a=2"), "10,001 nodes to add: 10,000 at most"),
        (("--remove-nodes", "z*"), "no node is called 'z*'; there are a"),
        (("--policy", "best"), "best"),
        (("--page", "/nowhere/page.html"), "/nowhere/page.html: No such file"),
    ],
    ids=[
        "copy of nothing",
        "no number",
        "a number beyond all",
        "no copies",
        "too many copies",
        "no match",
        "no policy",
        "no folder",
    ],
)
def test_changes_that_cannot_be_made_are_named(
    tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    """One line says what is wrong, and the exit status is 2."""
    result = run(tmp_path, FULL, *options)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "Traceback" not in result.output


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """`partage schedule` does the same."""
    result = CliRunner().invoke(main, ["simulate", "cluster", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "none.yaml" in result.stderr


def test_the_page_is_whole_and_needs_nothing(tmp_path: Path) -> None:
    """One file, with every case in it and nothing to load."""
    target = tmp_path / "page.html"
    result = run(tmp_path, FULL, "--share", "50", "--page", str(target))
    assert result.exit_code == 0
    text = target.read_text()
    assert "With shares of 50 %, 1 pod more would run" in text
    assert text.count("<tr><th scope=row>") > 4
    assert not any(word in text for word in ("<script", "http://", "https://", "src=", "@import"))


@pytest.mark.parametrize(
    ("change", "said"),
    [(["--remove-nodes", "*"], "Without *, "), (["--anew"], "Placed again, ")],
)
def test_the_verdict_is_a_sentence(tmp_path: Path, change: list[str], said: str) -> None:
    """No `With without` and no `With placed again`."""
    assert f". {said}" in run(tmp_path, FULL, *change).stdout.replace("\n", " ")


def test_names_from_manifests_are_escaped_in_the_page() -> None:
    """A model that looks like markup stays text."""
    text = node("a").replace("A100", '"<b>x</b>"')
    found = evaluate(assemble([decode("text", text.encode())]), Change(), "<i>today</i>")
    made = page([found], "<u>file</u>")
    assert "&lt;i&gt;today" in made
    assert not any(tag in made for tag in ("<b>", "<i>t", "<u>"))


def examples(seed: int) -> Cluster:
    """The examples without claims, which Kubernetes allocates by no policy; 0 keeps the order of their pods."""
    folder = Path(__file__).resolve().parents[2] / "examples"
    folders = sorted(str(one) for one in folder.iterdir() if one.is_dir() and one.name != "claims")
    known = assemble(list(batches(folders)))
    chance = random.Random(seed)  # noqa: S311 # a seeded order is the point
    pods = chance.sample(known.pods, len(known.pods)) if seed else known.pods
    return replace(known, pods=tuple(pods))


@pytest.mark.parametrize("seed", range(6))
def test_no_policy_places_more_of_the_examples_than_the_default(seed: int) -> None:
    """Their order does not matter: the default learns from the requests in sight, and so does FGD."""
    known = examples(seed)

    placed = {
        name: evaluate(known, Change(policy=Policy.parse(name), anew=True), name, most=0).running
        for name in ("partage", "binpack", "spread", "fgd")
    }

    assert placed["partage"] == max(placed.values())


@pytest.mark.parametrize("seed", [0, 2])
def test_fgd_knows_the_requests_of_all_pods(seed: int) -> None:
    """Its case is that of an engine with the published usual requests, and not first fit."""
    known, fgd = examples(seed), Policy.parse("fgd")
    change = Change(policy=fgd, anew=True)
    after = changed(known, change)
    engine, _ = started(after, fgd, None)
    pods = [one.pod for one in after.pods if not one.pod.finished]
    asks = asks_of(pods, engine.ledger, engine.accepting)
    workload = Workload.of(ask.shape for ask in asks)
    engine.handle(TablesChanged(Tables(workload=workload)))
    placed = sum(
        isinstance(engine.schedule(one.pod), Placement)
        for one in queue(after.pods)
        if one.pod.request.groups
    )

    found = evaluate(known, change, "fgd", most=0)

    assert found.running == placed
    assert found.core_milli == sum(
        card.device.core_milli - card.core_free
        for index in range(len(known.nodes))
        for card in engine.ledger.cards(DeviceType.GPU, index)
    )
    plain = evaluate(known, replace(change, policy=Policy.parse("first-fit")), "plain", most=0)
    assert (found.running, found.core_milli) != (plain.running, plain.core_milli)


@pytest.mark.parametrize("policy", ["partage", "fgd"])
def test_a_schedule_places_pods_as_what_if_does(policy: str) -> None:
    """Both know all pods, as a running scheduler does that has seen them; first fit places one pod less."""
    change = Change(policy=Policy.parse(policy), anew=True)
    known = changed(examples(2), change)

    outcome = schedule(known, change.policy)

    asking = [one for one in outcome.pods if one.pod.pod.request.groups]
    placed = sum(one.allocation is not None for one in asking)
    assert placed == evaluate(known, change, policy, most=0).running == 24
    plain = schedule(known, Policy.parse("first-fit"))
    assert len(plain.waiting) == len(outcome.waiting) + 1


def test_every_command_without_a_cluster_decides_by_the_requests_in_sight(tmp_path: Path) -> None:
    """A half goes where it spoils no pair of cards; first fit would take the first node."""
    file = tmp_path / "cluster.yaml"
    file.write_text(manifests(node("a"), node("b", 1), pod("one", HALF)))
    ask = CliRunner().invoke
    snapshot = decode("text", file.read_bytes()).documents

    ((_, decision),) = asyncio.run(predicted(snapshot, Policy()))
    told = ask(main, ["schedule", str(file), "-o", "json"])
    why = ask(main, ["explain", "one", "-f", str(file), "-o", "json"])

    assert isinstance(decision, Placement)
    assert decision.allocation.node == "b"
    assert json.loads(told.stdout)["pods"][0]["node"] == "b", told.output
    assert json.loads(why.stdout)["node"] == "b", why.output

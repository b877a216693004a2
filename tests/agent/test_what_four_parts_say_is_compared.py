"""Records, journal, kubelet and runtime: each difference has a name, agreement has none, and silence accuses no pod."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.agent import injection
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.differences import TABLE, Finding, Kind
from partage.agent.held_allocations import Running
from partage.agent.injection import Place
from partage.agent.isolation.processes import users
from partage.agent.journal import Entry
from partage.agent.kubelet import messages as said
from partage.agent.kubelet.units import Offer, Unit, counted
from partage.agent.nri.messages import PodSandbox
from partage.agent.reconcile import Bound, Facts, bound_pods, confirmed, reconcile
from partage.model import device as model
from partage.model.allocation import CLAIM, Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.model.request import Phase
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire import shapes
from partage.wire.record import encode

GIB = 2**30
GPU, CORE = "nvidia.com/gpu", "tke.cloud.tencent.com/qgpu-core"
NODE = Node(
    "n1",
    devices=tuple(
        model.Device(DeviceType.GPU, minor, f"GPU-{minor}", vendor="nvidia", memory_bytes=16 * GIB)
        for minor in range(2)
    ),
)
PLACE = Place(NODE, Settings(), FAMILIES, HostFacts(lambda _pod, _card, _mig: Instance()))
OFFERS = tuple(
    Offer(
        resource,
        tuple(
            Unit(f"GPU-{card}::{number}", f"GPU-{card}", healthy=True)
            for card in range(2)
            for number in range(4)
        ),
    )
    for resource in (GPU, CORE)
)


def grants(
    card: int, milli: int, *containers: str, phase: Phase = Phase.MAIN
) -> tuple[Grant, ...]:
    """What containers get of a card; a thousand is all of it."""
    mode = GrantMode.WHOLE if milli == 1000 else GrantMode.SHARE
    return tuple(
        Grant(
            one,
            DeviceType.GPU,
            card,
            f"GPU-{card}",
            milli,
            milli * GIB // 100,
            mode,
            phase,
            "qgpu",
        )
        for one in containers
    )


def record(uid: str, *given: Grant) -> str:
    """The annotation."""
    return encode(Allocation(uid, "team", uid, "n1", given))


HALF = grants(0, 500, "main")


@dataclass
class World:
    """What four parts say of one pod `a` with a container `main`; all agree at first."""

    pods: list[Bound] = field(
        default_factory=lambda: [
            Bound("a", "team", "a", record("a", *HALF), asks={"main": {GPU: 1, "cpu": 2}})
        ]
    )
    entries: list[Entry] = field(
        default_factory=lambda: [Entry("c1", "a", "team/a", "main", record("a", *HALF), "none")]
    )
    units: dict[tuple[str, str, str], dict[str, tuple[str, ...]]] = field(
        default_factory=lambda: {("team", "a", "main"): {GPU: ("GPU-0::0",)}}
    )
    running: list[Running] = field(
        default_factory=lambda: [
            Running("c1", "a", "team", "a", "main", record("a", *HALF), "none")
        ]
    )

    uses: dict[str, set[str]] = field(default_factory=dict)

    def facts(self) -> Facts:
        """All of it."""
        return Facts(PLACE, self.entries, OFFERS, self.pods, self.units, self.running, self.uses)

    def found(self) -> list[tuple[Kind, str, str, str]]:
        """Kind, pod, UID and container of each finding."""
        return [(one.kind, one.pod, one.uid, one.container) for one in reconcile(self.facts())]


def test_four_parts_that_agree_have_no_finding() -> None:
    """Neither has a pod that waits for its container, nor one without devices."""
    world = World()
    world.pods += [
        Bound("b", "team", "b", record("b", *grants(1, 500, "main"))),
        Bound("c", "team", "c"),
    ]
    world.uses["c1"] = {"GPU-0"}
    world.units["team", "b", "main"] = {GPU: ("GPU-1::0",)}
    world.running.append(Running("c3", "c", "team", "c", "main"))

    assert world.found() == []


def _entry(world: World, **fields: str) -> None:
    world.entries[0] = msgspec.structs.replace(world.entries[0], **fields)


def _runs(world: World, **fields: str | None) -> None:
    world.running[0] = replace(world.running[0], **fields)  # type: ignore[arg-type]


def _pod(world: World, **fields: object) -> None:
    world.pods[0] = replace(world.pods[0], **fields)  # type: ignore[arg-type]


def _without_record(world: World) -> None:
    _pod(world, record=None)
    _runs(world, record=None, served=None)
    world.entries.clear()


def _held_twice(world: World) -> None:
    other = record("b", *grants(0, 600, "main"))
    world.entries.append(Entry("c2", "b", "team/b", "main", other, "none"))
    world.running.append(Running("c2", "b", "team", "b", "main", other, "none"))
    world.pods.append(Bound("b", "team", "b", other))


def _same_unit(world: World) -> None:
    other = record("b", *grants(0, 400, "main"))
    _held_twice(world)
    world.entries[1] = msgspec.structs.replace(world.entries[1], record=other)
    world.running[1] = replace(world.running[1], record=other)
    world.pods[1] = replace(world.pods[1], record=other)
    world.units["team", "b", "main"] = {GPU: ("GPU-0::0",)}


A = ("a", "a", "main")
CASES: dict[str, tuple[Callable[[World], object], list[tuple[Kind, str, str, str]]]] = {
    "its answer never arrived": (lambda w: _runs(w, served=None), [(Kind.NEVER_GIVEN, *A)]),
    "started while no agent was asked": (
        lambda w: (w.entries.clear(), _runs(w, served=None)),
        [(Kind.STARTED_UNASKED, *A)],
    ),
    "started with a copied record": (
        lambda w: (w.entries.clear(), _runs(w, record=record("x", *HALF), served=None)),
        [(Kind.BAD_RECORD, *A)],
    ),
    "the journal lost it": (lambda w: w.entries.clear(), [(Kind.NOT_IN_JOURNAL, *A)]),
    "it ended unheard": (lambda w: w.running.clear(), [(Kind.ENDED, *A)]),
    "the runtime does not tell its pod": (
        lambda w: w.running.append(Running("c9", "", "", "", "odd")),
        [(Kind.POD_UNKNOWN, "", "", "odd")],
    ),
    "the journal cannot be read back": (
        lambda w: _entry(w, record='{"v":9}'),
        [(Kind.UNREADABLE, *A)],
    ),
    "its pod was deleted by force": (lambda w: w.pods.clear(), [(Kind.POD_GONE, *A)]),
    "its pod is over and it runs": (lambda w: _pod(w, over=True), [(Kind.POD_GONE, *A)]),
    "its record names another card": (
        lambda w: _pod(w, record=record("a", *grants(1, 900, "main"))),
        [(Kind.RECORD_CHANGED, *A)],
    ),
    "its record names other amounts, which it is brought to": (
        lambda w: _pod(w, record=record("a", *grants(0, 900, "main"))),
        [],
    ),
    "its record is gone": (lambda w: _pod(w, record=None), [(Kind.RECORD_CHANGED, *A)]),
    "it runs with units and without a record": (
        _without_record,
        [(Kind.RUNS_WITHOUT_RECORD, *A)],
    ),
    "it waits with units and without a record": (
        lambda w: (_without_record(w), w.running.clear()),
        [(Kind.UNITS_WITHOUT_RECORD, *A)],
    ),
    "the kubelet forgot it": (lambda w: w.units.clear(), [(Kind.NOT_COUNTED, *A)]),
    "the kubelet chose another card": (
        lambda w: w.units.update({("team", "a", "main"): {GPU: ("GPU-1::2",)}}),
        [(Kind.OTHER_CARD, *A)],
    ),
    "the kubelet counts more": (
        lambda w: w.units.update({("team", "a", "main"): {GPU: ("GPU-0::0", "GPU-0::1")}}),
        [(Kind.OTHER_AMOUNT, *A)],
    ),
    "a unit that no plugin offers": (
        lambda w: w.units.update({("team", "a", "main"): {GPU: ("GPU-7::0",)}}),
        [(Kind.UNKNOWN_UNIT, *A)],
    ),
    "one unit in two pods": (
        _same_unit,
        [(Kind.UNIT_TWICE, *A), (Kind.UNIT_TWICE, "b", "b", "main")],
    ),
    "two pods on one card": (_held_twice, [(Kind.CARD_OVERFULL, "b", "b", "main")]),
    "another container of the pod uses its card": (
        lambda w: (
            w.running.append(Running("c2", "a", "team", "a", "aside", record("a", *HALF), "none")),
            w.entries.append(Entry("c2", "a", "team/a", "aside", record("a", *HALF), "none")),
            w.uses.update(c1={"GPU-0"}, c2={"GPU-0"}),
        ),
        [(Kind.USES_UNGRANTED, "a", "a", "aside")],
    ),
    "a pod without devices uses a card": (
        lambda w: (
            w.running.append(Running("c2", "b", "team", "b", "main")),
            w.uses.update(c2={"GPU-1"}),
        ),
        [(Kind.USES_UNGRANTED, "b", "b", "main")],
    ),
    "it uses another card": (
        lambda w: w.uses.update(c1={"GPU-0", "GPU-1"}),
        [(Kind.USES_UNGRANTED, *A)],
    ),
    "a card that is gone": (
        lambda w: [
            _entry(w, record=(gone := record("a", *grants(9, 500, "main")))),
            _runs(w, record=gone),
            _pod(w, record=gone),
            w.units.clear(),
            _pod(w, asks=None),
        ],
        [(Kind.DEVICE_GONE, *A)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_difference_has_its_name(case: str) -> None:
    """One thing is changed in a world where all agree, and exactly that is found."""
    change, wanted = CASES[case]
    world = World()

    change(world)

    assert sorted(world.found()) == sorted(wanted)


def test_every_kind_has_a_case_and_a_row_in_the_page() -> None:
    """None is made up, none is left out; the page says what is done as the table does."""
    found = {kind for _, wanted in CASES.values() for kind, *_ in wanted}
    page = (Path(__file__).parents[2] / "docs/reference/agent.md").read_text("utf-8")

    assert found == set(Kind) == set(TABLE)
    for kind, meaning in TABLE.items():
        rows = [
            line
            for line in page.splitlines()
            if line.startswith(f"| `{kind}` |") and line.endswith(f"| {meaning.done} |")
        ]
        assert len(rows) == 1, kind


def test_a_claims_container_uses_what_its_claim_has() -> None:
    """Its grants are written down under the claim's UID, and its pod has no record."""
    world = World()
    world.running.append(Running("c2", "b", "team", "b", "main", None, "none"))
    world.entries.append(
        Entry("c2", "claim", "team/b", "main", record("claim", *grants(1, 500, "main")), "none")
    )
    world.uses["c2"] = {"GPU-1"}
    assert Kind.USES_UNGRANTED not in {kind for kind, *_ in world.found()}

    world.uses["c2"] = {"GPU-0"}
    assert (Kind.USES_UNGRANTED, "b", "b", "main") in world.found()


@pytest.mark.parametrize(
    "pods", [[], [Bound("c", "team", "b")]], ids=["gone", "another of its name"]
)
def test_a_claims_container_outlives_its_pod(pods: list[Bound]) -> None:
    """It is found by its pod's UID; its pod has no record, and an earlier agent wrote no UID."""
    world = World()
    mine = grants(1, 500, "main")
    mine = tuple(msgspec.structs.replace(one, protocol=CLAIM) for one in mine)
    entry = Entry("c2", "claim", "team/b", "main", record("claim", *mine), "none", claimant="b")
    world.running.append(Running("c2", "b", "team", "b", "main", None, "none"))
    world.entries.append(entry)
    world.pods.append(Bound("b", "team", "b"))
    assert world.found() == []

    world.pods[1:] = pods
    assert world.found() == [(Kind.POD_GONE, "b", "b", "main")]

    world.entries[1] = msgspec.structs.replace(entry, claimant="")
    assert world.found() == []


def test_drivers_and_monitors_may_use_cards() -> None:
    """The containers of namespaces whose pods without a record are left alone."""
    world = World()
    world.running.append(Running("c2", "b", "kube-system", "b", "main"))
    world.uses["c2"] = {"GPU-1"}

    assert world.found() == []


def test_the_drivers_processes_are_those_of_containers(tmp_path: Path) -> None:
    """Control groups decide; processes of the host and of the agent, and ended ones, belong to no container."""
    mine, own = "a" * 64, "b" * 64
    for pid, group in ((7, mine), (8, "system.slice"), (9, own), ("self", own)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / f"{pid}/cgroup").write_text(f"0::/kubepods/{group}\n")

    found = users({"GPU-0": (7, 8, 9, 10), "GPU-1": (7,)}, (mine, own), tmp_path)

    assert found == {mine: {"GPU-0", "GPU-1"}}


def test_whoever_cannot_be_named_is_not_accused() -> None:
    """A pod that was deleted by force runs beside its successor: the kubelet's word is about neither."""
    world = World()
    world.pods = [Bound("b", "team", "a", None, asks={"main": {GPU: 1}})]
    world.units["team", "a", "main"] = {GPU: ("GPU-1::0",)}

    assert world.found() == [(Kind.POD_GONE, *A)]


def test_of_init_containers_the_kubelet_may_be_silent() -> None:
    """It lists no unit of theirs: that is no difference."""
    world, text = World(), record("a", *grants(0, 500, "main", phase=Phase.INIT))
    _entry(world, record=text)
    _runs(world, record=text)
    _pod(world, record=text)
    world.units.clear()

    assert world.found() == []


def test_a_finding_counts_when_two_looks_have_it() -> None:
    """In other words the second time, with other numbers: it is the same."""
    one = Finding(Kind.OTHER_CARD, "team", "a", "u", "main", "before")
    again, other = replace(one, message="after"), replace(one, container="side")

    assert confirmed([one], [again, other]) == [again]
    assert confirmed([], [one]) == []


def test_what_the_parts_send_is_read() -> None:
    """Pods of this node only; units one by one as a kubelet sends them, those of others left out."""
    pod = shapes.Pod(
        metadata=shapes.Metadata(
            name="a", namespace="team", uid="a", annotations={names.ALLOCATION: "{}"}
        ),
        spec=shapes.PodSpec(
            node_name="n1",
            containers=[
                shapes.Container(name="main", resources=shapes.Resources(limits={GPU: "2"}))
            ],
        ),
        status=shapes.PodStatus(phase="Failed"),
    )
    away = shapes.Pod(
        metadata=shapes.Metadata(name="b", uid="b"), spec=shapes.PodSpec(node_name="n2")
    )
    devices = [said.ContainerDevices(GPU, (f"GPU-0::{n}",)) for n in range(2)]
    more = said.ContainerDevices("other.io/nic", ("nic-1",))
    told = said.PodResources(
        "a",
        "team",
        (
            said.ContainerResources("main", (*devices, more)),
            said.ContainerResources("side", (more,)),
        ),
    )

    assert bound_pods([pod, away], "n1") == (
        Bound("a", "team", "a", "{}", over=True, asks={"main": {GPU: 2}}),
    )
    assert counted([told], {GPU}) == {("team", "a", "main"): {GPU: ("GPU-0::0", "GPU-0::1")}}


# --- any world, against a plain oracle ---------------------------------------------------------

RECORDS = {
    "small": (0, 300),
    "big": (0, 600),
    "other": (1, 600),
    "whole": (0, 1000),
    "gone": (9, 300),
}
"""Card and thousandths; each is for both containers of a pod, half of it each."""
SLOTS = tuple(itertools.product("ab", ("main", "side")))
UNITS = ("GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-7::0")


@dataclass(frozen=True)
class Slot:
    """One container: what the journal, the runtime and the kubelet say of it."""

    given: str  # a record's name, "garbage", or empty
    runs: str  # "served", "unserved", or empty
    units: frozenset[str]


@dataclass(frozen=True)
class Drawn:
    """A whole world: what the API server says of pods, what the runtime has of their records, and containers."""

    api: dict[str, str]  # a record's name, "none", "garbage", "over", or empty
    sandbox: dict[str, str]  # a record's name, "none", "garbage"
    slots: dict[tuple[str, str], Slot]


def _text(pod: str, name: str) -> str | None:
    if name == "none":
        return None
    if name == "garbage":
        return "{"
    card, milli = RECORDS[name]
    return record(pod, *grants(card, milli // 2 if milli < 1000 else 1000, "main", "side"))


_named = st.sampled_from(sorted(RECORDS))
_world = st.builds(
    Drawn,
    st.fixed_dictionaries(
        {pod: _named | st.sampled_from(["none", "garbage", "over", ""]) for pod in "ab"}
    ),
    st.fixed_dictionaries({pod: _named | st.sampled_from(["none", "garbage"]) for pod in "ab"}),
    st.fixed_dictionaries(
        {
            slot: st.builds(
                Slot,
                st.just("") | _named | st.just("garbage"),
                st.sampled_from(["", "served", "unserved"]),
                st.frozensets(st.sampled_from(UNITS), max_size=2),
            )
            for slot in SLOTS
        }
    ),
)


def _facts(world: Drawn) -> Facts:
    entries, running, units = [], [], {}
    for (pod, name), slot in world.slots.items():
        if slot.given:
            text = _text(pod, slot.given) or ""
            entries.append(Entry(f"{pod}-{name}", pod, f"team/{pod}", name, text))
        if slot.runs:
            served = "none" if slot.runs == "served" else None
            text = _text(pod, world.sandbox[pod])  # type: ignore[assignment]
            running.append(Running(f"{pod}-{name}", pod, "team", pod, name, text, served))
        if slot.units:
            units["team", pod, name] = {GPU: tuple(sorted(slot.units))}
    pods = [
        Bound(
            pod,
            "team",
            pod,
            _text(pod, "small" if says == "over" else says),
            says == "over",
            {name: {GPU: 1} for name in ("main", "side")},
        )
        for pod, says in world.api.items()
        if says
    ]
    return Facts(PLACE, entries, OFFERS, pods, units, running)


def _card(name: str) -> str:
    return f"GPU-{RECORDS[name][0]}"


def _of_slot(world: Drawn, pod: str, name: str) -> set[Kind]:
    """What is to be found of one container, rule by rule."""
    slot, api, box = world.slots[pod, name], world.api[pod], world.sandbox[pod]
    bound = "small" if api == "over" else api
    found: set[Kind] = set()
    if slot.runs and slot.given and slot.runs == "unserved":
        found.add(Kind.NEVER_GIVEN)
    if slot.runs and not slot.given and box != "none":
        if box == "garbage":
            found.add(Kind.BAD_RECORD)
        else:
            found.add(Kind.NOT_IN_JOURNAL if slot.runs == "served" else Kind.STARTED_UNASKED)
    if slot.given and not slot.runs:
        found.add(Kind.ENDED)
    if slot.given and slot.runs:
        if slot.given == "garbage":
            found.add(Kind.UNREADABLE)
        if api in ("", "over"):
            found.add(Kind.POD_GONE)
        if (
            api
            and bound != slot.given
            and {bound, slot.given} != {"small", "big"}  # amounts alone
            and (bound in ("none", "garbage") or slot.given != "garbage")
        ):
            found.add(Kind.RECORD_CHANGED)
    return found


def _of_units(world: Drawn, pod: str, name: str) -> set[Kind]:
    """What the kubelet's word adds."""
    slot, api = world.slots[pod, name], world.api[pod]
    here = any(world.slots[pod, other].runs for other in ("main", "side"))
    if not here and api in ("", "over"):
        return set()  # the kubelet's word may mean either pod
    found: set[Kind] = set()
    if slot.units:
        other = "b" if pod == "a" else "a"
        theirs = {unit for n in ("main", "side") for unit in world.slots[other, n].units}
        if slot.units & theirs:
            found.add(Kind.UNIT_TWICE)
        if "GPU-7::0" in slot.units:
            found.add(Kind.UNKNOWN_UNIT)
        if api and len(slot.units) != 1:
            found.add(Kind.OTHER_AMOUNT)
        cards = {unit.partition("::")[0] for unit in slot.units} - {"GPU-7"}
        if slot.given:
            if slot.given != "garbage" and cards - {_card(slot.given)}:
                found.add(Kind.OTHER_CARD)
        elif (api or world.sandbox[pod]) == "none":
            kind = Kind.RUNS_WITHOUT_RECORD if slot.runs else Kind.UNITS_WITHOUT_RECORD
            found.add(kind)
    elif slot.given not in ("", "garbage") and slot.runs and api:
        found.add(Kind.NOT_COUNTED)
    return found


def _of_cards(world: Drawn) -> set[tuple[Kind, str]]:
    """By pod: a device that is gone, or a card where both do not fit; the later one is named."""
    held: dict[str, str] = {}
    for wanted in (True, False):  # the journal first
        for (pod, _), slot in world.slots.items():
            name = slot.given if wanted else world.sandbox[pod]
            known = slot.given if wanted else not slot.given
            if slot.runs and known and name in RECORDS:
                held.setdefault(pod, name)
    found = set()
    before: list[str] = []
    for pod, name in held.items():
        if name == "gone":
            found.add((Kind.DEVICE_GONE, pod))
        elif any(_card(one) == _card(name) for one in before):
            milli = sum(RECORDS[one][1] for one in (*before, name) if _card(one) == _card(name))
            if milli > 1000:
                found.add((Kind.CARD_OVERFULL, pod))
        before.append(name)
    return found


@settings(max_examples=1500, deadline=None)
@given(_world)
def test_any_world_is_judged_as_the_rules_say(world: Drawn) -> None:
    """Exactly the findings of the plain rules, for every container and every card."""
    found = reconcile(_facts(world))

    of_cards = (Kind.DEVICE_GONE, Kind.CARD_OVERFULL)
    for pod, name in SLOTS:
        mine = {f.kind for f in found if (f.uid, f.container) == (pod, name)} - {*of_cards}
        assert mine == _of_slot(world, pod, name) | _of_units(world, pod, name), (pod, name)
    assert {(one.kind, one.uid) for one in found if one.kind in of_cards} == _of_cards(world)


@settings(max_examples=500, deadline=None)
@given(_world, st.sampled_from(["pods", "units", "running"]))
def test_silence_accuses_nobody_and_frees_nothing(world: Drawn, silent: str) -> None:
    """A part is silent: what it alone could show is not found, and nothing worse is."""
    facts = _facts(world)
    gone = {
        "pods": {Kind.POD_GONE, Kind.RECORD_CHANGED, Kind.OTHER_AMOUNT, Kind.NOT_COUNTED},
        "units": {
            Kind.UNIT_TWICE,
            Kind.UNKNOWN_UNIT,
            Kind.OTHER_AMOUNT,
            Kind.OTHER_CARD,
            Kind.RUNS_WITHOUT_RECORD,
            Kind.UNITS_WITHOUT_RECORD,
            Kind.NOT_COUNTED,
        },
        "running": {
            Kind.NEVER_GIVEN,
            Kind.STARTED_UNASKED,
            Kind.BAD_RECORD,
            Kind.NOT_IN_JOURNAL,
            Kind.ENDED,
            Kind.POD_UNKNOWN,
            Kind.RUNS_WITHOUT_RECORD,
            Kind.NOT_COUNTED,
        },
    }[silent]

    less = reconcile(_without(facts, silent))

    assert not {one.kind for one in less} & gone
    if silent == "units":
        assert [one for one in reconcile(facts) if one.kind not in gone] == less
    if silent == "running":
        # What the journal says was given counts, as if all of it ran.
        all_of_it = [
            Running(one.container, one.uid, "team", one.uid, one.name, one.record, "none")
            for one in facts.entries
        ]
        cards = {Kind.DEVICE_GONE, Kind.CARD_OVERFULL}
        as_if = reconcile(replace(facts, running=all_of_it))
        assert {f for f in less if f.kind in cards} == {f for f in as_if if f.kind in cards}


def _without(facts: Facts, part: str) -> Facts:
    if part == "pods":
        return replace(facts, pods=None)
    return replace(facts, units=None) if part == "units" else replace(facts, running=None)


def _asks(uid: str, name: str) -> dict[tuple[str, str, str], dict[str, tuple[str, ...]]]:
    return {("team", uid, name): {GPU: (f"GPU-0::{uid}{name}",)}}


@pytest.mark.parametrize("many", [50, 400])
def test_each_record_is_read_once_and_each_container_looked_up(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node had thousands of containers in some pods: a look took seconds, in which others' containers were refused."""
    uids = [f"p{number}" for number in range(4)]
    names_ = [f"c{number}" for number in range(many)]
    world = World([], [], {}, [])
    for uid in uids:
        text = record(uid, *grants(0, 1, *names_[:64]))
        world.pods.append(Bound(uid, "team", uid, text, asks={"c0": {GPU: 1}}))
        for name in names_:
            world.entries.append(Entry(f"{uid}-{name}", uid, f"team/{uid}", name, text, "none"))
            run = Running(f"{uid}-{name}", uid, "team", uid, name, text, "none")
            world.running.append(run)
        for name in names_[:64]:
            world.units |= _asks(uid, name)
    read: list[str] = []
    genuine = injection.recorded

    def counted_(pod: PodSandbox, node: str) -> object:
        read.append(pod.uid)
        return genuine(pod, node)

    monkeypatch.setattr(injection, "recorded", counted_)
    facts = world.facts()
    looked = Passes(facts.entries), Passes(facts.running or ())

    reconcile(replace(facts, entries=looked[0], running=looked[1]))

    assert sorted(read) == uids
    assert max(one.passes for one in looked) <= 8, "however many containers have units"


class Passes(list[Any]):
    """A list that counts how often it is gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        """Once more."""
        self.passes += 1
        return super().__iter__()

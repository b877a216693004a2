"""Spans of injection name the granted devices, the rule of a refusal, and the container that took the kubelet's units."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from fakes.kept_spans import KeptSpans
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.journal import Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Container, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.agent.stories import Stories
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.tracing.context import trace_of
from partage.tracing.spans import ALLOCATE, INJECT
from partage.tracing.tracer import NO_TRACES
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import encode

GIB = 2**30
NODE = Node(
    "n1", devices=(Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", memory_bytes=16 * GIB),)
)
MINE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _pod(uid: str = "u1", milli: int = 500, **more: str) -> PodSandbox:
    grant = Grant("main", DeviceType.GPU, 0, "GPU-0", milli, GIB, GrantMode.SHARE, protocol="qgpu")
    record = encode(Allocation(uid, "team", uid, "n1", (grant,)))
    return PodSandbox("s", uid, uid, "team", annotations={names.ALLOCATION: record, **more})


@pytest.fixture
def kept() -> KeptSpans:
    """The spans that the keeper reports."""
    return KeptSpans()


@pytest.fixture
def keeper(tmp_path: Path, kept: KeptSpans) -> Iterator[Keeper]:
    """A keeper that reports spans, on a node with one card."""
    place = Place(NODE, Settings(), FAMILIES, HostFacts(lambda _p, _c, _m: Instance()))
    words = (f"{number:016x}" for number in count(1))
    journal = Journal(tmp_path / "journal")
    stories = Stories(kept, "n1", lambda: next(words))
    yield Keeper(
        lambda: place, Host(tmp_path, simulated=True), journal, Tallies(), stories=stories
    )
    journal.close()


def test_what_is_given_is_told(keeper: Keeper, kept: KeptSpans) -> None:
    """The span is in the pod's trace, under the one that its annotation names."""
    keeper.create(_pod(**{names.TRACEPARENT: MINE}), Container("c", "s", "main"))

    ((trace, span),) = kept.told
    assert (trace, span.parent) == (MINE.split("-")[1], MINE.split("-")[2])
    assert (span.kind, span.problem) == (INJECT, "")
    assert span.attributes["partage.outcome"] == "given"
    assert span.attributes["partage.limits"]


def test_what_is_refused_is_told(keeper: Keeper, kept: KeptSpans) -> None:
    """The span has its rule; it is in the trace of the pod's UID where the pod brings no trace."""
    keeper.create(_pod("u1", 900), Container("c1", "s", "main"))
    with pytest.raises(Refused, match="CardFull"):
        keeper.create(_pod("u2", 900), Container("c2", "s", "main"))

    trace, span = kept.told[-1]
    assert (trace, span.parent) == (trace_of("u2", {}).trace, trace_of("u2", {}).scheduling)
    assert span.attributes["partage.rule"] == "CardFull"
    assert span.problem.startswith("pod team/u2, container main")


def test_a_decision_that_came_too_late_is_told(keeper: Keeper, kept: KeptSpans) -> None:
    """It has a rule of its own."""
    keeper.late(_pod(), Container("c", "s", "main"))

    assert kept.told[-1][1].attributes["partage.rule"] == "Late"


def test_containers_without_devices_are_not_told(keeper: Keeper, kept: KeptSpans) -> None:
    """There is no span for one that is left alone, nor for one that is kept from choosing a card."""
    plain = PodSandbox("s", "p", "u3", "team")

    keeper.create(plain, Container("c", "s", "main"))
    keeper.create(plain, Container("c", "s", "main", env=("NVIDIA_VISIBLE_DEVICES=all",)))

    assert kept.told == []


def test_units_belong_to_who_shows_the_mark(keeper: Keeper, kept: KeptSpans) -> None:
    """The word of the mark says whose the units were; each counts once, others' words are nothing."""
    first = keeper.stories.mark("nvidia.com/gpu", 1, 5)
    other = keeper.stories.mark("nvidia.com/gpu", 3, 6)
    env = (f"PARTAGE_DEVICES_GPU={first}", "PARTAGE_DEVICES_X=1", "PARTAGE_DEVICES_Y=" + "f" * 16)

    for name in ("c1", "c2"):
        keeper.create(_pod(), Container(name, "s", "main", env=env))

    (allocate,) = kept.named(ALLOCATE.name)
    assert first != other
    assert (allocate.start, allocate.attributes["partage.units"]) == (5, 1)
    assert allocate.attributes["k8s.container.name"] == "main"
    assert len(kept.named(INJECT.name)) == 2


def test_marks_that_nobody_shows_are_forgotten(kept: KeptSpans) -> None:
    """The agent remembers a bounded number of them, the latest."""
    words = (f"{number:016x}" for number in count(1))
    stories = Stories(kept, "n1", lambda: next(words))
    marks = [stories.mark("r", 1, 1) for _ in range(2000)]

    for number, mark in enumerate((marks[0], marks[-1])):
        env = (f"PARTAGE_DEVICES_R={mark}",)
        stories.injected(_pod(), Container(f"c{number}", "s", "main", env=env), 1, "none")

    assert len(kept.named(ALLOCATE.name)) == 1


def test_without_traces_all_are_marked_alike() -> None:
    """Marks are not random, and the agent remembers none."""
    found = Stories(NO_TRACES, "n1", lambda: pytest.fail("chance was asked"))

    assert found.mark("r", 1, 0) == "1"
    assert found.trace_id(_pod()) == ""

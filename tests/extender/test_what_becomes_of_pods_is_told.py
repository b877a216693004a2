"""The service's decisions as spans: each verb, the parts of a bind, and all of a pod's waiting."""

import asyncio
import json
import logging
from typing import Any

import pytest
from world import REFUSED, UNKNOWN, World, card, device, half, node, pod, run, whole

from fakes.kept_spans import KeptSpans
from partage.extender.bindings import BindLimits
from partage.extender.stories import Stories
from partage.tracing.context import trace_of
from partage.tracing.spans import (
    BIND,
    FILTER,
    LOCK,
    PREEMPT,
    PRIORITIZE,
    READ_BACK,
    SCHEDULE,
    SEND,
    Span,
)
from partage.tracing.tracer import NO_TRACES
from partage.vendors import names
from span_page import SPANS

MINE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SGPU = {
    "metax-tech.com/sgpu": "1",
    "koordinator.sh/gpu.shared": "1",
    "koordinator.sh/gpu-core": "20",
    "koordinator.sh/gpu-memory": "2Gi",
}


def world(kept: KeptSpans, **settings: Any) -> World:
    """A service that tells."""
    return World(stories=Stories(kept), **settings)


def only(kept: KeptSpans, name: str) -> Span:
    """The one span of a kind."""
    (found,) = kept.named(name)
    return found


@run
async def test_a_pod_that_is_placed_at_once_has_four_spans() -> None:
    """Filter, the request within the bind, the bind, and the whole, in one trace."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    await w.place(pod("web", half()))

    trace = trace_of("uid-web", {})
    assert {found for found, _ in kept.told} == {trace.trace}
    schedule, bind = only(kept, SCHEDULE.name), only(kept, BIND.name)
    assert (schedule.id, schedule.parent) == (trace.scheduling, "")
    assert {only(kept, kind.name).parent for kind in (FILTER, BIND)} == {trace.scheduling}
    assert [one.kind for one in bind.children] == [SEND]
    assert only(kept, FILTER.name).start == schedule.start
    assert bind.end <= schedule.end
    assert schedule.attributes["partage.outcome"] == "bound"


@run
async def test_an_authors_trace_goes_on() -> None:
    """kube-scheduler's question contains the annotation, and the service uses it."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    await w.place(pod("web", half(), meta={"annotations": {names.TRACEPARENT: MINE}}))

    assert {found for found, _ in kept.told} == {MINE.split("-")[1]}
    assert only(kept, SCHEDULE.name).parent == MINE.split("-")[2]


@run
async def test_pods_alike_but_for_their_trace_are_read_once() -> None:
    """Pods with different traces still count as equal, and each keeps its own trace."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    other = MINE.replace("0af7", "1af7")
    for name, text in (("a", MINE), ("b", other)):
        w.filter(pod(name, half(), meta={"annotations": {names.TRACEPARENT: text}}))

    translation = w.service.books.cluster_cache.translation
    assert len(translation._known) == 1
    assert [found for found, _ in kept.told] == [MINE.split("-")[1], other.split("-")[1]]


@run
async def test_waiting_is_one_span_with_what_happened() -> None:
    """Refused, woken when room appeared, bound; with the number of refusals."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device("n1", card(0)))
    await w.place(pod("first", whole()))
    second = w.create(pod("second", whole()))
    w.filter(second)
    w.service.pod_gone("uid-first")
    await w.service.tick()
    w.filter(second)
    assert await w.bind("second") == ""

    trace = trace_of("uid-second", {}).trace
    refused = next(s for found, s in kept.told if found == trace and s.kind is FILTER)
    assert refused.attributes["partage.code"] == "InsufficientCards"
    assert refused.attributes["partage.counts"] == ["InsufficientCards=1"]
    assert refused.problem.startswith("InsufficientCards: ")
    schedule = next(s for found, s in kept.told if found == trace and s.kind is SCHEDULE)
    assert [event.name for event in schedule.events] == ["refused", "woken"]
    assert schedule.attributes["partage.refusals"] == 1


@run
async def test_a_pod_that_goes_waiting_is_told_once() -> None:
    """The span ends with the pod."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    w.filter(w.create(pod("big", whole(9))))
    for _ in range(2):
        w.service.pod_gone("uid-big")

    assert only(kept, SCHEDULE.name).attributes["partage.outcome"] == "gone"


@run
async def test_nothing_is_kept_of_a_pod_that_goes_during_its_bind() -> None:
    """The bind's span follows the end of the pod's span, and is the last of it."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    w.filter(w.create(pod("web", half())))
    w.api.gate = asyncio.Event()
    w.api.answers.append(REFUSED)
    bind = asyncio.create_task(w.bind("web"))
    await w.api.arrived.wait()
    w.service.pod_gone("uid-web")
    w.api.gate.set()
    await bind

    assert only(kept, SCHEDULE.name).attributes["partage.outcome"] == "gone"
    assert only(kept, BIND.name).attributes["partage.outcome"] == "refused"
    assert not w.service.stories._known


@run
async def test_events_and_texts_are_bounded() -> None:
    """This holds for any length of the wait and of the texts."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    big = w.create(pod("big", whole(9)))
    for _ in range(100):
        w.filter(big)
    w.service.pod_gone("uid-big")

    schedule = only(kept, SCHEDULE.name)
    assert len(schedule.events) == 32
    assert schedule.attributes["partage.refusals"] == 100
    assert max(len(span.problem) for _, span in kept.told) <= 256


@run
async def test_a_bind_that_fails_says_why_and_the_next_one_succeeds() -> None:
    """The pod's scheduling goes on, and each step belongs to its own bind."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    w.filter(w.create(pod("web", half())))
    w.api.answers.append(REFUSED)
    assert await w.bind("web")
    assert not kept.named(SCHEDULE.name)
    assert await w.bind("web") == ""

    first, second = kept.named(BIND.name)
    assert first.attributes["partage.outcome"] == "refused"
    assert "being deleted" in first.problem
    assert [one.attributes["partage.outcome"] for one in first.children] == ["refused"]
    assert [one.attributes["partage.outcome"] for one in second.children] == ["done"]
    assert only(kept, SCHEDULE.name).attributes["partage.outcome"] == "bound"


@run
async def test_a_bind_that_the_books_refuse_has_its_code() -> None:
    """There is no request then."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    w.create(pod("big", whole(9)))
    assert await w.bind("big")

    bind = only(kept, BIND.name)
    assert (bind.attributes["partage.code"], bind.children) == ("InsufficientCards", ())


@run
async def test_a_binding_that_was_not_answered_is_read_back_in_sight() -> None:
    """The spans have the request, and the later reading of its outcome."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    w.filter(w.create(pod("web", half())))
    w.api.answers.append(UNKNOWN)
    w.api.takes.append(True)
    assert await w.bind("web") == ""

    send, read = only(kept, BIND.name).children
    assert (send.kind, send.attributes["partage.outcome"]) == (SEND, "unknown")
    assert (read.kind, read.attributes["partage.outcome"]) == (READ_BACK, "known")
    w.clock.pass_time(BindLimits().late)


@run
async def test_waiting_for_a_vendors_lock_is_a_part_of_the_bind() -> None:
    """The span has the node, and precedes the request."""
    kept = KeptSpans()
    machine = node()
    machine["status"]["allocatable"]["metax-tech.com/sgpu"] = "32"
    labels = {"node.koordinator.sh/gpu-vendor": "metax", "node.koordinator.sh/gpu-model": "C500"}
    w = await world(kept).start(machine, device("n1", card(0), card(1), **labels))
    w.create(pod("web", SGPU))
    w.api.refusing = 2
    assert await w.bind("web") == ""

    lock, send = only(kept, BIND.name).children
    assert (lock.kind, send.kind) == (LOCK, SEND)
    assert lock.attributes["k8s.node.name"] == "n1"
    assert lock.attributes["partage.outcome"] == "done"


@run
async def test_other_verbs_are_told_with_their_numbers() -> None:
    """Prioritize and preempt."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    web = w.create(pod("web", half()))
    w.service.prioritize(json.dumps({"Pod": web, "NodeNames": ["n1"]}).encode())
    victims = {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}
    w.service.preempt(json.dumps({"Pod": web, "NodeNameToMetaVictims": victims}).encode())

    assert only(kept, PRIORITIZE.name).attributes["partage.nodes.asked"] == 1
    assert only(kept, PREEMPT.name).attributes["partage.nodes.asked"] == 1


@run
async def test_pods_without_devices_are_not_told() -> None:
    """This holds for every verb."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    plain = w.create(pod("plain"))
    w.filter(plain)
    assert await w.bind("plain") == ""

    assert kept.told == []


@run
async def test_every_span_has_what_its_kind_says() -> None:
    """It also names its pod."""
    kept = KeptSpans()
    w = await world(kept).start(node(), device())
    await w.place(pod("web", half()))
    who = {"k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid"}

    spans = [inner for _, span in kept.told for inner in (span, *span.children)]
    assert spans
    for span in spans:
        assert who <= {*span.attributes} <= who | SPANS[span.kind.name][1]


def test_the_log_has_the_trace_of_a_decision(caplog: pytest.LogCaptureFixture) -> None:
    """It is beside the number of the decision, if one is recorded."""
    caplog.set_level(logging.INFO)

    @run
    async def story() -> None:
        w = await world(KeptSpans()).start(node(), device())
        await w.place(pod("web", half()))

    story()

    (line,) = [one for one in caplog.records if "goes to node n1" in one.getMessage()]
    assert line.__dict__["trace"] == trace_of("uid-web", {}).trace


@run
async def test_without_traces_nothing_is_kept() -> None:
    """The service keeps no story of a pod, and reads no time for it."""
    found = Stories(NO_TRACES)
    w = await World(stories=found).start(node(), device())
    await w.place(pod("web", half()))

    assert found.now() == 0
    assert not found._known

"""Events: the book's arithmetic, then what reaches the server."""

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import client_of, eventually, started, stopped

from fakes.clock import SteppedClock
from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.apiserver.naming import subdomain
from partage.kube.events import EventRecorder
from partage.kube.recorder import EventBook, EventSettings, Regarding, Topic
from partage.kube.resources import EVENTS

POD = Regarding("v1", "Pod", "p", "team", "uid-p")
WAITING = Topic(POD, "Warning", "Waiting")
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def write(book: EventBook, now: float) -> list[tuple[str, int]]:
    """Write what is due; message and count of each."""
    records, _ = book.due(now)
    for record in records:
        book.written(record, "name", record.message, record.count, now)
    return [(record.message, record.count) for record in records]


def book_of(**settings: Any) -> EventBook:
    """An empty book."""
    return EventBook(EventSettings(**settings))


def test_the_first_is_written_at_once_and_repetitions_are_counted() -> None:
    """After the quiet time the count is brought up to date."""
    book = book_of(quiet=60)
    for now in range(10):
        book.note(WAITING, "no room", now, MOMENT)
        assert write(book, now) == ([("no room", 1)] if now == 0 else [])

    assert book.due(30.0) == ([], 60.0)
    assert write(book, 60.0) == [("no room", 10)]
    assert book.due(61.0) == ([], None)


def test_a_new_message_replaces_the_old_one_at_once() -> None:
    """Same topic, same event, newest words."""
    book = book_of()
    book.note(WAITING, "2 insufficient", 0, MOMENT)
    write(book, 0)
    book.note(WAITING, "1 insufficient", 1, MOMENT)

    assert write(book, 1) == [("1 insufficient", 2)]
    assert len(book._records) == 1


def test_after_a_long_silence_it_is_another_event() -> None:
    """It has a count of its own."""
    book = book_of(window=600)
    book.note(WAITING, "x", 0, MOMENT)
    write(book, 0)
    book.note(WAITING, "x", 601, MOMENT)

    (record,), _ = book.due(601)
    assert (record.count, record.name) == (1, "")


def test_an_object_in_trouble_has_a_budget() -> None:
    """Changing words every second, it may write `burst` times, then once a refill; never stale."""
    book = book_of(burst=3, refill=30)
    writes = {}
    for now in range(100):
        book.note(WAITING, f"message {now}", now, MOMENT)
        for message, _ in write(book, now):
            writes[now] = message

    assert list(writes) == [0, 1, 2, 30, 60, 90]
    assert writes[60] == "message 60"


def test_one_object_does_not_spend_anothers_budget() -> None:
    """Each has its own."""
    book = book_of(burst=1)
    other = WAITING._replace(regarding=POD._replace(name="q"))
    book.note(WAITING, "a", 0, MOMENT)
    book.note(WAITING, "b", 0, MOMENT)
    book.note(other, "c", 0, MOMENT)

    assert write(book, 0) == [("b", 2), ("c", 1)]


def test_memory_is_bounded() -> None:
    """The topic silent longest goes first; so do budgets that are full again."""
    book = book_of(topics=3)
    for index in range(10):
        book.note(WAITING._replace(regarding=POD._replace(name=f"p{index}")), "x", index, MOMENT)
        write(book, index)
    write(book, 1e6)

    assert len(book._records) == 3
    assert len(book._budgets) <= 3


def test_namespaces_have_turns_and_who_has_most_to_say_loses_some() -> None:
    """The oldest unwritten events of a namespace with many are dropped, and none of another's."""
    book = book_of(waiting=5, lot=2)
    for index in range(10):
        book.note(WAITING._replace(regarding=POD._replace(name=f"p{index}")), "x", 0, MOMENT)
    book.note(
        WAITING._replace(regarding=POD._replace(name="q", namespace="other")), "x", 0, MOMENT
    )
    handed: list[str] = []
    while (found := book.due(0))[0]:
        assert len(found[0]) <= 2
        for record in found[0]:
            handed.append(record.topic.regarding.name)
            book.written(record, "name", record.message, record.count, 0)

    assert handed == ["p6", "q", "p7", "p8", "p9"]
    assert book.dropped == 6
    assert book.due(0) == ([], None)


def test_long_messages_are_cut_to_what_the_api_takes() -> None:
    """1024 characters."""
    book = book_of()
    book.note(WAITING, "x" * 5000, 0, MOMENT)

    assert write(book, 0) == [("x" * 1023 + "…", 1)]


@given(
    notes=st.lists(st.tuples(st.floats(0, 100), st.sampled_from("ab"), st.sampled_from("xy"))),
    burst=st.integers(1, 3),
)
def test_what_is_written_last_is_what_happened_last(
    notes: list[tuple[float, str, str]], burst: int
) -> None:
    """Whatever is held back, in the end the store agrees, within the budget."""
    book = book_of(burst=burst, refill=10, quiet=5, window=1e9)
    now, writes = 0.0, 0
    store: dict[str, tuple[str, int]] = {}
    expected: dict[str, tuple[str, int]] = {}
    for pause, name, message in notes:
        now += pause / 10
        topic = WAITING._replace(regarding=POD._replace(name=name))
        book.note(topic, message, now, MOMENT)
        expected[name] = (message, expected.get(name, ("", 0))[1] + 1)
        for record in book.due(now)[0]:
            store[record.topic.regarding.name] = (record.message, record.count)
            book.written(record, "n", record.message, record.count, now)
            writes += 1
    assert writes <= (burst + now / 10 + 1) * 2
    while (following := book.due(now)[1]) is not None:
        now = following + 1e-6
        for record in book.due(now)[0]:
            store[record.topic.regarding.name] = (record.message, record.count)
            book.written(record, "n", record.message, record.count, now)

    assert store == expected


@contextlib.asynccontextmanager
async def recording(
    server: KubeServer, **options: Any
) -> AsyncIterator[tuple[EventRecorder, SteppedClock]]:
    """A recorder at work."""
    clock = SteppedClock()
    async with client_of(server, clock=clock, attempts=1) as client:
        recorder = EventRecorder(client, component="tester", instance="tester-0", **options)
        task = started(recorder.run())
        try:
            yield recorder, clock
        finally:
            await stopped(task)


def stored(server: KubeServer, namespace: str = "team") -> list[dict[str, Any]]:
    """The events in a namespace."""
    return list(server.store.list(EVENTS.path(), namespace))


async def test_an_event_looks_as_describe_expects() -> None:
    """Core v1, with everything a person and a tool look for."""
    async with KubeServer() as server, recording(server) as (recorder, _clock):
        recorder.normal(POD, "Bound", "on node-1")
        await eventually(lambda: stored(server))

        (event,) = stored(server)
        head = event["metadata"]
        assert head["name"].startswith("p.")
        assert head["namespace"] == "team"
        assert {key: value for key, value in event.items() if key != "metadata"} == {
            "apiVersion": "v1",
            "kind": "Event",
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "p",
                "namespace": "team",
                "uid": "uid-p",
            },
            "type": "Normal",
            "reason": "Bound",
            "message": "on node-1",
            "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "source": {"component": "tester"},
            "reportingComponent": "tester",
            "reportingInstance": "tester-0",
        }


async def test_repetitions_update_the_same_event() -> None:
    """Count, time and message."""
    async with KubeServer() as server, recording(server) as (recorder, clock):
        recorder.warning(POD, "Waiting", "2 nodes full")
        await eventually(lambda: stored(server))
        await clock.advance(5)
        recorder.warning(POD, "Waiting", "1 node full")
        await eventually(lambda: stored(server)[0]["count"] == 2)
        recorder.warning(POD, "Waiting", "1 node full")
        await eventually(lambda: clock.sleepers)
        await clock.advance(61)
        await eventually(lambda: stored(server)[0]["count"] == 3)

        (event,) = stored(server)
        assert event["message"] == "1 node full"
        assert event["lastTimestamp"] == "2026-01-01T00:00:05Z"


async def test_an_event_that_expired_is_written_anew() -> None:
    """The store forgets events after an hour."""
    async with KubeServer() as server, recording(server) as (recorder, _clock):
        recorder.warning(POD, "Waiting", "a")
        await eventually(lambda: stored(server))
        old = stored(server)[0]["metadata"]["name"]
        server.store.delete(EVENTS.path(), "team", old)
        recorder.warning(POD, "Waiting", "b")
        await eventually(lambda: stored(server))

        assert stored(server)[0]["message"] == "b"
        assert stored(server)[0]["metadata"]["name"] != old


async def test_a_taken_name_is_replaced() -> None:
    """Two processes may report on one object in the same moment."""
    async with KubeServer() as server, recording(server) as (recorder, _clock):
        server.fail(Fault(method="POST", status=409, reason="AlreadyExists"))
        recorder.warning(POD, "Waiting", "a")
        await eventually(lambda: stored(server))

        names = [request.body["metadata"]["name"] for request in server.requests]
        assert len(set(names)) == 2


@pytest.mark.parametrize("name", ["n" * 250, f"{'n' * 199}-{'n' * 50}", f"{'n' * 199}.{'n' * 50}"])
async def test_objects_without_a_namespace_report_to_default(name: str) -> None:
    """The API demands it; the event's name is one too."""
    async with KubeServer() as server, recording(server) as (recorder, _clock):
        recorder.warning(Regarding("v1", "Node", name), "Sick", "x")
        await eventually(lambda: stored(server, "default"))

        (event,) = stored(server, "default")
        assert "namespace" not in event["involvedObject"]
        assert not subdomain(event["metadata"]["name"])


@pytest.mark.parametrize(
    "fault", [Fault(status=500), Fault(status=403), Fault(drop=True)], ids=str
)
async def test_a_failed_write_is_told_and_not_pressed(fault: Fault) -> None:
    """The next event of the topic is written with the full count."""
    errors: list[Exception] = []
    async with (
        KubeServer() as server,
        recording(server, failed=errors.append) as (recorder, _clock),
    ):
        server.fail(fault)
        recorder.warning(POD, "Waiting", "a")
        await eventually(lambda: errors)
        assert not stored(server)
        recorder.warning(POD, "Waiting", "b")
        await eventually(lambda: stored(server))

        assert stored(server)[0]["count"] == 2

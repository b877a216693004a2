"""`watch_once` and `follow` against a server whose watches are cut, outdated, garbled and refused.

The informer's own file covers delivery; this one covers which changes arrive, and when.
"""

import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from kube_builders import (
    PODS_PATH,
    QUICK,
    Pod,
    client_of,
    eventually,
    put,
    remove,
    started,
    stopped,
)

from fakes.clock import InstantClock
from fakes.kube_server import KubeServer
from fakes.wire import EXPIRED, Fault
from partage.kube.client import Client
from partage.kube.errors import (
    ApiError,
    Expired,
    Forbidden,
    ProtocolError,
    RequestError,
    ServerError,
    TransportError,
)
from partage.kube.frames import Added
from partage.kube.mirror import Change, Gone, Interrupted, Mirror, Seen, Synced, WentBack
from partage.kube.resources import PODS, Scope
from partage.kube.retry import Backoff
from partage.kube.watch import EndedEarly, WatchSettings, follow, watch_once

ALL = Scope(PODS)


class Listener:
    """Follows in the background and keeps the changes."""

    def __init__(self, client: Client, settings: WatchSettings = QUICK) -> None:
        self.told: list[Change[Pod]] = []
        self.mirror: Mirror[Pod] = Mirror()
        self._changes = follow(client, ALL, into=Pod, mirror=self.mirror, settings=settings)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with contextlib.aclosing(self._changes) as batches:
            async for batch in batches:
                self.told += batch

    def names(self, kind: type[Seen[Pod]] | type[Gone[Pod]]) -> list[str]:
        """The objects with a change of this kind, in order."""
        return [c.object.metadata.name for c in self.told if isinstance(c, kind)]

    def count(self, kind: type[Synced] | type[Interrupted]) -> int:
        """How many such markers."""
        return sum(isinstance(change, kind) for change in self.told)


@contextlib.asynccontextmanager
async def listening(
    server: KubeServer, settings: WatchSettings = QUICK, clock: InstantClock | None = None
) -> AsyncIterator[Listener]:
    """A listener at work, that no error has ended."""
    async with client_of(server, clock=clock) as client:
        listener = Listener(client, settings)
        task = started(listener.run())
        try:
            yield listener
            assert not task.done(), task
        finally:
            await stopped(task)


async def more_requests(server: KubeServer) -> None:
    """Wait for the next request."""
    before = len(server.requests)
    await eventually(lambda: len(server.requests) > before)


def watches_begun(server: KubeServer) -> int:
    """How many watches were asked for, those that failed included."""
    return sum("watch" in seen.query for seen in server.requests) + len(server.struck)


async def test_the_list_is_told_then_what_changes() -> None:
    """New, changed and deleted, without a second list."""
    async with KubeServer() as server:
        put(server, "a")
        async with listening(server) as listener:
            await eventually(lambda: server.watches)
            put(server, "a", priority=1)
            put(server, "b")
            remove(server, "a")
            await eventually(lambda: listener.names(Gone))

            assert listener.names(Seen) == ["a", "a", "b"]
            assert listener.names(Gone) == ["a"]
            assert listener.count(Synced) == 1


async def test_a_cut_watch_goes_on_where_it_was() -> None:
    """Nothing is listed again; what happened meanwhile comes from the server's history."""
    async with KubeServer() as server:
        put(server, "a")
        async with listening(server) as listener:
            await eventually(lambda: server.watches)
            put(server, "b")
            await eventually(lambda: listener.names(Seen) == ["a", "b"])
            server.cut_watches()
            put(server, "c")
            await eventually(lambda: "c" in listener.names(Seen))

            assert listener.names(Seen) == ["a", "b", "c"]
            lists = [seen.query for seen in server.requests if "watch" not in seen.query]
            assert [query["limit"] for query in lists] == ["1000", "1"]


async def test_a_store_that_was_restored_is_listed_at_once() -> None:
    """A watch from a version that it has not reached again would hear nothing until it has."""
    async with KubeServer() as server:
        put(server, "kept")
        put(server, "changed")
        put(server, "ended")
        async with listening(server) as listener:
            await eventually(lambda: server.watches)
            backup = server.store.backup()
            put(server, "changed", priority=1)
            remove(server, "ended")
            put(server, "new")
            await eventually(lambda: listener.names(Gone))
            listener.told.clear()
            server.store.restored(backup)
            server.cut_watches()
            await eventually(lambda: listener.count(Synced))

            told = [type(change) for change in listener.told]
            assert told.index(WentBack) < told.index(Gone)
            assert listener.names(Gone) == ["changed", "new"]
            assert sorted(listener.names(Seen)) == ["changed", "ended"]
            assert listener.mirror.resource_version == str(backup[0])


@pytest.mark.parametrize("in_stream", [False, True], ids=["by-status", "in-the-stream"])
async def test_a_gap_is_bridged_by_a_list(in_stream: bool) -> None:  # noqa: FBT001
    """After 410 an object that vanished unseen is reported as gone, with its last state."""
    async with KubeServer() as server:
        put(server, "kept")
        lost = put(server, "lost", nodeName="n1")
        async with listening(server) as listener:
            await eventually(lambda: server.watches)
            server.fail(Fault(watch=True, delay=0.02, body=EXPIRED if in_stream else None))
            server.cut_watches()
            remove(server, "lost")
            put(server, "new")
            server.store.compact()
            put(server, "newer")
            await eventually(lambda: listener.count(Synced) == 2)

            assert Gone(lost) in listener.told
            assert listener.names(Seen) == ["kept", "lost", "new", "newer"]


async def test_an_expiry_told_within_a_watch_lists_afresh() -> None:
    """The first expiry causes a new list at once."""
    async with KubeServer() as server:
        put(server, "a")
        async with listening(server) as listener:
            await eventually(lambda: server.watches)
            await server.expire_watches()
            await eventually(lambda: listener.count(Synced) == 2)

            assert listener.count(Interrupted) == 0


async def test_a_server_that_always_expires_is_not_stormed() -> None:
    """List, 410, list, 410: from the second on with growing waits."""
    clock = InstantClock()
    async with KubeServer() as server:
        server.fail(Fault(watch=True, status=410, reason="Expired", times=4))
        async with listening(server, clock=clock) as listener:
            await eventually(lambda: server.watches)

            assert listener.count(Synced) == 5
            assert clock.slept == pytest.approx([0.4, 0.8, 1.6])


CHANGE = b'{"type":"ADDED","object":{"metadata":{"name":"z","uid":"z","resourceVersion":"999"}}}\n'
BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"999"}}}\n'
GONE = b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n'
NO_CODE = b'{"type":"ERROR","object":{"reason":"Gone"}}\n'


@pytest.mark.parametrize(
    "body",
    [CHANGE + GONE, BOOKMARK + GONE, CHANGE + NO_CODE, CHANGE + b"x\n"],
    ids=["change", "bookmark", "no-code", "garbage"],
)
async def test_a_server_that_breaks_each_watch_after_an_event_is_not_stormed(body: bytes) -> None:
    """List, event, 410, list, event, 410: an event is no success."""
    clock = InstantClock()
    async with KubeServer() as server:
        server.fail(Fault(watch=True, body=body, times=5))
        async with listening(server, clock=clock) as listener:
            await eventually(lambda: server.watches)

            assert listener.count(Synced) == 6
            assert clock.slept[-4:] == pytest.approx([0.4, 0.8, 1.6, 3.2])


async def test_a_watch_that_is_cut_after_each_event_goes_on_soon() -> None:
    """It brings what changes; a full second is the longest wait, and there is one."""
    clock = InstantClock()
    async with KubeServer() as server:
        server.fail(Fault(watch=True, body=CHANGE, times=6))
        async with listening(server, clock=clock):
            await eventually(lambda: server.watches)

            assert clock.slept == pytest.approx([0.4, 0.8, 1.0, 1.0, 1.0])


async def test_a_server_that_refuses_a_watch_for_ever_is_asked_for_lists() -> None:
    """It may have compacted the version, and say so in a way of its own."""
    clock = InstantClock()
    broken = b'{"type":"ERROR","object":{"code":500,"message":"required revision has been compacted"}}\n'
    async with KubeServer() as server:
        put(server, "a")
        server.fail(Fault(watch=True, body=broken, times=7))
        async with listening(server, clock=clock) as listener:
            await eventually(lambda: server.watches)

            assert listener.count(Synced) == 4


async def test_a_server_that_is_busy_is_asked_for_no_lists() -> None:
    """They would cost it more than watches."""
    clock = InstantClock()
    async with KubeServer() as server:
        server.fail(Fault(watch=True, status=503, times=7))
        async with listening(server, clock=clock) as listener:
            await eventually(lambda: server.watches)

            assert listener.count(Synced) == 1


async def test_bookmarks_carry_a_quiet_watch_over_a_compaction() -> None:
    """Without one, the version would be too old."""
    async with KubeServer() as server:
        put(server, "a")
        async with listening(server) as listener:
            await eventually(lambda: server.watches)
            other = server.store.create("/api/v1/secrets", "default", {"metadata": {"name": "s"}})
            version = other["metadata"]["resourceVersion"]
            await server.bookmark()
            server.store.compact()
            await eventually(lambda: listener.mirror.resource_version == version)
            server.cut_watches()
            put(server, "b")
            await eventually(lambda: "b" in listener.names(Seen))

            assert listener.count(Synced) == 1
            assert server.requests[-1].query["resourceVersion"] == version


async def test_a_garbled_stream_is_left_and_listed_afresh() -> None:
    """What follows it cannot be trusted, and the same version may bring the same again."""
    async with KubeServer() as server:
        put(server, "a")
        async with listening(server) as listener:
            await eventually(lambda: server.watches)
            await server.send_raw(b'{"type":"ADDED","object":{"metadata":{"na\n')
            await eventually(lambda: listener.count(Synced) == 2)

            (interruption,) = [c for c in listener.told if isinstance(c, Interrupted)]
            assert isinstance(interruption.error, ProtocolError)
            assert interruption.delay == pytest.approx(0.2)


@pytest.mark.parametrize("later", ["event", "deletion", "bookmark"])
async def test_a_version_beyond_all_hides_nothing_for_long(later: str) -> None:
    """A proxy made it up: what comes next, if only a bookmark, shows that, and a list tells the truth."""
    async with KubeServer() as server:
        put(server, "a")
        async with listening(server) as listener:
            await eventually(lambda: server.watches)
            stored = server.store.get(PODS_PATH, "default", "a")
            false = {**stored, "metadata": {**stored["metadata"], "resourceVersion": "9" * 30}}
            event = {"type": "MODIFIED", "object": false}
            await server.send_raw(json.dumps(event).encode() + b"\n")
            await eventually(lambda: listener.names(Seen) == ["a", "a"])
            if later == "event":
                put(server, "a", node="n1")
            elif later == "deletion":
                server.store.delete(PODS_PATH, "default", "a")
            else:
                await server.bookmark()
            await eventually(lambda: listener.count(Synced) == 2)

            (interruption,) = [c for c in listener.told if isinstance(c, Interrupted)]
            assert isinstance(interruption.error, ProtocolError)
            assert "a watch does not go back" in str(interruption.error)
            if later == "deletion":
                assert not listener.mirror.objects
            else:
                (held,) = listener.mirror.objects.values()
                version = server.store.get(PODS_PATH, "default", "a")["metadata"]
                assert held.metadata.resource_version == version["resourceVersion"]


@pytest.mark.parametrize("missing", ["name", "uid"])
async def test_an_event_about_no_object_ends_none(missing: str) -> None:
    """Without a name it took the place of another of its UID, without a UID that of another of its name."""
    async with KubeServer() as server:
        put(server, "a")
        metadata = {"name": "a", "namespace": "default", "uid": "uid-1", "resourceVersion": "900"}
        body = {"metadata": {**metadata, missing: ""}}
        async with listening(server) as listener:
            await eventually(lambda: server.watches)
            await server.send_raw(
                json.dumps({"type": "MODIFIED", "object": body}).encode() + b"\n"
            )
            await eventually(lambda: listener.count(Synced) == 2)

            assert listener.names(Gone) == []
            assert listener.names(Seen) == ["a"]
            (interruption,) = [one for one in listener.told if isinstance(one, Interrupted)]
            assert isinstance(interruption.error, ProtocolError)


async def test_a_half_sent_event_is_not_lost() -> None:
    """The connection breaks within a line: the event comes again from the history."""
    async with KubeServer() as server, listening(server) as listener:
        await eventually(lambda: server.watches)
        await server.send_raw(b'{"type":"ADDED","object":{"metad')
        server.cut_watches()
        put(server, "a")
        await eventually(lambda: listener.names(Seen) == ["a"])


REFUSALS = [
    pytest.param(Fault(status=403, times=3), Forbidden, id="403"),
    pytest.param(Fault(status=404, times=3), ApiError, id="404"),
    pytest.param(Fault(status=500, times=3, watch=True), ServerError, id="500-on-watch"),
    pytest.param(Fault(drop=True, times=3, watch=True), TransportError, id="dropped-watch"),
]


@pytest.mark.parametrize(("fault", "kind"), REFUSALS)
async def test_no_refusal_ends_it(fault: Fault, kind: type[RequestError]) -> None:
    """Each is reported; then it goes on, since roles and definitions may come later."""
    clock = InstantClock()
    async with KubeServer() as server:
        put(server, "a")
        server.fail(fault)
        async with listening(server, clock=clock) as listener:
            await eventually(lambda: server.watches)

            errors = [c.error for c in listener.told if isinstance(c, Interrupted)]
            assert len(errors) == 3
            assert all(isinstance(error, kind) for error in errors)
            assert clock.slept == pytest.approx([0.2, 0.4, 0.8])


async def test_a_list_that_fails_late_is_no_watch_that_lasted() -> None:
    """A server under load refuses lists after many seconds; asked again without growing waits, it would not recover."""
    async with KubeServer() as server:
        server.fail(Fault(status=500, times=15))
        patient = Backoff(base=4.0, factor=1.0, jitter=0.0)
        async with client_of(server, backoff=patient) as client:
            listener = Listener(client)
            task = started(listener.run())
            await eventually(lambda: server.watches)
            await stopped(task)

    delays = [c.delay for c in listener.told if isinstance(c, Interrupted)]
    assert delays == pytest.approx([0.2, 0.4, 0.8])


async def test_a_watch_that_is_refused_late_is_none_that_lasted() -> None:
    """Otherwise a server that can never watch from a version, and says so late, is never asked for a list."""
    clock = InstantClock()

    def late(request: web.Request) -> Fault | None:
        if request.query.get("watch") != "true" or len(clock.slept) >= 7:
            return None
        clock.pass_time(11.0)
        return Fault(status=500)

    async with KubeServer() as server:
        server.chance = late
        async with listening(server, clock=clock) as listener:
            await eventually(lambda: server.watches)

            assert listener.count(Synced) == 4
            assert clock.slept[:3] == pytest.approx([0.2, 0.4, 0.8])


async def test_a_server_that_asks_for_patience_gets_it() -> None:
    """Retry-After is honoured on watches too."""
    clock = InstantClock()
    async with KubeServer() as server:
        server.fail(Fault(watch=True, status=429, retry_after="17"))
        async with listening(server, clock=clock):
            await eventually(lambda: server.watches)

            assert clock.slept == [17.0]


@pytest.mark.parametrize(
    "asked", ["86400", "9" * 400, "Fri, 01 Jan 2027 00:00:00 GMT"], ids=["a-day", "ever", "a-year"]
)
async def test_patience_has_an_end(asked: str) -> None:
    """Otherwise a proxy's nonsense, or another clock, would make the followed objects old."""
    clock = InstantClock()
    async with KubeServer() as server:
        server.fail(Fault(watch=True, status=429, retry_after=asked))
        async with listening(server, clock=clock):
            await eventually(lambda: server.watches)

            assert clock.slept == [60.0]


async def test_watches_that_end_at_once_do_not_spin() -> None:
    """The second in a row is a failure, with a wait."""
    clock = InstantClock()
    async with KubeServer() as server:
        server.fail(Fault(watch=True, body=b"", times=3))
        async with listening(server, clock=clock) as listener:
            await eventually(lambda: server.watches)

            errors = [c.error for c in listener.told if isinstance(c, Interrupted)]
            assert [type(error) for error in errors] == [EndedEarly, EndedEarly]
            assert clock.slept == pytest.approx([0.4, 0.8])


async def test_a_watch_that_ends_in_time_is_no_failure() -> None:
    """The server closes after the time asked for; the client comes back without a word."""
    clock = InstantClock()
    async with KubeServer() as server:
        server.fail(Fault(watch=True, body=b"", times=3, delay=0.01))
        async with listening(server, clock=clock) as listener:
            for begun in (1, 2, 3):
                await eventually(lambda: watches_begun(server) >= begun)  # noqa: B023 # at once
                clock.pass_time(300)
            await eventually(lambda: server.watches)

            assert listener.count(Interrupted) == 0
            assert listener.count(Synced) == 1


async def test_a_silent_connection_counts_as_lost() -> None:
    """A half-open connection is given up and taken up from the last version."""
    async with KubeServer() as server:
        settings = WatchSettings(idle=0.03, backoff=Backoff(base=0.2, jitter=0.0))
        async with listening(server, settings) as listener:
            await eventually(lambda: listener.count(Interrupted) >= 1)
            put(server, "a")
            await eventually(lambda: listener.names(Seen) == ["a"])

            assert listener.count(Synced) == 1


async def test_a_watch_asks_for_bookmarks_and_an_end() -> None:
    """The end is by chance between one and two durations, so that clients do not return in step."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        scope = Scope(PODS, "default", fields="spec.nodeName=n1")
        events = watch_once(client, scope, into=Pod, resource_version="1", settings=QUICK)
        put(server, "b", nodeName="n1")
        async with contextlib.aclosing(events):
            assert await anext(events) == [], "accepted"
            (added,) = await anext(events)

        assert isinstance(added, Added)
        assert added.object.metadata.name == "b"
        assert server.requests[0].query == {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": "1",
            "timeoutSeconds": "60",
            "fieldSelector": "spec.nodeName=n1",
        }


async def test_an_error_in_the_stream_comes_after_its_events() -> None:
    """What came before it counts."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        line = b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"9"}}}\n'
        failure = b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"old"}}\n'
        server.fail(Fault(watch=True, body=line + failure))
        events = watch_once(client, ALL, into=Pod, resource_version="1")

        assert await anext(events) == [], "accepted"
        (added,) = await anext(events)
        with pytest.raises(Expired, match="410 Expired: old"):
            await anext(events)

        assert isinstance(added, Added)


async def test_cancelling_closes_the_connection() -> None:
    """No watch is left behind on the server."""
    async with KubeServer() as server:
        async with listening(server):
            await eventually(lambda: server.watches)
        await server.send_raw(b"\n" * 10)
        put(server, "a")
        await eventually(lambda: not server.watches)

        assert len(list(server.store.list(PODS_PATH, None))) == 1

"""Delivery: order for each object, concurrency between objects, bounds, faults and endings."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from fakes.clock import SteppedClock
from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.kube.dispatch import Dispatcher
from partage.kube.informer import Informer, InformerSettings
from partage.kube.mirror import Change, Gone, Interrupted, Odd, Seen, Synced
from partage.kube.objects import Key
from partage.kube.resources import PODS, Scope

ALL = Scope(PODS)
Told = Seen[Pod] | Gone[Pod]
SETTINGS = InformerSettings(watch=QUICK)


@contextlib.asynccontextmanager
async def informed(
    server: KubeServer, *, clock: SteppedClock | None = None, **options: Any
) -> AsyncIterator[Informer[Pod]]:
    """A running informer that has synced."""
    options.setdefault("settings", SETTINGS)
    async with client_of(server, clock=clock) as client:
        informer = Informer(client, ALL, into=Pod, **options)
        task = started(informer.run())
        try:
            await asyncio.wait_for(informer.synced.wait(), 240)
            await eventually(lambda: server.watches)
            yield informer
        finally:
            await stopped(task)


async def test_it_mirrors_the_scope() -> None:
    """Objects by key, at the newest version heard of."""
    async with KubeServer() as server:
        put(server, "a")
        async with informed(server) as informer:
            put(server, "b")
            remove(server, "a")
            await eventually(lambda: Key("default", "a") not in informer.objects)

            assert list(informer.objects) == [Key("default", "b")]
            assert informer.resource_version == str(server.store.version)


async def test_an_observer_hears_everything_in_the_order_of_the_stream() -> None:
    """Markers and odd objects included, and finds the mirror already changed."""
    heard: list[Change[Pod]] = []
    async with KubeServer() as server:
        put(server, "a")
        async with informed(server, observer=heard.append):
            put(server, "b")
            server.store.create(
                PODS_PATH, "default", {"metadata": {"name": "odd"}, "spec": {"priority": []}}
            )
            remove(server, "a")
            await eventually(lambda: any(isinstance(change, Gone) for change in heard))

    assert [type(change) for change in heard] == [Seen, Synced, Seen, Odd, Gone]


async def test_each_object_is_handled_in_order_while_others_go_on() -> None:
    """A slow handler holds up its own object only."""
    order: list[tuple[str, int]] = []
    release = asyncio.Event()

    async def handle(change: Told) -> None:
        if change.object.metadata.name == "slow" and change.object.spec.priority == 0:
            await release.wait()
        order.append((change.object.metadata.name, change.object.spec.priority))

    async with KubeServer() as server, informed(server, handler=handle):
        for priority in range(3):
            put(server, "slow", priority=priority)
            put(server, "fast", priority=priority)
        await eventually(lambda: len(order) == 3)

        assert order == [("fast", 0), ("fast", 1), ("fast", 2)]
        release.set()
        await eventually(lambda: len(order) == 6)
        assert order[3:] == [("slow", 0), ("slow", 1), ("slow", 2)]


async def test_workers_are_named_and_live_only_while_there_is_work() -> None:
    """A thousand quiet objects cost no task."""
    names: list[str] = []

    async def handle(_change: Told) -> None:
        task = asyncio.current_task()
        names.append(task.get_name() if task else "")

    async with KubeServer() as server:
        for index in range(20):
            put(server, f"p{index}")
        async with informed(server, handler=handle):
            await eventually(lambda: len(names) == 20)
            await asyncio.sleep(0)

            left = {task.get_name() for task in asyncio.all_tasks()}
            assert not any(name.startswith("informer:pods:Key") for name in left)
            assert "informer:pods:listen" in left
    assert names[0].startswith("informer:pods:Key(")


async def test_a_stuck_handler_pushes_back_to_the_server() -> None:
    """Never more in memory than the bound; nothing is lost once it goes on."""
    release = asyncio.Event()
    handled: list[str] = []

    async def handle(change: Told) -> None:
        await release.wait()
        handled.append(change.object.metadata.name)

    settings = InformerSettings(watch=QUICK, pending=3)
    async with KubeServer() as server, informed(server, handler=handle, settings=settings):
        for index in range(30):
            put(server, f"p{index}")
        await asyncio.sleep(0.02)
        workers = [t for t in asyncio.all_tasks() if t.get_name().startswith("informer:pods:Key")]
        assert len(workers) == 3
        release.set()
        await eventually(lambda: len(handled) == 30)

    assert handled == [f"p{index}" for index in range(30)]


async def test_a_failing_handler_is_told_and_isolated() -> None:
    """The object's next change is handled all the same."""
    failures: list[str] = []
    handled: list[int] = []

    async def handle(change: Told) -> None:
        if change.object.spec.priority == 0:
            raise LookupError("boom")
        handled.append(change.object.spec.priority)

    def failed(change: Told, error: Exception) -> None:
        failures.append(f"{change.object.metadata.name}: {error}")

    async with KubeServer() as server, informed(server, handler=handle, failed=failed):
        put(server, "a")
        put(server, "a", priority=1)
        await eventually(lambda: handled)

    assert (failures, handled) == (["a: boom"], [1])


async def test_without_anyone_to_tell_a_failure_ends_it() -> None:
    """Errors are never dropped in silence."""

    async def handle(_change: Told) -> None:
        raise LookupError("boom")

    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        informer = Informer(client, ALL, into=Pod, handler=handle, settings=SETTINGS)

        with pytest.raises(ExceptionGroup) as caught:
            await informer.run()

        assert caught.group_contains(LookupError, match="boom")


async def test_an_observer_that_fails_ends_it() -> None:
    """Books that may be wrong are worse than none."""

    def observe(_change: Change[Pod]) -> None:
        raise LookupError("boom")

    async with KubeServer() as server, client_of(server) as client:
        informer = Informer(client, ALL, into=Pod, observer=observe, settings=SETTINGS)

        with pytest.raises(ExceptionGroup) as caught:
            await informer.run()

        assert caught.group_contains(LookupError, match="boom")


async def test_stopping_lets_handlers_finish() -> None:
    """What was handed over is handled; nothing is left behind."""
    release = asyncio.Event()
    handled: list[str] = []

    async def handle(change: Told) -> None:
        await release.wait()
        handled.append(change.object.metadata.name)

    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        put(server, "b")
        informer = Informer(client, ALL, into=Pod, handler=handle, settings=SETTINGS)
        task = started(informer.run())
        await eventually(lambda: server.watches)
        informer.stop()
        await asyncio.sleep(0.005)

        assert not task.done()
        release.set()
        await task

    assert sorted(handled) == ["a", "b"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_ends_handlers_at_work() -> None:
    """And waits for their end."""
    ended = asyncio.Event()

    async def handle(_change: Told) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        informer = Informer(client, ALL, into=Pod, handler=handle, settings=SETTINGS)
        task = started(informer.run())
        await eventually(lambda: server.watches)

        await stopped(task)

    assert ended.is_set()


async def test_an_interruption_shows_until_it_is_over() -> None:
    """For readiness and for people."""
    heard: list[Change[Pod]] = []
    clock = SteppedClock()
    async with (
        KubeServer() as server,
        informed(server, clock=clock, observer=heard.append) as informer,
    ):
        server.fail(Fault(watch=True, status=500))
        server.cut_watches()
        await eventually(lambda: informer.interruption)
        assert isinstance(heard[-1], Interrupted)

        await clock.advance(1.0)
        await eventually(lambda: server.watches)
        put(server, "a")
        await eventually(lambda: informer.objects)

        assert informer.interruption is None


async def test_a_resync_tells_every_object_again() -> None:
    """With itself as the state before; deleted ones not."""
    told: list[Told] = []

    async def handle(change: Told) -> None:
        told.append(change)

    clock = SteppedClock()
    settings = InformerSettings(watch=QUICK, resync=30.0)
    async with KubeServer() as server:
        first = put(server, "a")
        put(server, "b")
        async with informed(server, clock=clock, handler=handle, settings=settings) as informer:
            remove(server, "b")
            await eventually(lambda: len(informer.objects) == 1)
            await eventually(lambda: len(told) == 3)
            await clock.advance(31.0)
            await eventually(lambda: len(told) == 4)

    assert told[3] == Seen(first, first)


async def test_a_resync_never_overtakes_the_stream() -> None:
    """A state that waits behind a stuck object, in the mirror already, is not told early."""
    told: list[Told] = []
    release = asyncio.Event()

    async def handle(change: Told) -> None:
        if change.object.metadata.name == "stuck":
            await release.wait()
        told.append(change)

    clock = SteppedClock()
    settings = InformerSettings(watch=QUICK, pending_per_object=1, resync=30.0)
    async with KubeServer() as server:
        put(server, "a")
        put(server, "stuck")
        async with informed(server, clock=clock, handler=handle, settings=settings) as informer:
            await server.send_raw(
                b"".join(changed(name, 10 + i) for i, name in enumerate(["stuck", "a"]))
            )
            await eventually(lambda: informer.objects[Key("default", "a")].spec.priority == 11)
            await clock.advance(31.0)
            await asyncio.sleep(0.005)
            release.set()
            await eventually(lambda: len(told) == 6)

    mine = [c for c in told if isinstance(c, Seen) and c.object.metadata.name == "a"]
    before = [change.previous.spec.priority if change.previous else None for change in mine]
    assert before == [None, 0, 11]


def changed(name: str, version: int) -> bytes:
    """A line of a watch: a new priority."""
    uid = {"a": "uid-1", "stuck": "uid-2"}[name]
    meta = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(version)}
    item = {"metadata": meta, "spec": {"priority": version}}
    return msgspec.json.encode({"type": "MODIFIED", "object": item}) + b"\n"


PUTS = st.lists(st.sampled_from("abcd"), max_size=30)


async def _dispatched(
    keys: list[str], limit: int, limit_per_key: int, pauses: Callable[[], Awaitable[None]]
) -> list[tuple[str, int]]:
    """Everything put, as it was handled; checks the bounds on the way."""
    handled: list[tuple[str, int]] = []
    busy: set[str] = set()

    async def handle(value: tuple[str, int]) -> None:
        assert value[0] not in busy
        busy.add(value[0])
        await pauses()
        busy.discard(value[0])
        handled.append(value)

    async with asyncio.TaskGroup() as group:
        dispatcher: Dispatcher[str, tuple[str, int]] = Dispatcher(
            handle,
            group=group,
            name="d",
            failed=lambda _value, _error: None,
            limit=limit,
            limit_per_key=limit_per_key,
        )
        for index, key in enumerate(keys):
            await dispatcher.put(key, (key, index))
            assert dispatcher.pending <= limit
        await dispatcher.drain()
        await asyncio.sleep(0)
        assert dispatcher.workers == 0
    return handled


@given(
    keys=PUTS,
    limit=st.integers(1, 5),
    limit_per_key=st.integers(1, 3),
    rounds=st.lists(st.integers(0, 4), min_size=30, max_size=30),
)
def test_dispatch_keeps_the_order_of_each_key(
    keys: list[str], limit: int, limit_per_key: int, rounds: list[int]
) -> None:
    """Whatever the bounds and however long each handler takes; one at a time for each key."""
    left = list(rounds)

    async def pauses() -> None:
        for _ in range(left.pop() if left else 0):
            await asyncio.sleep(0)

    handled = asyncio.run(_dispatched(keys, limit, limit_per_key, pauses))

    assert sorted(handled, key=lambda value: value[1]) == [(k, i) for i, k in enumerate(keys)]
    for key in set(keys):
        mine = [index for handled_key, index in handled if handled_key == key]
        assert mine == sorted(mine)


async def test_a_refresh_brings_a_list_no_older_than_the_call() -> None:
    """What was written before and not heard of, because the watch hangs, is known afterwards."""
    told: list[str] = []

    def observe(change: Change[Pod]) -> None:
        if isinstance(change, Seen | Gone):
            told.append(f"{type(change).__name__} {change.object.metadata.name}")

    async with KubeServer() as server:
        put(server, "a")
        async with informed(server, observer=observe) as informer:
            remove(server, "a")
            put(server, "b")
            await informer.refresh()

            assert [key.name for key in informer.objects] == ["b"]
            assert sorted(told) == ["Gone a", "Seen a", "Seen b"]


async def test_a_refresh_loses_nothing_that_handlers_have_not_had() -> None:
    """A handler that is slow still hears of everything, each once."""
    heard: list[str] = []
    gate = asyncio.Event()

    async def handle(change: Told) -> None:
        await gate.wait()
        heard.append(change.object.metadata.name)

    settings = InformerSettings(watch=QUICK, pending=1)
    async with KubeServer() as server, client_of(server) as client:
        for name in "abc":
            put(server, name)
        informer = Informer(client, ALL, into=Pod, handler=handle, settings=settings)
        task = started(informer.run())
        await asyncio.wait_for(informer.synced.wait(), 240)
        refreshed = started(informer.refresh())
        await asyncio.sleep(0)
        gate.set()
        await refreshed
        await eventually(lambda: len(heard) == 3)
        await stopped(task)

    assert sorted(heard) == ["a", "b", "c"]

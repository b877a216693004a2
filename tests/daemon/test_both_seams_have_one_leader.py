"""A service with the extender and an engine beside kube-scheduler's plugin never lead at one time, whichever is first."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_world import World, until, world

from partage.daemon import leadership
from partage.daemon.options import ElectionOptions, SchedulerOptions
from partage.daemon.plugin import PluginOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.kube.election import LeaseSettings

TIMES = LeaseSettings(duration=2, deadline=1.2, retry=0.2)
LEASES = "leases.coordination.k8s.io"
QUIET = 1.5


def extender(name: str) -> SchedulerOptions:
    """An instance that kube-scheduler asks as an extender."""
    election = ElectionOptions("default", times=TIMES, quiet_period=QUIET)
    return SchedulerOptions(identity=name, election=election)


def plugin(
    name: str, folder: Path, lease: str = "partage-kube-scheduler", quiet: float = QUIET
) -> SchedulerOptions:
    """An instance beside a kube-scheduler with the plugin, which elects by this Lease."""
    options = extender(name)
    election = replace(options.election or ElectionOptions(), quiet_period=quiet)
    socket = PluginOptions(folder / name, lease=lease)
    return replace(options, election=election, plugin=socket)


@contextlib.asynccontextmanager
async def elected(cluster: World, engine: SchedulerDaemon) -> AsyncIterator[None]:
    """kube-scheduler beside this engine holds its Lease, and reports that."""
    lead, options = engine._leadership, engine.options.plugin
    assert lead is not None
    assert options is not None
    name = options.lease
    if cluster.api.store.get(LEASES, "default", name) is None:
        empty = {"metadata": {"name": name, "namespace": "default"}, "spec": {}}
        await cluster.api.create(LEASES, empty, "default")

    async def renews() -> None:
        for moment in itertools.count():
            spec = {
                "holderIdentity": f"beside {engine.options.identity}",
                "leaseDurationSeconds": 15,
                "renewTime": f"2026-01-01T00:00:00.{moment:06}Z",
            }
            await cluster.api.patch(LEASES, "default", name, {"spec": spec})
            await asyncio.sleep(0.2)

    renewing = asyncio.create_task(renews())
    lead.claim(True)
    try:
        await until(lambda: lead.elected)
        yield
    finally:
        lead.claim(False)
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


async def leads_alone(one: SchedulerDaemon, *others: SchedulerDaemon, seconds: float) -> None:
    """For so long it leads, and no other does at any moment."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not [other.options.identity for other in others if other.may_bind()]
        await asyncio.sleep(0.01)
    assert one.may_bind()


async def test_an_engine_waits_for_a_service_with_the_extender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its kube-scheduler leads already; the log names who keeps it waiting. It leads when that one has ended."""
    monkeypatch.setattr(leadership, "_TOLD", 0.3)
    async with world() as cluster:
        new = SchedulerDaemon(await cluster.client(), plugin("new", tmp_path))
        async with contextlib.AsyncExitStack() as stack:
            old = SchedulerDaemon(await cluster.client(), extender("old"))
            async with old:
                await until(old.may_bind)
                await stack.enter_async_context(new)
                with caplog.at_level(logging.WARNING, "partage.daemon"):
                    await stack.enter_async_context(elected(cluster, new))
                    await leads_alone(old, new, seconds=2 * QUIET + 1)
                assert "old holds it. It leads once no Binding of an earlier leader" in caplog.text
                await cluster.pod("a")
                assert await cluster.schedule(old.url, "a") == "n0"
            await until(new.may_bind)
            assert any(new.service.books.engine.ledger.allocations())
            assert cluster.stored("partage-scheduler", LEASES)["spec"]["holderIdentity"] == "new"


async def test_what_a_dead_service_may_have_sent_is_waited_for_too(tmp_path: Path) -> None:
    """It neither releases nor renews: after its Lease its Bindings have their time, whatever the engine knew before."""
    async with world() as cluster, contextlib.AsyncExitStack() as stack:
        old = SchedulerDaemon(await cluster.client(), extender("old"))
        dying = asyncio.create_task(old.run(asyncio.Event()))
        await until(old.may_bind)
        new = SchedulerDaemon(await cluster.client(), plugin("new", tmp_path))
        await stack.enter_async_context(new)
        await stack.enter_async_context(elected(cluster, new))
        assert old._leadership is not None
        old._leadership._own._version = None  # a dead process releases nothing
        renewed = time.monotonic()
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)

        await until(new.may_bind)
        assert time.monotonic() >= renewed + TIMES.deadline + QUIET - 0.2


async def test_a_service_with_the_extender_waits_for_an_engine(tmp_path: Path) -> None:
    """Of any release: it sees a Lease that is held."""
    async with world() as cluster, contextlib.AsyncExitStack() as stack:
        engine = SchedulerDaemon(await cluster.client(), plugin("engine", tmp_path))
        await stack.enter_async_context(engine)
        async with elected(cluster, engine):
            await until(engine.may_bind)
            other = SchedulerDaemon(await cluster.client(), extender("other"))
            await stack.enter_async_context(other)
            await leads_alone(engine, other, seconds=2 * TIMES.duration)
        await until(other.may_bind)
        assert not engine.may_bind()


async def test_engines_of_one_kube_schedulers_lease_do_not_wait_for_each_other(
    tmp_path: Path,
) -> None:
    """Which of them may lead is decided by that Lease, so a dead one's own Lease keeps no other waiting."""
    async with world() as cluster, contextlib.AsyncExitStack() as stack:
        one = SchedulerDaemon(await cluster.client(), plugin("one", tmp_path))
        await stack.enter_async_context(one)
        async with elected(cluster, one):
            await until(one.may_bind)
            stored = cluster.stored("partage-scheduler", LEASES)
        await until(lambda: not one.may_bind())
        long = {**stored["spec"], "leaseDurationSeconds": 600}
        changed = {"metadata": {"annotations": stored["metadata"]["annotations"]}, "spec": long}
        await cluster.api.patch(LEASES, "default", "partage-scheduler", changed)

        two = SchedulerDaemon(await cluster.client(), plugin("two", tmp_path))
        await stack.enter_async_context(two)
        async with elected(cluster, two):
            await until(two.may_bind, seconds=60)


async def test_engines_of_two_leases_wait_for_each_other(tmp_path: Path) -> None:
    """Two kube-schedulers work at once after a change of their Lease's name; one engine leads."""
    async with world() as cluster, contextlib.AsyncExitStack() as stack:
        before = SchedulerDaemon(await cluster.client(), plugin("before", tmp_path))
        after = SchedulerDaemon(await cluster.client(), plugin("after", tmp_path, "renamed"))
        await stack.enter_async_context(before)
        await stack.enter_async_context(after)
        async with elected(cluster, before):
            await until(before.may_bind)
            await stack.enter_async_context(elected(cluster, after))
            await leads_alone(before, after, seconds=2 * TIMES.duration)
        await until(after.may_bind)

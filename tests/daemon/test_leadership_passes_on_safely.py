"""Several instances have one leader: standbys, fail-over, and Bindings of a former leader."""

import asyncio
from typing import Any

import pytest
from daemon_world import World, until, world
from proxy import Proxy

from fakes.backups import backup_of, restore
from fakes.clock import InstantClock
from fakes.kube_server import KubeServer
from partage.daemon import leadership
from partage.daemon.binding import ApiPods
from partage.daemon.options import ElectionOptions, SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.extender.bindings import BindLimits
from partage.extender.ports import Binding, Outcome
from partage.extender.service import ServiceSettings
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.election import LeaseSettings
from partage.vendors import names

TIMES = LeaseSettings(duration=2, deadline=1.2, retry=0.2)


LONG = 3600.0


def options(
    identity: str, pod: str = "", quiet_period: float = 0.3, **more: Any
) -> SchedulerOptions:
    """One of several instances."""
    election = ElectionOptions(
        "default", times=TIMES, quiet_period=quiet_period, pod=("default", pod) if pod else None
    )
    return SchedulerOptions(identity=identity, election=election, **more)


def lease(cluster: World) -> dict[str, Any]:
    """The Lease as stored."""
    stored = cluster.stored("partage-scheduler", "leases.coordination.k8s.io")
    return dict(stored["spec"])


async def status(cluster: World, url: str, path: str) -> int:
    """What a page answers."""
    async with cluster.http.get(url + path) as answer:
        return answer.status


async def test_a_standby_is_ready_follows_and_does_not_serve() -> None:
    """It has the books, and answers the verbs with 503."""
    async with (
        world(nodes=1) as cluster,
        SchedulerDaemon(await cluster.client(), options("one")) as one,
    ):
        await until(lambda: one.service.leading)
        async with SchedulerDaemon(await cluster.client(), options("two")) as two:
            await cluster.pod("a")
            assert await cluster.schedule(one.url, "a") == "n0"

            await until(lambda: any(two.service.books.engine.ledger.allocations()))
            assert await status(cluster, two.url, "/readyz") == 200
            async with cluster.http.post(f"{two.url}/scheduler/filter", json={}) as answer:
                assert answer.status == 503


async def test_when_the_leader_ends_the_standby_takes_over_with_the_same_books() -> None:
    """It allocates no device of the first leader's pods again."""
    async with world(nodes=1) as cluster:
        async with SchedulerDaemon(await cluster.client(), options("one")) as one:
            await until(lambda: one.service.leading)
            two = SchedulerDaemon(await cluster.client(), options("two"))
            stop = asyncio.Event()
            second = asyncio.create_task(two.run(stop))
            await cluster.pod("a")
            assert await cluster.schedule(one.url, "a") == "n0"
        await until(lambda: two.service.leading)

        await cluster.pod("b", {"koordinator.sh/gpu": "200"})
        assert await cluster.schedule(two.url, "b") == ""
        await cluster.pod("c")
        assert await cluster.schedule(two.url, "c") == "n0"

        assert max(cluster.taken().values()) == 1000
        stop.set()
        await second


async def test_a_new_leader_does_not_rebuild_the_books_for_a_doubt_from_before() -> None:
    """A standby in doubt waits before the next rebuild; the rebuild of its lead, meanwhile, ends the doubt."""
    async with world(nodes=1) as cluster:
        two = SchedulerDaemon(await cluster.client(), options("two"))
        stop = asyncio.Event()
        async with SchedulerDaemon(await cluster.client(), options("one")) as one:
            await until(lambda: one.service.leading)
            second = asyncio.create_task(two.run(stop))
            await until(lambda: two.service.rebuilt)
            before = two.service.books
            two._doubt.set()
            await until(lambda: two.service.books is not before and two.service.rebuilt)
            two._doubt.set()  # the next rebuild waits two seconds
        await until(lambda: two.service.leading)
        before = two.service.books
        await asyncio.sleep(2.5)

        assert two.may_bind()
        assert two.service.books is before
        stop.set()
        await second


async def test_a_restart_in_order_costs_no_quiet_period() -> None:
    """The earlier leader let its Bindings end and reported that, so none can still arrive."""
    async with world(nodes=1) as cluster:
        async with SchedulerDaemon(await cluster.client(), options("one")) as one:
            await until(lambda: one.service.leading)
            await cluster.pod("a")
            assert await cluster.schedule(one.url, "a") == "n0"

        async with SchedulerDaemon(
            await cluster.client(), options("two", quiet_period=LONG)
        ) as two:
            await until(lambda: two.service.leading)

            await cluster.pod("b")
            assert await cluster.schedule(two.url, "b") == "n0"
            assert max(cluster.taken().values()) == 1000


async def test_a_binding_without_an_answer_is_waited_for_after_a_restart() -> None:
    """The earlier leader did not know its outcome, so the next one waits out the quiet period."""
    async with world(nodes=1, cards=1) as cluster, Proxy(cluster.url) as wire:
        limits = ServiceSettings(limits=BindLimits(send=0.2, read=0.2, late=LONG))
        first = options("one", service=limits)
        async with SchedulerDaemon(await cluster.client(wire.url), first) as one:
            await until(lambda: one.service.leading)
            await cluster.pod("a")
            await cluster.filter(one.url, "a")
            wire.held.clear()
            assert "not known" in await cluster.bind(one.url, "a", "n0")
            assert not one.service.books.settled
        given_back = lease(cluster)
        assert (given_back["holderIdentity"], given_back["leaseDurationSeconds"]) == ("", 2)

        async with SchedulerDaemon(
            await cluster.client(), options("two", quiet_period=LONG)
        ) as two:
            await until(lambda: two._leadership is not None and two._leadership.leading)

            assert two._leadership is not None
            assert not two._leadership.handed_over
            assert not two.service.leading
        wire.held.set()


async def test_who_ends_before_its_wait_is_over_leaves_the_wait_to_the_next() -> None:
    """It sent nothing itself, but the leader before it did, and never released the Lease."""
    async with world(nodes=1, cards=1) as cluster, Proxy(cluster.url) as wire:
        async with (
            SchedulerDaemon(await cluster.client(wire.url), options("dead")) as dead,
            SchedulerDaemon(await cluster.client(), options("brief", quiet_period=LONG)) as brief,
        ):
            await until(lambda: dead.service.leading)
            wire.cut = True
            await until(lambda: brief._leadership is not None and brief._leadership.leading)
            assert not brief.service.leading

        async with SchedulerDaemon(
            await cluster.client(), options("next", quiet_period=LONG)
        ) as last:
            await until(lambda: last._leadership is not None and last._leadership.leading)

            assert last._leadership is not None
            assert not last._leadership.handed_over
            assert not last.service.leading


@pytest.mark.parametrize("answered", [True, False], ids=["answered late", "never answered"])
async def test_a_binding_of_the_old_leader_that_is_on_its_way_is_counted(answered: bool) -> None:  # noqa: FBT001
    """The old leader loses its Lease with an open Binding; the new one does not allocate its card again."""
    async with (
        world(nodes=1, cards=1) as cluster,
        Proxy(cluster.url) as wire,
        SchedulerDaemon(await cluster.client(wire.url), options("old")) as old,
    ):
        await until(lambda: old.service.leading)
        await cluster.pod("a")
        await cluster.pod("b")
        assert (await cluster.filter(old.url, "a"))["NodeNames"] == ["n0"]
        wire.held.clear()
        late = asyncio.create_task(cluster.bind(old.url, "a", "n0"))
        await wire.arrived.wait()
        wire.cut = True
        async with SchedulerDaemon(await cluster.client(), options("new")) as new:
            await until(lambda: not old.service.leading)
            wire.held.set()
            await until(lambda: new.service.leading)

            assert await cluster.schedule(new.url, "b") == ""
            assert new.service.audit().clean

        wire.cut = not answered
        await late
        assert cluster.placed("a") == "n0"
        assert set(cluster.taken().values()) == {1000}


async def test_a_leader_that_lost_its_lease_sends_no_binding() -> None:
    """This holds even for a request that arrived before the leader noticed the loss."""
    async with (
        world(nodes=1) as cluster,
        Proxy(cluster.url) as wire,
        SchedulerDaemon(await cluster.client(wire.url), options("old")) as old,
    ):
        await until(lambda: old.service.leading)
        await cluster.pod("a")
        await cluster.filter(old.url, "a")
        wire.cut = True
        await until(lambda: not old.service.leading)
        old.service.lead()  # as if the loss had not been noticed

        problem = await cluster.bind(old.url, "a", "n0")

        assert "does not lead any more" in problem
        assert not wire.arrived.is_set()
        old.service.follow()


async def test_a_process_that_stood_still_after_its_look_sends_no_binding() -> None:
    """It had the Lease when it looked, but its time starts before the look."""
    clock = InstantClock()

    def stood_still() -> bool:
        clock.pass_time(11.0)
        return True

    async with (
        KubeServer() as server,
        Client(Config(ClusterConfig(server.url)), clock=clock) as client,
    ):
        answer = await ApiPods(client, stood_still, within=10.0).bind(
            Binding("default", "a", "uid-1", "n0")
        )

        assert answer.outcome is Outcome.REFUSED
        assert server.requests == []


async def test_the_label_is_where_the_leader_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Service selects the leader's pod. Labels from a crash or a late write are removed."""
    monkeypatch.setattr(leadership, "_STILL", 0.02)
    label = f"{names.LEADER}"
    async with world(nodes=0) as cluster:
        for name in ("first", "second"):
            await cluster.pod(name, {})
        await cluster.api.patch(
            "pods", "default", "first", {"metadata": {"labels": {label: "true"}}}
        )

        def labelled() -> list[str]:
            return [
                name
                for name in ("first", "second")
                if cluster.stored(name)["metadata"].get("labels", {}).get(label) == "true"
            ]

        async with SchedulerDaemon(await cluster.client(), options("two", "second")):
            await until(lambda: labelled() == ["second"])
            for name, value in (("first", "true"), ("second", None)):
                late = {"metadata": {"labels": {label: value}}}
                await cluster.api.patch("pods", "default", name, late)
            await until(lambda: labelled() == ["second"])
        assert labelled() == []


@pytest.mark.parametrize("caught_up", [False, True], ids=["lists newer", "lists caught up with"])
async def test_a_leader_believes_no_lists_of_before_a_restore(
    caplog: pytest.LogCaptureFixture, *, caught_up: bool
) -> None:
    """An API server that runs on lists what the backup lacks, and lacks what it has, until it is restarted."""
    told = "the API server lists what its store no longer has"
    async with (
        world(nodes=1, cards=1) as cluster,
        Proxy(cluster.url) as proxy,
        world(nodes=0) as memory,
        SchedulerDaemon(await cluster.client(proxy.url), options("one")) as one,
    ):
        store = cluster.api.store
        await until(lambda: one.service.leading)
        await cluster.pod("ended")
        assert await cluster.schedule(one.url, "ended") == "n0"
        backup = backup_of(store)
        await cluster.delete("ended")
        await cluster.pod("next")
        await until(lambda: not list(one.service.books.engine.ledger.allocations()))
        store.revision += 10_000  # the backup is a day old
        before = lease(cluster)
        await until(lambda: lease(cluster) != before)

        proxy.cut = True
        restore(memory.api.store, backup_of(store))
        restore(store, backup)
        proxy.memory = memory.url
        proxy.cut = False
        await until(lambda: caplog.text.count(told) > 0)
        await until(lambda: not one.service.leading)
        if caught_up:
            store.revision += 20_000
            before = lease(cluster)
            await until(lambda: lease(cluster) != before)
            (version, now), (_, known) = backup_of(store), backup_of(memory.api.store)
            leases = "leases.coordination.k8s.io"
            restore(memory.api.store, (version, {**known, leases: now[leases]}))
            found = caplog.text.count(told)
            await until(lambda: caplog.text.count(told) > found)

        assert cluster.stored("ended")["spec"]["nodeName"] == "n0"
        assert not one.service.leading

        proxy.cut = True
        proxy.memory = ""
        proxy.cut = False
        if caught_up:
            return  # nothing shows the restart, so this process is to be restarted too
        await until(lambda: one.service.leading)
        assert {held.uid for held in one.service.books.engine.ledger.allocations()} == {
            cluster.stored("ended")["metadata"]["uid"]
        }

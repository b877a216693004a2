"""Scenario 8: watches that end, expire, lag, repeat and mix up; reads of what is no more."""

import json
import random
import time

import pytest
from bed import HALF, WHOLE, Bed, bed, node, told, until

from fakes.wire import Fault
from partage.daemon.scheduler import SchedulerDaemon
from partage.vendors import names


def held(daemon: SchedulerDaemon) -> set[str]:
    """Names of the pods that the books hold something for."""
    return {one.name for one in daemon.service.books.engine.ledger.allocations()}


async def full(cluster: Bed) -> SchedulerDaemon:
    """Two cards, each with a pod."""
    daemon = await cluster.daemon()
    await cluster.led()
    await cluster.pod("a", WHOLE)
    await cluster.pod("b", WHOLE)
    await cluster.bound("a", "b")
    return daemon


@pytest.mark.parametrize("how", ["cut", "expired in the stream", "expired at the start"])
async def test_what_happens_while_nothing_is_heard_is_made_up_for(how: str, seam: str) -> None:
    """A pod goes, another comes under its name, a node comes: no watch reports any of it."""
    async with bed(node(cards=2), seam=seam) as cluster:
        daemon = await full(cluster)

        there = cluster.wire.watches
        started = time.monotonic()
        cluster.wire.cut = True
        await cluster.delete("a")
        await cluster.pod("a", HALF)
        if how == "expired at the start":
            cluster.wire.fail(Fault(watch=True, status=410, reason="Expired", times=5))
        cluster.wire.cut = False
        if how == "expired in the stream":
            await until(lambda: cluster.wire.watches >= there, "the watches are back")
            await cluster.wire.expire_watches()
        await cluster.bound("a")
        told(f"8: watch {how}: next Binding", time.monotonic() - started)

        await until(lambda: held(daemon) == {"a", "b"}, "the books hold both")
        await cluster.sound(f"8: watch {how}")


async def test_a_pod_that_comes_is_bound_and_goes_unheard_leaves_nothing_behind(seam: str) -> None:
    """The watch lags, its version expires, and it never reported the pod at all."""
    async with bed(node(cards=1), seam=seam) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        cluster.wire.fail(Fault(path="/pods", watch=True, status=500, times=10**6))
        cluster.wire.cut_watches()
        await cluster.pod("ghost", WHOLE)
        await cluster.bound("ghost")
        await cluster.delete("ghost")
        cluster.wire.heal()
        cluster.wire.fail(Fault(watch=True, status=410, reason="Expired", times=5))

        started = time.monotonic()
        await cluster.pod("next", WHOLE)
        await cluster.bound("next")
        told("8: pod came and went unheard: card free", time.monotonic() - started)

        assert held(daemon) == {"next"}
        await cluster.sound("8: pod came and went unheard")


async def test_events_that_come_late_mislead_nobody(seam: str) -> None:
    """Kube-scheduler is ahead of the books; what is bound meanwhile is no leak and allocated once."""
    async with bed(node(cards=2), seam=seam) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        cluster.wire.hold_back()
        for number in range(3):
            await cluster.pod(f"p{number}", WHOLE)
        await until(lambda: cluster.places == 2, "two are bound")
        first = daemon.service.last_audit
        await until(lambda: daemon.service.last_audit is not first, "an audit has looked")

        assert daemon.service.last_audit is not None
        assert daemon.service.last_audit.clean
        gone = next(f"p{n}" for n in range(3) if cluster.placed(f"p{n}"))
        await cluster.delete(gone)
        cluster.wire.let_go()
        await until(lambda: cluster.places == 2, "the third is bound")
        await cluster.sound("8: late events")


async def test_events_may_come_twice_or_only_as_bookmarks(seam: str) -> None:
    """Every event is sent twice, with bookmarks in between."""

    def twice(event: bytes) -> list[bytes]:
        version = json.loads(event)["object"]["metadata"]["resourceVersion"]
        bookmark = {"metadata": {"resourceVersion": version}, "kind": "Pod", "apiVersion": "v1"}
        mark = json.dumps({"type": "BOOKMARK", "object": bookmark}).encode()
        return [event, mark, event, mark]

    async with bed(node(cards=2), seam=seam) as cluster:
        cluster.wire.distort = twice
        await full(cluster)
        await cluster.delete("a")
        await cluster.pod("c", HALF)
        await cluster.bound("c")

        await cluster.sound("8: events twice, bookmarks")


@pytest.mark.parametrize("seed", range(3))
async def test_events_of_different_pods_may_change_places(seed: int, seam: str) -> None:
    """A server orders the events of one object only; here they arrive in any other order."""
    chance = random.Random(seed)  # noqa: S311 # reproducible on purpose
    kept: list[bytes] = []

    def mixed(event: bytes) -> list[bytes]:
        """Hold an event back until one of another pod has come."""
        name = json.loads(event)["object"]["metadata"].get("name")
        sent = [one for one in kept if json.loads(one)["object"]["metadata"].get("name") == name]
        for one in sent:
            kept.remove(one)
        if chance.random() < 0.5:
            kept.append(event)
            return sent
        others, kept[:] = list(kept), []
        return [*sent, event, *others]

    async with bed(node(cards=4), seam=seam) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        cluster.wire.distort = mixed
        for number in range(8):
            await cluster.pod(f"p{number}", HALF)
        await until(lambda: cluster.places >= 4, "some are bound")
        cluster.wire.heal()
        there = cluster.wire.watches
        cluster.wire.cut_watches()
        names = [f"p{number}" for number in range(8)]
        await cluster.bound(*names)
        # What was held back, no watch brings again: all have to list, also that of pods.
        await until(lambda: cluster.wire.watches >= there, "the watches are back")
        await cluster.wire.expire_watches()

        await until(lambda: held(daemon) == set(names), "the books hold all")
        await cluster.sound(f"8: events out of order, seed {seed}")


async def test_a_read_that_is_older_than_what_the_watch_told_changes_nothing(seam: str) -> None:
    """A Binding's answer is lost; read back, an old server says that the pod has no node yet."""
    async with bed(node(cards=1), seam=seam) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        await cluster.pod("a", WHOLE)
        await cluster.bound("a")
        await cluster.delete("a")
        cluster.wire.fail(Fault(method="POST", path="/binding", drop=True, executed=True))
        await cluster.pod("b", WHOLE, schedulingGates=[{"name": "example.com/wait"}])
        await cluster.wire.freeze("/api/v1/namespaces/default/pods/b")
        await cluster.patch("b", {"spec": {"schedulingGates": []}})
        await cluster.bound("b")
        await cluster.pod("c", WHOLE)
        await until(lambda: not daemon.service.books.unread, "the books have decided")
        await cluster.told("c")

        assert cluster.placed("c") == ""
        assert held(daemon) == {"b"}
        await cluster.sound("8: stale read")


async def test_the_api_server_may_be_away_for_long(seam: str) -> None:
    """Nothing is allocated meanwhile; afterwards everything goes on by itself."""
    async with bed(node(cards=2), seam=seam) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        await cluster.pod("a", WHOLE)
        await cluster.bound("a")
        with cluster.wire.outage():
            await cluster.pod("b", WHOLE)
            await until(lambda: not daemon.service.leading, "it leads no more")
            assert not cluster.placed("b")
        started = time.monotonic()
        await cluster.bound("b")
        told("extra: API server back: next Binding", time.monotonic() - started)

        await cluster.sound("extra: API server away")


@pytest.mark.parametrize("heard", ["together", "one by one"])
async def test_who_came_while_the_watch_was_behind_is_woken(heard: str) -> None:
    """Kube-scheduler asked about them, under the name of a deleted pod, before our watch reported them."""
    async with bed(node(cards=2)) as cluster:
        await full(cluster)
        cluster.wire.hold_back()
        await cluster.delete("a")
        await until(lambda: not cluster.stored("a"), "it is gone")
        for name in ("a", "c"):
            await cluster.pod(name, HALF)
            await cluster.told(name)
        if heard == "one by one":
            cluster.wire.distort = lambda event: [event]
        cluster.wire.let_go()

        await cluster.bound("a", "c")

        await cluster.sound(f"8: came while nothing was heard, {heard}")
        for name in ("a", "c"):
            assert names.WOKEN in cluster.stored(name)["metadata"]["annotations"], name


async def test_who_is_woken_before_a_watch_told_of_it_is_woken_again() -> None:
    """Kube-scheduler asked about it, and room appeared, while our watch was behind."""
    async with bed(node(cards=1)) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        await cluster.pod("a", WHOLE)
        await cluster.bound("a")
        cluster.wire.distort = lambda event: [] if b'"name":"zebra"' in event else [event]
        await cluster.pod("zebra", WHOLE)
        await cluster.told("zebra")
        await cluster.delete("a")
        await until(lambda: daemon.service.books.counts["woken"], "there is room for it")
        assert daemon.service.books.cluster_cache.pod_named("default", "zebra") is None

        cluster.wire.heal()
        # kube-scheduler does not look again for a status; our watch reports it.
        await cluster.patch("zebra", {"status": {"message": "any"}}, sub="status")
        await cluster.bound("zebra")

        await cluster.sound("8: woken before it was heard of")
        assert names.WOKEN in cluster.stored("zebra")["metadata"]["annotations"]

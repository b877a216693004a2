"""Scenarios 2, 5 and 6: leaders that are killed or paused, calls that come twice, clocks that lie."""

import asyncio
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bed import HALF, PATIENCE, WHOLE, Bed, bed, node, told, until

from fakes.wire import Fault
from partage.kube.clock import SystemClock


async def ask(cluster: Bed, url: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """One call of the extender."""
    async with cluster.http.post(f"{url}/scheduler/{verb}", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def ask_until_it_leads(
    cluster: Bed, url: str, verb: str, body: dict[str, Any]
) -> dict[str, Any]:
    """The same of a process, which a busy machine may cost its Lease for a moment."""
    end = time.monotonic() + PATIENCE
    while True:
        async with cluster.http.post(f"{url}/scheduler/{verb}", json=body) as answer:
            if answer.status == 200:
                return dict(await answer.json())
            assert answer.status == 503, await answer.text()
        assert time.monotonic() < end, f"{url} does not lead"
        await asyncio.sleep(0.05)


def bind_body(cluster: Bed, name: str, where: str = "n0") -> dict[str, Any]:
    """What kube-scheduler asks of bind."""
    uid = cluster.stored(name)["metadata"]["uid"]
    return {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": where}


async def test_a_leader_that_is_killed_under_load_loses_and_doubles_nothing(
    tmp_path: Path, seam: str
) -> None:
    """Pods keep coming, some are half bound; the follower goes on where the first was cut off."""
    async with bed(node(cards=8), node("n1", 8), folder=tmp_path, seam=seam) as cluster:
        for name in ("one", "two"):
            await cluster.spawn(name, quick=True)
        await cluster.led()
        first = cluster.leader()
        for number in range(8):
            await cluster.pod(f"before-{number}", HALF)
        await until(lambda: cluster.places >= 3, "the first binds")

        started = time.monotonic()
        await cluster.spawned[first].kill()
        for number in range(8):
            await cluster.pod(f"after-{number}", HALF)
        await until(lambda: cluster.leader() not in {"", first}, "the second leads")
        everybody = [f"{when}-{n}" for when in ("before", "after") for n in range(8)]
        await cluster.bound(*everybody)
        told("2: leader killed: all bound", time.monotonic() - started)

        await cluster.sound("2: leader killed: books right")
        assert len({uuid for name in everybody for uuid in cluster.cards(name)}) >= 8


async def test_a_leader_that_stood_still_gives_nothing_away_when_it_goes_on(
    tmp_path: Path,
) -> None:
    """A bind waits in its socket while it is paused; by then another pod has the card."""
    async with bed(node(cards=1), folder=tmp_path) as cluster:
        old = await cluster.spawn("old", quick=True)
        await cluster.led("old")
        await cluster.pod("late", WHOLE, schedulerName="by-hand")
        filtered = {"Pod": cluster.stored("late"), "NodeNames": ["n0"]}
        answer = await ask_until_it_leads(cluster, old.url, "filter", filtered)
        assert answer["NodeNames"] == ["n0"]
        await cluster.spawn("new", quick=True)
        old.pause()
        late = asyncio.create_task(ask(cluster, old.url, "bind", bind_body(cluster, "late")))

        started = time.monotonic()
        await cluster.pod("other", WHOLE)
        await cluster.bound("other")
        told("2: leader paused: next Binding", time.monotonic() - started)
        old.go_on()
        async with asyncio.timeout(240):
            with_problem: dict[str, Any] = {}
            try:
                with_problem = await late
            except AssertionError as refused:  # 503: it does not serve any more
                with_problem = {"Error": str(refused)}

        assert with_problem["Error"]
        assert cluster.placed("late") == ""
        assert len(cluster.cards("other")) == 1
        await cluster.delete("late")
        # The leader of now: on a busy machine, this one may have lost the Lease too.
        await cluster.sound("2: leader paused, goes on")


async def test_a_service_with_the_extender_gives_way_to_an_engine_and_to_no_second_ledger() -> (
    None
):
    """kube-scheduler with the plugin leads; the Binding of the service before it arrives seconds after its end."""
    async with bed(node(cards=1), seam="plugin") as cluster:
        old = await cluster.daemon("old", plugged=False)
        await until(old.may_bind, "the old service leads")
        new = await cluster.daemon("new", quiet_period=3.0)
        lead = new._leadership
        assert lead is not None
        await until(lambda: lead.elected, "kube-scheduler beside the engine leads")
        await cluster.pod("late", WHOLE, schedulerName="by-hand")
        filtered = {"Pod": cluster.stored("late"), "NodeNames": ["n0"]}
        assert (await ask(cluster, old.url, "filter", filtered))["NodeNames"] == ["n0"]
        await cluster.pod("other", WHOLE)
        await asyncio.sleep(3.5)  # whatever the engine counts from its own start is over

        path = "/pods/late/binding"
        lost = Fault(method="POST", path=path, under_way=2.9, executed=True, drop=True)
        cluster.wire.fail(lost)
        late = asyncio.create_task(ask(cluster, old.url, "bind", bind_body(cluster, "late")))
        await until(lambda: not lost.times, "the Binding is on its way")
        await old.__aexit__(None, None, None)
        await asyncio.gather(late, return_exceptions=True)
        assert not cluster.placed("late")

        await cluster.bound("late")
        await until(new.may_bind, "the engine leads")
        assert not cluster.placed("other")
        await cluster.delete("late")
        await cluster.bound("other")
        await cluster.sound("2: extender gives way to plugin")


async def test_callers_leave_an_instance_that_does_not_lead_any_more() -> None:
    """Kube-scheduler keeps its connections; those to a former leader that still lives are closed."""
    async with bed(node(cards=2)) as cluster:
        old = await cluster.daemon("old")
        await cluster.led("old")
        await cluster.pod("a", WHOLE)
        await cluster.bound("a")
        before = cluster.relay.opened
        cluster.wire.fail(Fault(method="PATCH", path="/leases/", status=500, times=10**6))
        await until(lambda: not old.service.leading, "the first leads no more")

        # Asked while it cannot get the Lease back, which it may do before the new one does.
        await cluster.pod("b", WHOLE)
        await until(lambda: cluster.relay.opened > before, "its callers come back")

        cluster.wire.heal()
        await cluster.daemon("new", quiet_period=0.3)
        await cluster.bound("b")
        await cluster.sound("2: leader lost its Lease and lives")


async def test_of_two_pods_for_the_last_card_one_gets_it_however_often_it_is_asked() -> None:
    """Both are filtered at once, both are bound twice at once, and once more after success."""
    async with bed(node(cards=1)) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        names = ("a", "b")
        for name in names:
            await cluster.pod(name, WHOLE, schedulerName="by-hand")

        await asyncio.gather(
            *(
                ask(
                    cluster,
                    daemon.url,
                    "filter",
                    {"Pod": cluster.stored(name), "NodeNames": ["n0"]},
                )
                for name in names * 3
            )
        )
        answers = await asyncio.gather(
            *(ask(cluster, daemon.url, "bind", bind_body(cluster, name)) for name in names * 3)
        )
        again = await asyncio.gather(
            *(ask(cluster, daemon.url, "bind", bind_body(cluster, name)) for name in names)
        )

        winners = [name for name in names if cluster.placed(name)]
        assert len(winners) == 1
        assert [not answer["Error"] for answer in again] == [name in winners for name in names]
        assert sum(not answer["Error"] for answer in answers) == 3
        await cluster.delete(next(name for name in names if name not in winners))
        await cluster.sound("5: duplicate binds")


async def test_two_instances_that_are_asked_at_once_agree_on_who_may_answer() -> None:
    """The follower answers 503, so that a card is given by one of them alone."""
    async with bed(node(cards=1)) as cluster:
        leading = await cluster.daemon("one")
        await cluster.led("one")
        following = await cluster.daemon("two", quiet_period=0.3)
        await cluster.pod("a", WHOLE, schedulerName="by-hand")
        body = {"Pod": cluster.stored("a"), "NodeNames": ["n0"]}

        async with cluster.http.post(f"{following.url}/scheduler/filter", json=body) as refused:
            assert refused.status == 503
        assert (await ask(cluster, leading.url, "filter", body))["NodeNames"] == ["n0"]
        async with cluster.http.post(
            f"{following.url}/scheduler/bind", json=bind_body(cluster, "a")
        ) as refused:
            assert refused.status == 503
        assert not (await ask(cluster, leading.url, "bind", bind_body(cluster, "a")))["Error"]

        await cluster.sound("5: two instances")


class Wrong(SystemClock):
    """A machine whose wall clock is wrong, and may be set while programs run."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.wrong = timedelta(seconds=seconds)

    def now(self) -> datetime:
        """The wall clock as it is set."""
        return super().now() + self.wrong


@pytest.mark.parametrize("skew", [-600.0, 600.0], ids=["ten minutes slow", "ten minutes fast"])
async def test_wall_clocks_may_differ_by_any_amount(skew: float, seam: str) -> None:
    """A follower with another time takes nothing early; after fail-over it serves all the same."""
    vendor = {"metax-tech.com/sgpu": "1", **HALF}
    async with bed(node(cards=2), node("m0", 2, model="C500", mode="sgpu"), seam=seam) as cluster:
        first = await cluster.daemon("right")
        await cluster.led("right")
        await cluster.daemon("wrong", quiet_period=0.3, clock=Wrong(skew))
        await cluster.pod("vendor-0", vendor)
        await cluster.pod("p0", HALF)
        await cluster.bound("p0", "vendor-0")
        assert cluster.leader() == "right"
        assert first.service.leading

        lease = "/leases/partage-scheduler"
        cluster.wire.fail(Fault(method="PATCH", path=lease, status=500, times=8))
        await until(lambda: not first.service.leading, "the first leads no more")
        await first.__aexit__(None, None, None)
        await cluster.led("wrong")
        await cluster.pod("vendor-1", vendor)
        await cluster.pod("p1", HALF)
        await cluster.bound("p1", "vendor-1")

        await cluster.sound(f"6: clock {skew:+.0f} s")


async def test_a_clock_may_be_set_back_and_forth_under_a_leader(seam: str) -> None:
    """Leases, holds and locks are measured in time that passes, not in what a clock shows."""
    clock = Wrong(0.0)
    async with bed(node(cards=2), seam=seam) as cluster:
        daemon = await cluster.daemon(clock=clock)
        await cluster.led()
        for number, step in enumerate((-3600.0, 7200.0, -86400.0, 60.0)):
            clock.wrong += timedelta(seconds=step)
            await cluster.pod(f"p{number}", HALF)
            await cluster.bound(f"p{number}")
            assert daemon.service.leading

        await cluster.sound("6: clock set back and forth")


async def test_time_zones_of_instances_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seam: str
) -> None:
    """A program that runs in another zone writes and reads the same moments."""
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    async with bed(node(cards=1), folder=tmp_path, seam=seam) as cluster:
        await cluster.spawn("far", quick=True)
        monkeypatch.setenv("TZ", "UTC")
        await cluster.led("far")
        await cluster.pod("a", WHOLE)
        await cluster.bound("a")

        lease = cluster.server.store.get(
            "leases.coordination.k8s.io", "default", "partage-scheduler"
        )
        assert lease is not None
        renewed = datetime.fromisoformat(lease.value["spec"]["renewTime"])
        assert abs(renewed.timestamp() - time.time()) < 600
        await cluster.sound("6: another time zone")

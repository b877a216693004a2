"""While pods queue up at a large cluster, those whose turn is to come are nominated for their node."""

from dataclasses import replace

from daemon_world import World, until, world

from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.extender.prospects import AheadSettings
from partage.extender.service import ServiceSettings

PATIENT = SchedulerOptions(
    service=ServiceSettings(ahead=AheadSettings(nodes=2, head=1), hold=600.0)
)
QUICK = replace(PATIENT, service=replace(PATIENT.service, hold=1.0), tick=0.05)


def nominated(cluster: World, name: str) -> str:
    """Where the API server says that the pod shall be tried first."""
    return str((cluster.stored(name).get("status") or {}).get("nominatedNodeName") or "")


async def crowd(cluster: World, daemon: SchedulerDaemon, count: int) -> None:
    """So many pods that queue up, of which the first has had its turn."""
    uids = [await cluster.pod(f"p{number}") for number in range(count)]
    await until(lambda: all(map(daemon.service.books.intake.pod, uids)))
    assert await cluster.schedule(daemon.url, "p0")


async def test_the_next_pods_are_nominated_and_bound_where_they_are() -> None:
    """Each is asked about that node alone, and the books have what was bound."""
    async with world(nodes=3) as cluster, SchedulerDaemon(await cluster.client(), PATIENT) as d:
        await crowd(cluster, d, 4)
        await until(lambda: nominated(cluster, "p2") and nominated(cluster, "p3"))

        for name in ("p2", "p3"):
            where = nominated(cluster, name)
            body = {"Pod": cluster.stored(name), "NodeNames": [where]}
            answer = await cluster.ask(d.url, "filter", body)
            assert answer["NodeNames"] == [where]
            assert await cluster.bind(d.url, name, where) == ""

        assert nominated(cluster, "p1") == ""
        assert d.service.books.prospects.counts["taken"] == 2
        assert sorted(cluster.taken().values()) == [1000] * 3
        assert d.service.audit().clean


async def test_a_pod_that_somebody_changed_meanwhile_is_not_nominated() -> None:
    """What was written since may be kube-scheduler's own nomination."""
    async with world(nodes=3) as cluster, SchedulerDaemon(await cluster.client(), PATIENT) as d:
        await crowd(cluster, d, 3)
        await until(lambda: nominated(cluster, "p2"))
        where, meta = nominated(cluster, "p2"), cluster.stored("p2")["metadata"]
        entry = d.service.books.intake.pod(meta["uid"])
        assert entry is not None

        await d._notices._nominate(entry, "", "1")
        assert nominated(cluster, "p2") == where
        await d._notices._nominate(entry, "", meta["resourceVersion"])

        assert nominated(cluster, "p2") == ""


async def test_who_leads_no_more_nominates_nobody() -> None:
    """What was chosen before the Lease was lost would be a claim to whoever leads now."""
    async with world(nodes=3) as cluster, SchedulerDaemon(await cluster.client(), PATIENT) as d:
        await crowd(cluster, d, 3)
        await until(lambda: nominated(cluster, "p2"))
        where, meta = nominated(cluster, "p2"), cluster.stored("p2")["metadata"]
        entry = d.service.books.intake.pod(meta["uid"])
        assert entry is not None

        d._notices.speaks = False
        await d._notices._nominate(entry, "", meta["resourceVersion"])

        assert nominated(cluster, "p2") == where


async def test_who_is_not_tried_for_long_loses_the_nomination() -> None:
    """The place is given back, and kube-scheduler counts the pod nowhere any more."""
    async with world(nodes=3) as cluster, SchedulerDaemon(await cluster.client(), QUICK) as d:
        await crowd(cluster, d, 3)
        await until(lambda: nominated(cluster, "p2"))

        await until(lambda: not nominated(cluster, "p2"))

        await until(lambda: not d.service.books.verbs.holds)
        assert d.service.audit().clean

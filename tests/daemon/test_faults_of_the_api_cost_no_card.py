"""Lost answers, gaps in watches, expired versions and restarts leave the books correct."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from daemon_world import DEVICE_KIND, PATIENCE, World, device, node, pod, until, world
from proxy import Proxy

from fakes.backups import backup_of, restore
from fakes.ports import free_port
from partage.apiserver import ApiServer, Settings, serve
from partage.daemon.binding import ApiPods
from partage.daemon.informers import Feed
from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.daemon.watched import CLAIMS, Watched
from partage.extender.audit import Audit
from partage.extender.bindings import BindLimits
from partage.extender.ports import Outcome
from partage.extender.service import ServiceSettings
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.resources import Resource, Scope
from partage.kube.retry import Backoff
from partage.kube.watch import WatchSettings
from partage.wire.documents import Document

QUICK = SchedulerOptions(
    watches=WatchSettings(backoff=Backoff(base=0.02, cap=0.1)),
    service=ServiceSettings(BindLimits(send=2.0, read=1.0, pause=0.01, late=0.5)),
    tick=0.05,
)


CLAIM = {
    "metadata": {"name": "held"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
}
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def holders(daemon: SchedulerDaemon) -> set[str]:
    """Names of the pods that the books hold something for."""
    books = daemon.service.books
    found = (books.cluster_cache.pods.get(held.uid) for held in books.engine.ledger.allocations())
    return {entry.pod.name for entry in found if entry is not None}


async def bound(cluster: World, daemon: SchedulerDaemon, name: str) -> str:
    """Create a pod and bind it; the error."""
    await cluster.pod(name)
    found = await cluster.filter(daemon.url, name)
    return await cluster.bind(daemon.url, name, found["NodeNames"][0])


@contextlib.asynccontextmanager
async def disturbed(
    settings: Settings | None = None,
) -> AsyncIterator[tuple[World, Proxy, SchedulerDaemon]]:
    """A scheduler that reaches a cluster of one card through a proxy."""
    async with (
        world(nodes=1, cards=1, settings=settings) as cluster,
        Proxy(cluster.url) as proxy,
        SchedulerDaemon(await cluster.client(proxy.url), QUICK) as daemon,
    ):
        yield cluster, proxy, daemon


@pytest.mark.parametrize("lost", ["answer", "request"])
async def test_a_binding_whose_outcome_is_unknown_is_read_back(lost: str) -> None:
    """If it was carried out, it counts; if not, its card is free again."""
    async with disturbed() as (cluster, proxy, daemon):
        proxy.losing.append(lost)

        problem = await bound(cluster, daemon, "a")

        carried_out = lost == "answer"
        assert cluster.placed("a") == ("n0" if carried_out else "")
        assert bool(problem) is not carried_out
        assert holders(daemon) == {"a"}  # the request may still be on the wire
        await until(lambda: not daemon.service.books.unread)
        assert holders(daemon) == ({"a"} if carried_out else set())
        await cluster.pod("b")
        assert await cluster.schedule(daemon.url, "b") == ("" if carried_out else "n0")
        assert set(cluster.taken().values()) == {1000}


async def test_a_binding_that_was_repeated_on_the_way_is_bound() -> None:
    """The second conflicts with the first. A refusal would free the card until a watch reports the pod."""
    async with disturbed() as (cluster, proxy, daemon):
        proxy.losing.append("repeat")

        assert await bound(cluster, daemon, "a") == ""

        assert holders(daemon) == {"a"}
        assert cluster.placed("a") == "n0"


async def test_a_record_that_was_repeated_on_the_way_is_read_back() -> None:
    """The second write conflicts with the first, and what it reserved may be in the record."""
    async with world(nodes=1) as cluster:
        await cluster.pod("a")
        client = await cluster.client()
        amender = ApiPods(client, lambda: True)
        pod_now = await amender.read("default", "a")
        assert pod_now is not None

        first = await amender.amend(pod_now, {"example.com/x": "1"})
        second = await amender.amend(pod_now, {"example.com/x": "1"})

        assert (first.outcome, second.outcome) == (Outcome.DONE, Outcome.UNKNOWN)


async def test_a_binding_that_cannot_be_read_back_keeps_its_card_until_it_can() -> None:
    """While its outcome is unknown, no other pod gets the card."""
    async with disturbed() as (cluster, proxy, daemon):
        await cluster.pod("b")
        await cluster.pod("a")
        found = await cluster.filter(daemon.url, "a")
        proxy.losing.append("request")
        proxy.cut = True

        problem = await cluster.bind(daemon.url, "a", found["NodeNames"][0])

        assert "not known" in problem
        assert await cluster.schedule(daemon.url, "b") == ""
        proxy.cut = False
        await until(lambda: not daemon.service.books.unread)
        assert await cluster.schedule(daemon.url, "b") == "n0"


async def test_what_happens_in_a_gap_of_the_watches_is_made_up_for() -> None:
    """Pods end and nodes appear while no watch works."""
    async with disturbed() as (cluster, proxy, daemon):
        assert await bound(cluster, daemon, "a") == ""
        proxy.cut = True
        await cluster.delete("a")
        await cluster.nodes(1, cards=1)
        await cluster.pod("b")
        await cluster.pod("c")
        proxy.cut = False

        ledger = daemon.service.books.engine.ledger
        await until(lambda: "n1" in ledger.index and not holders(daemon))
        await until(lambda: daemon.service.books.cluster_cache.device_document("n1"))
        nodes = {await cluster.schedule(daemon.url, name) for name in "bc"}

        assert nodes == {"n0", "n1"}
        assert daemon.service.audit().clean


async def test_versions_that_are_kept_no_more_lead_to_a_fresh_list() -> None:
    """After 410 Gone, the difference between the two sets frees the devices of deleted pods."""
    async with disturbed(Settings(history=4)) as (cluster, proxy, daemon):
        assert await bound(cluster, daemon, "a") == ""
        proxy.cut = True
        await cluster.delete("a")
        for number in range(10):
            await cluster.pod(f"x{number}", {})
            await cluster.delete(f"x{number}")
        proxy.cut = False

        await until(lambda: not holders(daemon))
        assert await bound(cluster, daemon, "b") == ""


async def test_a_cluster_that_is_restored_from_a_backup_is_believed() -> None:
    """Pods that are back hold their cards again; deleted or unbound pods hold none."""
    async with (
        world(nodes=3, cards=1) as cluster,
        Proxy(cluster.url) as proxy,
        SchedulerDaemon(await cluster.client(proxy.url), QUICK) as daemon,
    ):
        assert not await bound(cluster, daemon, "ended")
        await cluster.pod("late")
        backup, before = backup_of(cluster.api.store), cluster.taken()
        await cluster.delete("ended")
        await until(lambda: not holders(daemon))
        assert await cluster.schedule(daemon.url, "late")
        assert not await bound(cluster, daemon, "new")
        await until(lambda: holders(daemon) == {"late", "new"})

        proxy.cut = True
        restore(cluster.api.store, backup)
        proxy.cut = False
        await until(lambda: holders(daemon) == {"ended"})
        await until(lambda: daemon.service.leading)

        assert cluster.taken() == before
        assert daemon.service.audit().clean
        assert await cluster.schedule(daemon.url, "late")
        assert not await bound(cluster, daemon, "another")
        assert sorted(cluster.taken().values()) == [1000, 1000, 1000]


async def test_books_in_doubt_serve_nothing_until_they_are_rebuilt() -> None:
    """The first rebuild begins at once. The second waits a little, and nothing is bound meanwhile."""
    async with disturbed() as (cluster, _, daemon):
        service = daemon.service
        before, sound = service.books, service.changed

        def broken(_: Document) -> str:
            service.changed = sound  # type: ignore[method-assign] # only one fact is missed
            raise RuntimeError

        service.changed = broken  # type: ignore[method-assign]
        await cluster.pod("first")
        await until(lambda: service.books is not before and service.leading)
        before = service.books
        service.changed = broken  # type: ignore[method-assign]
        await cluster.pod("second")
        await until(lambda: not service.leading)

        assert service.changed is sound
        assert not daemon.may_bind()
        await until(daemon.may_bind)
        assert service.books is not before


async def test_a_single_instance_binds_nothing_by_the_books_of_before_a_restore() -> None:
    """Its watches reconnect late, and it has no Lease that shows the restore."""
    patient = replace(QUICK, watches=WatchSettings(backoff=Backoff(base=600.0, cap=600.0)))
    async with (
        world(nodes=1, cards=1) as cluster,
        Proxy(cluster.url) as proxy,
        SchedulerDaemon(await cluster.client(proxy.url), patient) as daemon,
    ):
        assert not await bound(cluster, daemon, "ended")
        await cluster.pod("late")
        backup = backup_of(cluster.api.store)
        await cluster.delete("ended")
        await until(lambda: not holders(daemon))
        await asyncio.sleep(2.5)  # for its next look

        proxy.cut = True
        await asyncio.sleep(0.5)  # a watch that ends is first tried again at once
        restore(cluster.api.store, backup)
        proxy.cut = False
        await until(lambda: holders(daemon) == {"ended"})
        await until(lambda: daemon.service.leading)

        assert not await cluster.schedule(daemon.url, "late")
        assert sorted(cluster.taken().values()) == [1000]


@pytest.mark.parametrize("knows", ["kinds", "nothing"])
async def test_a_404_of_a_proxy_takes_no_devices_away(knows: str) -> None:
    """The API server's list of kinds has them; without that list it is not known, and they stay as well."""
    async with disturbed() as (cluster, proxy, daemon):
        ledger = daemon.service.books.engine.ledger
        proxy.cut = True
        proxy.unknown = "/devices" if knows == "kinds" else ("/devices", "/apis")
        await asyncio.sleep(0.1)  # for the open watches to end
        proxy.cut = False
        await until(lambda: proxy.refused > 3)

        assert ledger.node_at(ledger.index["n0"]).devices
        proxy.unknown = ""
        assert await bound(cluster, daemon, "a") == ""


class _Nobody:
    """Receives changes and keeps nothing."""

    def changed(self, document: Document) -> None:
        """See `Facts`."""

    def gone(self, document: Document) -> None:
        """See `Facts`."""


@contextlib.asynccontextmanager
async def listing(client: Client, kind: Watched) -> AsyncIterator[tuple[Feed, asyncio.Task[None]]]:
    """A feed of one kind at work, and its first list."""
    feed = Feed(client, [kind], _Nobody(), WatchSettings(backoff=Backoff(base=0.01, cap=0.05)))
    running, listed = asyncio.create_task(feed.run()), asyncio.create_task(feed.refresh())
    try:
        async with asyncio.timeout(PATIENCE):
            yield feed, listed
    finally:
        running.cancel()
        listed.cancel()
        await asyncio.wait((running, listed))


async def test_claims_behind_a_404_of_a_proxy_do_not_count_as_none() -> None:
    """A leader that starts waits for them: devices that they hold must not read as free."""
    async with world(nodes=1) as cluster, Proxy(cluster.url) as proxy:
        await cluster.api.create("resourceclaims.resource.k8s.io", CLAIM, "default")
        proxy.unknown = "/resourceclaims"
        async with listing(await cluster.client(proxy.url), CLAIMS) as (feed, listed):
            await until(lambda: proxy.refused > 3)
            assert not listed.done()
            proxy.unknown = ""
            await listed

            assert [one.name for one in feed.documents()] == ["held"]


async def test_a_kind_that_the_server_lacks_counts_as_none() -> None:
    """Its own list of kinds shows it, of a group that it lacks and of one that it has."""
    async with world(nodes=1) as cluster:
        client = await cluster.client()
        for group in ("odd.example", "resource.k8s.io"):
            lacking = replace(CLAIMS, scope=Scope(Resource(group, "v1", "odds")))
            async with listing(client, lacking) as (feed, listed):
                await listed
                assert not feed.documents()


async def test_devices_go_with_their_definition_though_nothing_tells_so() -> None:
    """Their deletion falls in a gap of the watch. Later they exist again, and pods get places on them."""
    async with disturbed() as (cluster, proxy, daemon):
        ledger = daemon.service.books.engine.ledger
        proxy.cut = True
        await cluster.api.delete(DEFINITIONS, "", "devices.scheduling.koordinator.sh")
        proxy.cut = False
        await until(lambda: not ledger.node_at(ledger.index["n0"]).devices)
        await cluster.pod("a")
        assert not (await cluster.filter(daemon.url, "a"))["NodeNames"]

        await cluster.api.create(DEFINITIONS, DEVICE_KIND)
        await cluster.api.create("devices.scheduling.koordinator.sh", device("n0", 1))
        await until(lambda: ledger.node_at(ledger.index["n0"]).devices)

        assert await cluster.schedule(daemon.url, "a") == "n0"


async def test_the_api_server_may_be_started_anew(tmp_path: Path) -> None:
    """The same objects have the same address, and the scheduler goes on."""
    settings = Settings(file=tmp_path / "state.json")
    port = free_port()

    async def create(api: ApiServer, resource: str, *objects: dict[str, Any]) -> None:
        for one in objects:
            await api.create(resource, one, one["metadata"].get("namespace", ""))

    api = ApiServer(settings)
    async with Client(Config(ClusterConfig(f"http://127.0.0.1:{port}"))) as client:
        async with serve(api, port=port):
            await create(api, "customresourcedefinitions.apiextensions.k8s.io", DEVICE_KIND)
            await create(api, "nodes", node("n0"))
            await create(api, "devices.scheduling.koordinator.sh", device("n0"))
            await create(api, "pods", pod("a"))
            daemon = SchedulerDaemon(client, QUICK)
            stop = asyncio.Event()
            running = asyncio.create_task(daemon.run(stop))
            await until(lambda: daemon.service.leading)
        again = ApiServer(settings)
        async with serve(again, port=port):
            await create(again, "nodes", node("n1"))
            await until(lambda: "n1" in daemon.service.books.engine.ledger.index)
            assert "n0" in daemon.service.books.engine.ledger.index
            stop.set()
            async with asyncio.timeout(PATIENCE):
                await running


async def test_books_that_went_wrong_are_made_anew() -> None:
    """The audit finds units that no pod holds, and a rebuild releases them."""
    async with world(nodes=1, cards=1) as cluster:
        client = await cluster.client()
        async with SchedulerDaemon(client, SchedulerOptions(audit=0.1)) as daemon:
            assert await bound(cluster, daemon, "a") == ""
            await until(lambda: holders(daemon) == {"a"})
            daemon.service.pod_gone(cluster.stored("a")["metadata"]["uid"])  # as if it were true

            await until(lambda: holders(daemon) == {"a"} and daemon.service.leading)

            await until(lambda: (found := daemon.service.last_audit) and found.clean)


async def test_a_fault_in_the_audit_costs_a_rebuild_and_not_the_service(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Books that cannot be checked are in doubt."""
    async with world(nodes=1, cards=1) as cluster:
        client = await cluster.client()
        async with SchedulerDaemon(client, SchedulerOptions(audit=0.1)) as daemon:
            wrong = daemon.service.books
            assert await bound(cluster, daemon, "a") == ""
            genuine = daemon.service.audit_gently

            async def broken(pods: Callable[[], Sequence[Document]]) -> Audit | None:
                if daemon.service.books is wrong:
                    raise KeyError("a bug")
                return await genuine(pods)

            monkeypatch.setattr(daemon.service, "audit_gently", broken)

            await until(lambda: daemon.service.books is not wrong and daemon.service.leading)
            await until(lambda: (found := daemon.service.last_audit) and found.clean)
            assert holders(daemon) == {"a"}
    assert "the audit failed" in caplog.text

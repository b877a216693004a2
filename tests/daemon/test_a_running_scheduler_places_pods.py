"""One instance beside an API server: it places pods, makes them wait, wakes them, and releases their devices."""

import gc
import json
import socket
import weakref

import pytest
from daemon_world import pod, until, world

from fakes.ports import free_port
from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.vendors import names


async def test_pods_get_cards_by_filter_and_bind() -> None:
    """The transaction that binds the pod also writes its allocation."""
    async with world(nodes=1) as cluster, SchedulerDaemon(await cluster.client()) as daemon:
        await cluster.pod("a")
        await cluster.pod("b")

        assert await cluster.schedule(daemon.url, "a") == "n0"
        assert await cluster.schedule(daemon.url, "b") == "n0"

        assert set(cluster.taken().values()) == {1000}
        assert len(cluster.taken()) == 2


async def test_what_runs_already_is_taken_over() -> None:
    """A second instance after the first one finds the same books."""
    async with world(nodes=1) as cluster:
        async with SchedulerDaemon(await cluster.client()) as daemon:
            await cluster.pod("a")
            assert await cluster.schedule(daemon.url, "a") == "n0"

        async with SchedulerDaemon(await cluster.client()) as daemon:
            await cluster.pod("b", {"koordinator.sh/gpu": "200"})
            assert await cluster.schedule(daemon.url, "b") == ""
            await cluster.pod("c")
            assert await cluster.schedule(daemon.url, "c") == "n0"
            assert daemon.service.audit().clean

        assert set(cluster.taken().values()) == {1000}


async def test_a_fault_in_the_periodic_work_ends_no_service() -> None:
    """It costs a rebuild of the ledger, as a fault in reading a fact does."""
    faults = [RuntimeError("a fault of ours")]

    def periodic(_now: float) -> None:
        if faults:
            raise faults.pop()

    async with (
        world(nodes=1) as cluster,
        SchedulerDaemon(await cluster.client(), SchedulerOptions(tick=0.05)) as daemon,
    ):
        before = daemon.service.books
        daemon.service.periodic = periodic
        await until(lambda: daemon.service.books is not before and not daemon.service.closed)

        await cluster.pod("a")
        assert await cluster.schedule(daemon.url, "a") == "n0"


async def test_a_pod_whose_wish_is_cut_down_is_told() -> None:
    """The pod gets one event, and its permit beside its record."""
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "partage-config"}}
    async with world(nodes=1) as cluster:
        rules = {"permits": "[{name: rest, namespaces: ['*'], policy: burst-share}]"}
        await cluster.api.create("configmaps", {**config, "data": rules}, "kube-system")
        async with SchedulerDaemon(await cluster.client()) as d:
            shape = pod(
                "a", {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
            )
            shape["metadata"]["annotations"] = {names.QGPU_APP_CLASS: "online"}
            await cluster.api.create("pods", shape, "default")
            assert await cluster.schedule(d.url, "a") == "n0"
            await until(lambda: cluster.events("a"))

    (event,) = cluster.events("a")
    assert event["reason"] == "WishCutDown"
    assert event["message"] == "online is not granted by rule rest"
    said = json.loads(cluster.stored("a")["metadata"]["annotations"][names.PERMIT])
    assert (said["rule"], said["policy"], "online" in said) == ("rest", "burst-share", False)


async def test_a_waiting_pod_is_told_why_and_woken_when_room_appears() -> None:
    """The pod gets one event with the reason; later a change of the pod wakes kube-scheduler."""
    async with world(nodes=1, cards=1) as cluster, SchedulerDaemon(await cluster.client()) as d:
        await cluster.pod("a")
        await cluster.pod("b")
        assert await cluster.schedule(d.url, "a") == "n0"
        for _ in range(5):
            assert await cluster.schedule(d.url, "b") == ""
        await until(lambda: cluster.events("b"))

        await cluster.delete("a")
        await until(lambda: names.WOKEN in cluster.stored("b")["metadata"].get("annotations", {}))

        assert await cluster.schedule(d.url, "b") == "n0"
        (event,) = cluster.events("b")
        assert event["reason"] == "WaitingForDevice"
        assert event["message"].startswith("InsufficientCards: 0/1 nodes")


async def test_nodes_that_come_and_go_are_heard_of() -> None:
    """A new node takes pods; a deleted node takes none."""
    async with world(nodes=0) as cluster, SchedulerDaemon(await cluster.client()) as daemon:
        await cluster.pod("a")
        assert await cluster.schedule(daemon.url, "a") == ""

        await cluster.nodes(1)
        books = daemon.service.books
        await until(
            lambda: books.engine.ledger.index and books.cluster_cache.device_document("n0")
        )
        assert await cluster.schedule(daemon.url, "a") == "n0"

        await cluster.api.delete("nodes", "", "n0")
        await until(lambda: not daemon.service.books.engine.ledger.index)
        await cluster.pod("b")
        assert await cluster.schedule(daemon.url, "b") == ""


async def test_it_starts_before_the_device_kind_is_installed() -> None:
    """A cluster without the kind Device counts as empty and is no error."""
    async with world(nodes=0) as cluster:
        crd = "customresourcedefinitions.apiextensions.k8s.io"
        await cluster.api.delete(crd, "", "devices.scheduling.koordinator.sh")

        async with SchedulerDaemon(await cluster.client()) as daemon:
            assert daemon.service.rebuilt


async def test_controllers_work_beside_it() -> None:
    """Node totals appear from the Device object, and their series at /metrics."""
    async with world(nodes=1) as cluster, SchedulerDaemon(await cluster.client()) as daemon:

        def totals() -> dict[str, str]:
            found = cluster.stored("n0", "nodes", "")["status"].get("allocatable", {})
            return {key: value for key, value in found.items() if "gpu" in key}

        await until(lambda: totals().get("koordinator.sh/gpu") == "200")
        async with cluster.http.get(f"{daemon.url}/metrics") as answer:
            assert "partage_controller" in await answer.text()


async def test_the_configuration_is_shown_and_explanations_can_be_bound_to_readers() -> None:
    """`/api/config/<node>` is beside the verbs; `/api/explain` refuses callers without a token."""
    async with world(nodes=1) as cluster:
        client = await cluster.client()
        async with SchedulerDaemon(client, SchedulerOptions(authorize=True)) as daemon:
            await cluster.pod("a")
            async with cluster.http.get(f"{daemon.url}/api/config/n0") as answer:
                assert (await answer.json())["totals"]["kubernetes.io/gpu"] == "200"
            async with cluster.http.get(f"{daemon.url}/api/explain/default/a") as answer:
                assert answer.status == 403


async def test_a_port_that_is_taken_leaves_no_other_open() -> None:
    """A process that goes on without the service does not answer on a port of it."""
    async with world() as cluster:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = free_port()
            options = SchedulerOptions(port=port, read_port=taken.getsockname()[1])
            with pytest.raises(OSError, match="address already in use"):
                await SchedulerDaemon(await cluster.client(), options).__aenter__()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


async def test_what_a_rebuild_replaces_is_freed_without_a_collection() -> None:
    """Nor do pages that were looked at keep it: a large cluster's would be in memory twice."""
    async with world(nodes=2) as cluster, SchedulerDaemon(await cluster.client()) as daemon:
        for name, count in (("a", "100"), ("b", "800")):
            await cluster.pod(name, {"koordinator.sh/gpu": count})
            await cluster.schedule(daemon.url, name)
        for page in ("overview", "fleet", "nodes", "pods?protocol=koordinator", "comparison"):
            async with cluster.http.get(f"{daemon.url}/api/{page}") as answer:
                assert answer.status == 200
        books = daemon.service.books
        parts = (books, books.cluster_cache, books.engine, books.engine.ledger)
        replaced = [weakref.ref(one) for one in parts]
        gc.collect()
        gc.disable()
        try:
            await daemon._load()
            del books, parts
            await until(lambda: not any(one() for one in replaced))
        finally:
            gc.enable()

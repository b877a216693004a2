"""`/metrics`: the names of HAMi and qGPU, our own names, and their bounds."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from wire_client import Running
from world import Manifest, device, document, half, node, pod, whole

from partage.extender.exposition import exposition
from partage.extender.service import Meters

Samples = dict[str, list[tuple[dict[str, str], float]]]
HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "25"}
MODEL = {"node.koordinator.sh/gpu-model": "A100", "node.koordinator.sh/gpu-vendor": "nvidia"}


def _scrape(site: Running) -> Samples:
    status, headers, body = site.get("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    found: Samples = {}
    seen: set[str] = set()
    for family in text_string_to_metric_families(body.decode()):
        assert family.name not in seen, "a family is written in two pieces"
        seen.add(family.name)
        series = [(one.name, *sorted(one.labels.items())) for one in family.samples]
        assert len(series) == len(set(series)), f"{family.name} has two series that are alike"
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def _scene(pods: Iterable[Manifest] = (), *, pod_series: bool = False) -> Running:
    return Running(node(), device("n1", **MODEL), *pods, pod_series=pod_series)


def test_namespaces_are_told_what_their_pods_hold_by_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compute and memory of cards; namespaces beyond the bound are counted and omitted."""
    with _scene() as site:
        site.run(site.world.place(pod("web", HAMI)))
        found = _scrape(site)["partage_namespace_units"]
        monkeypatch.setattr("partage.extender.exposition._NAMESPACES", 0)
        bounded = _scrape(site)

    base = {"namespace": "team", "protocol": "hami"}
    assert found == [
        ({"dimension": "core_milli", **base}, 250),
        ({"dimension": "memory_bytes", **base}, 4 * 2**30),
    ]
    assert "partage_namespace_units" not in bounded
    assert bounded["partage_metrics_namespaces_omitted"] == [({}, 1)]


def test_hamis_series_have_the_published_names_labels_and_units() -> None:
    """Bytes for memory, percent for compute, and the zone that every HAMi series carries."""
    base = {
        "node": "n1",
        "device_uuid": "GPU-0",
        "device_index": "0",
        "device_type": "A100",
        "zone": "vGPU",
    }
    with _scene() as site:
        site.run(site.world.place(pod("web", HAMI)))
        found = _scrape(site)

    assert found["hami_gpu_memory_limit_bytes"][0] == (base, 16 * 2**30)
    assert found["hami_gpu_core_limit_ratio"][0] == (base, 100)
    assert found["hami_gpu_memory_allocated_bytes"][0] == (
        {**base, "device_cores": "100"},
        4 * 2**30,
    )
    assert found["hami_gpu_shared_count"][0] == (base, 1)
    assert found["hami_gpu_core_allocated_ratio"][0] == (base, 25)
    assert found["hami_node_gpu_memory_allocated_ratio"][0] == (base, 0.25)
    assert found["hami_node_gpu_overview"][0] == (
        {**base, "device_cores": "100", "device_memory_limit": "16384"},
        4 * 2**30,
    )
    assert found["hami_gpu_shared_count"][1][1] == 0


def test_hamis_older_names_are_there_too() -> None:
    """Dashboards of up to 2.8 read only these."""
    old = {
        "nodeid": "n1",
        "deviceuuid": "GPU-0",
        "deviceidx": "0",
        "devicetype": "A100",
        "zone": "vGPU",
    }
    with _scene() as site:
        site.run(site.world.place(pod("web", HAMI)))
        found = _scrape(site)

    assert found["GPUDeviceMemoryLimit"][0] == (old, 16 * 2**30)
    assert found["GPUDeviceCoreLimit"][0] == (old, 100)
    assert found["GPUDeviceMemoryAllocated"][0] == ({**old, "devicecores": "25"}, 4 * 2**30)
    assert found["GPUDeviceSharedNum"][0] == (old, 1)
    assert found["GPUDeviceCoreAllocated"][0] == (old, 25)
    assert found["nodeGPUMemoryPercentage"][0][1] == 0.25
    assert found["nodeGPUOverview"][0][0]["sharedcontainers"] == "1"
    assert not [name for name in found if "mig" in name.lower()]


def test_qgpus_gauges_count_percent_and_mebibytes() -> None:
    """Labels are card and node."""
    with _scene() as site:
        site.run(site.world.place(pod("web", half())))
        found = _scrape(site)

    labels = {"card": "0", "node": "n1"}
    assert found["gpu_core_allocatable"][0] == (labels, 100)
    assert found["gpu_core_allocated"][0] == (labels, 50)
    assert found["gpu_core_available"][0] == (labels, 50)
    assert found["gpu_mem_allocatable"][0] == (labels, 16384)
    assert found["gpu_mem_allocated"][0] == (labels, 8192)
    assert found["gpu_mem_available"][0] == (labels, 8192)


def test_series_of_pods_are_written_where_asked_for() -> None:
    """Their number is that of pods, so they are off by default."""
    init = {"initContainers": [{"name": "first"}]}
    web = pod("web", HAMI, **init)
    with _scene() as site:
        site.run(site.world.place(web))
        default = _scrape(site)
    with _scene(pod_series=True) as site:
        site.run(site.world.place(web))
        found = _scrape(site)

    assert "hami_vgpu_memory_allocated_bytes" not in default
    today = {
        "namespace": "team",
        "node": "n1",
        "pod": "web",
        "container_index": "1",
        "device_uuid": "GPU-0",
        "zone": "vGPU",
    }
    assert found["hami_vgpu_memory_allocated_bytes"] == [(today, 4 * 2**30)]
    assert found["hami_vgpu_core_allocated_ratio"] == [(today, 25)]
    assert found["vGPUMemoryAllocated"][0][0]["podname"] == "web"
    assert found["vGPUCoreAllocated"][0][1] == 25
    qgpu = {
        "card": "0",
        "node": "n1",
        "container_name": "main",
        "namespace": "team",
        "pod_name": "web",
    }
    assert found["gpu_core_allocated"] == [(qgpu, 25)]
    assert found["gpu_mem_allocated"] == [(qgpu, 4096)]


def test_instances_of_one_card_are_one_series_of_their_container() -> None:
    """The HAMi document's pod has two instances of 10 GiB on one card; a reader would keep one of two equal series."""
    registered = """[{"id":"GPU-0","count":10,"devmem":40960,"devcore":100,
        "type":"NVIDIA A100-SXM4-40GB","mode":"mig","health":true}]"""
    annotations = {"hami.io/node-nvidia-register": registered}
    asked = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000"}
    with Running(node(annotations=annotations), pod_series=True) as site:
        site.run(site.world.place(pod("web", asked)))
        found = _scrape(site)

    card = found["hami_gpu_memory_allocated_bytes"][0][1]
    assert [value for _, value in found["hami_vgpu_memory_allocated_bytes"]] == [card]
    assert [value for _, value in found["vGPUCoreAllocated"]] == [57]
    assert [value for _, value in found["gpu_mem_allocated"]] == [card / 2**20]


def test_other_tasks_run_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a family with a series for every pod; a piece has few lines."""
    monkeypatch.setattr("partage.extender.exposition._PIECE", 2)
    with _scene(pod_series=True) as site:
        for number in range(5):
            site.run(site.world.place(pod(f"web-{number}", HAMI)))

        async def read() -> list[bytes]:
            return [one async for one in exposition(site.world.service.books, of_pods=True)]

        pieces = [one.decode() for one in site.run(read())]

    of_pods = [one for one in pieces if one.startswith("hami_vgpu_memory_allocated_bytes{")]
    assert [one.count("\n") for one in of_pods] == [2, 2, 1]


def test_cards_beyond_the_bound_have_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """One series has the number of omitted cards."""
    with _scene() as site:
        found = _scrape(site)
        monkeypatch.setattr("partage.extender.exposition._MOST_CARDS", 1)
        bounded = _scrape(site)

    assert "hami_gpu_shared_count" in found
    assert found["partage_metrics_cards_omitted"] == [({}, 0)]
    assert "hami_gpu_shared_count" not in bounded
    assert bounded["partage_metrics_cards_omitted"] == [({}, 2)]


def test_quotas_are_told_by_their_device_keys() -> None:
    """Used amount and limit, in the units of the resource."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": "team"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "8000", "pods": "5"}},
    }
    with _scene([quota]) as site:
        site.run(site.world.place(pod("web", HAMI)))
        found = _scrape(site)

    labels = {"namespace": "team", "quota_name": "nvidia.com/gpumem", "zone": "vGPU"}
    assert found["hami_resource_quota_used"] == [({**labels, "limit": "8000"}, 4096)]
    assert found["hami_resource_quota_limit"] == [(labels, 8000)]
    assert found["QuotaUsed"][0][1] == 4096


def test_our_own_series_tell_decisions_waits_and_the_state_of_the_books() -> None:
    """Their number depends on codes and verbs, never on nodes or pods."""
    args = {"NodeNames": ["n1"]}
    with _scene() as site:
        site.run(site.world.place(pod("web", whole())))
        site.post("/scheduler/filter", {"Pod": pod("held", half()), **args})
        site.post("/scheduler/filter", {"Pod": pod("big", whole(9)), **args})
        site.post("/scheduler/filter", {"Pod": pod("plain"), **args})
        site.world.service.audit()
        found = _scrape(site)

    decisions = {(s["verb"], s["outcome"]): v for s, v in found["partage_decisions_total"]}
    assert decisions["filter", "passed"] == 2
    assert decisions["filter", "refused"] == 1
    assert decisions["filter", "without_devices"] == 1
    assert decisions["bind", "done"] == 1
    assert found["partage_waiting_pods"] == [({"code": "InsufficientCards"}, 1)]
    assert found["partage_holds"] == [({}, 1)]
    assert found["partage_leader"] == found["partage_ready"] == [({}, 1)]
    leaked = {s["dimension"]: v for s, v in found["partage_audit_leaked_units"]}
    assert leaked == {"core_milli": 0, "memory_bytes": 0, "slots": 0}
    assert found["partage_audit_clean"] == [({}, 1)]
    counted = {s["verb"]: v for s, v in found["partage_verb_seconds_count"]}
    assert counted["filter"] == 3
    pool = {(s["dimension"], s["state"]): v for s, v in found["partage_pool_units"]}
    assert pool["core_milli", "offered"] == 2000
    assert pool["core_milli", "allocated"] == 1500
    assert pool["core_milli", "quarantined"] == 0


def test_quarantined_capacity_is_counted() -> None:
    """An alert can use it."""
    with _scene() as site:
        site.world.service.changed(document(pod("rogue", whole(), nodeName="n1")))
        found = _scrape(site)

    pool = {(s["dimension"], s["state"]): v for s, v in found["partage_pool_units"]}
    states = {(s["type"], s["state"]): v for s, v in found["partage_devices"]}
    assert pool["core_milli", "quarantined"] == 1000
    assert states["gpu", "Quarantined"] == 1


def test_the_time_from_waking_to_binding_is_measured() -> None:
    """It goes from the release to the next bind, as the pod's owner experiences it."""
    with _scene() as site:
        site.run(site.world.place(pod("full", whole(2))))
        site.world.filter(site.world.create(pod("web", whole())))
        site.world.service.pod_gone("uid-full")
        site.world.clock.pass_time(0.2)
        site.run(site.world.place(pod("web", whole())))
        found = _scrape(site)

    assert found["partage_wake_to_bind_seconds_count"] == [({}, 1)]
    assert found["partage_wake_to_bind_seconds_sum"][0][1] == pytest.approx(0.2)


def test_names_are_escaped_in_labels() -> None:
    """A quote in a model's name does not end the label."""
    odd = {
        "node.koordinator.sh/gpu-model": 'A"1\\00\n',
        "node.koordinator.sh/gpu-vendor": "nvidia",
    }
    with Running(node(), device("n1", **odd)) as site:
        found = _scrape(site)

    assert found["hami_gpu_shared_count"][0][0]["device_type"] == 'A"1\\00\n'


def test_two_services_do_not_share_their_series() -> None:
    """No registry is global."""
    one, two = Meters(), Meters()
    one.verbs.labels("filter").observe(1.0)

    assert one.registry is not two.registry
    value = two.registry.get_sample_value("partage_verb_seconds_count", {"verb": "filter"})
    assert value is None


def test_every_series_is_in_the_reference() -> None:
    """All series of the program are documented."""
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text("utf-8")
    with _scene(pod_series=True) as site:
        body = site.get("/metrics")[2].decode()

    for family in text_string_to_metric_families(body):
        name = family.name.removesuffix("_created")
        assert f"`{name}" in page, name

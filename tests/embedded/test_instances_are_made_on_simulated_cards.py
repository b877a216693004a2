"""The page on dynamic MIG, step by step, on simulated A100s and H100s; and cards that others cut."""

import json
from typing import Any

import pytest
from up_world import DEVICES, EXAMPLES, eventually, from_files, node, run, running
from up_world import pod as pod_

from partage.vendors import names

ONLY = {"nvidia.com/vgpu-mode": "mig"}
ASKED = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 8000}
MODELS = [
    pytest.param(
        "A100-SXM4-40GB",
        "2g.10gb",
        ["2g.10gb-0", "2g.10gb-1", "2g.10gb-2", "1g.5gb-3"],
        id="A100-40GB",
    ),
    pytest.param("A100-SXM4-80GB", "1g.10gb", [f"1g.10gb-{i}" for i in range(7)], id="A100-80GB"),
    pytest.param("H100-80GB-HBM3", "1g.10gb", ["1g.10gb-0", "1g.10gb-1"], id="H100"),
]


def configured(*modes: tuple[str, str]) -> dict[str, Any]:
    """HAMi's ConfigMap with the operating mode of nodes."""
    config = {
        "nodeconfig": [
            {"name": name, "operatingmode": mode, "filterdevices": {"uuid": [], "index": []}}
            for name, mode in modes
        ]
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hami-device-plugin", "namespace": "kube-system"},
        "data": {"config.json": json.dumps(config)},
    }


def test_a_lone_count_may_be_an_instance_and_runs() -> None:
    """The whole card of a node in mode mig: its record is HAMi's, as Koordinator's knows no instance."""

    async def story() -> None:
        simulated = node("mig-node", "A100-SXM4-40GB", 1, registers=("hami",), mode="mig")
        async with running([simulated]) as w:
            await w.create("/api/v1/namespaces/default/pods", pod_("lone", {"nvidia.com/gpu": 1}))
            found = await w.until(
                "lone", lambda pod: pod["status"].get("phase") in ("Running", "Failed")
            )
            assert found["status"]["phase"] == "Running", found["status"]
            (grant,) = json.loads(found["metadata"]["annotations"][names.ALLOCATION])[
                "containers"
            ][0]["devices"]
            assert (grant["mig"]["profile"], grant["protocol"]) == ("7g.40gb", "hami")
            assert names.DEVICE_ALLOCATED not in found["metadata"]["annotations"]

    run(story())


@pytest.mark.parametrize(("model", "profile", "slots"), MODELS)
def test_the_pages_pod_gets_two_instances(model: str, profile: str, slots: list[str]) -> None:
    """The HAMi document: mode by ConfigMap, two instances of 8000 MiB or more, their series, no mig resource.

    The table of the page has no H100, so any layout will do there, and only what exists is shown.
    """

    async def story() -> None:
        table = [
            one
            for one in from_files(EXAMPLES / "hami/config.yaml").objects
            if one.name == "hami-scheduler-device"
        ]
        assert table
        simulated = node("mig-node", model, 2, registers=("hami",))
        async with running([simulated], table) as w:
            maps = "/api/v1/namespaces/kube-system/configmaps"
            await w.create(maps, configured(("mig-node", "mig")))
            await w.create(
                "/api/v1/namespaces/default/pods",
                pod_("gpu-pod", ASKED, meta={"annotations": ONLY}),
            )
            bound = await w.phase("gpu-pod", "Running")
            record = json.loads(bound["metadata"]["annotations"][names.ALLOCATION])
            (container,) = record["containers"]
            given = [one["mig"]["profile"] for one in container["devices"]]
            assert given == [profile] * 2
            metrics = str(await w.get("/metrics", scheduler=True))
            lines = [
                line for line in metrics.splitlines() if line.startswith("nodeGPUMigInstance{")
            ]
            uuids = {one["uuid"] for one in container["devices"]}
            shown = [
                line.split('migname="')[1].split('"')[0]
                for line in lines
                if line.split('deviceuuid="')[1].split('"')[0] in uuids
            ]
            assert shown == slots * len(uuids)
            assert sum(line.endswith(" 1") for line in lines) == 2
            assert all('nodeid="mig-node",zone="vGPU"}' in line for line in lines)
            totals = (await w.get("/api/v1/nodes/mig-node"))["status"]
            assert not [
                name
                for part in ("allocatable", "capacity")
                for name in totals[part]
                if name.startswith("nvidia.com/mig-")
            ]

    run(story())


def test_nobody_goes_where_others_cut_a_card() -> None:
    """The pod waits with what is in the way; totals stay; the place is allocated when it is free again."""

    async def story() -> None:
        simulated = node("n0", "H100-80GB-HBM3", 1)
        async with running([simulated]) as w:
            maps = "/api/v1/namespaces/kube-system/configmaps"
            await w.create(maps, configured(("n0", "mig")))
            device = await eventually(lambda: w.get(DEVICES), lambda found: found["items"])
            (card,) = device["items"][0]["spec"]["devices"]
            reported = await eventually(
                lambda: w.get("/api/v1/nodes/n0"),
                lambda found: names.KOORD_GPU_MEMORY in found["status"]["allocatable"],
            )
            before = reported["status"]["allocatable"]
            entry = {"profile": "3g.40gb", "start": 4, "size": 4, "uuids": ["MIG-other"]}
            told = json.dumps({"v": 1, "cards": {card["id"]: {"instances": [entry]}}})
            patch = {"metadata": {"annotations": {names.FOREIGN_INSTANCES: told}}}
            await w.patch(f"{DEVICES}/n0", patch)
            await w.heard()
            whole = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}
            await w.create(
                "/api/v1/namespaces/default/pods", pod_("whole", whole, meta={"annotations": ONLY})
            )
            why = await w.refused("whole")
            assert "blocked by an instance that partage did not make at 4" in why
            explained = await w.get("/api/explain/default/whole", scheduler=True)
            assert "an instance that partage did not make at 4" in json.dumps(explained)
            half = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 40000}
            await w.create(
                "/api/v1/namespaces/default/pods", pod_("half", half, meta={"annotations": ONLY})
            )
            bound = await w.phase("half", "Running")
            record = json.loads(bound["metadata"]["annotations"][names.ALLOCATION])
            assert record["containers"][0]["devices"][0]["mig"]["start"] == 0
            metrics = str(await w.get("/metrics", scheduler=True))
            assert 'mig_uuid="MIG-other",node="n0"' in metrics
            assert (await w.get("/api/v1/nodes/n0"))["status"]["allocatable"] == before

            nodes = await w.get("/api/nodes", scheduler=True)
            (shown,) = nodes["nodes"][0]["cards"]
            assert shown["foreign"] == [{"profile": "3g.40gb", "start": 4, "size": 4}]

            code, _ = await w.send("DELETE", "/api/v1/namespaces/default/pods/half", {})
            assert code == 200
            none = {"metadata": {"annotations": {names.FOREIGN_INSTANCES: '{"v":1,"cards":{}}'}}}
            await w.patch(f"{DEVICES}/n0", none)
            await w.phase("whole", "Running")

    run(story())


def test_a_card_that_nobody_knows_is_closed() -> None:
    """An annotation that cannot be read closes the cards, and a right one opens them again."""

    async def story() -> None:
        async with running([node("n0", "H100-80GB-HBM3", 1)]) as w:
            odd = {"metadata": {"annotations": {names.FOREIGN_INSTANCES: "oops"}}}
            await w.patch(f"{DEVICES}/n0", odd)

            async def state() -> dict[str, Any]:
                return await w.state("n0")

            await eventually(state, lambda found: found["state"] == "1 Quarantined")
            await w.create("/api/v1/namespaces/default/pods", pod_("share", {"nvidia.com/gpu": 1}))
            assert "quarantined" in await w.refused("share")
            right = {"metadata": {"annotations": {names.FOREIGN_INSTANCES: None}}}
            await w.patch(f"{DEVICES}/n0", right)
            await w.phase("share", "Running")

    run(story())

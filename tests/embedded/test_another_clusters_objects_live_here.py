"""What `kubectl get -o yaml` printed of another cluster: its objects know owners by UIDs that mean nothing here."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from up_world import DEVICES, PODS, World, eventually, from_files, node, run, running

from published.koordinator_manifests import DEVICE

APPS = "/apis/apps/v1/namespaces/default"
LISTS = ("/api/v1/nodes", DEVICES, f"{APPS}/deployments", f"{APPS}/replicasets", PODS)
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host04"}}
WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: busybox
        resources: {limits: {koordinator.sh/gpu: "50"}}
"""


async def owners(w: World, path: str) -> list[str]:
    """UIDs of an object's owners."""
    return [one["uid"] for one in (await w.get(path))["metadata"].get("ownerReferences", ())]


@pytest.mark.parametrize("first", ["Node", "Device"])
def test_a_printed_device_serves_its_node(first: str) -> None:
    """The Koordinator document prints a Device that its Node owns: it stays, and is the Node's, if that is there."""

    async def story() -> None:
        async with running([]) as w:
            device = yaml.safe_load(DEVICE)
            del device["metadata"]["resourceVersion"]  # which no server creates an object with
            both = [("/api/v1/nodes", NODE), (DEVICES, device)]
            for path, one in both if first == "Node" else reversed(both):
                await w.create(path, one)
            found = await eventually(
                lambda: w.get("/api/v1/nodes/host04"),
                lambda one: one["status"]["allocatable"].get("kubernetes.io/gpu"),
            )
            assert found["status"]["allocatable"]["kubernetes.io/gpu-memory"] == "32Gi"
            mine = [found["metadata"]["uid"]] if first == "Node" else []
            assert await owners(w, f"{DEVICES}/host04") == mine

            changed = {"metadata": {"ownerReferences": device["metadata"]["ownerReferences"]}}
            await w.patch(f"{DEVICES}/host04", changed)
            assert await owners(w, f"{DEVICES}/host04") == [found["metadata"]["uid"]]

            await w.send("DELETE", "/api/v1/nodes/host04", {})
            await w.get(f"{DEVICES}/host04", code=404)

    run(story())


def test_a_dumped_cluster_goes_on(tmp_path: Path) -> None:
    """Nodes keep their devices and workloads their pods, each on its card, and all owners are as before."""
    dump = tmp_path / "dump.json"

    async def placed(w: World) -> dict[str, Any]:
        found = await eventually(
            lambda: w.get(PODS),
            lambda one: [pod["status"].get("phase") for pod in one["items"]] == ["Running"] * 2,
        )
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in found["items"]}

    async def story() -> None:
        async with running([node("n0"), node("n1", registers=("hami",))]) as w:
            await w.create(f"{APPS}/deployments", yaml.safe_load(WEB))
            before = await placed(w)
            items = [
                {"kind": found["kind"].removesuffix("List"), "apiVersion": found["apiVersion"]}
                | one
                for path in LISTS
                for found in [await w.get(path)]
                for one in found["items"]
            ]
        dump.write_text(json.dumps({"kind": "List", "items": items}), encoding="utf-8")

        async with running([], from_files(dump).objects) as w:
            assert w.cluster.outcome.refused == []
            assert await placed(w) == before
            assert [one["metadata"]["name"] for one in (await w.get(DEVICES))["items"]] == [
                "n0",
                "n1",
            ]
            (replicas,) = (await w.get(f"{APPS}/replicasets"))["items"]
            for name in before:
                await eventually(
                    lambda at=name: w.get(f"{PODS}/{at}"),
                    lambda one: (
                        [by["uid"] for by in one["metadata"].get("ownerReferences", ())]
                        == [replicas["metadata"]["uid"]]
                    ),
                )
            used = await w.get("/api/overview", scheduler=True)
            assert used["core_milli"]["used"] == 1000

    run(story())

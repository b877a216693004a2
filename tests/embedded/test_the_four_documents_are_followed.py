"""The steps that the four published documents walk their readers through.

With plain HTTP, and with every genuine kubectl that is there.
"""

import json
from pathlib import Path

import pytest
from up_world import EXAMPLES, PODS, eventually, from_files, run, running

from kubectl import USERS, Kubectl, binaries, user
from partage.model.quantity import Quantity

SUMMARIES = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"

POD_EXAMPLE = """
apiVersion: v1
kind: Pod
metadata:
  name: pod-example
  namespace: default
spec:
  schedulerName: koord-scheduler
  containers:
  - command:
    - sleep
    - 365d
    image: busybox
    imagePullPolicy: IfNotPresent
    name: curlimage
    resources:
      limits:
        cpu: 40m
        memory: 40Mi
      requests:
        cpu: 40m
        memory: 40Mi
        kubernetes.io/gpu: "100"
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
  restartPolicy: Always
"""
QGPU = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: qgpu-service}
spec:
  replicas: 2
  selector: {matchLabels: {app: qgpu-service}}
  template:
    metadata: {labels: {app: qgpu-service}}
    spec:
      containers:
      - name: serve
        image: busybox
        resources:
          limits: {tke.cloud.tencent.com/qgpu-memory: "5", tke.cloud.tencent.com/qgpu-core: "30"}
          requests: {tke.cloud.tencent.com/qgpu-memory: "5", tke.cloud.tencent.com/qgpu-core: "30"}
"""
HAMI = """
apiVersion: v1
kind: Pod
metadata:
  name: gpu-pod
  annotations:
    nvidia.com/vgpu-mode: "mig"
spec:
  containers:
  - name: ubuntu-container
    image: ubuntu:18.04
    command: ["bash", "-c", "sleep 86400"]
    resources:
      limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 8000}
"""
BINARY = pytest.mark.parametrize("binary", binaries())


@USERS
def test_koordinators_page(binary: Path | str, tmp_path: Path) -> None:
    """The Koordinator document: the Device, the node's totals, the pod's annotation, the debug API."""

    async def story() -> None:
        found = from_files(EXAMPLES / "koordinator/host04.yaml")
        async with running((), found.objects) as w:
            hand = user(binary, w, tmp_path)
            device = await hand.get("device", "host04")
            assert [one["id"][:12] for one in device["spec"]["devices"]] == [
                "GPU-04cea5cd",
                "GPU-3680858f",
            ]
            node = await hand.get("node", "host04")
            for part in ("allocatable", "capacity"):
                totals = node["status"][part]
                assert totals["kubernetes.io/gpu"] == totals["kubernetes.io/gpu-core"] == "200"
                assert totals["kubernetes.io/gpu-memory"] == "32Gi"
                assert totals["kubernetes.io/gpu-memory-ratio"] == "200"
                assert totals["nvidia.com/gpu"] == "2"

            await hand.apply(POD_EXAMPLE)
            pod = await hand.running("pod-example")
            written = pod["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"]
            (card,) = json.loads(written)["gpu"]
            assert card["resources"] == {
                "kubernetes.io/gpu-core": "100",
                "kubernetes.io/gpu-memory": "16Gi",
                "kubernetes.io/gpu-memory-ratio": "100",
            }
            resources = pod["spec"]["containers"][0]["resources"]
            assert resources["limits"]["kubernetes.io/gpu"] == "100"
            assert pod["status"]["podIPs"]

            summary = await w.get(f"{SUMMARIES}/host04", scheduler=True)
            used = summary["allocateSet"]["gpu"]["default/pod-example"]
            assert list(used) == [str(card["minor"])]
            assert summary["deviceUsed"]["kubernetes.io/gpu-core"] == "100"

    run(story())


@USERS
def test_metaxs_page(binary: Path | str, tmp_path: Path) -> None:
    """The MetaX document: the Device with its label, the node's totals, the sGPU pod with capitals in its name."""

    async def story() -> None:
        found = from_files(EXAMPLES / "metax/node.yaml", EXAMPLES / "metax/config.yaml")
        async with running((), found.objects) as w:
            hand = user(binary, w, tmp_path)
            device = await hand.get("device", "sample-node1")
            assert device["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "metax"
            node = await hand.get("node", "sample-node1")
            totals = node["status"]["allocatable"]
            assert totals["koordinator.sh/gpu.shared"] == "100"
            assert totals["koordinator.sh/gpu-memory"] == "64Gi"
            assert totals["metax-tech.com/sgpu"] == "16"

            pods = (EXAMPLES / "metax/pods.yaml").read_text(encoding="utf-8").split("---")[0]
            await hand.apply(pods)
            pod = await hand.running("test-metax-sGPU")
            given = json.loads(
                pod["metadata"]["annotations"]["metax-tech.com/gpu-devices-allocated"]
            )
            assert (given[0][0]["compute"], given[0][0]["vRam"]) == (10, 1024)
            log = await hand.logs("test-metax-sGPU")
            assert "C500): 10% + 1Gi" in log
            assert "file /dev/mxcd" in log

    run(story())


@USERS
def test_qgpus_page(binary: Path | str, tmp_path: Path) -> None:
    """The qGPU document: the policy as a node label, the Deployment of fractions, the pods' records."""

    async def story() -> None:
        found = from_files(EXAMPLES / "qgpu/nodes.yaml")
        async with running((), found.objects) as w:
            hand = user(binary, w, tmp_path)
            policy = {"tke.cloud.tencent.com/qgpu-schedule-policy": "fixed-share"}
            await w.patch("/api/v1/nodes/qgpu-t4-a", {"metadata": {"labels": policy}})
            await hand.apply(QGPU)
            await eventually(
                lambda: hand.get("deployment", "qgpu-service"),
                lambda found: found["status"].get("readyReplicas") == 2,
            )
            pods = (await w.get(f"{PODS}?labelSelector=app=qgpu-service"))["items"]
            for pod in pods:
                assert pod["spec"]["nodeName"] == "qgpu-t4-a"
                assert "tke.cloud.tencent.com/qgpu-pgpu-serve" in pod["metadata"]["annotations"]
            name = pods[0]["metadata"]["name"]
            assert "30% + 5Gi" in await hand.logs(name)

    run(story())


@USERS
def test_hamis_page(binary: Path | str, tmp_path: Path) -> None:
    """The HAMi document: the ConfigMap, two instances of at least 8000 MiB each, the instances' metric."""

    async def story() -> None:
        found = from_files(EXAMPLES / "hami/node.yaml", EXAMPLES / "hami/config.yaml")
        async with running((), found.objects) as w:
            hand = user(binary, w, tmp_path)
            path = "/api/v1/namespaces/kube-system/configmaps/hami-device-plugin"
            config = await w.get(path)
            assert '"name": "MIG-NODE-A"' in config["data"]["config.json"]
            assert (await hand.get("node", "MIG-NODE-A"))["status"]["allocatable"]
            await hand.apply(HAMI)
            pod = await hand.running("gpu-pod")
            requests = pod["spec"]["containers"][0]["resources"]["requests"]
            assert Quantity.parse(requests["nvidia.com/gpumem"]).floor() == 8000
            record = json.loads(pod["metadata"]["annotations"]["partage.io/allocation"])
            (container,) = record["containers"]
            assert pod["spec"]["nodeName"] == "MIG-NODE-A"
            assert [one["mig"]["profile"] for one in container["devices"]] == ["2g.10gb"] * 2
            log = await hand.logs("gpu-pod")
            assert "2g.10gb at " in log
            assert "env NVIDIA_VISIBLE_DEVICES=MIG-" in log
            metrics = await w.get("/metrics", scheduler=True)
            assert 'migname="2g.10gb-0",nodeid="MIG-NODE-A",zone="vGPU"} 1' in metrics
            assert 'podname="gpu-pod"' in await w.get("/metrics", scheduler=True)

    run(story())


@BINARY
def test_why_a_pod_waits(binary: Path, tmp_path: Path) -> None:
    """`describe` says it with numbers; the health annotation and its end are followed."""

    async def story() -> None:
        found = from_files(EXAMPLES / "koordinator/host04.yaml")
        async with running((), found.objects) as w:
            kubectl = Kubectl(binary, w.cluster.addresses.kubeconfig, tmp_path)
            ill = "simulate.partage.io/unhealthy=all=Xid 79"
            await kubectl("annotate", "node", "host04", ill)
            await eventually(
                lambda: w.state("host04"), lambda found: found["state"] == "2 Unhealthy"
            )
            await kubectl("apply", "-f", "-", text=POD_EXAMPLE)
            await w.refused("pod-example")
            assert "0/1 nodes: 1 unhealthy" in await kubectl("describe", "pod", "pod-example")
            assert "Pending" in await kubectl("get", "pods")
            assert "waits: no container has started" in await kubectl("logs", "pod-example")
            await kubectl("annotate", "node", "host04", "simulate.partage.io/unhealthy-")
            await kubectl.running("pod-example")
            assert "Successfully assigned" in await kubectl("describe", "pod", "pod-example")
            assert "Ready" in await kubectl("get", "nodes,devices")
            await kubectl("delete", "pod", "pod-example", "--timeout=240s")
            assert await kubectl("get", "pods", "-o", "name") == ""

    run(story())

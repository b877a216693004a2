"""Genuine kubectl binaries of two generations against the embedded server, validation on.

`tests/tools/kubectl/build` puts them into the cache; PARTAGE_KUBECTL may name one instead.
"""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_world import DEFINITIONS, PODS, World, definition, ok, pod, run, widget

from partage.apiserver import LogRequest, Settings, write_kubeconfig

CACHE = Path(os.environ.get("PARTAGE_TOOLS", str(Path.home() / ".cache/partage/tools")))
EXAMPLES = Path(__file__).parents[2] / "examples"


def binaries() -> list[Any]:
    """Every kubectl to be had, or one parameter that skips."""
    told = os.environ.get("PARTAGE_KUBECTL")
    built = [*CACHE.glob("kubectl-v*[0-9]"), *CACHE.glob("kubernetes-v*/kubectl")]
    found = [Path(told)] if told else sorted(built)
    if found:
        return [pytest.param(path, id="-".join(path.parts[-2:])) for path in found]
    reason = f"no kubectl in {CACHE}; run tests/tools/kubectl/build"
    return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))]


KUBECTL = pytest.mark.parametrize("binary", binaries())


class Kubectl:
    """Runs one binary against a world."""

    def __init__(self, binary: Path, w: World, home: Path) -> None:
        self.binary = binary
        self.home = home
        write_kubeconfig(home / "config", w.url)

    async def __call__(self, *words: str, text: str | None = None, code: int = 0) -> str:
        """Runs a command; the answer is its output."""
        environment = {
            "KUBECONFIG": str(self.home / "config"),
            "HOME": str(self.home),
            "PATH": "/usr/bin:/bin",
        }

        def go() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [self.binary, *words],
                env=environment,
                input=text,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )

        done = await asyncio.to_thread(go)
        assert done.returncode == code, f"kubectl {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if code else "")


Scene = Callable[[Kubectl, World], Any]


def play(binary: Path, home: Path, scene: Scene, settings: Settings | None = None) -> None:
    """Runs a scene with kubectl and the world it talks to."""

    async def story(w: World) -> None:
        w.around.seconds = 1_700_000_000.0
        await scene(Kubectl(binary, w, home), w)

    run(story, settings)


MANIFEST = yaml.safe_dump(pod())


@KUBECTL
def test_apply_creates_changes_and_leaves_alone(binary: Path, tmp_path: Path) -> None:
    """Created, unchanged, configured; a misspelt field is refused by name."""

    async def scene(kubectl: Kubectl, w: World) -> None:
        apply = ("apply", "-f", "-")
        bad = MANIFEST.replace("image:", "imagee:")
        assert 'unknown field "spec.containers[0].imagee"' in await kubectl(
            *apply, text=bad, code=1
        )
        assert "pod/web created" in await kubectl(*apply, text=MANIFEST)
        assert "pod/web unchanged" in await kubectl(*apply, text=MANIFEST)
        changed = MANIFEST.replace("busybox", "busybox:2")
        assert "+  - image: busybox:2" in await kubectl("diff", "-f", "-", text=changed, code=1)
        assert "pod/web configured" in await kubectl(*apply, text=changed)
        assert "server dry run" in await kubectl(*apply, "--dry-run=server", text=changed)
        moved = MANIFEST.replace("spec:", "spec:\n  schedulerName: other")
        assert "pod updates may not change fields" in await kubectl(*apply, text=moved, code=1)

    play(binary, tmp_path, scene)


@KUBECTL
def test_server_side_apply_and_its_conflicts(binary: Path, tmp_path: Path) -> None:
    """Moves over from client-side apply, conflicts by manager, and takes by force."""

    async def scene(kubectl: Kubectl, w: World) -> None:
        server_side = ("apply", "--server-side", "-f", "-")
        await kubectl("apply", "-f", "-", text=MANIFEST)
        assert "serverside-applied" in await kubectl(*server_side, text=MANIFEST)
        other = MANIFEST.replace("busybox", "busybox:2")
        manager = ("--field-manager", "other")
        answer = await kubectl(*server_side, *manager, text=other, code=1)
        assert 'conflicts with "kubectl":\n- .spec.containers[name="main"].image\n' in answer
        await kubectl(*server_side, *manager, "--force-conflicts", text=other)
        shown = await kubectl("get", "pod", "web", "-o", "yaml", "--show-managed-fields")
        assert "manager: other" in shown

    play(binary, tmp_path, scene)


@KUBECTL
def test_create_edit_and_delete_commands(binary: Path, tmp_path: Path) -> None:
    """The subcommands that send protobuf, and those that patch."""

    async def scene(kubectl: Kubectl, w: World) -> None:
        for words in (
            "create namespace team",
            "create configmap c --from-literal=a=b",
            "create secret generic s --from-literal=a=b",
            "create serviceaccount bob",
            "create deployment web --image=nginx --replicas=2",
            "create job j --image=busybox",
            "create cronjob cj --image=x --schedule=@daily -- date",
            "create priorityclass high --value=1000",
            "create role r --verb=get --resource=pods",
            "create rolebinding rb --role=r --user=me",
            "create clusterrole cr --verb=get --resource=pods",
            "create poddisruptionbudget b --selector=app=web --min-available=1",
            "expose deployment web --port=80",
            "run one --image=nginx --labels=app=one",
            "scale deployment web --replicas=5",
            "set image deployment/web nginx=nginx:3",
            "set resources deployment/web --limits=cpu=1",
            "label pod one a=b",
            "annotate pod one c=d",
            "create quota q --hard=pods=3",
        ):
            await kubectl(*words.split())
        await kubectl(
            "patch",
            "pod",
            "one",
            "--type=json",
            "-p",
            '[{"op":"add","path":"/metadata/labels/q","value":"1"}]',
        )
        await kubectl(
            "patch", "pod", "one", "-p", '{"spec":{"containers":[{"name":"one","image":"new"}]}}'
        )
        await kubectl("replace", "-f", "-", text=await kubectl("get", "pod", "one", "-o", "yaml"))
        found = json.loads(await kubectl("get", "deployment", "web", "-o", "json"))
        assert found["spec"]["replicas"] == 5
        assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:3"
        labels = await kubectl("get", "pods", "-l", "a=b,q=1", "-o", "name")
        assert labels == "pod/one\n"
        assert "exceeded" not in await kubectl("describe", "quota", "q")
        assert "yes" in await kubectl("auth", "can-i", "create", "pods")
        await kubectl("delete", "deployment,job,cronjob,configmap,secret,pod", "--all")
        await kubectl("delete", "namespace", "team")
        assert "team" not in await kubectl("get", "namespaces")

    play(binary, tmp_path, scene)


@KUBECTL
def test_lists_and_files_of_many_kinds_work(binary: Path, tmp_path: Path) -> None:
    """A client asks for OpenAPI v2 as protobuf for a List, and where a kind is not known yet."""
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    items = [
        {**head, "metadata": {"name": "one"}, "data": {"a": "b"}},
        {**pod(), "apiVersion": "v1", "kind": "Pod"},
    ]
    both = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    unknown = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": {"name": "m"},
    }

    async def scene(kubectl: Kubectl, w: World) -> None:
        bad = both.replace("image:", "imagee:")
        assert 'unknown field "imagee"' in await kubectl("apply", "-f", "-", text=bad, code=1)
        made = await kubectl("create", "-f", "-", text=both)
        assert "configmap/one created" in made
        assert "pod/web created" in made
        for words in ("apply -f -", "apply --server-side --force-conflicts -f -", "replace -f -"):
            there = await kubectl("get", "configmap/one", "pod/web", "-o", "yaml")
            assert "kind: List" in there
            assert "configmap/one" in await kubectl(*words.split(), text=there)
        other = yaml.safe_dump_all([unknown, {**head, "metadata": {"name": "two"}}])
        told = await kubectl("apply", "-f", "-", text=other, code=1)
        assert 'no matches for kind "ServiceMonitor"' in told
        assert "configmap/two" in await kubectl("get", "configmaps", "-o", "name")
        custom = yaml.safe_dump_all([definition(), widget()])
        told = await kubectl("apply", "-f", "-", text=custom, code=1)
        assert 'no matches for kind "Widget"' in told
        assert "created" in await kubectl("apply", "-f", "-", text=custom)

    play(binary, tmp_path, scene)


@KUBECTL
def test_what_is_not_served_ends_with_one_line(binary: Path, tmp_path: Path) -> None:
    """As at a server without it: kubectl does not panic, and does nothing but what was asked for."""

    async def scene(kubectl: Kubectl, w: World) -> None:
        await kubectl("apply", "-f", "-", text=MANIFEST)
        assert "kept" in await kubectl("logs", "web", "--previous")
        ok(await w.post(f"{PODS}/web/binding", {"target": {"name": "n1"}}), 201)
        told = await kubectl("debug", "web", "--image=busybox", code=1)
        assert "pods/ephemeralcontainers is not supported by this API server" in told
        told = await kubectl("logs", "web", "--previous", code=1)
        assert 'previous terminated container "main" in pod "web" not found' in told
        told = await kubectl("create", "token", "default", code=1)
        assert "this API server issues no tokens" in told
        told = await kubectl("create", "token", "absent", code=1)
        assert 'serviceaccounts "absent" not found' in told

    play(binary, tmp_path, scene)


@KUBECTL
def test_get_describe_and_explain(binary: Path, tmp_path: Path) -> None:
    """Tables, wide tables, selectors, descriptions, schemas."""

    async def scene(kubectl: Kubectl, w: World) -> None:
        node = {
            "metadata": {"name": "n1"},
            "status": {
                "capacity": {"nvidia.com/gpu": 2, "cpu": 8},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        ok(await w.post("/api/v1/nodes", node), 201)
        ok(await w.post(PODS, pod()), 201)
        ok(await w.post(f"{PODS}/web/binding", {"target": {"name": "n1"}}), 201)
        event = {
            "metadata": {"name": "e"},
            "reason": "Why",
            "message": "because",
            "type": "Normal",
            "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
            "lastTimestamp": "2023-11-14T22:13:20Z",
        }
        ok(await w.post("/api/v1/namespaces/default/events", event), 201)

        wide = await kubectl("get", "pods", "-o", "wide")
        assert wide.split()[:9] == [
            "NAME",
            "READY",
            "STATUS",
            "RESTARTS",
            "AGE",
            "IP",
            "NODE",
            "NOMINATED",
            "NODE",
        ]
        assert "n1" in wide
        on_node = ("get", "pods", "-A", "--field-selector=spec.nodeName=n1", "-o", "name")
        assert await kubectl(*on_node) == "pod/web\n"
        assert "Ready" in await kubectl("get", "nodes")
        assert "nvidia.com/gpu" in await kubectl("describe", "node", "n1")
        described = await kubectl("describe", "pod", "web")
        assert "n1" in described
        await kubectl("get", "all", "-A")
        await kubectl("get", "events,leases,jobs,configmaps,priorityclasses", "-A", "-o", "wide")
        assert "because" in await kubectl("events")
        told = await kubectl("explain", "pod.spec.containers.resources")
        assert "Devices are asked for here." in " ".join(told.split())
        told = await kubectl("explain", "resourceclaim.spec")
        assert "The devices that are asked for." in told
        assert "tolerations" in await kubectl("explain", "deployment.spec.template", "--recursive")
        assert "pods" in await kubectl("api-resources")
        assert "v1.36" in await kubectl("version")
        paged = await kubectl("get", "serviceaccounts", "-A", "--chunk-size=1", "-o", "name")
        assert paged.count("serviceaccount/default") == 4
        await kubectl("cordon", "n1")
        assert "SchedulingDisabled" in await kubectl("get", "node", "n1")
        await kubectl("taint", "node", "n1", "a=b:NoSchedule")

    play(binary, tmp_path, scene)


@KUBECTL
def test_logs_wait_and_deletion(binary: Path, tmp_path: Path) -> None:
    """Logs from the provider, waiting for a condition, forced and graceful deletion."""

    async def pieces(request: LogRequest) -> AsyncIterator[bytes]:
        yield f"hello from {request.container}\n".encode()

    async def scene(kubectl: Kubectl, w: World) -> None:
        ok(await w.post(PODS, pod(nodeName="n1")), 201)
        assert await kubectl("logs", "web") == "hello from main\n"
        assert await kubectl("logs", "-f", "web") == "hello from main\n"
        message = await kubectl("exec", "web", "--", "ls", code=1)
        assert "pods/exec is not supported" in message
        waiting = asyncio.create_task(
            kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=240s")
        )
        await asyncio.sleep(0.5)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        ok(await w.patch(f"{PODS}/web/status", ready))
        assert "condition met" in await waiting
        await kubectl("delete", "pod", "web", "--wait=false")
        assert "Terminating" in await kubectl("get", "pod", "web")
        await kubectl("delete", "pod", "web", "--force")
        assert "NotFound" in await kubectl("get", "pod", "web", code=1)

    play(binary, tmp_path, scene, Settings(logs=pieces))


@KUBECTL
def test_custom_resources(binary: Path, tmp_path: Path) -> None:
    """Applied, waited for, validated, explained and shown with the definition's columns."""

    async def scene(kubectl: Kubectl, w: World) -> None:
        await kubectl("apply", "-f", "-", text=yaml.safe_dump(definition()))
        await kubectl("wait", "--for=condition=Established", "crd/widgets.example.com")
        await kubectl("apply", "-f", "-", text=yaml.safe_dump(widget(replicas=1)))
        bad = await kubectl("apply", "-f", "-", text=yaml.safe_dump(widget(sise=1)), code=1)
        assert 'unknown field "spec.sise"' in bad
        wrong = await kubectl("apply", "-f", "-", text=yaml.safe_dump(widget(size=99)), code=1)
        assert "should be less than or equal to 10" in wrong
        changed = await kubectl("apply", "-f", "-", text=yaml.safe_dump(widget(size=4)))
        assert "configured" in changed
        await kubectl("scale", "wd", "one", "--replicas=3")
        assert (await kubectl("get", "wd")).split()[:3] == ["NAME", "SIZE", "AGE"]
        assert "size" in await kubectl("explain", "widget.spec")
        told = await kubectl("explain", "widget")
        assert "What the object is." in told
        assert "Name, labels and annotations." in told
        await kubectl("delete", "crd", "widgets.example.com")
        assert ok(await w.get(DEFINITIONS))["items"] == []

    play(binary, tmp_path, scene)


DEVICES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "devices.scheduling.koordinator.sh"},
    "spec": {
        "group": "scheduling.koordinator.sh",
        "scope": "Cluster",
        "names": {"plural": "devices", "kind": "Device"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                            "status": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                        },
                    }
                },
            }
        ],
    },
}

SEED_ROLES = """
kind: ClusterRole
apiVersion: rbac.authorization.k8s.io/v1
metadata:
  name: qgpu-manager
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [elasticgpu.io]
  resources: [gpus, gpus/status]
  verbs: ['*']
"""
SEED_METAX = """
apiVersion: v1
kind: Pod
metadata:
  labels: {app: demo-sleep}
  name: test-metax-sGPU
  namespace: default
  annotations: {metax-tech.com/sgpu-qos-policy: fixed-share}
spec:
  containers:
  - command: [sleep, infinity]
    image: ubuntu:22.04
    imagePullPolicy: IfNotPresent
    name: demo-sleep
    resources:
      limits: &amounts
        cpu: "32"
        memory: 64Gi
        koordinator.sh/gpu.shared: "1"
        koordinator.sh/gpu-memory: "1Gi"
        koordinator.sh/gpu-core: "10"
        metax-tech.com/sgpu: "1"
      requests: *amounts
"""
SEED_HAMI = """
apiVersion: v1
kind: Pod
metadata:
  name: gpu-pod
  annotations: {nvidia.com/vgpu-mode: mig}
spec:
  containers:
  - name: ubuntu-container
    image: ubuntu:18.04
    command: [bash, -c, sleep 86400]
    resources:
      limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 8000}
"""
SEED_NATIVE = """
apiVersion: v1
kind: Pod
metadata: {name: ratio}
spec:
  containers:
  - name: a
    image: b
    resources:
      requests: {cpu: 40m, memory: 40Mi, kubernetes.io/gpu-core: "100",
                 kubernetes.io/gpu-memory: 16Mi}
"""


@KUBECTL
def test_the_four_documents_manifests_are_accepted(binary: Path, tmp_path: Path) -> None:
    """Every example, and the manifests that the documents print, with validation on."""

    async def scene(kubectl: Kubectl, w: World) -> None:
        ok(await w.post(DEFINITIONS, DEVICES), 201)
        apply = ("apply", "--validate=strict", "-f")
        for text in (SEED_ROLES, SEED_METAX, SEED_HAMI, SEED_NATIVE):
            assert "created" in await kubectl(*apply, "-", text=text)
        refused = []
        for path in sorted(EXAMPLES.rglob("*.yaml")):
            for value in yaml.safe_load_all(path.read_text()):
                if value is None:
                    continue
                name = value["metadata"].get("namespace")
                if name:
                    await w.post("/api/v1/namespaces", {"metadata": {"name": name}})
                spec = (value.get("spec") or {}).get("priorityClassName")
                assert spec is None or isinstance(spec, str)
                try:
                    await kubectl(*apply, "-", text=yaml.safe_dump(value))
                except AssertionError as error:
                    refused.append(f"{path.relative_to(EXAMPLES)}: {error}")
        # Requests without limits pass once the product's own admission has copied them; here
        # there is none, so exactly those are refused, as by a genuine server.
        assert all("Limit must be set for non overcommitable" in text for text in refused), refused

    play(binary, tmp_path, scene, Settings(relaxed_names=True))


@KUBECTL
def test_claims_of_devices_are_served(binary: Path, tmp_path: Path) -> None:
    """Applied, shown with defaults and state, changed in nothing that may not change, deleted."""
    text = yaml.safe_dump_all(
        one
        for name in ("node", "claims")
        for one in yaml.safe_load_all((EXAMPLES / "claims" / f"{name}.yaml").read_text())
    )

    async def scene(kubectl: Kubectl, w: World) -> None:
        apply = ("apply", "-f", "-")
        assert "resourceclaimtemplate.resource.k8s.io/half-an-a100 created" in await kubectl(
            *apply, text=text
        )
        version = (
            "get",
            "resourceclaim",
            "one-card",
            "-o",
            "jsonpath={.metadata.resourceVersion}",
        )
        before = await kubectl(*version)
        await kubectl(*apply, text=text)
        assert await kubectl(*version) == before
        assert "pending" in await kubectl("get", "resourceclaim", "one-card")
        told = await kubectl("describe", "resourceclaim", "one-card")
        assert re.search(r"Allocation Mode: +ExactCount", told)
        other = text.replace("memory: 40Gi", "memory: 20Gi")
        assert "field is immutable" in await kubectl(*apply, text=other, code=1)
        kept = await w.server.patch(
            "resourceclaims.resource.k8s.io",
            "default",
            "one-card",
            {"status": {"allocation": {"devices": {"results": []}}, "reservedFor": []}},
            sub="status",
        )
        assert kept.value["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
        assert "allocated" in await kubectl("get", "resourceclaim", "one-card")
        slices = ("get", "resourceslices", "--field-selector=spec.driver=gpu.partage.io")
        assert await kubectl(*slices, "-o", "name") == ""
        assert "deleted" in await kubectl("delete", "-f", "-", text=text)

    play(binary, tmp_path, scene)

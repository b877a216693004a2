"""A running HAMi and a running Koordinator are taken over on a genuine cluster, and get it back.

First there is no Partage: nodes, records, locks and definitions are theirs, and everything is made
with the genuine kubectl. Then Partage is installed beside, as docs/from say; in the end it is
uninstalled, and what they find is added up from their own annotations alone.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART, helm
from stack import RELEASE, SYSTEM, Layout, Stack, eventually
from stack import stack as started

DEVICES = "devices.scheduling.koordinator.sh"
DEFINITION = Path(__file__).parents[2] / "deploy/helm/partage/files"
LOCK = "hami.io/mutex.lock"
RECORD = "partage.io/allocation"
MIB = 16384
"""Of each card: two on HAMi's node, two on Koordinator's."""
HAMIS = ("GPU-h-0", "GPU-h-1")
REGISTER = [
    {
        "id": uuid,
        "index": index,
        "count": 10,
        "devmem": MIB,
        "devcore": 100,
        "type": "NVIDIA A100-SXM4-40GB",
        "mode": "hami-core",
        "health": True,
    }
    for index, uuid in enumerate(HAMIS)
]
Amounts = Counter[tuple[str, str]]
THEIRS = (
    ("hami", "kube-system", "hami-scheduler", 31993),
    ("koordinator", "koordinator-system", "koord-scheduler", 31994),
)
"""The profile in their likeness, their namespace, their scheduler and a port of its Service."""


def pod(name: str, scheduler: str, limits: dict[str, str], node: str = "", **notes: str) -> Any:
    """A pod of one of the two systems; placed by it where it names a node."""
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
    spec: dict[str, Any] = {"schedulerName": scheduler, "containers": [container]}
    if node:
        spec["nodeName"] = node
    else:  # a card of the other system may fit as well
        of = "hami-node" if scheduler == "hami-scheduler" else "koord-node"
        spec["nodeSelector"] = {"kubernetes.io/hostname": of}
    meta = {"name": name, "namespace": "default", "annotations": notes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def of_hami(name: str, uuid: str, mib: int, phase: str = "success") -> Any:
    """Placed by HAMi."""
    text = f"{uuid},NVIDIA,{mib},30:;"
    notes = {
        "hami.io/vgpu-node": "hami-node",
        "hami.io/vgpu-time": "1763770000",
        "hami.io/vgpu-devices-allocated": text,
        "hami.io/vgpu-devices-to-allocate": text if phase == "allocating" else ";",
        "hami.io/bind-phase": phase,
    }
    return pod(name, "hami-scheduler", wants(mib), "hami-node", **notes)


def wants(mib: int) -> dict[str, str]:
    """What a pod of HAMi's asks."""
    return {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib), "nvidia.com/gpucores": "30"}


def of_koordinator(name: str, dialect: str, minor: int, percent: int) -> Any:
    """Placed by Koordinator, in one of its dialects."""
    amounts = {
        f"{dialect}/gpu-core": str(percent),
        f"{dialect}/gpu-memory-ratio": str(percent),
        f"{dialect}/gpu-memory": f"{16 * percent // 100}Gi",
    }
    told = json.dumps({"gpu": [{"minor": minor, "resources": amounts}]})
    notes = {"scheduling.koordinator.sh/device-allocated": told}
    return pod(name, "koord-scheduler", {f"{dialect}/gpu": str(percent)}, "koord-node", **notes)


def node(name: str, **notes: str) -> Any:
    """A node without its status."""
    labels = {"kubernetes.io/hostname": name}
    meta = {"name": name, "labels": labels, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta}


def device() -> Any:
    """What koordlet reports."""
    resources = {"gpu-core": "100", "gpu-memory": "16Gi", "gpu-memory-ratio": "100"}
    cards = [
        {
            "type": "gpu",
            "id": f"GPU-k-{minor}",
            "minor": minor,
            "health": True,
            "resources": {f"koordinator.sh/{key}": text for key, text in resources.items()},
        }
        for minor in range(2)
    ]
    api = "scheduling.koordinator.sh/v1alpha1"
    return {
        "apiVersion": api,
        "kind": "Device",
        "metadata": {"name": "koord-node"},
        "spec": {"devices": cards},
    }


def apply(stack: Stack, *values: Any) -> None:
    """`kubectl apply`."""
    file = stack.plane.folder / "theirs.yaml"
    file.write_text(yaml.safe_dump_all(values))
    stack.shell(f"kubectl apply -f {file}")


def taken(stack: Stack, value: Any) -> bool:
    """Whether `kubectl apply` is not refused by the rules that were just removed, each of which is forgotten by itself."""
    try:
        apply(stack, value)
    except AssertionError as refused:
        assert "ValidatingAdmissionPolicy 'partage-" in str(refused)  # noqa: PT017 # any other is a failure
        return False
    return True


def stopped(space: str, name: str, port: int) -> list[Any]:
    """A scheduler of theirs, scaled to nothing: what has its name is still there."""
    meta = {"name": name, "namespace": space}
    labels = {"app": name}
    container = {"name": "main", "image": "example"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "type": "NodePort",
                "selector": labels,
                "ports": [{"port": 9395, "nodePort": port}],
            },
        },
    ]


def running(stack: Stack) -> None:
    """Both systems as they run before Partage: what they wrote, and what their pods have."""
    taken = datetime.now(UTC) - timedelta(hours=1)
    stale = f"{taken.isoformat(timespec='seconds')},default,never-came"
    stack.shell(f"kubectl apply -f {DEFINITION}/devices.json")
    stack.shell(f"kubectl wait --for=condition=Established crd/{DEVICES}")
    eventually(
        "pods have an account",
        lambda: "default" in stack.shell("kubectl get serviceaccounts -n default -o name"),
    )
    for profile, space, name, port in THEIRS:
        apply(stack, *stopped(space, name, port))
        # Why docs/from install beside them: their own names are taken.
        likeness = (
            str(CHART),
            "-f",
            str(CHART / "profiles" / f"{profile}.yaml"),
            "--set",
            "crds.devices=false,crds.elasticgpu=false",
        )
        with pytest.raises(AssertionError, match=f'"{name}" in namespace "{space}" exists'):
            helm(stack.plane, "install", "likeness", *likeness, "-n", space)
    registered = {"hami.io/node-nvidia-register": json.dumps(REGISTER), LOCK: stale}
    apply(stack, node("hami-node", **registered), node("koord-node"))
    apply(stack, device())
    ordinary = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    more = {
        "hami-node": {"nvidia.com/gpu": "20"},
        "koord-node": {"koordinator.sh/gpu-core": "200", "kubernetes.io/gpu": "200"},
    }
    for name, extra in more.items():
        have = {**ordinary, **extra}
        stack.make_ready({"metadata": {"name": name}, "status": {"allocatable": have}})
    apply(
        stack,
        of_hami("hami-runs", HAMIS[0], 4096),
        of_hami("hami-starts", HAMIS[1], 8192, "allocating"),
        of_koordinator("koord-old", "kubernetes.io", 0, 50),
        of_koordinator("koord-new", "koordinator.sh", 1, 100),
    )


@pytest.fixture(params=["extender", "plugin"])  # of one test, which begins on a cluster of its own
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A cluster that both ran before Partage was installed beside them, as docs/from say."""
    folder = tmp_path_factory.mktemp("takeover")
    layout = Layout(
        plugged=request.param == "plugin",
        options=(
            "--set",
            "crds.devices=false,configMaps.hami=false",
            "--set",
            "metrics.service.type=ClusterIP",
        ),
    )
    with started(folder, layout=layout, before=running) as made:
        yield made


def notes_of(stack: Stack, what: str) -> dict[str, str]:
    """The annotations of an object, as kubectl prints it."""
    found: dict[str, str] = json.loads(stack.shell(f"kubectl get {what} -o json"))["metadata"][
        "annotations"
    ]
    return found


def pods(stack: Stack) -> list[Any]:
    """Every pod of the users, as kubectl prints it."""
    found: list[Any] = json.loads(stack.shell("kubectl get pods -n default -o json"))["items"]
    return found


def hami_sees(stack: Stack) -> Amounts:
    """MiB and percent on each card, by HAMi's annotation alone."""
    found: Amounts = Counter()
    for one in pods(stack):
        notes = one["metadata"].get("annotations", {})
        if notes.get("hami.io/vgpu-node") != one["spec"].get("nodeName"):
            continue
        text = notes.get("hami.io/vgpu-devices-allocated", "")
        for part in filter(None, text.replace(";", ":").split(":")):
            uuid, _, memory, cores = part.split(",")
            found[uuid, "mib"] += int(memory)
            found[uuid, "percent"] += int(cores)
    return found


def koordinator_sees(stack: Stack) -> Amounts:
    """Percent on each card, by Koordinator's annotation alone, in either dialect."""
    found: Amounts = Counter()
    for one in pods(stack):
        text = (
            one["metadata"]
            .get("annotations", {})
            .get("scheduling.koordinator.sh/device-allocated")
        )
        for card in json.loads(text)["gpu"] if text and one["spec"].get("nodeName") else ():
            for name, amount in card["resources"].items():
                if name.endswith("gpu-core"):
                    found[f"GPU-k-{card['minor']}", "percent"] += int(amount)
    return found


def booked(stack: Stack, name: str) -> Amounts:
    """Percent on each card, by Partage's debug API."""
    path = f"/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/{name}"
    found: Amounts = Counter()
    for cards in (stack.get(path)["allocateSet"].get("gpu") or {}).values():
        for minor, amounts in cards.items():
            (percent,) = (int(v) for k, v in amounts.items() if k.endswith("gpu-core"))
            found[f"GPU-{name[0]}-{minor}", "percent"] += percent
    return found


def percent(amounts: Amounts) -> Amounts:
    """That part of what they see."""
    return Counter({key: value for key, value in amounts.items() if key[1] == "percent"})


def waits(stack: Stack, name: str) -> bool:
    """Whether the pod's condition says that it has no place."""
    conditions = stack.pod(name)["status"].get("conditions", ())
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def test_what_runs_counts_new_pods_go_around_it_and_all_goes_back(stack: Stack) -> None:
    """Their pods and locks, then ours beside them, then theirs alone again."""
    eventually(
        "HAMi's pods count", lambda: booked(stack, "hami-node") == percent(hami_sees(stack))
    )
    eventually(
        "Koordinator's count", lambda: booked(stack, "koord-node") == koordinator_sees(stack)
    )
    assert hami_sees(stack)[HAMIS[1], "mib"] == 8192  # the half-placed one too
    eventually(
        "the lock of a pod that never came is off",
        lambda: LOCK not in notes_of(stack, "node hami-node"),
    )

    # 4 and 8 of 16 GiB are taken, and half of one card: this fits around it, and nothing more.
    apply(
        stack,
        pod("hami-a", "hami-scheduler", wants(12288)),
        pod("hami-b", "hami-scheduler", wants(8192)),
        pod("koord-a", "koord-scheduler", {"kubernetes.io/gpu": "25"}),
        pod("koord-b", "koord-scheduler", {"koordinator.sh/gpu": "25"}),
    )
    for name in ("hami-a", "hami-b", "koord-a", "koord-b"):
        assert RECORD in stack.bound(name)["metadata"]["annotations"]
    apply(
        stack,
        pod("hami-c", "hami-scheduler", wants(4096)),
        pod("koord-c", "koord-scheduler", {"koordinator.sh/gpu": "25"}),
    )
    for name in ("hami-c", "koord-c"):
        eventually(f"{name} waits", lambda name=name: waits(stack, name))

    assert {key[0] for key in hami_sees(stack)} == {*HAMIS}
    assert {hami_sees(stack)[uuid, "mib"] for uuid in HAMIS} == {MIB}
    assert koordinator_sees(stack) == {("GPU-k-0", "percent"): 100, ("GPU-k-1", "percent"): 100}
    eventually("the books agree", lambda: booked(stack, "hami-node") == percent(hami_sees(stack)))
    assert booked(stack, "koord-node") == koordinator_sees(stack)

    before = hami_sees(stack), koordinator_sees(stack)
    for name in ("kube-scheduler", "scheduler", "webhook"):
        stack.plane.processes.pop(name).stop()
    helm(stack.plane, "uninstall", RELEASE, "-n", SYSTEM, "--no-hooks")
    assert (hami_sees(stack), koordinator_sees(stack)) == before
    assert "koord-node" in stack.shell(f"kubectl get {DEVICES}")
    # Nothing of ours is in their way: HAMi places its waiting pod, and a new pod of its own.
    stack.shell("kubectl delete pod hami-b --force --grace-period=0")
    after = of_hami("hami-after", HAMIS[1], 8192)
    eventually("the API server has forgotten our rules", lambda: taken(stack, after))
    assert {hami_sees(stack)[uuid, "mib"] for uuid in HAMIS} == {MIB}

"""HAMi's own scheduler and webhook run a genuine cluster, Partage takes it over, and they get it back.

As docs/from/hami.md says it step by step. HAMi's device plugin needs a driver: what it writes is played (neighbours.Hami).
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from chart import helm
from neighbours import Hami, program
from stack import RELEASE, SYSTEM, Layout, Stack, eventually
from stack import stack as started

MIB = 16384
"""Of each card of the node."""
CARDS = ("GPU-h-0", "GPU-h-1")
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
    for index, uuid in enumerate(CARDS)
]
NODE = "hami-node"
OPTIONS = ("--set", "configMaps.hami=false", "--set", "metrics.service.type=ClusterIP")
Amounts = Counter[str]


def pod(name: str, mib: int, cores: int = 0, **spec: Any) -> dict[str, Any]:
    """A share by HAMi's protocol; its webhook says which scheduler it is for."""
    limits = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(mib),
        "nvidia.com/gpucores": str(cores),
    }
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def apply(stack: Stack, *values: Any) -> None:
    """`kubectl apply`."""
    file = stack.plane.folder / "applied.yaml"
    file.write_text(yaml.safe_dump_all(values))
    stack.shell(f"kubectl apply -f {file}")


class Before:
    """The cluster as HAMi has it before Partage comes; keeps HAMi."""

    def __init__(self) -> None:
        self.hami: Hami

    def __call__(self, stack: Stack) -> None:
        """Start HAMi, have it place two pods, and stop it as the page says."""
        eventually(
            "pods have an account",
            lambda: "default" in stack.shell("kubectl get serviceaccounts -n default -o name"),
        )
        labels = {"kubernetes.io/hostname": NODE}
        registered = {"hami.io/node-nvidia-register": json.dumps(REGISTER)}
        meta = {"name": NODE, "labels": labels, "annotations": registered}
        apply(stack, {"apiVersion": "v1", "kind": "Node", "metadata": meta})
        have = {"cpu": "32", "memory": "128Gi", "pods": "110", "nvidia.com/gpu": "20"}
        stack.make_ready({"metadata": {"name": NODE}, "status": {"allocatable": have}})
        self.hami = Hami(stack.plane)
        self.hami.start()
        apply(stack, self.hami.webhook())
        for name, mib in (("first", 4096), ("second", 8192)):
            apply(stack, pod(name, mib, 30))
            self.hami.serve(stack.bound(name))
        assert stack.pod("first")["spec"]["schedulerName"] == "hami-scheduler"
        self.hami.stop()
        stack.shell("kubectl delete mutatingwebhookconfiguration hami-webhook")


@pytest.fixture
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Hami]]:
    """Partage, after HAMi ran the cluster."""
    program("hami-scheduler")
    before = Before()
    folder = tmp_path_factory.mktemp("taken")
    layout = Layout(options=OPTIONS, plugged=True)
    with started(folder, layout=layout, before=before) as made:
        yield made, before.hami


def hamis(stack: Stack) -> Amounts:
    """MiB on each card, by HAMi's annotation alone."""
    found: Amounts = Counter()
    for one in json.loads(stack.shell("kubectl get pods -n default -o json"))["items"]:
        notes = one["metadata"].get("annotations", {})
        if one["spec"].get("nodeName"):
            text = notes.get("hami.io/vgpu-devices-allocated", "")
            for part in filter(None, text.replace(";", ":").split(":")):
                uuid, _, memory, _ = part.split(",")
                found[uuid] += int(memory)
    return found


def ours(stack: Stack) -> Amounts:
    """MiB on each card, by Partage's books."""
    path = f"/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/{NODE}"
    found: Amounts = Counter()
    for cards in (stack.get(path)["allocateSet"].get("gpu") or {}).values():
        for minor, amounts in cards.items():
            (memory,) = (text for key, text in amounts.items() if key.endswith("gpu-memory"))
            found[CARDS[int(minor)]] += bytes_of(memory) // 2**20
    return found


def bytes_of(text: str) -> int:
    """A quantity with a binary suffix, or none."""
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)


def waits(stack: Stack, name: str) -> bool:
    """Whether the pod's condition says that it has no place."""
    conditions = stack.pod(name)["status"].get("conditions", ())
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def test_what_hami_placed_counts_and_hami_counts_what_partage_placed(
    both: tuple[Stack, Hami],
) -> None:
    """Each allocates what the other left, to the MiB, and nothing more."""
    stack, hami = both
    assert sum(hamis(stack).values()) == 12288
    eventually("HAMi's pods are in the books", lambda: ours(stack) == hamis(stack))

    # 4 and 8 GiB of 16 are taken on a card each, or both on one.
    left = sorted(MIB - hamis(stack)[uuid] for uuid in CARDS)
    apply(stack, pod("third", left[1] - 1024), pod("fourth", left[0]))
    for name in ("third", "fourth"):
        assert "partage.io/allocation" in stack.bound(name)["metadata"]["annotations"]
    apply(stack, pod("too-much", 2048))
    eventually("it waits", lambda: waits(stack, "too-much"))
    assert ours(stack) == hamis(stack)
    stack.shell("kubectl delete pod too-much --force --grace-period=0")

    for process in stack.pod_of("scheduler"):
        process.stop()
    stack.plane.processes.pop("webhook").stop()
    helm(stack.plane, "uninstall", RELEASE, "-n", SYSTEM, "--no-hooks")
    hami.start()
    apply(stack, hami.webhook())
    apply(stack, pod("beyond", 1025), pod("fits", 1024))
    hami.serve(stack.bound("fits"))
    assert {hamis(stack)[uuid] for uuid in CARDS} == {MIB}
    eventually("HAMi has no more", lambda: waits(stack, "beyond"))
    assert not stack.pod("beyond")["spec"].get("nodeName")

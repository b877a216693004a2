"""Nodes and pods of the originals' own test tables, as manifests, and where the real command puts them."""

import json
from typing import Any

from published.case import Case
from published.parts import device_object, join, node, pod
from published.program import run

KOORDINATOR = "koordinator.sh/"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
NICS = ("0000:1f:00.0", "0000:90:00.0", "0000:51:00.0", "0000:b9:00.0")
FUNCTION = '{"rdma":{"vfSelector":{"matchLabels":{"type":"general"}}}}'
TOGETHER = {JOINT: '{"deviceTypes":["gpu","rdma"]}', HINT: FUNCTION}
SAME_SWITCH = {JOINT: '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}', HINT: FUNCTION}


def machine(*, nics: tuple[int, ...] = (1, 2, 3, 4), cards: int = 2, **labels: str) -> str:
    """Eight cards, `cards` a PCIe switch, and network cards with functions on the first four."""
    devices: list[dict[str, Any]] = [
        {
            "type": "gpu",
            "health": True,
            "id": f"GPU-{minor}",
            "minor": minor,
            "resources": {
                f"{KOORDINATOR}gpu-core": "100",
                f"{KOORDINATOR}gpu-memory": "80Gi",
                f"{KOORDINATOR}gpu-memory-ratio": "100",
            },
            "topology": {"socketID": 0, "nodeID": minor // 4, "pcieID": str(minor // cards)},
        }
        for minor in range(8)
    ]
    devices += [
        {
            "type": "rdma",
            "health": True,
            "id": NICS[minor - 1],
            "minor": minor,
            "labels": {"type": "fakeW"},
            "resources": {f"{KOORDINATOR}rdma": "100"},
            "topology": {"socketID": 0, "nodeID": (minor - 1) // 2, "pcieID": str(minor - 1)},
            "vfGroups": [
                {
                    "labels": {"type": "general"},
                    "vfs": [
                        {"minor": n, "busID": f"{NICS[minor - 1][:-1]}{n + 2}"} for n in range(4)
                    ],
                }
            ],
        }
        for minor in nics
    ]
    metadata = {
        "name": "m",
        "labels": {f"node.koordinator.sh/{k.replace('_', '-')}": v for k, v in labels.items()},
    }
    document = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": metadata,
        "spec": {"devices": devices},
    }
    return join(json.dumps(document) + "\n", node("m"))


def asks(name: str, annotations: dict[str, str] | None = None, **amounts: str) -> str:
    """A Koordinator pod; `_` in a keyword stands for `-`, `shared` for `gpu.shared`."""
    names = {"shared": "gpu.shared"}
    limits = {f"{KOORDINATOR}{names.get(k, k.replace('_', '-'))}": v for k, v in amounts.items()}
    return pod(name, limits, annotations=annotations)


def registered(
    *cards: dict[str, Any], name: str = "", described: bool = False, **annotations: str
) -> str:
    """A node whose cards HAMi's plugin registered.

    Args:
        cards: what each has that is not usual.
        name: of the node, and of its cards; `n` with cards `GPU-0` and so on where it is empty.
        described: a Device object describes the cards too.
        annotations: more of HAMi's on the node.
    """
    usual = {"count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100-SXM4-40GB"}
    listed = [
        {
            "id": f"{name or 'GPU'}-{index}",
            "index": index,
            "health": True,
            "mode": "hami-core",
            **usual,
            **card,
        }
        for index, card in enumerate(cards)
    ]
    notes = {"hami.io/node-nvidia-register": json.dumps(listed)}
    notes |= {f"hami.io/{k.replace('_', '-')}": v for k, v in annotations.items()}
    found = node(name or "n", {"nvidia.com/gpu": "20"}, annotations=notes)
    if not described:
        return found
    sizes = [(card["id"], "40Gi") for card in listed]
    return join(
        device_object(name or "n", sizes, {"node.koordinator.sh/gpu-vendor": "nvidia"}), found
    )


def slice_(name: str, annotations: dict[str, str] | None = None, **amounts: str) -> str:
    """A HAMi pod; `_` in a keyword stands for `-`."""
    limits = {f"nvidia.com/{k.replace('_', '-')}": v for k, v in amounts.items()}
    return pod(name, limits, annotations=annotations, scheduler="hami-scheduler")


def outcomes(documents: str, *arguments: str) -> dict[str, str]:
    """Pod name to its devices such as `gpu0 gpu1 rdma1@0000:1f:00.2`, or to its code."""
    output = run(Case("x", "", documents, (), arguments=arguments))
    result = {}
    for found in output["pods"]:
        devices = [
            f"{a['type']}{a['minor']}" + (f"@{a['vf']['busID']}" if a["vf"] else "")
            for a in found["allocations"]
        ]
        result[found["name"]] = found["reason"]["code"] if found["reason"] else " ".join(devices)
    return result


def places(documents: str, *arguments: str) -> dict[str, str]:
    """Pod name to its node, or to its code."""
    output = run(Case("x", "", documents, (), arguments=arguments))
    return {found["name"]: found["node"] or found["reason"]["code"] for found in output["pods"]}


def records(documents: str) -> dict[str, dict[str, str]]:
    """Pod name to the annotations that are written on it."""
    output = run(Case("x", "", documents, ()))
    return {found["name"]: found["annotations"] for found in output["pods"]}


def switched(gpus: dict[int, str], nics: dict[int, str] | None = None) -> str:
    """A node `m` with cards and network cards by minor, each on a switch; 0 to 3 are on NUMA node 0."""
    listed = [("gpu", minor, switch) for minor, switch in gpus.items()]
    listed += [("rdma", minor, switch) for minor, switch in (nics or {}).items()]
    share = {"gpu-core": "100", "gpu-memory": "16Gi", "gpu-memory-ratio": "100"}
    devices = [
        {
            "type": kind,
            "health": True,
            "id": f"{kind}-{minor}",
            "minor": minor,
            "resources": {
                f"{KOORDINATOR}{name}": amount
                for name, amount in (share if kind == "gpu" else {"rdma": "100"}).items()
            },
            "topology": {"socketID": 0, "nodeID": int(switch) // 4, "pcieID": switch},
        }
        for kind, minor, switch in listed
    ]
    document = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "m"},
        "spec": {"devices": devices},
    }
    return join(json.dumps(document) + "\n", node("m"))

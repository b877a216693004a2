"""What the pods of a test hold, and the machine they run on."""

from dataclasses import dataclass

import containerd
import cri
from agent_process import Agent
from msgspec import structs

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.vendors import names
from partage.wire.record import encode

GIB = 2**30
CARDS = ("GPU-a", "GPU-b")
SHARE = Grant("main", DeviceType.GPU, 0, "GPU-a", 300, 4 * GIB, GrantMode.SHARE, protocol="hami")
WHOLE = structs.replace(
    SHARE,
    minor=1,
    uuid="GPU-b",
    mode=GrantMode.WHOLE,
    core_milli=1000,
    memory_bytes=16 * GIB,
    protocol="koordinator",
)
NODE = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "Device",
    "metadata": {"name": "n1", "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}},
    "spec": {
        "devices": [
            {
                "type": "gpu",
                "health": True,
                "id": uuid,
                "minor": minor,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": "16Gi",
                    "koordinator.sh/gpu-memory-ratio": "100",
                },
            }
            for minor, uuid in enumerate(CARDS)
        ]
    },
}


def record(uid: str, *grants: Grant, node: str = "n1") -> dict[str, str]:
    """A pod's annotation, as the scheduler writes it."""
    return {names.ALLOCATION: encode(Allocation(uid, "team", uid, node, grants))}


@dataclass
class Node:
    """A runtime, a client and an agent."""

    runtime: containerd.Containerd
    cri: cri.Cri
    agent: Agent

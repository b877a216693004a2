"""Has the product decide documents, and reads what it decided: the body of `partage schedule -o json`, in process."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from partage.cli.report import document
from partage.model.policy import Policy
from partage.sim.offline import schedule
from partage.wire.cluster import assemble
from partage.wire.documents import decode


def cases(usual: int) -> int:
    """How many cases a test tries: `usual` of them, or PARTAGE_CASES."""
    return int(os.environ.get("PARTAGE_CASES", str(usual)))


@dataclass(frozen=True)
class Decision:
    """What became of one pod.

    Attributes:
        node: where it goes; None while it waits.
        reason: code with which it waits, or None.
        devices: (container, type, minor, uuid, PCI address of its virtual function or "") of each device.
        annotations: what its Binding writes on the pod.
    """

    node: str | None
    reason: str | None
    devices: tuple[tuple[str, str, int, str, str], ...]
    annotations: Mapping[str, str] = field(default_factory=dict)

    def minors(self, kind: str) -> list[int]:
        """Minors of the devices of one type."""
        return sorted({minor for _, found, minor, _, _ in self.devices if found == kind})


def decided(documents: Iterable[Mapping[str, Any]], policy: str) -> list[Decision]:
    """The product's decisions on the documents' pods, in the order in which they are written."""
    data = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)}).encode()
    outcome = document(schedule(assemble([decode("case.json", data)]), Policy.parse(policy)))
    return [
        Decision(
            pod["node"],
            pod["reason"]["code"] if pod["reason"] else None,
            tuple(
                (
                    a["container"],
                    a["type"],
                    a["minor"],
                    a["uuid"],
                    a["vf"]["busID"] if a["vf"] else "",
                )
                for a in pod["allocations"]
            ),
            pod["annotations"],
        )
        for pod in outcome["pods"]
    ]


def node(name: str, totals: Mapping[str, str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A Node with room for any pod of a case."""
    room = {"cpu": "640", "memory": "5Ti", "pods": "1000", **totals}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **metadata},
        "status": {"allocatable": room, "capacity": room},
    }


def pod(
    name: str,
    containers: Iterable[Mapping[str, str]],
    annotations: Mapping[str, str],
    scheduler: str,
) -> dict[str, Any]:
    """A Pod whose containers `c0`, `c1` and so on have these limits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations)},
        "spec": {
            "schedulerName": scheduler,
            "containers": [
                {"name": f"c{index}", "resources": {"limits": dict(limits)}}
                for index, limits in enumerate(containers)
            ],
        },
    }

"""Freezes what this release writes, for the releases that come after it to read.

    python tests/upgrade/freeze.py tests/upgrade/0.1.0

One file for each folder of examples: the cluster as it stands once every pod that fits is placed,
with all that the release wrote on it, and what its books say of every card. A folder is made once,
for a release, and never changed: clusters in the field hold such records.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from partage.model.device import DeviceType
from partage.sim.offline import Outcome, PodOutcome, schedule
from partage.wire.cluster import assemble
from partage.wire.documents import Batch, decode
from partage.wire.yaml_values import yaml_values

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
Manifest = dict[str, Any]


def read(values: list[Manifest]) -> Batch:
    """The manifests as documents."""
    return decode("upgrade", json.dumps({"kind": "List", "items": values}).encode())


def books(outcome: Outcome) -> dict[str, list[Manifest]]:
    """What is left of every device, and the pods on it, by node."""
    ledger = outcome.ledger
    return {
        name: [
            {
                "uuid": card.device.uuid,
                "type": type_.value,
                "core": card.core_free,
                "memory": card.memory_free,
                "slots": card.slots_free,
                "tenants": card.tenants,
                "extras": dict(card.extras_free or {}),
                "functions": sorted(card.functions_taken),
                "instances": [[one.profile, one.start, one.size] for one in card.instances],
            }
            for type_ in DeviceType
            for card in ledger.cards(type_, index)
        ]
        for name, index in ledger.index.items()
    }


def placed(values: list[Manifest], one: PodOutcome) -> Manifest:
    """A pod's manifest as it stands after its Binding."""
    pod, allocation = one.pod.pod, one.allocation
    assert allocation is not None
    source = next(
        value
        for value in values
        if (value["kind"] == "Pod" and value["metadata"]["name"] == pod.name)
        or (
            (value["kind"] != "Pod" and pod.name.startswith(value["metadata"]["name"] + "-"))
            and "template" in value.get("spec", {})
        )
    )
    template = source if source["kind"] == "Pod" else source["spec"]["template"]
    head = template.get("metadata", {})
    metadata = {
        **head,
        "name": pod.name,
        "namespace": pod.namespace,
        "uid": pod.uid,
        "annotations": {**head.get("annotations", {}), **one.rendering.annotations},
        "labels": {**head.get("labels", {}), **one.rendering.labels},
    }
    spec = {**template["spec"], "nodeName": allocation.node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def frozen(folder: Path) -> Manifest:
    """One folder's cluster after all pods that fit are placed."""
    texts = [path.read_bytes() for path in sorted(folder.glob("*.yaml"))]
    values = [value for text in texts for value in yaml_values(text) if value]
    outcome = schedule(assemble([read(values)]))
    kinds = {"Pod", "Deployment", "ReplicaSet", "StatefulSet", "Job"}
    kept = [value for value in values if value["kind"] not in kinds]
    bound = [value for value in values if value["kind"] == "Pod" and "nodeName" in value["spec"]]
    fresh = [one for one in outcome.pods if one.allocation is not None and not one.bound]
    pods = [placed(values, one) for one in fresh if one.rendering.annotations]
    return {"documents": [*kept, *bound, *pods], "books": books(outcome)}


def main() -> None:
    """Write the files."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    for folder in sorted(path for path in EXAMPLES.iterdir() if path.is_dir()):
        text = json.dumps(frozen(folder), indent=1, sort_keys=True) + "\n"
        (target / f"{folder.name}.json").write_text(text)


if __name__ == "__main__":
    main()

"""The custom resources there are: Koordinator's Device, and simulated nodes.

Source: the MetaX document and the Koordinator document print Devices of `scheduling.koordinator.sh/v1alpha1`, cluster-scoped,
fetched as `kubectl get device <node>`. Fields are kept as they come, because vendors' agents add
their own; what Partage reads of them is checked where it is read.
"""

from typing import Any, Final

DEVICES: Final = "devices.scheduling.koordinator.sh"
"""The resource of Device objects in the API server's store."""

_OPEN: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

SIMULATED_NODES: Final = "simulatednodes.partage.io"
"""The resource of simulated nodes."""

_DEVICE: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": DEVICES},
    "spec": {
        "group": "scheduling.koordinator.sh",
        "scope": "Cluster",
        "names": {"plural": "devices", "singular": "device", "kind": "Device"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "description": "The accelerators and network cards of one node, as its agent reports them.",
                        "properties": {
                            "spec": _OPEN
                            | {
                                "description": "`devices`: of each its type, minor, UUID, health, what it "
                                "has in all, and its place on the machine."
                            },
                            "status": _OPEN
                            | {
                                "description": "`allocations`: what pods hold, where the agent tells."
                            },
                        },
                    }
                },
                "additionalPrinterColumns": [
                    {
                        "name": "Vendor",
                        "type": "string",
                        "jsonPath": ".metadata.labels.node\\.koordinator\\.sh/gpu-vendor",
                    },
                    {
                        "name": "Model",
                        "type": "string",
                        "jsonPath": ".metadata.labels.node\\.koordinator\\.sh/gpu-model",
                    },
                    {
                        "name": "Age",
                        "type": "date",
                        "jsonPath": ".metadata.creationTimestamp",
                    },
                ],
            }
        ],
    },
}
_SIMULATED_NODE: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": SIMULATED_NODES},
    "spec": {
        "group": "partage.io",
        "scope": "Cluster",
        "names": {
            "plural": "simulatednodes",
            "singular": "simulatednode",
            "kind": "SimulatedNode",
        },
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "description": "Nodes with cards that `partage up` simulates.",
                        "properties": {
                            "spec": _OPEN
                            | {
                                "description": "`model` and `cards` of each node, and how many nodes (`count`)."
                            }
                        },
                    }
                },
                "additionalPrinterColumns": [
                    {"name": "Model", "type": "string", "jsonPath": ".spec.model"},
                    {"name": "Cards", "type": "integer", "jsonPath": ".spec.cards"},
                    {"name": "Count", "type": "integer", "jsonPath": ".spec.count"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            }
        ],
    },
}
DEFINITIONS: Final = (_DEVICE, _SIMULATED_NODE)
"""What the embedded cluster defines before anything is applied to it."""

"""The custom resources: Koordinator's Device, simulated nodes, and the GPU of qGPU's page.

Source: the MetaX document and the Koordinator document print Devices of `scheduling.koordinator.sh/v1alpha1`,
cluster-scoped, fetched as `kubectl get device <node>`. Types are those of Koordinator's own definition. No field is
required and unknown ones are kept, because vendors' agents add their own. Each reader checks the fields that it uses.
`kubectl explain` shows the descriptions.
"""

from typing import Any, Final

DEVICES: Final = "devices.scheduling.koordinator.sh"
"""The resource of Device objects in the API server's store."""

SIMULATED_NODES: Final = "simulatednodes.partage.io"
"""The resource of simulated nodes."""

ELASTIC_GPUS: Final = "gpus.elasticgpu.io"
"""The resource of old versions of qGPU, which the qGPU document still defines."""

Schema = dict[str, Any]


def _is(kind: str, description: str) -> Schema:
    return {"type": kind, "description": description}


def _text(description: str) -> Schema:
    return _is("string", description)


def _number(description: str) -> Schema:
    return _is("integer", description)


def _texts(description: str) -> Schema:
    return _is("object", description) | {"additionalProperties": {"type": "string"}}


def _object(description: str, **fields: Schema) -> Schema:
    """Schema of an object that may have other fields too."""
    known: Schema = {"properties": fields} if fields else {}
    return _is("object", description) | known | {"x-kubernetes-preserve-unknown-fields": True}


def _list(description: str, item: Schema | None = None, **fields: Schema) -> Schema:
    """Schema of a list of such items, or of objects with these fields."""
    items = item or {k: v for k, v in _object("", **fields).items() if k != "description"}
    return _is("array", description) | {"items": items}


def _definition(
    group: str,
    kind: str,
    description: str,
    parts: Schema,
    *columns: tuple[str, str, str],
    status: bool = False,
    deprecated: str = "",
) -> dict[str, Any]:
    """A cluster-scoped resource of one version; `columns` are name, type and path of kubectl's columns.

    `parts`: its fields; without any, unknown ones are kept. `deprecated`: the warning about a deprecated resource.
    """
    plural = f"{kind.lower()}s"
    known = _is("object", description) | {"properties": parts} if parts else _object(description)
    shown = [{"name": name, "type": form, "jsonPath": path} for name, form, path in columns]
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        **({"deprecated": True, "deprecationWarning": deprecated} if deprecated else {}),
        **({"subresources": {"status": {}}} if status else {}),
        "schema": {"openAPIV3Schema": known},
        **({"additionalPrinterColumns": shown} if shown else {}),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [version],
        },
    }


_TOPOLOGY: Final = _object(
    "Where the device sits on the machine, by which pods get devices that are close together. The node's agent writes it.",
    socketID=_number(
        "Number of the processor's socket that the device is behind; -1 where it is not known."
    ),
    nodeID=_number("Number of the NUMA node that the device is behind; -1 where it is not known."),
    pcieID=_text(
        "Name of the PCIe switch that the device is behind. Devices of the same name share it."
    ),
    busID=_text("PCI address of the device, like 0000:5e:00.0."),
)
_GROUPS: Final = _list(
    "Virtual functions of a network card, those with the same labels together. Pods hold whole functions. Partage reads at most 16 groups with 256 functions in all.",
    labels=_texts(
        "What the functions of the group are for. The hint of a pod selects functions by these labels."
    ),
    vfs=_list(
        "The virtual functions of the group.",
        minor=_number("Number of the function within the device, from 0."),
        busID=_text(
            "PCI address of the function. A function without an address is given to no pod."
        ),
    ),
)
_CONDITIONS: Final = _list(
    "What the node's agent observed of the device. Partage's agent writes the condition Healthy alone.",
    type=_text("What is judged: Healthy."),
    status=_text("Whether it holds: True, False or Unknown."),
    reason=_text(
        "Why, as one word, like DeviceHealthy. DeviceLost is a device that was there and is not found any more."
    ),
    message=_text("Why, as a sentence. Refusals of pods repeat it."),
    lastTransitionTime=_text("When status last changed. Partage does not read it."),
)
_DEVICES: Final = _list(
    "Every accelerator and network card of the node. The node's agent writes the list; a device that is no longer found stays in it, unhealthy.",
    type=_text(
        "What the device is: gpu (an accelerator of any vendor), rdma or fpga. The node's agent writes it."
    ),
    id=_text(
        "UUID of the device as its driver says it; of a network card the PCI address. Records of pods name the device by it."
    ),
    minor=_number(
        "Number of the device on its node, from 0, within its type. Records of pods hold it."
    ),
    moduleID=_number(
        "Number of the device's module on the board, where another agent reports it. Partage neither writes nor reads it."
    ),
    health=_is(
        "boolean",
        "Whether the device works. Unless it is true, no new pod gets the device. The node's agent writes it.",
    ),
    labels=_texts("Properties of the device. The hint of a pod selects devices by these labels."),
    resources=_is(
        "object",
        "What the device has in all, by resource name: koordinator.sh/gpu-core and gpu-memory-ratio in percent of the device (100), koordinator.sh/gpu-memory in bytes (80Gi), "
        "koordinator.sh/rdma and fpga in percent, a vendor's own names in the vendor's units. The node's agent writes it.",
    )
    | {"additionalProperties": {"x-kubernetes-int-or-string": True}},
    topology=_TOPOLOGY,
    vfGroups=_GROUPS,
    conditions=_CONDITIONS,
)

_DEVICE: Final = _definition(
    "scheduling.koordinator.sh",
    "Device",
    "The accelerators and network cards of one node, as its agent reports them.",
    {
        "spec": _object("What the node has. The node's agent writes it.", devices=_DEVICES),
        "status": _object(
            "What another system's agent reports. Partage neither writes nor reads it.",
            allocations=_list(
                "Which pods hold which devices, as another system's agent reports it. Partage counts the records on pods instead."
            ),
        ),
    },
    ("Vendor", "string", ".metadata.labels.node\\.koordinator\\.sh/gpu-vendor"),
    ("Model", "string", ".metadata.labels.node\\.koordinator\\.sh/gpu-model"),
    ("Age", "date", ".metadata.creationTimestamp"),
    status=True,
)
_SIMULATED: Final = _object(
    "What the nodes have. You write it; the hardware of a node that is there does not change.",
    model=_text(
        "Model of the cards, like H100-80GB-HBM3. Any other name goes together with vendor and memory."
    ),
    count=_number(
        "How many nodes there are: NAME-0, NAME-1 and on. Without it there is one, named like this object."
    ),
    cards=_number("Cards of each node; 1 by default."),
    vendor=_text("Vendor of the cards; by default that of the model."),
    memory=_text("Memory of each card in bytes, like 80Gi; by default that of the model."),
    driver=_text("Version of the cards' driver; by default that of the model."),
    registers=_list(
        "Node plugins that run on the nodes beside Koordinator's agent: hami, qgpu; none by default.",
        {"type": "string"},
    ),
    mode=_text(
        "How the cards are cut: sgpu or native for MetaX, hami-core or mig for NVIDIA cards that HAMi registers."
    ),
    rdma=_object(
        "RDMA cards of each node, spread over its PCIe switches; none by default.",
        cards=_number("How many there are; 1 by default."),
        functions=_number(
            "Virtual functions of each. With 0, the default, pods get the card in percent."
        ),
    ),
    numaNodes=_number("NUMA nodes over which the devices are spread; 2 by default."),
    cardsPerSwitch=_number("Cards behind each PCIe switch; 2 by default."),
    cpu=_text("Processor cores of each node, like 64 or 500m; 64 by default."),
    hostMemory=_text("Memory of each node in bytes, cards excluded; 512Gi by default."),
    pods=_number("Pods that each node takes; 110 by default."),
    taints=_list(
        "Taints of the nodes, as in a Node; none by default.",
        key=_text("Name of the taint."),
        value=_text("Value of the taint; empty by default."),
        effect=_text(
            "What becomes of pods that do not tolerate it: NoSchedule, PreferNoSchedule or NoExecute."
        ),
    ),
)
_SIMULATED_NODE: Final = _definition(
    "partage.io",
    "SimulatedNode",
    "Nodes with cards that `partage up` simulates. Labels and annotations are those of the nodes.",
    {"spec": _SIMULATED},
    ("Model", "string", ".spec.model"),
    ("Cards", "integer", ".spec.cards"),
    ("Count", "integer", ".spec.count"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_ELASTIC_GPU: Final = _definition(
    "elasticgpu.io",
    "GPU",
    "One GPU as old versions of qGPU describe it. Partage neither writes nor reads it.",
    {},
    status=True,
    deprecated="elasticgpu.io is kept for old versions of qGPU; Partage does not read it",
)

DEFINITIONS: Final = (_DEVICE, _SIMULATED_NODE, _ELASTIC_GPU)
"""Definitions that the embedded cluster has before any manifest."""

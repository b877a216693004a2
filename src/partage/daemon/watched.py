"""The kinds that the scheduler follows in a cluster: their places in the API, and their shapes.

An object's shape contains only the fields that decisions read, so that tens of thousands of objects are
decoded fast and stay small. Objects of a server always have metadata. The types here express that, and
those of manifests cannot.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from partage.kube.objects import HasMeta
from partage.kube.resources import CONFIG_MAPS, NODES, PODS, QUOTAS, Resource, Scope
from partage.model.selector import Toleration
from partage.vendors.names import ALLOCATION, CLAIM_FINALIZER
from partage.vendors.reserved import RESERVED
from partage.wire import shapes
from partage.wire.claims import MOST_FINALIZERS
from partage.wire.documents import Document, texts
from partage.wire.heeded import heeded, lightened
from partage.wire.limits import entries, shortened

CLUSTER: Final = "cluster"
"""The source of documents that come from a server."""

DEVICES: Final = Resource("scheduling.koordinator.sh", "v1alpha1", "devices", namespaced=False)
"""Device objects, one a node (the MetaX and Koordinator documents)."""

RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims")

BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets")
"""Not followed: preemption lists them when it has pods to evict."""

_NOTHING: Final = shapes.Metadata()
_PACKED: Final[dict[str, Any]] = {
    "selectors": list[shapes.DeviceSelector],
    "tolerations": list[Toleration],
}
_OWNERS: Final = 16
"""Owners of a claim that are kept; a pod owns those made for it."""


class LivePod(shapes.Pod, frozen=True):
    """A pod from a server."""

    metadata: shapes.Metadata = _NOTHING

    def __post_init__(self) -> None:
        """Drop annotations that nothing reads, and most of what is beyond the bounds."""
        msgspec.structs.force_setattr(self, "metadata", lightened(self.metadata))
        for name, part in shortened(self).items():
            msgspec.structs.force_setattr(self, name, part)


class LiveClaim(shapes.ResourceClaim, frozen=True):
    """A ResourceClaim from a server."""

    metadata: shapes.Metadata = _NOTHING

    def __post_init__(self) -> None:
        """Drop what nothing reads: labels, annotations, and drivers' parameters, which take 24 times their text."""
        msgspec.structs.force_setattr(self, "metadata", _of_claim(self.metadata))
        for part in (self.spec, (self.status or {}).get("allocation")):
            devices = part.get("devices") if isinstance(part, dict) else None
            config = devices.get("config") if isinstance(devices, dict) else None
            for one in config if isinstance(config, list) else ():
                opaque = one.get("opaque") if isinstance(one, dict) else None
                if isinstance(opaque, dict):
                    opaque.pop("parameters", None)
        _pack(self.spec)


def _pack(spec: dict[str, Any] | None) -> None:
    """Keep selectors and tolerations as values of types: as dictionaries they take fourteen times their text."""
    for field, kind in _PACKED.items():
        for ask in _asks(spec):
            with contextlib.suppress(msgspec.ValidationError, RecursionError):
                if field in ask:
                    ask[field] = msgspec.convert(ask[field], kind)


def _asks(spec: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Each request of a claim, and each of its alternatives; whatever is not one is left out."""
    devices = (spec or {}).get("devices")
    requests = devices.get("requests") if isinstance(devices, dict) else None
    for request in requests if isinstance(requests, list) else ():
        if isinstance(request, dict):
            several = request.get("firstAvailable")
            some = [
                request,
                request.get("exactly"),
                *(several if isinstance(several, list) else ()),
            ]
            yield from (one for one in some if isinstance(one, dict))


def _of_claim(metadata: shapes.Metadata) -> shapes.Metadata:
    metadata = lightened(metadata)
    labels, ends = metadata.labels, metadata.finalizers or []
    few = ends[: MOST_FINALIZERS + 1]
    if CLAIM_FINALIZER in ends and CLAIM_FINALIZER not in few:
        few[0] = CLAIM_FINALIZER
    return msgspec.structs.replace(
        metadata,
        labels=dict(heeded(texts(labels))) if labels else labels,
        finalizers=few or None,
        owner_references=(metadata.owner_references or [])[:_OWNERS] or None,
    )


class LiveBudget(shapes.DisruptionBudget, frozen=True):
    """A PodDisruptionBudget from a server."""

    metadata: shapes.DisruptionMetadata = shapes.DisruptionMetadata()

    def __post_init__(self) -> None:
        """Drop labels and annotations, which nothing reads."""
        few = msgspec.structs.replace(self.metadata, labels=None, annotations=None)
        msgspec.structs.force_setattr(self, "metadata", few)


def _lighten(one: Any) -> None:
    msgspec.structs.force_setattr(one, "metadata", lightened(one.metadata))


def _live(shape: type[shapes.Shape]) -> type[HasMeta]:
    """The type of an object from a server, for kinds whose fields no other module reads."""
    fields = [("metadata", shapes.Metadata, _NOTHING)]
    made: Any = msgspec.defstruct(
        f"Live{shape.__name__}",
        fields,
        bases=(shape,),
        frozen=True,
        namespace={"__post_init__": _lighten},
    )
    kept: type[HasMeta] = made
    return kept


LiveNode: Final = _live(shapes.Node)
LiveDevice: Final = _live(shapes.Device)
LiveConfigMap: Final = _live(shapes.ConfigMap)


@dataclass(frozen=True, slots=True)
class Watched:
    """One followed kind.

    Attributes:
        optional: the server may not have the kind yet, as before a custom resource is installed.
        gives: its objects are the devices to allocate. If the server no longer has the kind, there is nothing to
            allocate. Objects of other kinds stay known, because the devices that they take must not count as free.
        paced: an object that changes all the time is passed on only now and then. Of a change from one state to another
            this gives the part of what a node, or a namespace, may change at once; 0 if the change must not wait.
    """

    kind: str
    scope: Scope
    into: type[HasMeta]
    optional: bool = False
    gives: bool = False
    paced: Callable[[Any, Any], float] | None = None


PRIORITIES: Final = Watched(
    "PriorityClass",
    Scope(Resource("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)),
    _live(shapes.PriorityClass),
    optional=True,
)
"""Not followed, because a server writes the value into each pod. Only manifests need them."""


CLAIMS: Final = Watched("ResourceClaim", Scope(RESOURCE_CLAIMS), LiveClaim, optional=True)
"""Followed if claims are switched on; Kubernetes has the kind in this version from 1.34 on."""


CLASSES: Final = Watched(
    "DeviceClass",
    Scope(Resource("resource.k8s.io", "v1", "deviceclasses", namespaced=False)),
    _live(shapes.DeviceClass),
    optional=True,
)
"""Followed with claims, because an operator's own class may name this driver."""


SLICES: Final = Watched(
    "ResourceSlice",
    Scope(Resource("resource.k8s.io", "v1", "resourceslices", namespaced=False)),
    _live(shapes.ResourceSlice),
    optional=True,
)
"""Not followed: the explanation of a waiting claim lists them."""


CLAIM_OFFERS: Final = (CLASSES, SLICES)
"""The kinds from which claims are allocated."""


_ENTRIES: Final = 5_000
"""Entries of a pod that takes as long to read as a large node. A small pod has ten."""


def _whole(_item: shapes.Node | shapes.Device, _before: object) -> float:
    """Each node writes its own objects, and the largest takes some 40 ms to read."""
    return 1.0


def _of_pod(item: LivePod, before: LivePod) -> float:
    """A change of a pod's author; one of its node, its end, its state or its record does not wait."""
    spec, other = item.spec or shapes.PodSpec(), before.spec or shapes.PodSpec()
    meta, known = item.metadata, before.metadata
    written, earlier = _written(meta), _written(known)
    if (
        spec.node_name != other.node_name
        or meta.deletion_timestamp != known.deletion_timestamp
        or item.status != before.status
        or written != earlier
        # Without a record its request counts.
        or (spec.node_name and ALLOCATION not in written and spec != other)
    ):
        return 0.0
    return entries(item) / _ENTRIES


def _written(metadata: shapes.Metadata) -> dict[str, str | None]:
    """What Partage and the plugins write on a pod."""
    found: dict[str, str | None] = {}
    for given, keys in (
        (metadata.annotations or {}, RESERVED.in_annotations(metadata.annotations or ())),
        (metadata.labels or {}, RESERVED.in_labels(metadata.labels or ())),
    ):
        found |= {key: given[key] for key in keys}
    return found


def config_maps(namespaces: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> list[Watched]:
    """The followed ConfigMaps. Each named one has its own watch, so that no right to others is needed.

    `namespaces`: of the ConfigMaps; empty for all namespaces. `names`: of the ConfigMaps; empty for all names.
    """
    return [
        Watched("ConfigMap", Scope(CONFIG_MAPS, namespace, fields=fields), LiveConfigMap)
        for namespace in namespaces or (None,)
        for fields in [f"metadata.name={name}" for name in names] or [""]
    ]


def watched(configs: Iterable[Watched] = (), *, claims: bool = False) -> tuple[Watched, ...]:
    """The kinds that the scheduler follows and commands list; without `configs`, ConfigMaps of all namespaces.

    `CLASSES` are missing: the scheduler follows them with claims, and commands list them only if a pod names claims.
    """
    return (
        *(configs or config_maps()),
        Watched("ResourceQuota", Scope(QUOTAS), _live(shapes.ResourceQuota)),
        Watched("Device", Scope(DEVICES), LiveDevice, optional=True, gives=True, paced=_whole),
        Watched("Node", Scope(NODES), LiveNode, paced=_whole),
        Watched("Pod", Scope(PODS), LivePod, paced=_of_pod),
        *((CLAIMS,) if claims else ()),
    )


def as_document(kind: str, shape: object) -> Document:
    """The document for the lower layers, from an object of a server."""
    assert isinstance(shape, shapes.Shape)  # noqa: S101 # `Watched.into` allows nothing else
    return Document(kind, CLUSTER, 1, shape)

"""What the scheduler follows of a cluster: kinds, where they live in the API, and their shapes.

An object's shape holds only the fields that decisions read, so that tens of thousands of them are
decoded fast and stay small. Metadata is never absent in what a server sends, which the types here
say and those of manifests cannot.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from partage.kube.objects import HasMeta
from partage.kube.resources import CONFIG_MAPS, NODES, PODS, QUOTAS, Resource, Scope
from partage.wire import shapes
from partage.wire.documents import Document

CLUSTER: Final = "cluster"
"""What documents that come from a server give as their source."""

DEVICES: Final = Resource("scheduling.koordinator.sh", "v1alpha1", "devices", namespaced=False)
"""Device objects, one a node (the MetaX and Koordinator documents)."""

RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims")

BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets")
"""Not followed either: preemption lists them when it has pods to send away."""

_NOTHING: Final = shapes.Metadata()


class LivePod(shapes.Pod, frozen=True):
    """A pod of a server."""

    metadata: shapes.Metadata = _NOTHING


class LiveBudget(shapes.DisruptionBudget, frozen=True):
    """A PodDisruptionBudget of a server."""

    metadata: shapes.Metadata = _NOTHING


def _live(shape: type[shapes.Shape]) -> type[HasMeta]:
    """Such an object of a server, where no other module reads its fields."""
    fields = [("metadata", shapes.Metadata, _NOTHING)]
    made: Any = msgspec.defstruct(f"Live{shape.__name__}", fields, bases=(shape,), frozen=True)
    kept: type[HasMeta] = made
    return kept


LiveNode: Final = _live(shapes.Node)
LiveDevice: Final = _live(shapes.Device)
LiveConfigMap: Final = _live(shapes.ConfigMap)
LiveClaim: Final = _live(shapes.ResourceClaim)


@dataclass(frozen=True, slots=True)
class Watched:
    """One kind that is followed.

    Attributes:
        scope: where it is listed and watched.
        into: what its objects are decoded to.
        optional: the server may not have it yet, as before a custom resource is installed.
        gives: its objects are what is handed out. Where the server does not have the kind any more, there is nothing to
            hand out; of other kinds what was known stays, for what they take must not count as free.
        paced: what changes all the time is heard of now and then: there is one object a node, and its node writes it.
    """

    kind: str
    scope: Scope
    into: type[HasMeta]
    optional: bool = False
    gives: bool = False
    paced: bool = False


PRIORITIES: Final = Watched(
    "PriorityClass",
    Scope(Resource("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)),
    _live(shapes.PriorityClass),
    optional=True,
)
"""Not followed: a server writes the value into each pod. Only manifests need them."""


CLAIMS: Final = Watched(
    "ResourceClaim",
    Scope(RESOURCE_CLAIMS),
    LiveClaim,
    optional=True,
)
"""Followed where it is switched on; Kubernetes has the kind in this version from 1.34 on."""


CLASSES: Final = Watched(
    "DeviceClass",
    Scope(Resource("resource.k8s.io", "v1", "deviceclasses", namespaced=False)),
    _live(shapes.DeviceClass),
    optional=True,
)
"""Followed with claims: an operator's own class may name this driver."""


SLICES: Final = Watched(
    "ResourceSlice",
    Scope(Resource("resource.k8s.io", "v1", "resourceslices", namespaced=False)),
    _live(shapes.ResourceSlice),
    optional=True,
)
"""Not followed: an explanation of a claim that waits lists them."""


CLAIM_OFFERS: Final = (CLASSES, SLICES)
"""What claims are allocated from."""


def config_maps(namespaces: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> list[Watched]:
    """The ConfigMaps that are followed, each by its own watch where they are named: then no right to others is needed.

    Args:
        namespaces: where they are; empty for all namespaces.
        names: what they are called; empty for those of any name.
    """
    return [
        Watched("ConfigMap", Scope(CONFIG_MAPS, namespace, fields=fields), LiveConfigMap)
        for namespace in namespaces or (None,)
        for fields in [f"metadata.name={name}" for name in names] or [""]
    ]


def watched(configs: Iterable[Watched] = (), *, claims: bool = False) -> tuple[Watched, ...]:
    """The kinds that the scheduler follows and commands list; of ConfigMaps those of all namespaces unless `configs` are given.

    Not here: `CLASSES`. The scheduler follows them with claims, and commands list them only if a pod names claims.
    """
    return (
        *(configs or config_maps()),
        Watched("ResourceQuota", Scope(QUOTAS), _live(shapes.ResourceQuota)),
        Watched("Device", Scope(DEVICES), LiveDevice, optional=True, gives=True, paced=True),
        Watched("Node", Scope(NODES), LiveNode, paced=True),
        Watched("Pod", Scope(PODS), LivePod),
        *((CLAIMS,) if claims else ()),
    )


def as_document(kind: str, shape: object) -> Document:
    """The document that the lower layers read, of an object that a server sent."""
    assert isinstance(shape, shapes.Shape)  # noqa: S101 # `Watched.into` holds nothing else
    return Document(kind, CLUSTER, 1, shape)

"""Checks whether a pod concerns devices, without reading it in full.

Most pods of a cluster do not, and must cost almost nothing. For them this check is enough.
"""

from partage.vendors.reserved import RESERVED
from partage.wire import shapes
from partage.wire.context import Context
from partage.wire.documents import Document

_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def concerns_devices(document: Document, context: Context) -> bool:
    """Whether a pod names a device resource, or has a record of devices."""
    shape = document.shape
    spec = shape.spec if isinstance(shape, shapes.Pod) else None
    if names_devices(spec, context):
        return True
    annotations = shape.metadata.annotations if shape.metadata else None
    return bool(annotations) and bool(RESERVED.in_annotations(annotations or ()))


def names_devices(spec: shapes.PodSpec | None, context: Context) -> bool:
    """Whether a container, or the pod as a whole, names a resource that a family reads."""
    if spec is None:
        return False
    owners = context.owners
    lists = [spec.resources] if spec.resources else []
    lists += [c.resources for c in spec.containers or () if c.resources]
    lists += [c.resources for c in spec.init_containers or () if c.resources]
    for resources in lists:
        for part in (resources.limits, resources.requests):
            if part and not owners.keys().isdisjoint(part):
                return True
    return bool(spec.overhead) and not owners.keys().isdisjoint(spec.overhead or ())


def is_flexible(spec: shapes.PodSpec | None) -> bool:
    """Whether the pod has wishes that only kube-scheduler weighs against each other.

    These are preferred affinity, to nodes or to other pods, and spreading that is not mandatory. Such a
    pod needs every node that fits; for the others the best one is enough.
    """
    if spec is None:
        return False
    affinity = spec.affinity
    if affinity is not None:
        if affinity.node_affinity is not None and affinity.node_affinity.preferred:
            return True
        for between in (affinity.pod_affinity, affinity.pod_anti_affinity):
            if between and between.get(_PREFERRED):
                return True
    return any(rule.get("whenUnsatisfiable") != "DoNotSchedule" for rule in spec.spread or ())

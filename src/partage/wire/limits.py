"""The most that a pod with devices may ask for: bounds that keep reading and deciding cheap.

They are far beyond real requests. The webhook refuses a pod beyond them. A pod that bypassed the
webhook is read no further, and waits with the same sentence. The webhook sees no pod that asks by ResourceClaims
alone; for such a pod beyond the bounds no nodes are compared, and kube-scheduler places it by itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.reserved import RESERVED
from partage.wire import shapes
from partage.wire.documents import size_of

LIMITS: Final[Mapping[str, int]] = {
    "containers that ask for devices": 64,
    "containers": 512,
    "resource names": 128,
    "amounts of resources": 4096,
    "node selector labels": 128,
    "node affinity terms and expressions": 256,
    "node affinity values": 4096,
    "tolerations": 256,
    "characters in one label or value that it compares": 1024,
    "bytes in one annotation": 16_384,
    "entries in one annotation": 256,
    "bytes of annotations": 131_072,
}
"""The most of each for one pod; the reference lists the same.

A Binding adds the record to the pod's annotations without a look at their size. If they then have more than
`LARGEST_ANNOTATIONS`, the API server refuses each later write of the pod, also the kubelet's of its end, and the pod
stays until it is deleted by force.
"""

LARGEST_ANNOTATIONS: Final = 2**18
"""Bytes of all annotations of an object, keys and values, that the API server allows."""

READ: Final = tuple(
    sorted(
        {
            names.SGPU_QOS_POLICY,
            names.NODE_POLICY,
            names.CARD_POLICY,
            names.COMPUTE_POLICY,
            names.MEMORY_BEYOND,
            names.QGPU_APP_CLASS,
        }.union(*(family.heeded for family in FAMILIES))
    )
)
"""Annotations that restrict a pod's nodes."""

_LISTS: Final = (
    names.HAMI_USE_TYPE,
    names.HAMI_AVOID_TYPE,
    names.HAMI_USE_UUID,
    names.HAMI_AVOID_UUID,
    names.HAMI_CARD_POLICY,
)


def beyond(
    spec: shapes.PodSpec,
    annotations: Mapping[str, str],
    is_device: Callable[[str], bool],
    dropped: int = 0,
) -> str:
    """The bound that a pod breaks, as a sentence; empty for none, and for a pod without devices and claims.

    `dropped`: bytes of further annotations, which nothing reads.
    """
    asked = [list(_resources(container)) for container in _containers(spec)]
    asking = sum(any(map(is_device, one)) for one in asked)
    own = [*(spec.overhead or ()), *_resources(shapes.Container(resources=spec.resources))]
    if not asking and not any(map(is_device, own)) and not spec.resource_claims:
        return ""
    counts = {
        "containers that ask for devices": asking,
        "containers": len(asked),
        "resource names": len(set(own).union(*asked)),
        "amounts of resources": len(own) + sum(map(len, asked)),
        "node selector labels": len(spec.node_selector or ()),
        "tolerations": len(spec.tolerations or ()),
        **_affinity(spec),
    }
    for what, count in counts.items():
        if count > LIMITS[what]:
            return f"the pod has {count} {what}, at most {LIMITS[what]} are allowed"
    # Read after the numbers, so that there are few texts.
    what, count = "characters in one label or value that it compares", _longest(spec)
    if count > LIMITS[what]:
        return f"the pod has {count} {what}, at most {LIMITS[what]} are allowed"
    return _annotated(annotations, dropped)


def _longest(spec: shapes.PodSpec) -> int:
    """Length of the longest text that is compared with nodes; every refusal of a node repeats it."""
    tolerations, expressions = spec.tolerations or (), _expressions(spec)
    texts = chain(
        (text for one in (spec.node_selector or {}).items() for text in one),
        (text for one in tolerations for text in (one.key, one.value, one.operator, one.effect)),
        (text for one in expressions for text in (one.key, one.operator, *(one.values or ()))),
    )
    return max((len(text) for text in texts if text), default=0)


_KEPT: Final = 1024
"""Labels, tolerations and the like of a pod that are kept; more than a bound allows."""
_LONG: Final = {
    "metadata": ("labels", "finalizers", "owner_references"),
    "spec": ("node_selector", "tolerations", "scheduling_gates", "resource_claims"),
    "status": (
        "conditions",
        "container_statuses",
        "init_container_statuses",
        "resource_claim_statuses",
    ),
}
_TEXT: Final = 16
"""Characters of an annotation that count as one entry: it may be a list."""
_TOO_FAR: Final = shapes.NodeAffinity(
    shapes.NodeSelector(
        [shapes.SelectorTerm()] * (LIMITS["node affinity terms and expressions"] + 1)
    )
)
"""It stands for node affinity beyond the bounds; `beyond` refuses it too."""


def shortened(pod: shapes.Pod) -> dict[str, msgspec.Struct]:
    """The parts of a pod that are beyond the bounds, without most of that, so that it takes hardly more than its text.

    A server allows any number of such parts, and in memory one takes up to seventeen times its text. More than is
    allowed is kept, so that `beyond` refuses the same. A bound pod keeps all amounts but 0: each may be of a device. A
    container whose status is missing counts as not ended.
    """
    found: dict[str, msgspec.Struct] = {}
    for name, lists in _LONG.items():
        part = getattr(pod, name)
        long = [one for one in lists if len(getattr(part, one, None) or ()) > _KEPT]
        if long:
            few = {one: _few(getattr(part, one)) for one in long}
            if "labels" in few:
                few["labels"] |= {key: part.labels[key] for key in RESERVED.in_labels(part.labels)}
            found[name] = replace(part, **few)
    spec = found.get("spec", pod.spec)
    if not isinstance(spec, shapes.PodSpec):
        return found
    if spec.affinity and any(count > LIMITS[what] for what, count in _affinity(spec).items()):
        spec = replace(spec, affinity=replace(spec.affinity, node_affinity=_TOO_FAR))
    spec = _with_few_amounts(spec)
    return found if spec is pod.spec else found | {"spec": spec}


def _few(long: Any) -> Any:
    return dict(islice(long.items(), _KEPT)) if isinstance(long, dict) else long[:_KEPT]


def _with_few_amounts(spec: shapes.PodSpec) -> shapes.PodSpec:
    """The spec with one amount more than is allowed, or of a bound pod those that are not 0."""
    left = LIMITS["amounts of resources"] + 1
    given = [one.resources for one in _containers(spec) if one.resources]
    if sum(len(one.limits or ()) + len(one.requests or ()) for one in given) < left:
        return spec

    def few(amounts: dict[str, Any] | None) -> dict[str, Any]:
        nonlocal left
        found = (amounts or {}).items()
        if spec.node_name:
            return {name: one for name, one in found if one not in ("0", 0, None)}
        kept = dict(islice(found, left))
        left -= len(kept)
        return kept

    def thin(listed: list[shapes.Container] | None) -> list[shapes.Container]:
        return [
            replace(one, resources=shapes.Resources(few(given.requests), few(given.limits)))
            for one in listed or ()
            for given in (one.resources or shapes.Resources(),)
        ]

    return replace(
        spec, containers=thin(spec.containers), init_containers=thin(spec.init_containers)
    )


def entries(pod: shapes.Pod) -> int:
    """How many things a pod lists, long texts as several: the measure of what it takes to read it."""
    meta, spec = pod.metadata or shapes.Metadata(), pod.spec or shapes.PodSpec()
    count = sum(map(len, (meta.labels or (), spec.node_selector or (), spec.tolerations or ())))
    for container in _containers(spec):
        given = container.resources or shapes.Resources()
        count += (
            1 + len(given.limits or ()) + len(given.requests or ()) + len(container.ports or ())
        )
    count += sum(_affinity(spec).values())
    texts = (meta.annotations or {}).values()
    return count + sum(1 + len(text or "") // _TEXT for text in texts)


def by_claims_alone(spec: shapes.PodSpec, is_device: Callable[[str], bool]) -> bool:
    """Whether a pod names ResourceClaims, and no device."""
    whole = shapes.Container(resources=spec.resources)
    named = chain(*map(_resources, (*_containers(spec), whole)), spec.overhead or ())
    return bool(spec.resource_claims) and not any(map(is_device, named))


def _annotated(annotations: Mapping[str, str], dropped: int) -> str:
    size, most = size_of(annotations) + dropped, LIMITS["bytes of annotations"]
    if size > most:
        return f"the pod has {size} bytes of annotations, at most {most} are allowed"
    for key in READ:
        text = annotations.get(key, "")
        for what, count in (
            ("bytes in one annotation", len(text)),
            ("entries in one annotation", text.count(",") + 1 if key in _LISTS else 0),
        ):
            if count > LIMITS[what]:
                kind = what.split(" ", 1)[0]
                return f"annotation {key} has {count} {kind}, at most {LIMITS[what]} are allowed"
    return ""


def _containers(spec: shapes.PodSpec) -> Iterator[shapes.Container]:
    yield from spec.init_containers or ()
    yield from spec.containers or ()


def _resources(container: shapes.Container) -> Iterable[str]:
    given = container.resources or shapes.Resources()
    yield from given.limits or ()
    yield from given.requests or ()


def _terms(spec: shapes.PodSpec) -> list[shapes.SelectorTerm]:
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None:
        return []
    terms = [*((affinity.required.terms or ()) if affinity.required else ())]
    return terms + [one.preference for one in affinity.preferred or () if one.preference]


def _expressions(spec: shapes.PodSpec) -> list[shapes.Expression]:
    return [
        one
        for term in _terms(spec)
        for one in (*(term.match_expressions or ()), *(term.match_fields or ()))
    ]


def _affinity(spec: shapes.PodSpec) -> dict[str, int]:
    """Terms and their expressions, required and preferred, and the values in them."""
    expressions = _expressions(spec)
    return {
        "node affinity terms and expressions": len(_terms(spec)) + len(expressions),
        "node affinity values": sum(len(one.values or ()) for one in expressions),
    }

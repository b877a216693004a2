"""A pod as the API server sends it: plain, untrusted JSON.

These functions find containers and resources in any input, without raising. A field of the wrong type counts as
absent. Other modules decide whether the pod is valid.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from partage.model.errors import UNREADABLE
from partage.wire import shapes
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.limits import LIMITS

_LISTS: Final = ("initContainers", "containers")
_MOST_CONTAINERS: Final = LIMITS["containers"]


@dataclass(frozen=True, slots=True)
class Part:
    """One container of a pod, and its path. `name`: its name, or its place if it has none."""

    path: tuple[str | int, ...]
    name: str
    body: Mapping[str, Any]

    def resources(self, kind: str) -> Mapping[str, Any]:
        """Its `requests` or `limits`."""
        return mapping(mapping(self.body.get("resources")).get(kind))


def parts(pod: Mapping[str, Any]) -> Iterator[Part]:
    """The containers of a pod, init containers first."""
    spec = mapping(pod.get("spec"))
    for kind in _LISTS:
        listed = spec.get(kind)
        for index, body in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(body, Mapping):
                name = body.get("name")
                place = f"{kind}[{index}]"
                yield Part(("spec", kind, index), name if isinstance(name, str) else place, body)


def device_names(part: Part, context: Context) -> list[str]:
    """Device resources that a container names, including vendors' triggers, in order."""
    named = {*part.resources("requests"), *part.resources("limits")}
    return sorted(name for name in named if context.is_device(name))


def names_devices(pod: Mapping[str, Any], context: Context) -> bool:
    """Whether any container, or the pod as a whole, names a resource that a family reads."""
    return _names(pod, context.owners.keys())


def wakes_devices(pod: Mapping[str, Any], context: Context) -> bool:
    """The same, or whether it names a resource that only a vendor's plugin uses."""
    return _names(pod, context.owners.keys() | context.triggers)


def _names(pod: Mapping[str, Any], resources: AbstractSet[str]) -> bool:
    spec = mapping(pod.get("spec"))
    if not resources.isdisjoint(mapping(spec.get("overhead"))):
        return True
    return any(
        not resources.isdisjoint(part.resources(kind))
        for part in (Part((), "", spec), *parts(pod))
        for kind in ("requests", "limits")
    )


def crowded(pod: Mapping[str, Any]) -> str:
    """The reason why a pod has too many containers to be read in time; empty otherwise."""
    spec = mapping(pod.get("spec"))
    listed = [spec.get(kind) for kind in _LISTS]
    count = sum(len(one) for one in listed if isinstance(one, list))
    if count <= _MOST_CONTAINERS:
        return ""
    return (
        f"InvalidRequest: the pod has {count} containers; a pod that asks for devices may have "
        f"{_MOST_CONTAINERS} at most, init containers included"
    )


def decode_pod(pod: Mapping[str, Any], namespace: str) -> Document | str:
    """The pod as a document, or a text with the reason why it is none."""
    try:
        shape = msgspec.convert(pod, shapes.Pod)
    except UNREADABLE as error:
        return str(error)
    metadata = shape.metadata or shapes.Metadata()
    # On creation the namespace may be in the request alone, and the name may be generated.
    name = metadata.name or f"{metadata.generate_name or 'pod-'}x"
    metadata = msgspec.structs.replace(
        metadata, name=name, namespace=metadata.namespace or namespace or None
    )
    return Document("Pod", "admission", 1, msgspec.structs.replace(shape, metadata=metadata))


def texts_of(document: Mapping[str, Any] | None, field: str) -> dict[str, str]:
    """A map of texts in an object's metadata: `labels` or `annotations`."""
    given = mapping(mapping((document or {}).get("metadata")).get(field))
    return {key: value if isinstance(value, str) else "" for key, value in given.items()}


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a map, else an empty map."""
    return value if isinstance(value, Mapping) else {}

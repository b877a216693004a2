"""A pod as the API server sends it: plain JSON, of which nothing may be believed.

These functions find containers and resources in whatever comes, without raising: a field of the
wrong type counts as absent. Whether the pod is valid is decided elsewhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from partage.wire import shapes
from partage.wire.context import Context
from partage.wire.documents import Document

__all__ = ["Part", "decode_pod", "device_names", "mapping", "names_devices", "parts", "texts_of"]

_LISTS: Final = ("initContainers", "containers")


@dataclass(frozen=True, slots=True)
class Part:
    """One container of a pod, and where it stands.

    Attributes:
        path: where it stands in the pod.
        name: its name; its place when it has none.
        body: the container.
    """

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
    """Device resources that a container names, vendors' triggers included, in order."""
    named = {*part.resources("requests"), *part.resources("limits")}
    return sorted(name for name in named if context.is_device(name))


def names_devices(pod: Mapping[str, Any], context: Context) -> bool:
    """Whether any container, or the pod as a whole, names a resource that a family reads."""
    spec = mapping(pod.get("spec"))
    whole = Part((), "", spec)
    named: set[object] = {*mapping(spec.get("overhead"))}
    for part in (whole, *parts(pod)):
        named |= {*part.resources("requests"), *part.resources("limits")}
    return any(name in context.owners for name in named)


def decode_pod(pod: Mapping[str, Any], namespace: str) -> Document | str:
    """The pod as a document; a text that says why it is none."""
    try:
        shape = msgspec.convert(pod, shapes.Pod)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return str(error)
    metadata = shape.metadata or shapes.Metadata()
    # On creation the namespace may still be told by the request alone, and the name be generated.
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
    """The value, where it is a map; else an empty one."""
    return value if isinstance(value, Mapping) else {}

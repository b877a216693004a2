"""Keeps of an object's annotations only those that some protocol may read.

A user may give each of his pods tens of thousands of annotations, and in memory a short one takes 26 times its text.
All instances of the service keep all pods, and each agent keeps those of its node. So an object from a server is
shortened as it is decoded. The size of the rest stays known, because a bound on a pod's annotations counts all of them.
"""

import heapq
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from msgspec import structs

from partage.vendors import names
from partage.vendors.reserved import RESERVED
from partage.wire import shapes
from partage.wire.documents import size_of, texts

_Text = TypeVar("_Text", str, str | None)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)


KEYS: Final = frozenset(
    text for name, value in vars(names).items() if name.isupper() for text in _texts(value)
)
"""All names that Partage knows, keys of annotations and labels among them."""
_DOMAINS: Final = frozenset(key[: key.find("/") + 1] for key in KEYS) - {"", "kubernetes.io/"}
"""Each with its slash."""
_STRANGERS: Final = 16
"""Keys of one protocol's domain that no rule reads by name: any of them may show whose a pod is, or be misspelt."""
_WRITTEN: Final = 1024
"""Reserved keys that contain a container's name; more than a pod has containers with devices."""


def ours(key: str) -> bool:
    """Whether a label or annotation belongs to a protocol, so that some rule may read it."""
    return key in KEYS or key[: key.find("/") + 1] in _DOMAINS


def heeded(annotations: Mapping[str, _Text]) -> Mapping[str, _Text]:
    """The annotations that some rule may read, in the same order; the same mapping if that is all of them."""
    # `ours` written out: there may be 80,000 keys, and 40,000 pods at a start.
    found = [
        key
        for key in annotations
        if key in KEYS or ("/" in key and key[: key.find("/") + 1] in _DOMAINS)
    ]
    if len(found) > _STRANGERS:
        found = _few(found)
    if len(found) == len(annotations):
        return annotations
    return {key: annotations[key] for key in found}


def _few(keys: list[str]) -> list[str]:
    """The keys without most of those that no rule reads by name."""
    strangers: dict[str, list[str]] = {}
    written: list[str] = []
    for key in keys:
        if key.startswith(RESERVED.prefixes):
            written.append(key)
        elif key not in KEYS:
            strangers.setdefault(key.partition("/")[0], []).append(key)
    left = {*heapq.nsmallest(_WRITTEN, written)}.union(
        *(heapq.nsmallest(_STRANGERS, some) for some in strangers.values())
    )
    return [key for key in keys if key in KEYS or key in left]


def lightened(metadata: shapes.Metadata) -> shapes.Metadata:
    """The metadata without annotations that nothing reads, of which it keeps the size."""
    given = metadata.annotations
    kept = heeded(given) if given else given
    if kept is given:
        return metadata
    before = metadata.dropped if isinstance(metadata, shapes.LightMetadata) else 0
    size = before + size_of(texts(given)) - size_of(texts(kept))
    own = {name: getattr(metadata, name) for name in shapes.Metadata.__struct_fields__}
    own["annotations"] = kept or None
    return shapes.LightMetadata(**own, dropped=size)


def light(pod: shapes.Pod) -> shapes.Pod:
    """The pod without annotations that nothing reads; the same pod if it has none of them."""
    if not pod.metadata or not pod.metadata.annotations:
        return pod
    metadata = lightened(pod.metadata)
    return pod if metadata is pod.metadata else structs.replace(pod, metadata=metadata)

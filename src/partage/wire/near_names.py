"""Finds names in a pod that do not have their intended effect: misspelt names, and names that only wake a plugin.

Kubernetes accepts any resource name and any annotation. No node has a misspelt resource, a misspelt annotation
has no effect, and a vendor's plugin that is woken without amounts has no card to give. No other part reports this.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Final

from partage.vendors import names
from partage.wire import shapes
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.heeded import KEYS
from partage.wire.limits import READ

_ANNOTATIONS: Final = frozenset((*READ, names.ADJUST))
"""Annotations that a pod's author writes; programs write the rest."""

_ALIKE: Final = 0.8
_MOST: Final = 8
"""Names of one pod in warnings."""
_LOOKED_AT: Final = 64
"""Names of one pod to compare, as a tenant may write thousands; and characters of one."""


def near_names(document: Document, context: Context) -> tuple[str, ...]:
    """Notes on the unknown resources and annotations of a pod."""
    asked = _asked(document)
    told = chain(
        _resources(asked, frozenset(context.owners) | context.triggers),
        (
            f"annotation {name} is none that Partage reads; did you mean {near}?"
            for name, near in _nearest(document.annotations, _ANNOTATIONS)
        ),
        _woken(asked, context),
    )
    return tuple(islice(dict.fromkeys(told), _MOST))


def unread_names(document: Document, context: Context) -> tuple[str, ...]:
    """The same, with resources that are like no known one: for a pod that asks for no device by other names."""
    known = frozenset(context.owners) | context.triggers
    strange = (
        (container, name)
        for container, amounts in _asked(document)
        for name in amounts
        if "/" in name and name not in known
    )
    told = (
        f"container {container}: resource {name} is none that Partage reads"
        for container, name in islice(strange, _LOOKED_AT)
        if not _near(name, known)
    )
    return tuple(islice(dict.fromkeys((*near_names(document, context), *told)), _MOST))


def _asked(document: Document) -> list[tuple[str, Mapping[str, object]]]:
    spec = document.shape.spec if isinstance(document.shape, shapes.Pod) else None
    spec = spec or shapes.PodSpec()
    return [
        (one.name or "", {**(one.resources.limits or {}), **(one.resources.requests or {})})
        for one in chain(spec.init_containers or (), spec.containers or ())
        if one.resources
    ]


def _woken(asked: Sequence[tuple[str, Mapping[str, object]]], context: Context) -> Iterator[str]:
    """Notes on a pod that names nothing but a vendor's plugin, which then finds no card to give."""
    found = dict.fromkeys(name for _container, names_ in asked for name in names_)
    if context.owners.keys().isdisjoint(found):
        for name in found:
            if name in context.triggers:
                yield (
                    f"resource {name} only wakes its vendor's plugin: Partage gives no card for it; write "
                    f"amounts beside it, such as {names.KOORD_GPU_CORE} and {names.KOORD_GPU_MEMORY}"
                )


def _resources(
    asked: Sequence[tuple[str, Mapping[str, object]]], known: frozenset[str]
) -> Iterator[str]:
    alike = dict(_nearest(dict.fromkeys(name for _, names_ in asked for name in names_), known))
    for container, amounts in asked:
        for name in filter(alike.__contains__, amounts):
            about = f"container {container}: resource {name} is none that Partage reads"
            yield f"{about}; did you mean {alike[name]}?"


def _nearest(given: Iterable[str], known: frozenset[str]) -> Iterator[tuple[str, str]]:
    for name in islice(given, _LOOKED_AT):
        if "/" in name and len(name) <= _LOOKED_AT and name not in known and name not in KEYS:
            near = _near(name, known)
            if near:
                yield name, near


@lru_cache(maxsize=1024)
def _near(name: str, known: frozenset[str]) -> str:
    """The most similar name of the same domain that is not of another model, with other digits; empty for none."""
    domain, _slash, own = name.rpartition("/")
    alike = {
        other.rpartition("/")[2]: other
        for other in sorted(known)
        if other.startswith(f"{domain}/") and _digits(other) in ("", _digits(name))
    }
    found = difflib.get_close_matches(own, alike, n=1, cutoff=_ALIKE)
    return alike[found[0]] if found else ""


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))

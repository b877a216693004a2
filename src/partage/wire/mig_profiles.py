"""The annotation of a Device object with the ways to cut its cards, as their own driver reports them.

    {"v": 1, "axes": [{"model": "NVIDIA A100-SXM4-80GB", "profiles": [{"name": "1g.10gb", …}]}],
     "cards": {"GPU-a": 0, "GPU-b": 0}}

Memory, starts and names differ by driver and firmware on one model. So on a node the driver's
report counts, and not a table of published figures. Cards that are alike share an entry.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from partage.model.errors import UNREADABLE
from partage.model.mig import Engines, MigAttribute, MigAxis, MigProfile

_VERSION: Final = 1
_MOST: Final = 64
_Count = Annotated[int, Meta(ge=0, le=1024)]
_Units = Annotated[int, Meta(ge=1, le=_MOST)]


class _Profile(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"memory_bytes": "memory", "core_milli": "core"},
):
    """A `MigProfile` in the annotation's form; the fields have its names."""

    name: Annotated[str, Meta(min_length=1, max_length=_MOST)]
    compute: _Units
    size: _Units
    starts: Annotated[tuple[Annotated[int, Meta(ge=0, lt=_MOST)], ...], Meta(max_length=_MOST)]
    memory_bytes: Annotated[int, Meta(ge=0, le=2**52)]
    core_milli: Annotated[int, Meta(ge=0, le=1000)]
    count: _Units
    engines: tuple[_Count, _Count, _Count, _Count, _Count] | None = None
    attributes: tuple[MigAttribute, ...] = ()


class _Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(max_length=256)]
    profiles: Annotated[tuple[_Profile, ...], Meta(max_length=_MOST)]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    axes: msgspec.Raw
    cards: dict[str, int]


def encode_axes(axes: Mapping[str, MigAxis]) -> str:
    """The annotation for cards by their UUID; those that cannot be cut are left out."""
    told = {
        uuid: _Axis(axis.model, tuple(map(_told, axis.profiles)))
        for uuid, axis in sorted(axes.items())
        if axis.profiles
    }
    distinct = list(dict.fromkeys(told.values()))
    cards = {uuid: distinct.index(one) for uuid, one in told.items()}
    return msgspec.json.encode({"v": _VERSION, "axes": distinct, "cards": cards}).decode()


def decode_axes(text: str) -> tuple[Mapping[str, MigAxis], str]:
    """The contents of an annotation, by the card's UUID; and its error, else empty."""
    try:
        document = msgspec.json.decode(text, type=_Document)
        if document.v != _VERSION:
            return {}, f"version {document.v} is not {_VERSION}"
        axes = _axes(bytes(document.axes))
        return {uuid: axes[index] for uuid, index in document.cards.items() if index >= 0}, ""
    except (LookupError, *UNREADABLE) as error:
        return {}, str(error)[:_MOST] or type(error).__name__


@lru_cache(maxsize=256)
def _axes(raw: bytes) -> tuple[MigAxis, ...]:
    """The axes; parsed only once, because nodes of one kind have the same text."""
    return tuple(
        MigAxis(axis.model, tuple(map(_profile, axis.profiles)))
        for axis in msgspec.json.decode(raw, type=tuple[_Axis, ...])
    )


def _told(profile: MigProfile) -> _Profile:
    told = {name: getattr(profile, name) for name in _Profile.__struct_fields__}
    told["engines"] = profile.engines and profile.engines.counts
    told["attributes"] = tuple(sorted(profile.attributes))
    return _Profile(**told)


def _profile(told: _Profile) -> MigProfile:
    given = msgspec.structs.asdict(told)
    given["engines"] = told.engines and Engines(*told.engines)
    given["attributes"] = frozenset(told.attributes)
    return MigProfile(**given)

"""The annotation of a Device object with the instances on its cards that are not Partage's.

It also lists cards that give no instances before an operator has acted.

    {"v": 1, "cards": {"GPU-a": {"instances": [{"profile": "3g.40gb", "start": 4, "size": 4,
                                                "uuids": ["MIG-…"]}]},
                       "GPU-b": {"unknown": "the driver does not answer"},
                       "GPU-c": {"uncuttable": "MIG mode is off: …"}}}

The agent that makes instances writes it, because only the node knows. Cards without such instances are
not in it. If only the scheduler cuts cards, no agent writes the annotation, and it is absent. Upstream
readers of Device objects do not know it, and the object's own schema would drop a further field
of a device.

Unreadable parts never count as free: an odd entry puts its card in doubt, and an odd annotation
puts all cards of the object in doubt.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from partage.model.device import ForeignInstance
from partage.model.errors import UNREADABLE
from partage.model.mig import MigSlice

_VERSION: Final = 1
_MOST: Final = 64
"""Units of a card, and instances on it; no card has more."""
_SHOWN: Final = 120
"""Characters of a problem to show."""


@dataclass(frozen=True, slots=True)
class OnCard:
    """The instances on one card that Partage did not make.

    Attributes:
        instances: the known ones.
        unknown: why the card's contents are unknown; empty if they are known.
        uncuttable: why no instance can be made before an operator acts; empty if one can.
    """

    instances: tuple[ForeignInstance, ...] = ()
    unknown: str = ""
    uncuttable: str = ""


class _Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    profile: Annotated[str, Meta(min_length=1, max_length=_MOST)]
    start: Annotated[int, Meta(ge=0, lt=_MOST)]
    size: Annotated[int, Meta(ge=1, le=_MOST)]
    uuids: tuple[str, ...] = ()


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    instances: Annotated[tuple[_Instance, ...], Meta(max_length=_MOST)] = ()
    unknown: str = ""
    uncuttable: str = ""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    cards: dict[str, msgspec.Raw]


def encode_foreign(cards: Mapping[str, OnCard]) -> str:
    """The annotation for these cards, by UUID; those without such instances are left out."""
    told = {
        uuid: _Card(
            tuple(
                _Instance(one.instance.profile, one.instance.start, one.instance.size, one.uuids)
                for one in there.instances
            ),
            there.unknown,
            there.uncuttable,
        )
        for uuid, there in sorted(cards.items())
        if there.instances or there.unknown or there.uncuttable
    }
    return msgspec.json.encode({"v": _VERSION, "cards": told}).decode()


def decode_foreign(text: str) -> tuple[Mapping[str, OnCard], str]:
    """The contents of an annotation, by the card's UUID; and the error in all of it, else empty.

    Never raises: an unreadable entry means that the contents of its card are unknown.
    """
    try:
        document = msgspec.json.decode(text, type=_Document)
    except UNREADABLE as error:
        return {}, str(error)[:_SHOWN]
    if document.v != _VERSION:
        return {}, f"version {document.v} is not {_VERSION}"
    return {uuid: _card(raw) for uuid, raw in document.cards.items()}, ""


def _card(raw: msgspec.Raw) -> OnCard:
    try:
        card = msgspec.json.decode(raw, type=_Card)
    except UNREADABLE as error:
        return OnCard(unknown=f"its entry cannot be read: {str(error)[:_SHOWN]}")
    return OnCard(
        tuple(
            ForeignInstance(MigSlice(one.profile, one.start, one.size), one.uuids)
            for one in card.instances
        ),
        card.unknown[:_SHOWN],
        card.uncuttable[:_SHOWN],
    )

"""The texts with which HAMi's node plugin registers cards and the links between them.

Two generations of the card text are read. One has fields separated by commas, each card closed by `:` (7 fields, or 9
with index and mode). The other is a JSON array that leaves out keys whose value is zero.

Source: docs/sources/hami.md 3 and 13 (case 27).
"""

import re
from collections.abc import Iterable
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from partage.model.errors import UNREADABLE, InvalidRecord

T = TypeVar("T")
_MOST: Final = 2**31 - 1
_Count = Annotated[int, Meta(ge=0, le=_MOST)]
_Score = Annotated[int, Meta(ge=-_MOST, le=_MOST)]
_LONGEST: Final = 256
"""Characters of an id, a model or a name; records and answers repeat them."""
_Id = Annotated[str, Meta(min_length=1, max_length=_LONGEST)]
_Text = Annotated[str, Meta(max_length=_LONGEST)]
_INTEGER: Final = re.compile(r"-?[0-9]{1,10}")
_TRUE: Final = ("1", "t", "T", "true", "TRUE", "True")
BOOLEANS: Final = {one: one in _TRUE for one in (*_TRUE, "0", "f", "F", "false", "FALSE", "False")}
"""The texts that Go's ParseBool reads."""


class RegisteredPlace(Struct, frozen=True):
    """One legal place of an instance: first memory unit and units taken."""

    start: _Count = 0
    size: Annotated[int, Meta(ge=1, le=64)] = 1


class RegisteredProfile(Struct, frozen=True):
    """One size of instance as the node's driver reports it (HAMi 2.10).

    Attributes:
        name: such as `1g.10gb`.
        cores: compute in percent of the card, rounded up.
        slices: compute slices.
        places: its legal places; all of one size.
    """

    name: _Id
    memory_mib: _Count = msgspec.field(name="memoryMB", default=0)
    cores: _Count = msgspec.field(name="core", default=0)
    slices: _Count = msgspec.field(name="sliceCount", default=0)
    places: tuple[RegisteredPlace, ...] = msgspec.field(name="placements", default=())


class RegisteredCard(Struct, frozen=True):
    """One registered card; the JSON keys are the published ones, absent means zero.

    Attributes:
        memory_mib: memory in MiB, scaling included.
        cores: compute in percent, scaling included.
        model: NVML's name, beginning with NVIDIA.
        mode: `hami-core`, `mig` or empty.
        profiles: sizes of instances into which it can be cut, if the plugin reports them.
    """

    uuid: _Id = msgspec.field(name="id")
    index: _Count = 0
    slots: _Count = msgspec.field(name="count", default=0)
    memory_mib: _Count = msgspec.field(name="devmem", default=0)
    cores: _Count = msgspec.field(name="devcore", default=0)
    model: _Text = msgspec.field(name="type", default="")
    numa: _Score = 0
    mode: _Text = ""
    healthy: bool = msgspec.field(name="health", default=False)
    profiles: tuple[RegisteredProfile, ...] = msgspec.field(name="migProfiles", default=())


class _Links(Struct, frozen=True):
    """One card's links: the other card's UUID and the score."""

    uuid: str
    score: dict[str, _Score] = {}


def decode_cards(text: str) -> tuple[RegisteredCard, ...]:
    """The cards in a registration of either generation. Raises `InvalidRecord`: another form or value, or a twin."""
    stripped = text.strip()
    if stripped.startswith("["):
        cards = tuple(_decode_json(stripped, list[RegisteredCard]))
    else:
        cards = _decode_fields(stripped)
    if len({card.uuid for card in cards}) != len(cards):
        raise InvalidRecord("a card is registered twice")
    return cards


def encode_cards(cards: Iterable[RegisteredCard]) -> str:
    """The registration annotation of these cards, in today's form."""
    return msgspec.json.encode(list(cards)).decode()


def decode_scores(text: str) -> dict[tuple[str, str], int]:
    """Link scores by pair of UUIDs, the smaller first; if two sides differ, the lower. Raises `InvalidRecord`."""
    result: dict[tuple[str, str], int] = {}
    for card in _decode_json(text.strip(), list[_Links]):
        for other, score in card.score.items():
            if other == card.uuid:
                continue
            pair = (min(card.uuid, other), max(card.uuid, other))
            result[pair] = min(score, result.get(pair, score))
    return result


def _decode_json(text: str, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=shape)
    except UNREADABLE as error:
        raise InvalidRecord(f"malformed JSON: {error}") from error


def _decode_fields(text: str) -> tuple[RegisteredCard, ...]:
    if ":" not in text:
        raise InvalidRecord("no ':' closes a card")
    cards, rest = text.rsplit(":", 1)
    if rest:
        raise InvalidRecord(f"{rest[:80]!r} is not closed by ':'")
    return tuple(_decode_card(part) for part in cards.split(":"))


def _decode_card(text: str) -> RegisteredCard:
    fields = [field.strip() for field in text.split(",")]
    if len(fields) not in (7, 9):
        raise InvalidRecord(f"card {text[:80]!r} has {len(fields)} fields instead of 7 or 9")
    uuid, slots, memory, cores, model, numa, health = fields[:7]
    index, mode = fields[7:] if len(fields) == 9 else ("0", "hami-core")
    if any(len(field) > _LONGEST for field in fields):
        raise InvalidRecord(f"card {text[:80]!r} has a field of more than {_LONGEST} characters")
    if not uuid:
        raise InvalidRecord(f"card {text[:80]!r} has no UUID")
    if health not in BOOLEANS:
        raise InvalidRecord(f"card {uuid}: health is {health[:80]!r} instead of true or false")
    return RegisteredCard(
        uuid=uuid,
        index=_number(uuid, index),
        slots=_number(uuid, slots),
        memory_mib=_number(uuid, memory),
        cores=_number(uuid, cores),
        model=model,
        numa=_number(uuid, numa, least=-_MOST),
        mode=mode,
        healthy=BOOLEANS[health],
    )


def _number(uuid: str, text: str, *, least: int = 0) -> int:
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= _MOST:
        raise InvalidRecord(f"card {uuid}: {text[:80]!r} is not a whole number in range")
    return int(text)

"""Which instances NVIDIA's cards can be cut into: the rows of mig_cards.toml, for tests and simulation.

On a node only the card's driver is right, because the same model differs by driver and firmware. Sources: NVIDIA's MIG
user guide, published `nvidia-smi mig -lgip` and `-lgipp` output and the product ids of NVIDIA's mig-parted
(docs/sources/mig.md 1). Unpublished values are None here: positions of two RTX models, and memory, multiprocessors or
engines of some large profiles.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import chain
from types import MappingProxyType
from typing import Final

import msgspec

from partage.model.device import MILLI
from partage.model.mig import Engines, MigAttribute, MigAxis, MigProfile
from partage.vendors.traits import NVIDIA

_MIB: Final = 1 << 20
_NEAR: Final = 0.1
"""Two spellings of one profile differ in gigabytes by less than this part (7g.79gb, 7g.80gb)."""
_TOGETHER_SINCE: Final = 510
"""First driver branch that makes 4g and 3g on one card."""


@dataclass(frozen=True, slots=True)
class MigCard:
    """A model of card that can be cut into instances.

    `name`: short name, as `partage simulate mig --model` takes it. `pci`: product ids (upper-case hexadecimal, no
    prefix) of vendor 10DE.
    """

    name: str
    aliases: tuple[str, ...]
    pci: tuple[str, ...]
    axis: MigAxis


class _Size(msgspec.Struct, frozen=True, array_like=True):
    """The common properties of one profile in a class of models."""

    compute: int
    suffix: str
    starts: tuple[int, ...]
    size: int
    count: int
    id: int
    kind: int
    memory: int  # the index of the model's memory size


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model; amounts are listed by profile, and -1 or an empty row is not published."""

    name: str
    aliases: tuple[str, ...]
    pci: tuple[str, ...]
    of: str = msgspec.field(name="class")
    gigabytes: tuple[int, ...]
    without: tuple[str, ...] = ()
    mebibytes: tuple[int, ...] = ()
    processors: str = ""
    engines: str = ""
    since: dict[str, int] = {}


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    classes: dict[str, tuple[_Size, ...]]
    engines: dict[str, tuple[tuple[int, ...], ...]]
    processors: dict[str, tuple[int, ...]]
    card: tuple[_Card, ...]

    def cards(self) -> Iterator[MigCard]:
        """Every model with its profiles."""
        for card in self.card:
            sizes = tuple(s for s in self.classes[card.of] if s.suffix not in card.without)
            unknown = (-1,) * len(sizes)
            rows = zip(
                sizes,
                card.mebibytes or unknown,
                self.processors.get(card.processors, unknown),
                self.engines.get(card.engines, ((),) * len(sizes)),
                strict=True,
            )
            profiles = tuple(_profile(self, card, *row) for row in rows)
            yield MigCard(card.name, card.aliases, card.pci, MigAxis(card.name, profiles))


_DOUBLE: Final = "*"
"""The mark of the profile with twice the memory; it is not part of a name."""

_ATTRIBUTES: Final[Mapping[str, MigAttribute]] = MappingProxyType(
    {
        "+me": MigAttribute.MEDIA,
        "+me.all": MigAttribute.ALL_MEDIA,
        "-me": MigAttribute.NO_MEDIA,
        "+gfx": MigAttribute.GRAPHICS,
        _DOUBLE: MigAttribute.DOUBLE_MEMORY,
    }
)


def _profile(
    table: _Table, card: _Card, size: _Size, mebibytes: int, own: int, counters: tuple[int, ...]
) -> MigProfile:
    slices = max(size.compute for size in table.classes[card.of])
    whole = table.processors.get(card.processors, (-1,))[-1]
    gigabytes = card.gigabytes[size.memory]
    name = f"{size.compute}g.{gigabytes}gb{size.suffix.removesuffix(_DOUBLE)}"
    return MigProfile(
        name=name,
        compute=size.compute,
        size=size.size,
        starts=size.starts,
        memory_bytes=max(mebibytes, 0) * _MIB,
        core_milli=own * MILLI // whole if min(own, whole) > 0 else size.compute * MILLI // slices,
        count=size.count,
        engines=Engines(*counters) if counters else None,
        id=size.id,
        kind=size.kind,
        attributes=frozenset({_ATTRIBUTES[size.suffix]} if size.suffix else ()),
        since=card.since.get(name, 0),
    )


_ROWS: Final = tuple(
    msgspec.toml.decode(
        files("partage.vendors").joinpath("mig_cards.toml").read_bytes(), type=_Table
    ).cards()
)

MIG_CARDS: Final[Mapping[str, MigCard]] = MappingProxyType({card.name: card for card in _ROWS})
"""Every model by its short name."""


def find_card(model: str, pci: str = "") -> MigCard | None:
    """The card of that product id, else of that name; None if it is not in the table.

    The comparison of names ignores case, a leading `NVIDIA`, and spaces or hyphens, so the names of a node's driver and
    of an operator both match. A chip's name alone (`NVIDIA B300`) is the model that begins with it, if there is only
    one. `model`: a short name, or the driver's name for the card. `pci`: product id, such as `20B2`, `0x20B2` or
    `0x20B210DE`; empty if unknown.
    """
    product, wanted = pci.upper().removeprefix("0X")[:4], _plain(model)
    by_id = (card for card in _ROWS if product and product in card.pci)
    by_name = (card for card in _ROWS if wanted in map(_plain, (card.name, *card.aliases)))
    if (known := next(chain(by_id, by_name), None)) is not None:
        return known
    begun = [card for card in _ROWS if wanted in map(_chip, card.aliases)]
    return begun[0] if len(begun) == 1 else None


def _chip(alias: str) -> str:
    """The first word of the driver's name for a card, which is its chip."""
    return _plain(re.split(r"[ -]", alias.removeprefix("NVIDIA "))[0])


def _plain(name: str) -> str:
    return re.sub(r"[\s\-_]+", "", name.casefold()).removeprefix(NVIDIA.name)


def find_profile(axis: MigAxis, name: str) -> MigProfile | None:
    """The profile of a name, allowing for drivers that round gigabytes differently.

    Some print `7g.79gb`, `3g.39gb` and the like for 7g.80gb and 3g.40gb.
    """
    exact = next((one for one in axis.profiles if one.name == name), None)
    wanted = _parts(name)
    if exact is not None or wanted is None:
        return exact
    near = [
        (abs(own[1] - wanted[1]) / own[1], profile)
        for profile in axis.profiles
        if (own := _parts(profile.name)) and (own[0], own[2]) == (wanted[0], wanted[2])
    ]
    distance, found = min(near, key=lambda pair: pair[0], default=(1.0, None))
    return found if distance < _NEAR else None


def _parts(name: str) -> tuple[str, int, str] | None:
    match = re.fullmatch(r"(\d{1,2})g\.(\d{1,4})gb([+-][a-z.]+)?", name)
    return None if match is None else (match[1], max(int(match[2]), 1), match[3] or "")


def for_driver(axis: MigAxis, branch: int) -> MigAxis:
    """The card's axis under an older driver: fewer profiles, and no 4g beside a 3g before R510.

    `axis`: that of the newest driver. `branch`: first number of the driver's version, such as 470.
    """
    profiles = tuple(p for p in axis.profiles if p.since <= branch)
    apart = axis.apart
    if branch < _TOGETHER_SINCE:
        apart += tuple(
            (four.name, three.name)
            for four in profiles
            for three in profiles
            if (four.compute, three.compute) == (4, 3)
        )
    return replace(axis, profiles=profiles, apart=apart)

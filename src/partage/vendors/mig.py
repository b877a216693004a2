"""Which instances NVIDIA's cards can be cut into: one row a model, for tests and simulation.

On a node the truth is what the card's driver says; the same model differs by driver and firmware.
Sources: NVIDIA's MIG user guide, published `nvidia-smi mig -lgip` and `-lgipp` output and the
product ids of NVIDIA's mig-parted (docs/sources/mig.md 1). What is not published is None here: positions
of two RTX models, and memory, multiprocessors or engines of some large profiles.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

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

    Attributes:
        name: short name, as `partage simulate mig --model` takes it.
        aliases: names that drivers report.
        pci: product ids (upper-case hexadecimal, no prefix) of vendor 10DE.
        axis: its profiles.
    """

    name: str
    aliases: tuple[str, ...]
    pci: tuple[str, ...]
    axis: MigAxis


@dataclass(frozen=True, slots=True)
class _Size:
    """One profile of a class of models: what all of them have in common."""

    compute: int
    suffix: str
    starts: tuple[int, ...] | None
    size: int
    count: int
    id: int
    kind: int
    memory: int  # which of the model's memory sizes


_DOUBLE: Final = "*"
"""Marks the profile with twice the memory; it is not part of a name."""

_SEVEN: Final = (
    _Size(1, "", (0, 1, 2, 3, 4, 5, 6), 1, 7, 19, 0, 0),
    _Size(1, "+me", (0, 1, 2, 3, 4, 5, 6), 1, 1, 20, 7, 0),
    _Size(1, _DOUBLE, (0, 2, 4, 6), 2, 4, 15, 9, 1),
    _Size(2, "", (0, 2, 4), 2, 3, 14, 1, 1),
    _Size(3, "", (0, 4), 4, 2, 9, 2, 2),
    _Size(4, "", (0,), 4, 1, 5, 3, 2),
    _Size(7, "", (0,), 8, 1, 0, 4, 3),
)
_FOUR: Final = (
    _Size(1, "", (0, 1, 2, 3), 1, 4, 14, 0, 0),
    _Size(1, "+me", (0, 1, 2, 3), 1, 1, 21, 7, 0),
    _Size(2, "", (0, 2), 2, 2, 5, 1, 1),
    _Size(2, "+me", (0, 2), 2, 1, 6, 8, 1),
    _Size(4, "", (0,), 4, 1, 0, 3, 2),
)
_TWELVE: Final = (
    _Size(1, "", (0, 3, 6, 9), 3, 4, 14, 0, 0),
    _Size(1, "+me", (0, 3, 6, 9), 3, 1, 21, 7, 0),
    _Size(1, "+gfx", (0, 3, 6, 9), 3, 4, 47, 10, 0),
    _Size(1, "+me.all", (0, 3, 6, 9), 3, 1, 65, 15, 0),
    _Size(1, "-me", (0, 3, 6, 9), 3, 4, 67, 13, 0),
    _Size(2, "", (0, 6), 6, 2, 5, 1, 1),
    _Size(2, "+gfx", (0, 6), 6, 2, 35, 11, 1),
    _Size(2, "+me.all", (0, 6), 6, 1, 64, 16, 1),
    _Size(2, "-me", (0, 6), 6, 2, 66, 14, 1),
    _Size(4, "", (0,), 12, 1, 0, 3, 2),
    _Size(4, "+gfx", (0,), 12, 1, 32, 12, 2),
)
_HALVES: Final = (
    _Size(1, "", None, 1, 2, 0, 0, 0),
    _Size(1, "+me", None, 1, 1, 0, 7, 0),
    _Size(1, "+gfx", None, 1, 2, 0, 10, 0),
    _Size(1, "+me.all", None, 1, 1, 0, 15, 0),
    _Size(1, "-me", None, 1, 2, 0, 13, 0),
    _Size(2, "", None, 2, 1, 0, 1, 1),
    _Size(2, "+gfx", None, 2, 1, 0, 11, 1),
)

_ATTRIBUTES: Final[Mapping[str, MigAttribute]] = MappingProxyType(
    {
        "+me": MigAttribute.MEDIA,
        "+me.all": MigAttribute.ALL_MEDIA,
        "-me": MigAttribute.NO_MEDIA,
        "+gfx": MigAttribute.GRAPHICS,
        _DOUBLE: MigAttribute.DOUBLE_MEMORY,
    }
)

_Engines = tuple[tuple[int, int, int, int, int] | None, ...]

_AMPERE: Final[_Engines] = (
    (1, 0, 0, 0, 0),
    (1, 1, 0, 1, 1),
    (1, 1, 0, 0, 0),
    (2, 1, 0, 0, 0),
    (3, 2, 0, 0, 0),
    (4, 2, 0, 0, 0),
    (7, 5, 0, 1, 1),
)
_HOPPER: Final[_Engines] = (
    (1, 1, 0, 1, 0),
    (1, 1, 0, 1, 1),
    (1, 1, 0, 1, 0),
    (2, 2, 0, 2, 0),
    (3, 3, 0, 3, 0),
    (4, 4, 0, 4, 0),
    (8, 7, 0, 7, 1),
)
_BLACKWELL: Final[_Engines] = (
    (2, 1, 0, 1, 0),
    (2, 1, 0, 1, 1),
    (2, 1, 0, 1, 0),
    (4, 2, 0, 2, 0),
    None,
    None,
    None,
)
_UNKNOWN: Final[_Engines] = (None,) * 7
_SMALL: Final[_Engines] = (
    (1, 0, 0, 0, 0),
    (1, 1, 0, 1, 1),
    (2, 2, 0, 0, 0),
    (2, 2, 0, 1, 1),
    (4, 4, 0, 1, 1),
)
_RTX: Final[_Engines] = (
    (1, 1, 1, 1, 0),
    (1, 1, 1, 1, 1),
    (1, 1, 1, 1, 0),
    (1, 4, 4, 4, 1),
    (1, 0, 0, 0, 0),
    (2, 2, 2, 2, 0),
    (2, 2, 2, 2, 0),
    (2, 4, 4, 4, 1),
    (2, 0, 0, 0, 0),
    (4, 4, 4, 4, 1),
    (4, 4, 4, 4, 1),
)

_Numbers = tuple[int | None, ...]

_SM_A100: Final[_Numbers] = (14, 14, 14, 28, 42, 56, 98)
_SM_HOPPER: Final[_Numbers] = (16, 16, 26, 32, 60, 64, 132)
_SM_GH200_144: Final[_Numbers] = (16, 16, 26, 32, None, None, None)
_SM_B200: Final[_Numbers] = (18, 18, 30, 36, None, None, None)
_SM_GB200: Final[_Numbers] = (18, 18, 32, 38, None, None, None)
_SM_NONE: Final[_Numbers] = (None,) * 7
_SM_A30: Final[_Numbers] = (14, 14, 28, 28, 56)
_SM_RTX: Final[_Numbers] = (46, 46, 46, 46, 46, 94, 94, 94, 94, 188, 188)
_MIB_NONE: Final[_Numbers] = (None,) * 7


def _card(  # noqa: PLR0913, PLR0917 # one argument a column of the table below
    name: str,
    aliases: str,
    pci: str,
    sizes: tuple[_Size, ...],
    gigabytes: tuple[int, ...],
    mebibytes: _Numbers,
    processors: _Numbers,
    engines: _Engines,
    since: Mapping[str, int] | None = None,
) -> MigCard:
    """One model. Amounts go by profile; `gigabytes` are the sizes in its names, smallest first."""
    whole, slices = processors[-1], max(size.compute for size in sizes)
    profiles = []
    for row, size in enumerate(sizes):
        called = f"{size.compute}g.{gigabytes[size.memory]}gb{size.suffix.removesuffix(_DOUBLE)}"
        memory, own, counters = mebibytes[row], processors[row], engines[row]
        exact = own is not None and whole is not None
        profiles.append(
            MigProfile(
                name=called,
                compute=size.compute,
                size=size.size,
                starts=size.starts or (),
                memory_bytes=(memory or 0) * _MIB,
                core_milli=(own or 0) * MILLI // (whole or 1)
                if exact
                else size.compute * MILLI // slices,
                count=size.count,
                engines=None if counters is None else Engines(*counters),
                id=size.id,
                kind=size.kind,
                attributes=frozenset({_ATTRIBUTES[size.suffix]} if size.suffix else ()),
                since=(since or {}).get(called, 0),
            )
        )
    axis = MigAxis(name, tuple(profiles))
    return MigCard(name, tuple(aliases.split("; ")), tuple(pci.split()), axis)


_ROWS: Final = (
    _card(
        "A30-24GB",
        "NVIDIA A30",
        "20B7",
        _FOUR,
        (6, 12, 24),
        (5952, 5952, 11968, 11968, 24000),
        _SM_A30,
        _SMALL,
        {"1g.6gb+me": 470, "2g.12gb+me": 525},
    ),
    _card(
        "A100-40GB",
        "NVIDIA A100-SXM4-40GB; NVIDIA A100-PCIE-40GB; A800 40GB",
        "20B0 20B1 20F1 20F6",
        _SEVEN,
        (5, 10, 20, 40),
        (4864, 4864, 9856, 9856, 19968, 19968, 40192),
        _SM_A100,
        _AMPERE,
        {"1g.5gb+me": 470, "1g.10gb": 525},
    ),
    _card(
        "A100-80GB",
        "NVIDIA A100-SXM4-80GB; NVIDIA A100 80GB PCIe; NVIDIA A800-SXM4-80GB; "
        "NVIDIA A800 80GB PCIe",
        "20B2 20B5 20F3 20F5",
        _SEVEN,
        (10, 20, 40, 80),
        (9728, 9728, 19968, 19968, 40192, 40192, 80640),
        _SM_A100,
        _AMPERE,
    ),
    _card(
        "PG506-96GB",
        "PG506-96GB (Ampere)",
        "20B6",
        _SEVEN,
        (12, 24, 48, 96),
        _MIB_NONE,
        _SM_NONE,
        _AMPERE,
    ),
    _card(
        "H100-80GB",
        "NVIDIA H100 80GB HBM3; NVIDIA H100 PCIe; NVIDIA H800; NVIDIA H800 PCIe",
        "2330 2331 2322 2324",
        _SEVEN,
        (10, 20, 40, 80),
        (9984, 9984, 20096, 20096, 40448, 40448, 81152),
        _SM_HOPPER,
        _HOPPER,
    ),
    _card(
        "H100-94GB",
        "NVIDIA H100 NVL; NVIDIA H800 NVL; H100 SXM5 94GB",
        "2321 233A",
        _SEVEN,
        (12, 24, 47, 94),
        (11008, 11008, 22144, 22144, 47488, 47488, 95360),
        _SM_HOPPER,
        _HOPPER,
    ),
    _card(
        "H100-96GB-GH200",
        "NVIDIA GH200 480GB; H100 96GB",
        "2342 233D",
        _SEVEN,
        (12, 24, 48, 96),
        (11264, 11264, 23552, 23552, 47616, 47616, 95232),
        _SM_HOPPER,
        _HOPPER,
    ),
    _card(
        "H20-96GB", "NVIDIA H20", "2329", _SEVEN, (12, 24, 48, 96), _MIB_NONE, _SM_NONE, _HOPPER
    ),
    _card(
        "H20-141GB",
        "NVIDIA H20-3e; H20 SXM5 141GB",
        "",
        _SEVEN,
        (18, 35, 71, 141),
        _MIB_NONE,
        _SM_NONE,
        _HOPPER,
    ),
    _card(
        "H100-64GB", "H100 SXM5 64GB", "", _SEVEN, (8, 16, 32, 64), _MIB_NONE, _SM_NONE, _HOPPER
    ),
    _card(
        "H200-141GB",
        "NVIDIA H200; NVIDIA H200 NVL",
        "2335 233B",
        _SEVEN,
        (18, 35, 71, 141),
        (16384, 16384, 33024, 33024, 71168, 71168, 143104),
        _SM_HOPPER,
        _HOPPER,
    ),
    _card(
        "GH200-144GB",
        "NVIDIA GH200 144G HBM3e",
        "2348",
        _SEVEN,
        (18, 36, 72, 144),
        (17920, 17920, 36096, 36096, None, None, None),
        _SM_GH200_144,
        _HOPPER,
    ),
    _card(
        "B200-180GB",
        "NVIDIA B200",
        "2901",
        _SEVEN,
        (23, 45, 90, 180),
        (22528, 22528, 45312, 45312, None, None, None),
        _SM_B200,
        _BLACKWELL,
    ),
    _card(
        "GB200-186GB",
        "NVIDIA GB200",
        "2941",
        _SEVEN,
        (23, 47, 93, 186),
        (22528, 22528, 46592, 46592, None, None, None),
        _SM_GB200,
        _BLACKWELL,
    ),
    _card(
        "B300-269GB",
        "NVIDIA B300 SXM6 AC",
        "3182",
        _SEVEN,
        (34, 67, 135, 269),
        _MIB_NONE,
        _SM_NONE,
        _UNKNOWN,
    ),
    _card(
        "GB300-278GB",
        "NVIDIA GB300",
        "31C2",
        _SEVEN,
        (35, 70, 139, 278),
        _MIB_NONE,
        _SM_NONE,
        _UNKNOWN,
    ),
    _card(
        "RTX-PRO-6000-Blackwell-96GB",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition; "
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition; "
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "2BB5",
        _TWELVE,
        (24, 48, 96),
        (24192,) * 5 + (48512,) * 4 + (97408,) * 2,
        _SM_RTX,
        _RTX,
    ),
    _card(
        "RTX-PRO-5000-Blackwell-48GB",
        "NVIDIA RTX PRO 5000 Blackwell",
        "",
        _HALVES,
        (24, 48),
        _MIB_NONE,
        _SM_NONE,
        _UNKNOWN,
    ),
    _card(
        "RTX-PRO-4500-Blackwell-32GB",
        "NVIDIA RTX PRO 4500 Blackwell",
        "",
        tuple(size for size in _HALVES if size.suffix != "+me"),
        (16, 32),
        _MIB_NONE,
        _SM_NONE,
        _UNKNOWN,
    ),
)

MIG_CARDS: Final[Mapping[str, MigCard]] = MappingProxyType({card.name: card for card in _ROWS})
"""Every model by its short name."""


def find_card(model: str, pci: str = "") -> MigCard | None:
    """The card of that product id, else of that name; None when it is not in the table.

    Names are compared without regard to case, `NVIDIA` in front, and spaces or hyphens, so that
    what a node's driver says and what an operator writes both match. A chip's name alone (`NVIDIA B300`) is
    the model that begins with it, where there is one only.

    Args:
        model: a short name, or what the driver calls the card.
        pci: product id, such as `20B2`, `0x20B2` or `0x20B210DE`; empty when unknown.
    """
    product = pci.upper().removeprefix("0X")[:4]
    if product:
        for card in _ROWS:
            if product in card.pci:
                return card
    wanted = _plain(model)
    for card in _ROWS:
        if wanted in {_plain(name) for name in (card.name, *card.aliases)}:
            return card
    begun = [card for card in _ROWS if wanted in map(_chip, card.aliases)]
    return begun[0] if len(begun) == 1 else None


def _chip(alias: str) -> str:
    """The first word of what a driver calls a card, which is its chip."""
    return _plain(re.split(r"[ -]", alias.removeprefix("NVIDIA "))[0])


def _plain(name: str) -> str:
    return re.sub(r"[\s\-_]+", "", name.casefold()).removeprefix(NVIDIA.name)


def find_profile(axis: MigAxis, name: str) -> MigProfile | None:
    """The profile that a name means, allowing for drivers that round gigabytes differently.

    `7g.79gb`, `3g.39gb` and the like have been printed for 7g.80gb and 3g.40gb.
    """
    for profile in axis.profiles:
        if profile.name == name:
            return profile
    wanted = _parts(name)
    if wanted is None:
        return None
    near: list[tuple[float, MigProfile]] = []
    for profile in axis.profiles:
        own = _parts(profile.name)
        if own is not None and (own[0], own[2]) == (wanted[0], wanted[2]):
            near.append((abs(own[1] - wanted[1]) / own[1], profile))
    distance, found = min(near, key=lambda pair: pair[0], default=(1.0, None))
    return found if distance < _NEAR else None


def _parts(name: str) -> tuple[str, int, str] | None:
    match = re.fullmatch(r"(\d{1,2})g\.(\d{1,4})gb([+-][a-z.]+)?", name)
    return None if match is None else (match[1], max(int(match[2]), 1), match[3] or "")


def for_driver(axis: MigAxis, branch: int) -> MigAxis:
    """What an older driver makes of the card: fewer profiles, and no 4g beside a 3g before R510.

    Args:
        axis: as the newest driver knows it.
        branch: first number of the driver's version, such as 470.
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

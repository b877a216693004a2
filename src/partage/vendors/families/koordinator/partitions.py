"""Partitions: sets of cards behind one link that may be allocated together.

A node's Device object lists them in the annotation `scheduling.koordinator.sh/gpu-partitions`. Hopper machines with
eight cards have a table of their own (docs/sources/koordinator.md 1 and 3.5b).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from partage.model.device import Partition
from partage.model.errors import InvalidValue
from partage.model.quantity import Quantity
from partage.vendors import names
from partage.vendors.families.koordinator.hints import decode
from partage.vendors.traits import NVIDIA, traits_of

_HOPPER: Final = frozenset({"H100", "H800", "H20"})
_UNLINKED: Final = frozenset({"PCIE", "NVL"})  # boards without the eight-card link

_MOST: Final = 256
"""Partitions of one node; each decision on whole cards compares those of one size with all larger ones."""
_HOPPER_TABLE: Final[Mapping[int, tuple[Partition, ...]]] = {
    size: tuple(Partition(tuple(range(first, first + size))) for first in range(0, 8, size))
    for size in (1, 2, 4, 8)
}


class _Entry(msgspec.Struct, frozen=True):
    minors: list[int]
    bandwidth: str | int | float | None = msgspec.field(default=None, name="ringBusBandwidth")
    score: int | str | None = msgspec.field(default=None, name="allocationScore")


def partitions_of(
    labels: Mapping[str, str], model: str, vendor: str
) -> Mapping[int, tuple[Partition, ...]]:
    """The built-in table for a node without a table of its own; empty if there is none.

    Upstream compares the model with `H100`, `H800` and `H20` exactly, although its own daemon reports long names
    (`H100-80GB-HBM3`); here a long name counts by its first word.

    Args:
        labels: the node's labels, which override the other two.
        model: the model that the Device object reports.
        vendor: the vendor that the Device object reports.
    """
    vendor = labels.get(names.GPU_VENDOR, vendor)
    words = labels.get(names.GPU_MODEL, model).upper().split("-")
    hopper = words[0] in _HOPPER and _UNLINKED.isdisjoint(words)
    return _HOPPER_TABLE if hopper and traits_of(vendor) is NVIDIA else {}


def honoured(device_labels: Mapping[str, str], node_labels: Mapping[str, str]) -> bool:
    """Whether whole cards must be taken by partition: label policy `Honor`, the Device's first."""
    policy = device_labels.get(names.GPU_PARTITION_POLICY)
    return (policy or node_labels.get(names.GPU_PARTITION_POLICY)) == "Honor"


def parse_partitions(text: str) -> Mapping[int, tuple[Partition, ...]]:
    """The table of the annotation: number of cards to partitions, in the order written.

    Quoted scores, as in the published examples, are read as numbers. Raises `InvalidValue`: not such a table; the
    message names the place.
    """
    try:
        document = decode(text, dict[str, list[_Entry]])
    except InvalidValue as error:
        raise InvalidValue(f"annotation {names.GPU_PARTITIONS}: {error}") from error
    many = sum(map(len, document.values()))
    if many > _MOST:
        raise InvalidValue(
            f"annotation {names.GPU_PARTITIONS}: {many} partitions; {_MOST} at most"
        )
    table: dict[int, tuple[Partition, ...]] = {}
    for key, entries in document.items():
        if not (key.isascii() and key.isdigit() and len(key) < 5 and int(key)):
            raise InvalidValue(
                f"annotation {names.GPU_PARTITIONS}: key {key!r} is not a number of cards"
            )
        size = int(key)
        table[size] = tuple(
            _partition(size, entry, f"partition {place} of {key}")
            for place, entry in enumerate(entries)
        )
    return dict(sorted(table.items()))


def _partition(size: int, entry: _Entry, where: str) -> Partition:
    where = f"annotation {names.GPU_PARTITIONS}: {where}"
    minors = tuple(sorted(set(entry.minors)))
    if len(minors) != size or len(entry.minors) != size or minors[0] < 0:
        raise InvalidValue(f"{where} has minors {entry.minors}, not {size} different cards")
    try:
        score = 1 if entry.score is None else int(entry.score)
        bandwidth = None if entry.bandwidth is None else Quantity.parse(entry.bandwidth).ceil()
    except ValueError as error:
        raise InvalidValue(f"{where}: {error}") from error
    return Partition(minors, score=score, bandwidth=bandwidth)

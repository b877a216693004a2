"""Orders a node's devices for DRA, so that the first device that fits is the best. Pure.

Kubernetes' allocator visits pools by name, a pool's slices by name, and a slice's devices in their order, and
takes the first that fits. It has no scores, so a driver can influence it only by the order. Cards in use
precede idle ones. Shares: the card with the least room first, of idle cards the one with the least memory. Instances, a
profile at a time over all cards, the smallest first: the place first that leaves the most of the layouts that its card
can still have.

The order follows the prepared claims, so it lags until a new slice reaches the scheduler. An old order packs worse and
never allocates a device twice. A new order costs a write of every slice of the node. So devices move only where another
one should be tried first.

Source: k8s.io/dynamic-resource-allocation v0.36.4 (`GatherPools`, `allocateOne`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final

from partage.model.cutting import Layout
from partage.model.device import MILLI, Device, DeviceType, SliceMode
from partage.model.mig import MigAxis, MigSlice, in_order, layouts
from partage.model.node import Node
from partage.wire.claims import instance_name, share_name

_Size = tuple[int, str]
"""Memory units, and the profile."""
_Rank = tuple[bool, bool, int, int, int]
"""Whether its card has no room for it, whether the card is idle, the layouts lost, the card's room, the start from the
end: the least is the best."""
_JUDGED: Final = 3
"""Parts of a rank for which devices move; the others only put in order those that move anyway."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a card has left, beside all pods and claims.

    Attributes:
        idle: whether nothing holds a part of it.
        amount: its remaining room.
        axis: the instances that it can be cut into; None for none at any time.
        made: the instances that hold a part of it; None if it allows no further ones.
    """

    idle: bool
    amount: int
    axis: MigAxis | None = None
    made: Layout | None = None


def rooms(node: Node, left: Node) -> dict[int, Room]:
    """The room on each card, by its number; `left` is the node without all grants of pods and claims."""
    after = {one.minor: one for one in left.devices if one.type is DeviceType.GPU}
    return {
        one.minor: _room(one, after.get(one.minor, one))
        for one in node.devices
        if one.type is DeviceType.GPU
    }


def _room(card: Device, left: Device) -> Room:
    """For a card in use, the sum of its free compute and its free memory, in thousandths of each."""
    axis = card.cutting.axis if card.cutting is not None else None
    if left.doubt or not left.healthy or left.cordoned:
        return Room(False, 0, axis)
    made = in_order(one.instance for one in left.foreign)
    if left == card and not made:
        return Room(True, card.memory_bytes, axis, None if left.mode is SliceMode.SHARE else ())
    if left.mode is SliceMode.MIG:
        length = axis.length if axis is not None else 0
        free = length - sum(one.size for one in made)
        amount = 2 * MILLI * max(free, 0) // length if length else 0
        return Room(False, amount, axis, made)
    core = left.core_milli * MILLI // card.core_milli if card.core_milli else 0
    memory = left.memory_bytes * MILLI // card.memory_bytes if card.memory_bytes else 0
    return Room(False, core + memory, axis)


def arranged(before: Iterable[str], left: Mapping[int, Room]) -> list[str]:
    """Names of the devices in the order of their offer: their earlier order, where it is equally good.

    `before`: names in the stored order; further ones follow by number. `left`: the room on each card.
    """
    stored = {name: place for place, name in enumerate(before)}

    def place(name: str) -> int:
        return stored.get(name, len(stored))

    # Where instances are, no share fits, so their coming and going moves no share.
    shares = {
        share_name(minor): (room.idle, 0 if room.made else room.amount)
        for minor, room in sorted(left.items())
    }
    found = sorted(sorted(shares, key=place), key=shares.__getitem__)
    for _, ranks in sorted(_instances(left).items()):
        names = sorted(ranks, key=place)
        first = next((name for name in names if not ranks[name][0]), None)
        if first is not None and ranks[first][:_JUDGED] != min(ranks.values())[:_JUDGED]:
            names.sort(key=ranks.__getitem__)
        found += names
    return found


def _instances(left: Mapping[int, Room]) -> Mapping[_Size, Mapping[str, _Rank]]:
    """Ranks of all places of instances, by size and name; by number, from a card's end."""
    found: defaultdict[_Size, dict[str, _Rank]] = defaultdict(dict)
    for minor, room in sorted(left.items()):
        for size, name, rank in _ranks(minor, room):
            found[size][name] = rank
    return found


@lru_cache(maxsize=1 << 12)
def _ranks(minor: int, room: Room) -> tuple[tuple[_Size, str, _Rank], ...]:
    """The places on one card: size, name, rank."""
    if room.axis is None:
        return ()
    lost = {} if room.made is None else _lost(room.axis, room.made)
    return tuple(
        (
            (one.size, one.profile),
            instance_name(minor, one),
            (one not in lost, room.idle, lost.get(one, 0), room.amount, -one.start),
        )
        for one in reversed(room.axis.positions)
    )


@lru_cache(maxsize=1 << 12)
def _lost(axis: MigAxis, made: Layout) -> Mapping[MigSlice, int]:
    """The complete layouts that a card with some instances could no longer have, by the next instance."""
    held = {_plain(axis, one) for one in made}
    still = [one for one in _complete(axis) if one >= held]
    kept = Counter(chain.from_iterable(still))
    return {
        one: len(still) - kept[_plain(axis, one)]
        for one in axis.positions
        if axis.valid((*made, one))
    }


@lru_cache(maxsize=64)
def _complete(axis: MigAxis) -> tuple[frozenset[MigSlice], ...]:
    """The layouts of plain profiles that leave no room for another one."""
    every = set(map(frozenset, layouts(axis, [one.name for one in axis.profiles if one.plain])))
    return tuple(every - {longer - {one} for longer in every for one in longer})


def _plain(axis: MigAxis, one: MigSlice) -> MigSlice:
    """The largest plain instance within its place, or itself if there is none."""
    within = (
        each.at(one.start)
        for each in axis.profiles
        if each.plain and one.start in each.starts and each.size <= one.size
    )
    return max(within, key=lambda each: each.size, default=one)

"""Orders a node's devices for DRA, so that the first device that fits is the best. Pure.

Kubernetes' allocator visits pools by name, a pool's slices by name, and a slice's devices in their order, and
takes the first that fits. It has no scores, so a driver can influence it only by the order. Cards in use
precede idle ones, the one with the least room first. Among idle cards the one with the least memory is first.

The order follows the prepared claims, so it lags until a new slice reaches the scheduler. An old order packs worse and
never allocates a device twice.

Source: k8s.io/dynamic-resource-allocation v0.36.4 (`GatherPools`, `allocateOne`).
"""

from collections.abc import Iterable, Mapping

from partage.model.device import MILLI, Device, DeviceType, SliceMode
from partage.model.node import Node

Room = tuple[bool, int]
"""Whether a card is idle, and its remaining room; the least is offered first."""


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
    if left.doubt or not left.healthy or left.cordoned:
        return False, 0
    if left == card and not left.foreign:
        return True, card.memory_bytes
    if left.mode is SliceMode.MIG:
        length = left.cutting.axis.length if left.cutting is not None else 0
        free = length - sum(one.instance.size for one in left.foreign)
        return False, 2 * MILLI * max(free, 0) // length if length else 0
    core = left.core_milli * MILLI // card.core_milli if card.core_milli else 0
    memory = left.memory_bytes * MILLI // card.memory_bytes if card.memory_bytes else 0
    return False, core + memory


def arranged(before: Iterable[int], left: Mapping[int, Room]) -> list[int]:
    """Cards in the order of their offer: their earlier order, if it is equally good.

    `before`: numbers of the cards in the stored order; further ones follow by number. `left`: the room on each card.
    """
    there = [minor for minor in dict.fromkeys(before) if minor in left]
    there += sorted(left.keys() - set(there))
    return sorted(there, key=left.__getitem__)

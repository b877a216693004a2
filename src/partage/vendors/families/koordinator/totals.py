"""A node's reported totals of its devices: the sum over healthy ones, in both dialects.

Upstream's controller writes these names to the node's allocatable and capacity (docs/sources/koordinator.md 6; the
Koordinator and MetaX documents). Partage always writes both dialects, because kubelet and the fit plugin check the name
that a pod used.
"""

from collections.abc import Sequence
from typing import Final

from partage.model.device import MILLI, Device, DeviceType
from partage.model.quantity import Quantity, binary, decimal
from partage.vendors import names
from partage.vendors.families.koordinator.amounts import ALIASES, PERCENT_OF, old_name
from partage.vendors.traits import HUAWEI, traits_of

_PERCENT: Final = MILLI // 100
_TODAY: Final = frozenset(ALIASES.values())


def totals(devices: Sequence[Device], vendor: str) -> dict[str, Quantity]:
    """Resource names and amounts of a node in both dialects, ordered by name.

    Names without healthy devices are left out, so a caller that finds one on the node removes it. Amounts are those of
    the devices, scaling included. `gpu` exists only if pods ask for the vendor's cards by it (upstream: NVIDIA's, and
    of no vendor). `gpu.shared` counts 100 a healthy card; it and native units have no name in v1.4. `vendor`: the
    vendor of its cards; empty if unknown.
    """
    today = {**_cards(devices, vendor), **_others(devices)}
    old = {old_name(name): amount for name, amount in today.items() if name in _TODAY}
    return dict(sorted((today | old).items()))


def _cards(devices: Sequence[Device], vendor: str) -> dict[str, Quantity]:
    cards = [d for d in devices if d.type is DeviceType.GPU and d.healthy]
    if not cards:
        return {}
    native = {
        unit: sum(amount for card in cards for name, amount in card.extras if name == unit)
        for unit in HUAWEI.units
    }
    # A card that counts its own cores has no gpu-core as well.
    core = sum(c.core_milli for c in cards if names.NPU_CORE not in dict(c.extras)) // _PERCENT
    memory = sum(card.memory_bytes for card in cards)
    result = {
        names.KOORD_GPU_MEMORY_RATIO: decimal(100 * len(cards)),
        names.KOORD_GPU_SHARED: decimal(100 * len(cards)),
    }
    if memory:
        result[names.KOORD_GPU_MEMORY] = binary(memory)
    if core:
        result[names.KOORD_GPU_CORE] = decimal(core)
    if core and traits_of(vendor).generic:
        result[names.KOORD_GPU] = decimal(core)
    return result | {unit: decimal(amount) for unit, amount in native.items() if amount}


def _others(devices: Sequence[Device]) -> dict[str, Quantity]:
    result = {}
    for kind, name in PERCENT_OF.items():
        amount = sum(d.core_milli for d in devices if d.type is kind and d.healthy) // _PERCENT
        if amount:
            result[name] = decimal(amount)
    return result

"""The most devices that a pod's resource names can stand for, even if the request is faulty.

A request that breaks a rule has no meaning in its protocol. But the pod may still run if another scheduler placed it.
These bounds depend only on the amounts: names that count devices, names of which 100 are a device, and names of parts
of one device.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from partage.model.device import DeviceType
from partage.model.request import EVERY, at_most
from partage.vendors import names
from partage.vendors.base import ContainerView
from partage.vendors.catalog import KOORDINATOR_ALIASES
from partage.vendors.settings import Settings
from partage.vendors.traits import ROWS

_PERCENT: Final = 100

_HUNDREDTHS: Final = {*KOORDINATOR_ALIASES.values(), names.QGPU_CORE} - {names.KOORD_GPU_MEMORY}
_COUNTS: Final = frozenset({names.KOORD_GPU_SHARED}).union(*(row.counts for row in ROWS))
_TYPES: Final[Mapping[str, DeviceType]] = {
    names.KOORD_RDMA: DeviceType.RDMA,
    names.KOORD_FPGA: DeviceType.FPGA,
}


def most_devices(
    containers: Iterable[ContainerView],
    owned: Collection[str],
    settings: Settings,
    *,
    complete: bool = True,
) -> tuple[tuple[DeviceType, int], ...]:
    """The most devices of each type that the containers may have at one moment.

    Args:
        owned: resource names that a family reads.
        settings: they rename HAMi's count, and give the one of containers that name none.
        complete: whether all amounts were readable; if not, an unreadable one may be any number.
    """
    if not complete:
        return tuple((type_, EVERY) for type_ in DeviceType)
    hami = settings.hami
    counts = _COUNTS | {hami.count_name}
    parts = {*hami.amounts} - {""}
    asked = []
    for container in containers:
        most: dict[DeviceType, int] = {}
        for name in sorted(container.names.intersection(owned)):
            plain = KOORDINATOR_ALIASES.get(name, name)
            amount = container.ask(name)
            value = 0 if amount is None else amount.ceil()
            devices = 1 if value > 0 else 0
            if plain in parts and hami.count_name not in container.names:
                devices = max(devices, hami.default_count)
            if plain in _HUNDREDTHS or (plain in counts and value % _PERCENT == 0):
                devices = -(-value // _PERCENT)
            elif plain in counts:
                devices = value
            type_ = _TYPES.get(plain, DeviceType.GPU)
            most[type_] = max(most.get(type_, 0), min(devices, EVERY))
        asked.append((container.phase, most))
    return tuple(sorted((type_, count) for type_, count in at_most(asked).items() if count))

"""The cards of one Koordinator allocation, as its annotation and vendors' plugins see them.

Koordinator's own renderer and the vendors' additions express the same amounts in different words. Only this module
computes them. Amounts are the pod's request of each card (docs/sources/koordinator.md 2.5 and 4): a share of the memory
is rounded down to bytes. Bytes become percent by upstream's truncation, because readers depend on it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from partage.model.allocation import Charge, Grant, GrantMode, charges_of
from partage.model.device import MILLI, DeviceType
from partage.model.request import DeviceRequest, RequestGroup
from partage.vendors.base import NodeView, PlacedPod, PodView, Reading, Registration

KOORDINATOR: Final = "koordinator"
"""The protocol of these allocations."""
_PERCENT: Final = MILLI // 100
_NANO: Final = 10**9


@dataclass(frozen=True, slots=True)
class GrantedCard:
    """One device of an allocation, all containers together.

    Attributes:
        vendor: its maker; the node's vendor if the device has none.
        core: percent of compute; 0 if none was asked.
        ratio: percent of its memory.
        extras: native units.
        whole: the card entirely.
        functions: virtual functions (minor, PCI address), by address.
    """

    type: DeviceType
    minor: int
    uuid: str
    vendor: str
    model: str
    core: int
    memory_bytes: int
    ratio: int
    extras: tuple[tuple[str, int], ...] = ()
    whole: bool = False
    template: str = ""
    functions: tuple[tuple[int, str], ...] = ()


def cards_of(placed: PlacedPod) -> tuple[GrantedCard, ...]:
    """The devices that a pod holds by Koordinator's protocol, ordered by type and minor."""
    grants = placed.grants(KOORDINATOR)
    result = []
    for charge in charges_of(grants):
        mine = [g for g in grants if (g.type, g.minor) == (charge.type, charge.minor)]
        result.append(_card(placed, charge, mine, _request(placed, mine)))
    return tuple(result)


def gpus_of(placed: PlacedPod, vendor: str) -> list[GrantedCard]:
    """One vendor's cards among them."""
    return [
        card for card in cards_of(placed) if card.type is DeviceType.GPU and card.vendor == vendor
    ]


def cut_by_plugin(node: NodeView, vendor: str) -> Registration:
    """Whether its own plugin cuts shares of a vendor's cards."""
    if not any(device.vendor == vendor for device in node.devices):
        return Registration()
    return Registration(
        devices=tuple(
            replace(device, vendor_cut=True)
            if device.vendor == vendor and device.type is DeviceType.GPU
            else device
            for device in node.devices
        )
    )


def _request(placed: PlacedPod, grants: Iterable[Grant]) -> DeviceRequest | None:
    """The request for which one device was chosen; None if it serves several, or none is known.

    A container with only `nvidia.com/gpu` has a request of its own beside the pod's.
    """
    served = {(grant.container, grant.type) for grant in grants}
    found = [
        group.request
        for group in placed.request.groups
        if group.protocol == KOORDINATOR
        and any((c.name, group.request.type) in served for c in group.containers)
    ]
    return found[0] if len(found) == 1 else None


def percent_of(part: int, total: int) -> int:
    """Bytes as percent of a card, truncated in floating point as upstream computes it.

    Exactly 29 % of a card may become 28: the annotation is compatible, the ledger is exact.
    """
    return int(float(part) / float(total) * 100) if total else 0


def asks_any(pod: PodView, triggers: Iterable[str]) -> bool:
    """Whether a container of the pod asks for one of the resources, with more than zero."""
    wanted = tuple(triggers)
    return any(
        quantity.nano > 0
        for container in pod.containers
        for name in wanted
        if (quantity := container.ask(name)) is not None
    )


def kept_off(reading: Reading, vendor: str, unserved: Callable[[DeviceRequest], bool]) -> Reading:
    """The reading with requests that a vendor's plugin cannot serve kept off its cards.

    For pods that do not name the vendor. They may use any node, but the pod would start without a device if the plugin
    found nothing that it can cut.
    """

    def spared(group: RequestGroup) -> RequestGroup:
        request = group.request
        cards = request.filter
        meant = not cards.vendors or vendor in cards.vendors
        if group.protocol != KOORDINATOR or request.type is not DeviceType.GPU or not meant:
            return group
        if not unserved(request):
            return group
        cards = replace(cards, avoid_vendors=(*cards.avoid_vendors, vendor))
        return replace(group, request=replace(request, filter=cards))

    return replace(reading, groups=tuple(map(spared, reading.groups)))


def lock_value(placed: PlacedPod) -> str:
    """The value that a vendor's plugin expects in its lock on the node: time, namespace and pod name."""
    time = datetime.fromtimestamp(placed.now // _NANO, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{time},{placed.pod.namespace},{placed.pod.name}"


def _card(
    placed: PlacedPod, charge: Charge, grants: list[Grant], request: DeviceRequest | None
) -> GrantedCard:
    device, maker = placed.card(grants[0])
    total = device.memory_bytes if device is not None else charge.memory_bytes
    core, extras, memory, ratio = charge.core_milli, charge.extras, charge.memory_bytes, None
    if request is not None:
        core, extras = request.core_milli, request.extras
        if request.memory_milli:
            ratio = request.memory_milli // _PERCENT
            memory = ratio * total // 100
        elif request.memory_bytes:
            memory = request.memory_bytes
    return GrantedCard(
        type=charge.type,
        minor=charge.minor,
        uuid=charge.uuid,
        vendor=maker,
        model=(device.model if device else "") or placed.node.properties.get("model", ""),
        core=core // _PERCENT,
        memory_bytes=memory,
        ratio=percent_of(memory, total) if ratio is None else ratio,
        extras=extras,
        whole=all(grant.mode is GrantMode.WHOLE for grant in grants),
        template=next((grant.template for grant in grants if grant.template), ""),
        functions=tuple(
            sorted({g.function for g in grants if g.function}, key=lambda function: function[1])
        ),
    )

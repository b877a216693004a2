"""Computes the units to offer to the kubelet, and the units that suit a container: pure functions.

The kubelet counts units without their meaning: a unit of `nvidia.com/gpu` is a sharer of a card, of
`qgpu-core` a percent, of `qgpu-memory` a gibibyte. A unit's identity begins with its card, so the kubelet's
count of used units agrees card by card with the scheduler's records, as long as the kubelet follows the advice.
Advice is no identity: the grants of a container follow from its pod's record alone.

Identity of units: docs/sources/hami.md 2.4 (`<uuid>::<i>`).
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partage.agent.kubelet import messages
from partage.agent.registration import registered_cards
from partage.model import device as model
from partage.model.allocation import Grant
from partage.model.device import DeviceType
from partage.model.errors import InvalidQuantity
from partage.model.node import Node
from partage.model.quantity import Quantity
from partage.vendors import names
from partage.vendors.settings import Settings
from partage.vendors.traits import NVIDIA, traits_of
from partage.wire import record, shapes

MOST_UNITS: Final = 8192
"""Units of one resource: 0.6 MB in a message of at most 4 MiB. More units are not offered."""
_GIB: Final = 2**30
_PERCENT: Final = 100
_LONGEST_ID: Final = 63
Units = Mapping[tuple[str, str, str], Mapping[str, tuple[str, ...]]]
"""Units by namespace, pod and container, then by resource."""
_OFF: Final = frozenset({"", "disable", "disabled", "false"})


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of a resource; `numa` is the NUMA node of the card, -1 if unknown."""

    id: str
    card: str
    healthy: bool
    numa: int = -1


@dataclass(frozen=True, slots=True)
class Offer:
    """All units of one resource, card by card; `dropped` is the number of units beyond the bound of the list."""

    resource: str
    units: tuple[Unit, ...]
    dropped: int = 0

    def listed(self) -> messages.DeviceList:
        """The message for the kubelet."""
        devices = []
        for one in self.units:
            health = messages.HEALTHY if one.healthy else messages.UNHEALTHY
            numa = messages.Topology((messages.NumaNode(one.numa),)) if one.numa >= 0 else None
            devices.append(messages.Device(one.id, health, numa))
        return messages.DeviceList(tuple(devices))


@dataclass(frozen=True, slots=True)
class Asked:
    """A container with a record on this node.

    Attributes:
        requests: units by resource.
        grants: the record's grants of cards.
        held: units that the kubelet has chosen, by resource; none for a waiting container.
    """

    requests: Mapping[str, int]
    grants: tuple[Grant, ...]
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def offers(node: Node, settings: Settings) -> tuple[Offer, ...]:
    """The offers of this node's device plugins; a resource without units is left out.

    qGPU's resources are served if the node's label `qgpu-device-enable` demands it. If a vendor's own plugin cuts
    its cards, that plugin serves them; for all other cards, the vendor's resource counts whole cards.
    """
    every = [one for one in node.devices if one.type is DeviceType.GPU]
    cards = [one for one in every if traits_of(one.vendor) is NVIDIA]
    hami = settings.hami
    known = registered_cards([(card, card.model) for card in cards], hami, node.name)
    sharers = {card.uuid: card.slots for card in known}
    counted = {hami.count_name: [(card, sharers.get(card.uuid, 0)) for card in cards]}
    if node.labels.get(names.QGPU_ENABLE, "").lower() not in _OFF:
        seen = [card for card in cards if "qgpu" not in card.hidden_from]
        counted[names.QGPU_CORE] = [(card, _PERCENT) for card in seen]
        counted[names.QGPU_MEMORY] = [(card, card.memory_bytes // _GIB) for card in seen]
    for card in every:
        row = traits_of(card.vendor)
        if row is not NVIDIA and row.own and not row.adapted:
            for name in row.counts:
                counted.setdefault(name, []).append((card, 1))
    found = (_offer(resource, amounts) for resource, amounts in counted.items())
    return tuple(one for one in found if one.units)


def _offer(resource: str, amounts: Sequence[tuple[model.Device, int]]) -> Offer:
    most = MOST_UNITS // max(len(amounts), 1)
    units: list[Unit] = []
    dropped = 0
    for card, amount in amounts:
        numa = card.topology.numa if card.topology else -1
        head = _head(card.uuid)
        units += (
            Unit(f"{head}::{number}", card.uuid, card.healthy, numa)
            for number in range(min(amount, most))
        )
        dropped += max(amount - most, 0)
    return Offer(resource, tuple(units), dropped)


def _head(uuid: str) -> str:
    """The UUID, or a short replacement if it leaves no room for a number."""
    if len(uuid.encode()) <= _LONGEST_ID - len("::") - len(str(MOST_UNITS)):
        return uuid
    return hashlib.sha256(uuid.encode()).hexdigest()[:40]


def counted(known: Iterable[messages.PodResources], ours: Collection[str]) -> Units:
    """The kubelet's holders of units, for our resources."""
    found: dict[tuple[str, str, str], dict[str, tuple[str, ...]]] = {}
    for pod in known:
        for container in pod.containers:
            mine = found.setdefault((pod.namespace, pod.name, container.name), {})
            for one in container.devices:
                if one.resource_name in ours and one.ids:
                    mine[one.resource_name] = mine.get(one.resource_name, ()) + one.ids
    return {key: units for key, units in found.items() if units}


def asked_of(pods: Iterable[shapes.Pod], node: str, held: Units) -> list[Asked]:
    """Containers of this node's pods that have a record, oldest pod first."""
    found: list[Asked] = []
    for _, pod, read in record.on_node(pods, node):
        metadata = pod.metadata or shapes.Metadata()
        spec = pod.spec or shapes.PodSpec()
        for container in (*(spec.init_containers or ()), *(spec.containers or ())):
            own = tuple(
                one
                for one in read.grants
                if one.container == container.name and one.type is DeviceType.GPU
            )
            key = (metadata.namespace or "default", metadata.name or "", container.name or "")
            if own:
                found.append(Asked(requests_of(container), own, held.get(key, {})))
    return found


def requests_of(container: shapes.Container) -> dict[str, int]:
    """Units that a container requests, by resource."""
    resources = container.resources or shapes.Resources()
    said = {**(resources.requests or {}), **(resources.limits or {})}
    found: dict[str, int] = {}
    for name, value in said.items():
        try:
            found[name] = Quantity.parse(value).ceil()
        except InvalidQuantity:
            continue  # an API server admits no such pod
    return found


def advise(
    offer: Offer, size: int, available: Sequence[str], must: Sequence[str], asked: Iterable[Asked]
) -> tuple[str, ...]:
    """Units for a container that the kubelet does not name; none if no record matches.

    Containers that request equally many units are alike here: a record whose units one of them already holds is left
    out. So finally they hold as many units of each card as their records grant, in any order of the kubelet's calls.
    `must`: units that the answer must contain. `asked`: see `asked_of`.
    """
    card_of = {unit.id: unit.card for unit in offer.units}
    alike = [one for one in asked if one.requests.get(offer.resource) == size]
    left = [_shares(offer.resource, size, one.grants) for one in alike]
    waiting = []
    for one, shares in zip(alike, tuple(left), strict=True):
        units = one.held.get(offer.resource, ())
        if not units:
            waiting.append(shares)
            continue
        taken = Counter(card_of.get(unit, "") for unit in units)
        if taken in left:
            left.remove(taken)
    if not waiting:
        return ()
    wanted = next((shares for shares in waiting if shares in left), (left or waiting)[0])
    return _chosen(size, wanted.copy(), card_of, available, must)


def _chosen(
    size: int,
    left: Counter[str],
    card_of: Mapping[str, str],
    available: Sequence[str],
    must: Sequence[str],
) -> tuple[str, ...]:
    chosen = list(dict.fromkeys(must))[:size]
    left.subtract(card_of.get(unit, "") for unit in chosen)
    for unit in _by_number(available, chosen):
        if len(chosen) < size and left[card_of.get(unit, "")] > 0:
            left[card_of[unit]] -= 1
            chosen.append(unit)
    if len(chosen) < size:  # the use differs from the records; the kubelet needs its number
        chosen += _by_number(available, chosen)[: size - len(chosen)]
    return tuple(chosen)


def _by_number(available: Iterable[str], but: Collection[str]) -> list[str]:
    rest = set(available).difference(but)
    return sorted(rest, key=lambda unit: (len(unit), unit))


def _shares(resource: str, size: int, grants: Sequence[Grant]) -> Counter[str]:
    """The number of units on each card: by amount, the remainder on the first."""
    amounts: dict[str, int] = {}
    for one in grants:
        amount = {names.QGPU_CORE: one.core_milli, names.QGPU_MEMORY: one.memory_bytes}
        amounts[one.uuid] = amounts.get(one.uuid, 0) + max(amount.get(resource, 1), 1)
    total = sum(amounts.values())
    shares = Counter({card: size * amount // total for card, amount in amounts.items()})
    over = size - sum(shares.values())
    for card in list(shares)[:over]:
        shares[card] += 1
    return shares

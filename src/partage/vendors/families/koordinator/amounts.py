"""Amounts that a pod asks by Koordinator's names: per container, and the effective ones of the whole pod.

Koordinator adds device requests over the containers of a pod, as Kubernetes adds any resource
(docs/sources/koordinator.md 2.2). Main containers and sidecars are summed, an init container counts with the sidecars
started before it, and the larger wins. Names of v1.4 (`kubernetes.io/gpu`) are aliases of today's; if a container has
both, today's wins.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.model.quantity import Quantity
from partage.model.request import Phase, at_most
from partage.vendors import names
from partage.vendors.base import ContainerView
from partage.vendors.traits import HUAWEI, ROWS

DIALECT_V14: Final = "v1.4"
"""The mark of a pod that used only the names of v1.4."""

COUNTS: Final = tuple(name for row in ROWS for name in row.counts)
"""Names that count whole cards."""

PERCENT_OF: Final = {DeviceType.RDMA: names.KOORD_RDMA, DeviceType.FPGA: names.KOORD_FPGA}
"""Names that count percent of a device, by its type."""

NAMES: Final[Mapping[DeviceType, tuple[str, ...]]] = {
    DeviceType.GPU: (
        names.KOORD_GPU,
        names.KOORD_GPU_CORE,
        names.KOORD_GPU_MEMORY,
        names.KOORD_GPU_MEMORY_RATIO,
        names.KOORD_GPU_SHARED,
        *COUNTS,
        *HUAWEI.units,
    ),
    **{kind: (name,) for kind, name in PERCENT_OF.items()},
}
"""Today's names by device type."""

_PERCENT: Final = 100
_MOST: Final = 10**9  # percent, cards or native units; more than any node can have
_MOST_BYTES: Final = 2**60


def most_of(name: str) -> int:
    """The largest accepted amount of today's name: no node can have more."""
    return _MOST_BYTES if name == names.KOORD_GPU_MEMORY else _MOST


def old_name(name: str) -> str:
    """The name of v1.4 for one of today's names."""
    return names.KUBERNETES_DOMAIN + name.removeprefix(names.KOORDINATOR_DOMAIN)


ALIASES: Final[Mapping[str, str]] = {
    old_name(name): name
    for group in NAMES.values()
    for name in group
    if name.startswith(names.KOORDINATOR_DOMAIN) and name != names.KOORD_GPU_SHARED
}
"""Names of v1.4 and their names of today."""

_CANONICAL: Final[Mapping[str, str]] = {
    **ALIASES,
    **{name: name for group in NAMES.values() for name in group},
}


@dataclass(frozen=True, slots=True)
class Part:
    """One container's request, by today's names, in billionths; zero amounts are left out."""

    container: str
    phase: Phase
    nano: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A pod's request.

    Attributes:
        totals: today's name to the pod's effective amount; zero amounts are left out.
        written: today's name to the name that the pod used.
        parts: the containers that ask, in the pod's order.
        dialect: `v1.4` if only names of v1.4 were used, else empty.
        notes: how amounts were read, if that is not obvious.
    """

    totals: Mapping[str, Quantity] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    dialect: str = ""
    notes: tuple[str, ...] = ()

    def of(self, kind: DeviceType) -> dict[str, Quantity]:
        """The effective amounts of one device type."""
        return {name: self.totals[name] for name in NAMES[kind] if name in self.totals}


def gather(containers: Iterable[ContainerView]) -> Asked:
    """The containers' joint request.

    Raises `InvalidValue`: an amount is negative, not an integer for counted cards, beyond anything a node can have, or
    differs between requests and limits although Kubernetes forbids it. The message names container and resource.
    """
    parts: list[Part] = []
    written: dict[str, str] = {}
    formats: dict[str, Quantity] = {}
    notes: list[str] = []
    for container in containers:
        nano: dict[str, int] = {}
        notes += _outvoted(container)
        for name, quantity in _amounts(container):
            canonical = _CANONICAL[name]
            read = quantity
            if name == names.COUNT_NVIDIA and quantity.ceil() % _PERCENT == 0:
                read = Quantity(quantity.nano // _PERCENT, quantity.format)
                notes.append(
                    f"container {container.name}: {name}: {quantity} is read as percent,"
                    f" {read} whole card{'s' if read.ceil() != 1 else ''}"
                )
            nano[canonical] = read.nano
            formats.setdefault(canonical, read)
            if written.get(canonical, name) == name or name == canonical:
                written[canonical] = name
        if nano:
            parts.append(Part(container.name, container.phase, nano))
    totals = {
        name: Quantity(amount, formats[name].format)
        for name, amount in at_most((part.phase, part.nano) for part in parts).items()
    }
    for name, quantity in totals.items():
        if quantity.ceil() > most_of(name):
            raise InvalidValue(
                f"invalid resource unit {written[name]}: {quantity} (more than any node can have)"
            )
    old = bool(written) and all(name in ALIASES for name in written.values())
    return Asked(totals, written, tuple(parts), DIALECT_V14 if old else "", tuple(notes))


def _outvoted(container: ContainerView) -> list[str]:
    """Notes on names of v1.4 whose amount differs from that of today's name beside them."""
    both = (
        (new, container.ask(new), old, container.ask(old))
        for old in sorted(container.names & ALIASES.keys())
        if (new := ALIASES[old]) in container.names
    )
    return [
        f"container {container.name}: {new}: {now} holds, and not {old}: {before}"
        for new, now, old, before in both
        if before != now
    ]


def _amounts(container: ContainerView) -> list[tuple[str, Quantity]]:
    """The container's names and amounts, each resource once, zero amounts left out."""
    result = []
    for name in sorted(container.names & _CANONICAL.keys()):
        if name in ALIASES and ALIASES[name] in container.names:
            continue
        quantity = _one(container, name)
        if quantity.nano < 0:
            raise InvalidValue(_unit(name, quantity, container, "an amount cannot be negative"))
        if name in (*COUNTS, names.KOORD_GPU_SHARED) and not quantity.integral:
            raise InvalidValue(
                _unit(name, quantity, container, "cards are counted in whole numbers")
            )
        if quantity.nano:
            result.append((name, quantity))
    return result


def _one(container: ContainerView, name: str) -> Quantity:
    """The container's request of a resource, else its limit.

    Kubernetes requires both to be equal for extended resources. It takes `kubernetes.io/` names for its own, and for
    these a request may be less than its limit.
    """
    request = container.requests.get(name, container.limits.get(name, Quantity(0)))
    limit = container.limits.get(name, request)
    if request.nano > limit.nano if name in ALIASES else request.nano != limit.nano:
        raise InvalidValue(
            f"container {container.name}: {name} has request {request} and limit {limit};"
            " Kubernetes requires them to be equal"
        )
    return request


def _unit(name: str, quantity: Quantity, container: ContainerView, rule: str) -> str:
    return f"invalid resource unit {name}: {quantity} (container {container.name}: {rule})"

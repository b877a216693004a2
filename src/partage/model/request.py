"""A pod's request, in base units and without a protocol's words.

A pod asks in groups. One group is one device request that serves one container (HAMi, qGPU) or all containers of the
pod together (Koordinator). Every value here is hashable, so the engine puts equal requests into one class.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, TypeVar

from partage.model.device import DeviceType, SliceMode
from partage.model.errors import InvalidValue
from partage.model.policy import CardOrder, Scoring, Strategy
from partage.model.reason import ReasonCode
from partage.model.selector import Selector

EVERY: Final = 2**31
"""More devices than any node has."""


class Scope(IntEnum):
    """How close together the devices of a request must be; greater is closer."""

    NODE = 1
    NUMA = 2
    PCIE = 3
    DEVICE = 4


class Phase(StrEnum):
    """When a container runs, which decides how its demand adds up.

    Init containers run one after another before the others, so their demand counts by maximum. Sidecars (init
    containers that restart always) run beside the others, so their demand is summed.
    """

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


_Key = TypeVar("_Key")


def at_most(asked: Iterable[tuple[Phase, Mapping[_Key, int]]]) -> dict[_Key, int]:
    """The most that containers ask for at one moment, by kind.

    Containers that run together are summed. An init container counts beside the sidecars that started before it, if
    that is more. `asked`: containers' phases and amounts, init containers and sidecars first, each in the pod's order.
    """
    running: dict[_Key, int] = {}
    peaks: dict[_Key, int] = {}
    for phase, amounts in asked:
        for key, amount in amounts.items():
            now = running.get(key, 0) + amount
            if phase is Phase.INIT:
                peaks[key] = max(peaks.get(key, 0), now)
            else:
                running[key] = now
    return {key: max(running.get(key, 0), peaks.get(key, 0)) for key in {**running, **peaks}}


@dataclass(frozen=True, slots=True)
class CardFilter:
    """The cards that a request accepts.

    Attributes:
        use_types: the card's model must contain one of these (case does not matter).
        avoid_types: the card's model must contain none of these.
        use_uuids: the card must be one of these.
        avoid_uuids: the card must be none of these.
        vendors: the card's vendor must be one of these or unknown; empty accepts all.
        modes: the card's slice mode must be one of these; empty accepts all.
        selector: on the device's labels.
        functions: a free virtual function whose group matches must go with each device.
        avoid_vendors: the card's vendor must be none of these.
    """

    use_types: tuple[str, ...] = ()
    avoid_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    modes: tuple[SliceMode, ...] = ()
    selector: Selector | None = None
    functions: Selector | None = None
    avoid_vendors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A number of devices of a type, with amounts for each.

    Attributes:
        count: how many distinct devices; ignored with `every`.
        core_milli: compute asked of each device.
        memory_bytes: memory asked of each device; 0 when asked as a share, or not at all.
        memory_milli: memory asked of each device in thousandths of that device's memory.
        whole: each device must be idle and is taken entirely.
        unused: each device must have no other tenant when the pod arrives (others may follow).
        exclusive: no other tenant may join the device while this pod is on it.
        claims_core: a tenant that asks for no compute may not join a device whose compute is all taken.
        sharers: the most tenants that the pod's protocol allows on the device; None for no limit.
        registrar: the protocol whose registration of a card overrides `sharers`.
        extras: native units asked of each device (name, amount).
        core_unit: the native unit that replaces compute; its share of the device's total is charged as compute. Empty
            if compute is asked directly.
        templated: native units, and memory under the name `memory`, must equal a template of the node exactly.
        every: all devices of the type that the filter accepts, instead of `count`.
        scope: how close together they must be; None for anywhere on the node.
        scope_code: the code of refusal if the scope cannot be met.
        scope_exclusive: within each scope of this size, no other pod's devices may be in use, now or later.
        instances: hardware instances are accepted, also several on one card.
        profile: the profile that each instance must have: its name, or the compute part of it (`3g`) for the plain one;
            shares are not accepted then. Empty if amounts decide.
        beside: containers that have a part of the devices at the same time as the first one.
    """

    type: DeviceType
    count: int = 1
    core_milli: int = 0
    memory_bytes: int = 0
    memory_milli: int = 0
    whole: bool = False
    unused: bool = False
    exclusive: bool = False
    claims_core: bool = False
    sharers: int | None = None
    extras: tuple[tuple[str, int], ...] = ()
    core_unit: str = ""
    templated: bool = False
    every: bool = False
    filter: CardFilter = CardFilter()
    scope: Scope | None = None
    scope_code: ReasonCode = ReasonCode.TOPOLOGY_SCOPE
    scope_exclusive: Scope | None = None
    instances: bool = False
    profile: str = ""
    registrar: str = ""
    beside: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InvalidValue(f"a request for {self.count} devices")
        if min(self.core_milli, self.memory_bytes, self.memory_milli) < 0:
            raise InvalidValue("a request for a negative amount")
        if self.memory_bytes and self.memory_milli:
            raise InvalidValue("memory is asked either in bytes or as a share, not both")


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """One container's part of a group; it decides the container's grants of the group's devices.

    Attributes:
        core_milli: its compute over all devices of the group; 0 if the group serves only it.
        memory_bytes: its memory over all devices, when asked in bytes.
        memory_milli: its memory over all devices in thousandths of a card, when asked as a share.
        position: its place in the pod, init containers and sidecars first: an init container runs beside the sidecars
            before it, not beside those after it.
    """

    name: str
    phase: Phase = Phase.MAIN
    core_milli: int = 0
    memory_bytes: int = 0
    memory_milli: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """One device request and the containers it serves.

    Attributes:
        protocol: the family whose names were used; it writes the annotations.
        dialect: the family's own mark of how the names were written.
        phase: INIT groups are placed after the others and may reuse their devices.
        containers: its receivers, in the pod's order.
        metered: quota keys that count granted amounts: key, `core` or `memory`, and the base units (milli or bytes) in
            one unit of the key.
    """

    protocol: str
    request: DeviceRequest
    containers: tuple[ContainerAsk, ...]
    phase: Phase = Phase.MAIN
    dialect: str = ""
    metered: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Joint:
    """Devices of several types that must be placed together.

    Attributes:
        types: the primary type first.
        same_pcie: every device of the other types must share a PCIe switch with a primary one,
            and every primary one with one of theirs.
    """

    types: tuple[DeviceType, ...]
    same_pcie: bool = False


@dataclass(frozen=True, slots=True)
class PartitionAsk:
    """The pod insists on a partition of the node's table.

    Attributes:
        restricted: only partitions of the best score are accepted.
        bandwidth: least ring bandwidth in bits per second.
    """

    restricted: bool = False
    bandwidth: int | None = None


@dataclass(frozen=True, slots=True)
class LabelRule:
    """A node label that must have exactly this value, and the code of refusal otherwise."""

    key: str
    value: str
    code: ReasonCode
    message: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the request itself cannot be served, whatever the cluster: the rule, and the place that breaks it."""

    message: str
    code: ReasonCode = ReasonCode.INVALID_REQUEST


@dataclass(frozen=True, slots=True, order=True)
class MayUse:
    """A number of unknown devices that a pod without a record may be using.

    Attributes:
        count: how many at most.
        vendors: the device's vendor is one of these or unknown; empty for any.
        avoid_vendors: the device's vendor is none of these.
    """

    type: DeviceType
    count: int
    vendors: tuple[str, ...] = ()
    avoid_vendors: tuple[str, ...] = ()

    def accepts(self, vendor: str) -> bool:
        """Whether a device of the vendor may be one of them."""
        if vendor in self.avoid_vendors:
            return False
        return not self.vendors or not vendor or vendor in self.vendors


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Everything a pod asks of devices.

    Attributes:
        groups: INIT groups last; otherwise in the pod's order.
        node_labels: labels that the node must have for this request.
        node_strategy: the pod's own strategy between nodes.
        fault: set when the request breaks a rule; the pod then waits with its code.
        notes: notes for `explain` about the reading of the request.
        broken: with a fault, the most devices of each type for which the pod's resource names stand; `groups` may have
            fewer then.
    """

    groups: tuple[RequestGroup, ...] = ()
    joint: Joint | None = None
    partition: PartitionAsk | None = None
    node_labels: tuple[LabelRule, ...] = ()
    node_strategy: Strategy | None = None
    card_order: CardOrder = CardOrder()
    scoring: Scoring = Scoring()
    fault: Fault | None = None
    notes: tuple[str, ...] = ()
    broken: tuple[tuple[DeviceType, int], ...] = ()

    @property
    def may_use(self) -> tuple[MayUse, ...]:
        """The devices that the pod may be using if it runs without a record of ours."""
        most = at_most(
            (
                group.phase,
                {
                    (
                        group.request.type,
                        group.request.filter.vendors,
                        group.request.filter.avoid_vendors,
                    ): EVERY if group.request.every else group.request.count
                },
            )
            for group in sorted(self.groups, key=lambda group: group.phase is Phase.MAIN)
        )
        found = [MayUse(kind[0], count, *kind[1:]) for kind, count in sorted(most.items())]
        for type_, count in self.broken:
            known = sum(one.count for one in found if one.type is type_)
            if count > known:
                found.append(MayUse(type_, count - known))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Kind:
    """Groups of one pod that ask the same.

    Attributes:
        group: the first of them.
        request: the request of each.
        copies: how many run at the same time.
    """

    group: RequestGroup
    request: DeviceRequest
    copies: int

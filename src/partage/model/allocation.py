"""A pod's allocation: grants for people and runtimes, charges for the ledger.

A grant is one container's amount of one device. The ledger counts charges: per device the sum over containers that run
together, or the largest init container if that is more. Quotas count metered amounts. Both follow from grants, so a
record of grants is enough to rebuild the books.

Every decision makes these values, thousands a second. `msgspec.Struct` makes them in a tenth of the time that a frozen
dataclass takes, and the garbage collector need not track them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from operator import add
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from partage.model.device import DeviceType
from partage.model.mig import MigSlice, in_order
from partage.model.permit import Permit
from partage.model.request import Phase, PodRequest, Scope

L = TypeVar("L", bound=int)

CLAIM: Final = "claim"
"""The protocol in a ResourceClaim's grants."""


class GrantMode(StrEnum):
    """How a grant is cut."""

    WHOLE = "whole"  # the device entirely
    SHARE = "share"  # an amount, by software
    MIG = "mig"  # a hardware instance
    VENDOR = "vendor"  # an amount, cut by the vendor's own plugin


class Grant(msgspec.Struct, frozen=True, gc=False):
    """One container's part of one device.

    Attributes:
        protocol: the family that asked, or `CLAIM`.
        minor: the device on its node.
        extras: native units (name, amount).
        exclusive: no other tenant may join the device.
        sharers: the most tenants the protocol allows on the device.
        mig: the instance, when cut by hardware.
        function: minor and PCI address of its virtual function.
        template: name of the sharing template.
        fence: no other pod may use devices of the type within this scope around it.
        slots: sharers it counts for; 0 for further containers of a group that shares its devices, if they take no seat.
    """

    container: str
    type: DeviceType
    minor: int
    uuid: str
    core_milli: int
    memory_bytes: int
    mode: GrantMode
    phase: Phase = Phase.MAIN
    protocol: str = ""
    extras: tuple[tuple[str, int], ...] = ()
    exclusive: bool = False
    sharers: int | None = None
    mig: MigSlice | None = None
    function: tuple[int, str] | None = None
    template: str = ""
    fence: Scope | None = None
    slots: int = 1


class Charge(msgspec.Struct, frozen=True, gc=False):
    """One pod's amounts of one device in the ledger."""

    type: DeviceType
    minor: int
    uuid: str
    core_milli: int = 0
    memory_bytes: int = 0
    slots: int = 0
    extras: tuple[tuple[str, int], ...] = ()
    exclusive: bool = False
    sharers: int | None = None
    functions: tuple[str, ...] = ()
    fence: Scope | None = None
    instances: tuple[MigSlice, ...] = ()


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """Everything one pod holds on its node; all that a release needs.

    Attributes:
        namespace: for people.
        name: for people.
        host: ordinary resources by name in whole units (`cpu` in milli).
        claim: a ResourceClaim holds it, which may outlive the pods that use it.
        permit: the wishes that its pod has; None where no operator made a rule.
    """

    uid: str
    namespace: str
    name: str
    node: str
    grants: tuple[Grant, ...] = ()
    host: Mapping[str, int] = msgspec.field(default_factory=dict)
    claim: bool = False
    permit: Permit | None = None

    @property
    def holder(self) -> str:
        """The holder's name for people: `namespace/name` of a pod, `claim namespace/name` of a claim."""
        return (
            f"claim {self.namespace}/{self.name}"
            if self.claim
            else f"{self.namespace}/{self.name}"
        )

    def holder_for(self, namespace: str) -> str:
        """The holder's name for pods of a namespace: it hides holders of other namespaces."""
        if namespace == self.namespace:
            return self.holder
        return "a claim of another namespace" if self.claim else "a pod of another namespace"

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The amounts that the ledger counts for this pod."""
        return charges_of(self.grants)


def charges_of(grants: Iterable[Grant]) -> tuple[Charge, ...]:
    """Charges of one pod's grants, one a device, ordered by type and minor.

    Main containers and sidecars add up. An init container counts with the sidecars that started before it. The larger
    wins in every dimension.
    """
    grants = tuple(grants)
    if len(grants) == 1:
        return (_single(grants[0]),)
    if all(grant.phase is Phase.MAIN for grant in grants):
        apart = {(grant.type, grant.minor, grant.uuid): grant for grant in grants}
        if len(apart) == len(grants):
            return tuple([_single(apart[key]) for key in sorted(apart)])
    running: dict[tuple[DeviceType, int, str], Charge] = {}
    initial: dict[tuple[str, tuple[DeviceType, int, str]], Charge] = {}
    for grant in sorted(grants, key=lambda grant: grant.phase is Phase.MAIN):
        key = (grant.type, grant.minor, grant.uuid)
        known, single = running.get(key), _single(grant)
        if grant.phase is Phase.INIT:
            mine = (grant.container, key)
            known = initial.get(mine, known)
            initial[mine] = single if known is None else together(known, single)
        else:
            running[key] = single if known is None else together(known, single)
    result = dict(running)
    for (_, key), charge in initial.items():
        known = result.get(key)
        result[key] = charge if known is None else _peak(known, charge)
    return tuple(result[key] for key in sorted(result))


def metered(request: PodRequest, grants: Sequence[Grant]) -> dict[str, int]:
    """The amounts of the request's metered keys in its grants, rounded up to the key's unit.

    Containers that run at different times count by maximum, as in the books.
    """
    metering = [group for group in request.groups if group.metered]
    counted: dict[tuple[str, str, int], list[Grant]] = {}
    for group in metering:
        names = [container.name for container in group.containers]
        protocol, type_ = group.protocol, group.request.type
        mine = [
            grant
            for grant in grants
            if grant.container in names and grant.protocol == protocol and grant.type is type_
        ]
        for meter in group.metered:
            counted[meter] = counted[meter] + mine if meter in counted else mine
    totals: dict[str, int] = {}
    charged: dict[int, tuple[Charge, ...]] = {}  # mostly all keys count the same grants
    for (key, dimension, unit), mine in counted.items():
        charges = charged.get(id(mine))
        if charges is None:
            charges = charged[id(mine)] = charges_of(mine)
        total = 0
        for charge in charges:
            total += charge.memory_bytes if dimension == "memory" else charge.core_milli
        totals[key] = totals.get(key, 0) - (-total // unit)
    return totals


def _single(grant: Grant) -> Charge:
    """The charge of one grant; an instance at an unknown position takes the whole card."""
    astray = grant.mode is GrantMode.MIG and grant.mig is None
    return Charge(
        type=grant.type,
        minor=grant.minor,
        uuid=grant.uuid,
        core_milli=grant.core_milli,
        memory_bytes=grant.memory_bytes,
        slots=grant.slots,
        extras=grant.extras,
        exclusive=grant.exclusive or grant.mode is GrantMode.WHOLE or astray,
        sharers=grant.sharers,
        functions=(grant.function[1],) if grant.function else (),
        fence=grant.fence,
        instances=() if grant.mig is None else (grant.mig,),
    )


def together(left: Charge, right: Charge) -> Charge:
    """The sum of two charges on one device that count at the same time.

    An instance that both name is listed twice, which no card can have.
    """
    instances = in_order((*left.instances, *right.instances))
    return _combined(left, right, add, instances)


def _peak(left: Charge, right: Charge) -> Charge:
    """The larger of two charges that count one after the other; one instance may serve both in turn."""
    instances = Counter(left.instances) | Counter(right.instances)
    return _combined(left, right, max, in_order(instances.elements()))


def _combined(
    left: Charge, right: Charge, both: Callable[[int, int], int], instances: tuple[MigSlice, ...]
) -> Charge:
    extras = dict(left.extras)
    for name, amount in right.extras:
        extras[name] = both(extras.get(name, 0), amount)
    return replace(
        left,
        core_milli=both(left.core_milli, right.core_milli),
        memory_bytes=both(left.memory_bytes, right.memory_bytes),
        slots=both(left.slots, right.slots),
        extras=tuple(sorted(extras.items())),
        exclusive=left.exclusive or right.exclusive,
        sharers=_lowest(left.sharers, right.sharers),
        functions=tuple(sorted({*left.functions, *right.functions})),
        fence=_lowest(left.fence, right.fence),
        instances=instances,
    )


def _lowest(left: L | None, right: L | None) -> L | None:
    if left is None or right is None:
        return right if left is None else left
    return min(left, right)

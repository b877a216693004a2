"""The events that the engine gets, and the actions that it asks of its driver.

Events carry facts and their versions. An event that arrives twice, late or out of order changes only the moment at
which the books are right. Actions are requests to the driver: the engine itself touches nothing outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from partage.model.allocation import Allocation, Grant
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.placement.tables import Tables


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node was added or changed."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node was deleted; `version` is that of its deletion."""

    name: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod was added or changed."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod was deleted."""

    uid: str


@dataclass(frozen=True, slots=True)
class BindSucceeded:
    """The API server accepted the Binding."""

    uid: str


@dataclass(frozen=True, slots=True)
class BindFailed:
    """The API server refused the Binding: nothing was bound."""

    uid: str


@dataclass(frozen=True, slots=True)
class BindUnknown:
    """The Binding got no answer: the API server may have accepted it or not."""

    uid: str


@dataclass(frozen=True, slots=True)
class PodRead:
    """The answer to `ReadBack`: the pod as the API server has it, or None if it is gone."""

    uid: str
    pod: Pod | None


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """A hold has expired, or the pod was rejected elsewhere."""

    uid: str


@dataclass(frozen=True, slots=True)
class RoomKept:
    """Preemption makes room for a waiting pod: the part of its grants that is free now is kept for it."""

    pod: Pod
    node: str
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Another policy is in force from now on."""

    policy: Policy


@dataclass(frozen=True, slots=True)
class Quota:
    """One ResourceQuota: its name and its hard limits by key."""

    name: str
    hard: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Quotas:
    """All quotas by namespace."""

    by_namespace: Mapping[str, tuple[Quota, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotasChanged:
    """These quotas of the namespaces are in force from now on."""

    quotas: Quotas


@dataclass(frozen=True, slots=True)
class TablesChanged:
    """These tables of the strategies are in force from now on."""

    tables: Tables


Event = (
    NodeSeen
    | NodeGone
    | PodSeen
    | PodGone
    | BindSucceeded
    | BindFailed
    | BindUnknown
    | PodRead
    | HoldEnded
    | RoomKept
    | PolicyChanged
    | QuotasChanged
    | TablesChanged
)


class Placement(msgspec.Struct, frozen=True, gc=False):
    """A pod's place, reserved in the books: bind it, then report the result."""

    allocation: Allocation
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Capacity was closed because of a pod: report why.

    Attributes:
        message: why, with names of pods; for our own log.
        brief: why, for readers of any namespace.
    """

    uid: str
    node: str
    message: str
    brief: str


@dataclass(frozen=True, slots=True)
class Unserviceable:
    """Cards of a node are configured so that they serve no pod: report why."""

    node: str
    message: str


@dataclass(frozen=True, slots=True)
class Released:
    """Room appeared on a node: waiting pods may fit now."""

    node: str


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Read the pod from the API server and answer with `PodRead`."""

    uid: str


Action = Quarantined | Released | ReadBack | Unserviceable

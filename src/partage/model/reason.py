"""Why a pod waits: enums with numbers. Only this module turns them into sentences.

A `Refusal` holds one `NodeReason` a node, each with the `CardReason`s that caused it. Codes are stable: programs may
match on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ReasonCode(StrEnum):
    """Stable codes of refusal; each comment gives the cause."""

    INVALID_REQUEST = "InvalidRequest"  # the request itself breaks a rule of its protocol
    SCHEDULING_GATED = "SchedulingGated"  # the pod's own gates hold it back
    INSUFFICIENT_CARDS = "InsufficientCards"  # fewer suitable cards than asked, or none free
    INSUFFICIENT_CORE = "InsufficientCore"  # not enough compute left on a card
    INSUFFICIENT_MEMORY = "InsufficientMemory"  # not enough device memory left on a card
    INSUFFICIENT_SLOTS = "InsufficientSlots"  # as many sharers as the card may have
    INSUFFICIENT_DEVICES = "InsufficientDevices"  # rdma, fpga or a native unit of a card
    UNHEALTHY = "Unhealthy"  # the card is reported unhealthy
    DEVICE_FILES_UNKNOWN = "DeviceFilesUnknown"  # the node's cards have no known device files
    CORDONED = "Cordoned"  # the card is closed to new pods by its operator
    AGENT_SILENT = "AgentSilent"  # the node's agent is away, so it would not serve the pod
    QUARANTINED = "Quarantined"  # the card's books and its records disagree
    TYPE_MISMATCH = "TypeMismatch"  # wrong model or vendor of card
    UUID_MISMATCH = "UuidMismatch"  # not one of the cards named, or one of the cards refused
    MODE_MISMATCH = "ModeMismatch"  # the card's sharing mode is not one the pod allows
    TOPOLOGY_SCOPE = "TopologyScope"  # no NUMA node or PCIe switch holds the request
    JOINT_ALLOCATION = "JointAllocation"  # GPU and RDMA cannot be placed together as asked
    PARTITION = "Partition"  # no free partition of the size asked
    MIG_PLACEMENT = "MigPlacement"  # no legal position for the instance
    NOT_SHAREABLE = "NotShareable"  # the card or node may not be shared
    CARD_NOT_IDLE = "CardNotIdle"  # a whole card is asked, but the card holds shares
    NODE_POLICY = "NodePolicy"  # the node's policy excludes the pod
    DRIVER_UNSUPPORTED = "DriverUnsupported"  # driver or architecture outside the protocol's table
    QUOTA_EXCEEDED = "QuotaExceeded"  # the namespace's ResourceQuota
    NUMA_MISMATCH = "NumaMismatch"  # the cards asked together are on several NUMA nodes
    TEMPLATE_MISMATCH = "TemplateMismatch"  # no sharing template equals the request
    ISOLATION_PROVIDER = "IsolationProvider"  # the node lacks the isolation that the pod names
    SEARCH_LIMIT = "SearchLimit"  # the search reached one decision's limit of work
    SEARCH_DEFERRED = "SearchDeferred"  # other pods of the namespace used its share of search
    NODE_RESOURCES = "NodeResources"  # CPU, memory, pods or a foreign extended resource
    NODE_AFFINITY = "NodeAffinity"  # nodeSelector, node affinity or nodeName
    TAINT = "Taint"  # a taint that is not tolerated
    NODE_UNSCHEDULABLE = "NodeUnschedulable"  # the node is cordoned
    CLAIM_UNREADY = (
        "ClaimUnready"  # a claim of the pod, or an object that it names, does not exist
    )
    SELECTOR_MISMATCH = "SelectorMismatch"  # no device matches a claim's class and selectors


_PHRASES: Mapping[ReasonCode, str] = {
    ReasonCode.INVALID_REQUEST: "invalid request",
    ReasonCode.SCHEDULING_GATED: "scheduling gated",
    ReasonCode.INSUFFICIENT_CARDS: "insufficient cards",
    ReasonCode.INSUFFICIENT_CORE: "insufficient gpu-core",
    ReasonCode.INSUFFICIENT_MEMORY: "insufficient gpu-memory",
    ReasonCode.INSUFFICIENT_SLOTS: "no free slot",
    ReasonCode.INSUFFICIENT_DEVICES: "insufficient devices",
    ReasonCode.UNHEALTHY: "unhealthy",
    ReasonCode.DEVICE_FILES_UNKNOWN: "device files unknown",
    ReasonCode.CORDONED: "card cordoned",
    ReasonCode.AGENT_SILENT: "agent silent",
    ReasonCode.QUARANTINED: "quarantined",
    ReasonCode.TYPE_MISMATCH: "other card type",
    ReasonCode.UUID_MISMATCH: "other card uuid",
    ReasonCode.MODE_MISMATCH: "other sharing mode",
    ReasonCode.TOPOLOGY_SCOPE: "no fitting topology scope",
    ReasonCode.JOINT_ALLOCATION: "no joint allocation",
    ReasonCode.PARTITION: "no free partition",
    ReasonCode.MIG_PLACEMENT: "no MIG placement",
    ReasonCode.NOT_SHAREABLE: "not shareable",
    ReasonCode.CARD_NOT_IDLE: "no idle card",
    ReasonCode.NODE_POLICY: "node policy",
    ReasonCode.DRIVER_UNSUPPORTED: "unsupported driver",
    ReasonCode.QUOTA_EXCEEDED: "quota exceeded",
    ReasonCode.NUMA_MISMATCH: "NUMA mismatch",
    ReasonCode.TEMPLATE_MISMATCH: "no matching template",
    ReasonCode.ISOLATION_PROVIDER: "isolation provider missing",
    ReasonCode.SEARCH_LIMIT: "search given up",
    ReasonCode.SEARCH_DEFERRED: "search deferred",
    ReasonCode.NODE_RESOURCES: "insufficient node resources",
    ReasonCode.NODE_AFFINITY: "node affinity",
    ReasonCode.TAINT: "untolerated taint",
    ReasonCode.NODE_UNSCHEDULABLE: "node unschedulable",
    ReasonCode.CLAIM_UNREADY: "claim not ready",
    ReasonCode.SELECTOR_MISMATCH: "no such device",
}


_NAMED = frozenset({ReasonCode.INSUFFICIENT_CORE, ReasonCode.INSUFFICIENT_DEVICES})
"""Codes of amounts of devices that are no cards, too: of a share, counted in the same column, and of whole ones."""


@dataclass(frozen=True, slots=True)
class CardReason:
    """Why one card cannot serve a request.

    Attributes:
        asked: the amount asked of the card, in the unit of the code (milli, bytes, slots), if any.
        free: the amount that the card had left, in the same unit.
    """

    code: ReasonCode
    minor: int
    asked: int | None = None
    free: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NodeReason:
    """Why one node cannot host a pod: the leading code, a sentence, and the cards behind it.

    Attributes:
        message: one sentence with numbers, without the node's name.
        asked: the amount asked in the code's unit, if it has one.
        free: the most that one card (or the node) had left, in that unit.
        card: the minor of the card that had `free` left.
        brief: the fact in a few words, for the one-line summary without a number.
        device: the lacking device, if it is not a card.
    """

    code: ReasonCode
    message: str
    asked: int | None = None
    free: int | None = None
    card: int | None = None
    cards: tuple[CardReason, ...] = ()
    brief: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod waits.

    Attributes:
        code: the leading rule over all nodes, or of the pod itself.
        message: one line for a person.
        nodes: node name to reason; empty if the pod itself is at fault.
        counts: number of nodes that failed by each code; complete even if `nodes` is cut short.
    """

    code: ReasonCode
    message: str
    nodes: Mapping[str, NodeReason] = field(default_factory=dict)
    counts: Mapping[ReasonCode, int] = field(default_factory=dict)


def phrase(code: ReasonCode, device: str = "") -> str:
    """The few words for a code in a one-line summary. `device`: the lacking device, if it is not a card."""
    return f"insufficient {device}" if device and code in _NAMED else _PHRASES[code]

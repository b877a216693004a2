"""Advice to a person for each reason that keeps a pod waiting: one line a code.

`docs/reference/schedule.md` has the same lines; a test compares them.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from partage.model.reason import ReasonCode

ADVICE: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.INVALID_REQUEST: "correct the container or annotation that the message names",
    ReasonCode.SCHEDULING_GATED: "wait until the controller that set the gates removes them",
    ReasonCode.INSUFFICIENT_CARDS: "ask for fewer, wait, or add cards",
    ReasonCode.INSUFFICIENT_CORE: "ask for a smaller part of the card, or wait",
    ReasonCode.INSUFFICIENT_MEMORY: "ask for less memory, or wait",
    ReasonCode.INSUFFICIENT_SLOTS: "wait, or raise the split count where the protocol has one",
    ReasonCode.INSUFFICIENT_DEVICES: "ask for fewer; check the hint's selectors or the claim's amounts",
    ReasonCode.UNHEALTHY: "look at the Device's conditions; repair or replace",
    ReasonCode.CORDONED: "lift `hami.io/device-cordon` or the node configuration's filter",
    ReasonCode.AGENT_SILENT: "wait, and look at the pod of Partage's agent on the node",
    ReasonCode.QUARANTINED: "ask an operator, who finds the pod by `partage inspect NODE` and "
    "deletes it, or corrects its record or the registration",
    ReasonCode.TYPE_MISMATCH: "change `use-gputype` or the resource name",
    ReasonCode.DEVICE_FILES_UNKNOWN: "correct the label `node.koordinator.sh/gpu-vendor`, or use "
    "another vendor's nodes",
    ReasonCode.UUID_MISMATCH: "change `use-gpuuuid` or `nouse-gpuuuid`",
    ReasonCode.MODE_MISMATCH: "change `vgpu-mode`, or the node's mode",
    ReasonCode.TOPOLOGY_SCOPE: "relax `requiredTopologyScope`, or wait",
    ReasonCode.JOINT_ALLOCATION: "drop `SamePCIe` or the claim's constraint, or wait for a card beside a free "
    "network card",
    ReasonCode.PARTITION: "ask for a size of the node's table, or wait; drop `gpu-partition-spec` where "
    "no node has a table",
    ReasonCode.MIG_PLACEMENT: "wait, ask for less, or allow `hami-core`",
    ReasonCode.NOT_SHAREABLE: "ask for whole cards, or switch sharing on for the node",
    ReasonCode.CARD_NOT_IDLE: "wait, or ask for a share",
    ReasonCode.NODE_POLICY: "correct `qgpu-schedule-policy`",
    ReasonCode.DRIVER_UNSUPPORTED: "change the driver, if that is unsupported, or use other cards; other "
    "protocols still use the node",
    ReasonCode.QUOTA_EXCEEDED: "ask for less, or raise the quota",
    ReasonCode.NUMA_MISMATCH: "drop `numa-bind` or `SingleNUMANode`, or wait",
    ReasonCode.TEMPLATE_MISMATCH: "ask for the amounts of a template; the message lists them",
    ReasonCode.ISOLATION_PROVIDER: "see which provider enforces shares on the node (`--isolation`), "
    "or drop the label or policy",
    ReasonCode.SEARCH_LIMIT: "ask in fewer containers, for equal amounts in each, or with fewer terms",
    ReasonCode.SEARCH_DEFERRED: "wait; or ask in fewer containers, or for equal amounts in each",
    ReasonCode.NODE_RESOURCES: "ask for less, or wait",
    ReasonCode.NODE_AFFINITY: "correct the selector",
    ReasonCode.TAINT: "add a toleration; repair the node",
    ReasonCode.NODE_UNSCHEDULABLE: "uncordon it",
    ReasonCode.CLAIM_UNREADY: "create what the message names, or correct it",
    ReasonCode.SELECTOR_MISMATCH: "correct the claim's selectors, or add such a device",
}
"""The remedy for each reason; backquotes enclose text to type."""


NEVER: Final = (
    "ask for less, or add a larger node; waiting does not help, as no node that the pod may use "
    "has as much even when it is idle"
)
"""The remedy for a request for which no node is large enough; waiting does not help."""

_NO_SUCH_PLACE: Final = "; waiting does not help, as no node that the pod may use has such a place even when it is idle"
CLOSE: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.TOPOLOGY_SCOPE: f"relax `requiredTopologyScope`, or ask for fewer{_NO_SUCH_PLACE}",
    ReasonCode.JOINT_ALLOCATION: f"drop `SamePCIe`, or ask for fewer{_NO_SUCH_PLACE}",
    ReasonCode.PARTITION: "ask for a size of the node's table; drop `gpu-partition-spec` where no "
    f"node has a table{_NO_SUCH_PLACE}",
    ReasonCode.NUMA_MISMATCH: "drop `numa-bind` or `SingleNUMANode`, or ask for fewer"
    f"{_NO_SUCH_PLACE}",
    # A share or a whole card by another protocol's names fits on no such card, however little it asks for.
    ReasonCode.MIG_PLACEMENT: "use nodes whose cards take shares, or ask by HAMi's names for instances that "
    f"the cards can have{_NO_SUCH_PLACE}",
}
"""The remedies for places that no node has even when it is idle; waiting does not help."""

CHOSEN: Final = frozenset(
    {ReasonCode.TYPE_MISMATCH, ReasonCode.UUID_MISMATCH, ReasonCode.MODE_MISMATCH}
)
"""Codes for a pod that chooses among cards: another choice helps if another card is large enough."""
_AND_LESS: Final = (
    "; ask for less too, as no card that the pod could choose instead is large enough"
)

NONE_LEFT: Final = "wait until a pod ends: a card whose compute is fully allocated takes no pod that asks for none"
"""The remedy for a request that names no compute, if no card has any left."""

NO_NODE: Final = "add a node with devices; with -f, give manifests of nodes too"
"""The remedy if there is no node at all."""

ROOM: Final = frozenset(
    {
        ReasonCode.INSUFFICIENT_CARDS,
        ReasonCode.INSUFFICIENT_CORE,
        ReasonCode.INSUFFICIENT_MEMORY,
        ReasonCode.INSUFFICIENT_SLOTS,
        ReasonCode.INSUFFICIENT_DEVICES,
        ReasonCode.CARD_NOT_IDLE,
        ReasonCode.MIG_PLACEMENT,
        ReasonCode.NODE_RESOURCES,
    }
)
"""Codes for lack of room, for which waiting helps if a node is large enough."""

PASSING: Final = ROOM | CLOSE.keys()
"""Codes for which waiting helps if a node would host the pod once it is idle."""


def advice(code: str, *, never: bool = False) -> str:
    """The remedy for a code; empty for an unknown one.

    `never`: no allowed node could host the pod even if it were idle, for codes in `CHOSEN` with any of its cards.
    """
    try:
        known = ReasonCode(code)
    except ValueError:
        return ""
    if not never:
        return ADVICE[known]
    if known in CHOSEN:
        return ADVICE[known] + _AND_LESS
    return CLOSE.get(known) or (NEVER if known in ROOM else ADVICE[known])


def lacking(types: Iterable[str]) -> str:
    """The remedy for a request of devices of types that no node has."""
    named = " and ".join(types)
    return (
        f"ask for no {named}, or add a node that has such devices; waiting does not help, as no node that the "
        "pod may use has one"
    )

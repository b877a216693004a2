"""Combines cards' reasons into a node's, and nodes' reasons into the line that a person reads."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partage.model.device import DeviceType
from partage.model.quantity import exact
from partage.model.reason import CardReason, NodeReason, ReasonCode, Refusal, phrase
from partage.model.request import DeviceRequest

LEADING: Final = (
    ReasonCode.INSUFFICIENT_MEMORY,
    ReasonCode.INSUFFICIENT_CORE,
    ReasonCode.INSUFFICIENT_SLOTS,
    ReasonCode.CARD_NOT_IDLE,
    ReasonCode.INSUFFICIENT_CARDS,
    ReasonCode.INSUFFICIENT_DEVICES,
    ReasonCode.QUARANTINED,
    ReasonCode.CORDONED,
    ReasonCode.UNHEALTHY,
    ReasonCode.MIG_PLACEMENT,
    ReasonCode.MODE_MISMATCH,
    ReasonCode.UUID_MISMATCH,
    ReasonCode.TYPE_MISMATCH,
)
"""The order in which a card's reason leads for the node: the reason closest to serving first."""

WRONG: Final = frozenset(
    {
        ReasonCode.MIG_PLACEMENT,
        ReasonCode.MODE_MISMATCH,
        ReasonCode.UUID_MISMATCH,
        ReasonCode.TYPE_MISMATCH,
    }
)
"""Codes of cards that are not accepted regardless of their free amounts."""

_APART: Final = frozenset(
    {
        ReasonCode.TOPOLOGY_SCOPE,
        ReasonCode.NUMA_MISMATCH,
        ReasonCode.JOINT_ALLOCATION,
        ReasonCode.PARTITION,
    }
)
"""Codes of nodes with enough free cards, but not together as asked: with one wish less the pod would have its place."""

_TOLD: Final = 8
"""The most different facts of one code that the line names."""

_ASKED: Final = ", asked "
_NAMED: Final = frozenset({ReasonCode.TYPE_MISMATCH, ReasonCode.MODE_MISMATCH, ReasonCode.TAINT})
"""Codes whose facts differ between nodes, none of them closer than another."""
RANK: Final = {code: rank for rank, code in enumerate(LEADING)}


def none_left(type_: DeviceType) -> ReasonCode:
    """The code for too few devices of a type, or for one that is fully taken."""
    cards = type_ is DeviceType.GPU
    return ReasonCode.INSUFFICIENT_CARDS if cards else ReasonCode.INSUFFICIENT_DEVICES


def format_amount(code: ReasonCode, value: int, *, up: bool = False) -> str:
    """An amount in the unit of its code: bytes with a suffix (see `exact`), compute in percent of a card."""
    if code is ReasonCode.INSUFFICIENT_MEMORY:
        return exact(value, up=up)
    if code is ReasonCode.INSUFFICIENT_CORE:
        return f"{value / 10:g}%"
    return str(value)


def node_reason(
    request: DeviceRequest, reasons: Sequence[CardReason], fitting: int, total: int
) -> NodeReason:
    """Why a node lacks cards for a request.

    Args:
        reasons: one for each card that was refused.
        fitting: how many cards would serve.
        total: how many cards of the type the node has.
    """
    device = "" if request.type is DeviceType.GPU else request.type.value
    kind = f"{device} device" if device else "card"
    none = none_left(request.type)
    cards = tuple(reasons)
    if not reasons or (request.count > total and not any(r.code in WRONG for r in reasons)):
        text = f"the node has {total} {kind}{'s' * (total != 1)}, {request.count} asked"
        return NodeReason(none, text, request.count, fitting, cards=cards, device=device)
    lead = min(reasons, key=lambda r: (RANK.get(r.code, len(RANK)), -(r.free or 0), r.minor))
    counts = Counter(r.code for r in reasons)
    parts = []
    for code in sorted(counts, key=lambda c: RANK.get(c, len(RANK))):
        same = [r for r in reasons if r.code is code]
        best = max(same, key=lambda r: (r.free or 0, -r.minor))
        alike = len({r.detail for r in same}) == 1
        clause = _clause(best, device, alike=alike)
        parts.append(f"{counts[code]} {kind}{'s' * (counts[code] != 1)} {clause}")
    need = "all" if request.every else str(request.count)
    text = f"{fitting} of {total} {kind}s fit, {need} needed: " + ", ".join(parts)
    if lead.code is none and lead.asked is None:  # taken, as a whole or in full
        return NodeReason(none, text, request.count, fitting, cards=cards, device=device)
    brief = lead.detail if lead.code in WRONG else ""
    return NodeReason(lead.code, text, lead.asked, lead.free, lead.minor, cards, brief, device)


_OF_CARD: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.INSUFFICIENT_MEMORY: "short of gpu-memory",
    ReasonCode.INSUFFICIENT_CORE: "short of gpu-core",
    ReasonCode.INSUFFICIENT_SLOTS: "without a free slot",
    ReasonCode.CARD_NOT_IDLE: "not idle",
    ReasonCode.INSUFFICIENT_CARDS: "taken",
    ReasonCode.INSUFFICIENT_DEVICES: "lacking",
    ReasonCode.CORDONED: "cordoned",
    ReasonCode.MIG_PLACEMENT: "in MIG mode",
    ReasonCode.MODE_MISMATCH: "of another sharing mode",
    ReasonCode.UUID_MISMATCH: "of another uuid",
    ReasonCode.TYPE_MISMATCH: "of another type",
}


def _clause(reason: CardReason, device: str, *, alike: bool) -> str:
    """What one code says of a node's cards. `alike`: whether the detail is that of all of them."""
    text = _OF_CARD.get(reason.code, phrase(reason.code))
    if device and reason.code is ReasonCode.INSUFFICIENT_CORE:
        text = "with too little left"
    facts = []
    if reason.asked is not None and reason.free is not None and reason.asked > 0:
        facts.append(
            f"asked {format_amount(reason.code, reason.asked, up=True)}, "
            f"most free {format_amount(reason.code, max(reason.free, 0))} on {device or 'card'} {reason.minor}"
        )
    if reason.detail:
        card = "" if alike else f"{device or 'card'} {reason.minor}: "
        facts.append(card + reason.detail)
    return f"{text} ({'; '.join(facts)})" if facts else text


@dataclass(slots=True)
class Finding:
    """One code over many nodes: their number, and the closest node."""

    count: int = 0
    asked: int | None = None
    free: int | None = None
    node: str = ""
    card: int | None = None
    brief: str = ""
    briefs: set[str] = field(default_factory=set)
    device: str = ""
    devices: set[str] = field(default_factory=set)

    def add(self, name: str, reason: NodeReason) -> None:
        """Count one more node."""
        self.count += 1
        self.devices.add(reason.device)
        self.brief = self.brief or reason.brief
        if reason.brief:
            self.briefs.add(reason.brief)
        if reason.free is not None and (self.free is None or reason.free > self.free):
            self.asked, self.free = reason.asked, reason.free
            self.node, self.card, self.device = name, reason.card, reason.device
            self.brief = reason.brief or self.brief


def refusal_of(
    findings: Mapping[ReasonCode, Finding], nodes: Mapping[str, NodeReason], total: int
) -> Refusal:
    """The refusal of a pod that no node can host, with its one-line summary.

    The line is `0/3 nodes: 2 insufficient gpu-memory (asked 20Gi, most free 12Gi on node-1 card 0), 1 unhealthy`: codes
    by their number of nodes.
    """
    if not findings:
        return Refusal(ReasonCode.INSUFFICIENT_CARDS, f"0/{total} nodes: there is no node")
    ranked = sorted(findings.items(), key=lambda item: (-item[1].count, str(item[0])))
    line = ", ".join(_part(code, finding) for code, finding in ranked)
    return Refusal(
        code=_speaks(findings),
        message=f"0/{total} nodes: {line}",
        nodes=nodes,
        counts={code: finding.count for code, finding in ranked},
    )


def _part(code: ReasonCode, finding: Finding) -> str:
    text = f"{finding.count} {' or '.join(dict.fromkeys(phrase(code, one) for one in sorted(finding.devices or {''})))}"
    if code in _NAMED and len(finding.briefs) > 1:
        return f"{text} ({_several(finding.briefs)})"
    if code is ReasonCode.UUID_MISMATCH and _ASKED in finding.brief:
        return f"{text} (asked {finding.brief.partition(_ASKED)[2]})"  # the nodes' reasons contain each card's model
    if finding.brief:
        return f"{text} ({finding.brief}{f' on {finding.node}' if finding.node else ''})"
    if finding.asked is None or finding.free is None:
        return text
    none = code is ReasonCode.INSUFFICIENT_CORE and not finding.asked
    if finding.asked <= 0 and not none:
        return text
    where = (
        finding.node
        if finding.card is None
        else f"{finding.node} {finding.device or 'card'} {finding.card}"
    )
    if code in (ReasonCode.INSUFFICIENT_CARDS, ReasonCode.INSUFFICIENT_DEVICES):
        return f"{text} (asked {finding.asked}, at most {finding.free} on {where})"
    if none:
        return f"{text} (none asked, and none left on {where})"
    return (
        f"{text} (asked {format_amount(code, finding.asked, up=True)}, "
        f"most free {format_amount(code, max(finding.free, 0))} on {where})"
    )


def _several(briefs: Collection[str]) -> str:
    """The names of different cards, and the request once: `it is A10 or T4, asked H100`."""
    told = sorted(briefs)
    more = f" or {len(told) - _TOLD} more" if len(told) > _TOLD else ""
    by_asked: dict[str, list[str]] = {}
    for brief in told[:_TOLD]:
        head, _, tail = brief.partition(_ASKED)
        by_asked.setdefault(tail, []).append(head)
    texts = []
    for tail, facts in by_asked.items():
        if all(fact.startswith("it is ") for fact in facts):
            facts[1:] = [fact.removeprefix("it is ") for fact in facts[1:]]
        text = " or ".join(facts) + (more if len(by_asked) == 1 else "")
        texts.append(f"{text}, asked {tail}" if tail else text)
    return "; ".join(texts) + (more if len(by_asked) > 1 else "")


_KUBERNETES: Final = (
    ReasonCode.NODE_RESOURCES,
    ReasonCode.TAINT,
    ReasonCode.NODE_UNSCHEDULABLE,
    ReasonCode.NODE_AFFINITY,  # nodes that the pod itself excludes matter least
)


def _speaks(findings: Iterable[ReasonCode]) -> ReasonCode:
    """The leading code for the pod: of devices before Kubernetes' own, closest first, unaccepted cards last."""

    def rank(code: ReasonCode) -> tuple[bool, bool, int, str]:
        return code not in _APART, code in WRONG, RANK.get(code, len(RANK)), str(code)

    codes = list(findings)
    ours = [code for code in codes if code not in _KUBERNETES]
    if ours:
        return min(ours, key=rank)
    return min(codes, key=_KUBERNETES.index)

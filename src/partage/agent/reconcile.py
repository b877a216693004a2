"""Compares four reports about a node's containers, and names the differences: a pure function.

    records   (API server)    the devices that pods were allocated here
    entries   (journal)       the agent's grants to each container
    units     (PodResources)  the units that the kubelet has counted for each container
    running   (runtime)       the existing containers, with the parts of the agent's answer that arrived

and the cards that containers use, by the driver's lists of processes.

No difference follows from missing knowledge: a report that is absent is None, accuses no container, and frees nothing.
Nothing here grants more; `differences.TABLE` has the reaction to each kind.

The kubelet's units can be compared only in part. A unit's identity begins with its card (`units`), so a unit of a card
that the container's grants do not name is a difference. The number of units is compared with the pod's whole request
and not card by card: units are percents, gibibytes or sharers, grants are thousandths and bytes, lists are bounded,
and the kubelet follows advice only if it was given in time. Units of other plugins' resources, CPU and memory are not
compared. The kubelet does not report ended init containers, so their absence means nothing. It reports
no UID: if two pods here have the same namespace and name, its report counts for neither.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partage.agent.differences import Finding, Kind
from partage.agent.held_allocations import Running
from partage.agent.injection import Place, Records, Refusal, Rule, conflict
from partage.agent.journal import Entry
from partage.agent.kubelet.units import Offer, Units, requests_of
from partage.agent.nri.messages import PodSandbox
from partage.model.adjustment import alike
from partage.model.allocation import CLAIM, Allocation
from partage.model.request import Phase
from partage.vendors import names
from partage.wire import shapes
from partage.wire.pod_phase import finished

_SHOWN: Final = 3
"""Units of one container that a message names."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod of this node, by the API server; `over`: its containers have ended for good. `asks`: their units."""

    uid: str
    namespace: str
    name: str
    record: str | None = None
    over: bool = False
    asks: Mapping[str, Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The reports of one moment; None for an absent one.

    `offers`: units of the agent's device plugins. `uses`: cards that each container's processes use, by the driver.
    """

    place: Place
    entries: Sequence[Entry]
    offers: Sequence[Offer] = ()
    pods: Sequence[Bound] | None = None
    units: Units | None = None
    running: Sequence[Running] | None = None
    uses: Mapping[str, Collection[str]] = field(default_factory=dict)


def bound_pods(pods: Iterable[shapes.Pod], node: str) -> tuple[Bound, ...]:
    """Pods of a node for the comparison."""
    found = []
    for pod in pods:
        metadata, spec = pod.metadata, pod.spec
        if metadata is None or not metadata.uid or spec is None or spec.node_name != node:
            continue
        containers = (*(spec.init_containers or ()), *(spec.containers or ()))
        name = metadata.namespace or "default", metadata.name or ""
        record = (metadata.annotations or {}).get(names.ALLOCATION)
        asks = {one.name or "": requests_of(one) for one in containers}
        found.append(Bound(metadata.uid, *name, record, finished(pod), asks))
    return tuple(found)


def confirmed(before: Iterable[Finding], now: Iterable[Finding]) -> list[Finding]:
    """Findings of two looks in a row, because the reports are of slightly different moments."""
    known = {one.who for one in before}
    return [one for one in now if one.who in known]


def reconcile(facts: Facts) -> list[Finding]:
    """All differences, in order."""
    look = _Look(facts)
    parts = _of_running, _of_entries, _of_cards, _of_units, _of_uses
    return sorted({one for part in parts for one in part(look)})


class _Look:
    """The facts by pod and container, with each record read once: a tenant's pods may have thousands of containers.

    Attributes:
        entries: by UID and container; of several the last.
        journal: the same by the runtime's identity.
        there: containers of the runtime.
        running: UID and container of what runs.
        records: of running containers, by their pod's UID.
        pods: by UID, by the API server.
        uids: of the pods with a namespace and a name.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.entries = {(one.uid, one.name): one for one in facts.entries}
        self.journal = {one.container: one for one in facts.entries}
        self.there = {one.container for one in facts.running or ()}
        self.pods = {one.uid: one for one in facts.pods or ()}
        self.running = {(one.uid, one.name) for one in facts.running or ()}
        self.records: dict[str, set[str | None]] = {}
        self.uids: dict[tuple[str, str], set[str]] = {}
        for run in facts.running or ():
            self.records.setdefault(run.uid, set()).add(run.record)
            self.uids.setdefault((run.namespace, run.pod), set()).add(run.uid)
        for pod in facts.pods or ():
            if not pod.over:
                self.uids.setdefault((pod.namespace, pod.name), set()).add(pod.uid)
        self._records = Records(facts.place.node.name)

    def read(self, text: str, uid: str, namespace: str, name: str) -> Allocation | str:
        """A record, or its fault."""
        pod = PodSandbox("", name, uid, namespace, annotations={names.ALLOCATION: text})
        found = self._records.of(pod)
        return found.message if isinstance(found, Refusal) else found or "annotation is missing"

    def recorded(self, one: Entry, text: str | None = None) -> Allocation | str:
        """The record of an entry, or another one of its pod."""
        namespace, _, name = one.pod.partition("/")
        return self.read(one.record if text is None else text, one.uid, namespace, name)

    def has_ended(self, one: Entry) -> bool:
        """Whether the runtime no longer has a container; false while it reports none."""
        return self.facts.running is not None and one.container not in self.there

    def uid(self, namespace: str, name: str) -> str | None:
        """The pod that the kubelet means; None if that would be a guess."""
        found = self.uids.get((namespace, name), set())
        return next(iter(found)) if len(found) == 1 else None


# --- the runtime and the journal ---------------------------------------------------------------


def _of_running(look: _Look) -> Iterator[Finding]:
    for one in look.facts.running or ():
        if one.container in look.journal:
            if one.served is None:
                yield _about(one, Kind.NEVER_GIVEN, "it was started without its grant")
        elif not one.uid:
            yield _about(one, Kind.POD_UNKNOWN, "it runs, and the runtime does not name its pod")
        elif one.record is not None:
            record = look.read(one.record, one.uid, one.namespace, one.pod)
            if not isinstance(record, Allocation):
                yield _about(one, Kind.BAD_RECORD, f"it runs, and {record}")
            elif one.served is None:
                yield _about(one, Kind.STARTED_UNASKED, "it was started while the agent was away")
            else:
                yield _about(one, Kind.NOT_IN_JOURNAL, "the runtime has it as served")


def _of_entries(look: _Look) -> Iterator[Finding]:
    for one in look.facts.entries:
        if look.has_ended(one):
            yield _from(one, Kind.ENDED, "the runtime no longer has it")
            continue
        record = look.recorded(one)
        if not isinstance(record, Allocation):
            yield _from(one, Kind.UNREADABLE, f"the journal's {record}")
        grants = record.grants if isinstance(record, Allocation) else ()
        claimed = bool(one.claimant) or any(grant.protocol == CLAIM for grant in grants)
        if look.facts.pods is None or (claimed and not one.claimant):
            continue  # an earlier agent's entry does not name its pod
        pod = look.pods.get(one.pod_uid)
        if pod is None or pod.over:
            how = "does not have its pod" if pod is None else "reports that its pod has ended"
            yield _from(one, Kind.POD_GONE, f"the API server {how}; it runs and keeps its cards")
        if pod is not None and not claimed and pod.record != one.record:
            now = None if pod.record is None else look.recorded(one, pod.record)
            if not isinstance(now, Allocation):
                yield _from(one, Kind.RECORD_CHANGED, "its pod's record is gone or cannot be read")
            # Amounts of shares change while a pod runs.
            elif isinstance(record, Allocation) and not (
                set(now.grants) == set(record.grants) or alike(now.grants, record.grants)
            ):
                told = "its pod's record is another than it was given by"
                yield _from(one, Kind.RECORD_CHANGED, told)


def _of_cards(look: _Look) -> Iterator[Finding]:
    """Absent devices, and devices with more grants than capacity; the finding names the later container."""
    held: dict[str, tuple[str, Allocation]] = {}
    for entry in look.facts.entries:
        if not look.has_ended(entry):
            record = look.recorded(entry)
            if isinstance(record, Allocation):
                held.setdefault(entry.uid, (entry.name, record))
    for one in look.facts.running or ():
        if one.container not in look.journal and one.record is not None:
            record = look.read(one.record, one.uid, one.namespace, one.pod)
            if isinstance(record, Allocation):
                held.setdefault(one.uid, (one.name, record))
    before: list[Allocation] = []
    for name, allocation in held.values():
        refusal = conflict(allocation, look.facts.place, before)
        before.append(allocation)
        if refusal is not None:
            gone = refusal.rule == Rule.UNKNOWN_DEVICE
            kind = Kind.DEVICE_GONE if gone else Kind.CARD_OVERFULL
            who = allocation.namespace, allocation.name, allocation.uid, name
            yield Finding(kind, *who, refusal.message)


# --- the driver's processes --------------------------------------------------------------------


def _of_uses(look: _Look) -> Iterator[Finding]:
    """Containers that use a card of which they have no grant: an open file of it can be passed on."""
    for one in look.facts.running or ():
        cards = set(look.facts.uses.get(one.container, ()))
        if not cards or one.namespace in look.facts.place.exempt:
            continue
        entry = look.journal.get(one.container)  # a claim's is under the claim's UID
        if entry is not None or one.record is not None:
            record = (
                look.read(one.record or "", one.uid, one.namespace, one.pod)
                if entry is None
                else look.recorded(entry)
            )
            if not isinstance(record, Allocation):
                continue  # a finding of its own
            cards -= {grant.uuid for grant in record.grants if grant.container == one.name}
        if cards:
            told = f"its processes use {_some(sorted(cards))}, of which it has no grant"
            yield _about(one, Kind.USES_UNGRANTED, told)


# --- the kubelet's units -----------------------------------------------------------------------


def _of_units(look: _Look) -> Iterator[Finding]:
    if look.facts.units is None:
        return
    card_of = {
        (offer.resource, unit.id): unit.card for offer in look.facts.offers for unit in offer.units
    }
    owners: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for key, units in look.facts.units.items():
        for resource, ids in units.items():
            for unit in ids:
                owners.setdefault((resource, unit), set()).add(key[:2])
    for key, units in look.facts.units.items():
        uid = look.uid(*key[:2])
        if uid is None:
            continue
        flat = [(resource, unit) for resource, ids in units.items() for unit in ids]
        if twice := [unit for resource, unit in flat if len(owners[resource, unit]) > 1]:
            yield _finding(key, uid, Kind.UNIT_TWICE, f"another pod has the same: {_some(twice)}")
        if strange := [unit for unit in flat if unit not in card_of]:
            told = _some(f"{unit} of {resource}" for resource, unit in strange)
            yield _finding(
                key, uid, Kind.UNKNOWN_UNIT, f"no device plugin offers what it holds: {told}"
            )
        yield from _of_container(look, key, uid, {card_of[one] for one in flat if one in card_of})
        yield from _of_amounts(look, key, uid, units)
    yield from _of_uncounted(look)


def _of_container(
    look: _Look, key: tuple[str, str, str], uid: str, cards: set[str]
) -> Iterator[Finding]:
    """A container that holds units but has no record, or whose units are of other cards."""
    if (mine := look.entries.get((uid, key[2]))) is not None:
        record = look.recorded(mine)
        if isinstance(record, Allocation):
            granted = {one.uuid for one in record.grants if one.container == key[2]}
            if cards - granted:
                told = f"the kubelet counts units of {_some(sorted(cards - granted))}, "
                told += f"its record names {_some(sorted(granted)) or 'none'}"
                yield _finding(key, uid, Kind.OTHER_CARD, told)
        return
    pod = look.pods.get(uid)
    if (look.records.get(uid) if pod is None else {pod.record}) == {None}:
        told = "the kubelet counts units for it, and its pod has no record"
        runs = (uid, key[2]) in look.running
        kind = Kind.RUNS_WITHOUT_RECORD if runs else Kind.UNITS_WITHOUT_RECORD
        yield _finding(key, uid, kind, told)


def _of_amounts(
    look: _Look, key: tuple[str, str, str], uid: str, units: Mapping[str, tuple[str, ...]]
) -> Iterator[Finding]:
    pod = look.pods.get(uid)
    asks = pod.asks or {} if pod is not None else {}
    for resource, ids in units.items():
        asked = asks.get(key[2], {}).get(resource)
        if asked is not None and asked != len(ids):
            told = f"it asks for {asked} of {resource}, the kubelet counts {len(ids)}"
            yield _finding(key, uid, Kind.OTHER_AMOUNT, told)


def _of_uncounted(look: _Look) -> Iterator[Finding]:
    """Containers that run with devices, request units, and have none in the kubelet's report."""
    ours = {offer.resource for offer in look.facts.offers}
    for one in look.facts.entries:
        pod = look.pods.get(one.uid)
        if one.container not in look.there or pod is None or _initial(look, one):
            continue
        asks = (pod.asks or {}).get(one.name, {})
        has = (look.facts.units or {}).get((pod.namespace, pod.name, one.name), {})
        lacking = sorted(
            name for name, n in asks.items() if n and name in ours and name not in has
        )
        if lacking and look.uid(pod.namespace, pod.name) == one.uid:
            told = (
                f"the kubelet counts nothing of {_some(lacking)} for it, and may give it to others"
            )
            yield _from(one, Kind.NOT_COUNTED, told)


# --- small functions ---------------------------------------------------------------------------


def _initial(look: _Look, one: Entry) -> bool:
    record = look.recorded(one)
    if not isinstance(record, Allocation):
        return True
    return all(g.phase is not Phase.MAIN for g in record.grants if g.container == one.name)


def _about(one: Running, kind: Kind, message: str) -> Finding:
    return Finding(kind, one.namespace, one.pod, one.uid, one.name, message)


def _from(one: Entry, kind: Kind, message: str) -> Finding:
    namespace, _, name = one.pod.partition("/")
    return Finding(kind, namespace, name, one.pod_uid, one.name, message)


def _finding(key: tuple[str, str, str], uid: str, kind: Kind, message: str) -> Finding:
    return Finding(kind, key[0], key[1], uid, key[2], message)


def _some(those: Iterable[str]) -> str:
    found = list(those)
    more = len(found) - _SHOWN
    return ", ".join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

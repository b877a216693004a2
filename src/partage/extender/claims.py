"""Follows ResourceClaims: takes documents, and produces events for the engine.

The engine reads an allocated claim as the fact of a bound pod (`wire.claims`). A claim that has lost its allocation
becomes an ended fact, and a deleted one is removed. Claims of other drivers are not kept. A rebuild does the same with
all listed claims; `claim_arbiter` has reserved the allocations that are not stored yet.

Only the API server releases the devices of a claim: a claim that is being deleted holds its devices until its
allocation is gone.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from partage.model.pod import Pod
from partage.scheduler.events import Event, PodGone, PodSeen
from partage.wire.claims import Claim, NodeOf, claim_uid, read_claim
from partage.wire.documents import Document, outdated

_REMEMBERED: Final = 20_000
"""The latest deleted claims to remember, so that a late event does not restore one."""


@dataclass(slots=True)
class _Known:
    """One claim that holds devices, or held some.

    Attributes:
        claim: the last reading.
        facts: the facts of the claim in the engine, by the fact's key.
        keys: the keys of all facts that the engine ever received.
    """

    document: Document
    claim: Claim
    facts: dict[str, Pod] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)


class ClaimBook:
    """Every claim that holds devices of this driver, or held some since it was first seen."""

    def __init__(self, versions: Iterator[int], problems: dict[str, str]) -> None:
        """An empty book. `versions`: numbers of events. `problems`: receives those of each claim, by kind and name."""
        self._versions, self._problems = versions, problems
        self._known: dict[str, _Known] = {}
        self._on: dict[str, set[str]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

    def held(self, uid: str) -> Collection[Pod]:
        """The current facts of a claim in the engine."""
        known = self._known.get(uid)
        return known.facts.values() if known else ()

    def version(self, uid: str) -> str:
        """The newest version of a claim that holds devices, or held some; empty if it is not known."""
        known = self._known.get(uid)
        return (known.document.metadata.resource_version or "") if known else ""

    def is_gone(self, uid: str) -> bool:
        """Whether the claim was deleted lately."""
        return uid in self._gone

    def facts(self) -> list[Pod]:
        """The current facts of all claims in the engine."""
        return [fact for known in self._known.values() for fact in known.facts.values()]

    def changed(self, document: Document, node_of: NodeOf) -> list[Event]:
        """Take in a new or changed claim."""
        uid = claim_uid(document)
        known = self._known.get(uid)
        if uid in self._gone or outdated(document, known.document if known else None):
            return []
        claim = read_claim(document, node_of)
        if known is None:
            if not claim.records and not claim.problems:
                return []
            known = self._known[uid] = _Known(document, claim)
        known.document = document
        return self._take(known, claim)

    def gone(self, document: Document) -> list[Event]:
        """Forget a deleted claim."""
        uid = claim_uid(document)
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        known = self._known.pop(uid, None)
        if known is None:
            return []
        self._stand(uid, known.claim, None)
        self._problems.pop(document.label, None)
        return [PodGone(key) for key in sorted(known.keys)]

    def renewed(self, node: str, node_of: NodeOf) -> list[Event]:
        """Read the allocations on a node again, because its cards changed."""
        events: list[Event] = []
        for uid in sorted(self._on.get(node, ())):
            known = self._known[uid]
            events += self._take(known, read_claim(known.document, node_of))
        return events

    def _take(self, known: _Known, claim: Claim) -> list[Event]:
        self._stand(claim.uid, known.claim, claim)
        known.claim = claim
        label = known.document.label
        if claim.problems:
            self._problems[label] = "; ".join(claim.problems)
        else:
            self._problems.pop(label, None)
        before, facts = known.facts, {fact.uid: fact for fact in claim.facts()}
        events: list[Event] = []
        for key, fact in before.items():
            if key not in facts:
                over = replace(fact, finished=True, record=None, version=next(self._versions))
                events.append(PodSeen(over))
        for key, fact in facts.items():
            told = before.get(key)
            if told is not None and replace(told, version=0) == fact:
                facts[key] = told
                continue
            facts[key] = replace(fact, version=next(self._versions))
            events.append(PodSeen(facts[key]))
        known.facts = facts
        known.keys |= facts.keys()
        return events

    def _stand(self, uid: str, before: Claim, after: Claim | None) -> None:
        """Update the claims of each node."""
        for node in before.records:
            mates = self._on.get(node, set())
            mates.discard(uid)
            if not mates:
                self._on.pop(node, None)
        for node in after.records if after is not None else ():
            self._on.setdefault(node, set()).add(uid)

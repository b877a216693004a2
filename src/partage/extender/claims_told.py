"""Explains in the service why a pod's ResourceClaims wait: compares their amounts with those free on each card.

Users write selectors as expressions. The service evaluates none, because all pods would wait for it, and the answer
says so. `partage explain` evaluates them in the user's own process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

import numpy as np

from partage.extender.books import Books
from partage.extender.claim_room import grants_of
from partage.extender.claimants import CLASSES
from partage.extender.explain import ended, explain
from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools
from partage.model.allocation import CLAIM, Grant
from partage.model.device import DeviceType, SliceMode
from partage.model.errors import InvalidDocument, InvalidValue
from partage.model.pod import Pod
from partage.model.quantity import NANO
from partage.model.reason import CardReason, NodeReason, ReasonCode, Refusal
from partage.placement.card import Work
from partage.placement.reasons import Finding, format_amount, refusal_of
from partage.scheduler.events import Placement
from partage.scheduler.explain import DETAILED
from partage.vendors.names import SHARE_CLASS
from partage.wire import shapes
from partage.wire.advice import NEVER, ROOM
from partage.wire.claims import allocation_of, read_claim
from partage.wire.device_requests import Ask, asked, claims_named
from partage.wire.documents import Document
from partage.wire.limits import LIMITS
from partage.wire.outcomes import grant_document

Known = Callable[[str, str, str], Document | None]
"""Gives the newest document of a kind, namespace and name; None if there is none."""
_FEW: Final = 10
"""Nodes in an answer about a pod whose namespace has used its share of search for now."""
_MOST_ASKS: Final = LIMITS["containers that ask for devices"]
"""Requests and alternatives of a pod that are compared with cards; a pod may name claims with thousands of them."""
_LOOKS: Final = 400
"""Limit of requests times nodes that are compared card by card, if there are many requests."""


@dataclass(frozen=True, slots=True)
class _Want:
    """One request of a waiting claim, as its alternatives."""

    claim: str
    asks: tuple[Ask, ...]


def unknown(_kind: str, _namespace: str, _name: str) -> None:
    """Find no document."""
    return


def explained(
    books: Books, namespace: str, name: str, known: Known, now: float
) -> dict[str, Any] | None:
    """The explanation of a pod, with the ResourceClaims that it names; see `explain`.

    Args:
        known: finds the pod and its claims.
        now: see `explain`.
    """
    document = known("Pod", namespace, name)
    named = claims_named(document) if document is not None else []
    if document is None or not named:
        return explain(books, namespace, name, now=now)
    claims = {one: known("ResourceClaim", namespace, one) for _, one, _ in named if one}
    held, wants, many, missing, strange = [], list[_Want](), 0, "", dict[str, None]()
    for own, claim, template in named:
        found = claims.get(claim)
        if found is None:
            what = f"ResourceClaim {claim}" if claim else f"the claim of template {template}"
            missing = missing or f"{what}, which the pod names as {own}, is not there"
            continue
        record = list(_held(books, found))
        held += record
        if not record and many <= _MOST_ASKS:
            try:
                mine, others = _requests(found)
                wants += mine
                many = sum(len(want.asks) for want in wants)
                strange |= dict.fromkeys(others)
            except InvalidValue as error:
                missing = missing or f"claim {found.name}: {error}"
    nodes = {node for node, _ in held}
    wants = _first(wants)

    def decide(pod: Pod, work: Work) -> Placement | Refusal:
        if missing:
            return Refusal(ReasonCode.CLAIM_UNREADY, missing)
        fault = pod.request.fault
        if fault is not None and fault.code is ReasonCode.SEARCH_LIMIT:
            return Refusal(fault.code, fault.message)
        return _decision(books, pod, wants, nodes, work)

    try:
        entry = books.cluster_cache.pod_named(namespace, name)
        entry = entry or books.cluster_cache.translation.read(document)
    except InvalidDocument:
        return explain(books, namespace, name, now=now)
    told = explain(books, namespace, name, now=now, claimant=(entry, decide))
    judged = any(ask.selectors for want in wants for ask in want.asks)
    notes = ["the service judges no selectors of claims; partage explain without it does"] * judged
    if many > _MOST_ASKS:
        notes.append(f"the service looks at the first {_MOST_ASKS} requests of the pod's claims")
    if strange and told:
        told |= {"fits_now_on": None}
        classes = " and ".join(list(strange)[:_FEW])
        notes.append(
            f"the service does not judge claims of class {classes}; partage explain without it does"
        )
    asks = ((want.claim, ask) for want in wants for ask in want.asks)
    return told and with_claims(books.engine.ledger, told, document, held, asks, notes)


def with_claims(
    ledger: Ledger,
    told: Mapping[str, Any],
    document: Document,
    held: Iterable[tuple[str, Grant]],
    asks: Iterable[tuple[str, Ask]],
    notes: Iterable[str],
) -> dict[str, Any]:
    """An explanation with the grants and requests of the pod's claims, and how the pod ended.

    Args:
        ledger: the ledger with the cards of the explanation.
        document: the pod, because the books do not keep a pod with claims alone.
        held: grants of the claims, with the node of each.
        asks: requests, with the claim's name of each.
        notes: further notes.
    """
    asks, reason = list(asks), told["reason"]
    never = reason is not None and reason["code"] in ROOM and _never(ledger, asks)
    return {
        **told,
        "next": NEVER if never else told["next"],
        "ended": ended(document) if told["state"] == "finished" else None,
        "allocations": [*told["allocations"], *(grant_document(one, node) for node, one in held)],
        "request": [*told["request"], *(_asked(claim, ask) for claim, ask in asks)],
        "notes": [*told["notes"], *notes],
    }


def _never(ledger: Ledger, asks: Iterable[tuple[str, Ask]]) -> bool:
    """Whether some request asks for shares that no node's cards have even when they are idle."""
    plane, requests = ledger.planes[DeviceType.GPU], dict[tuple[str, str], bool]()
    for claim, ask in asks:
        large = False
        if ask.device_class == SHARE_CLASS:
            fits = (plane.core_total >= _cores(ask)) & (plane.memory_total >= _memory(ask))
            large = not ((fits.sum(axis=0) >= (ask.count or 1)) & ledger.present).any()
        key = claim, ask.name.partition("/")[0]  # the request of this alternative
        requests[key] = requests.get(key, True) and large
    return any(requests.values())


def _asked(claim: str, ask: Ask) -> dict[str, Any]:
    """A request of a claim, in the shape of other requests."""
    return {
        "protocol": CLAIM,
        "dialect": f"{claim}, request {ask.name}: {ask.device_class}",
        "containers": [],
        "type": "gpu",
        "count": ask.count or None,
        "core_milli": _cores(ask),
        "memory_bytes": _memory(ask),
        "memory_milli": 0,
        "whole": False,
    }


def _cores(ask: Ask) -> int:
    return ask.capacity.get("cores", 0) * 10 // NANO


def _memory(ask: Ask) -> int:
    return ask.capacity.get("memory", 0) // NANO


def _held(books: Books, claim: Document) -> Iterator[tuple[str, Grant]]:
    for fact in read_claim(claim, books.cluster_cache.as_read).facts():
        yield from ((fact.node or "", grant) for grant in grants_of(fact))


def _requests(claim: Document) -> tuple[list[_Want], list[str]]:
    """A claim's requests for devices of this driver; and the classes of a waiting one that are not Partage's own.

    The service does not know which devices those select.
    """
    shape = claim.shape
    requests = asked(shape.spec if isinstance(shape, shapes.ResourceClaim) else None).requests
    wants = [
        _Want(claim.name, asks)
        for asks in requests
        if any(ask.device_class in CLASSES for ask in asks)
    ]
    classes = [ask.device_class for asks in requests for ask in asks]
    return wants, [] if allocation_of(claim) else [one for one in classes if one not in CLASSES]


def _first(wants: Iterable[_Want]) -> list[_Want]:
    """The first requests, as many as are compared with cards."""
    found, left = list[_Want](), _MOST_ASKS
    for want in wants:
        if left:
            found.append(replace(want, asks=want.asks[:left]))
            left -= len(found[-1].asks)
    return found


def _decision(
    books: Books, pod: Pod, wants: list[_Want], only: set[str], work: Work
) -> Placement | Refusal:
    """The place with room for the amounts of the pod's claims, or the shortages of cards; changes nothing."""
    ledger = books.engine.ledger
    among: Bools = np.zeros(len(ledger.present), np.bool_)
    reasons: list[tuple[float, str, NodeReason]] = []
    asks = sum(len(want.asks) for want in wants)
    most = _FEW if work.few else max(_FEW, min(DETAILED, _LOOKS // max(asks, 1)))
    eligible = books.engine.eligibility(pod, work)
    for index in _nearest(books, wants, most, eligible.allowed):
        name = ledger.node_at(index).name
        if only - {name}:
            told = f"a claim of the pod is allocated on node {', '.join(sorted(only - {name}))}"
            reasons.append((9.0, name, NodeReason(ReasonCode.NODE_AFFINITY, told)))
            continue
        cards = ledger.cards(DeviceType.GPU, index)
        work.done += len(cards) * asks
        # Of each request the alternative that comes closest, and of these the one that is farthest.
        near = (
            min((_short(cards, want.claim, ask) for ask in want.asks), key=itemgetter(0))
            for want in wants
        )
        worst = max(near, key=itemgetter(0), default=None)
        if worst is None or not worst[0]:
            among[index] = True
        else:
            reasons.append((worst[0], name, worst[1]))
    if among.any():
        return books.engine.evaluate(pod, among=among, work=work)
    for index in np.flatnonzero(ledger.present & ~eligible.allowed)[:most].tolist():
        why = eligible.objection(ledger, index)
        if why is not None:
            reasons.append((10.0, ledger.node_at(index).name, why))
    reasons.sort(key=itemgetter(0))
    findings: dict[ReasonCode, Finding] = {}
    for _, name, reason in reasons:
        findings.setdefault(reason.code, Finding()).add(name, reason)
    return refusal_of(findings, {name: one for _, name, one in reasons}, len(ledger.index))


def _nearest(books: Books, wants: list[_Want], most: int, allowed: Bools) -> list[int]:
    """The nodes among `allowed` whose cards come closest to the requests, `most` of them at most."""
    ledger = books.engine.ledger
    plane = ledger.planes[DeviceType.GPU]
    near = np.full(plane.open.shape, np.inf)
    for ask in (ask for want in wants for ask in want.asks if ask.device_class == SHARE_CLASS):
        near = np.minimum(near, plane.core_free / max(_cores(ask), 1))
        near = np.minimum(near, plane.memory_free / max(_memory(ask), 1))
    best = np.where(plane.open, near, -1.0).max(axis=0, initial=-1.0)
    present = np.flatnonzero(ledger.present & allowed)
    order = np.argsort(-best[present], kind="stable")[:most]
    found: list[int] = present[order].tolist()
    return found


def _short(cards: list[Card], claim: str, ask: Ask) -> tuple[float, NodeReason]:
    """The distance of a node's cards from a request, 0 if enough cards fit, and the reason."""
    misses = [one for card in cards if (one := _missed(card, ask)) is not None]
    misses.sort(key=itemgetter(0))
    count = ask.count or 1
    fitting = len(cards) - len(misses)
    whose = f"claim {claim}, request {ask.name}"
    if fitting >= count:
        return 0.0, NodeReason(ReasonCode.INSUFFICIENT_CARDS, "")
    if not misses:
        text = f"{whose}: the node has {fitting} cards, {count} asked"
        return 9.0, NodeReason(ReasonCode.INSUFFICIENT_CARDS, text, count, fitting)
    far, nearest = misses[0]
    text = f"{whose}: nearest gpu-{nearest.minor}: {nearest.detail}"
    asked_, free = nearest.asked, nearest.free
    every = tuple(one for _, one in misses)
    return far, NodeReason(nearest.code, text, asked_, free, nearest.minor, every)


def _missed(card: Card, ask: Ask) -> tuple[float, CardReason] | None:
    """A card's distance and shortage for a request; None if it fits. A request without amounts takes the rest."""
    minor = card.device.minor
    if card.closed is not None and (
        card.closed is not ReasonCode.CARD_NOT_IDLE or not card.tenants
    ):
        return 4.0, CardReason(card.closed, minor, detail=card.closed_detail or card.closed.value)
    if ask.device_class != SHARE_CLASS:
        if card.takes_instances:
            return None
        return 3.0, CardReason(
            ReasonCode.MIG_PLACEMENT, minor, detail="no instance can be made on it now"
        )
    if card.closed is not None or card.device.mode is SliceMode.MIG or card.occupied:
        told = "it is given as a whole, or by instances"
        return 3.0, CardReason(ReasonCode.CARD_NOT_IDLE, minor, detail=told)
    short = [
        (max(free, 0) / wants, code, wants, max(free, 0), what)
        for code, wants, free, what in (
            (ReasonCode.INSUFFICIENT_CORE, max(_cores(ask), 1), card.core_free, "cores"),
            (ReasonCode.INSUFFICIENT_MEMORY, max(_memory(ask), 1), card.memory_free, "memory"),
        )
        if wants > free
    ]
    if short:
        part, code, wants, left, _ = min(short)
        texts = [
            f"{what} {format_amount(of, much, up=True)} asked, {format_amount(of, rest)} left"
            for _, of, much, rest, what in short
        ]
        most = [f"{format_amount(of, rest)} of {what}" for _, of, _, rest, what in short if rest]
        if len(most) == len(short):
            texts.append(f"fits with at most {' and '.join(most)}")
        return 2.0 - part, CardReason(code, minor, wants, left, "; ".join(texts))
    if card.slots_free < 1:
        return 2.0, CardReason(
            ReasonCode.INSUFFICIENT_SLOTS, minor, 1, 0, "as many sharers as it may have"
        )
    return None

"""Waiting ResourceClaims: which devices Kubernetes' allocator would give them, and why it gives none.

The allocator takes the first devices that fit, in the order of the ResourceSlices. The API server does not store an
allocation for which our ledger has no room. This module follows both over documents. It knows for each device which
rule keeps it from which request, with numbers, and the engine places the pod where its claims can be allocated. If the
documents contain no slice of this driver, it takes the slices that the nodes' agents would publish.

It does not follow kube-scheduler's own scores between several nodes, devices bound to nodes by labels, and binding
conditions.

Source: k8s.io/dynamic-resource-allocation v0.36.4 (`structured/internal`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any, Final

import msgspec
import numpy as np

from partage.agent.discovery.found import Inventory
from partage.agent.dra.slices import Offered, resource_slices
from partage.agent.dra.withdrawn import HELD
from partage.extender.claim_room import reserved
from partage.model.allocation import Grant
from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.quantity import NANO, brief
from partage.model.reason import CardReason, NodeReason, ReasonCode, Refusal
from partage.placement.card import Work
from partage.placement.reasons import Finding, format_amount, refusal_of
from partage.scheduler.engine import Engine
from partage.scheduler.events import HoldEnded, Placement, PodSeen
from partage.scheduler.explain import DETAILED
from partage.vendors.names import DRA_DRIVER, MIG_CLASS, SHARE_CLASS
from partage.wire import shapes
from partage.wire.claims import (
    DEVICE,
    allocation_of,
    held_devices,
    read_claim,
    results_of,
    spec_of,
)
from partage.wire.device_pools import CounterKey, DeviceKey, Offer, class_selectors, nano, pools
from partage.wire.device_requests import CLAIM_KINDS, MOST, Ask, Asked, asked, claims_named
from partage.wire.device_selectors import MOST_STEPS, NoLibrary, Selectors
from partage.wire.device_view import Failure
from partage.wire.documents import Document

OWN_CLASSES: Final = {
    name: (
        f'device.driver == "{DRA_DRIVER}" && device.attributes["{DRA_DRIVER}"].kind == "{kind}"',
    )
    for name, kind in ((SHARE_CLASS, "share"), (MIG_CLASS, "mig"))
}
"""The DeviceClasses as the chart creates them."""
_MOST_TRIES: Final = 20_000
"""Devices checked on one node for one pod, beyond one check for each wanted one."""
_MOST_OF_A_POD: Final = 50_000
"""The same for all nodes together; each node still gets a simple check."""
_LOOKS_EACH: Final = 2
"""Looks at each device of all nodes that every pod may take: one to serve it, one to say why not."""
MOST_LOOKS: Final = 200_000
"""Looks beyond these for all pods of a namespace: a few seconds of one processor."""
_ROOM: Final = 8
"""Looks that it takes to ask the books for room."""
_MOST_WAYS: Final = 64
"""The most ways to combine the alternatives of a pod's requests."""
_EXCLUDED: Final = 10.0
"""The distance of a node that the pod may not use; the largest."""
_CODES: Final = {
    "cores": (ReasonCode.INSUFFICIENT_CORE, NANO // 10),
    "memory": (ReasonCode.INSUFFICIENT_MEMORY, NANO),
    "sharers": (ReasonCode.INSUFFICIENT_SLOTS, NANO),
}
"""Code of a short amount, and billionths in the code's unit."""


@dataclass(frozen=True, slots=True)
class _Miss:
    """Why a device does not serve a request; the least `far` came closest.

    `ends`: Kubernetes' allocator tries no other device then.
    """

    far: float
    code: ReasonCode
    why: str
    asked: int | None = None
    free: int | None = None
    fits: str = ""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Allowance:
    """The extra work for all pods of a namespace: steps of selectors, and looks; `spent` has both by namespace."""

    steps: int = field(default_factory=lambda: MOST_STEPS)
    looks: int = field(default_factory=lambda: MOST_LOOKS)
    spent: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class _Use:
    """The allocated amounts of all pools."""

    devices: Counter[DeviceKey] = field(default_factory=Counter)
    amounts: Counter[tuple[DeviceKey, str]] = field(default_factory=Counter)
    counters: Counter[CounterKey] = field(default_factory=Counter)

    def add(self, offer: Offer, amounts: Mapping[str, int], sign: int) -> None:
        """Add or remove one allocation; a device takes its counters once, however many allocations have it."""
        before = self.devices[offer.key]
        self.devices[offer.key] += sign
        if not before or before + sign == 0:
            for counter, amount in offer.counters.items():
                self.counters[counter] += sign * amount
        for name, amount in amounts.items():
            self.amounts[offer.key, name] += sign * amount


@dataclass(frozen=True, slots=True)
class _Claim:
    """A waiting claim, with its requests."""

    document: Document
    asked: Asked

    @property
    def key(self) -> str:
        return f"{self.document.namespace}/{self.document.name}"


@dataclass(frozen=True, slots=True)
class _Slot:
    """One wanted device."""

    claim: int
    ask: Ask
    only: Offer | None = None


_Chosen = list[tuple[_Slot, Offer, dict[str, int]]]
_Alone = dict[int, tuple[bool, Sequence[tuple[Ask, Offer, _Miss]]]]
"""Whether a request has a device on a node, and the devices at which Kubernetes' allocator ends."""


class ClaimAllocator:
    """Allocates claims as Kubernetes would, over documents and an engine's ledger; `selectors` is None until needed."""

    def __init__(
        self,
        engine: Engine,
        documents: Iterable[Document],
        selectors: Selectors | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """Read the allocated devices.

        Args:
            engine: with the nodes, pods and allocated claims of the same documents.
            documents: those of `CLAIM_KINDS` count.
            selectors: those of an earlier allocator, with their results; None makes new ones if they are needed.
            allowance: what is left of an earlier allocator's; None makes a new one.
        """
        by: dict[str, list[Document]] = defaultdict(list)
        for document in documents:
            if document.kind in CLAIM_KINDS:
                by[document.kind].append(document)
        self._engine = engine
        self._claims = {(one.namespace, one.name): one for one in by["ResourceClaim"]}
        self._classes = OWN_CLASSES | class_selectors(by["DeviceClass"])
        slices = by["ResourceSlice"]
        notes: list[str] = []
        if not any(_driver(one) == DRA_DRIVER for one in slices):
            made = list(self._published())
            if made:
                notes.append(
                    f"no ResourceSlice of {DRA_DRIVER} is given: those that agents with --dra would publish are taken, "
                    "without attributes that only the cards' driver knows"
                )
            slices = [*slices, *made]
        self._pools = pools(slices)
        self.notes: tuple[str, ...] = (*notes, *self._pools.notes)
        self._by_node: dict[str | None, list[Offer]] = defaultdict(list)
        for offer in self._pools.offers:
            self._by_node[offer.node].append(offer)
        self._offers = {offer.key: offer for offer in self._pools.offers}
        self._use = _Use()
        for claim in by["ResourceClaim"]:
            self._count(claim)
        self.selectors = selectors
        self._allowance = allowance or Allowance()
        self._looks = 0
        self._tries = 0
        self._ended: list[tuple[Ask, Offer, _Miss]] = []

    def _published(self) -> Iterator[Document]:
        """Slices that the agents of known nodes would publish."""
        for node in self._engine.ledger.nodes:
            if node is None:
                continue
            for body in resource_slices(node, Inventory(), "", 1, Offered(instances=True)):
                shape = msgspec.convert(body, shapes.ResourceSlice)
                yield Document("ResourceSlice", "agents", 1, shape)

    def _count(self, claim: Document) -> None:
        for result in results_of(claim):
            offer = self._offers.get(_key(result)) if isinstance(result, Mapping) else None
            if offer is not None and not result.get("adminAccess"):
                self._use.add(offer, _consumed(result), 1)

    def _node(self, name: str) -> Node | None:
        ledger = self._engine.ledger
        index = ledger.index.get(name)
        return None if index is None else ledger.nodes[index]

    # --- one pod -----------------------------------------------------------------------------

    def decide(self, pod: Pod, document: Document, *, keep: bool) -> Placement | Refusal:
        """The place of a pod and its claims, which is taken only with `keep`, or why they wait."""
        fault = pod.request.fault
        if fault is not None:
            return Refusal(fault.code, fault.message)
        found = self._wanted(document)
        if isinstance(found, Refusal):
            return found
        waiting, at = found
        excluded = dict(self._excluded(pod))
        nodes = [name for name in self._engine.ledger.index if name not in excluded]
        with self._judging(document.namespace):
            chosen, reasons = self._open(waiting, at, nodes)
            reasons |= {name: (_EXCLUDED, why) for name, why in excluded.items()}
            return self._placed(pod, document, waiting, list(chosen), reasons, keep=keep)

    def places(
        self, document: Document, nodes: Iterable[str]
    ) -> Mapping[str, Mapping[str, list[dict[str, Any]]]] | Refusal:
        """The nodes among `nodes` with devices for a pod's claims: by node, then by name of each waiting claim."""
        found = self._wanted(document)
        if isinstance(found, Refusal):
            return found
        waiting, at = found
        with self._judging(document.namespace):
            chosen, reasons = self._open(waiting, at, nodes)
        if not chosen:
            return _refusal(reasons)
        return {
            node: {
                claim.document.name: [_result(*one) for one in some if one[0].claim == number]
                for number, claim in enumerate(waiting)
            }
            for node, some in chosen.items()
        }

    def held(self, document: Document) -> Iterator[tuple[str, Grant]]:
        """This driver's devices that a pod's claims hold, with the node."""
        for claim in self.named(document):
            for fact in read_claim(claim, self._node).facts():
                grants = fact.record.grants if fact.record else ()
                yield from ((fact.node or "", one) for one in grants)

    def asks(self, document: Document) -> Iterator[tuple[str, Ask]]:
        """The requests of a pod's claims, alternatives included; of readable claims only."""
        for claim in self.named(document):
            try:
                wants = asked(spec_of(claim))
            except InvalidValue:
                continue
            yield from ((claim.name, ask) for some in wants.requests for ask in some)

    def named(self, document: Document) -> Iterator[Document]:
        """The claims that a pod names, with their allocations."""
        for _, claim_name, _ in claims_named(document):
            claim = self._claims.get((document.namespace, claim_name))
            if claim is not None:
                yield claim

    def _excluded(self, pod: Pod) -> Iterator[tuple[str, NodeReason]]:
        """The nodes that the pod may not use, whatever devices they have; their devices are not compared."""
        ledger, eligible = self._engine.ledger, self._engine.eligibility(pod, Work())
        for name, index in ledger.index.items():
            why = eligible.objection(ledger, index)
            if why is not None:
                yield name, why

    @contextmanager
    def _judging(self, namespace: str) -> Iterator[None]:
        """Within it, a pod takes at most half of the extra work that is left to its namespace.

        So a namespace's pods together cost what one may, however many name costly claims.
        """
        most = self._allowance
        steps, looks = most.spent.get(namespace, (0, 0))
        few, each = (most.steps - steps) // 2, _LOOKS_EACH * len(self._pools.offers)
        self._looks = given = each + (most.looks - looks) // 2
        if self.selectors is not None:
            self.selectors.begin(few)
        yield
        if self.selectors is not None:
            steps += few - max(self.selectors.left, 0)
        extra = given - max(self._looks, 0) - each
        most.spent[namespace] = steps, looks + max(extra, 0)

    def _open(
        self, waiting: Sequence[_Claim], at: Sequence[tuple[str, str]], nodes: Iterable[str]
    ) -> tuple[dict[str, _Chosen], dict[str, tuple[float, NodeReason]]]:
        """The nodes with devices for the claims, and the devices; and why the other nodes have none."""
        open_: dict[str, _Chosen] = {}
        reasons: dict[str, tuple[float, NodeReason]] = {}
        for name in nodes:
            elsewhere = next((one for one in at if one[0] != name), None)
            if elsewhere is not None:
                told = f"claim {elsewhere[1]} is allocated on node {elsewhere[0]}"
                reasons[name] = 9.0, NodeReason(ReasonCode.NODE_AFFINITY, told)
                continue
            chosen = self._on(name, waiting)
            if isinstance(chosen, list):
                open_[name] = chosen
            else:
                reasons[name] = chosen
        return open_, reasons

    def _placed(
        self,
        pod: Pod,
        document: Document,
        waiting: Sequence[_Claim],
        open_: list[str],
        reasons: dict[str, tuple[float, NodeReason]],
        *,
        keep: bool,
    ) -> Placement | Refusal:
        """The engine's choice among nodes with room for the claims, including the pod's own devices."""
        engine = self._engine
        while open_:
            among = np.zeros(len(engine.ledger.present), np.bool_)
            among[[engine.ledger.index[name] for name in open_]] = True
            decision = engine.hold(pod, among)
            if isinstance(decision, Refusal):
                held = {name: (5.0, why) for name, why in decision.nodes.items() if name in open_}
                return _refusal({**reasons, **held}) if held else decision
            node = decision.allocation.node
            chosen = self._on(node, waiting)
            if isinstance(chosen, list):
                grants = [*decision.allocation.grants]
                if keep:
                    engine.place_on(pod, node)
                    self._allocated(waiting, chosen)
                else:
                    engine.handle(HoldEnded(pod.uid))
                # Includes claims that were allocated before, which several pods may share.
                grants += [grant for at, grant in self.held(document) if at == node]
                place = msgspec.structs.replace(decision.allocation, grants=tuple(grants))
                return Placement(place, decision.notes)
            engine.handle(HoldEnded(pod.uid))
            open_.remove(node)
            reasons[node] = chosen
        return _refusal(reasons)

    def _wanted(self, document: Document) -> tuple[list[_Claim], list[tuple[str, str]]] | Refusal:
        """The pod's waiting claims, and the nodes of the allocated ones, with their keys; prepares to judge them."""
        waiting: list[_Claim] = []
        at: list[tuple[str, str]] = []
        for name, claim_name, template_name in claims_named(document):
            space = document.namespace
            claim = self._claims.get((space, claim_name))
            if claim is None:
                missing = (
                    f"ResourceClaimTemplate {space}/{template_name}"
                    if template_name
                    else f"ResourceClaim {space}/{claim_name}"
                )
                return _unready(f"{missing}, which the pod names as {name}, is not there")
            node = _node_of(claim)
            if node:
                at.append((node, f"{space}/{claim.name}"))
                continue
            if allocation_of(claim):
                continue  # allocated by other drivers, for any node
            try:
                wants = asked(spec_of(claim))
            except InvalidValue as error:
                return _unready(f"claim {space}/{claim.name}: {error}")
            for ask in (one for some in wants.requests for one in some):
                if ask.device_class not in self._classes:
                    told = f"request {ask.name}: DeviceClass {ask.device_class or '(none)'} is not there"
                    return _unready(f"claim {space}/{claim.name}: {told}")
            waiting.append(_Claim(claim, wants))
        self._tries = _MOST_OF_A_POD
        if self.selectors is None and waiting:
            try:
                self.selectors = Selectors()
            except NoLibrary as error:
                return _unready(str(error))
        return waiting, at

    def _allocated(self, waiting: Sequence[_Claim], chosen: _Chosen) -> None:
        """Take the devices, and send the allocation to the engine."""
        for number, claim in enumerate(waiting):
            results = [_result(*one) for one in chosen if one[0].claim == number]
            document = _with(claim.document, results)
            self._claims[document.namespace, document.name] = document
            self._count(document)
            for fact in read_claim(document, self._node).facts():
                self._engine.handle(PodSeen(fact))

    # --- one node ----------------------------------------------------------------------------

    def _on(self, node: str, waiting: Sequence[_Claim]) -> _Chosen | tuple[float, NodeReason]:
        """The devices that the claims get on a node; else why they get none, and the distance from it."""
        if not waiting:
            return []
        if self._looks <= 0:
            return _OUT_OF_LOOKS
        offers = [*self._by_node.get(node, ()), *self._by_node.get(None, ())]
        alone: _Alone = {}
        ways = product(*(some for claim in waiting for some in claim.asked.requests))
        numbers = [n for n, claim in enumerate(waiting) for _ in claim.asked.requests]
        tries = [max(0, min(_MOST_TRIES, self._tries))]
        self._ended.clear()
        for way in islice(ways, _MOST_WAYS):
            slots = self._slots(list(zip(numbers, way, strict=True)), offers)
            ended = len(self._ended)
            if not self._each_alone(slots, offers, alone):
                continue
            del self._ended[ended:]  # devices that earlier requests get are not looked at
            if max(Counter(one.claim for one in slots).values(), default=0) > MOST:
                continue  # no claim gets as many
            before = tries[0]
            tries[0] += len(slots) * len(offers)
            found = self._search(node, waiting, slots, offers, [], tries)
            tries[0] = min(tries[0], before)
            self._tries -= before - tries[0]
            if self._ended:
                return _ended(*self._ended[0])
            if found is not None:
                return found
            if tries[0] < 0 or self._looks < 0:
                break
        limit = ""
        if tries[0] < 0:
            limit = f"in {_MOST_TRIES} tries"
        elif next(ways, None) is not None:
            limit = f"in {_MOST_WAYS} combinations of their alternatives"
        return self._why(node, waiting, offers, limit)

    def _each_alone(self, slots: Sequence[_Slot], offers: Sequence[Offer], known: _Alone) -> bool:
        """Whether every slot has a device by itself; if not, no order of them helps, and none is searched for."""
        asks = {id(one.ask): one.ask for one in slots if one.only is None}
        fixed = [(one.ask, one.only) for one in slots if one.only is not None]
        return all(self._miss(*one) is None for one in fixed) and all(
            self._alone(ask, offers, known) for ask in asks.values()
        )

    def _alone(self, ask: Ask, offers: Sequence[Offer], known: _Alone) -> bool:
        """Whether a request has a device by itself; each is looked for once on a node, in however many combinations."""
        if id(ask) in known:
            self._ended += known[id(ask)][1]
        else:
            before = len(self._ended)
            found = any(self._miss(ask, offer) is None for offer in offers)
            known[id(ask)] = found, self._ended[before:]
        return known[id(ask)][0]

    def _slots(self, asks: list[tuple[int, Ask]], offers: Sequence[Offer]) -> list[_Slot]:
        slots: list[_Slot] = []
        for claim, ask in asks:
            if ask.count:
                slots += [_Slot(claim, ask)] * ask.count
                continue
            # A request for all devices means those with room for it, and needs at least one.
            self._looks -= len(offers)
            every = [
                one
                for one in offers
                if self._chosen(ask, one) is None and not any(self._short(ask, one))
            ]
            slots += [_Slot(claim, ask, one) for one in every] or [_Slot(claim, ask)]
        return slots

    def _search(  # the state of one search
        self,
        node: str,
        waiting: Sequence[_Claim],
        slots: Sequence[_Slot],
        offers: Sequence[Offer],
        chosen: _Chosen,
        tries: list[int],
    ) -> _Chosen | None:
        """The first way that gives every slot a device; None if there is none, or it was not found within the limit."""
        if len(chosen) == len(slots):
            return list(chosen)
        slot = slots[len(chosen)]
        # Devices of one request differ, and come in the order of trials; another request may share one of them.
        begun = offers.index(chosen[-1][1]) + 1 if chosen and chosen[-1][0] is slot else 0
        mine = {one[1].key for one in chosen if one[0].claim == slot.claim}
        for offer in (slot.only,) if slot.only is not None else offers[begun:]:
            tries[0] -= 1
            if tries[0] < 0 or self._looks < 0:
                return None
            if offer.key in mine and not offer.view.shared:
                continue
            if self._miss(slot.ask, offer) is not None:
                continue
            amounts = _amounts(slot.ask, offer)
            entry = slot, offer, amounts
            if not _agree(waiting[slot.claim].asked, [*chosen, entry], slot.claim):
                continue
            if self._room(node, waiting[slot.claim], [*chosen, entry], slot.claim):
                continue
            self._use.add(offer, amounts, 1)  # within one search, access for administrators counts
            chosen.append(entry)
            found = self._search(node, waiting, slots, offers, chosen, tries)
            chosen.pop()
            self._use.add(offer, amounts, -1)
            if found is not None:
                return found
        return None

    def _room(self, node: str, claim: _Claim, chosen: _Chosen, number: int) -> str:
        """Why the ledger has no room for a claim's devices; empty if it has, or does not count them."""
        self._looks -= _ROOM
        results = [
            _result(*one) for one in chosen if one[0].claim == number and not one[0].ask.admin
        ]
        there = self._node(node)
        if not any(one["driver"] == DRA_DRIVER for one in results) or not (
            there and there.devices
        ):
            return ""  # only slices describe the node's cards
        read = read_claim(_with(claim.document, results), self._node)
        facts = [one for one in read.facts() if one.node == node]
        if read.problems or not facts:
            return read.problems[0] if read.problems else ""
        fact = replace(facts[0], uid=f"{facts[0].uid}?")
        why = reserved(self._engine, fact, self._engine.handle)
        if not why:
            self._engine.handle(HoldEnded(fact.uid))
        return why

    # --- one device --------------------------------------------------------------------------

    def _chosen(self, ask: Ask, offer: Offer) -> _Miss | None:
        """As `_unselected`, for a device that Kubernetes' allocator comes to."""
        missed = self._unselected(ask, offer)
        if missed is not None and missed.ends:
            self._ended.append((ask, offer, missed))
        return missed

    def _unselected(self, ask: Ask, offer: Offer) -> _Miss | None:
        """The selector that is not true for a device; None if all are."""
        assert self.selectors is not None  # noqa: S101 # made before anything is judged
        given = ((8.0, self._classes[ask.device_class]), (6.0, ask.selectors))
        for far, some in given:
            for expression in some:
                answer = self.selectors.judge(expression, offer.view)
                if answer is True:
                    continue
                whose = "of the class" if far > 7 else "of the request"
                said = "is false" if answer is False else f"has no answer: {answer}"
                short = expression if len(expression) <= 120 else f"{expression[:120]}…"
                return _Miss(
                    far,
                    ReasonCode.SELECTOR_MISMATCH,
                    f"selector {whose} {said}: {short}",
                    ends=isinstance(answer, Failure),
                )
        return None

    def _miss(self, ask: Ask, offer: Offer) -> _Miss | None:
        """Why a device does not serve a request now; None if it does."""
        self._looks -= 1
        held = self._use.devices[offer.key] and not offer.view.shared and not ask.admin
        missed = self._unselected(ask, offer) if held else self._chosen(ask, offer)
        if missed is not None:
            return missed
        for taint in offer.taints:
            if not taint.repels or any(one.tolerates(taint) for one in ask.tolerations):
                continue
            if taint.value == HELD:
                return _Miss(3.0, ReasonCode.CARD_NOT_IDLE, "pods hold all of it")
            fits = f"with a toleration of {taint.key}"
            return _Miss(4.0, ReasonCode.TAINT, f"taint {taint} is not tolerated", fits=fits)
        # Access for administrators is not counted; it is granted if the allocator would find room for a share.
        if held:
            return _Miss(3.0, ReasonCode.CARD_NOT_IDLE, "another claim holds it")
        short = list(self._short(ask, offer))
        if short:
            fits = (
                " and ".join(one.fits for one in short) if all(one.fits for one in short) else ""
            )
            told = "; ".join(one.why for one in short)
            most = max(short, key=lambda one: one.far)
            return replace(most, why=told, fits=f"with at most {fits}" if fits else "")
        if self._use.devices[offer.key] and offer.view.shared:
            return None  # it has its counters already
        for counter, amount in offer.counters.items():
            left = self._pools.counters.get(counter, 0) - self._use.counters[counter]
            if amount > left:
                told = f"it needs {amount // NANO} of counter {counter[3]} of {counter[2]}, {max(left, 0) // NANO} left"
                return _Miss(2.0, ReasonCode.MIG_PLACEMENT, told)
        return None

    def _short(self, ask: Ask, offer: Offer) -> Iterator[_Miss]:
        """Amounts of which a device has too little."""
        for name in ask.capacity.keys() - offer.capacity.keys():
            yield _Miss(5.0, ReasonCode.INSUFFICIENT_DEVICES, f"it has no capacity {name}")
        for name, capacity in offer.capacity.items():
            wants = ask.capacity.get(name)
            used = self._use.amounts[offer.key, name] if offer.view.shared else 0
            left = max(capacity.value - used, 0)
            takes = capacity.share(wants) if offer.view.shared else wants or 0
            if takes is not None and takes <= left:
                continue
            code, unit = _CODES.get(name, (ReasonCode.INSUFFICIENT_DEVICES, NANO))
            much = wants if takes is None and wants is not None else takes or 0
            text = format_amount(code, much // unit, up=True)
            over = "" if takes is not None else ", more than one share may have"
            whole = wants is None and takes == capacity.value
            also = f" (all of it, as the request names no {name})" if whole else ""
            free = format_amount(code, left // unit)
            yield _Miss(
                1.0 + min(1 - left / much, 1.0) if much else 2.0,
                code,
                f"{name} {text} asked{also}, {free} left{over}",
                much // unit,
                left // unit,
                f"{free} of {name}" if left else "",
            )

    # --- why ---------------------------------------------------------------------------------

    def _why(
        self, node: str, waiting: Sequence[_Claim], offers: Sequence[Offer], limit: str
    ) -> tuple[float, NodeReason]:
        """Why the claims get no devices; `limit` says where the search for them ended, if it did not end by itself."""
        if not offers:
            return 9.0, NodeReason(
                ReasonCode.INSUFFICIENT_CARDS, "the node has no ResourceSlice", free=0
            )
        worst: tuple[float, NodeReason] | None = None
        for claim in waiting:
            for some in claim.asked.requests:
                if self._looks < 0:
                    return _OUT_OF_LOOKS if worst is None else worst
                told = min(
                    (self._asked_of(node, claim, ask, offers) for ask in some),
                    key=lambda one: one[0],
                )
                if told[0] > 0 and (worst is None or told[0] > worst[0]):
                    worst = told
        if worst is not None:
            return worst
        if limit:
            told_so = f"no way was found to give its claims devices together {limit}"
            return 5.0, NodeReason(ReasonCode.SEARCH_LIMIT, told_so)
        bounds = [bound.attribute for claim in waiting for bound in claim.asked.constraints]
        beside = f"with constraints on {', '.join(dict.fromkeys(bounds))}" if bounds else ""
        alone = "each request of its claims finds devices by itself, not all together"
        told_so = f"{alone} {beside}" if beside else alone
        return 1.0, NodeReason(ReasonCode.JOINT_ALLOCATION, told_so, brief=beside)

    def _asked_of(
        self, node: str, claim: _Claim, ask: Ask, offers: Sequence[Offer]
    ) -> tuple[float, NodeReason]:
        """A node's distance from one request, 0 if it serves it; and why."""
        whose = f"claim {claim.key}, request {ask.name}"
        fitting, misses = 0, list[tuple[Offer, _Miss]]()
        for offer in offers:
            missed = self._miss(ask, offer)
            if missed is None and not ask.admin:
                slot = _Slot(0, ask)
                why = self._room(node, claim, [(slot, offer, _amounts(ask, offer))], 0)
                missed = self._full(node, ask, offer, why) if why else None
            if missed is None:
                fitting += 1
            elif missed.far < 8:
                misses.append((offer, missed))
        without = [offer for offer, _ in misses if not any(self._short(ask, offer))]
        enough = fitting >= ask.count if ask.count else fitting > 0 and not without
        if enough:
            return 0.0, NodeReason(ReasonCode.INSUFFICIENT_CARDS, "")
        if not misses:
            of = f"none of the node's {len(offers)} devices is of class {ask.device_class}"
            more = f"{fitting} of {ask.count} devices" if fitting else of
            code = ReasonCode.INSUFFICIENT_CARDS if fitting else ReasonCode.SELECTOR_MISMATCH
            return 8.0, NodeReason(code, f"{whose}: {more}", ask.count, fitting)
        misses.sort(key=lambda one: one[1].far)
        offer, nearest = misses[0]
        fits = f"; fits {nearest.fits}" if nearest.fits else ""
        several = f"{fitting} of {ask.count} devices, " if ask.count > 1 else ""
        cards = tuple(self._cards(node, misses))
        reason = NodeReason(
            nearest.code,
            f"{whose}: {several}nearest {offer.key[2]}: {nearest.why}{fits}",
            nearest.asked,
            nearest.free,
            cards[0].minor if cards else None,
            cards,
            nearest.why if nearest.asked is None else "",
        )
        return nearest.far, reason

    def _cards(self, node: str, misses: Iterable[tuple[Offer, _Miss]]) -> Iterator[CardReason]:
        """For each of our cards, the device that came closest, and the card's holders."""
        told: set[int] = set()
        for offer, miss in misses:
            name = DEVICE.fullmatch(offer.key[2])
            if offer.key[0] != DRA_DRIVER or name is None or int(name[1]) in told:
                continue
            minor = int(name[1])
            told.add(minor)
            held = self._holders(node, minor)
            detail = "; ".join(filter(None, (miss.why, held, miss.fits and f"fits {miss.fits}")))
            yield CardReason(miss.code, minor, miss.asked, miss.free, detail)

    def _full(self, node: str, ask: Ask, offer: Offer, why: str) -> _Miss:
        """The miss of a card that has less left in the ledger than in its slice."""
        name = DEVICE.fullmatch(offer.key[2])
        index = self._engine.ledger.index.get(node)
        cards = self._engine.ledger.cards(DeviceType.GPU, index) if index is not None else []
        card = next((one for one in cards if name and one.device.minor == int(name[1])), None)
        told = why.rpartition(": ")[2]
        if card is not None and card.closed is None:
            amounts = _amounts(ask, offer)
            for key, free in (("cores", card.core_free), ("memory", card.memory_free)):
                code, unit = _CODES[key]
                wants = amounts.get(key, 0) // unit
                if wants > free:
                    text = (
                        f"{key} {format_amount(code, wants, up=True)} asked, "
                        f"{format_amount(code, max(free, 0))} left"
                    )
                    fits = f"with at most {format_amount(code, free)} of {key}" if free > 0 else ""
                    return _Miss(
                        1.0 + min(1 - free / wants, 1.0), code, text, wants, max(free, 0), fits
                    )
        code = ReasonCode.MIG_PLACEMENT if card is None or card.closed is None else card.closed
        return _Miss(3.0, code, told)

    def _holders(self, node: str, minor: int) -> str:
        """The holders of a card's parts, by protocol."""
        found: dict[str, list[tuple[str, Grant]]] = defaultdict(list)
        for held in self._engine.ledger.on_node(node):
            for grant in held.grants:
                if grant.type is DeviceType.GPU and grant.minor == minor:
                    found[grant.protocol].append((held.uid, grant))
        parts = []
        for protocol, grants in sorted(found.items()):
            many = len({uid for uid, _ in grants})
            core = sum(grant.core_milli for _, grant in grants)
            memory = brief(sum(grant.memory_bytes for _, grant in grants))
            who = "claim" if protocol == "claim" else "pod"
            how = "" if protocol == "claim" else f" of {protocol}"
            parts.append(f"{core / 10:g}% + {memory} held by {many} {who}{'s' * (many > 1)}{how}")
        return ", ".join(parts)


# --- documents ---------------------------------------------------------------------------------


_OUT_OF_LOOKS: Final = (
    5.0,
    NodeReason(
        ReasonCode.SEARCH_LIMIT,
        "not looked for any further: the claims of its namespace took as much work as they may",
    ),
)


def _unready(message: str) -> Refusal:
    return Refusal(ReasonCode.CLAIM_UNREADY, message)


def _ended(ask: Ask, offer: Offer, missed: _Miss) -> tuple[float, NodeReason]:
    told = f"request {ask.name}: {offer.key[2]}: {missed.why}; Kubernetes' allocator gives up at such a device"
    return missed.far, NodeReason(missed.code, told, brief=missed.why)


def _refusal(reasons: Mapping[str, tuple[float, NodeReason]]) -> Refusal:
    """One refusal over all nodes, those that came closest first."""
    ordered = dict(sorted(reasons.items(), key=lambda one: one[1][0]))
    findings: dict[ReasonCode, Finding] = {}
    for name, (_, reason) in ordered.items():
        findings.setdefault(reason.code, Finding()).add(name, reason)
    nodes = {name: why for name, (_, why) in islice(ordered.items(), DETAILED)}
    told = refusal_of(findings, nodes, len(ordered))
    return replace(told, code=next((why.code for why in nodes.values()), told.code))


def _driver(document: Document) -> str:
    shape = document.shape
    return shape.spec.driver if isinstance(shape, shapes.ResourceSlice) and shape.spec else ""


def _node_of(claim: Document) -> str:
    """The node to which an allocated claim is bound; empty if it is not bound to a known node."""
    ours = held_devices(claim)
    if ours:
        return str(ours[0].get("pool") or "")
    try:
        selector = msgspec.convert(
            allocation_of(claim).get("nodeSelector") or {}, shapes.NodeSelector
        )
    except (msgspec.ValidationError, RecursionError):
        return ""
    terms = selector.terms or ()
    fields = [one for term in terms for one in term.match_fields or ()]
    names = [one.values for one in fields if one.key == "metadata.name" and one.values]
    return names[0][0] if names else ""


def _key(result: Mapping[str, Any]) -> DeviceKey:
    return str(result.get("driver")), str(result.get("pool")), str(result.get("device"))


def _consumed(result: Mapping[str, Any]) -> dict[str, int]:
    given = result.get("consumedCapacity")
    found: dict[str, int] = {}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        try:
            found[str(name)] = nano(value, "")
        except InvalidValue:
            continue  # `read_claim` closes the card and reports it
    return found


def _amounts(ask: Ask, offer: Offer) -> dict[str, int]:
    """The amounts that a request takes of a shared device."""
    if not offer.view.shared:
        return {}
    shares = {name: one.share(ask.capacity.get(name)) for name, one in offer.capacity.items()}
    return {name: amount for name, amount in shares.items() if amount is not None}


def _agree(wants: Asked, chosen: _Chosen, claim: int) -> bool:
    """Whether a claim's devices satisfy its constraints."""
    for bound in wants.constraints:
        mine = [one[1] for one in chosen if one[0].claim == claim and bound.concerns(one[0].ask)]
        domain, _, name = bound.attribute.rpartition("/")
        values = [one.view.attributes.get(domain, {}).get(name) for one in mine]
        if None in values:
            return False
        sets = [_members(value) for value in values]
        if bound.distinct:
            agree = len(frozenset().union(*sets)) == sum(map(len, sets))
        else:
            agree = len(sets) < 2 or bool(sets[0].intersection(*sets[1:]))
        if not agree:
            return False
    return True


def _members(value: Any) -> frozenset[tuple[str, Any]]:
    """The values of an attribute, one or a list, each with its type: 1, "1" and true are three values."""
    every = value if isinstance(value, list | tuple) else (value,)
    return frozenset((type(one).__name__, one) for one in every)


def _result(slot: _Slot, offer: Offer, amounts: Mapping[str, int]) -> dict[str, Any]:
    driver, pool, device = offer.key
    found: dict[str, Any] = {
        "request": slot.ask.name,
        "driver": driver,
        "pool": pool,
        "device": device,
    }
    if slot.ask.admin:
        found["adminAccess"] = True
    if amounts:
        found["shareID"] = slot.ask.name  # tells requests apart that share a device
        found["consumedCapacity"] = {
            name: f"{amount}n" if amount % NANO else str(amount // NANO)
            for name, amount in amounts.items()
        }
    return found


def _with(claim: Document, results: list[dict[str, Any]]) -> Document:
    """The claim as stored with an allocation."""
    assert isinstance(claim.shape, shapes.ResourceClaim)  # noqa: S101 # chosen by its kind
    status = {"allocation": {"devices": {"results": results}}}
    return replace(claim, shape=msgspec.structs.replace(claim.shape, status=status))

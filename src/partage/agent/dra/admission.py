"""Decides whether a claim may be prepared and a container may use it: the node's last check.

Schedulers may be wrong: a stale view, two schedulers, a deposed leader. This module checks the sum: prepared claims
and the containers' grants by their pods' records never exceed a card. A claim that arrives too late is refused,
and the kubelet retries it until there is room, or the pod is deleted.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from partage.agent.dra.allocated import allocated, parts_of
from partage.agent.dra.prepared import Claims, Prepared
from partage.agent.held_allocations import Holding
from partage.agent.injection import Place, Refusal, Rule, conflict, recorded, refusal
from partage.agent.nri.messages import Container, PodSandbox
from partage.model.allocation import Allocation, Grant, GrantMode, charges_of
from partage.model.errors import InvalidValue, PartageError
from partage.vendors import names
from partage.wire.claims import claim_uid
from partage.wire.documents import Document
from partage.wire.record import encode


class NotPrepared(PartageError):
    """A claim is not prepared, and the kubelet tries again; `rule` is the reason, as one word."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(eq=False)
class ClaimAdmission:
    """The admission of one node, from any thread.

    Attributes:
        closed_to: returns a container of another owner that holds unknown devices, for readers of a namespace;
            usually empty.
        lock: held during each decision about grants of cards.
    """

    claims: Claims
    place: Callable[[], Place]
    holdings: Callable[[], Sequence[Holding]]
    closed_to: Callable[[str, str], str]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, claim: Document) -> Prepared:
        """Record a claim's devices here. Raises `NotPrepared`: not possible now; `OSError`: the disk refuses it.

        `claim`: current in the API server. It may be freed and allocated again while its kubelet is away, so a prepared
        claim is compared with its current allocation.
        """
        place = self.place()
        try:
            found = allocated(claim, place.node)
        except InvalidValue as error:
            known = self.again(claim_uid(claim))
            if known is None or known.parts != parts_of(claim):
                raise NotPrepared(Rule.BAD_CLAIM, str(error)) from error
            return known  # its card may be lost, and its containers run
        mine = found.allocation
        who = f"ResourceClaim {mine.namespace}/{mine.name}"
        with self.lock:
            known = self.claims.prepared.get(mine.uid)
            if known is None or known.parts != found.parts or self._has_moved(mine):
                # Containers of a claim with a damaged file continue to run.
                if holder := self._holder(mine.uid, mine.grants if known is None else ()):
                    told = f"{who} has other devices now, and {holder} has still those from before"
                    raise NotPrepared(Rule.BAD_CLAIM, f"{told} ({Rule.BAD_CLAIM})")
                if known is not None:
                    self.claims.drop(mine.uid)
                if (full := self._refused(mine, place)) is not None:
                    raise NotPrepared(full.rule, f"{who}: {full.message} ({full.rule})")
            try:
                return self.claims.put(found)
            except InvalidValue as error:
                raise NotPrepared(Rule.BAD_CLAIM, str(error)) from error

    def again(self, uid: str) -> Prepared | None:
        """A prepared claim, for any state of it elsewhere; None if it is not prepared. Raises `OSError`."""
        with self.lock:
            return self.claims.again(uid)

    def release(self, one: Prepared) -> bool:
        """Forget a claim that is free in the API server, unless a container still has it, or it was prepared again."""
        with self.lock:
            same = self.claims.prepared.get(one.uid) == one
            return same and not self._holder(one.uid) and self.claims.drop(one.uid)

    def idle(self) -> list[Prepared]:
        """Claims without a container; callable from any thread."""
        return [one for uid, one in self.claims.prepared.items() if not self._holder(uid)]

    def unprepare(self, uid: str) -> None:
        """Forget a claim's devices, if it holds any. Raises `OSError`: a file stays, so it still holds them."""
        with self.lock:
            self.claims.drop(uid)

    def held(self, beside: str) -> list[Allocation]:
        """The allocations on the node except those of one owner: by containers, and by claims as a whole."""
        mine = (one.allocation for one in self.holdings())
        return [one for one in (*mine, *self.claims.allocations) if one.uid != beside]

    def stand_in(self, pod: PodSandbox, container: Container) -> PodSandbox | Refusal | None:
        """The pod as if a record granted the claim's devices to the container; None if it has no claim.

        In such a record the claim replaces the pod: devices that several of its containers hold are counted once.
        """
        place = self.place()
        try:
            marked = self.claims.of(container.env)
        except InvalidValue as error:
            return refusal(pod, container, Rule.NO_RECORD, str(error))
        if not marked:
            return None
        claim, allocation, _ = marked[0]
        if any(other.uid != claim.uid for other, _, _ in marked):
            told = "it has two ResourceClaims of this driver; ask for the devices in one"
            return refusal(pod, container, Rule.BAD_CLAIM, told)
        record = recorded(pod, place.node.name)
        if isinstance(record, Allocation) and any(
            one.container == container.name for one in record.grants
        ):
            told = "it has devices by its pod's record and by a ResourceClaim; ask for them in one way"
            return refusal(pod, container, Rule.BAD_CLAIM, told)
        numbers = {str(number) for _, _, number in marked}
        grants = tuple(
            structs.replace(one, container=container.name)
            for one in allocation.grants
            if one.container in numbers
        )
        provider = place.host.provider
        kept = provider.memory or provider.compute
        other = self._sharer(pod, container, claim.uid, grants) if kept else ""
        if other:
            told = (
                f"{other} has the same share of ResourceClaim {claim.key}, and limits are enforced for each container; "
                "give each a claim of its own"
            )
            return refusal(pod, container, Rule.CLAIM_SHARED, told)
        mine = Allocation(claim.uid, pod.namespace, pod.name, place.node.name, grants)
        return replace(
            pod, uid=claim.uid, annotations={**pod.annotations, names.ALLOCATION: encode(mine)}
        )

    # --- rules -------------------------------------------------------------------------------

    def _refused(self, mine: Allocation, place: Place) -> Refusal | None:
        unknown = self.closed_to(mine.uid, mine.namespace) or self.claims.closed(mine.uid)
        if unknown:
            told = f"{unknown} holds devices that are no longer known, so no device counts as free"
            return Refusal(Rule.UNKNOWN_HELD, told)
        for charge in charges_of(mine.grants):
            card = place.devices.get(charge.uuid)
            if card is None:
                continue  # reported below
            for what, asked, total in (
                ("thousandths of compute", charge.core_milli, card.core_milli),
                ("bytes of memory", charge.memory_bytes, card.memory_bytes),
            ):
                if asked > total:
                    told = f"{asked} {what} of {card.type} {card.minor} ({card.uuid}), which has {total}"
                    return Refusal(Rule.CARD_FULL, told)
        return conflict(mine, place, self.held(mine.uid))

    def _has_moved(self, mine: Allocation) -> bool:
        """Whether a claim's devices, recorded by number, are other cards now, and no container has the earlier ones."""
        cards = {one.uuid for one in mine.grants}
        before = [
            {grant.uuid for grant in one.grants}
            for one in self.claims.allocations
            if one.uid == mine.uid
        ]
        return before != [cards] and not self._holder(mine.uid)

    def _holder(self, uid: str, beside: Sequence[Grant] = ()) -> str:
        """A container that has a part of a claim, beside these grants; empty if none has."""
        known = {structs.replace(one, container="") for one in beside}
        for one in self.holdings():
            grants = (structs.replace(grant, container="") for grant in one.allocation.grants)
            if one.allocation.uid == uid and not known.issuperset(grants):
                return (
                    f"pod {one.allocation.namespace}/{one.allocation.name}, container {one.name}"
                )
        return ""

    def _sharer(
        self, pod: PodSandbox, container: Container, uid: str, grants: Sequence[Grant]
    ) -> str:
        """Another container that has one of the shares now, except its own last attempt.

        The kubelet starts the next attempt of a pod's container after the end of the last one, but a pod of the same name
        may be created while the containers of a pod that was deleted by force still run.
        """
        shares = {one.uuid for one in grants if one.mode is GrantMode.SHARE}
        for one in self.holdings():
            theirs = one.allocation
            last = (one.claimant, one.name) == (pod.uid, container.name)
            if theirs.uid != uid or (last and one.claimant):
                continue
            if shares & {g.uuid for g in theirs.grants if g.mode is GrantMode.SHARE}:
                where = f"pod {theirs.namespace}/{theirs.name}, container {one.name}"
                other = one.claimant not in ("", pod.uid) and theirs.name == pod.name
                return f"an earlier {where}," if other else where
        return ""

"""Bound pods that ask for other amounts of their shares: reserved, recorded, and released.

    what is asked ──cannot be──> told on the pod, and looked at again
      │ more of a card: reserve what is more on the books ──no room──> told on the pod, and looked at again
      v
    write the record, if the pod is still the version that was read ──refused──> give up the reservation
      └── written, or not known ──> kept until the API server tells of another version of the pod

A write that names a version succeeds only while the pod has that version. So the reservation may go once another
version is seen: either the books have the pod's new record by then, or the write fails.

Source: docs/decisions/0028.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import msgspec

from partage.extender.books import Books
from partage.extender.ports import Answered, Outcome
from partage.kube.clock import Clock
from partage.model.adjustment import Grants, adjustable, least
from partage.model.allocation import Allocation
from partage.model.device import DeviceType
from partage.model.errors import InvalidDocument, InvalidValue
from partage.model.pod import Pod
from partage.model.request import PodRequest
from partage.scheduler.adjustment import more, recorded, short
from partage.scheduler.decision import amounts
from partage.scheduler.engine import State
from partage.scheduler.events import Event, HoldEnded, RoomKept
from partage.vendors import names
from partage.vendors.base import PlacedPod
from partage.wire import shapes
from partage.wire.adjustment import asked
from partage.wire.documents import Document
from partage.wire.record import decode
from partage.wire.render import render
from partage.wire.translation import PodEntry

_LOG = logging.getLogger("partage.extender")
_OWN: Final = "partage"
"""The provider of isolation whose limits change while programs run."""
_EACH: Final = 32
"""Pods that were refused and are looked at again in one round."""
_KEEP: Final = 60.0
"""Seconds after which a pod's refusal is written again where only its figures differ."""
_PAUSE: Final = 0.5
_A_WRITE: Final = 0.25
_AT_ONCE: Final = 20
"""Seconds of a namespace that a write for its pods takes, and how many it may have at once; what its users ask
beyond that is looked at in a while. Bindings go the same way, so one namespace's endless wishes must not fill it."""


class Amender(Protocol):
    """Writes what is said on bound pods."""

    async def amend(self, pod: Document, annotations: Mapping[str, str]) -> Answered:
        """Write annotations on a pod, if it is still the version of this document."""

    async def answer(self, pod: Document, reason: str, message: str) -> None:
        """Say on a pod why it is not adjusted."""

    async def read(self, namespace: str, name: str) -> Document | None:
        """The pod as the API server has it now; None when there is none. Raises `Exception`."""


@dataclass(slots=True)
class _Refused:
    """Why a pod is not adjusted, and when that was told."""

    reason: str
    message: str
    told: float


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is reserved for a write.

    Attributes:
        version: of the pod that it replaces.
        fact: who holds it in the books.
        grants: what is more than before; empty where nothing is.
    """

    version: str
    fact: Pod
    grants: Grants


def _silent(_entry: PodEntry, _message: str) -> None:
    """Tells nothing."""


@dataclass(slots=True)
class Adjustments:
    """Those of one service.

    Attributes:
        late: seconds for which a write that was not answered may still arrive.
        busy: writes on their way, by the pod's uid.
        refused: pods that are not adjusted, by uid; without a reason where they were not looked at yet. Each is a bound
            pod of the books, which hold far more of it.
        tell: hears of each.
    """

    amender: Amender
    clock: Clock
    late: float = 10.0
    busy: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    refused: OrderedDict[str, _Refused] = field(default_factory=OrderedDict)
    tell: Callable[[PodEntry, str], None] = _silent
    _paid: dict[str, float] = field(default_factory=dict)  # until when, by namespace
    _kept: dict[str, "_Kept"] = field(default_factory=dict)
    _telling: set[asyncio.Task[None]] = field(default_factory=set)

    # --- facts -------------------------------------------------------------------------------

    def settled(self, document: Document) -> list[Event]:
        """Reservations that end because of what the API server tells of a pod, before that is taken in."""
        uid = document.metadata.uid or ""
        kept = self._kept.get(uid)
        if kept is None or kept.version == document.metadata.resource_version:
            return []
        return self._ended(uid)

    def gone(self, uid: str) -> list[Event]:
        """A pod is there no more."""
        self.refused.pop(uid, None)
        return self._ended(uid)

    def _ended(self, uid: str) -> list[Event]:
        return [HoldEnded(_extra(uid))] if self._kept.pop(uid, None) is not None else []

    def renew(self, books: Books, now: float) -> None:
        """The books were made anew: what is reserved is reserved in them too, and all that ask are looked at."""
        for uid in books.cluster_cache.pods():
            document = books.cluster_cache.document(uid)
            if document is not None and names.ADJUST in document.annotations:
                self.refused.setdefault(uid, _Refused("", "", now))
        for uid, kept in list(self._kept.items()):
            document = books.cluster_cache.document(uid)
            if document is None or document.metadata.resource_version != kept.version:
                del self._kept[uid]
            elif kept.grants:
                books.take([RoomKept(kept.fact, kept.fact.node or "", kept.grants)], now)

    async def drain(self) -> None:
        """Wait until every write has come to an end."""
        while self.busy:
            await asyncio.wait([*self.busy.values()])

    def tick(self, books: Books, now: float) -> None:
        """Look again at some of those that were refused or put off: room may have come."""
        self._paid = {key: until for key, until in self._paid.items() if until > now}
        for uid in list(self.refused)[:_EACH]:
            self.refused.move_to_end(uid)
            self.look(books, uid, now)

    # --- one pod -----------------------------------------------------------------------------

    def look(self, books: Books, uid: str, now: float) -> None:
        """Do what a pod asks, as far as it can be done `now`, in seconds on the service's steady clock."""
        entry, document = books.cluster_cache.pod(uid), books.cluster_cache.document(uid)
        if entry is None or document is None:
            self.refused.pop(uid, None)
            return
        if uid in self.busy or uid in self._kept:
            return
        wish = document.annotations.get(names.ADJUST)
        held = books.engine.ledger.allocation(uid)
        if not wish or held is None or books.engine.states.get(uid) is not State.BOUND:
            self.refused.pop(uid, None)
            return
        if self._paid.get(entry.pod.namespace, now) > now + (_AT_ONCE - 1) * _A_WRITE:
            self.refused.setdefault(uid, _Refused("", "", now))
            return
        try:
            annotations, wanted = self._planned(books, entry, document, held)
        except (InvalidValue, InvalidDocument) as error:
            self._refuse(entry, document, "NotAdjustable", str(error), now)
            return
        if not annotations:
            self.refused.pop(uid, None)
            return
        if self._reserve(books, entry, document, wanted, now):
            self.refused.pop(uid, None)
        else:
            # What is released needs no room.
            wanted = least(held.grants, wanted)
            if wanted == held.grants:
                return
            try:
                annotations = self._rendered(books, entry, document, held, wanted)
            except (InvalidValue, InvalidDocument):
                return
            self._keep(document, entry.pod, ())
        self._pay(entry, now)
        task = asyncio.create_task(
            self._write(books, document, annotations), name=f"adjust {entry.pod.key}"
        )
        self.busy[uid] = task
        task.add_done_callback(lambda _: self.busy.pop(uid, None))

    def _planned(
        self, books: Books, entry: PodEntry, document: Document, held: Allocation
    ) -> tuple[dict[str, str], Grants]:
        """What is to be written on a pod, and what it holds by that; empty where nothing is to be done."""
        record, pod = entry.pod.record, entry.pod
        if names.ALLOCATION not in document.annotations or record is None or record.problem:
            raise InvalidValue("only a pod with a sound record of Partage can be adjusted")
        if record.grants != held.grants:
            return {}, ()  # it is taken in in a moment
        node = books.engine.ledger.node_at(books.engine.ledger.index[held.node])
        provider = node.labels.get(names.ISOLATION_PROVIDER, "none")
        if provider != _OWN:
            raise InvalidValue(
                f"shares of node {held.node} are kept by {provider}, which cannot change them while a container runs"
            )
        text = document.annotations.get(names.ENFORCED)
        told = None if text is None else decode(text, pod.uid, held.node)
        wanted = asked(document.annotations[names.ADJUST], held.grants)
        said = None if told is None or told.problem else told.grants
        grants = recorded(held.grants, wanted, said)
        if grants == held.grants:
            return {}, ()
        return self._rendered(books, entry, document, held, grants), grants

    def _rendered(
        self,
        books: Books,
        entry: PodEntry,
        document: Document,
        held: Allocation,
        grants: Grants,
    ) -> dict[str, str]:
        """The annotations that say other amounts: our record, and what of the protocol's own differs by them."""
        context, request = books.cluster_cache.context, entry.pod.request
        node = books.engine.ledger.node_at(books.engine.ledger.index[held.node])

        def written(those: Grants, asking: PodRequest) -> Mapping[str, str]:
            allocation = msgspec.structs.replace(held, grants=those)
            placed = PlacedPod(entry.view, asking, allocation, node, 0)
            return render(placed, context.settings, context.families).annotations

        # As it was bound, or adjusted before. The time of binding is none of what differs.
        before = (
            written(held.grants, request),
            written(held.grants, _asking(request, held.grants)),
        )
        then = written(grants, _asking(request, grants))
        there = document.annotations
        changed = {
            key: value
            for key, value in then.items()
            if value not in {one.get(key) for one in before}
            and (key == names.ALLOCATION or there.get(key) in {one.get(key) for one in before})
        }
        read = books.cluster_cache.translation.read(
            _with(document, changed), 0, books.cluster_cache.as_read
        ).pod.record
        if read is None or read.problem or read.grants != grants:
            protocols = ", ".join(sorted({one.protocol for one in held.grants if one.protocol}))
            raise InvalidValue(
                f"what {protocols} writes on a pod says no other amounts than its containers ask"
            )
        return changed

    def _reserve(
        self, books: Books, entry: PodEntry, document: Document, wanted: Grants, now: float
    ) -> bool:
        """Take what is more into the books, all of it or nothing; whether it is there."""
        pod, held = entry.pod, books.engine.ledger.allocation(entry.pod.uid)
        if held is None:
            return False
        extra = more(held.grants, wanted)
        if not extra:
            self._keep(document, pod, ())
            return True
        why = short(books.engine.ledger, held.node, extra)
        if why:
            self._refuse(entry, document, "NoRoom", f"node {held.node}: {why}", now)
            return False
        counted = amounts(pod, held.grants)
        quota = {
            key: amount - counted.get(key, 0)
            for key, amount in amounts(pod, wanted).items()
            if amount > counted.get(key, 0)
        }
        why = books.engine.quotas.excess(pod.namespace, quota)
        if why:
            self._refuse(entry, document, "QuotaExceeded", why, now)
            return False
        fact = Pod(
            _extra(pod.uid), pod.namespace, pod.name, node=held.node, quota=quota, claim=True
        )
        self._keep(document, fact, extra)
        books.take([RoomKept(fact, held.node, extra)], now)
        there = books.engine.ledger.allocation(fact.uid)
        if there is not None and there.grants == extra:
            return True
        books.take(self._ended(pod.uid), now)
        self._refuse(entry, document, "NoRoom", f"node {held.node}: its cards take no more", now)
        return False

    def _keep(self, document: Document, fact: Pod, grants: Grants) -> None:
        version = document.metadata.resource_version or ""
        self._kept[document.metadata.uid or ""] = _Kept(version, fact, grants)

    async def _write(
        self, books: Books, document: Document, annotations: Mapping[str, str]
    ) -> None:
        """Write the record, and follow that to an end."""
        try:
            answer = await self.amender.amend(document, annotations)
        except Exception as error:  # noqa: BLE001 # whatever is raised says nothing of the outcome
            answer = Answered(Outcome.UNKNOWN, f"{type(error).__name__}: {error}")
        if answer.outcome is Outcome.DONE:
            _LOG.info("%s: its shares are adjusted", document.label)
            return
        _LOG.warning("%s: its record is not changed: %s", document.label, answer.message)
        if answer.outcome is Outcome.UNKNOWN and await self._has_changed(document):
            return  # the API server tells of it
        uid, now = document.metadata.uid or "", self.clock.monotonic()
        books.take(self._ended(uid), now)
        self.refused.setdefault(
            uid, _Refused("", "", now)
        )  # looked at again, whether or not it changes

    async def _has_changed(self, document: Document) -> bool:
        """Whether a pod is another version by now; False where it is not, and no late write can arrive any more."""
        end = self.clock.monotonic() + self.late
        while self.clock.monotonic() < end:
            await self.clock.sleep(_PAUSE)
            with contextlib.suppress(Exception):
                now = await self.amender.read(document.namespace, document.name)
                if (
                    now is None
                    or now.metadata.resource_version != document.metadata.resource_version
                ):
                    return True
        return False

    def _refuse(
        self, entry: PodEntry, document: Document, reason: str, message: str, now: float
    ) -> None:
        """Tell why, once for each reason and again where its figures are old."""
        uid = entry.pod.uid
        known = self.refused.get(uid)
        told = known is not None and known.reason == reason
        if known is not None and told and (known.message == message or now < known.told + _KEEP):
            return
        self.refused[uid] = _Refused(reason, message, now)
        self._pay(entry, now)
        self.tell(entry, message)
        task = asyncio.create_task(self.amender.answer(document, reason, message))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _pay(self, entry: PodEntry, now: float) -> None:
        key = entry.pod.namespace
        self._paid[key] = max(self._paid.get(key, now), now) + _A_WRITE


def _extra(uid: str) -> str:
    """Under which key the books hold what a pod is to have more."""
    return f"{uid}#more"


def _asking(request: PodRequest, grants: Grants) -> PodRequest:
    """A request as one for these amounts would be: protocols write down what was asked where that was in their units."""
    groups = []
    for group in request.groups:
        names_of = {container.name for container in group.containers}
        mine = [one for one in grants if one.container in names_of and adjustable(one)]
        if mine and group.request.type is DeviceType.GPU:
            request_now = replace(
                group.request,
                core_milli=mine[0].core_milli,
                memory_bytes=mine[0].memory_bytes,
                memory_milli=0,
            )
            group = replace(group, request=request_now)  # noqa: PLW2901 # the same group
        groups.append(group)
    return replace(request, groups=tuple(groups))


def _with(document: Document, annotations: Mapping[str, str]) -> Document:
    """A pod with other annotations."""
    shape = document.shape
    assert isinstance(shape, shapes.Pod)  # noqa: S101 # the cache keeps pods under a pod's uid
    metadata = msgspec.structs.replace(
        document.metadata, annotations={**document.annotations, **annotations}
    )
    return replace(document, shape=msgspec.structs.replace(shape, metadata=metadata))

"""Adjusts the shares of bound pods on request: reserves an increase, writes the record, releases a decrease.

    request ──impossible──> report it on the pod, check again later
      │ an increase: reserve it in the books ──no room──> report it on the pod, check again later
      v
    write the record, if the pod still has the version that was read ──refused──> end the reservation
      └── written, or unknown ──> keep the reservation until the API server reports another version of the pod, or
                                  a read that no late write can follow shows the same one

A write that names a version succeeds only while the pod has that version. So the reservation may end when the API
server reports another version: either the books have the pod's new record by then, or the write fails.

Source: docs/decisions/0028.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Protocol

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
from partage.scheduler.adjustment import beyond_request, more, recorded, short
from partage.scheduler.decision import amounts
from partage.scheduler.engine import State
from partage.scheduler.events import Event, HoldEnded, RoomKept
from partage.vendors import names
from partage.vendors.base import PlacedPod
from partage.wire import shapes
from partage.wire.adjustment import asked
from partage.wire.documents import Document
from partage.wire.record import decode, render
from partage.wire.translation import PodEntry

_LOG = logging.getLogger("partage.extender")
_OWN: Final = "partage"
"""The provider of isolation that can change limits while programs run."""
_A_ROUND: Final = 128
"""Parts of devices whose pods one round checks again, half of them of one namespace. To check one takes 0.2 ms."""
_KEEP: Final = 60.0
"""Seconds after which a refusal is written again if only its figures differ."""
_PAUSE: Final = 0.5
_A_WRITE: Final = 0.25
_AT_ONCE: Final = 20
"""Seconds that a namespace pays for one write, and the number of writes that it may have at once. Further requests
wait, because Bindings use the same client, and the requests of one namespace must not keep it busy."""


class Amender(Protocol):
    """Writes annotations and conditions on bound pods."""

    async def amend(self, pod: Document, annotations: Mapping[str, str]) -> Answered:
        """Write annotations on a pod if it still has the version of this document."""

    async def answer(self, pod: Document, reason: str, message: str) -> None:
        """Write on a pod the reason why it is not adjusted."""

    async def read(self, namespace: str, name: str) -> Document | None:
        """The pod as the API server has it now; None if it does not exist. Raises `Exception`."""


@dataclass(slots=True)
class _Refused:
    """The reason why a pod is not adjusted, and the time of the report."""

    namespace: str
    reason: str
    message: str
    told: float


@dataclass(frozen=True, slots=True)
class _Kept:
    """The reservation for a write.

    Attributes:
        version: the version of the pod that the write replaces.
        fact: the holder of the reservation in the books.
        grants: the increase; empty if there is none.
    """

    version: str
    fact: Pod
    grants: Grants


@dataclass(slots=True)
class Adjustments:
    """The adjustments of one service.

    Attributes:
        late: seconds during which a write without an answer may still arrive.
        busy: writes on their way, by the pod's uid.
        refused: pods that are not adjusted, by uid; without a reason before the first check. Each is a bound pod, of
            which the books hold far more data.
        tell: receives each refusal.
    """

    amender: Amender
    clock: Clock
    late: float = 10.0
    busy: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    refused: dict[str, _Refused] = field(default_factory=dict)
    tell: Callable[[PodEntry, str], object] = lambda *_: None
    _rows: dict[str, dict[str, None]] = field(default_factory=dict)  # the refused, by namespace
    _paid: dict[str, float] = field(default_factory=dict)  # end of the paid time, by namespace
    _kept: dict[str, "_Kept"] = field(default_factory=dict)
    _unread: dict[str, Document] = field(default_factory=dict)  # pods whose write may have arrived
    _telling: set[asyncio.Task[None]] = field(default_factory=set)

    # --- facts -------------------------------------------------------------------------------

    def settled(self, document: Document) -> list[Event]:
        """Events that end the reservation of a pod, because the API server reports another version of the pod."""
        uid = document.metadata.uid or ""
        kept = self._kept.get(uid)
        if kept is None or kept.version == document.metadata.resource_version:
            return []
        return self._ended(uid)

    def gone(self, uid: str) -> list[Event]:
        """Forget a deleted pod; the events end its reservation."""
        self._leave(uid)
        return self._ended(uid)

    def _ended(self, uid: str) -> list[Event]:
        self._unread.pop(uid, None)
        return [HoldEnded(_extra(uid))] if self._kept.pop(uid, None) is not None else []

    def renew(self, books: Books, now: float) -> None:
        """Repeat the reservations in rebuilt books, and schedule a check of every pod with a request."""
        for uid in books.cluster_cache.pods:
            document = books.cluster_cache.documents.get(uid)
            if document is not None and names.ADJUST in document.annotations:
                self.postpone(uid, document.namespace, now)
        for uid, kept in list(self._kept.items()):
            document = books.cluster_cache.documents.get(uid)
            if document is None or document.metadata.resource_version != kept.version:
                del self._kept[uid]
                self._unread.pop(uid, None)
            elif kept.grants:
                books.take([RoomKept(kept.fact, kept.fact.node or "", kept.grants)], now)

    async def drain(self) -> None:
        """Wait until every write has ended."""
        while self.busy:
            await asyncio.wait([*self.busy.values()])

    def tick(self, books: Books, now: float) -> None:
        """Check some refused or postponed pods again, because there may be room now."""
        self._paid = {key: until for key, until in self._paid.items() if until > now}
        for uid, document in list(self._unread.items()):
            if uid not in self.busy:
                self._begin(document, self._read_again(books, document))
        left = _A_ROUND
        for namespace in list(islice(self._rows, _A_ROUND)):
            row = self._rows[namespace] = self._rows.pop(namespace)  # its next turn is the last
            mine = _A_ROUND // 2
            for uid in list(islice(row, mine)):
                held = books.engine.ledger.allocation(uid)
                cost = 1 + len(held.grants) if held else 1
                mine, left = mine - cost, left - cost
                row[uid] = row.pop(uid)
                self.look(books, uid, now)
                if mine <= 0 or left <= 0:
                    break
            if left <= 0:
                break

    # --- one pod -----------------------------------------------------------------------------

    def postpone(self, uid: str, namespace: str, now: float) -> None:
        """Have `tick` check a pod, whether or not the pod changes."""
        if uid not in self.refused:
            self._enter(uid, _Refused(namespace, "", "", now))

    def _enter(self, uid: str, one: _Refused) -> None:
        self.refused[uid] = one
        self._rows.setdefault(one.namespace, {})[uid] = None

    def _leave(self, uid: str) -> None:
        one = self.refused.pop(uid, None)
        if one is not None:
            del self._rows[one.namespace][uid]
            if not self._rows[one.namespace]:
                del self._rows[one.namespace]

    def look(self, books: Books, uid: str, now: float) -> None:
        """Adjust a pod as far as that is possible `now`, in seconds on the service's steady clock."""
        entry, document = books.cluster_cache.pods.get(uid), books.cluster_cache.documents.get(uid)
        if entry is None or document is None:
            self._leave(uid)
            return
        if uid in self.busy or uid in self._kept:
            return
        wish = document.annotations.get(names.ADJUST)
        held = books.engine.ledger.allocation(uid)
        if not wish or held is None or books.engine.states.get(uid) is not State.BOUND:
            self._leave(uid)
            return
        if self._paid.get(entry.pod.namespace, now) > now + (_AT_ONCE - 1) * _A_WRITE:
            self.postpone(uid, entry.pod.namespace, now)
            return
        try:
            annotations, wanted = self._planned(books, entry, document, held)
        except (InvalidValue, InvalidDocument) as error:
            self._refuse(entry, document, "NotAdjustable", str(error), now)
            return
        if not annotations:
            self._leave(uid)
            return
        if self._reserve(books, entry, document, wanted, now):
            self._leave(uid)
        else:
            # A decrease needs no room.
            wanted = least(held.grants, wanted)
            if wanted == held.grants:
                return
            try:
                annotations = self._rendered(books, entry, document, held, wanted)
            except (InvalidValue, InvalidDocument):
                return
            self._keep(document, entry.pod, ())
        self._pay(entry, now)
        self._begin(document, self._write(books, document, annotations))

    def _begin(self, document: Document, work: Coroutine[Any, Any, None]) -> None:
        uid = document.metadata.uid or ""
        task = asyncio.create_task(work, name=f"adjust {document.namespace}/{document.name}")
        self.busy[uid] = task
        task.add_done_callback(lambda _: self.busy.pop(uid, None))

    def _planned(
        self, books: Books, entry: PodEntry, document: Document, held: Allocation
    ) -> tuple[dict[str, str], Grants]:
        """The annotations to write on a pod, and its grants after that; empty if there is nothing to do."""
        record, pod = entry.pod.record, entry.pod
        if names.ALLOCATION not in document.annotations or record is None or record.problem:
            raise InvalidValue("only a pod with a sound record of Partage can be adjusted")
        if held.node not in books.engine.ledger.index:
            raise InvalidValue(
                f"node {held.node} is gone; shares there can change once it is back"
            )
        if record.grants != held.grants:
            return {}, ()  # the books take in the new record soon
        node = books.engine.ledger.node_at(books.engine.ledger.index[held.node])
        provider = node.labels.get(names.ISOLATION_PROVIDER, "none")
        if provider != _OWN:
            raise InvalidValue(
                f"nothing enforces shares on node {held.node}, so they cannot change while a container runs"
                if provider == "none"
                else f"shares on node {held.node} are enforced by {provider}, which cannot change them while a container runs"
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
        self, books: Books, entry: PodEntry, document: Document, held: Allocation, grants: Grants
    ) -> dict[str, str]:
        """The annotations that change with the amounts: Partage's record, and some of the protocol."""
        context, request = books.cluster_cache.translation.context, entry.pod.request
        node = books.engine.ledger.node_at(books.engine.ledger.index[held.node])

        def written(those: Grants, asking: PodRequest) -> Mapping[str, str]:
            allocation = msgspec.structs.replace(held, grants=those)
            placed = PlacedPod(entry.view, asking, allocation, node, 0)
            return render(placed, context.settings, context.families).annotations

        # The pod has annotations of its binding or of an adjustment. Every rendering has time 0, so times never differ.
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
                f"records of {protocols} cannot have amounts that the pod's containers did not request"
            )
        return changed

    def _reserve(
        self, books: Books, entry: PodEntry, document: Document, wanted: Grants, now: float
    ) -> bool:
        """Reserve an increase in the books, all of it or nothing; return whether it is reserved."""
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
        why = _limited(books, pod)
        if why and beyond_request(books.engine.ledger, held.node, pod.request, wanted):
            self._refuse(entry, document, "QuotaExceeded", why, now)
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
        self._refuse(
            entry, document, "NoRoom", f"node {held.node}: its cards have no more to give", now
        )
        return False

    def _keep(self, document: Document, fact: Pod, grants: Grants) -> None:
        version = document.metadata.resource_version or ""
        self._kept[document.metadata.uid or ""] = _Kept(version, fact, grants)

    async def _write(
        self, books: Books, document: Document, annotations: Mapping[str, str]
    ) -> None:
        """Write the record, and follow the write to its end."""
        try:
            answer = await self.amender.amend(document, annotations)
        except Exception as error:  # noqa: BLE001 # no exception shows the outcome
            answer = Answered(Outcome.UNKNOWN, f"{type(error).__name__}: {error}")
        if answer.outcome is Outcome.DONE:
            _LOG.info("%s: its shares are adjusted", document.label)
            return
        _LOG.warning("%s: its record is not changed: %s", document.label, answer.message)
        changed: bool | None = False
        if answer.outcome is Outcome.UNKNOWN:
            changed = await self._has_changed(document, self.late)
        self._settle(books, document, changed=changed)

    async def _read_again(self, books: Books, document: Document) -> None:
        """Read a pod that could not be read in time after its write."""
        changed = await self._has_changed(document, 0.0)
        self._settle(books, document, changed=changed)

    def _settle(self, books: Books, document: Document, *, changed: bool | None) -> None:
        """Act by what was read of a pod after its write; None if it could not be read."""
        uid, now = document.metadata.uid or "", self.clock.monotonic()
        if changed is None and uid in self._kept:
            self._unread[uid] = document  # what it reserved may be in the record
            return
        self._unread.pop(uid, None)
        if not changed:  # a change ends the reservation when the API server reports it
            books.take(self._ended(uid), now)
        self.postpone(uid, document.namespace, now)

    async def _has_changed(self, document: Document, late: float) -> bool | None:
        """Whether a pod has another version now; None if the pod cannot be read."""
        end = self.clock.monotonic() + late
        while True:
            await self.clock.sleep(_PAUSE)
            asked = self.clock.monotonic()
            with contextlib.suppress(Exception):
                now = await self.amender.read(document.namespace, document.name)
                if (
                    now is None
                    or now.metadata.resource_version != document.metadata.resource_version
                ):
                    return True
                if asked >= end:
                    return False
            if asked >= end:
                return None

    def _refuse(
        self, entry: PodEntry, document: Document, reason: str, message: str, now: float
    ) -> None:
        """Report a refusal, once for each reason and again when its figures are old."""
        uid = entry.pod.uid
        known = self.refused.get(uid)
        told = known is not None and known.reason == reason
        if known is not None and told and (known.message == message or now < known.told + _KEEP):
            return
        self._enter(uid, _Refused(entry.pod.namespace, reason, message, now))
        self._pay(entry, now)
        self.tell(entry, message)
        task = asyncio.create_task(self.amender.answer(document, reason, message))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _pay(self, entry: PodEntry, now: float) -> None:
        key = entry.pod.namespace
        self._paid[key] = max(self._paid.get(key, now), now) + _A_WRITE


def _limited(books: Books, pod: Pod) -> str:
    """The quota that counts an amount of the pod's request, in words; empty if there is none.

    kube-apiserver and the books count it as it was requested, so it would not limit a share that grows. Quotas of
    granted amounts and of the number of devices do not matter here.
    """
    context = books.cluster_cache.translation.context
    for quota in books.engine.quotas.quotas.by_namespace.get(pod.namespace, ()):
        for key, _ in quota.hard:
            name = key.removeprefix("requests.").removeprefix("limits.")
            count = name == context.settings.hami.count_name
            if pod.quota.get(key) and context.is_device(name) and not count:
                return (
                    f"quota {quota.name} of namespace {pod.namespace} limits {key}, which counts the pod's request: its "
                    "shares may grow up to the request"
                )
    return ""


def _extra(uid: str) -> str:
    """The key of a pod's increase in the books."""
    return f"{uid}#more"


def _asking(request: PodRequest, grants: Grants) -> PodRequest:
    """The request with other amounts, because a protocol writes down a request that used the protocol's units."""
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
    """The document with these annotations added or replaced."""
    shape = document.shape
    assert isinstance(shape, shapes.Pod)  # noqa: S101 # the cache keeps pods under a pod's uid
    metadata = msgspec.structs.replace(
        document.metadata, annotations={**document.annotations, **annotations}
    )
    return replace(document, shape=msgspec.structs.replace(shape, metadata=metadata))

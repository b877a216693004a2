"""`POST /webhook/claims`: the API server asks whether a claim's allocation may be stored, and the leader reserves it.

The route reserves cards, and an API server shows webhooks no credential unless it is configured to. So the service
trusts no question. The claim must be known from the API server under the named uid and version, and it must not be
allocated, and it must have kube-scheduler's finalizer, which only schedulers may add. The service reserves at most the
claim's own request, once. A caller that cannot read a claim cannot name its uid, and a caller that can read it gains
only what kube-scheduler is about to allocate. The service may hear of a version a moment later than the caller, so the
answer waits for it, but not long, and not for a version that is past.

An instance that does not lead at this moment answers 503, which the API server treats as a failed webhook.

`POST /webhook/claims/withdrawn`: the webhook reports that the API server got no answer to a question in time and
refuses the write. So nothing stays reserved for it. The report names the question by its uid, which the API server
makes at random.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from aiohttp import web

from partage.daemon.watched import CLAIMS, RESOURCE_CLAIMS, LiveClaim, as_document
from partage.extender.claim_arbiter import Outdate
from partage.extender.service import SchedulerService
from partage.kube.client import Client
from partage.kube.clock import sleep_until
from partage.kube.errors import Conflict, Forbidden, Invalid, NotFound, UnknownOutcome
from partage.model.errors import UNREADABLE, InvalidDocument
from partage.serving.limits import Limits, json_response, read_body
from partage.serving.turns import counted
from partage.vendors.names import CLAIM_FINALIZER, OUTDATED
from partage.webhook.review import LARGEST, LONGEST_UID, RESERVED, Verdict, encode_verdict
from partage.wire import shapes
from partage.wire.claims import (
    are_few,
    beyond_asked,
    claim_uid,
    held_devices,
    may_be_allocated,
)
from partage.wire.device_requests import MOST
from partage.wire.documents import Document, explain, precedes, typed

_LATE: Final = 2.0
"""Seconds by which news of a claim may be late; the allocating scheduler gets the news at the same time."""
_SOON: Final = 0.2
"""Seconds by which news are late in general, on a busy machine too. Each question may wait for so long, few for longer."""
_LONG: Final = 16
"""Questions of one address that wait for longer. A webhook passes on four times as many, so those that have no answer leave
the others their places."""
_WAITING: Final = 1024
"""Questions that wait for news at a time; the service refuses further ones."""
_OF_ONE: Final = 128
"""Waiting questions of one address. A webhook passes on half as many. Any client that reaches the port may ask about
claims that do not exist."""
_RESULTS: Final = 2**17
"""Bytes of an allocation's devices that are read; a claim has 32 of them at most, each of up to three thousand."""
_Text = Annotated[str, msgspec.Meta(max_length=512)]
_TOO_MANY: Final = "too many claims are asked about at once"


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The parts of a claim that a question is about; strangers may ask too, and fill all others."""


class _Result(_Part, frozen=True):
    driver: _Text = ""
    pool: _Text = ""
    device: _Text = ""
    request: _Text = ""
    admin_access: bool | None = None
    share_id: _Text | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: (
        Annotated[dict[_Text, _Text | int | float], msgspec.Meta(max_length=MOST)] | None
    ) = None


class _Devices(_Part, frozen=True):
    results: msgspec.Raw = msgspec.Raw()


class _Name(_Part, frozen=True):
    name: _Text | None = None
    namespace: _Text | None = None
    uid: _Text | None = None
    resource_version: _Text | None = None


class _Allocation(_Part, frozen=True):
    devices: _Devices | None = None


class _Status(_Part, frozen=True):
    allocation: _Allocation | None = None


class _Claim(_Part, frozen=True):
    metadata: _Name = _Name()
    status: _Status | None = None


class _Resource(_Part, frozen=True):
    group: str | None = None
    resource: str | None = None


class _Question(_Part, frozen=True):
    uid: Annotated[str, msgspec.Meta(max_length=LONGEST_UID)]
    resource: _Resource | None = None
    sub_resource: str | None = None
    operation: str | None = None
    dry_run: bool | None = None
    object: _Claim | None = None
    old_object: _Claim | None = None


class _Review(_Part, frozen=True):
    request: _Question


_CLAIMS: Final = _Resource("resource.k8s.io", "resourceclaims")
_Listed: Any = Annotated[list[_Result], msgspec.Meta(max_length=MOST)] | None


class _Asked(NamedTuple):
    """A question's uid, and the claim with its devices; None if it gets none of this driver."""

    question: str
    document: Document | None = None
    dry_run: bool = False


class _Withdrawn(msgspec.Struct, frozen=True):
    """A withdrawn question."""

    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_UID)]


def outdater(
    client: Client, identity: str, known: Callable[[str, str], Document | None]
) -> Outdate:
    """Makes a function that outdates a claim in the API server by a note of its writer.

    By the same write it removes kube-scheduler's finalizer of a claim that is not allocated, and alters nothing else.
    kube-scheduler then begins to allocate the claim again. The write of the finalizer's removal names the version that
    is known here, because the claim may have been allocated since. If it fails, the note is written alone.

    The note is a label, because all annotations have 256 KiB, which a user may have filled. A user may also fill the whole
    claim (1.5 MiB by default), so that no label fits. Then the finalizer's removal is written alone, which needs no room.
    `identity`: of this instance, different from that of any other; `known`: the claim of a namespace and name.
    """
    who = hashlib.sha256(identity.encode()).hexdigest()[:8]

    def note() -> dict[str, str]:
        # The same text twice would be no change.
        return {OUTDATED: f"{client.clock.now():%Y%m%dT%H%M%S.%f}-{who}"}

    async def write(namespace: str, name: str, **metadata: object) -> Document:
        found = await client.patch(
            RESOURCE_CLAIMS, name, {"metadata": metadata}, namespace=namespace, into=LiveClaim
        )
        return as_document(CLAIMS.kind, found)

    async def outdate(namespace: str, name: str) -> Document | None:
        claim = known(namespace, name)
        try:
            if claim is not None and may_be_allocated(claim) and are_few(claim):
                ends = claim.metadata.finalizers or []
                free = {
                    "finalizers": [one for one in ends if one != CLAIM_FINALIZER],
                    "uid": claim.metadata.uid,
                    "resourceVersion": claim.metadata.resource_version,
                }
                with suppress(Conflict, Forbidden, Invalid):
                    try:
                        return await write(namespace, name, labels=note(), **free)
                    except UnknownOutcome:  # the API server's answer where its store has no room
                        return await write(namespace, name, **free)
            return await write(namespace, name, labels=note())
        except NotFound:
            return None

    return outdate


class ClaimDesk:
    """Answers questions; a question waits here until its claim is known."""

    def __init__(
        self,
        service: SchedulerService,
        may_reserve: Callable[[], bool],
        known: Callable[[str, str], Document | None],
    ) -> None:
        """No question yet. `may_reserve`: whether this instance leads; `known`: the claim of a namespace and name."""
        self._service, self._may_reserve, self._known = service, may_reserve, known
        self._waiting: dict[tuple[str, str], list[asyncio.Event]] = {}
        self._there = Counter[str]()  # waiting questions, by address
        self._long = Counter[str]()  # those that wait for longer than most

    def routes(self, limits: Limits) -> list[web.RouteDef]:
        """The routes; `limits` apply to requests."""
        few = replace(limits, body=min(LARGEST, limits.body))

        async def handler(request: web.Request) -> web.Response:
            try:
                asked = _asked(await read_body(request, few))
                if (gone := self._away()) is not None:
                    return gone
                verdict = await self._verdict(asked, request.remote or "")
                first = verdict.allowed and self._service.claims.began(asked.question)
            except InvalidDocument as error:
                return json_response({"message": str(error)}, 400)
            told = {RESERVED: "true"} if first else {}
            return self._away() or json_response(encode_verdict(verdict), headers=told)

        async def withdrawn(request: web.Request) -> web.Response:
            body = await read_body(request, limits)
            try:
                question = msgspec.json.decode(body, type=_Withdrawn).uid
            except UNREADABLE as error:
                return json_response({"message": explain(error)}, 400)
            self._service.withdraw_review(question)
            return json_response({})

        return [
            web.post("/webhook/claims", handler),
            web.post("/webhook/claims/withdrawn", withdrawn),
        ]

    def claim_changed(self, document: Document) -> None:
        """Have questions about this claim look at it again; the feed knows it by now."""
        for one in self._waiting.get((document.namespace, document.name), ()):
            one.set()

    def _away(self) -> web.Response | None:
        if not self._service.closed and self._may_reserve():
            return None
        message = self._service.closed or "the instance is not leader"
        response = json_response({"message": message}, 503)
        response.force_close()  # a kept connection would go on asking this instance
        return response

    async def _verdict(self, asked: _Asked, asker: str) -> Verdict:
        question, document, dry_run = asked
        if document is None:
            return Verdict(question)
        stored = await self._stored(document, asker)
        who = f"claim {document.namespace}/{document.name}"
        if stored is None:
            told = f"{who} is not known here as it was named; try again"
            return Verdict(question, allowed=False, message=told)
        refusal = beyond_asked(document, stored)
        if refusal:
            return Verdict(question, allowed=False, message=f"{who}: {refusal}")
        # Of the question only the status counts: a caller may have added the finalizer that lets a claim be allocated.
        assert isinstance(stored.shape, shapes.ResourceClaim)  # noqa: S101 # says its kind
        assert isinstance(document.shape, shapes.ResourceClaim)  # noqa: S101 # as made below
        shape = msgspec.structs.replace(stored.shape, status=document.shape.status)
        document = Document(CLAIMS.kind, "admission", 1, shape)
        refusal = self._service.review_claim(document, question=question, dry_run=dry_run)
        return Verdict(question, allowed=not refusal, message=refusal)

    async def _stored(self, claim: Document, asker: str) -> Document | None:
        """The claim as the API server has it, once it has the named version; None if it has not in time."""
        found = await self._heard(claim, asker, _SOON)
        if found is not None or self._never(claim) or self._long[asker] >= _LONG:
            return found
        with counted(self._long, asker):
            return await self._heard(claim, asker, _LATE - _SOON)

    async def _heard(self, claim: Document, asker: str, seconds: float) -> Document | None:
        """The claim in the named version, waiting for news of it for at most so many seconds."""
        clock = self._service.clock
        end = clock.monotonic() + seconds
        wanted = claim.metadata.uid, claim.metadata.resource_version
        while True:
            found = self._known(claim.namespace, claim.name)
            if found is not None and (
                wanted == (found.metadata.uid, found.metadata.resource_version)
            ):
                return found
            left = end - clock.monotonic()
            if left <= 0 or self._never(claim):
                return None
            if self._there.total() >= _WAITING or self._there[asker] >= _OF_ONE:
                raise web.HTTPServiceUnavailable(text=_TOO_MANY)
            await self._news(claim, left, asker)

    def _never(self, claim: Document) -> bool:
        """Whether no news can make a question right, because its claim has a newer version or is gone."""
        version = claim.metadata.resource_version or ""
        found = self._known(claim.namespace, claim.name)
        if not version or self._service.books.cluster_cache.claims.is_gone(claim_uid(claim)):
            return True
        newest = (found.metadata.resource_version or "") if found is not None else ""
        return precedes(version, newest)

    async def _news(self, claim: Document, seconds: float, asker: str) -> None:
        key, news = (claim.namespace, claim.name), asyncio.Event()
        self._waiting.setdefault(key, []).append(news)
        with counted(self._there, asker):
            try:
                await sleep_until(self._service.clock, seconds, news)
            finally:
                self._waiting[key].remove(news)
                if not self._waiting[key]:
                    del self._waiting[key]


def _asked(body: bytes) -> _Asked:
    """What a question asks. Raises `InvalidDocument`: it is no question, or about more devices than a claim has."""
    review = typed(body, _Review, "AdmissionReview").request
    now, before = review.object, review.old_object or _Claim()
    what = review.resource, review.sub_resource, review.operation
    if what != (_CLAIMS, "status", "UPDATE") or now is None:
        return _Asked(review.uid)
    if before.status is not None and before.status.allocation is not None:
        return _Asked(review.uid)  # an allocation cannot be changed, only removed
    allocation = now.status and now.status.allocation
    results = bytes(allocation.devices.results) if allocation and allocation.devices else b""
    if len(results) > _RESULTS:
        raise InvalidDocument(
            f"ResourceClaim: field status.allocation.devices.results: {len(results)} bytes, more than {_RESULTS}"
        )
    listed = typed(results or b"[]", _Listed, "ResourceClaim")
    status = {"allocation": {"devices": {"results": msgspec.to_builtins(listed or [])}}}
    metadata = shapes.Metadata(**msgspec.structs.asdict(now.metadata))
    shape = shapes.ResourceClaim(metadata=metadata, status=status)
    document = Document(CLAIMS.kind, "admission", 1, shape)
    return _Asked(review.uid, document if held_devices(document) else None, bool(review.dry_run))

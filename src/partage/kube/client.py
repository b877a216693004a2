"""Verbs and types over the transport: what every caller of the API uses.

Callers name with `into` the type of the decoded answer: a msgspec type of their own with only the
fields they need, or `msgspec.Raw` for the raw bytes. A body is any value that msgspec encodes,
or bytes, which are passed through.

The client repeats refused requests, and all reads, a bounded number of times. It never repeats a
change with an unknown outcome unless a second execution has no further effect; the caller gets
`UnknownOutcome` and reads back. A cancelled change has an unknown outcome too.
"""

import contextlib
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

from partage.kube.bodies import binding, delete_options, encode, eviction, has_version
from partage.kube.clock import Clock, SystemClock
from partage.kube.config import Config
from partage.kube.decoding import Decoders, OnlyMeta, Page
from partage.kube.errors import (
    AnswerTooLarge,
    Conflict,
    Expired,
    NotFound,
    Outcome,
    RequestError,
    UndecodableAnswer,
    UnknownOutcome,
    says_success,
)
from partage.kube.objects import HasMeta, Listing, Undecodable
from partage.kube.resources import PODS, Resource, Scope
from partage.kube.retry import RateLimit
from partage.kube.sender import ClientSettings, Sender
from partage.kube.transport import Request

_PAGE: Final = 32 * 2**20
"""Bytes of one page. An author may make objects of a megabyte each, and a page of a thousand would take more memory
than a node's agent may have; a page of usual pods has ten to twenty MiB."""
_FEWER: Final = 4
"""So many times fewer objects are asked for where a page has more bytes, and more again where it has far fewer."""

T = TypeVar("T")
H = TypeVar("H", bound=HasMeta)


class PatchKind(StrEnum):
    """How a patch is meant; the value is its content type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Client:
    """A client of one API server; use it as an async context manager."""

    def __init__(
        self,
        config: Config,
        *,
        settings: ClientSettings = ClientSettings(),  # noqa: B008 - a frozen value
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        """A client that is not yet open; `chance` gives random numbers in [0, 1) for jitter."""
        self.config = config
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._sender = Sender(
            config, settings, environ=environ or {}, clock=self.clock, chance=chance
        )
        self.chance = self._sender.chance
        self._decoders = Decoders()

    def paced(self, rate: float) -> Self:
        """This client for callers that share a bound; its connections stay this one's.

        Args:
            rate: requests a second in the long run, tries that are repeated included; what two
                seconds allow may be sent at once.
        """
        other = copy.copy(self)
        limit = RateLimit(rate, max(1, int(2 * rate)), self.clock)
        other._sender = self._sender.paced(limit)  # noqa: SLF001 # a copy of itself
        return other

    async def __aenter__(self) -> Self:
        await self._sender.transport.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._sender.transport.__aexit__(*error)

    # Reading

    async def get(
        self, resource: Resource, name: str, *, into: type[T], namespace: str | None = None
    ) -> T:
        """One object, as the server has it now."""
        request = Request("GET", resource.path(namespace, name))
        found = self._decoders.one(
            request, await self._sender.send(request, idempotent=True), into
        )
        meta = getattr(found, "metadata", None)
        if meta is not None and getattr(meta, "name", name) != name:
            # A Status, or what stands between us and the server: taken for the object, it would be another one.
            raise UndecodableAnswer(request.method, request.path, "an object of another name")
        return found

    async def read(self, path: str, *, into: type[T], query: Mapping[str, str] | None = None) -> T:
        """Any other document: `/version`, `/apis`, another object's subresource."""
        request = Request("GET", path, query)
        return self._decoders.one(request, await self._sender.send(request, idempotent=True), into)

    async def pages(
        self, scope: Scope, *, into: type[H], limit: int | None = None
    ) -> AsyncGenerator[Page[H], None]:
        """A list, page by page.

        Args:
            into: the type of an item; items that are not of it are set aside, not fatal.
            limit: objects a page, fewer where they are large, 0 for all; by default the settings' page size.

        Raises:
            Expired: the list took so long that its version is no longer kept; start afresh.
        """
        query = scope.query
        limit = largest = self.settings.page_size if limit is None else limit
        if limit:
            query["limit"] = str(limit)
        while True:
            most = _PAGE if limit > 1 else None
            request = Request("GET", scope.path, query, most=most)
            try:
                data = await self._sender.send(request, idempotent=True)
            except AnswerTooLarge:
                limit = max(1, limit // _FEWER)
                query["limit"] = str(limit)
                continue
            page = self._decoders.page(request, data, into)
            yield page
            if not page.next:
                return
            if page.next == query.get("continue"):
                # A cache that does not look at the query would send the first page for ever.
                text = "a page of a list that leads to itself"
                raise UndecodableAnswer(request.method, request.path, text)
            query["continue"] = page.next
            if limit and len(data) * _FEWER < _PAGE:
                limit = min(limit * _FEWER, largest)
                query["limit"] = str(limit)

    async def list_all(self, scope: Scope, *, into: type[H]) -> Listing[H]:
        """All objects of a scope, at one version of the store no older than this call."""
        try:
            return await self._gather(scope, into)
        except Expired:
            # The pages outlived the server's memory of the first one. All at once cannot.
            return await self._gather(scope, into, 0)

    async def newest_version(self, scope: Scope) -> str:
        """The version of the store, no older than this call, by as little of a list as will do."""
        # Servers read what is selected from their memory, and part of it, before Kubernetes 1.34, from the store.
        pages = self.pages(scope, into=OnlyMeta, limit=0 if scope.query else 1)
        async with contextlib.aclosing(pages):
            return (await anext(pages)).resource_version

    async def _gather(self, scope: Scope, into: type[H], limit: int | None = None) -> Listing[H]:
        items: list[H] = []
        undecodable: list[Undecodable] = []
        version = ""
        async with contextlib.aclosing(self.pages(scope, into=into, limit=limit)) as pages:
            async for page in pages:
                items += page.items
                undecodable += page.undecodable
                version = version or page.resource_version
        return Listing(tuple(items), version, tuple(undecodable))

    def watch_stream(
        self, scope: Scope, resource_version: str, *, seconds: int, idle_seconds: float
    ) -> contextlib.AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of a watch; `watch` makes events of them.

        Args:
            resource_version: the version after which changes are wanted.
            seconds: the server is asked to end the watch after this time.
            idle_seconds: without a byte for so long, the connection counts as lost.
        """
        query = scope.query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        request = Request("GET", scope.path, query)
        return self._sender.transport.stream(request, idle_timeout=idle_seconds)

    # Changing

    async def create(
        self,
        resource: Resource,
        body: Any,
        *,
        into: type[T],
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> T:
        """Create an object; AlreadyExists where the name is taken."""
        request = Request("POST", resource.path(namespace), self._change(dry_run), encode(body))
        return self._decoders.one(request, await self._sender.send(request), into)

    async def update(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        into: type[T],
        namespace: str | None = None,
    ) -> T:
        """Replace an object; Conflict if its resourceVersion is not current."""
        request = Request("PUT", resource.path(namespace, name), self._change(), encode(body))
        return self._decoders.one(request, await self._sender.send(request), into)

    async def patch(  # noqa: PLR0913 # what a change may say, all by name
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        kind: PatchKind,
        into: type[T],
        namespace: str | None = None,
        subresource: str = "",
        dry_run: bool = False,
        until: float | None = None,
    ) -> T:
        """Change an object, or its `status`.

        Args:
            body: the patch; for JSON a list of operations, else a partial object.
            into: what the changed object is decoded to.
            subresource: `status` or another.
            dry_run: go through admission and validation, store nothing.
            until: see `bind`.

        A JSON patch, and any patch that holds a resourceVersion, is not repeated after an unknown
        outcome; the other kinds mean the same twice.
        """
        path, data = resource.path(namespace, name, subresource), encode(body)
        request = Request("PATCH", path, self._change(dry_run), data, kind.value, until=until)
        repeatable = kind is not PatchKind.JSON and not has_version(data)
        return self._decoders.one(
            request, await self._sender.send(request, idempotent=repeatable), into
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Delete an object.

        With a UID it is tried again after an unknown outcome, since no other object can be hit;
        that it is gone by then is success.

        Args:
            uid: delete only this very object; Conflict otherwise.
            grace_seconds: overrides the object's own grace period.
        """
        options = encode(delete_options(uid, grace_seconds))
        query = {"dryRun": "All"} if dry_run else None
        request = Request("DELETE", resource.path(namespace, name), query, options)
        failures: list[RequestError] = []
        try:
            await self._sender.send(request, idempotent=uid is not None, failures=failures)
        except (NotFound, Conflict):
            # A UID conflict after an unknown outcome: ours is gone, another has its name.
            if not any(failure.outcome is Outcome.UNKNOWN for failure in failures):
                raise

    async def bind(
        self,
        namespace: str,
        pod: str,
        node: str,
        *,
        uid: str,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        until: float | None = None,
    ) -> None:
        """Bind a pod to a node; annotations are merged into it in the same transaction.

        Labels are copied by Kubernetes 1.35 and later, and ignored before.

        Args:
            uid: the pod's UID, as a precondition.
            annotations: to add to the pod, replacing values of the same key.
            until: the moment, by the client's clock, after which no further try is made, and by
                which the server itself gives up each of them, so that one that waits its turn
                there is not carried out long after its sender has gone.

        Raises:
            Conflict: bound already, being deleted, or of another UID.
            NotFound: no such pod.
            UnknownOutcome: read the pod back.
        """
        body = encode(
            binding(namespace, pod, node, uid=uid, annotations=annotations, labels=labels)
        )
        path = PODS.path(namespace, pod, "binding")
        answer = await self._sender.send(Request("POST", path, self._change(), body, until=until))
        if not says_success(answer):
            # What stands between us and the server may answer 200 with anything, such as a page to log in.
            raise UnknownOutcome(UndecodableAnswer("POST", path, "no Status of success"))

    async def patch_pod_status(
        self, namespace: str, pod: str, body: Mapping[str, Any], *, into: type[T]
    ) -> T:
        """Change what a pod's status says, its other conditions untouched; else as `patch`."""
        return await self.patch(
            PODS,
            pod,
            body,
            kind=PatchKind.STRATEGIC,
            namespace=namespace,
            subresource="status",
            into=into,
        )

    async def evict(self, namespace: str, pod: str, *, uid: str | None = None) -> None:
        """Evict a pod, as far as disruption budgets allow. Raises `EvictionBlocked`."""
        body = encode(eviction(namespace, pod, uid))
        path = PODS.path(namespace, pod, "eviction")
        await self._sender.send(Request("POST", path, self._change(), body))

    # How

    def _change(self, dry_run: bool = False) -> dict[str, str]:  # noqa: FBT001, FBT002 # private
        query = {"fieldManager": self.settings.field_manager}
        if dry_run:
            query["dryRun"] = "All"
        return query

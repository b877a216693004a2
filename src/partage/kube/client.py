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

import msgspec

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
    is_object,
    says_success,
)
from partage.kube.objects import Listing, Undecodable
from partage.kube.resources import PODS, Resource, Scope
from partage.kube.retry import RateLimit
from partage.kube.sender import ClientSettings, Sender
from partage.kube.transport import Request

_PAGE: Final = 32 * 2**20
"""Bytes of one page. A user may create objects of a megabyte each. A page of a thousand such objects would take more
memory than a node's agent may use. A page of usual pods has ten to twenty MiB."""
_FEWER: Final = 4
"""The factor by which the client asks for fewer objects after a larger page, and for more after a far smaller one."""

T = TypeVar("T")


class PatchKind(StrEnum):
    """How the server applies a patch; the value is its content type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    group_version: str


class _Group(msgspec.Struct, frozen=True):
    versions: tuple[_Version, ...]


class _Groups(msgspec.Struct, frozen=True, tag_field="kind", tag="APIGroupList"):
    groups: tuple[_Group, ...]


class _Served(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True, tag_field="kind", tag="APIResourceList"):
    resources: tuple[_Served, ...]


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

        `rate`: requests a second in the long run, repeated tries included. The requests of two seconds may be sent at
        once.
        """
        other = copy.copy(self)
        limit = RateLimit(rate, max(1, int(2 * rate)), self.clock)
        other._sender = self._sender.paced(limit)  # noqa: SLF001 # a copy of itself
        return other

    def insistent(self, longest_wait: float) -> Self:
        """This client for loops that try again by themselves; its connections stay this one's.

        A request fails if the server asks for a longer wait than these seconds. Otherwise a server that was
        busy for a moment, or a proxy, could hold the loop for minutes.
        """
        other = copy.copy(self)
        other._sender = self._sender.insistent(longest_wait)  # noqa: SLF001 # a copy of itself
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
        """One object in the server's current state."""
        request = Request("GET", resource.path(namespace, name))
        found = self._decoders.one(
            request, await self._sender.send(request, idempotent=True), into
        )
        if not _is_named(found, name, namespace):
            # A Status, or the answer of a proxy: decoded as the object, it would be another one.
            text = "an object of another name or namespace, or without a UID"
            raise UndecodableAnswer(request.method, request.path, text)
        return found

    async def read(self, path: str, *, into: type[T], query: Mapping[str, str] | None = None) -> T:
        """Any other document: `/version`, `/apis`, another object's subresource."""
        request = Request("GET", path, query)
        return self._decoders.one(request, await self._sender.send(request, idempotent=True), into)

    async def serves(self, resource: Resource) -> bool:
        """Whether the server lists this kind: a 404 of its path may be a proxy's. Raises `KubeError`: unknown."""
        if resource.group:
            groups = await self.read("/apis", into=_Groups)
            versions = {one.group_version for group in groups.groups for one in group.versions}
            if resource.api_version not in versions:
                return False
        path = resource.path().rpartition("/")[0]
        found = await self.read(path, into=_Resources)
        return any(one.name == resource.plural for one in found.resources)

    async def pages(
        self, scope: Scope, *, into: type[T], limit: int | None = None
    ) -> AsyncGenerator[Page[T], None]:
        """A list, page by page.

        Args:
            into: the type of an item; items of another type are set aside and are not fatal.
            limit: objects a page, fewer if they are large, 0 for all; by default the settings' page size.

        Raises:
            Expired: the server no longer keeps the version of the list, because the list took too long; start afresh.
            UndecodableAnswer: no page, or one that cannot follow the pages before it.
        """
        query = scope.query
        limit = largest = self.settings.page_size if limit is None else limit
        if limit:
            query["limit"] = str(limit)
        version, tokens = "", set[str]()
        while True:
            most = _PAGE if limit > 1 else None
            request = Request("GET", scope.path, query, most=most)
            try:
                data = await self._sender.send(request, idempotent=True)
            except AnswerTooLarge:
                limit = max(1, limit // _FEWER)
                query["limit"] = str(limit)
                continue
            page = await self._decoders.page(request, data, into)
            version = version or page.resource_version
            if page.resource_version != version:
                # Together they would lack changes that no watch from either version brings.
                text = f"a page at version {page.resource_version} of a list at {version}"
                raise UndecodableAnswer(request.method, request.path, text)
            yield page
            if not page.next:
                return
            if page.next in tokens:
                # A cache that ignores the query would send the first page for ever.
                text = "a page of a list that leads back to an earlier one"
                raise UndecodableAnswer(request.method, request.path, text)
            tokens.add(page.next)
            query["continue"] = page.next
            if limit and len(data) * _FEWER < _PAGE:
                limit = min(limit * _FEWER, largest)
                query["limit"] = str(limit)

    async def list_all(self, scope: Scope, *, into: type[T]) -> Listing[T]:
        """All objects of a scope, at one version of the store no older than this call."""
        try:
            return await self._gather(scope, into)
        except Expired:
            # The server has forgotten the version of the first page. One answer with everything has no such limit.
            return await self._gather(scope, into, 0)

    async def newest_version(self, scope: Scope) -> str:
        """The version of the store, no older than this call, read with the smallest possible list."""
        # Servers read selected objects from memory, but a part of them from the store (before Kubernetes 1.34).
        pages = self.pages(scope, into=OnlyMeta, limit=0 if scope.query else 1)
        async with contextlib.aclosing(pages):
            return (await anext(pages)).resource_version

    async def _gather(self, scope: Scope, into: type[T], limit: int | None = None) -> Listing[T]:
        items: list[T] = []
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
            resource_version: the watch reports changes after this version.
            seconds: the server is asked to end the watch after this time.
            idle_seconds: after so long without a byte, the connection counts as lost.
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
        """Create an object; AlreadyExists if the name is taken."""
        request = Request("POST", resource.path(namespace), self._change(dry_run), encode(body))
        return self._changed(request, await self._sender.send(request), into)

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
        return self._changed(request, await self._sender.send(request), into)

    async def patch(  # noqa: PLR0913 # what a change may say, all by name
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        into: type[T],
        kind: PatchKind = PatchKind.MERGE,
        namespace: str | None = None,
        subresource: str = "",
        dry_run: bool = False,
        until: float | None = None,
    ) -> T:
        """Change an object, or its `status`.

        Args:
            body: the patch; for JSON a list of operations, else a partial object.
            dry_run: go through admission and validation, store nothing.
            until: see `bind`.

        A JSON patch, and any patch with a resourceVersion, is not repeated after an unknown outcome.
        The other kinds have no further effect when they are repeated.
        """
        path, data = resource.path(namespace, name, subresource), encode(body)
        request = Request("PATCH", path, self._change(dry_run), data, kind.value, until=until)
        repeatable = kind is not PatchKind.JSON and not has_version(data)
        return self._changed(
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

        With a UID the client tries again after an unknown outcome, since it can hit no other object. If the object is
        gone by then, the deletion has succeeded. `uid`: delete only the object with this UID; Conflict otherwise.
        `grace_seconds`: overrides the object's own grace period.
        """
        options = encode(delete_options(uid, grace_seconds))
        query = {"dryRun": "All"} if dry_run else None
        request = Request("DELETE", resource.path(namespace, name), query, options)
        failures: list[RequestError] = []
        try:
            answer = await self._sender.send(
                request, idempotent=uid is not None, failures=failures
            )
        except (NotFound, Conflict):
            # A UID conflict after an unknown outcome: our object is gone, and another one has its name.
            if not any(failure.outcome is Outcome.UNKNOWN for failure in failures):
                raise
            return
        if not (says_success(answer) or is_object(answer)):  # Kubernetes answers with either
            raise UnknownOutcome(UndecodableAnswer("DELETE", request.path, "no object or success"))

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

        Kubernetes 1.35 and later copies labels; earlier versions ignore them. Raises `Conflict`: bound already (perhaps
        by this Binding, if it was repeated on the way), being deleted, or of another UID; `NotFound`: no such pod;
        `UnknownOutcome`: read the pod back.

        Args:
            uid: the pod's UID, as a precondition.
            annotations: to add to the pod, replacing values of the same key.
            until: a moment by the client's clock. The client makes no further try after it, and the server gives
                up each try by then. So the server does not carry out a queued try long after its sender has gone.
        """
        body = encode(
            binding(namespace, pod, node, uid=uid, annotations=annotations, labels=labels)
        )
        await self._post(PODS.path(namespace, pod, "binding"), body, until)

    async def patch_pod_status(
        self, namespace: str, pod: str, body: Mapping[str, Any], *, into: type[T]
    ) -> T:
        """Change a pod's status and leave its other conditions untouched; otherwise as `patch`."""
        kind = PatchKind.STRATEGIC
        return await self.patch(
            PODS, pod, body, kind=kind, namespace=namespace, subresource="status", into=into
        )

    async def evict(self, namespace: str, pod: str, *, uid: str | None = None) -> None:
        """Evict a pod, as far as disruption budgets allow. Raises `EvictionBlocked`."""
        body = encode(eviction(namespace, pod, uid))
        await self._post(PODS.path(namespace, pod, "eviction"), body)

    # How

    async def _post(self, path: str, body: bytes, until: float | None = None) -> None:
        """Send what the server answers with a Status of success."""
        answer = await self._sender.send(Request("POST", path, self._change(), body, until=until))
        if not says_success(answer):
            raise UnknownOutcome(UndecodableAnswer("POST", path, "no Status of success"))

    def _changed(self, request: Request, answer: bytes, into: type[T]) -> T:
        """The changed object. A proxy may answer 200 with anything, such as a login page."""
        if not is_object(answer):
            raise UnknownOutcome(UndecodableAnswer(request.method, request.path, "no object"))
        return self._decoders.one(request, answer, into)

    def _change(self, dry_run: bool = False) -> dict[str, str]:  # noqa: FBT001, FBT002 # private
        query = {"fieldManager": self.settings.field_manager}
        if dry_run:
            query["dryRun"] = "All"
        return query


def _is_named(found: object, name: str, namespace: str | None) -> bool:
    """Whether an object has this name, as far as its type shows it, and a UID."""
    meta = getattr(found, "metadata", None)
    if isinstance(found, dict):
        meta = found.get("metadata")
        meta = meta if isinstance(meta, dict) else {}

    def told(field: str, usual: object) -> object:
        return meta.get(field) if isinstance(meta, dict) else getattr(meta, field, usual)

    own = not namespace or told("namespace", namespace) == namespace
    return own and told("name", name) == name and bool(told("uid", name))

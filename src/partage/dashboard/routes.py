"""The dashboard's documents over HTTP: overview, fleet, nodes, one node, pods, ways, comparison.

Answers carry an ETag, so a page that renews itself gets 304 while nothing has changed. Regardless of the number
of callers, the service makes the overview of a large cluster at most once a second and the ways to make a pod
fit at most once in ten. It makes a comparison, which places all pods again, at most once a minute.

The header `Partage-State` of each answer contains this instance's state: it decides (`leader`), stands by
(`standby`), or still reads the cluster (`rebuilding`).

With `--authorize-reads` the names of pods depend on the caller's rights. A caller with the right to get pods of all
namespaces sees all names. Other callers see amounts without names, and the pods of one requested namespace.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import fields
from math import inf
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from partage.dashboard.comparison import comparison_document
from partage.dashboard.fleet import fleet_document
from partage.dashboard.history import History
from partage.dashboard.nodes import node_document, nodes_document
from partage.dashboard.overview import overview_document
from partage.dashboard.queries import NodeQuery, PodQuery
from partage.dashboard.view_cache import Standing, Texts
from partage.dashboard.ways import ways_document
from partage.dashboard.workloads import pods_document
from partage.extender.books import Books
from partage.extender.server import Readers, may_read
from partage.extender.service import SchedulerService
from partage.serving.limits import has_version, json_response

_Q = TypeVar("_Q", NodeQuery, PodQuery)
_D = TypeVar("_D")
_FRESH: Final = 1.0
"""Seconds for which all callers get the same overview."""
_COMPARED: Final = 60.0
"""The same for a comparison of policies."""
_TRIED: Final = 10.0
"""The same for ways to make a pod fit."""
_PODS_TRIED: Final = 64
"""Most pods with kept ways."""
_CHOICES: Final = {
    "only": ("", "used", "free", "closed"),
    "state": ("", "placed", "waiting"),
    "reverse": ("", "yes"),
    "cards": ("", "no", "used"),
}
_ORDERS: Final = {
    NodeQuery: ("name", "used", "free"),
    PodQuery: ("name", "node", "age", "compute", "memory"),
}
_LONGEST: Final = 253
"""Most characters of a searched text; a Kubernetes name has no more."""


class _Kept:
    """Documents that all callers get for some seconds: the latest of at most so many, made one after another."""

    def __init__(self, monotonic: Callable[[], float], seconds: float, most: int) -> None:
        self._monotonic, self._seconds, self._most = monotonic, seconds, most
        self._making = asyncio.Lock()
        self._known: OrderedDict[object, tuple[float, Any]] = OrderedDict()

    async def of(self, key: object, make: Callable[[], Awaitable[_D]]) -> _D:
        """The document with this key; None is not kept."""
        async with self._making:
            until, document = self._known.get(key, (-inf, None))
            if until > self._monotonic():
                kept: _D = document
                return kept
            made = await make()
            if made is not None:
                self._known[key] = self._monotonic() + self._seconds, made
                self._known.move_to_end(key)
                if len(self._known) > self._most:
                    self._known.popitem(last=False)
            return made


def document_routes(
    source: SchedulerService,
    readers: Readers | None,
    monotonic: Callable[[], float],
    history: History | None = None,
) -> list[web.RouteDef]:
    """The routes.

    Args:
        readers: callers that may read names of pods; None allows every caller.
        history: of the cards, kept by the caller; None shows none.
    """
    documents = _Documents(source, readers, monotonic, history)
    return [
        web.get("/api/overview", documents.overview),
        web.get("/api/fleet", documents.fleet),
        web.get("/api/nodes", documents.nodes),
        web.get("/api/node/{node}", documents.node),
        web.get("/api/pods", documents.pods),
        web.get("/api/ways/{namespace}/{pod}", documents.ways),
        web.get("/api/comparison", documents.comparison),
    ]


class _Documents:
    """The handlers."""

    def __init__(
        self,
        source: SchedulerService,
        readers: Readers | None,
        monotonic: Callable[[], float],
        history: History | None,
    ) -> None:
        self._source = source
        self._readers = readers
        self._monotonic = monotonic
        self._seen = _Kept(monotonic, _FRESH, 2)
        self._tried = _Kept(monotonic, _TRIED, _PODS_TRIED)
        self._compared = _Kept(monotonic, _COMPARED, 1)
        self._standing: WeakKeyDictionary[Books, Standing] = WeakKeyDictionary()
        self._history = history

    def _kept(self) -> tuple[Books, Standing]:
        """The present books, and the figures kept of them, which go with them."""
        books = self._source.books
        return books, self._standing.setdefault(books, Standing(Texts()))

    async def overview(self, request: web.Request) -> web.Response:
        """The whole cluster."""
        names = await self._may_read(request, "")
        seen = await self._seen.of(names, lambda: overview_document(*self._kept(), names=names))
        state = {"leader": self._source.leading, "ready": self._source.rebuilt, "names": names}
        trend = self._history.trend.document() if self._history else None
        return self._answer(request, seen | state | {"trend": trend})

    async def fleet(self, request: web.Request) -> web.Response:
        """Every card in a few bytes; it names no pod, so every caller may ask."""
        return self._answer(request, await fleet_document(*self._kept()))

    async def ways(self, request: web.Request) -> web.Response:
        """Ways to make a waiting pod fit."""
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        names = await self._may_read(request, "")
        if not names and not await self._may_read(request, namespace):
            raise web.HTTPForbidden(text=f"you may not read pods of namespace {namespace}")
        found = await self._tried.of(
            (namespace, name, names),
            lambda: ways_document(
                self._source.books, namespace, name, names=names, now=self._monotonic()
            ),
        )
        if found is None:
            told = f"pod {namespace}/{name} is not known, or asks for no device"
            return json_response({"message": told}, 404)
        return self._answer(request, found)

    async def nodes(self, request: web.Request) -> web.Response:
        """One page of nodes with their cards."""
        query = _query(request, NodeQuery)
        names = await self._may_read(request, "")
        books, kept = self._kept()
        return self._answer(request, await nodes_document(books, query, kept, names=names))

    async def node(self, request: web.Request) -> web.Response:
        """One node."""
        name = request.match_info["node"]
        names = await self._may_read(request, "")
        found = node_document(self._source.books, name, names=names)
        if found is None:
            return json_response({"message": f"there is no node {name}"}, 404)
        told = self._history.of(name, names=names) if self._history else None
        return self._answer(request, found | {"history": told})

    async def pods(self, request: web.Request) -> web.Response:
        """One page of pods."""
        query = _query(request, PodQuery)
        if not await self._may_read(request, ""):
            if not query.namespace:
                raise web.HTTPForbidden(
                    text="you may not read pods of all namespaces; name one with ?namespace="
                )
            if not await self._may_read(request, query.namespace):
                raise web.HTTPForbidden(
                    text=f"you may not read pods of namespace {query.namespace}"
                )
        books, kept = self._kept()
        return self._answer(request, await pods_document(books, query, kept))

    async def comparison(self, request: web.Request) -> web.Response:
        """The cluster's state under other policies; sums only, so every caller may ask."""
        found = await self._compared.of("", lambda: comparison_document(self._source.books))
        return self._answer(request, found)

    def _answer(self, request: web.Request, document: dict[str, Any]) -> web.Response:
        """The document, or 304 if the caller has it already."""
        body = msgspec.json.encode(document)
        tag = hashlib.blake2b(body, digest_size=12).hexdigest()
        source = self._source
        state = "rebuilding" if not source.rebuilt else "leader" if source.leading else "standby"
        headers = {
            "ETag": f'"{tag}"',
            "Cache-Control": "no-cache",
            "Vary": "Authorization",
            "Partage-State": state,
        }
        if has_version(request, tag):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _may_read(self, request: web.Request, namespace: str) -> bool:
        """Whether the caller may read pods of a namespace; an empty one means all."""
        return await may_read(self._readers, request, namespace)


def _query(request: web.Request, into: type[_Q]) -> _Q:
    known = {field.name: field.type for field in fields(into)}
    given: dict[str, Any] = {}
    for key, value in request.query.items():
        if key not in known:
            raise web.HTTPBadRequest(
                text=f"there is no parameter {key}; known: {', '.join(known)}"
            )
        if key in ("offset", "limit"):
            if not value.isascii() or not value.isdigit() or len(value) > 9:
                raise web.HTTPBadRequest(text=f"{key}={value[:20]}: must be a number from 0")
            given[key] = int(value)
            continue
        if len(value) > _LONGEST:
            raise web.HTTPBadRequest(text=f"{key}: longer than {_LONGEST} characters")
        choices = _ORDERS[into] if key == "order" else _CHOICES.get(key)
        if choices is not None and value not in choices:
            named = ", ".join(choice for choice in choices if choice)
            raise web.HTTPBadRequest(text=f"{key}={value}: must be one of {named}")
        given[key] = value
    return into(**given)

"""A fake API server on a real socket, with faults on demand.

It knows no kinds: any path of the API's form is a collection. It does what a client depends on
(versions, conflicts, pages, watches, bookmarks, patches, bindings, evictions) and nothing else; it
validates nothing and asks for no credentials unless told a token.

    async with KubeServer() as server:
        server.fail(Fault(method="POST", status=503, retry_after="1"))
"""

import asyncio
import base64
import contextlib
import copy
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from aiohttp import web

from fakes.kube_documents import (
    Refused,
    Target,
    json_patch,
    line,
    merge,
    selected,
    status,
    target_of,
)
from fakes.kube_store import Event, KubeStore
from partage.serving.listener import end_listening

__all__ = ["Fault", "KubeServer", "Seen"]

_ENDS: Final = b""
"""In a watch's queue: the connection is cut."""


@dataclass(slots=True)
class Fault:
    """What goes wrong with requests that match, and how often.

    Attributes:
        method: only requests of this method; empty for any.
        path: only paths that contain this text.
        watch: only watches (True) or only others (False).
        times: how many requests are hit before it is spent.
        executed: do what was asked first, and fail afterwards.
        delay: seconds before anything happens.
        status: answer with this; with `reason`, `message`, `retry_after` and `causes`.
        drop: cut the connection without an answer.
        body: answer 200 with these bytes.
        half: send only half of the answer, then cut the connection.
        trickle: send the answer in pieces of so many bytes.
    """

    method: str = ""
    path: str = ""
    watch: bool | None = None
    times: int = 1
    executed: bool = False
    delay: float = 0.0
    status: int = 0
    reason: str = ""
    message: str = ""
    retry_after: str | None = None
    causes: tuple[str, ...] = ()
    drop: bool = False
    body: bytes | None = None
    half: bool = False
    trickle: int = 0


class Seen(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class _Watch(NamedTuple):
    target: Target
    query: dict[str, str]
    queue: asyncio.Queue[bytes]


class KubeServer:
    """The server; use it as an async context manager.

    Attributes:
        store: its memory, which tests may read and change.
        requests: what arrived, in order.
        token: if set, requests must carry it.
        expired_in_stream: an outdated watch is told in the stream in place of by status.
        budget_blocked: evictions are refused by a disruption budget.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.store = KubeStore()
        self.requests: list[Seen] = []
        self.token: str | None = None
        self.expired_in_stream = False
        self.budget_blocked = False
        self.url = ""
        self._tls = tls
        self._faults: list[Fault] = []
        self._watches: list[_Watch] = []
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
        await self._runner.setup()
        assert self._runner.server is not None  # set up
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server, "127.0.0.1", 0, ssl=self._tls
        )
        host, port = self._server.sockets[0].getsockname()
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}"
        self.store.listeners.append(self._tell)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cut_watches()
        if self._runner is not None:
            await end_listening(self._server)
            await self._runner.cleanup()

    @property
    def watches(self) -> int:
        """Open watches."""
        return len(self._watches)

    def fail(self, *faults: Fault) -> None:
        """Add faults; the first that matches a request hits it."""
        self._faults += faults

    def cut_watches(self) -> None:
        """End every watch."""
        self.send_raw(_ENDS)

    def send_raw(self, data: bytes) -> None:
        """Send these bytes to every watch."""
        for watch in self._watches:
            watch.queue.put_nowait(data)

    def bookmark(self) -> None:
        """Send every watch a bookmark of the present version."""
        item = {"metadata": {"resourceVersion": str(self.store.version), "name": ""}}
        self.send_raw(line("BOOKMARK", item))

    def expire_watches(self) -> None:
        """Tell every watch in the stream that its version is too old."""
        self.send_raw(line("ERROR", status(410, "Expired", "too old resource version")))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        query = dict(request.query)
        headers = dict(request.headers)
        self.requests.append(Seen(request.method, request.path, query, headers, body))
        watching = query.get("watch") == "true"
        fault = self._fault(request, watching=watching)
        if fault is not None and fault.delay:
            await asyncio.sleep(fault.delay)
        if fault is not None and _answers(fault):
            if fault.executed:
                self._do(request, body, query)
            return await _faulty(request, fault)
        try:
            self._admit(request)
            if watching:
                return await self._watch(request, target_of(request.path), query)
            code, document = self._do(request, body, query)
        except Refused as error:
            code = error.status
            document = status(code, error.reason, error.message, error.causes)
        data = json.dumps(document).encode()
        if fault is not None:
            return await _in_pieces(request, data, fault)
        return web.Response(status=code, body=data, content_type="application/json")

    def _admit(self, request: web.Request) -> None:
        sent = request.headers.get("Authorization")
        if self.token is not None and sent != f"Bearer {self.token}":
            raise Refused(401, "Unauthorized", "Unauthorized")

    def _fault(self, request: web.Request, *, watching: bool) -> Fault | None:
        for fault in self._faults:
            if (
                fault.times > 0
                and fault.method in {"", request.method}
                and fault.path in request.path
                and fault.watch in {None, watching}
            ):
                fault.times -= 1
                return fault
        return None

    def _do(self, request: web.Request, body: Any, query: dict[str, str]) -> tuple[int, Any]:
        target = target_of(request.path)
        rehearsal = query.get("dryRun") == "All"
        with self.store.rehearsal() if rehearsal else contextlib.nullcontext():
            return self._act(request, target, body, query)

    def _act(
        self, request: web.Request, target: Target, body: Any, query: dict[str, str]
    ) -> tuple[int, Any]:
        store = self.store
        collection, namespace, name, subresource = target
        if request.method == "GET":
            return 200, store.get(collection, namespace, name) if name else self._list(
                target, query
            )
        if request.method == "POST" and subresource == "binding":
            store.bind(namespace or "", name, body)
            return 201, status(201, "", "")
        if request.method == "POST" and subresource == "eviction":
            if self.budget_blocked:
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                raise Refused(429, "TooManyRequests", message, ("DisruptionBudget",))
            conditions = (body.get("deleteOptions") or {}).get("preconditions") or {}
            return 201, store.delete(collection, namespace, name, conditions)
        if request.method == "POST":
            return 201, store.create(collection, namespace, body)
        if request.method == "DELETE":
            conditions = (body or {}).get("preconditions") or {}
            return 200, store.delete(collection, namespace, name, conditions)
        if request.method == "PUT":
            return 200, store.update(collection, namespace, name, self._with_status(target, body))
        return 200, self._patch(request, target, body)

    def _with_status(self, target: Target, body: Any) -> Any:
        """An update of the status changes nothing else, and one of the object not the status."""
        held = copy.deepcopy(self.store.get(target.collection, target.namespace, target.name))
        version = body.get("metadata", {}).get("resourceVersion")
        if target.subresource == "status":
            held["status"] = body.get("status", {})
            held["metadata"]["resourceVersion"] = version or held["metadata"]["resourceVersion"]
            return held
        if "status" in held:
            body["status"] = held["status"]
        return body

    def _patch(self, request: web.Request, target: Target, body: Any) -> Any:
        collection, namespace, name, _ = target
        if request.content_type.endswith("apply-patch+yaml"):
            with contextlib.suppress(Refused):
                held = self.store.get(collection, namespace, name)
                return self.store.update(collection, namespace, name, merge(held, body))
            return self.store.create(collection, namespace, body)
        held = copy.deepcopy(self.store.get(collection, namespace, name))
        if request.content_type.endswith("json-patch+json"):
            for step in body:
                json_patch(held, step)
        else:
            held = merge(held, body)
        return self.store.update(collection, namespace, name, held)

    def _list(self, target: Target, query: dict[str, str]) -> Any:
        items = [
            item
            for item in self.store.list(target.collection, target.namespace)
            if selected(item, query)
        ]
        version, start = self.store.version, 0
        if "continue" in query:
            version, start = json.loads(base64.b64decode(query["continue"]))
            if version < self.store.oldest:
                raise Refused(410, "Expired", "The provided continue parameter is too old")
        limit = int(query.get("limit", 0)) or len(items) or 1
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if start + limit < len(items):
            token = json.dumps([version, start + limit]).encode()
            meta["continue"] = base64.b64encode(token).decode()
        return {"kind": "List", "metadata": meta, "items": items[start : start + limit] or None}

    async def _watch(
        self, request: web.Request, target: Target, query: dict[str, str]
    ) -> web.StreamResponse:
        since = int(query.get("resourceVersion") or 0)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if since < self.store.oldest and not self.expired_in_stream:
            raise Refused(410, "Expired", "too old resource version")
        await response.prepare(request)
        if since < self.store.oldest:
            await response.write(line("ERROR", status(410, "Expired", "too old")))
            return response
        watch = _Watch(target, query, asyncio.Queue())
        for event in self.store.history:
            if event.version > since:
                self._tell_one(watch, event)
        self._watches.append(watch)
        try:
            async with asyncio.timeout(float(query.get("timeoutSeconds", 3600))):
                await _pump(watch, response)
        except TimeoutError:
            return response
        finally:
            self._watches.remove(watch)
        if request.transport is not None:
            request.transport.close()
        return response

    def _tell(self, event: Event) -> None:
        for watch in self._watches:
            self._tell_one(watch, event)

    @staticmethod
    def _tell_one(watch: _Watch, event: Event) -> None:
        namespace = event.object["metadata"].get("namespace")
        if (
            event.collection == watch.target.collection
            and watch.target.namespace in {None, namespace}
            and selected(event.object, watch.query)
        ):
            watch.queue.put_nowait(line(event.kind, event.object))


async def _pump(watch: _Watch, response: web.StreamResponse) -> None:
    while (data := await watch.queue.get()) != _ENDS:
        await response.write(data)


def _answers(fault: Fault) -> bool:
    return bool(fault.status) or fault.drop or fault.body is not None


async def _faulty(request: web.Request, fault: Fault) -> web.StreamResponse:
    if fault.drop:
        if request.transport is not None:
            request.transport.close()
        return web.Response()
    if fault.body is not None:
        return await _in_pieces(request, fault.body, fault)
    headers = {"Retry-After": fault.retry_after} if fault.retry_after is not None else {}
    document = status(fault.status, fault.reason, fault.message, fault.causes)
    return web.json_response(document, status=fault.status, headers=headers)


async def _in_pieces(request: web.Request, data: bytes, fault: Fault) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(data)
    await response.prepare(request)
    size = fault.trickle or len(data) or 1
    async for piece in _pieces(data[: len(data) // 2] if fault.half else data, size):
        await response.write(piece)
    if fault.half and request.transport is not None:
        request.transport.close()
    return response


async def _pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
        await asyncio.sleep(0)

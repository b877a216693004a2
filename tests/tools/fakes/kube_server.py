"""The embedded API server behind the fault proxy, on one socket, for tests of clients.

It has the kinds of Kubernetes and those that Partage defines, keeps what tests put into its memory as it is, and admits
whatever a request brings as long as it has its kind's shape.

    async with KubeServer() as server:
        server.fail(Fault(method="POST", status=503, retry_after="1"))
"""

import asyncio
import itertools
import json
import ssl
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiohttp import StreamReader, web

from fakes.backups import Backup, backup_of, restore
from fakes.wire import Fault, Wire, line
from partage.apiserver import ApiServer, Record, Review
from partage.apiserver.definitions import kinds
from partage.apiserver.metadata import Ambient
from partage.apiserver.plugins import Plugins
from partage.apiserver.router import Router
from partage.apiserver.verbs import Verbs
from partage.embedded.definitions import DEFINITIONS

Object = dict[str, Any]


NAMESPACES = ("default", "kube-node-lease", "kube-system", "team")


class Seen(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class _Plugins(Plugins):
    """Those of a server that stores pods as tests write them."""

    def completed(self, review: Review) -> dict[str, Any]:
        """See `Plugins`."""
        return review.object or {}


class KubeServer(Wire):
    """The server; use it as an async context manager.

    Attributes:
        store: its memory, which tests may read and change.
        requests: what arrived, in order.
        token: if set, requests must carry it.
        budget_blocked: evictions are refused by a disruption budget.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__("", own=tls)
        uids = itertools.count(1)
        api = ApiServer(around=Ambient(time.time, lambda: f"uid-{next(uids)}", lambda: "xxxxx"))
        for definition in DEFINITIONS:
            api.registry.add(*kinds(definition))
        api.cluster.plugins = _Plugins(api.store)
        api.admission.validators.clear()
        api.store.restore(1, {"namespaces": [_namespace(name) for name in NAMESPACES]})
        self._closing = asyncio.Event()
        self._router = Router(
            api.registry, Verbs(api.cluster, api.settings.logs, self._closing, api.settings.beat)
        )
        self.store = Memory(api)
        self.requests: list[Seen] = []
        self.token: str | None = None
        self.budget_blocked = False
        self.chance = self._refusal

    async def __aexit__(self, *error: object) -> None:
        self._closing.set()
        await super().__aexit__(*error)

    async def bookmark(self) -> None:
        """Send every watch a bookmark of the present version."""
        head = {"resourceVersion": str(self.store.version), "name": ""}
        await self.send_raw(line("BOOKMARK", {"metadata": head}))

    def _refusal(self, request: web.Request) -> Fault | None:
        wanted = f"Bearer {self.token}"
        if self.token is not None and request.headers.get("Authorization") != wanted:
            return Fault(status=401, reason="Unauthorized", message="Unauthorized")
        if self.budget_blocked and request.path.endswith("/eviction"):
            told = "Cannot evict pod as it would violate the pod's disruption budget."
            causes = ("DisruptionBudget",)
            return Fault(status=429, reason="TooManyRequests", message=told, causes=causes)
        return None

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        query, headers = dict(request.query), dict(request.headers)
        self.requests.append(Seen(request.method, request.path, query, headers, body))
        return await super()._pass(request)

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        content = StreamReader(request.protocol, 2**16, loop=asyncio.get_running_loop())
        content.feed_data(body)
        content.feed_eof()
        request._payload = content  # it has been read to be kept
        answer = await self._router.handle(request)
        assert isinstance(answer, web.Response)
        return answer

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if int(request.query.get("resourceVersion") or 0) > self.store.version:
            # A genuine server says nothing until it has come that far; ours would say so.
            await self._closing.wait()
            return _nothing(request)
        task = asyncio.ensure_future(self._router.handle(request))
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
            self._watches.pop(task, None)
        return _nothing(request) if task.cancelled() else task.result()

    async def _begun(self, request: web.Request, response: web.StreamResponse) -> None:
        task = asyncio.current_task()
        if request.query.get("watch") == "true" and response.chunked and task is not None:
            self._watches[task] = request, response


def _namespace(name: str) -> Object:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}}


def _nothing(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


class Memory:
    """What is stored, by collection path (`/api/v1/pods`); changes are made behind the API's back.

    Attributes:
        listeners: called with each change.
    """

    def __init__(self, api: ApiServer) -> None:
        self._store, self._uid = api.store, api.cluster.ambient.uid
        self._kinds = {
            f"/{'apis' if kind.group else 'api'}/{kind.api_version}/{kind.plural}": kind
            for kind in api.registry
        }
        self.listeners = self._store.observers

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        return self._store.revision

    def list(self, collection: str, namespace: str | None) -> Iterator[Object]:
        """The objects of a collection, in the order of their names."""
        found = self._store.all(self._kinds[collection].resource, namespace or "")
        return (one.value for one in found)

    def get(self, collection: str, namespace: str | None, name: str) -> Object:
        """One object; KeyError where there is none."""
        return self._record(collection, namespace, name).value

    def create(self, collection: str, namespace: str | None, item: Object) -> Object:
        """Add an object, with a UID if it has none."""
        uid = item["metadata"].get("uid") or self._uid()
        value = self._whole(collection, namespace, item, {"uid": uid})
        return self._store.insert(self._kinds[collection].resource, value).value

    def update(self, collection: str, namespace: str | None, name: str, item: Object) -> Object:
        """Put an object in the place of another."""
        held = self._record(collection, namespace, name)
        value = self._whole(collection, namespace, item, {"name": name, "uid": held.uid})
        return self._store.replace(held.resource, value, held.revision).value

    def delete(self, collection: str, namespace: str | None, name: str) -> None:
        """Remove an object."""
        held = self._record(collection, namespace, name)
        self._store.remove(held.resource, held.namespace, name, held.revision)

    def compact(self) -> None:
        """Forget the history, as the server does after some minutes."""
        self._store.restore(self._store.revision, {})

    def backup(self) -> Backup:
        """All there is now."""
        return backup_of(self._store)

    def restored(self, backup: Backup) -> None:
        """Be what it was then, versions too; an open watch hears nothing of that."""
        restore(self._store, backup)

    def _record(self, collection: str, namespace: str | None, name: str) -> Record:
        found = self._store.get(self._kinds[collection].resource, namespace or "", name)
        if found is None:
            raise KeyError(name)
        return found

    def _whole(self, collection: str, namespace: str | None, item: Object, head: Object) -> Object:
        kind = self._kinds[collection]
        place = {"namespace": namespace} if namespace else {}
        types = {"apiVersion": kind.api_version, "kind": kind.kind}
        return types | item | {"metadata": item["metadata"] | head | place}

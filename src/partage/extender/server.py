"""The scheduler service over HTTP: every path of the design, on one aiohttp application.

The verbs answer as kube-scheduler expects. An error is a 200 with an `Error` in the body if the
verb's answer has such a field, because kube-scheduler reads no body with another status. For verbs
without the field (prioritize, preempt) it is a 400. An instance that does not serve answers 503. No
input leads to another 5xx.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec
from aiohttp import web

from partage.extender.exposition import exposition
from partage.extender.metrics import ServiceMetrics
from partage.extender.service import SchedulerService
from partage.extender.summaries import summaries, summary
from partage.model.errors import InvalidDocument
from partage.serving.access import Access
from partage.serving.limits import Limits, guard, json_response, read_body
from partage.serving.local import is_here
from partage.serving.site import Site
from partage.serving.tls import ServerTls
from partage.serving.turns import counted, waiting_elsewhere

_AWAY: Final = 503
_JSON: Final = "application/json"
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_SUMMARIES: Final = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
_SHOWN: Final = (
    "this token came by plain HTTP, where others can read it: make a new one, and send it by HTTPS or "
    "through kubectl port-forward"
)
_SCRAPES: Final = 32
_SCRAPES_OF_ONE: Final = 4
"""The most readers of the metrics at a time, and of one address. Each holds megabytes in a large cluster until it has
read them."""
_VERBS: Final = ("filter", "prioritize", "priorities", "bind", "preempt")


class Readers(Protocol):
    """Checks who may read explanations; in a cluster by a SubjectAccessReview for the namespace."""

    async def may_read(self, authorization: str, namespace: str, address: str = "") -> bool:
        """Whether the bearer of this `Authorization` header may read pods of the namespace.

        Args:
            namespace: the namespace of the pods; empty for all namespaces.

        Raises:
            web.HTTPTooManyRequests: too many checks of this caller wait.
        """


@dataclass(frozen=True, slots=True)
class Faces:
    """What the service shows, and to whom.

    Attributes:
        access: decides who may call the verbs.
        pod_series: `/metrics` writes series of single pods.
        readers: decides who may read explanations, and names of pods and namespaces; None allows every caller.
        published: metrics and node summaries show names of pods and namespaces to every caller, as the
            published documents do.
    """

    access: Access
    limits: Limits = Limits()
    pod_series: bool = False
    readers: Readers | None = None
    published: bool = False


async def may_read(readers: Readers | None, request: web.Request, namespace: str) -> bool:
    """Whether a caller may read pods of a namespace, or of all namespaces if it is empty.

    Raises:
        web.HTTPForbidden: a token arrived over plain HTTP from another machine, so others can read it on the way.
        web.HTTPTooManyRequests: too many checks of this caller wait.
    """
    if readers is None:
        return True
    header, address = request.headers.get("Authorization", ""), request.remote or ""
    if header and not request.secure and not is_here(address):
        raise web.HTTPForbidden(text=_SHOWN)
    async with waiting_elsewhere(request):
        return await readers.may_read(header, namespace, address)


def scheduler_site(
    service: SchedulerService,
    faces: Faces,
    routes: Iterable[web.RouteDef] = (),
    tls: ServerTls | None = None,
) -> Site:
    """The service on a port, not started yet.

    Args:
        routes: further routes beside the scheduler's.
        tls: certificates; None serves plain HTTP.
    """
    here = faces.access.here
    return Site(make_app(service, faces, routes), faces.limits, tls, here=here)


def make_app(
    service: SchedulerService, faces: Faces, routes: Iterable[web.RouteDef] = ()
) -> web.Application:
    """The application; `routes` are further ones, of the webhook and the dashboard."""
    pages = _Pages(service, faces)
    app = web.Application(middlewares=[guard()], client_max_size=faces.limits.body)
    app.add_routes([web.post(f"/scheduler/{verb}", partial(pages.verb, verb)) for verb in _VERBS])
    app.add_routes(
        [
            *probe_routes(service),
            web.get("/metrics", pages.metrics),
            web.get("/api/explain/{namespace}/{pod}", pages.explain),
            web.get(_SUMMARIES, pages.summaries),
            web.get(_SUMMARIES + "/", pages.summaries),
            web.get(_SUMMARIES + "/{node}", pages.summaries),
            *routes,
        ]
    )
    return app


def probe_routes(service: SchedulerService) -> list[web.RouteDef]:
    """The routes of the kubelet's two probes."""

    async def healthz(_request: web.Request) -> web.Response:
        """Liveness: answer that the process runs."""
        return web.Response(text="ok")

    async def readyz(_request: web.Request) -> web.Response:
        """Readiness: whether the books agree with the API server; a standby is ready too."""
        if not service.rebuilt:
            return web.Response(status=503, text="the ledger is not rebuilt yet")
        audit = service.last_audit
        if audit is not None and audit.broken:
            return web.Response(status=503, text=f"a rule of the ledger is broken: {audit.broken}")
        return web.Response(text="ok")

    return [web.get("/healthz", healthz), web.get("/readyz", readyz)]


class _Pages:
    """The handlers."""

    def __init__(self, service: SchedulerService, faces: Faces) -> None:
        self._service = service
        self._faces = faces
        self._metrics = ServiceMetrics(service, service.meters)
        self._scrapes: Counter[str] = Counter()

    async def verb(self, verb: str, request: web.Request) -> web.Response:
        """Answer one verb."""
        certificate = request.transport and request.transport.get_extra_info("peercert")
        if not self._faces.access.allows(request.headers.get("Authorization", ""), certificate):
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"})
        body = await read_body(request, self._faces.limits)
        status, answer = await self._answer(verb, body)
        response = web.Response(body=answer, status=status, content_type=_JSON)
        if status == _AWAY:
            # A caller that keeps its connection would continue to ask an instance that does not lead.
            response.force_close()
        return response

    async def _answer(self, verb: str, body: bytes) -> tuple[int, bytes]:
        """The status and the body of a verb's answer."""
        service = self._service
        if service.closed:
            return _AWAY, _message(service.closed)
        with service.meters.verbs.labels(verb).time():
            try:
                if verb == "bind":
                    return 200, await service.bind(body)
                if verb == "filter":
                    return 200, service.filter(body)
                if verb == "preempt":
                    return 200, service.preempt(body)
                return 200, service.prioritize(body)
            except InvalidDocument as error:
                return 400, _message(str(error))

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """All series for Prometheus, in pieces.

        Raises:
            web.HTTPTooManyRequests: too many scrapes run at this moment; each keeps its rows in memory.
        """
        address = request.remote or ""
        if self._scrapes[address] >= _SCRAPES_OF_ONE or self._scrapes.total() >= _SCRAPES:
            text = "too many read the metrics at this moment; try again"
            raise web.HTTPTooManyRequests(text=text, headers={"Retry-After": "1"})
        with counted(self._scrapes, address):
            return await self._scraped(request)

    async def _scraped(self, request: web.Request) -> web.StreamResponse:
        names = await self._names(request)
        response = web.StreamResponse(headers={"Content-Type": _METRICS})
        await response.prepare(request)
        await response.write(self._metrics.text())
        of_pods = self._faces.pod_series
        async for piece in exposition(self._service.books, of_pods=of_pods, names=names):
            if piece:
                # A slow client, or many scrapes, may delay this.
                async with waiting_elsewhere(request):
                    await response.write(piece)
        await response.write_eof()
        return response

    async def explain(self, request: web.Request) -> web.Response:
        """Explain why a pod is on its node, or why it waits."""
        namespace, name = request.match_info["namespace"], request.match_info["pod"]
        if not await may_read(self._faces.readers, request, namespace):
            raise web.HTTPForbidden(text=f"you may not read pods of namespace {namespace}")
        found = self._service.explain(namespace, name)
        if found is None:
            return json_response(
                {"message": f"pod {namespace}/{name} is not known, or asks for no device"}, 404
            )
        return json_response(found)

    async def _names(self, request: web.Request) -> bool:
        """Whether a caller may see names of pods and namespaces."""
        return self._faces.published or await may_read(self._faces.readers, request, "")

    async def summaries(self, request: web.Request) -> web.Response:
        """All nodes, or the one that the path names, as Koordinator's debug API prints them."""
        service, name = self._service, request.match_info.get("node")
        if not service.leading:
            return json_response({"message": "the instance is not leader"}, 503)
        names = await self._names(request)
        if name is None:
            return json_response(await summaries(service.books, names=names))
        found = summary(service.books, name, names=names)
        if found is None:
            return json_response({"message": f"cannot find node {name}"}, 404)
        return json_response(found)


def _message(text: str) -> bytes:
    return msgspec.json.encode({"message": text})

"""The webhook as a process: certificates of its own, settings that follow the cluster, no leader.

Every replica does the same. It reads the shared Secret, makes new certificates if they are due, has the
API server trust them, and only then serves with them. So an API server never meets a certificate that it
does not know. While a replica serves, it looks again every minute. If the API server cannot be reached,
the replica serves as before.

The meaning of a pod's resources depends on ConfigMaps (HAMi's names can be renamed). So the webhook
follows them, and adapts the conditions by which the API server selects pods to ask about.

The chart installs the configurations of the API server for the webhook. `Registration` keeps only two fields of our
webhooks correct, `caBundle` and `matchConditions`, because certificates are renewed and resources renamed while the
cluster runs. It writes changes only, so replicas that agree do not write at all.
"""

import asyncio
import base64
import logging
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from partage.daemon.certificates import CertificateStore, again, first, write_files
from partage.daemon.claim_relay import relay_route
from partage.daemon.informers import Feed
from partage.daemon.lifecycle import Beside, until
from partage.daemon.watched import config_maps
from partage.kube.client import Client, PatchKind
from partage.kube.clock import sleep_until
from partage.kube.errors import Conflict, Invalid, NotFound
from partage.kube.objects import Meta
from partage.kube.resources import Resource
from partage.kube.watch import WatchSettings
from partage.serving.limits import Limits
from partage.serving.site import Site, probe_site
from partage.serving.tls import ServerTls
from partage.tracing.tracer import NO_TRACES, SpanSeries, Tracer
from partage.vendors.settings import Settings
from partage.webhook.certificates import end_of
from partage.webhook.installation import CLAIMS, MUTATE, TRANSLATE, VALIDATE, Endpoint, conditions
from partage.webhook.server import make_app, probe_routes
from partage.webhook.settings import Admission
from partage.wire.config_book import ConfigBook
from partage.wire.context import Context
from partage.wire.documents import Document

_LOG: Final = logging.getLogger("partage.daemon")
_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_GROUP: Final = "admissionregistration.k8s.io"
CONFIGURATIONS: Final = (
    Resource(_GROUP, "v1", "mutatingwebhookconfigurations", namespaced=False),
    Resource(_GROUP, "v1", "validatingwebhookconfigurations", namespaced=False),
)
_OURS: Final = (MUTATE, TRANSLATE, VALIDATE, CLAIMS)
_TRIES: Final = 4
"""Writes of a configuration that others change at the same moment, such as another replica or helm."""


class _Configuration(msgspec.Struct, frozen=True):
    metadata: Meta
    webhooks: list[dict[str, Any]] | None = None


@dataclass(slots=True)
class Registration:
    """The two configurations of one name."""

    client: Client
    name: str

    async def keep(self, trusted: bytes, context: Context) -> bool:
        """Have the API server trust these authorities. Returns whether both configurations are correct now.

        `trusted`: PEM of the authorities. `context`: its resource names count as devices. Raises `KubeError`: a
        configuration can be neither read nor written.
        """
        # The list makes sure that the log reports the problems of both.
        return all([await self._keep(one, trusted, context) for one in CONFIGURATIONS])

    async def _keep(self, resource: Resource, trusted: bytes, context: Context) -> bool:
        name, kind, why = f"{resource.plural} {self.name}", PatchKind.JSON, ""
        for _ in range(_TRIES):
            try:
                held = await self.client.get(resource, self.name, into=_Configuration)
                steps = _steps(held, base64.b64encode(trusted).decode(), context)
                if steps:
                    await self.client.patch(
                        resource, self.name, steps, kind=kind, into=msgspec.Raw
                    )
                    _LOG.info("%s: has the authority and the rules of this webhook now", name)
                return True  # noqa: TRY300 # of the tries
            except NotFound:
                _LOG.warning("%s is not installed; the API server does not ask the webhook", name)
                return False
            except (Conflict, Invalid) as error:
                why = str(error)
        _LOG.info("%s was changed by another; next time: %s", name, why)
        return False


def _steps(held: _Configuration, bundle: str, context: Context) -> list[dict[str, Any]]:
    """A JSON patch of the differences, bound to the version that was read; empty if there are none."""
    steps: list[dict[str, Any]] = []
    for index, webhook in enumerate(held.webhooks or ()):
        if webhook.get("name") not in _OURS:
            continue
        if (webhook.get("clientConfig") or {}).get("caBundle") != bundle:
            steps.append(_put(f"/webhooks/{index}/clientConfig/caBundle", bundle))
        wanted = conditions(webhook["name"], context)
        if webhook.get("matchConditions") != wanted:
            steps.append(_put(f"/webhooks/{index}/matchConditions", wanted))
    if not steps:
        return []
    version = held.metadata.resource_version
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *steps]


def _put(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """One replica of the webhook; the help of `partage webhook` explains most fields.

    Attributes:
        port: 0 takes any free port.
        endpoint: where the API server reaches the webhook, and the name of the configurations.
        tls: certificates that another program manages; the webhook writes nothing to the cluster then.
        claims: URL of the scheduler service that answers about ResourceClaims; empty for none.
        period: seconds between two looks at the certificates; chance shortens it, so that replicas
            do not look at the same time.
    """

    host: str = "127.0.0.1"
    port: int = 0
    health_port: int | None = None
    endpoint: Endpoint = Endpoint()
    secret: str = "partage-webhook-tls"  # noqa: S105 # the name of an object
    tls: ServerTls | None = None
    admission: Admission = field(default_factory=Admission)
    claims: str = ""
    config_namespaces: tuple[str, ...] = ()
    config_names: tuple[str, ...] = ()
    limits: Limits = Limits()
    watches: WatchSettings = WatchSettings()
    period: float = 60.0
    tracer: Tracer = NO_TRACES


class WebhookDaemon(Beside):
    """One replica; use it as an async context manager, or `run` it. It reads pods with its present `context`."""

    def __init__(self, client: Client, options: WebhookOptions | None = None) -> None:
        super().__init__()
        self.options = options or WebhookOptions()
        self._client = client
        self._clock = client.clock
        endpoint = self.options.endpoint
        self._store = CertificateStore(
            client, endpoint.namespace, self.options.secret, endpoint.names
        )
        self._registration = Registration(client, endpoint.configuration)
        self._configs = ConfigBook(self.options.config_namespaces)
        self.context = Context.of(Settings())
        kinds = config_maps(self.options.config_namespaces, self.options.config_names)
        self._feed = Feed(client, kinds, self, self.options.watches)
        self._meters = _Meters()
        self._meters.registry.register(SpanSeries(self.options.tracer))
        self._renamed = asyncio.Event()
        self._site: Site | None = None
        self._probes = probe_site(probe_routes())

    # --- life --------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL of the webhook, without a trailing slash; empty before it serves."""
        return self._site.url if self._site else ""

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and path of all routes; none before it serves."""
        return self._site.routes if self._site else []

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises `OSError`: the port is taken; `InvalidValue`: unusable certificates."""
        with tempfile.TemporaryDirectory(prefix="partage-webhook-") as folder:
            try:
                await until(stop, self._work(Path(folder)), "webhook")
            except ExceptionGroup as group:
                # `except*` would put this error into a group again, on Python 3.11.2 and others.
                raise group.exceptions[0] from group
            finally:
                if self._site is not None:
                    await self._site.stop()
                await self._probes.stop()

    async def _work(self, folder: Path) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed.run(), name="webhook:feed")
            # Without the ConfigMaps, the webhook would not recognise renamed resources.
            await self._feed.refresh()
            renew = partial(self._renew, folder)
            if self.options.tls is None:
                await first(renew, self._clock)
            tls = self.options.tls or ServerTls(folder / "tls.crt", folder / "tls.key")
            await self._serve(tls)
            while True:
                await self._pause()
                if self.options.tls is None:
                    await again(renew)
                tls.refresh()

    async def _serve(self, tls: ServerTls) -> None:
        limits, claims = self.options.limits, self.options.claims
        relayed = [relay_route(claims.rstrip("/"), limits)] if claims else []
        app = make_app(
            lambda: self.context,
            lambda: self.options.admission,
            limits,
            [web.get("/metrics", self._metrics), *relayed],
            self.options.tracer,
        )
        site = Site(app, limits, tls)
        await site.start(self.options.host, self.options.port)
        self._site = site
        if self.options.health_port is not None:
            await self._probes.start(self.options.host, self.options.health_port)
        _LOG.info("listening on %s", site.url)
        self.ready.set()

    # --- certificates ------------------------------------------------------------------------

    async def _renew(self, folder: Path) -> None:
        """Read or make the certificates, have the API server trust them, and only then serve with them."""
        bundle = await self._store.current()
        self._meters.registered.set(await self._registration.keep(bundle.trusted, self.context))
        write_files(folder, bundle)
        self._meters.end.set(end_of(bundle).timestamp())

    async def _pause(self) -> None:
        seconds = self.options.period * (1.0 - 0.5 * self._client.chance())
        try:
            await sleep_until(self._clock, seconds, self._renamed)
        finally:
            self._renamed.clear()

    # --- settings ----------------------------------------------------------------------------

    def changed(self, document: Document) -> None:
        """See `informers.Facts`."""
        if self._configs.changed(document):
            self._read()
        problem = self._configs.refused.get(document.label)
        if problem:
            _LOG.error(
                "%s is refused, so the former settings stay in force: %s", document.label, problem
            )
        self._meters.refused.set(len(self._configs.refused))

    def gone(self, document: Document) -> None:
        """See `informers.Facts`."""
        if self._configs.gone(document):
            self._read()
        self._meters.refused.set(len(self._configs.refused))

    def _read(self) -> None:
        before = self.context
        self.context = Context.of(self._configs.configuration.settings)
        if before.owners.keys() != self.context.owners.keys():
            self._renamed.set()

    async def _metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._meters.registry)
        return web.Response(body=body, headers={"Content-Type": _METRICS})


class _Meters:
    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.end = Gauge(
            "partage_webhook_certificate_end_seconds",
            "End of the served certificate, seconds since 1970; 0 if Partage does not manage it.",
            registry=self.registry,
        )
        self.registered = Gauge(
            "partage_webhook_registered",
            "1 if the API server is configured to trust the served certificate.",
            registry=self.registry,
        )
        self.refused = Gauge(
            "partage_refused_config_maps",
            "ConfigMaps that break a rule; their last good state is still in force.",
            registry=self.registry,
        )

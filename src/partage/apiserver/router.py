"""Finds the handler of a path: health, discovery, OpenAPI, resources."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from aiohttp import web

from partage.apiserver import discovery, gnostic, openapi, paths
from partage.apiserver.admission import ADMIN, User
from partage.apiserver.exchange import Exchange
from partage.apiserver.kinds import Registry
from partage.apiserver.negotiation import JSON, discovery_version
from partage.apiserver.status import (
    ApiError,
    internal,
    method_not_allowed,
    unauthorized,
    unknown_path,
)
from partage.apiserver.verbs import Verbs
from partage.serving.guarded import asking, in_pieces
from partage.serving.local import stranger
from partage.serving.turns import Pace

_HEALTH: Final = ("healthz", "livez", "readyz")
_PATHS: Final = sorted(
    ["/api", "/apis", "/openapi/v2", "/openapi/v3", "/version", *(f"/{one}" for one in _HEALTH)]
)
_ANYONE: Final = User("system:anonymous", ("system:unauthenticated",))
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Router:
    """Answers every request.

    Attributes:
        here: whether only this machine can connect, so that browsers' pages must be rejected.
        patience: seconds for the arrival of a body.
    """

    registry: Registry
    verbs: Verbs
    tokens: Mapping[str, User] = field(default_factory=dict)
    anonymous: User | None = None
    here: bool = False
    patience: float = 15.0
    _documents: dict[str, bytes] = field(default_factory=dict)
    _at: int = -1
    _pace: Pace = field(default_factory=Pace)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to a request; refusals and faults become `Status` documents."""
        parts = tuple(unquote(part) for part in request.rel_url.raw_path.strip("/").split("/"))
        exchange = Exchange(request, parts, _ANYONE, self._pace)
        try:
            with asking(request):
                return await in_pieces(request, await self._route(request, parts))
        except ApiError as error:
            return exchange.refusal(error)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 # a fault in one request must not end others
            _log.exception("%s %s", request.method, request.path)
            return exchange.refusal(internal(f"{type(error).__name__}; see the server's log"))

    async def _route(self, request: web.BaseRequest, parts: tuple[str, ...]) -> web.StreamResponse:
        why = stranger(request.headers) if self.here else ""
        if why:
            raise ApiError(403, "Forbidden", why)
        if parts[0] in _HEALTH:
            return web.Response(text="ok")
        exchange = Exchange(request, parts, self._user(request), self._pace, self.patience)
        if request.method == "GET":  # others wait for their turn after their body has arrived
            await self._pace.turn()
        target = paths.target_of(parts)
        if target is not None:
            call = paths.call_for(self.registry, target, exchange.query, exchange.user)
            try:
                return await self.verbs.serve(exchange, call, watching=target.watch)
            except ApiError as error:
                return exchange.refusal(error, call.warnings)
        if request.method != "GET":
            raise method_not_allowed()
        return self._document(exchange)

    def _user(self, request: web.BaseRequest) -> User:
        if not self.tokens:
            return ADMIN
        given = request.headers.get("Authorization", "")
        if not given and self.anonymous is not None:
            return self.anonymous
        scheme, _space, token = given.partition(" ")
        user = self.tokens.get(token) if scheme.lower() == "bearer" else None
        if user is None:
            raise unauthorized()
        return user

    def _document(self, exchange: Exchange) -> web.Response:
        """Discovery and OpenAPI, which change only with the resources."""
        parts, accept = exchange.parts, exchange.request.headers.get("Accept", "")
        if parts == ("version",):
            return exchange.answer(discovery.VERSION)
        wanted = discovery_version(accept)
        if wanted and parts in (("api",), ("apis",)):
            media = f"application/json;g=apidiscovery.k8s.io;v={wanted};as=APIGroupDiscoveryList"
            text = self._kept(
                f"{wanted} {parts[0]}",
                lambda: discovery.aggregated(self.registry, wanted, core=parts[0] == "api"),
            )
            return exchange.text(text, media=media)
        if parts == ("openapi", "v2") and gnostic.ASKED in accept:
            text = self._kept("v2 as protobuf", lambda: gnostic.encoded(openapi.v2(self.registry)))
            return exchange.text(text, media=gnostic.MEDIA)
        if parts[0] == "openapi" and "json" not in accept and "*/*" not in accept and accept:
            raise ApiError(406, "NotAcceptable", f"only {JSON} is served")
        address = exchange.request.host
        text = self._kept(f"{'/'.join(parts)} {address}", lambda: self._made(parts, address))
        return exchange.text(text)

    def _kept(self, key: str, make: Any) -> bytes:
        """A document's text, made again only after a change of resources."""
        found = self._documents.get(key)
        if found is None or self._at != self.registry.counter:
            if self._at != self.registry.counter or len(self._documents) > 500:
                self._documents.clear()
                self._at = self.registry.counter
            value = make()
            if value is None:
                raise unknown_path()
            text = value if isinstance(value, bytes) else msgspec.json.encode(value)
            found = self._documents[key] = text
        return found

    def _made(self, parts: tuple[str, ...], address: str) -> Any:
        registry, found = self.registry, None
        match parts:
            case ("",):
                found = {"paths": _PATHS}
            case ("api",):
                found = discovery.core_versions(address)
            case ("api", version):
                found = discovery.resources(registry, "", version)
            case ("apis",):
                found = discovery.groups(registry)
            case ("apis", group):
                found = discovery.group(registry, group)
            case ("apis", group, version):
                found = discovery.resources(registry, group, version)
            case ("openapi", "v2"):
                found = openapi.v2(registry)
            case ("openapi", "v3"):
                found = openapi.index(registry)
            case ("openapi", "v3", "api", version):
                found = openapi.v3(registry, "", version)
            case ("openapi", "v3", "apis", group, version):
                found = openapi.v3(registry, group, version)
        return found

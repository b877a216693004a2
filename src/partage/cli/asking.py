"""Chooses the source of answers for `explain`, `top` and `inspect`: the scheduler service, the API server, or files.

The service knows its last answer to kube-scheduler. Without the service, the command reads the cluster's objects
and asks an engine of its own: the same rules over the same objects, with no rights beyond those that
`kubectl get` needs. Both sources give the same documents (`cli.engine_here`).
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from partage.cli.answering import Asked
from partage.dashboard.queries import NodeQuery, PodQuery
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config, Material, UserConfig, is_url
from partage.kube.errors import (
    ApiError,
    BadRequest,
    ConfigError,
    Forbidden,
    KubeError,
    NotServed,
    RequestError,
    TransportError,
    Unauthorized,
)
from partage.kube.sender import ClientSettings
from partage.kube.transport import TransportSettings
from partage.model.errors import InvalidDocument, PartageError

_T = TypeVar("_T")
HEARD: Final = TransportSettings(heard=True, plugin_timeout=600.0)
"""For commands of a person, whom a credential plugin may ask to log in."""
_SETTINGS: Final = ClientSettings(HEARD, attempts=2)
"""A person waits for the answer, so there is one retry, then an error."""


class CannotAsk(PartageError):
    """No answer: no configuration, no right or no server; the message has a remedy."""


@dataclass(frozen=True, slots=True)
class Where:
    """The source to ask; fields have the names of their options, whose help explains them.

    Attributes:
        placing: whether to place the manifests' pods without a node first, as `partage schedule` does.
    """

    scheduler: str = ""
    service: str = ""
    files: tuple[str, ...] = ()
    strict: bool = False
    placing: bool = False
    kubeconfig: Path | None = None
    context: str | None = None
    token_file: Path | None = None
    authority: Path | None = None


def ask(where: Where, question: Callable[[Asked], Awaitable[_T]]) -> _T:
    """The answer. Raises `CannotAsk`."""

    async def asking() -> _T:
        async with _answering(where) as asked:
            return await question(asked)

    try:
        return asyncio.run(asking())
    except ConfigError as error:
        other = "" if where.scheduler else "a scheduler with --scheduler, or "
        raise CannotAsk(f"{error}. Or name {other}manifests with -f") from error
    except InvalidDocument as error:
        raise CannotAsk(str(error)) from error
    except KubeError as error:
        raise CannotAsk(_unreachable(where, error)) from error


def told_of(error: KubeError) -> str:
    """The error of a request to the API server, and a remedy."""
    return _unreachable(Where(), error)


def _unreachable(where: Where, error: KubeError) -> str:
    """The error of the request, and a remedy."""
    who = "the scheduler service" if where.scheduler or where.service else "the API server"
    if isinstance(error, Unauthorized):
        return f"{who} does not know you: {error}. Renew the credentials of your kubeconfig"
    if isinstance(error, Forbidden):
        if where.scheduler or where.service:
            return (
                f"{who} does not let you read: {error}. Give a token with --token-file whose user "
                "may get pods there; the API server's proxy passes none on, so use --scheduler"
            )
        return (
            f"you may not read what decisions depend on: {error}. Ask for get and list on nodes, "
            "pods, configmaps, resourcequotas and devices.scheduling.koordinator.sh, or name the "
            "scheduler service with --scheduler or --service"
        )
    if isinstance(error, TransportError):
        return f"{who} cannot be reached: {error}. Check the address and whether it is running"
    if isinstance(error, ApiError | RequestError):
        return f"{who} did not answer: {error}. Check that the address is that of {who}"
    return f"{who}: {error}"


@contextlib.asynccontextmanager
async def _answering(where: Where) -> AsyncIterator[Asked]:
    if where.scheduler:
        client = Client(_service_config(where), settings=_SETTINGS)
        async with client:
            yield Asked(ServiceViews(client, ""), f"the scheduler service at {where.scheduler}")
        return
    if where.files:
        from partage.cli.engine_here import over_files  # noqa: PLC0415 # loads the books

        yield await over_files(where.files, strict=where.strict, placing=where.placing)
        return
    from partage.kube.loading import load_config  # noqa: PLC0415 # with YAML, which --scheduler does without

    config = load_config(os.environ, kubeconfig=where.kubeconfig, context=where.context)
    async with Client(config, settings=_SETTINGS, environ=os.environ) as client:
        if where.service:
            prefix = _proxy(where.service)
            yield Asked(
                ServiceViews(client, prefix),
                f"the scheduler service {where.service}, through the API server",
                config.namespace,
            )
            return
        from partage.cli.engine_here import over_cluster  # noqa: PLC0415 # loads the books

        yield await over_cluster(client, config)


def _service_config(where: Where) -> Config:
    if not is_url(where.scheduler):
        raise CannotAsk(
            f"--scheduler {where.scheduler}: must be a URL, such as http://127.0.0.1:10251"
        )
    authority = Material(path=where.authority) if where.authority else None
    cluster = ClusterConfig(where.scheduler.rstrip("/"), authority=authority)
    return Config(cluster, UserConfig(token_file=where.token_file))


def _proxy(service: str) -> str:
    """The path of a service behind the API server."""
    namespace, slash, rest = service.partition("/")
    name, colon, port = rest.rpartition(":")
    if not (slash and colon and namespace and name and port) or "/" in rest:
        raise CannotAsk(
            f"--service {service}: must be NAMESPACE/NAME:PORT, such as "
            "partage-system/partage-metrics:metrics, or NAMESPACE/https:NAME:PORT"
        )
    parts = quote(namespace, safe=""), quote(f"{name}:{port}", safe=":")
    return f"/api/v1/namespaces/{parts[0]}/services/{parts[1]}/proxy"


class ServiceViews:
    """A scheduler service's views; see `dashboard.queries.Views`."""

    def __init__(self, client: Client, prefix: str) -> None:
        """Views; `prefix` precedes every path, and is empty if the client asks the service directly."""
        self._client = client
        self._prefix = prefix

    async def overview(self) -> dict[str, Any]:
        """See `Views`."""
        return await self._read("/api/overview")

    async def nodes(self, query: NodeQuery) -> dict[str, Any]:
        """See `Views`.

        A service of an earlier release has no answer without cards, and does not report a node's number of cards.
        """
        try:
            found = await self._read("/api/nodes", asdict(query))
        except BadRequest:
            if not query.cards:
                raise
            found = await self._read("/api/nodes", asdict(replace(query, cards="")))
        for node in found["nodes"]:
            if "devices" not in node:
                node["devices"] = Counter(card["type"] for card in node["cards"])
        return found

    async def node(self, name: str) -> dict[str, Any] | None:
        """See `Views`."""
        return await self._read_one(f"/api/node/{quote(name, safe='')}")

    async def pods(self, query: PodQuery) -> dict[str, Any]:
        """See `Views`."""
        return await self._read("/api/pods", asdict(query))

    async def explain(self, namespace: str, name: str) -> dict[str, Any] | None:
        """See `Views`."""
        return await self._read_one(
            f"/api/explain/{quote(namespace, safe='')}/{quote(name, safe='')}"
        )

    async def _read_one(self, path: str) -> dict[str, Any] | None:
        """None where the service knows no such object. A 404 with a reason is the API server's: there is no such service."""
        try:
            return await self._read(path)
        except NotServed as error:
            if error.reason:
                raise
            return None

    async def _read(self, path: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
        given = {key: str(value) for key, value in (query or {}).items() if value not in ("", 0)}
        found: dict[str, Any] = await self._client.read(
            self._prefix + path, into=dict[str, Any], query=given
        )
        return found

"""Who answers `explain`, `top` and `inspect`: the scheduler service, the API server, or files.

The service knows what it told kube-scheduler last. Other programs may read the cluster's objects
and have the engine say what it would say of them: the same rules over the same objects, with no
other rights than `kubectl get` needs. Both give the same documents (`dashboard.views`).
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from partage.cli.reading import batches
from partage.daemon.watched import PRIORITIES, as_document, watched
from partage.dashboard.nodes import NodeQuery
from partage.dashboard.views import BookViews, Views
from partage.dashboard.workloads import PodQuery, waiting_pods
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.extender.rebuild import filled, permuted
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config, Material, UserConfig
from partage.kube.errors import (
    ApiError,
    ConfigError,
    Forbidden,
    KubeError,
    NotFound,
    RequestError,
    TransportError,
    Unauthorized,
)
from partage.kube.loading import load_config
from partage.kube.sender import ClientSettings
from partage.kube.transport import TransportSettings
from partage.model.errors import InvalidDocument, PartageError
from partage.model.reason import Refusal
from partage.scheduler.events import BindSucceeded
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.workloads import with_pods

_T = TypeVar("_T")
HEARD: Final = TransportSettings(heard=True, plugin_timeout=600.0)
"""Of a command that a person has typed, whom a credential plugin may ask to log in."""
_SETTINGS: Final = ClientSettings(HEARD, attempts=2)
"""Somebody waits for the answer: one retry, then say what is wrong."""
_NEEDED: Final = frozenset({"Node", "Pod"})
_OPTIONAL_LOSS: Final = {
    "ConfigMap": "the protocols' published defaults are taken to hold",
    "ResourceQuota": "quotas are left out",
    "PriorityClass": "pods of manifests that name one count as of priority 0",
    "Device": "cards that only Device objects describe are left out",
    "ResourceClaim": "what claims hold of cards is left out",
}


class CannotAsk(PartageError):
    """Nobody answers: no configuration, no right, nobody there; says what to try."""


@dataclass(frozen=True, slots=True)
class Where:
    """Whom to ask.

    Attributes:
        scheduler: URL of the service; empty for not.
        service: `NAMESPACE/NAME:PORT` behind the API server's proxy; empty for not.
        files: manifests that stand for a cluster.
        strict: see `batches`.
        placing: whether their pods without a node get places first, as by `partage schedule`.
        kubeconfig: as kubectl's.
        context: of the kubeconfig.
        token_file: a bearer token for the service.
        authority: certificate authority of the service.
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


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody who answers.

    Attributes:
        views: the answers.
        told: who that is, for people.
        namespace: the one that is meant where none is named.
        conditions: what kube-scheduler wrote on waiting pods, by `namespace/name`.
        pods: every pod that there is, with devices or without; None where that is not known.
        placed: pods of manifests, by `namespace/name`, that had no node and get a place; None where
            no manifests were given.
        notes: what could not be read, and what that means.
    """

    views: Views
    told: str
    namespace: str = "default"
    conditions: dict[str, str] | None = None
    pods: frozenset[str] | None = None
    placed: frozenset[str] | None = None
    notes: tuple[str, ...] = ()


def ask(where: Where, question: Callable[[Asked], Awaitable[_T]]) -> _T:
    """What somebody answers.

    Raises:
        CannotAsk: nobody answers.
    """

    async def asking() -> _T:
        async with _answering(where) as asked:
            return await question(asked)

    try:
        return asyncio.run(asking())
    except ConfigError as error:
        raise CannotAsk(
            f"{error}. Name a kubeconfig with --kubeconfig, a scheduler with --scheduler, or "
            "manifests with -f"
        ) from error
    except InvalidDocument as error:
        raise CannotAsk(str(error)) from error
    except KubeError as error:
        raise CannotAsk(_unreachable(where, error)) from error


def told_of(error: KubeError) -> str:
    """What went wrong on the way to the API server, and what to try."""
    return _unreachable(Where(), error)


def _unreachable(where: Where, error: KubeError) -> str:
    """What went wrong on the way, and what to try."""
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
        documents, notes = _from_files(where)
        yield await _offline(
            documents,
            "the engine, over the manifests given",
            notes=notes,
            written=True,
            placing=where.placing,
        )
        return
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
        documents, notes = await listed(client)
        told = f"the engine, over the objects of {config.cluster.server}"
        yield await _offline(documents, told, config.namespace, notes)


def _service_config(where: Where) -> Config:
    authority = Material(path=where.authority) if where.authority else None
    cluster = ClusterConfig(where.scheduler.rstrip("/"), authority=authority)
    return Config(cluster, UserConfig(token_file=where.token_file))


def _proxy(service: str) -> str:
    """The path of a service behind the API server.

    Raises:
        CannotAsk: it is not `NAMESPACE/NAME:PORT`.
    """
    namespace, slash, rest = service.partition("/")
    name, colon, port = rest.rpartition(":")
    if not (slash and colon and namespace and name and port) or "/" in rest:
        raise CannotAsk(
            f"--service {service}: must be NAMESPACE/NAME:PORT, such as "
            "partage-system/partage-scheduler:8443, or NAMESPACE/https:NAME:PORT"
        )
    parts = quote(namespace, safe=""), quote(f"{name}:{port}", safe=":")
    return f"/api/v1/namespaces/{parts[0]}/services/{parts[1]}/proxy"


# --- the service -----------------------------------------------------------------------------


class ServiceViews:
    """Views that a scheduler service answers; see `dashboard.views.Views`."""

    def __init__(self, client: Client, prefix: str) -> None:
        """Views.

        Args:
            client: an open client.
            prefix: before every path; empty where the client speaks to the service itself.
        """
        self._client = client
        self._prefix = prefix

    async def overview(self) -> dict[str, Any]:
        """See `Views`."""
        return await self._read("/api/overview")

    async def nodes(self, query: NodeQuery) -> dict[str, Any]:
        """See `Views`."""
        return await self._read("/api/nodes", asdict(query))

    async def node(self, name: str) -> dict[str, Any] | None:
        """See `Views`."""
        with contextlib.suppress(NotFound):
            return await self._read(f"/api/node/{quote(name, safe='')}")
        return None

    async def pods(self, query: PodQuery) -> dict[str, Any]:
        """See `Views`."""
        return await self._read("/api/pods", asdict(query))

    async def explain(self, namespace: str, name: str) -> dict[str, Any] | None:
        """See `Views`."""
        path = f"/api/explain/{quote(namespace, safe='')}/{quote(name, safe='')}"
        with contextlib.suppress(NotFound):
            return await self._read(path)
        return None

    async def _read(self, path: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
        given = {key: str(value) for key, value in (query or {}).items() if value not in ("", 0)}
        found: dict[str, Any] = await self._client.read(
            self._prefix + path, into=dict[str, Any], query=given
        )
        return found


# --- the engine here -------------------------------------------------------------------------


def _from_files(where: Where) -> tuple[list[Document], tuple[str, ...]]:
    read = list(batches(where.files, strict=where.strict))
    documents = list(with_pods([document for batch in read for document in batch.documents]))
    return documents, tuple(note for batch in read for note in batch.notes)


def _silent(_kind: str, _count: int) -> None:
    """Tells nobody."""


async def listed(
    client: Client, progress: Callable[[str, int], None] = _silent, *, priorities: bool = False
) -> tuple[list[Document], tuple[str, ...]]:
    """Everything that decisions depend on, and what could not be read.

    Args:
        client: an open client.
        progress: told each kind and how many objects of it there are.
        priorities: list PriorityClasses too; a server writes their values into pods anyway.

    Raises:
        KubeError: nodes or pods cannot be listed.
    """
    documents: list[Document] = []
    notes: list[str] = []
    kinds = watched(claims=True)
    for kind in (PRIORITIES, *kinds) if priorities else kinds:
        try:
            listing = await client.list_all(kind.scope, into=kind.into)
        except NotFound:
            if not kind.optional:
                raise
            continue
        except Forbidden:
            if kind.kind in _NEEDED:
                raise
            notes.append(
                f"you may not list {kind.scope.resource.plural}: {_OPTIONAL_LOSS[kind.kind]}"
            )
            continue
        progress(kind.kind, len(listing.items))
        documents += [as_document(kind.kind, item) for item in listing.items]
        notes += [
            f"{kind.kind} {odd.meta.namespace}/{odd.meta.name} cannot be read: {odd.problem}"
            for odd in listing.undecodable
        ]
    return documents, tuple(notes)


async def _offline(
    documents: list[Document],
    told: str,
    namespace: str = "default",
    notes: tuple[str, ...] = (),
    *,
    written: bool = False,
    placing: bool = False,
) -> Asked:
    """Somebody who has read everything: books as the service would make them.

    Args:
        documents: everything.
        told: who answers, for people.
        namespace: the one that is meant where none is named.
        notes: what could not be read.
        written: manifests, whose nodes come in the order written, and where a Device object may
            stand for its node.
        placing: pods get their places in the order of `partage schedule`, so that both say the same.
    """
    by: dict[str, list[Document]] = {}
    for document in documents:
        by.setdefault(document.kind, []).append(document)
    nodes, devices, pods = (by.get(kind, []) for kind in ("Node", "Device", "Pod"))
    if written:
        known = {node.name for node in nodes}
        nodes += [_stand_in(device) for device in devices if device.name not in known]
    else:
        nodes = list(permuted(nodes, 0))
    configs = [*by.get("ConfigMap", []), *by.get("ResourceQuota", [])]
    books = await filled(
        Books(ClusterCache(), Hooks()),
        Books(ClusterCache(), Hooks()),
        (configs, devices, nodes, pods, by.get("ResourceClaim", [])),
        0.0,
    )
    waiting, placed = list(waiting_pods(books)), set()
    if placing:
        waiting.sort(key=lambda entry: -entry.pod.priority)
    for entry in waiting:
        pod, engine = entry.pod, books.engine
        decision = engine.schedule(pod) if placing else engine.evaluate(pod)
        if isinstance(decision, Refusal):
            books.refuse(entry, decision, 0.0)
        elif placing:
            engine.handle(BindSucceeded(pod.uid))
            placed.add(f"{pod.namespace}/{pod.name}")
    return Asked(
        BookViews(books, settled=placing),
        told,
        namespace,
        placed=frozenset(placed) if placing else None,
        conditions={
            f"{pod.namespace}/{pod.name}": said for pod in pods if (said := _condition(pod))
        },
        pods=frozenset(f"{pod.namespace}/{pod.name}" for pod in pods),
        notes=notes,
    )


def _stand_in(device: Document) -> Document:
    """A Node for a Device object that has none."""
    shape = shapes.Node(metadata=shapes.Metadata(name=device.name))
    return Document("Node", device.source, device.number, shape)


def _condition(document: Document) -> str:
    """What kube-scheduler wrote last on a pod that it could not place."""
    shape = document.shape
    status = shape.status if isinstance(shape, shapes.Pod) else None
    for one in (status.conditions if status else None) or ():
        if one.type == "PodScheduled" and one.status == "False":
            return one.message or one.reason or ""
    return ""

"""The engine in this process, over objects of a cluster or over manifests: books as the service would make them."""

from collections.abc import Callable, Sequence
from typing import Final

from partage.cli.answering import Asked
from partage.cli.reading import batches
from partage.daemon.watched import PRIORITIES, as_document, watched
from partage.dashboard.views import BookViews
from partage.dashboard.workloads import waiting_pods
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.extender.rebuild import filled, permuted
from partage.kube.client import Client
from partage.kube.config import Config
from partage.kube.errors import Forbidden, NotFound
from partage.model.reason import Refusal
from partage.scheduler.events import BindSucceeded
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.workloads import with_pods

_NEEDED: Final = frozenset({"Node", "Pod"})
_OPTIONAL_LOSS: Final = {
    "ConfigMap": "the protocols' published defaults are taken to hold",
    "ResourceQuota": "quotas are left out",
    "PriorityClass": "pods of manifests that name one count as of priority 0",
    "Device": "cards that only Device objects describe are left out",
    "ResourceClaim": "what claims hold of cards is left out",
}


async def over_files(files: Sequence[str], *, strict: bool, placing: bool) -> Asked:
    """Over manifests.

    Args:
        files: their names.
        strict: see `batches`.
        placing: whether their pods without a node get places first.

    Raises:
        InvalidDocument: one of them cannot be read.
    """
    read = list(batches(files, strict=strict))
    documents = list(with_pods([document for batch in read for document in batch.documents]))
    return await _over(
        documents,
        "the engine, over the manifests given",
        notes=tuple(note for batch in read for note in batch.notes),
        written=True,
        placing=placing,
    )


async def over_cluster(client: Client, config: Config) -> Asked:
    """Over the objects of a cluster.

    Raises:
        KubeError: nodes or pods cannot be listed.
    """
    documents, notes = await listed(client)
    told = f"the engine, over the objects of {config.cluster.server}"
    return await _over(documents, told, config.namespace, notes)


def _silent(_kind: str, _count: int) -> None:
    """Report no progress."""


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


async def _over(
    documents: list[Document],
    told: str,
    namespace: str = "default",
    notes: tuple[str, ...] = (),
    *,
    written: bool = False,
    placing: bool = False,
) -> Asked:
    """Books as the service would make them, and what they answer.

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

"""The engine in this process, over a cluster's objects or manifests, with the same books as the service.

It answers the questions of `dashboard.queries`. An allocator adds the answers about pods that name ResourceClaims, because the books alone know nothing of these.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from partage.cli.answering import Asked
from partage.cli.listing import listed, of_kinds
from partage.cli.reading import batches
from partage.daemon.watched import CLAIM_OFFERS, CLASSES
from partage.dashboard.nodes import node_document, nodes_document
from partage.dashboard.overview import overview_document
from partage.dashboard.queries import NodeQuery, PodQuery
from partage.dashboard.workloads import pods_document, waiting_pods
from partage.extender.books import Books
from partage.extender.claims_told import with_claims
from partage.extender.cluster_cache import ClusterCache
from partage.extender.explain import explain
from partage.extender.ports import Hooks
from partage.extender.rebuild import filled
from partage.kube.client import Client
from partage.kube.config import Config
from partage.model.errors import InvalidDocument
from partage.model.pod import Pod
from partage.model.reason import Refusal
from partage.scheduler.events import BindSucceeded, NodeSeen
from partage.sim.claims import ClaimAllocator
from partage.sim.offline import inform
from partage.wire.cluster import twins_closed
from partage.wire.config import keys_read
from partage.wire.device_pools import bare_node, node_told
from partage.wire.device_requests import claims_left_out, claims_named
from partage.wire.documents import Document
from partage.wire.near_names import unread_names
from partage.wire.pod_phase import condition
from partage.wire.pods import translate_pod
from partage.wire.translation import PodEntry
from partage.wire.workloads import with_pods

Made = ClaimAllocator | Callable[[], Awaitable[ClaimAllocator]]


class BookViews:
    """Views of books in this process."""

    def __init__(
        self,
        books: Books,
        claimants: Mapping[str, Document],
        allocator: Made,
        asked: Mapping[str, Pod],
        *,
        settled: bool,
    ) -> None:
        """Views.

        Args:
            claimants: pods that name claims, by `namespace/name`.
            allocator: allocates claims, and judges waiting ones in lists of pods too; or a function that makes
                it when an explanation needs it.
            asked: pods with their requests beside devices, by `namespace/name`, if the books have the nodes' amounts.
            settled: every pod has been tried, and waiting ones are not tried again.
        """
        self._books, self._settled = books, settled
        self._claimants, self._allocator = claimants, allocator
        self._asked = asked

    async def overview(self) -> dict[str, Any]:
        """See `Views`."""
        return await overview_document(self._books)

    async def nodes(self, query: NodeQuery) -> dict[str, Any]:
        """See `Views`."""
        return await nodes_document(self._books, query)

    async def node(self, name: str) -> dict[str, Any] | None:
        """See `Views`; only a running service has the history."""
        found = node_document(self._books, name)
        return found and found | {"history": None}

    async def pods(self, query: PodQuery) -> dict[str, Any]:
        """See `Views`."""
        found = await pods_document(self._books, query)
        for pod in found["pods"]:
            document = self._claimants.get(f"{pod['namespace']}/{pod['name']}")
            if document is not None and pod["node"] is None:
                self._judge(pod, document)
        return found

    def _judge(self, pod: dict[str, Any], document: Document) -> None:
        """The reason why a pod's claims wait; nothing if devices are free."""
        if isinstance(self._allocator, ClaimAllocator):
            asked = read(self._books, document).pod
            decision = self._allocator.decide(asked, document, keep=False)
            why = decision if isinstance(decision, Refusal) else None
            pod |= {"code": why and why.code.value, "message": why and why.message}

    async def explain(self, namespace: str, name: str) -> dict[str, Any] | None:
        """See `Views`."""
        document = self._claimants.get(f"{namespace}/{name}")
        asked = self._asked.get(f"{namespace}/{name}")
        host = asked.host if asked else None
        if document is None:
            return explain(self._books, namespace, name, settled=self._settled, host=host)
        if not isinstance(self._allocator, ClaimAllocator):
            self._allocator = await self._allocator()
        allocator = self._allocator
        claimant = (
            read(self._books, document),
            lambda pod, _work: allocator.decide(pod, document, keep=False),
        )
        found = explain(
            self._books, namespace, name, settled=self._settled, claimant=claimant, host=host
        )
        if found is None:
            return None
        held, asks = allocator.held(document), allocator.asks(document)
        ledger = self._books.engine.ledger
        return with_claims(ledger, found, document, held, asks, allocator.notes)


def read(books: Books, document: Document) -> PodEntry:
    """A pod in the books' form."""
    known = books.cluster_cache.pod_named(document.namespace, document.name)
    return known or books.cluster_cache.translation.read(document)


_KEPT: Final = ("ConfigMap", "ResourceQuota")
"""Kinds whose last good object the service keeps in force."""
_TOLD: Final = 3
"""Most named namespaces with settings."""
Offers = Callable[[], Awaitable[tuple[list[Document], tuple[str, ...]]]]


async def over_files(files: Sequence[str], *, strict: bool, placing: bool) -> Asked:
    """Answers over manifests. Raises `InvalidDocument`: one of them cannot be read.

    `strict`: see `batches`. `placing`: whether to place their pods without a node first.
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
    """Answers over the objects of a cluster. Raises `KubeError`: nodes or pods cannot be listed."""
    documents, notes = await listed(client)
    if any(map(claims_named, documents)):
        classes, unread = await of_kinds(client, [CLASSES])
        documents, notes = [*documents, *classes], (*notes, *unread)
    told = f"the engine, over the objects of {config.cluster.server}"
    notes = (*notes, *settings_of_several(documents))

    async def offers() -> tuple[list[Document], tuple[str, ...]]:
        return await of_kinds(client, CLAIM_OFFERS)

    return await _over(documents, told, config.namespace, notes, offers=offers)


async def _over(
    documents: list[Document],
    told: str,
    namespace: str = "default",
    notes: tuple[str, ...] = (),
    *,
    offers: Offers | None = None,
    written: bool = False,
    placing: bool = False,
) -> Asked:
    """Answers from books like the service's.

    Args:
        namespace: the default one.
        offers: lists the sources of claims' allocations; None if the documents have them.
        written: manifests, with nodes in the order written. A Device object or ResourceSlice may replace its
            node, and a card that two nodes claim is closed.
        placing: pods get their places in the order of `partage schedule`, so that both agree.
    """
    books = await _books(documents, written=written)
    notes = (*notes, *_unusable(books, documents), *claims_left_out(documents))
    pods = [one for one in documents if one.kind == "Pod"]
    asked = _asked(books, pods) if placing else {}
    if written:
        seen = map(books.cluster_cache.as_read, books.engine.ledger.index)
        closed, told_of_twins = twins_closed(one for one in seen if one is not None)
        books.digest(map(NodeSeen, closed))
        notes = (*notes, *told_of_twins)
    claimants = {f"{one.namespace}/{one.name}": one for one in pods if claims_named(one)}

    async def allocator() -> ClaimAllocator:
        more, unread = await offers() if offers is not None else ([], ())
        made = ClaimAllocator(books.engine, [*documents, *more])
        made.notes = (*made.notes, *unread)
        return made

    known = asked.values() if placing else [e.pod for e in books.cluster_cache.pods.values()]
    inform(books.engine, [pod for pod in known if not pod.finished])
    claims = await allocator() if written and claimants else None
    placed = None
    if placing:
        placed = _placed(books, asked, claimants, claims)
    else:
        for entry in list(waiting_pods(books)):
            decision = books.engine.evaluate(entry.pod)
            if isinstance(decision, Refusal):
                books.refuse(entry, decision, 0.0)
    return Asked(
        BookViews(books, claimants, claims or allocator, asked, settled=placing),
        told,
        namespace,
        placed=placed,
        conditions={
            f"{pod.namespace}/{pod.name}": said for pod in pods if (said := _condition(pod))
        },
        pods=frozenset(f"{pod.namespace}/{pod.name}" for pod in pods),
        unread={
            f"{pod.namespace}/{pod.name}": unread
            for pod in pods
            if (unread := unread_names(pod, books.cluster_cache.translation.context))
        },
        notes=notes,
    )


async def _books(documents: Sequence[Document], *, written: bool) -> Books:
    """Books of the documents; `written` as for `_over`."""
    more: list[Document] = []
    if written:
        known = {one.name for one in documents if one.kind == "Node"}
        tellers = (one for one in documents if one.kind in ("Device", "ResourceSlice"))
        alone = {name: one for one in tellers if (name := node_told(one)) and name not in known}
        more = [bare_node(name, one) for name, one in alone.items()]
    books = Books(ClusterCache(), Hooks())
    return await filled(books, [*documents, *more], seed=None if written else 0)


def _unusable(books: Books, documents: Sequence[Document]) -> list[str]:
    """Notes on settings and quotas that break a rule. A running service uses the last good ones, which are unknown here."""
    problems = books.cluster_cache.problems
    texts = (problems.get(one.label) for one in documents if one.kind in _KEPT)
    tail = "this answer uses the defaults; a running service uses its earlier settings: ask it with --scheduler"
    return [f"{text}; {tail}" for text in texts if text]


def settings_of_several(documents: Sequence[Document]) -> list[str]:
    """A note where several namespaces have settings, since a tenant may have written some of them."""
    found = sorted({one.namespace for one in documents if keys_read(one)})
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    told = (
        f"settings of ConfigMaps in {', '.join(found[:_TOLD])}{more} are in force here; a service may read those of "
        "its --config-namespace alone: ask it with --scheduler"
    )
    return [told] if len(found) > 1 else []


def _asked(books: Books, pods: Sequence[Document]) -> dict[str, Pod]:
    """Pods with their requests beside devices too, by name, in written order. Enters bound ones' use into the books."""
    found: dict[str, Pod] = {}
    for document in pods:
        try:
            pod = translate_pod(document, books.cluster_cache.translation.context).pod
        except InvalidDocument:
            continue  # the books report it
        found[pod.key] = pod
    taken = {name: Counter({"pods": 0}) for name in books.engine.ledger.index}
    for pod in found.values():
        if pod.node in taken and not pod.finished:
            taken[pod.node].update(pod.host)
    books.digest(books.cluster_cache.take(taken))
    return found


def _placed(
    books: Books,
    asked: Mapping[str, Pod],
    claimants: Mapping[str, Document],
    claims: ClaimAllocator | None,
) -> frozenset[str]:
    """Place waiting pods in the order of `partage schedule`; the names of the placed ones.

    Args:
        books: they get the refusals of pods without a place.
        asked: all pods, in the order written; those without devices take room beside them.
        claimants: those that name ResourceClaims, by namespace and name.
        claims: decides about these; None without any.
    """
    entries = {entry.pod.key: entry for entry in waiting_pods(books)}
    for key, document in claimants.items():
        entries.setdefault(key, read(books, document))
    waiting = [pod for pod in asked.values() if pod.node is None and not pod.finished]
    placed = set()
    for wanted in sorted(waiting, key=lambda pod: -pod.priority):
        entry, claimant = entries.get(wanted.key), claimants.get(wanted.key)
        pod = replace(entry.pod, host=wanted.host) if entry is not None else wanted
        if claims is not None and claimant is not None:
            decision = claims.decide(pod, claimant, keep=True)
        else:
            decision = books.engine.schedule(pod)
        if isinstance(decision, Refusal):
            if entry is not None:
                books.refuse(entry, decision, 0.0)
        else:
            books.engine.handle(BindSucceeded(pod.uid))
            placed.add(pod.key)
    return frozenset(placed)


def _condition(document: Document) -> str:
    """kube-scheduler's last message on a pod that it could not place."""
    told = condition(document.shape, "PodScheduled")
    return (told.message or told.reason or "") if told and told.status == "False" else ""

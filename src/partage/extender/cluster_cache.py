"""Keeps the API server's objects on which decisions depend, and makes the engine's events from them.

The cache holds the newest document of every Node and Device object, of every pod that names devices or has a record,
and of every ConfigMap and quota with settings. It makes a node of two documents. It reads a pod's record beside the
devices of the pod's node. After a changed setting it reads all nodes and pods again.

Versions: the cache ignores a document with an older resourceVersion than the known one of the same uid. It numbers the
engine's events in the order of arrival.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from partage.extender.claimants import Claimants
from partage.extender.claims import ClaimBook
from partage.inventory.columns import KEPT
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.scheduler.events import (
    Event,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    PolicyChanged,
    Quota,
    Quotas,
    QuotasChanged,
)
from partage.vendors.settings import Settings
from partage.wire import shapes
from partage.wire.claims import claim_uid
from partage.wire.config_book import ConfigBook
from partage.wire.context import Context
from partage.wire.documents import Document, outdated
from partage.wire.nodes import translate_node, unread_node
from partage.wire.pod_phase import finished
from partage.wire.quota import translate_quotas
from partage.wire.translation import PodEntry, Translation

_CONFIG: Final = "ConfigMap"
_REMEMBERED: Final = 20_000


@dataclass(slots=True)
class _Place:
    """The known data of one node; its `documents`, by kind, are the Node and the Device object."""

    documents: dict[str, Document] = field(default_factory=dict)
    translated: Node | None = None
    told: bool = False
    """Whether the engine has the node; a node that cannot be read is closed there."""
    pods: set[str] = field(default_factory=set)


class PodLog:
    """Uids in the order of their changes, `count` so far; a pod that changed twice is listed twice."""

    def __init__(self, kept: int = KEPT) -> None:
        """An empty log that keeps at least the `kept` latest changes."""
        self._kept = kept
        self._recent: list[str] = []
        self.count = 0

    def append(self, uid: str) -> None:
        """Record that a pod was created, changed or deleted."""
        self._recent.append(uid)
        self.count += 1
        if len(self._recent) > 2 * self._kept:
            del self._recent[: self._kept]

    def since(self, seen: int) -> Sequence[str] | None:
        """The pods that changed after the first `seen` changes; None if the log no longer has them."""
        start = seen - self.count + len(self._recent)
        return self._recent[start:] if start >= 0 else None


class ClusterCache:
    """Takes documents, and returns events for the engine.

    Attributes:
        pods: every pod that concerns devices, by uid.
        documents: the newest document of each of them.
        outdated: pods without a node that were read while nodes had other registrars; see `renew`.
        deleted: uids of pods that were deleted lately; a caller may not know it yet.
        problems: errors of objects that could not be read, by kind and name; all but nodes keep the last good state.
        policy: the policy in force if no ConfigMap names one.
        namespaces: the namespaces whose ConfigMaps count; empty for all.
        changes: every pod with devices that was added, read again or deleted, in order.
        claims: ResourceClaims that hold devices of this driver; empty if they are not followed.
        claimants: pods that ask for devices by ResourceClaims alone.
        taken: the amounts beside devices that kube-scheduler counts as requested of nodes, by node.
        compared: the latest pods with claims for which nodes were compared, by uid; prices are learnt from them.
    """

    def __init__(self, policy: Policy | None = None, namespaces: Iterable[str] = ()) -> None:
        self.namespaces = frozenset(namespaces)
        self.policy = policy or Policy()
        self.problems: dict[str, str] = {}
        self.notes: dict[str, tuple[str, ...]] = {}
        self.changes = PodLog()
        self._places: dict[str, _Place] = {}
        self.pods: dict[str, PodEntry] = {}
        self.documents: dict[str, Document] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._configs = ConfigBook(self.namespaces)
        self._quotas: dict[str, dict[tuple[str, str, str], Document]] = {}
        self._limits: dict[str, tuple[Quota, ...]] = {}
        self._registrars: Counter[str] = Counter()
        self.outdated: set[str] = set()
        self.deleted: OrderedDict[str, None] = OrderedDict()
        self._unread: dict[str, str] = {}
        self._told_policy = self.policy
        self._versions = count(1)
        self.taken: dict[str, Mapping[str, int]] = {}
        self.compared: OrderedDict[str, Pod] = OrderedDict()
        self.translation = Translation(Context.of(Settings()))
        self.claimants = Claimants()
        self.claims = ClaimBook(self._versions, self.problems)

    # --- asking ------------------------------------------------------------------------------

    def pod_named(self, namespace: str, name: str) -> PodEntry | None:
        """A pod that concerns devices, by name."""
        return self.pods.get(self._by_name.get((namespace, name), ""))

    def taken_in(self, document: Document) -> PodEntry | None:
        """The pod as it was read from this very document; None if it was read from another."""
        known = self.documents.get(document.metadata.uid or "")
        same = known is not None and known.shape is document.shape
        return self.pods.get(document.metadata.uid or "") if same else None

    def device_document(self, node: str) -> Document | None:
        """The Device object of a node."""
        place = self._places.get(node)
        return place.documents.get("Device") if place else None

    def born(self, uid: str) -> str | None:
        """The creation time of a pod, as the API server writes it; None if it is not known."""
        document = self.documents.get(uid)
        return document.metadata.creation_timestamp if document is not None else None

    def last_good(self) -> list[Document]:
        """The state in force of each ConfigMap and quota whose newest state is refused."""
        quotas = (one for mine in self._quotas.values() for one in mine.values())
        return [one for one in (*self._configs.in_force, *quotas) if one.label in self.problems]

    # --- facts of the API server -------------------------------------------------------------

    def changed(self, document: Document) -> list[Event]:
        """Take in a new or changed object."""
        match document.kind:
            case "Node" | "Device":
                place = self._places.setdefault(document.name, _Place())
                if outdated(document, place.documents.get(document.kind)):
                    return []
                place.documents[document.kind] = document
                return self._renew(document.name, place)
            case "Pod":
                return self.pod_changed(document)
            case "ResourceClaim":
                return self.claim_changed(document)
            case "DeviceClass":
                self.claimants.class_changed(document)
                return []
        return self.config_changed(document)

    def gone(self, document: Document) -> list[Event]:
        """Forget a deleted object."""
        match document.kind:
            case "Node" | "Device":
                known = self._places.get(document.name)
                if known is None:
                    return []
                known.documents.pop(document.kind, None)
                return self._renew(document.name, known)
            case "Pod":
                return self.pod_gone(document.metadata.uid or "")
            case "ResourceClaim":
                return self.claim_gone(document)
            case "DeviceClass":
                self.claimants.class_gone(document)
                return []
        return self.config_gone(document)

    # --- nodes -------------------------------------------------------------------------------

    def as_read(self, name: str) -> Node | None:
        """The last reading of a node; records and claims are read beside its devices."""
        place = self._places.get(name)
        return place.translated if place else None

    def _renew(self, name: str, place: _Place) -> list[Event]:
        """Read a node again from its two documents; a Device object alone is no place for pods."""
        before = place.translated
        own, device = place.documents.get("Node"), place.documents.get("Device")
        if own is None:
            place.translated = None
            self.taken.pop(name, None)
            self.notes.pop(name, None)
            self.problems.pop(f"Node {name}", None)
            self._vacant(name, place)
            if not place.told:
                return []
            place.told = False
            self._count_registrar(before, None)
            return [NodeGone(name, next(self._versions))]
        place.told = True
        try:
            read = translate_node(own, device, self.translation.context, next(self._versions))
        except InvalidDocument as error:
            # A node that cannot be read must not serve as if it could, so it is closed.
            self.problems[f"Node {name}"] = str(error)
            place.translated = None
            self._count_registrar(before, None)
            return [NodeSeen(unread_node(own, device, str(error), next(self._versions)))]
        self.problems.pop(f"Node {name}", None)
        self.notes[name] = read.notes
        node = read.node
        if name in self.taken:
            node = replace(node, taken=self.taken[name])
        place.translated = node
        self._count_registrar(before, node)
        events: list[Event] = [NodeSeen(node)]
        if before is None or before.devices != node.devices:
            events += [*self._recover(place.pods, node), *self.claims.renewed(name, self.as_read)]
        return events

    def take(self, amounts: Mapping[str, Mapping[str, int]]) -> list[Event]:
        """Take in the amounts that kube-scheduler counts as requested of known nodes, beside devices."""
        events: list[Event] = []
        for name, some in amounts.items():
            place = self._places.get(name)
            if place is not None and place.translated is not None:
                self.taken[name] = some
                place.translated = replace(
                    place.translated, taken=some, version=next(self._versions)
                )
                events.append(NodeSeen(place.translated))
        return events

    def taken_by_others(self) -> Mapping[str, int]:
        """The amounts beside devices of pods for which no nodes were compared; empty before the first report."""
        total = Counter[str]()
        for some in self.taken.values():
            total.update(some)
        if not total:
            return total
        mine = [pod.host for uid, pod in self.compared.items() if not self.claimants.waits(uid)]
        mine += [
            entry.host
            for entry in self.pods.values()
            if entry.pod.node is not None and not entry.pod.finished
        ]
        for host in mine:
            total.subtract({"pods": 1} | {name: host.get(name, 0) for name in ("cpu", "memory")})
        return total

    def _recover(self, uids: Iterable[str], node: Node) -> list[Event]:
        """Read records again after a change of the node's devices, because a record is read beside them."""
        events: list[Event] = []
        for uid in uids:
            entry = self.pods[uid]
            renewed = self.translation.with_record(entry, node)
            if renewed is not entry:
                pod = replace(renewed.pod, version=next(self._versions))
                self.pods[uid] = replace(renewed, pod=pod)
                self.changes.append(uid)
                events.append(PodSeen(pod))
        return events

    def _count_registrar(self, before: Node | None, after: Node | None) -> None:
        """Count the registrars of nodes, because all of them decide the protocol of a lone `nvidia.com/gpu`."""
        if before is not None:
            self._registrars[before.registrar] -= 1
        if after is not None:
            self._registrars[after.registrar] += 1
        known = frozenset(name for name, count in self._registrars.items() if count > 0)
        if known != self.translation.context.registrars:
            self.translation.reset(replace(self.translation.context, registrars=known))
            # Each is read again when a question comes, because a node may change its registrar all the time.
            self.outdated = {uid for uid, entry in self.pods.items() if entry.pod.node is None}

    # --- pods --------------------------------------------------------------------------------

    def pod_changed(self, document: Document) -> list[Event]:
        """Take in a new or changed pod; a pod without devices is not kept.

        An unreadable pod keeps the devices that it held until it ends. If it was not known as bound before, it holds
        those of its record. A deleted pod stays deleted: Kubernetes uses a uid once, so later events of it are old.
        """
        uid = document.metadata.uid or ""
        if uid in self.deleted:
            return []
        known = self.documents.get(uid)
        if outdated(document, known):
            return []
        if known is None and not self.translation.concerns(document):
            self.claimants.changed(document)
            return []
        self.claimants.gone(uid)
        before = self.pods.get(uid)
        try:
            entry = self.translation.read(document, next(self._versions), self.as_read, before)
            self._read_again(uid)
        except InvalidDocument as error:
            self._unreadable(uid, document, error)
            shape = document.shape
            if before is None or before.pod.node is None:
                unread = self.translation.by_record(document, next(self._versions))
            elif isinstance(shape, shapes.Pod) and finished(shape):
                over = replace(
                    before.pod, finished=True, record=None, version=next(self._versions)
                )
                unread = replace(before, pod=over)
            else:
                return []
            if unread is None:
                return []
            entry = unread
        pod = entry.pod
        if before is not None and before.pod.node != pod.node:
            self._leave(before.pod)
        self.pods[pod.uid], self.documents[pod.uid] = entry, document
        self.outdated.discard(pod.uid)
        self.changes.append(pod.uid)
        self._by_name[pod.namespace, pod.name] = pod.uid
        if pod.node is None and not pod.finished:
            return []
        if pod.node is not None:
            self._places.setdefault(pod.node, _Place()).pods.add(pod.uid)
        return [PodSeen(pod)]

    def pod_gone(self, uid: str) -> list[Event]:
        """Forget a deleted pod."""
        entry = self.pods.pop(uid, None)
        self.documents.pop(uid, None)
        self.outdated.discard(uid)
        self.claimants.gone(uid)
        self.compared.pop(uid, None)
        self._read_again(uid)
        self.deleted[uid] = None
        if len(self.deleted) > _REMEMBERED:
            self.deleted.popitem(last=False)
        if entry is None:
            return []
        self.changes.append(uid)
        pod = entry.pod
        if self._by_name.get((pod.namespace, pod.name)) == uid:
            del self._by_name[pod.namespace, pod.name]
        self._leave(pod)
        return [PodGone(uid)]

    def renew(self, uid: str) -> None:
        """Read a pod without a node by the present registrars of nodes."""
        self._reread(uid, self.documents[uid])

    def _leave(self, pod: Pod) -> None:
        """Remove a pod from its node."""
        place = self._places.get(pod.node or "")
        if pod.node is not None and place is not None:
            place.pods.discard(pod.uid)
            self._vacant(pod.node, place)

    def _vacant(self, name: str, place: _Place) -> None:
        """Forget a node without documents and pods."""
        if not place.pods and not place.documents:
            del self._places[name]

    def _unreadable(self, uid: str, document: Document, error: InvalidDocument) -> None:
        self.problems[document.label] = str(error)
        self._unread[uid] = document.label

    def _read_again(self, uid: str) -> None:
        """Forget the error of a pod that is readable now, or deleted."""
        self.problems.pop(self._unread.pop(uid, ""), None)

    # --- claims ------------------------------------------------------------------------------

    def claim_changed(self, document: Document) -> list[Event]:
        """Take in a new or changed ResourceClaim."""
        if not self.claims.is_gone(claim_uid(document)):
            self.claimants.claim_changed(document)
        return self.claims.changed(document, self.as_read)

    def claim_gone(self, document: Document) -> list[Event]:
        """Forget a deleted ResourceClaim."""
        self.claimants.claim_gone(document)
        return self.claims.gone(document)

    def compares(self, pod: Pod) -> None:
        """Remember a pod for which nodes are compared by its claims."""
        self.compared[pod.uid] = pod
        if len(self.compared) > _REMEMBERED:
            self.compared.popitem(last=False)

    # --- settings ----------------------------------------------------------------------------

    def config_changed(self, document: Document) -> list[Event]:
        """Take in a new or changed ConfigMap or ResourceQuota.

        The cache refuses one that breaks a rule, reports it in `problems`, and keeps the last good one.
        """
        if document.kind == _CONFIG:
            return self._config(document, changed=self._configs.changed(document))
        mine = self._quotas.get(document.namespace, {})
        known = mine.get(document.identity)
        if outdated(document, known):
            return []
        then = {**mine, document.identity: document}
        if known is not None and _same_limits(known, document):
            # The status changes with every new object of the namespace.
            self._quotas[document.namespace] = then
            self.problems.pop(document.label, None)
            return []
        try:
            events = self._limited(document.namespace, then)
        except InvalidDocument as error:
            self.problems[document.label] = str(error)
            return []
        self.problems.pop(document.label, None)
        return events

    def config_gone(self, document: Document) -> list[Event]:
        """Forget a deleted ConfigMap or ResourceQuota; its defaults are in force again."""
        if document.kind == _CONFIG:
            return self._config(document, changed=self._configs.gone(document))
        self.problems.pop(document.label, None)
        mine = dict(self._quotas.get(document.namespace, {}))
        if mine.pop(document.identity, None) is None:
            return []
        return self._limited(document.namespace, mine)

    def _config(self, document: Document, *, changed: bool) -> list[Event]:
        problem = self._configs.refused.get(document.label)
        if problem is None:
            self.problems.pop(document.label, None)
        else:
            self.problems[document.label] = problem
        return self._settings() if changed else []

    def _limited(self, namespace: str, mine: dict[tuple[str, str, str], Document]) -> list[Event]:
        """Put the quotas of a namespace in force. Raises `InvalidDocument`: one of them cannot be read."""
        found, _notes = translate_quotas(mine.values())
        self._quotas.pop(namespace, None)
        self._limits.pop(namespace, None)
        self._limits |= found.by_namespace
        if mine:
            self._quotas[namespace] = mine
        return [QuotasChanged(Quotas(dict(self._limits)))]

    def _settings(self) -> list[Event]:
        """Put the ConfigMaps in force, and read every node and pod again if the settings changed."""
        config = self._configs.configuration
        events: list[Event] = []
        policy = config.policy or self.policy
        if policy != self._told_policy:
            self._told_policy = policy
            events.append(PolicyChanged(policy))
        if config.settings == self.translation.context.settings:
            return events
        context = Context.of(config.settings, registrars=self.translation.context.registrars)
        self.translation.reset(context)
        for name, place in list(self._places.items()):
            if "Node" in place.documents:
                events += self._renew(name, place)
        for uid, document in list(self.documents.items()):
            events += self._reread(uid, document)
        return events

    def _reread(self, uid: str, document: Document) -> list[Event]:
        self.outdated.discard(uid)
        try:
            entry = self.translation.read(
                document, next(self._versions), self.as_read, self.pods.get(uid)
            )
        except InvalidDocument as error:
            self._unreadable(uid, document, error)
            return []
        self._read_again(uid)
        self.pods[uid] = entry
        self.changes.append(uid)
        bound = entry.pod.node is not None or entry.pod.finished
        return [PodSeen(entry.pod)] if bound else []


def _same_limits(one: Document, other: Document) -> bool:
    """Whether two states of a ResourceQuota set the same limits."""
    first, second = one.shape, other.shape
    return (
        isinstance(first, shapes.ResourceQuota)
        and isinstance(second, shapes.ResourceQuota)
        and first.spec == second.spec
    )

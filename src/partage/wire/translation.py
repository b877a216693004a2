"""Pods' documents as the engine's pods; equal pods are read only once.

Most pods are copies of a template. Only a pod's spec, labels and author's annotations decide
how it is read. Two pods that agree in these share one reading. This saves most of the time of a
call, and the engine finds their class by identity.

Ordinary resources are left out, because kube-scheduler counts them.

Most pods of a cluster concern no devices, and must cost almost nothing. For them a check without a full reading is
enough.
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.request import Fault, PodRequest
from partage.vendors import names
from partage.vendors.base import PodView
from partage.vendors.reserved import RESERVED
from partage.wire import permit, shapes
from partage.wire.context import Context
from partage.wire.documents import Document, size_of
from partage.wire.heeded import light
from partage.wire.limits import LIMITS
from partage.wire.pod_phase import condition, finished
from partage.wire.pods import TranslatedPod, stable_uid, translate_pod
from partage.wire.record import decode
from partage.wire.recovery import recorded

_LOG: Final = logging.getLogger("partage.wire")
NodeOf = Callable[[str], Node | None]

_MOST: Final = 4096
_MOST_BYTES: Final = 32 * 2**20
"""Bytes of the kept readings, by an estimate: each pod may be another one, and its reading up to 2 MB large."""
_A_READING: Final = 2048
_A_BYTE: Final = 8
_AN_ENTRY: Final = 64
"""Bytes that a reading takes, at most, beside those for each byte of its pod and each entry of an annotation."""
_HASH: Final = 32
_NEVER: Final = "Never"
_NO_HOST: Final[Mapping[str, int]] = {}
_TAKEN: Final = ("cpu", "memory", "pods")
"""The pods' requests of nodes that kube-scheduler reports."""
_PACK: Final = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class PodEntry:
    """A pod that names devices.

    Attributes:
        pod: for the engine.
        view: the author's own data, for the families.
        flexible: whether it has wishes that only kube-scheduler weighs.
        nominated: the node on which preemption makes room for it; empty when there is none.
        preempts: whether less important pods may have to go for it.
        limits: its node's report of its limits: the condition's status and message; None without one.
        host: its request of a node beside devices, in the resources that kube-scheduler reports of others.
        key: that of its reading; pods that are read alike have the same.
    """

    pod: Pod
    view: PodView
    flexible: bool = False
    nominated: str = ""
    preempts: bool = True
    limits: tuple[str, str] | None = None
    host: Mapping[str, int] = field(default_factory=lambda: _NO_HOST)
    key: bytes = field(default=b"", compare=False)


class Translation:
    """Reads pods against one context, which may be replaced."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._known: OrderedDict[bytes, tuple[PodEntry, int]] = OrderedDict()
        self._bytes = 0
        self._contexts = 0

    def reset(self, context: Context) -> None:
        """Use another context from now on."""
        self.context = context
        self._known.clear()
        self._bytes = 0
        self._contexts += 1

    def concerns(self, document: Document) -> bool:
        """Whether the pod names a device resource, or has a record of devices."""
        return concerns_devices(document, self.context)

    def read(
        self,
        document: Document,
        version: int = 0,
        nodes: NodeOf | None = None,
        before: PodEntry | None = None,
    ) -> PodEntry:
        """The pod of a document.

        `version`: counts the pod's changes. `nodes`: gives the node of a name, because its devices are needed to read
        the record of a bound pod; None ignores records. `before`: its reading here so far, which is used again if the
        pod is still read alike. Raises `InvalidDocument`: it cannot be decoded as a pod, or
        reading it fails. Anybody may write pods, so a fault of ours in one of them must not end the program that reads
        all others.
        """
        try:
            return self._read(document, version, nodes, before)
        except InvalidDocument:
            raise
        except Exception as error:
            _LOG.exception("%s cannot be read", document.label)
            raise InvalidDocument(
                f"{document.label}: reading it fails ({type(error).__name__}); see the log"
            ) from error

    def by_record(self, document: Document, version: int) -> PodEntry | None:
        """A bound pod with nothing readable but its record, so that its devices do not count as free.

        Partage's own record contains its devices. A record of another scheduler needs the rest of the pod, so without
        it no device of the node counts as free. None if the pod holds nothing by a record, is not bound, or has ended.
        `version`: counts the pod's changes.
        """
        shape, annotations = document.shape, document.annotations
        spec = shape.spec if isinstance(shape, shapes.Pod) else None
        if not isinstance(shape, shapes.Pod) or spec is None or not spec.node_name:
            return None
        if finished(shape) or not RESERVED.in_annotations(annotations):
            return None
        namespace, name, node = document.namespace, document.name, spec.node_name
        uid = document.metadata.uid or stable_uid(namespace, "Pod", name)
        text = annotations.get(names.ALLOCATION)
        record = (
            replace(decode(text, uid, node), permit=permit.read(annotations, uid))
            if text
            else Record(problem="it has a record, and cannot be read")
        )
        request = PodRequest(fault=Fault("the pod cannot be read"))
        pod = Pod(uid, namespace, name, node=node, request=request, record=record, version=version)
        return PodEntry(pod, PodView(namespace, name, uid, node, annotations=annotations))

    def _read(
        self, document: Document, version: int, nodes: NodeOf | None, before: PodEntry | None
    ) -> PodEntry:
        shape = document.shape
        if not isinstance(shape, shapes.Pod) or shape.spec is None:
            return _entry(translate_pod(document, self.context), version)
        spec, shape = shape.spec, light(shape)
        if shape is not document.shape:
            document = replace(document, shape=shape)
        annotations = document.annotations
        meta, namespace = document.metadata, document.namespace
        name = meta.name or ""
        key = _key(document, spec, self._contexts)
        known = None
        if key is not None:
            if before is not None and before.key == key[0]:
                known = before
            elif (kept := self._known.get(key[0])) is not None:
                self._known.move_to_end(key[0])
                known = kept[0]
        if known is None:
            known = _entry(translate_pod(document, self.context), version)
            if key is not None:
                self._keep(known, *key)
        # Written out, because `replace` is most of the time of reading forty thousand pods at a start.
        pod, view = known.pod, known.view
        view = PodView(
            namespace=view.namespace,
            name=name,
            uid=meta.uid or stable_uid(namespace, "Pod", name),
            node=spec.node_name or "",
            scheduler=view.scheduler,
            labels=view.labels,
            annotations=annotations,
            containers=view.containers,
            dropped=document.dropped,
        )
        over = finished(shape)
        record = None
        if nodes is not None and view.node and not over:
            place = nodes(view.node) or Node(view.node)
            record = recorded(view, pod.request, place, self.context)
        mine = Pod(
            uid=view.uid,
            namespace=pod.namespace,
            name=name,
            priority=pod.priority,
            node=view.node or None,
            finished=over,
            request=pod.request,
            host=pod.host,
            constraint=pod.constraint,
            tolerations=pod.tolerations,
            quota=pod.quota,
            record=record,
            version=version,
            wish=pod.wish,
        )
        told = condition(shape, names.LIMITS_CONDITION)
        return PodEntry(
            mine,
            view,
            is_flexible(spec),
            (shape.status.nominated_node_name if shape.status else None) or "",
            spec.preemption_policy != _NEVER,
            None if told is None else (told.status or "Unknown", told.message or ""),
            known.host,
            key[0] if key else b"",
        )

    def _keep(self, entry: PodEntry, key: bytes, size: int) -> None:
        self._known[key] = entry, size
        self._bytes += size
        while len(self._known) > _MOST or (self._bytes > _MOST_BYTES and len(self._known) > 1):
            _, (_, gone) = self._known.popitem(last=False)
            self._bytes -= gone

    def with_record(self, entry: PodEntry, node: Node | None) -> PodEntry:
        """The pod with the devices on its node by its annotations."""
        pod = entry.pod
        if pod.node is None or pod.finished or not entry.view.containers:
            return entry  # of a pod without containers only the record was read (`by_record`)
        record = recorded(entry.view, pod.request, node or Node(pod.node), self.context)
        if record == pod.record:
            return entry
        return replace(entry, pod=replace(pod, record=record))


def _key(document: Document, spec: shapes.PodSpec, contexts: int) -> tuple[bytes, int] | None:
    """The common part of pods that are read alike, hashed, and what a reading of it takes; None for one without equals.

    Of the keys that Partage and the plugins write, only the presence counts, because their values are the
    record's, which is not read here.
    """
    wrote = document.annotations
    size = size_of(wrote) + document.dropped
    large = size if size > LIMITS["bytes of annotations"] else 0
    wrote.pop(names.WOKEN, None)  # a new moment at every wake-up, and never read
    wrote.pop(names.ADJUST, None)  # read only together with the record
    wrote.pop(names.TRACEPARENT, None)  # different for each pod, and no decision uses it
    for name in RESERVED.in_annotations(wrote):
        wrote[name] = ""
    # Which node does not matter, but a bound pod is read however much it asks for.
    bound = bool(spec.node_name)
    given = spec if spec.node_name is None else msgspec.structs.replace(spec, node_name=None)
    try:
        told = _PACK.encode(
            (contexts, document.namespace, bound, given, document.labels, wrote, large)
        )
    except (OverflowError, RecursionError):
        return None  # an amount of twenty digits is a fault of the pod, reported when it is read
    listed = sum([text.count(",") for text in wrote.values()])
    taken = _A_READING + _A_BYTE * len(told) + _AN_ENTRY * listed
    return hashlib.blake2b(told, digest_size=_HASH).digest(), taken


def _entry(translated: TranslatedPod, version: int) -> PodEntry:
    host = {name: translated.pod.host[name] for name in _TAKEN if name in translated.pod.host}
    pod = replace(translated.pod, host=_NO_HOST, version=version)
    return PodEntry(pod, translated.view, host=host)


def concerns_devices(document: Document, context: Context) -> bool:
    """Whether a pod names a device resource, or has a record of devices."""
    shape = document.shape
    spec = shape.spec if isinstance(shape, shapes.Pod) else None
    if names_devices(spec, context):
        return True
    annotations = shape.metadata.annotations if shape.metadata else None
    return bool(annotations) and bool(RESERVED.in_annotations(annotations or ()))


def names_devices(spec: shapes.PodSpec | None, context: Context) -> bool:
    """Whether a container, or the pod as a whole, names a resource that a family reads."""
    if spec is None:
        return False
    owners = context.owners
    lists = [spec.resources] if spec.resources else []
    lists += [c.resources for c in spec.containers or () if c.resources]
    lists += [c.resources for c in spec.init_containers or () if c.resources]
    for resources in lists:
        for part in (resources.limits, resources.requests):
            if part and not owners.keys().isdisjoint(part):
                return True
    return bool(spec.overhead) and not owners.keys().isdisjoint(spec.overhead or ())


def is_flexible(spec: shapes.PodSpec) -> bool:
    """Whether the pod has wishes that only kube-scheduler weighs against each other.

    These are preferred affinity, to nodes or to other pods, and spreading that is not mandatory. Such a
    pod needs every node that fits; for the others the best one is enough.
    """
    if (all_ := spec.affinity) is not None:
        for one in (all_.node_affinity, all_.pod_affinity, all_.pod_anti_affinity):
            if one is not None and one.preferred:
                return True
    return any(rule.when_unsatisfiable != "DoNotSchedule" for rule in spec.spread or ())

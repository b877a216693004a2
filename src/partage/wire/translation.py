"""Pods' documents as the engine's pods, with equal pods read once.

Most pods are copies of a template. What decides how a pod is read is its spec, its labels and
those annotations that its author wrote; two pods that agree in these share one reading, which
saves most of the time of a call and lets the engine find their class by identity.

Ordinary resources are left out: beside kube-scheduler, it is kube-scheduler that counts them.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from partage.model.node import Node
from partage.model.pod import Pod
from partage.vendors import names
from partage.vendors.base import PodView
from partage.vendors.reserved import RESERVED
from partage.wire import shapes
from partage.wire.asking import concerns_devices, is_flexible
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.life import finished
from partage.wire.pods import TranslatedPod, stable_uid, translate_pod
from partage.wire.recovery import recover

__all__ = ["PodEntry", "Translation"]

_MOST: Final = 4096
_NEVER: Final = "Never"
_NO_HOST: Final[Mapping[str, int]] = {}
_PACK: Final = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class PodEntry:
    """A pod that names devices.

    Attributes:
        pod: for the engine.
        translated: with what its author wrote.
        flexible: it has wishes that only kube-scheduler weighs.
        nominated: the node that preemption makes room on for it; empty when there is none.
        preempts: less important pods may have to go for it.
    """

    translated: TranslatedPod
    flexible: bool = False
    nominated: str = ""
    preempts: bool = True

    @property
    def pod(self) -> Pod:
        """The pod for the engine."""
        return self.translated.pod


class Translation:
    """Reads pods against one context, which may be replaced."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._known: OrderedDict[bytes, PodEntry] = OrderedDict()

    def reset(self, context: Context) -> None:
        """Read against another context from now on."""
        self.context = context
        self._known.clear()

    def concerns(self, document: Document) -> bool:
        """Whether the pod names a device resource, or carries a record of devices."""
        return concerns_devices(document, self.context)

    def read(self, document: Document, version: int = 0) -> PodEntry:
        """The pod of a document; its record is not looked at.

        Args:
            document: of kind Pod.
            version: counts the pod's changes.

        Raises:
            InvalidDocument: it cannot be decoded as a pod.
        """
        shape = document.shape
        if not isinstance(shape, shapes.Pod) or shape.spec is None:
            return _entry(translate_pod(document, self.context), version)
        key = _key(document, shape.spec)
        known = self._known.get(key)
        if known is None:
            known = _entry(translate_pod(document, self.context), version)
            self._known[key] = known
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return _renamed(known, document, shape, version)

    def with_record(self, entry: PodEntry, node: Node | None) -> PodEntry:
        """The pod with what its annotations say that it holds on its node."""
        pod, context = entry.pod, self.context
        if pod.node is None or pod.finished:
            return entry
        place = node or Node(pod.node)
        record = recover(entry.translated.view, place, context.settings, context.families)
        if record == pod.record:
            return entry
        # Written out, because `replace` takes much of the time of a start.
        own = Pod(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            priority=pod.priority,
            node=pod.node,
            finished=pod.finished,
            request=pod.request,
            host=pod.host,
            constraint=pod.constraint,
            tolerations=pod.tolerations,
            quota=pod.quota,
            record=record,
            version=pod.version,
        )
        translated = entry.translated
        told = TranslatedPod(own, translated.view, translated.where)
        return PodEntry(told, entry.flexible, entry.nominated, entry.preempts)


def _key(document: Document, spec: shapes.PodSpec) -> bytes:
    """What two pods that are read alike have in common.

    Of the keys that Partage and the plugins write, only the presence counts: their values are the
    record's, which is not read here.
    """
    annotations = document.annotations
    annotations.pop(names.WOKEN, None)  # another moment at every wake-up, and never read
    written = RESERVED.in_annotations(annotations)
    for name in written:
        annotations[name] = ""
    given = spec if spec.node_name is None else msgspec.structs.replace(spec, node_name=None)
    return _PACK.encode((document.namespace, given, document.labels, annotations))


def _entry(translated: TranslatedPod, version: int) -> PodEntry:
    pod = replace(translated.pod, host=_NO_HOST, version=version)
    return PodEntry(replace(translated, pod=pod))


def _renamed(known: PodEntry, document: Document, shape: shapes.Pod, version: int) -> PodEntry:
    """A reading made this pod's own."""
    metadata = document.metadata
    name, namespace = document.name, document.namespace
    spec = shape.spec or shapes.PodSpec()
    uid = metadata.uid or stable_uid(namespace, "Pod", name)
    node = spec.node_name or ""
    # Written out, because `replace` is most of the time of reading forty thousand pods at a start.
    view, pod = known.translated.view, known.pod
    own_view = PodView(
        namespace=view.namespace,
        name=name,
        uid=uid,
        node=node,
        scheduler=view.scheduler,
        labels=view.labels,
        annotations=document.annotations,
        containers=view.containers,
    )
    own = Pod(
        uid=uid,
        namespace=pod.namespace,
        name=name,
        priority=pod.priority,
        node=node or None,
        finished=finished(shape),
        request=pod.request,
        host=pod.host,
        constraint=pod.constraint,
        tolerations=pod.tolerations,
        quota=pod.quota,
        version=version,
    )
    status = shape.status
    return PodEntry(
        TranslatedPod(own, own_view, document.where),
        is_flexible(spec),
        (status.nominated_node_name if status else None) or "",
        spec.preemption_policy != _NEVER,
    )

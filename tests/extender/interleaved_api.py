"""A model API server for interleavings: objects, Bindings with preconditions, and a faulty watch.

It keeps the true state, and its own plain sums of each card's use, from the records alone.
It uses the product only to decode documents.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fakes.clock import InstantClock
from partage.daemon.watched import LiveDevice, LiveNode, LivePod, as_document
from partage.extender.ports import Answered, Binding, Outcome
from partage.vendors import names
from partage.wire.documents import Document

CARD_BYTES = 16 << 30
LATE = 10.0
"""Seconds for which a Binding without an answer may still arrive."""
_SHAPES = {"Pod": LivePod, "Node": LiveNode, "Device": LiveDevice}

Manifest = dict[str, Any]


@dataclass
class Stored:
    """A pod as the API server has it."""

    uid: str
    name: str
    spec: Manifest
    annotations: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    node: str = ""
    phase: str = "Pending"
    deleting: bool = False
    nominated: str = ""
    version: int = 0

    def manifest(self) -> Manifest:
        """The document in plain values."""
        meta: Manifest = {
            "name": self.name,
            "namespace": "team",
            "uid": self.uid,
            "resourceVersion": str(self.version),
            "annotations": dict(self.annotations),
            "labels": dict(self.labels),
        }
        if self.deleting:
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        spec = {**self.spec, "nodeName": self.node} if self.node else self.spec
        status = {"phase": self.phase, "nominatedNodeName": self.nominated}
        return {"kind": "Pod", "metadata": meta, "spec": spec, "status": status}


@dataclass(frozen=True)
class Fact:
    """One event of a watch: an object as it was, or that it is gone."""

    kind: str
    key: str
    document: Document
    gone: bool = False


def documented(kind: str, manifest: Manifest) -> Document:
    """The manifest as a watch decodes it."""
    return as_document(kind, msgspec.convert(manifest, _SHAPES[kind]))


class ModelApi:
    """Keeps objects and carries Bindings out, or does what was drawn for the next one.

    Attributes:
        pods: by uid.
        others: nodes and Device objects, by kind and name.
        facts: what the watch has still to tell, in order.
        fates: what becomes of the next Bindings.
        silent: reads that fail before one is answered again.
        late: Bindings on the wire whose sender has given up waiting, with the end of their time.
        waiting: Bindings whose sender still waits, each until it gets its fate.
        odd: pods that another writer bound, or whose record was changed; they count for nothing.
        broken: laws that did not hold; must stay empty.
    """

    def __init__(self, clock: InstantClock) -> None:
        self.clock = clock
        self.version = 0
        self.pods: dict[str, Stored] = {}
        self.others: dict[tuple[str, str], Document] = {}
        self.facts: list[Fact] = []
        self.told: list[Fact] = []
        self.fates: list[str] = []
        self.silent = 0
        self.late: list[tuple[float, Binding]] = []
        self.waiting: list[tuple[Binding, asyncio.Future[str]]] = []
        self.odd: set[str] = set()
        self.broken: list[str] = []

    # --- objects -----------------------------------------------------------------------------

    def put(self, kind: str, name: str, manifest: Manifest) -> None:
        """A Node or Device object is made, or changed."""
        self.version += 1
        meta = manifest.setdefault("metadata", {})
        meta |= {"name": name, "resourceVersion": str(self.version)}
        self.others[kind, name] = document = documented(kind, manifest)
        self.facts.append(Fact(kind, name, document))

    def drop(self, kind: str, name: str) -> None:
        """A Node or Device object is deleted."""
        document = self.others.pop((kind, name), None)
        if document is not None:
            self.facts.append(Fact(kind, name, document, gone=True))

    def changed(self, pod: Stored) -> None:
        """A pod is new, or has changed."""
        self.version += 1
        pod.version = self.version
        self.pods[pod.uid] = pod
        self.facts.append(Fact("Pod", pod.uid, documented("Pod", pod.manifest())))

    def delete(self, uid: str) -> None:
        """A pod is gone."""
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self.version += 1
            pod.version = self.version
            self.facts.append(Fact("Pod", uid, documented("Pod", pod.manifest()), gone=True))

    def named(self, name: str) -> Stored | None:
        """The pod that has this name now."""
        return next((pod for pod in self.pods.values() if pod.name == name), None)

    def listed(self, kind: str) -> list[Document]:
        """All objects of a kind, as a fresh list has them."""
        if kind == "Pod":
            return [documented("Pod", pod.manifest()) for pod in self.pods.values()]
        return [document for (held, _), document in self.others.items() if held == kind]

    # --- Bindings ----------------------------------------------------------------------------

    async def bind(self, binding: Binding) -> Answered:
        """See `Binder`; what becomes of the request was drawn before."""
        fate = self.fates.pop() if self.fates else "done"
        if fate == "slow":
            told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self.waiting.append((binding, told))
            fate = await told
        match fate:
            case "refused":
                return Answered(Outcome.REFUSED, "etcd has no leader")
            case "lost":
                return Answered(Outcome.UNKNOWN, "connection reset")
            case "unanswered":
                self.carry_out(binding)
                raise OSError("connection reset")
            case "late":
                self.late.append((self.clock.monotonic() + LATE, binding))
                raise TimeoutError
        return self.carry_out(binding)

    def carry_out(self, binding: Binding) -> Answered:
        """Bind under the preconditions of the genuine server."""
        pod = self.named(binding.name)
        if pod is None or pod.uid != binding.uid:
            return Answered(Outcome.REFUSED, "the uid in the precondition does not match")
        if pod.node or pod.deleting:
            return Answered(Outcome.REFUSED, "the pod is bound, or is being deleted")
        pod.node, pod.nominated = binding.node, ""
        pod.annotations = {**pod.annotations, **binding.annotations}
        pod.labels = {**pod.labels, **binding.labels}
        self.changed(pod)
        self._weigh()
        return Answered(Outcome.DONE)

    def arrive(self, *, drop: bool = False) -> None:
        """Every late Binding arrives, or is lost for good."""
        late, self.late = self.late, []
        for _, binding in late:
            if not drop:
                self.carry_out(binding)

    def expire(self) -> None:
        """Forget late Bindings whose time is over."""
        self.late = [(end, b) for end, b in self.late if end > self.clock.monotonic()]

    async def read(self, _namespace: str, name: str) -> Document | None:
        """See `Binder`."""
        if self.silent:
            self.silent -= 1
            raise OSError("no route to host")
        pod = self.named(name)
        return None if pod is None else documented("Pod", pod.manifest())

    # --- its own account ---------------------------------------------------------------------

    def _weigh(self) -> None:
        """Add up what the records of bound pods say, card by card."""
        milli: Counter[tuple[str, str]] = Counter()
        size: Counter[tuple[str, str]] = Counter()
        whole: set[tuple[str, str]] = set()
        tenants: Counter[tuple[str, str]] = Counter()
        for pod in self.pods.values():
            text = pod.annotations.get(names.ALLOCATION)
            if pod.uid in self.odd or not pod.node or text is None or pod.phase == "Succeeded":
                continue
            for container in _containers(text):
                for grant in container["devices"]:
                    card = pod.node, grant["uuid"]
                    milli[card] += grant["milli"]
                    size[card] += grant["bytes"]
                    tenants[card] += 1
                    if grant["mode"] == "whole":
                        whole.add(card)
        self.broken += [f"card {c} carries {n} of 1000" for c, n in milli.items() if n > 1000]
        self.broken += [f"card {c} carries {n} bytes" for c, n in size.items() if n > CARD_BYTES]
        self.broken += [f"card {c} is whole and shared" for c in whole if tenants[c] > 1]


def _containers(record: str) -> list[Manifest]:
    """The containers of a record; a spoilt record has none."""
    try:
        found: list[Manifest] = json.loads(record)["containers"]
    except ValueError:
        return []
    return found

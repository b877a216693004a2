"""Runs all controllers: takes in facts, queues keys, and writes differences.

A standby takes in facts too, so a new leader knows everything at once. Only `run` looks at objects and writes,
and only a leader calls it. Functions of an object's documents (`totals`, `pods`) decide its intended
state. The manager compares this with the API server's and writes a difference. It looks again later at a key
that fails.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry

from partage.controllers import pods
from partage.controllers.contention import Contention
from partage.controllers.meters import ControllerMeters
from partage.controllers.picture import Picture, bound_to
from partage.controllers.pods import Problem
from partage.controllers.totals import node_label_changes, totals_patch
from partage.controllers.writer import Writer
from partage.kube.client import Client
from partage.kube.clock import Clock
from partage.kube.events import EventRecorder
from partage.kube.recorder import Regarding
from partage.kube.retry import Backoff
from partage.kube.workqueue import WorkQueue, work
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.vendors.locks import LOCKS, read_lock
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.pod_phase import finished
from partage.wire.translation import PodEntry

_LOG = logging.getLogger("partage.controllers")
_CONDITION: Final = "condition"
_LOCK_SECONDS: Final = 300.0
"""Since a vendor's lock was first seen here: after this time HAMi's own scheduler takes a lock away from its holder. The
lock's own time is not used: clocks of two machines may differ, and a lock removed too early lets a vendor's plugin mix up
two pods."""
_SHARE: Final = 0.5
"""Largest part of the process's time for looks."""
_SLICE: Final = 0.005
"""Seconds of one look that count at most, because it may have waited for its turn."""

_Write = Callable[[Document, Mapping[str, Any]], Awaitable[Document | None]]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the controllers.

    Attributes:
        totals: whether to write nodes' totals. Off while another manager still writes them.
        grace: seconds that a device may be away or unhealthy before its pods are flagged; an
            agent that restarts reports it again within this time.
        workers: objects handled at a time.
        namespaces: those whose ConfigMaps have effect; empty for all.
    """

    totals: bool = True
    grace: float = 30.0
    workers: int = 4
    namespaces: tuple[str, ...] = ()


class _Key(NamedTuple):
    """One object to look at: a node by name, a pod by uid, a ConfigMap by label."""

    kind: str
    name: str


class Controllers:
    """All controllers of one process; `picture` has the last known objects."""

    def __init__(
        self,
        client: Client,
        notices: EventRecorder,
        *,
        clock: Clock | None = None,
        settings: ControllerSettings | None = None,
        registry: CollectorRegistry | None = None,
        read: Callable[[Document], PodEntry | None] = lambda _: None,
        node: Callable[[str], Node | None] = lambda _: None,
    ) -> None:
        """Controllers without any facts yet.

        Args:
            clock: for delays; by default the client's.
            registry: of the series; by default one of their own.
            read: a bound pod as another part has read this very document beside its node; None
                where none has.
            node: the node of this name as that part has read it.
        """
        self._node_as_read = node
        self._clock = clock or client.clock
        self._notices = notices
        self._settings = settings or ControllerSettings()
        self.picture = Picture(self._settings.namespaces, read)
        self._queue: WorkQueue[_Key] = WorkQueue(
            clock=self._clock, chance=client.chance, backoff=Backoff(base=0.05, cap=30.0)
        )
        self.meters = ControllerMeters(
            registry,
            waiting=lambda: len(self._queue),
            refused=lambda: len(self.picture.configs.refused),
        )
        self._writer = Writer(client, self.meters)
        self._contention = Contention()
        self._running = False
        self._flags: dict[str, Problem] = {}
        self.meters.flags = self._flags
        self._away: dict[str, float] = {}
        self._told: dict[str, str] = {}
        self._locks: dict[tuple[str, str, str], float] = {}
        self._devices: dict[str, int] = {}

    @property
    def idle(self) -> bool:
        """Whether it runs and has looked at every object; it may look at some again later."""
        return self._running and self._queue.idle

    # --- facts of the API server -------------------------------------------------------------

    def changed(self, document: Document) -> None:
        """Take in a new or changed object."""
        match document.kind:
            case "Node" | "Device" if self.picture.node_changed(document):
                self._look("node", document.name)
            case "Pod" if self.picture.pod_changed(document):
                if bound_to(document) and not self._is_right(document):
                    self._look("pod", document.metadata.uid or "")
                if _is_over(document):
                    self._unlock(document)
            case "ConfigMap":
                self._configured(document, gone=False)

    def gone(self, document: Document) -> None:
        """Take in an object's deletion."""
        match document.kind:
            case "Node":
                name = document.name
                self.picture.node_gone(document)
                self._contention.forget(_Key("node", name))
                self._devices.pop(name, None)
                self._locks = {key: at for key, at in self._locks.items() if key[0] != name}
                self._look_at_pods(name)
            case "Device":
                self.picture.node_gone(document)
                self._look("node", document.name)
            case "Pod":
                uid = document.metadata.uid or ""
                known = self.picture.pods.get(uid)
                self.picture.pod_gone(uid)
                self._flags.pop(uid, None)
                self._away.pop(uid, None)
                self._contention.forget(_Key("pod", uid))
                if known is not None:
                    self._unlock(known)
            case "ConfigMap":
                self._configured(document, gone=True)

    def _configured(self, document: Document, *, gone: bool) -> None:
        self._look("config", document.label)
        if self.picture.config_changed(document, gone=gone):
            self._look_at_all()

    def _look(self, kind: str, name: str) -> None:
        # A standby would only pile up keys: a new leader looks at everything.
        if self._running:
            self._queue.add(_Key(kind, name))

    def _look_at_pods(self, node: str) -> None:
        for uid in self.picture.pods_on(node):
            self._look("pod", uid)

    def _look_at_all(self) -> None:
        # A node's pods after it, while it is still at hand as read.
        for name in self.picture.nodes:
            self._look("node", name)
            self._look_at_pods(name)

    def _unlock(self, pod: Document) -> None:
        """Queue the node of an ended pod, whose vendor's lock may be removed."""
        node = bound_to(pod)
        if node:
            self._look("node", node)

    # --- work --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at all objects, then at changes, until cancelled.

        The caller leads, and has taken in a complete list of everything.
        """
        self._running = True
        try:
            for document in self.picture.configs.documents.values():
                self._look("config", document.label)
            self._look_at_all()
            await work(
                self._queue,
                self._handle,
                workers=self._settings.workers,
                name="controllers",
                failed=self._failed,
            )
        finally:
            self._running = False
            # A standby looks at no pod, so it would not notice the end of a problem.
            self._flags.clear()
            self._away.clear()

    def _failed(self, key: _Key, error: Exception) -> None:
        again = self._queue.failures(key)
        _LOG.warning("%s %s: %s; failure %d, it is tried again", key.kind, key.name, error, again)

    async def _handle(self, key: _Key) -> None:
        started, sent = self._clock.monotonic(), self._writer.sent
        try:
            if key.kind == "node":
                await self._node(key)
            elif key.kind == "pod":
                await self._pod(key)
            else:
                self._config(key.name)
        except InvalidDocument as error:
            # It stays so until its next write; another try would not help.
            self.meters.unreadable.inc()
            _LOG.warning("%s %s is left alone: %s", key.kind, key.name, error)
        # A look that writes nothing never waits. A new leader looks at every object, and requests for
        # places must not wait meanwhile. So all workers together rest half of the time.
        rest = 0.0
        if self._writer.sent == sent:
            busy = self._settings.workers / _SHARE - 1
            rest = min(self._clock.monotonic() - started, _SLICE) * busy
        await self._clock.sleep(rest)

    # --- nodes -------------------------------------------------------------------------------

    async def _node(self, key: _Key) -> None:
        node, device = self.picture.node(key.name)
        if node is None:
            return
        await self._locked(key, node)
        changes = node_label_changes(node, device)
        await self._correct(key, node, changes, "labels", self._writer.labels)
        if self._settings.totals:
            await self._totals(key)
        read = self.picture.read_node(key.name)
        if read is None:
            return  # it is gone by now
        devices = read.node.devices
        health = hash(tuple((d.type, d.uuid, d.healthy, d.health_detail) for d in devices))
        if self._devices.get(key.name) != health:
            self._devices[key.name] = health
            self._look_at_pods(key.name)

    async def _totals(self, key: _Key) -> None:
        node, device = self.picture.node(key.name)
        read = self.picture.read_node(key.name)
        if node is None or read is None:
            return
        patch = totals_patch(node, device, read.node, self.picture.context.settings)
        if await self._correct(key, node, patch, "totals", self._writer.node_status):
            self.meters.contended.inc()
            self._notices.warning(
                _regarding(node),
                "TotalsContended",
                "another writer overwrites the node's device totals again and again; stop the "
                f"other manager: {', '.join(sorted({n for part in patch.values() for n in part}))}",
            )

    async def _correct(
        self, key: _Key, document: Document, change: Mapping[str, Any], what: str, write: _Write
    ) -> bool | None:
        """Write a change of an object, later if others undo it again and again; whether this is a fight now.

        None if it was not written yet.
        """
        now = self._clock.monotonic()
        # A condition is one value: its type is always the same.
        values = {what: tuple(change.items())} if what == _CONDITION else change
        wait = self._contention.wait(key, what, values, now) if change else 0.0
        if wait > 0:
            self._queue.add_after(key, wait)
        if wait > 0 or not change:
            return None
        self._renewed(await write(document, change))
        picture, pod = self.picture, key.kind == "pod"
        if (picture.pods.get(key.name) if pod else picture.node(key.name)[0]) is None:
            return False  # deleted meanwhile, and forgotten
        return self._contention.written(key, what, values, now)

    def _renewed(self, document: Document | None) -> None:
        """Keep a write's answer, which is the newest state, unless the watch has reported the object's deletion."""
        if document is None:
            return
        uid = document.metadata.uid or ""
        if document.kind == "Node":
            node, _ = self.picture.node(document.name)
            if node is not None and node.metadata.uid == uid:
                self.picture.node_changed(document)
        elif uid in self.picture.pods:
            self.picture.pod_changed(document)

    async def _locked(self, key: _Key, node: Document) -> None:
        """Remove vendors' locks whose holder has ended, or has held them too long."""
        held = {name: node.annotations[name] for name in LOCKS if name in node.annotations}
        now, before = self._clock.monotonic(), self._locks
        seen = {at: before.get(at, now) for at in ((node.name, *one) for one in held.items())}
        # Not after a wait, in which the node may be deleted.
        self._locks = {at: one for at, one in before.items() if at[0] != node.name} | seen
        for name, text in held.items():
            lock = read_lock(text)
            left = seen[node.name, name, text] + _LOCK_SECONDS - self._clock.monotonic()
            if left > 0 and not (lock.pod and await self._is_over(lock.namespace, lock.pod)):
                self._queue.add_after(key, left)
                continue
            await self._writer.unlock(node, name, text)
            _LOG.info("node %s: removed %s: %s", node.name, name, text)

    async def _is_over(self, namespace: str, name: str) -> bool:
        known = self.picture.pod_named(namespace, name)
        if known is not None and not _is_over(known):
            return False
        # The picture lacks it: it may be new, or a pod that the picture does not keep.
        return await self._writer.is_over(namespace, name)

    # --- pods --------------------------------------------------------------------------------

    def _is_right(self, document: Document) -> bool:
        """Whether another part has read this very document, and it shows that nothing is to be written.

        Nearly every pod is right at once, and a look by a worker costs as much as the pod's place.
        """
        uid, node = document.metadata.uid or "", self._node_as_read(bound_to(document))
        entry = None if node is None else self.picture.read_already(document)
        if node is None or entry is None or uid in self._flags or uid in self._away:
            return False
        return (
            pods.problem_of(entry.pod, node) is None
            and pods.condition_change(document, None) is None
            and not pods.label_changes(entry, node, self.picture.context)
        )

    async def _pod(self, key: _Key) -> None:
        document = self.picture.pods.get(key.name)
        if document is None or not bound_to(document):
            return
        read = self.picture.read_node(bound_to(document))
        node = read.node if read else None
        entry = self.picture.read_pod(document, node)
        flag = pods.problem_of(entry.pod, node)
        if node is not None and not self._may_pass(key, flag):
            await self._flag(document, flag)
        changes = pods.label_changes(entry, node, self.picture.context) if node else {}
        await self._correct(key, document, changes, "labels", self._writer.labels)

    async def _flag(self, document: Document, flag: pods.Flag | None) -> None:
        """Write on the pod the problem of its devices, or that the problem is over."""
        uid = document.metadata.uid or ""
        if flag is None:
            self._flags.pop(uid, None)
        else:
            self._flags[uid] = flag.problem
        condition = pods.condition_change(document, flag)
        if condition is None or _is_over(document):
            return
        key, write = _Key("pod", uid), self._writer.pod_condition
        if await self._correct(key, document, condition, _CONDITION, write) is None:
            return
        tell = self._notices.normal if flag is None else self._notices.warning
        tell(_regarding(document), condition["reason"], condition["message"])

    def _may_pass(self, key: _Key, flag: pods.Flag | None) -> bool:
        """Whether the problem is so new that the device may come back by itself."""
        if flag is None or flag.problem not in (Problem.LOST, Problem.UNHEALTHY):
            self._away.pop(key.name, None)
            return False
        now = self._clock.monotonic()
        left = self._away.setdefault(key.name, now) + self._settings.grace - now
        if left <= 0:
            return False
        self._queue.add_after(key, left)
        return True

    # --- ConfigMaps --------------------------------------------------------------------------

    def _config(self, label: str) -> None:
        """Report the result of a ConfigMap, once for each state."""
        configs = self.picture.configs
        document = next((d for d in configs.documents.values() if d.label == label), None)
        if document is None:
            self._told.pop(label, None)
            return
        problem = configs.refused.get(label, "")
        before = self._told.get(label, "")
        self._told[label] = problem
        if problem and problem != before:
            message = f"{problem}; the former settings stay in force"
            _LOG.error("%s refused: %s", label, message)
            self._notices.warning(_regarding(document), "ConfigRefused", message)
        elif before and not problem:
            self._notices.normal(_regarding(document), "ConfigApplied", "it is in force")


def _is_over(pod: Document) -> bool:
    return isinstance(pod.shape, shapes.Pod) and finished(pod.shape)


def _regarding(document: Document) -> Regarding:
    uid = document.metadata.uid or ""
    return Regarding("v1", document.kind, document.name, document.namespace, uid)

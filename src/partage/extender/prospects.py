"""Nodes chosen ahead for pods that queue up at kube-scheduler, where looking at all nodes is dear.

kube-scheduler passes every node through its own filters before it asks about a pod; with thousands
of nodes that is most of a cycle. Where a pod is nominated for a node, it tries that node first,
and looks no further if it passes. So while pods queue up, the policy chooses among all nodes for
the next of them, and the service nominates each for its node before its turn comes:

    queues up ── chosen, its place kept, nominated ── asked about that node alone ── passed
                   │            │
                   │            └── asked about others: a node that kube-scheduler minds
                   └── the place is given up: somebody wants it whose turn it is, or no turn came

What is chosen ahead promises nothing: kube-scheduler checks the node by all its rules, and filter
and bind have the last word as for every other pod. A place that is kept ahead gives way to any pod
that is not less important and has its turn.

It pays only where a cycle without it costs more than the nomination, a write: from a number of
nodes in one call on, and while most of those that were chosen ahead are taken. No node is left out by
it, whatever part of them kube-scheduler looks at.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final

from partage.extender.ports import Hooks
from partage.extender.verbs import Verbs
from partage.model.pod import Pod
from partage.model.reason import ReasonCode, Refusal
from partage.placement.work import Work
from partage.scheduler.engine import Engine, State
from partage.wire import shapes
from partage.wire.documents import Document
from partage.wire.translation import PodEntry

__all__ = ["AheadSettings", "Prospects", "Shown"]

_AT_ONCE: Final = 2
"""Choices in one go; more would keep kube-scheduler waiting for an answer."""
_CREDIT: Final = 64
"""What is left to lose: a pod asked about its node alone adds one, any other takes two."""
_MOST_CREDIT: Final = 128
_PAUSE: Final = 30.0
"""Seconds without choices ahead, once too many of them were not taken."""
_REPEAT: Final = 10.0
"""Seconds after which a nomination is taken off once more that is still there."""


@dataclass(frozen=True, slots=True)
class AheadSettings:
    """When nodes are chosen ahead.

    Attributes:
        nodes: in one call from which on a nomination costs less than the cycle that it saves.
        most: pods at a time: what kube-scheduler gets through while nominations are written, and
            no more, since later choices know more.
        head: pods at the head of the queue that no nomination would reach in time.
    """

    nodes: int = 1000
    most: int = 64
    head: int = 8


@dataclass(frozen=True, slots=True)
class Shown:
    """A pod that was shown its node ahead.

    Attributes:
        entry: the pod.
        node: where its place is kept.
        names: what kube-scheduler asks with when it tries that node alone.
    """

    entry: PodEntry
    node: str
    names: bytes


@dataclass(slots=True)
class _Told:
    """What a pod was nominated for here; no node once others have to do with it.

    Attributes:
        node: which.
        heard: the API server has told of it.
        withdrawn: the version of the pod that it was to be taken off of; empty before.
        again: when it may be taken off once more, seconds on the service's steady clock.
    """

    node: str
    heard: bool = False
    withdrawn: str = ""
    again: float = 0.0


class Prospects:
    """Who queues up, and who of them was shown a node.

    Attributes:
        shown: pods whose place is kept and whose turn has not come, by uid, in order of choosing.
        counts: how often a node chosen ahead was `shown`, `taken`, `missed`, `ceded`, `withdrawn`.
    """

    def __init__(
        self, engine: Engine, verbs: Verbs, hooks: Hooks, settings: AheadSettings | None
    ) -> None:
        """Nobody queues up yet.

        Args:
            engine: the books.
            verbs: where holds are kept.
            hooks: who is told.
            settings: when nodes are chosen ahead; None for never.
        """
        self._engine, self._verbs, self._hooks = engine, verbs, hooks
        self._settings = settings
        self._queues: dict[int, dict[str, PodEntry]] = {}
        self._versions: dict[str, str] = {}
        self._told: dict[str, _Told] = {}
        self._stale: dict[str, PodEntry] = {}
        self._schedulers: set[str] = set()
        self._asked = 0
        self._credit, self._pause = _CREDIT, 0.0
        self.shown: dict[str, Shown] = {}
        self.counts = dict.fromkeys(("shown", "taken", "missed", "ceded", "withdrawn"), 0)

    @property
    def queued(self) -> int:
        """How many pods are known whose turn is still to come."""
        return sum(map(len, self._queues.values())) + len(self.shown)

    # --- what is heard of pods ---------------------------------------------------------------

    def seen(self, entry: PodEntry, document: Document | None) -> bool:
        """A pod without a node was seen; whether what it is nominated for was chosen here.

        Args:
            entry: the pod.
            document: the newest of it.
        """
        uid = entry.pod.uid
        if document is None:
            return False
        version = document.metadata.resource_version or ""
        told = self._told.get(uid)
        if told is None:
            if self._queues_up(entry, document):
                self._versions[uid] = version
                self._queues.setdefault(entry.pod.priority, {})[uid] = entry
            else:
                self._leave(entry.pod.priority, uid)
            return False
        self._versions[uid] = version
        if not told.node or (not entry.nominated and not told.heard):
            return False
        if entry.nominated != told.node:
            self.leave_alone(uid)
            return False
        told.heard = True
        if _tried(document):
            self._stale[uid] = entry  # its turn has come and gone, and nobody takes it off
        return True

    def leave_alone(self, uid: str) -> None:
        """Whatever the pod is nominated for from now on is somebody else's doing: preemption's."""
        if uid in self._told:
            self._told[uid] = _Told("", heard=True)
        self.shown.pop(uid, None)
        self._stale.pop(uid, None)

    def _queues_up(self, entry: PodEntry, document: Document) -> bool:
        """Whether kube-scheduler has not tried the pod yet, and any node that fits will do."""
        shape, pod = document.shape, entry.pod
        if entry.flexible or entry.nominated or pod.uid in self._engine.states:
            return False
        if pod.request.fault is not None or not pod.request.groups:
            return False
        if document.metadata.deletion_timestamp is not None or _tried(document):
            return False
        spec = shape.spec if isinstance(shape, shapes.Pod) else None
        if spec is None or spec.scheduling_gates or spec.spread:
            return False
        affinity = spec.affinity
        return affinity is None or not (affinity.pod_affinity or affinity.pod_anti_affinity)

    def forget(self, uid: str, priority: int | None = None) -> None:
        """The pod is bound, gone, or others see to its place."""
        for known in [priority] if priority is not None else list(self._queues):
            self._leave(known, uid)
        self.shown.pop(uid, None)
        self._told.pop(uid, None)
        self._stale.pop(uid, None)
        self._versions.pop(uid, None)

    def _leave(self, priority: int, uid: str) -> None:
        queue = self._queues.get(priority)
        if queue is not None and queue.pop(uid, None) is not None and not queue:
            del self._queues[priority]

    def remember(self, before: "Prospects", pods: Container[str]) -> None:
        """Take over from books that were made anew what nobody else knows.

        Also of nominations that nobody has told of yet: they may be on their way. Places are not
        kept any more, so what was nominated for them is taken off.

        Args:
            before: those of the old books.
            pods: uids of all that are there.
        """
        told = {uid: one for uid, one in before._told.items() if uid in pods}  # noqa: SLF001
        self._told.update(told)
        kept = before._stale | {uid: one.entry for uid, one in before.shown.items()}  # noqa: SLF001
        self._stale.update({uid: entry for uid, entry in kept.items() if uid in told})
        self._schedulers |= before._schedulers  # noqa: SLF001 # its own kind
        self._asked = before._asked  # noqa: SLF001
        self._credit, self._pause = before._credit, before._pause  # noqa: SLF001
        self.counts = before.counts

    # --- turns -------------------------------------------------------------------------------

    def stands(self, entry: PodEntry, names: bytes) -> bool:
        """Whether a pod is asked about nothing but the node whose place is kept for it, still.

        Args:
            entry: the pod.
            names: the nodes in question as they came.
        """
        shown = self.shown.get(entry.pod.uid)
        if shown is None or shown.names != names:
            return False
        if shown.entry.pod.request is not entry.pod.request:
            return False
        return self._engine.keeps(entry.pod.uid, shown.node)

    def came(self, entry: PodEntry, asked: int, now: float) -> None:
        """A pod has its turn.

        Args:
            entry: the pod.
            asked: how many nodes it is asked about; none where it is bound unasked.
            now: seconds on the service's steady clock.
        """
        pod = entry.pod
        self._leave(pod.priority, pod.uid)
        self._stale.pop(pod.uid, None)
        self._schedulers.add(entry.translated.view.scheduler)
        if asked > 1:
            self._asked = asked
        if self.shown.pop(pod.uid, None) is None:
            return
        taken = asked == 1
        self.counts["taken" if taken else "missed"] += 1
        self._credit = min(self._credit + (1 if taken else -2), _MOST_CREDIT)
        if self._credit <= 0:
            self._credit, self._pause = _CREDIT, now + _PAUSE

    def cede(self, pod: Pod, refusal: Refusal, asked: Callable[[str], bool]) -> Sequence[str]:
        """Whose places go to a pod that has its turn and found no room: of as few as will do.

        Nobody's where all of them would not help, nor of more important pods. Of the others the
        least important go first, and among these who was chosen last.

        Args:
            pod: the pod.
            refusal: why it found none.
            asked: whether it may have a node.
        """
        may = sorted(
            (uid for uid in reversed(self.shown) if self._priority(uid) <= pod.priority),
            key=self._priority,
        )
        if refusal.code is ReasonCode.QUOTA_EXCEEDED:
            # What each counts is known only when it is gone; the caller asks again.
            namespace = pod.namespace
            ceded: Sequence[str] = [
                u for u in may if self.shown[u].entry.pod.namespace == namespace
            ][:1]
        else:
            ceded = self._fewest(pod, [uid for uid in may if asked(self.shown[uid].node)])
        for uid in ceded:
            self._stale[uid] = self.shown.pop(uid).entry
        self.counts["ceded"] += len(ceded)
        return ceded

    def _priority(self, uid: str) -> int:
        return self.shown[uid].entry.pod.priority

    def _fewest(self, pod: Pod, may: Sequence[str]) -> Sequence[str]:
        """Of these, the least that make room for a pod on one node; none where all do not."""
        nodes: dict[str, list[str]] = {}
        for uid in may:
            nodes.setdefault(self.shown[uid].node, []).append(uid)
        found: list[Sequence[str]] = []
        work = Work()
        for node, uids in nodes.items():
            if self._engine.fits_without(pod, node, uids, work):
                needed = uids
                for uid in reversed(uids):
                    fewer = [other for other in needed if other != uid]
                    if fewer and self._engine.fits_without(pod, node, fewer, work):
                        needed = fewer
                found.append(needed)
        # The first of equals: whose turn is furthest off.
        return min(found, key=lambda uids: (self._priority(uids[-1]), len(uids)), default=())

    # --- choosing ahead ----------------------------------------------------------------------

    def due(self, now: float) -> bool:
        """Whether nodes are to be chosen ahead at once."""
        settings = self._settings
        return bool(
            settings is not None
            and self._queues
            and self._asked >= settings.nodes
            and len(self.shown) < settings.most
            and now >= self._pause
        )

    def choose(self, now: float) -> None:
        """Choose for the next few pods of the queue, keep their places and have them nominated."""
        settings = self._settings
        if settings is None or not self.due(now):
            return
        if not self.shown:
            for _ in range(settings.head):
                self._next()
        for _ in range(min(_AT_ONCE, settings.most - len(self.shown))):
            entry = self._next()
            if entry is None:
                return
            decision = self._verbs.keep(entry.pod, now)
            if isinstance(decision, Refusal):
                return  # it is told why when its turn comes
            uid, node = entry.pod.uid, decision.allocation.node
            self.shown[uid] = Shown(entry, node, b'["%b"]' % node.encode())
            self._told[uid] = _Told(node)
            self.counts["shown"] += 1
            self._hooks.nominated(entry, node, self._versions[uid])

    def _next(self) -> PodEntry | None:
        """The next of the queue that kube-scheduler asks us about, taken out of it."""
        while self._queues:
            priority = max(self._queues)
            uid, entry = next(iter(self._queues[priority].items()))
            self._leave(priority, uid)
            if uid not in self._engine.states and (
                entry.translated.view.scheduler in self._schedulers
            ):
                return entry
        return None

    def expire(self, now: float) -> None:
        """Take back what was shown to pods whose turn did not come while their places were kept.

        Args:
            now: seconds on the service's steady clock.
        """
        for uid in [u for u in self.shown if self._engine.states.get(u) is not State.HELD]:
            self._stale[uid] = self.shown.pop(uid).entry
        for uid, entry in self._stale.items():
            # Until the API server has told of the nomination, there is nothing to take back.
            told, version = self._told.get(uid), self._versions.get(uid, "")
            if told is None or not told.node or not told.heard or uid in self._engine.states:
                continue
            # Once is enough, unless the pod was changed meanwhile or the write was lost.
            if told.withdrawn == version and now < told.again:
                continue
            self.counts["withdrawn"] += not told.withdrawn
            told.withdrawn, told.again = version, now + _REPEAT
            self._hooks.nominated(entry, "", version)


def _tried(document: Document) -> bool:
    """Whether kube-scheduler has said anything of the pod yet; gates are the API server's word, and stay."""
    shape = document.shape
    status = shape.status if isinstance(shape, shapes.Pod) else None
    return any(
        one.type == "PodScheduled" and one.reason != ReasonCode.SCHEDULING_GATED
        for one in (status.conditions if status else None) or ()
    )

"""Evicts less important pods for a pod that waits only for its devices.

    pending pods (extender.preemption) ── plans, node by node ── the best ── checked again
      │ keep the free part of the place for the pod, nominate it
      v
    victims: an event; evicted if they have one budget and the plan keeps it, else deleted as
    kube-scheduler does, with its condition; a plan breaks a budget only if nothing else helps

The loop decides one pod at a time, the most important first, and only while this instance leads.
The pod's namespace pays for the work of plans, as for every search, and for victims. Between two
plans at least as much time passes as they took, so that many pods that no plan helps leave
half of a processor to other tasks. A refused or unanswered request ends the plan. A pod that still
waits gets a new plan, by the state at that time, which spares the victim of that request for some minutes
if others help.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from partage.daemon.events_and_wakeups import regarding
from partage.daemon.watched import BUDGETS, LiveBudget
from partage.extender.books import Books
from partage.extender.preemption import MOST_PLANNING, Planner, abandoned, again, preemptors
from partage.extender.stories import SILENT, Stories
from partage.extender.unschedulable_pods import WaitingPod
from partage.kube.bodies import condition
from partage.kube.client import Client
from partage.kube.errors import EvictionBlocked, KubeError, NotFound
from partage.kube.events import EventRecorder
from partage.kube.resources import PODS, Scope
from partage.model.pod import Pod
from partage.placement.card import Work
from partage.scheduler.preemption import Occupant, Plan
from partage.wire.budgets import Budget, translate_budget
from partage.wire.translation import PodEntry

_LOG: Final = logging.getLogger("partage.daemon")
_REASON: Final = "PreemptionByScheduler"
"""kube-scheduler's own reason; while pods with it end, kube-scheduler also counts on their room."""
_A_UNIT: Final = 5e-6
_A_POD: Final = 5e-5
"""Seconds of pause for each unit of work of a plan, and for each waiting pod in a look."""
_SPARED: Final = 300.0
"""Seconds for which a victim that the API server did not evict is spared if others help."""
_MOST_REFUSED: Final = 1_000
"""Such victims that are remembered; two looks a second find no more in that time."""


@dataclass(frozen=True, slots=True)
class PreemptionSettings:
    """How room is made.

    Attributes:
        period: seconds between two looks at waiting pods.
        patience: seconds without a new plan for pods with equal requests, after no plan helped one
            of them.
        slice: seconds of planning after which other tasks get their turn.
    """

    period: float = 0.5
    patience: float = 10.0
    slice: float = 0.004


class Preempting:
    """The loop that makes room."""

    def __init__(
        self,
        client: Client,
        books: Callable[[], Books],
        recorder: EventRecorder,
        may: Callable[[], bool],
        settings: PreemptionSettings,
        stories: Stories = SILENT,
    ) -> None:
        """A loop that does not run yet.

        `may`: whether this instance leads now. `stories`: gets the pods for which room was made.
        """
        self._client, self._books, self._may = client, books, may
        self._recorder, self._settings = recorder, settings
        self._stories = stories
        self._planner = Planner(client.clock, settings.patience, settings.slice)
        self._refused: dict[str, float] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        pause = self._settings.period
        while True:
            await self._client.clock.sleep(pause + len(self._books().waiting) * _A_POD)
            pause = await self.turn()

    async def turn(self) -> float:
        """Look once. Returns the seconds until the next look, more after an error of the API server."""
        try:
            await self.look()
        except KubeError as error:
            _LOG.warning("preemption for pending pods failed: %s", error)
            return self._settings.patience
        return self._settings.period

    async def look(self) -> None:
        """Make room once for every pod that may have others evicted. Raises `KubeError`."""
        books, now = self._books(), self._client.clock.monotonic()
        for uid in abandoned(books):
            books.give_up(uid, now)
        vain = self._planner.in_vain
        asking = [one for one in preemptors(books) if not vain(one.entry.pod)]
        if not asking or not self._may():
            return
        budgets = await self._budgets()
        for waiting in asking:
            pod, now = waiting.entry.pod, self._client.clock.monotonic()
            allowance = books.cycle.allowance
            if vain(pod) or not allowance.has_turn(pod.namespace, now):
                continue
            if not allowance.may_evict(pod.namespace, now):
                books.postpone(pod.uid)
                continue
            work = Work(MOST_PLANNING)
            try:
                await self._make_room(books, waiting, budgets, work)
            except Exception:  # noqa: BLE001 # logged; a fault in one pod must not end the service of all
                _LOG.exception("no room can be made for pod %s", pod.key)
                self._planner.give_up(pod)
                books.give_up(pod.uid, now)
            allowance.spend(pod, work.taken, now)
            await self._client.clock.sleep(work.taken * _A_UNIT)

    async def _make_room(
        self, books: Books, waiting: WaitingPod, budgets: Sequence[Budget], work: Work
    ) -> None:
        start = self._stories.now()
        now = self._client.clock.monotonic()
        self._refused = {uid: until for uid, until in self._refused.items() if until > now}
        refused = frozenset(self._refused)
        best = await self._planner.best(books, waiting, budgets, work=work, refused=refused)
        # Other tasks had their turn meanwhile, so the present state decides.
        plan = again(books, waiting, best[0], budgets) if best else None
        now = self._client.clock.monotonic()
        if plan is None or books is not self._books() or not self._may():
            self._planner.give_up(waiting.entry.pod)
            return
        books.counts["preemption victims"] += len(plan.victims)
        gone = [victim.uid for victim in plan.victims]
        books.cycle.allowance.evict(waiting.entry.pod, gone, now)
        victims = [
            (victim, entry)
            for victim in plan.victims
            if (entry := books.cluster_cache.pods.get(victim.uid)) is not None
        ]
        books.make_room(waiting.entry, plan, now)
        problem = ""
        try:
            await self._carry_out(waiting.entry, plan, victims)
        except KubeError as error:
            problem = str(error)
            pod, now = waiting.entry.pod, self._client.clock.monotonic()
            _LOG.warning("preemption for pod %s failed: %s", pod.key, error)
            # A refusal is likely to be repeated, with an event and writes at every look. A budget's is of one victim.
            if not isinstance(error, EvictionBlocked) or refused.issuperset(self._refused):
                self._planner.give_up(pod)
            books.give_up(pod.uid, now)
        self._stories.made_room(waiting.entry, start, plan.node, len(plan.victims), problem)

    async def _budgets(self) -> list[Budget]:
        # A 404 is an error too: a proxy's looks like that of an API server without budgets.
        listed = await self._client.list_all(Scope(BUDGETS), into=LiveBudget)
        # The API server compares a pod with its budgets at each eviction, also one that they have let go already.
        return [replace(translate_budget(one), going=frozenset()) for one in listed.items]

    async def _carry_out(
        self, entry: PodEntry, plan: Plan, victims: Sequence[tuple[Occupant, PodEntry]]
    ) -> None:
        pod = entry.pod
        going = [other.pod for _, other in victims]
        told = room_made(plan.node, going, pod.namespace)
        self._recorder.normal(regarding(entry), "Preempting", told)
        trace = {"trace": self._stories.trace_id(entry)}
        message = room_made(plan.node, going)
        _LOG.info("pod %s (priority %d): %s", pod.key, pod.priority, message, extra=trace)
        await self._status(entry, {"nominatedNodeName": plan.node})
        # Victims whose budget may refuse come first, so that no other pod ends for nothing.
        for victim, other in sorted(victims, key=lambda one: not _asked(one[0], plan)):
            if not self._may():
                # Otherwise the remaining victims would count as leaving forever.
                self._books().give_up(pod.uid, self._client.clock.monotonic())
                return
            try:
                await self._send_away(victim, other, entry, plan)
            except KubeError:
                self._refuse(victim.uid)
                raise

    def _refuse(self, uid: str) -> None:
        self._refused.pop(uid, None)
        self._refused[uid] = self._client.clock.monotonic() + _SPARED
        if len(self._refused) > _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    async def _send_away(
        self, victim: Occupant, other: PodEntry, by: PodEntry, plan: Plan
    ) -> None:
        pod = other.pod
        # The message does not name the pod, because users of another namespace must not learn its name.
        message = f"Preempted by pod {by.pod.uid} on node {plan.node}"
        try:
            if _asked(victim, plan):
                await self._client.evict(pod.namespace, pod.name, uid=pod.uid)
            else:
                why = f"{by.pod.priority} is the priority of the pod that gets its devices"
                now = self._client.clock.now()
                told = condition("DisruptionTarget", "True", _REASON, why, now)
                await self._status(other, {"conditions": [told]})
                await self._client.delete(PODS, pod.name, namespace=pod.namespace, uid=pod.uid)
        except NotFound:
            return  # gone already
        # A conflict does not prove that the pod is gone either; otherwise we would wait for its room forever.
        except EvictionBlocked:
            _LOG.info("pod %s is spared: its disruption budget is used up", pod.key)
            raise
        self._recorder.normal(regarding(other), "Preempted", message)

    async def _status(self, entry: PodEntry, status: dict[str, object]) -> None:
        pod = entry.pod
        body = {"metadata": {"uid": pod.uid}, "status": status}
        await self._client.patch_pod_status(pod.namespace, pod.name, body, into=msgspec.Raw)


def room_made(node: str, victims: Sequence[Pod], reader: str | None = None) -> str:
    """How room is made for a pod, in one line.

    Args:
        victims: pods that have to end; empty if pods that end anyway make room.
        reader: the namespace of the line's readers; the line only counts pods of others. None for our own log.
    """
    own = [one for one in victims if reader in (None, one.namespace)]
    told = [f"{one.key} (priority {one.priority})" for one in own]
    if others := len(victims) - len(own):
        told.append(f"{others} pod{'s' * (others != 1)} of other namespaces")
    return f"room is made on node {node}: {', '.join(told) or 'by pods that end'}"


def _asked(victim: Occupant, plan: Plan) -> bool:
    """Whether a disruption budget is asked about the victim, and may refuse.

    Kubernetes refuses every eviction of a pod that is in several budgets, whatever they allow.
    """
    return len(victim.budgets) == 1 and victim.uid not in plan.broken

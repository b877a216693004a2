"""Ways to make a waiting pod fit: the smallest changes of its request, and the pods whose end makes room.

Each way is tried with the rule that decides live, and only ways that work are shown. A question changes nothing.
Between two questions the event loop serves others, and questions are counted. The pod's namespace pays for their work,
and without a turn (`extender.cycle`) no pods whose end makes room are searched for.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from partage.extender.books import Books
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.quantity import brief
from partage.model.reason import Refusal
from partage.model.request import CardFilter, DeviceRequest
from partage.model.selector import NodeConstraint, Toleration
from partage.placement.card import FEW, Work
from partage.scheduler.events import Placement
from partage.scheduler.preemption import MOST_A_PLAN, Occupant, Plan, planning
from partage.wire.advice import ROOM

_MOST: Final = 48
"""Most questions about one pod."""
_NODES: Final = 3
"""Number of nearest nodes that are searched for pods whose end would make room."""
_VICTIMS: Final = 8
"""Most pods that an advice may end."""
_CORE: Final = 10
"""Thousandths of a card between two tried amounts of compute."""
_MEMORY: Final = 2**30
"""Bytes between two tried amounts of memory."""
_STEPS: Final = 64
"""Most different amounts tried."""

_Change = Callable[[DeviceRequest], DeviceRequest]


@dataclass(slots=True)
class _Trial:
    """Questions about one pod; `done` is their work, in units."""

    books: Books
    pod: Pod
    left: int = _MOST
    done: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)

    async def node(self, twin: Pod) -> str:
        """The node of such a pod now; empty without a node, or if no question is left."""
        if self.left <= 0:
            return ""
        self.left -= 1
        await asyncio.sleep(0)
        twin = replace(twin, uid=f"{self.pod.uid}+way", node=None, record=None)
        work = Work(FEW)
        decision = self.books.engine.evaluate(twin, reasons=False, work=work)
        self.done += work.taken
        return decision.allocation.node if isinstance(decision, Placement) else ""

    async def largest(
        self, most: int, step: int, change: Callable[[int], Pod]
    ) -> tuple[int, str] | None:
        """The largest amount below `most`, a multiple of the step, with which the pod fits."""
        step = max(step, most // _STEPS // step * step)
        low, high, where = 0, (most - 1) // step, ""
        while low < high:
            middle = (low + high + 1) // 2
            node = await self.node(change(middle * step))
            if node:
                low, where = middle, node
            else:
                high = middle - 1
        return (low * step, where) if where else None

    def tell(self, text: str, node: str, pods: list[dict[str, Any]] | None = None) -> None:
        """Add a way that works."""
        self.found.append({"text": text, "node": node, "pods": pods or []})


async def ways_document(
    books: Books, namespace: str, name: str, *, names: bool = True, now: float | None = None
) -> dict[str, Any] | None:
    """Ways to make a pod fit, the smallest change first; None for an unknown pod.

    `names`: whether to name pods of other namespaces. `now`: as for `explain`.
    """
    entry = books.cluster_cache.pod_named(namespace, name)
    if entry is None:
        return None
    pod = entry.pod
    waits = pod.node is None and not pod.finished and pod.request.fault is None
    work = Work() if now is None else books.cycle.allowance.question(pod, now)
    refusal = None
    if waits and pod.uid not in books.engine.states:
        refusal = books.engine.evaluate(pod, work=work)
        if now is not None:
            books.cycle.allowance.spend(pod, work.taken, now)
    if not isinstance(refusal, Refusal):
        return {"ways": []}
    trial = _Trial(books, pod)
    try:
        await _less(trial)
        await _elsewhere(trial)
        if not work.few:
            await _without(trial, refusal, names=names)
    finally:
        if now is not None:
            books.cycle.allowance.spend(pod, trial.done, now)
    return {"ways": trial.found}


def _cards(pod: Pod) -> list[DeviceRequest]:
    return [g.request for g in pod.request.groups if g.request.type is DeviceType.GPU]


def _changed(pod: Pod, change: _Change) -> Pod:
    """The same pod with other requests for cards."""
    groups = tuple(
        replace(
            group,
            request=change(group.request),
            containers=tuple(
                replace(one, core_milli=0, memory_bytes=0, memory_milli=0)
                for one in group.containers[:1]
            ),
        )
        if group.request.type is DeviceType.GPU
        else group
        for group in pod.request.groups
    )
    return replace(pod, request=replace(pod.request, groups=groups))


def _with_less(pod: Pod, name: str, amount: int) -> Pod:
    less: dict[str, Any] = {name: amount}
    return _changed(pod, lambda one: replace(one, **less))


def _percent(milli: int) -> str:
    return f"{milli / 10:g}%"


_PARTS: Final = (
    ("core_milli", _CORE, "compute", _percent),
    ("memory_bytes", _MEMORY, "memory", brief),
    ("memory_milli", _CORE, "memory", _percent),
)
"""Amounts of a card that a pod may reduce: the field of its request, steps, and its text."""


async def _less(trial: _Trial) -> None:
    """Fewer cards, less compute, less memory, or less of both on each card."""
    cards = _cards(trial.pod)
    if len(cards) != 1 or cards[0].every or cards[0].templated or cards[0].profile:
        return  # we cannot choose one of several requests
    (asked,) = cards
    if asked.count > 1:
        fewer = await trial.largest(
            asked.count, 1, lambda n: _changed(trial.pod, lambda one: replace(one, count=n))
        )
        if fewer:
            trial.tell(
                f"ask {fewer[0]} card{'s' * (fewer[0] > 1)} instead of {asked.count}", fewer[1]
            )
    if asked.whole or asked.extras:
        return
    known = len(trial.found)
    for name, step, of, shown in _PARTS:
        most: int = getattr(asked, name)
        part = await trial.largest(most, step, partial(_with_less, trial.pod, name))
        if part:
            trial.tell(f"ask {shown(part[0])} of {of} instead of {shown(most)}", part[1])
    if (
        known == len(trial.found)
        and asked.core_milli
        and (asked.memory_bytes or asked.memory_milli)
    ):
        await _less_of_both(trial, asked)


async def _less_of_both(trial: _Trial, asked: DeviceRequest) -> None:
    def scaled(percent: int) -> Pod:
        def change(one: DeviceRequest) -> DeviceRequest:
            return replace(
                one,
                core_milli=max(one.core_milli * percent // 100, 1),
                memory_bytes=one.memory_bytes * percent // 100,
                memory_milli=one.memory_milli * percent // 100,
            )

        return _changed(trial.pod, change)

    both = await trial.largest(100, 5, scaled)
    if both is not None:
        percent, node = both
        memory = (
            brief(asked.memory_bytes * percent // 100)
            if asked.memory_bytes
            else _percent(asked.memory_milli * percent // 100)
        )
        compute = _percent(asked.core_milli * percent // 100)
        trial.tell(f"ask {compute} of compute and {memory} of memory", node)


async def _elsewhere(trial: _Trial) -> None:
    """Other cards or nodes than those that the pod allows."""
    pod = trial.pod
    if any(one.filter != CardFilter() for one in _cards(pod)):

        def any_card(one: DeviceRequest) -> DeviceRequest:
            kept = replace(one.filter, use_types=(), avoid_types=(), use_uuids=(), avoid_uuids=())
            return replace(one, filter=kept)

        node = await trial.node(_changed(pod, any_card))
        if node:
            trial.tell("allow other models and cards", node)
    everything = Toleration(operator="Exists")
    node = await trial.node(replace(pod, tolerations=(*pod.tolerations, everything)))
    if node:
        told = trial.books.engine.ledger.node_at(trial.books.engine.ledger.index[node])
        taints = ", ".join(
            str(one)
            for one in told.taints
            if one.repels and not any(own.tolerates(one) for own in pod.tolerations)
        )
        trial.tell(f"tolerate {taints}" if taints else "tolerate the node's taints", node)
    if pod.constraint != NodeConstraint() or pod.request.node_labels:
        free = replace(pod.request, node_labels=())
        node = await trial.node(replace(pod, constraint=NodeConstraint(), request=free))
        if node:
            trial.tell("drop the node selector or affinity", node)


async def _without(trial: _Trial, refusal: Refusal, *, names: bool) -> None:
    """Pods of any priority whose end would make room on the nearest nodes."""
    engine, plans = trial.books.engine, []
    near = [name for name, why in refusal.nodes.items() if why.code in ROOM]
    for name in near[:_NODES]:
        await asyncio.sleep(0)
        occupants = [
            Occupant(held.uid, entry.pod.priority)
            for held in engine.ledger.on_node(name)
            if (entry := trial.books.cluster_cache.pods.get(held.uid)) is not None
        ]
        plan = await _plan(trial, name, occupants)
        if plan is not None and 0 < len(plan.victims) <= _VICTIMS:
            plans.append(plan)
    for plan in sorted(plans, key=lambda one: len(one.victims))[:1]:
        victims = [engine.ledger.allocation(one.uid) for one in plan.victims]
        pods = [
            {
                "namespace": held.namespace
                if names or held.namespace == trial.pod.namespace
                else None,
                "name": held.name if names or held.namespace == trial.pod.namespace else None,
            }
            for held in victims
            if held is not None
        ]
        few = len(pods) == 1
        trial.tell(f"wait until {'this pod ends' if few else 'these pods end'}", plan.node, pods)


async def _plan(trial: _Trial, node: str, occupants: Sequence[Occupant]) -> Plan | None:
    """The smallest plan that makes room on a node; others have their turn where the search takes long."""
    work = Work(MOST_A_PLAN)
    steps = planning(trial.books.engine, trial.pod, node, occupants, {}, work=work)
    try:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Plan | None = end.value
                return found
            await asyncio.sleep(0)
    finally:
        trial.done += work.taken

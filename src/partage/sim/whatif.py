"""What if: a cluster's documents under another policy, with other nodes, or with shares.

A change is applied to the documents, and the engine that schedules live decides. The measured result is which pods run,
which wait and why, the load of the cards, and how many more pods of each kind would still fit. This module decides
nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import count as numbers
from itertools import islice
from typing import Final

from partage.model.device import MILLI, DeviceType
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.quantity import brief
from partage.model.reason import Refusal
from partage.model.request import DeviceRequest, Phase, PodRequest, RequestGroup
from partage.model.selector import NodeConstraint
from partage.scheduler.engine import Engine
from partage.scheduler.events import Placement, PodGone
from partage.scheduler.idle import recovered
from partage.sim.offline import queue, started
from partage.wire.cluster import Cluster
from partage.wire.outcomes import closed_code
from partage.wire.pods import TranslatedPod

MOST_MORE: Final = 1000
"""The limit of counting how many more pods would fit."""
MOST_ADDED: Final = 10_000
"""Copies of nodes; more are a typing error, and a million would fill the memory."""


@dataclass(frozen=True, slots=True)
class Change:
    """The differences from the present cluster.

    Attributes:
        policy: in force instead of the cluster's own.
        add: nodes to copy and how many copies of each.
        remove: shell patterns of nodes to remove; their pods are scheduled again.
        share: thousandths of a card, compute and memory, that pods with one whole card ask instead; None changes
            nothing.
        anew: place every running pod that holds devices again, as if all had just arrived.
    """

    policy: Policy | None = None
    add: tuple[tuple[str, int], ...] = ()
    remove: tuple[str, ...] = ()
    share: int | None = None
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods with equal requests.

    Attributes:
        asks: their request, for people.
        more: how many further ones would fit after all have been placed, each kind alone.
        bounded: counting stopped at `more`; there may be more room.
    """

    asks: str
    pods: int
    running: int
    more: int
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A cluster's load; pods are those that ask for devices, cards are graphics cards.

    Attributes:
        cards: those that are healthy and open.
        running: pods with a place.
        waiting: pods without one, by code of the reason.
        core_milli: allocated compute, thousandths of a card.
        memory_bytes: allocated memory.
        closed: cards that take no pod: unhealthy, cordoned or in quarantine.
        idle: open cards with no pod.
        shared: open cards with more than one pod.
        models: model to (cards, cards without a pod).
        kinds: requests by falling number of pods.
        examples: code to one pod that waits for it and its line.
    """

    name: str
    policy: str
    nodes: int
    cards: int
    running: int
    waiting: Mapping[str, int]
    core_milli: int
    core_total: int
    memory_bytes: int
    memory_total: int
    closed: int
    idle: int
    shared: int
    models: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    kinds: tuple[Kind, ...] = ()
    examples: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def pods(self) -> int:
        """Pods that ask for devices and have not ended."""
        return self.running + sum(self.waiting.values())

    @property
    def core_share(self) -> float:
        """Allocated part of the compute, 0 to 1."""
        return self.core_milli / self.core_total if self.core_total else 0.0

    @property
    def memory_share(self) -> float:
        """Allocated part of the memory, 0 to 1."""
        return self.memory_bytes / self.memory_total if self.memory_total else 0.0


# --- the change ------------------------------------------------------------------------------


def changed(cluster: Cluster, change: Change) -> Cluster:
    """The changed cluster.

    Raises `InvalidValue`: a node to copy does not exist, a pattern matches none, or a number is invalid or too large.
    """
    gone = _removed(cluster, change.remove)
    nodes = [node for node in cluster.nodes if node.name not in gone]
    added = sum(count for _, count in change.add)
    if added > MOST_ADDED:
        raise InvalidValue(f"{added:,} nodes to add: {MOST_ADDED:,} at most")
    allocatable = dict(cluster.allocatable)
    for name, count in change.add:
        for copy in _copies(nodes, cluster, name, count):
            nodes.append(copy)
            allocatable[copy.name] = allocatable.get(name, {})
    pods = tuple(_changed_pod(pod, gone, change) for pod in cluster.pods)
    return replace(cluster, nodes=tuple(nodes), pods=pods, allocatable=allocatable)


def _removed(cluster: Cluster, patterns: Sequence[str]) -> frozenset[str]:
    names = [node.name for node in cluster.nodes]
    gone: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            raise InvalidValue(f"no node is called {pattern!r}; there are {_some(names)}")
        gone |= found
    return frozenset(gone)


def _copies(nodes: Sequence[Node], cluster: Cluster, name: str, count: int) -> Iterator[Node]:
    """Copies of an existing node, with names and devices of their own."""
    model = next((node for node in cluster.nodes if node.name == name), None)
    if model is None:
        known = _some([node.name for node in cluster.nodes])
        raise InvalidValue(f"no node is called {name!r} to copy; there are {known}")
    if count < 1:
        raise InvalidValue(f"{count} copies of node {name}: at least one is needed")
    taken = {node.name for node in nodes}
    free = (number for number in numbers(1) if f"{name}-copy{number}" not in taken)
    for number in islice(free, count):
        yield _copy(model, number)


def _copy(model: Node, number: int) -> Node:
    mark, model = f"-copy{number}", recovered(model)
    labels = dict(model.labels)
    if "kubernetes.io/hostname" in labels:
        labels["kubernetes.io/hostname"] = model.name + mark
    return replace(
        model,
        name=model.name + mark,
        uid=model.uid and model.uid + mark,
        labels=labels,
        devices=tuple(
            replace(device, uuid=device.uuid + mark, foreign=()) for device in model.devices
        ),
        links={
            (min(a + mark, b + mark), max(a + mark, b + mark)): score
            for (a, b), score in model.links.items()
        },
    )


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"


def _changed_pod(translated: TranslatedPod, gone: frozenset[str], change: Change) -> TranslatedPod:
    pod = translated.pod
    if pod.finished:
        return translated
    request = _shared(pod.request, change.share) if change.share is not None else pod.request
    leaves = pod.node in gone or request != pod.request or (change.anew and bool(request.groups))
    if pod.node is None or not leaves:
        return replace(translated, pod=replace(pod, request=request))
    return replace(translated, pod=replace(pod, request=request, node=None, record=None))


def _shared(request: PodRequest, milli: int) -> PodRequest:
    """The request with a part of a card instead of each single whole card.

    Requests for several cards at once are unchanged, because a program on many cards needs them alone.
    """
    if not 0 < milli < MILLI:
        raise InvalidValue(f"a share of {milli / 10:g} %: it must lie between 0 and 100 %")
    cards = sum(g.request.count for g in request.groups if g.phase is not Phase.INIT)
    if cards != 1 or request.joint is not None or request.partition is not None:
        return request
    groups = tuple(_shared_group(group, milli) for group in request.groups)
    return replace(request, groups=groups) if groups != request.groups else request


def _shared_group(group: RequestGroup, milli: int) -> RequestGroup:
    asked = group.request
    if not asked.whole or asked.type is not DeviceType.GPU or asked.every or asked.templated:
        return group
    part = replace(
        asked,
        whole=False,
        unused=False,
        exclusive=False,
        extras=(),
        core_unit="",
        core_milli=milli,
        memory_bytes=0,
        memory_milli=milli,
    )
    containers = tuple(
        replace(
            ask,
            core_milli=ask.core_milli * milli // MILLI,
            memory_bytes=0,
            memory_milli=milli if ask.memory_bytes else ask.memory_milli * milli // MILLI,
        )
        for ask in group.containers
    )
    return replace(group, request=part, containers=containers)


# --- the outcome -----------------------------------------------------------------------------


def evaluate(
    cluster: Cluster, change: Change, name: str, seed: int | None = None, most: int = MOST_MORE
) -> Result:
    """Schedule the changed cluster and measure it. Raises `InvalidValue`: the change cannot be made.

    Args:
        name: of the change, for people.
        seed: permutes the order of the nodes; None keeps the documents'.
        most: the limit of counting further pods of a kind.
    """
    after = changed(cluster, change)
    policy = change.policy or after.policy or Policy()
    engine, _ = started(after, policy, seed)
    refused: dict[str, Refusal] = {}
    for translated in queue(after.pods):
        decision = engine.schedule(translated.pod)
        if isinstance(decision, Refusal):
            refused[translated.pod.uid] = decision
    return _measured(after, engine, refused, name, policy, most)


def _measured(
    cluster: Cluster,
    engine: Engine,
    refused: Mapping[str, Refusal],
    name: str,
    policy: Policy,
    most: int,
) -> Result:
    pods = [t.pod for t in cluster.pods if _counts(t.pod)]
    codes: Counter[str] = Counter()
    examples: dict[str, tuple[str, str]] = {}
    for pod in pods:
        if pod.uid in refused:
            refusal = refused[pod.uid]
            codes[refusal.code.value] += 1
            examples.setdefault(refusal.code.value, (pod.key, refusal.message))
    core, core_total, memory, memory_total, closed, idle, shared = 0, 0, 0, 0, 0, 0, 0
    models: dict[str, tuple[int, int]] = {}
    for node in cluster.nodes:
        for card in engine.ledger.cards(DeviceType.GPU, engine.ledger.index[node.name]):
            if closed_code(card):
                closed += 1
                continue
            device = card.device
            core += device.core_milli - card.core_free
            core_total += device.core_milli
            memory += device.memory_bytes - card.memory_free
            memory_total += device.memory_bytes
            idle += not card.tenants
            shared += card.tenants > 1
            label = device.model or device.vendor or "unnamed"
            cards, without = models.get(label, (0, 0))
            models[label] = (cards + 1, without + (not card.tenants))
    return Result(
        name=name,
        policy=str(policy),
        nodes=len(cluster.nodes),
        cards=sum(cards for cards, _ in models.values()),
        running=sum(pod.uid not in refused for pod in pods),
        waiting=dict(codes.most_common()),
        core_milli=core,
        core_total=core_total,
        memory_bytes=memory,
        memory_total=memory_total,
        closed=closed,
        idle=idle,
        shared=shared,
        models=models,
        kinds=tuple(_kinds(engine, pods, refused, most)),
        examples=examples,
    )


def _counts(pod: Pod) -> bool:
    """Whether a pod asks for devices, or tries to."""
    return not pod.finished and (bool(pod.request.groups) or pod.request.fault is not None)


def _kinds(
    engine: Engine, pods: Sequence[Pod], refused: Mapping[str, Refusal], most: int
) -> Iterator[Kind]:
    """Requests by falling number of pods, with the room that is left for each.

    If some of the pods may go anywhere, room is counted for these.
    """
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.request.fault is None:
            found.setdefault(asked_for(pod.request), []).append(pod)
    for asks, members in sorted(found.items(), key=lambda item: -len(item[1])):
        running = sum(pod.uid not in refused for pod in members)
        freest = min(members, key=lambda pod: pod.constraint != NodeConstraint())
        more = _room(engine, freest, most)
        yield Kind(asks, len(members), running, more, bounded=more == most)


def _room(engine: Engine, like: Pod, most: int) -> int:
    """How many more such pods would fit; the engine is restored afterwards.

    They have this pod's request but no namespace, because a quota is a rule, not room.
    """
    placed: list[str] = []
    while len(placed) < most:
        uid = f"{like.uid}+{len(placed) + 1}"
        pod = replace(like, uid=uid, node=None, record=None, namespace="", quota={})
        if not isinstance(engine.schedule(pod, reasons=False), Placement):
            break
        placed.append(uid)
    for uid in placed:
        engine.handle(PodGone(uid))
    return len(placed)


def asked_for(request: PodRequest) -> str:
    """A pod's request of devices, for people: `1 whole gpu`, `2 x gpu 25% + 8Gi`."""
    parts = [
        f"{_amount(group.request)} (init)" if group.phase is Phase.INIT else _amount(group.request)
        for group in request.groups
    ]
    return ", ".join(f"{n} x ({p})" if n > 1 else p for p, n in Counter(parts).items())


def _amount(asked: DeviceRequest) -> str:
    kind = asked.type.value
    if asked.every:
        return f"every {kind}"
    if asked.whole:
        return f"{asked.count} whole {kind}"
    amounts = [f"{asked.core_milli / 10:g}%"] if asked.core_milli else []
    if asked.memory_bytes:
        amounts.append(brief(asked.memory_bytes))
    elif asked.memory_milli:
        amounts.append(f"{asked.memory_milli / 10:g}% memory")
    amounts += [f"{amount} {unit}" for unit, amount in asked.extras]
    text = f"{kind} {' + '.join(amounts)}" if amounts else kind
    return f"{asked.count} x {text}" if asked.count > 1 else text

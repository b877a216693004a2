"""The node's own series: each card, each pod and each container, what it has and what it uses.

Under the names of HAMi's monitor and of qGPU's exporter, so that dashboards made for these go on; sums of the whole
cluster are the scheduler service's to tell. Containers are those that hold cards, so the number of series follows
from the cards; beyond a bound the rest is left out and counted. A pod, container and card have one series each at
any time: of attempts and of pods of one name that are here at once, the newest is shown.

Source: docs/sources/hami.md 8.2; docs/sources/qgpu.md 1.8.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from partage.agent.discovery.found import CardUse
from partage.agent.held_allocations import Holding
from partage.agent.uses import Use
from partage.model.allocation import Allocation, Grant
from partage.model.device import MILLI, Device, DeviceType
from partage.model.node import Node
from partage.vendors.traits import NVIDIA

MOST: Final = 1024
"""Pairs of a container and a card that have series."""
_ZONE: Final = "vGPU"
_NAMING: Final = frozenset({"namespace", "pod", "container"})
"""Labels whose values are of tenants."""
_PERCENT: Final = MILLI // 100
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Books:
    """What is known when somebody asks.

    Attributes:
        node: with its devices.
        held: containers that hold devices, oldest first; of one that was tried again, the last attempt.
        cards: what drivers say, by card.
        uses: what containers use, by container and card.
    """

    node: Node
    held: Sequence[Holding]
    cards: Mapping[str, CardUse]
    uses: Mapping[tuple[str, str], Use]


@dataclass(frozen=True, slots=True)
class _Held:
    """A container's part of a card."""

    allocation: Allocation
    container: str
    position: int
    grant: Grant
    use: Use | None


class NodeSeries(Collector):
    """Makes the series when they are asked for."""

    def __init__(self, books: Callable[[], Books]) -> None:
        """Series of books that are taken anew for each answer."""
        self._books = books

    def describe(self) -> Iterable[Metric]:
        """Nothing: names follow from what there is."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All series of now."""
        books = self._books()
        cards = [one for one in books.node.devices if one.type is DeviceType.GPU]
        held = list(_held(books))
        shown = _shown(held, books)
        left_out = max(len(shown) - MOST, 0)
        shown = shown[:MOST]
        yield _gauge(
            "partage_agent_containers_left_out",
            "Parts of cards without series of their own.",
            (),
            [((), left_out)],
        )
        yield from _card_series(books, cards, held)
        yield from _container_series(shown)
        yield _tenants(books.node, shown)
        yield from _pod_series(books.node, shown, cards)


def _held(books: Books) -> Iterator[_Held]:
    ordered = sorted(
        books.held, key=lambda one: (one.allocation.namespace, one.allocation.name, one.name)
    )
    for one in ordered:
        mine = [
            grant
            for grant in one.allocation.grants
            if grant.container == one.name and grant.type is DeviceType.GPU
        ]
        uses = {grant.uuid: books.uses.get((one.container, grant.uuid)) for grant in mine}
        for position, grant in enumerate(mine):
            use = uses.pop(grant.uuid, None)  # measured a card: told with the first of its parts
            yield _Held(one.allocation, one.name, position, grant, use)


def _shown(held: Sequence[_Held], books: Books) -> list[_Held]:
    """Parts of the newest pod of a name: one that ends and its successor may both be here."""
    newest = {
        (one.allocation.namespace, one.allocation.name): one.allocation.uid for one in books.held
    }
    return [
        one
        for one in held
        if newest[one.allocation.namespace, one.allocation.name] == one.allocation.uid
    ]


def _card_series(books: Books, cards: Sequence[Device], held: Sequence[_Held]) -> Iterator[Metric]:
    node = books.node.name
    labels = ("zone", "node", "device_index", "device_uuid", "device_type")
    of = {card.uuid: (_ZONE, node, str(card.minor), card.uuid, _type(card)) for card in cards}
    used = [(card, books.cards[card.uuid]) for card in cards if card.uuid in books.cards]
    busy = [(card, use.busy * 100) for card, use in used if use.busy is not None]
    yield _gauge(
        "hami_host_gpu_memory_used_bytes",
        "Memory used of a card, as its driver says.",
        labels,
        [(of[card.uuid], use.memory_bytes) for card, use in used],
    )
    yield _gauge(
        "hami_host_gpu_utilization_ratio",
        "Percent of the time in which a card was busy.",
        labels,
        [(of[card.uuid], percent) for card, percent in busy],
    )
    pair = ("card", "node")
    at = {card.uuid: (str(card.minor), node) for card in cards}
    yield _gauge(
        "gpu_core_usage",
        "Compute used of a card, in percent.",
        pair,
        [(at[card.uuid], percent) for card, percent in busy],
    )
    yield _gauge(
        "gpu_mem_usage",
        "Memory used of a card, in MiB.",
        pair,
        [(at[card.uuid], use.memory_bytes / _MIB) for card, use in used],
    )
    yield _gauge(
        "gpu_power_usage",
        "Watts that a card draws.",
        pair,
        [
            (at[card.uuid], use.milliwatts / 1000)
            for card, use in used
            if use.milliwatts is not None
        ],
    )
    yield _gauge("gpu_count", "Cards of the node.", ("node",), [((node,), len(cards))])
    given = dict.fromkeys(at, (0, 0))
    for one in held:
        if one.grant.uuid in given:
            core, memory = given[one.grant.uuid]
            given[one.grant.uuid] = (core + one.grant.core_milli, memory + one.grant.memory_bytes)
    amounts = (
        ("core", "percent", _PERCENT, {c.uuid: (c.core_milli, given[c.uuid][0]) for c in cards}),
        ("mem", "MiB", _MIB, {c.uuid: (c.memory_bytes, given[c.uuid][1]) for c in cards}),
    )
    for what, unit, size, both in amounts:
        for word, values in (
            ("allocatable", {uuid: total for uuid, (total, _) in both.items()}),
            ("allocated", {uuid: part for uuid, (_, part) in both.items()}),
            ("available", {uuid: max(total - part, 0) for uuid, (total, part) in both.items()}),
        ):
            yield _gauge(
                f"gpu_{what}_{word}",
                f"Of a card, {word}: by containers that are here, in {unit}.",
                pair,
                [(at[uuid], value / size) for uuid, value in values.items()],
            )


def _container_series(held: Sequence[_Held]) -> Iterator[Metric]:
    labels = ("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid")
    of = {
        id(one): (
            _ZONE,
            one.allocation.namespace,
            one.allocation.name,
            one.container,
            str(one.position),
            one.grant.uuid,
        )
        for one in held
    }
    yield _gauge(
        "hami_vgpu_memory_limit_bytes",
        "Memory that a container was granted of a card.",
        labels,
        [(of[id(one)], one.grant.memory_bytes) for one in held],
    )
    yield _gauge(
        "hami_vgpu_memory_used_bytes",
        "Memory that a container uses of a card.",
        labels,
        [(of[id(one)], one.use.memory_bytes) for one in held if one.use is not None],
    )
    yield _gauge(
        "hami_container_device_utilization_ratio",
        "Percent of a card's time that a container received.",
        labels,
        [
            (of[id(one)], one.use.busy * 100)
            for one in held
            if one.use is not None and one.use.busy is not None
        ],
    )
    mine = ("namespace", "node", "pod", "container", "card")
    own: dict[tuple[str, ...], list[_Held]] = {}  # a container may have two parts of a card
    for one in held:
        key = (
            one.allocation.namespace,
            one.allocation.node,
            one.allocation.name,
            one.container,
            str(one.grant.minor),
        )
        own.setdefault(key, []).append(one)
    uses = {key: use for key, parts in own.items() if (use := parts[0].use) is not None}
    yield _gauge(
        "container_request_gpu_utilization",
        "Compute granted to a container, in percent.",
        mine,
        [(key, sum(o.grant.core_milli for o in parts) // _PERCENT) for key, parts in own.items()],
    )
    yield _gauge(
        "container_request_gpu_memory",
        "Memory granted to a container, in MiB.",
        mine,
        [(key, sum(o.grant.memory_bytes for o in parts) // _MIB) for key, parts in own.items()],
    )
    yield _gauge(
        "container_gpu_memory_total",
        "Memory that a container uses, in MiB.",
        mine,
        [(key, use.memory_bytes / _MIB) for key, use in uses.items()],
    )
    yield _gauge(
        "partage_agent_container_overhead_bytes",
        "Memory of a card that a container's processes use beyond what was counted: contexts, modules, stacks.",
        mine,
        [(key, use.overhead_bytes) for key, use in uses.items() if use.overhead_bytes is not None],
    )
    yield _gauge(
        "container_gpu_utilization",
        "Percent of a card's time that a container received.",
        mine,
        [(key, use.busy * 100) for key, use in uses.items() if use.busy is not None],
    )
    yield _gauge(
        "partage_agent_container_seconds",
        "Device time that a container received of a card.",
        mine,
        [(key, use.served_ns / 1e9) for key, use in uses.items() if use.served_ns is not None],
    )


def _tenants(node: Node, held: Sequence[_Held]) -> Metric:
    """Who is on which card, under the labels by which DCGM's exporter names cards."""
    return _gauge(
        "partage_agent_tenant_info",
        "1 for each part of a card: joins series of the card with pod and protocol.",
        (
            "UUID",
            "gpu",
            "Hostname",
            "namespace",
            "pod",
            "container",
            "part",
            "protocol",
            "mode",
            "profile",
        ),
        [
            (
                (
                    one.grant.uuid,
                    str(one.grant.minor),
                    node.name,
                    one.allocation.namespace,
                    one.allocation.name,
                    one.container,
                    str(one.position),
                    one.grant.protocol,
                    one.grant.mode.value,
                    one.grant.mig.profile if one.grant.mig else "",
                ),
                1.0,
            )
            for one in held
        ],
    )


def _pod_series(node: Node, held: Sequence[_Held], cards: Sequence[Device]) -> Iterator[Metric]:
    labels = ("namespace", "node", "pod")
    pods: dict[tuple[str, str, str], list[_Held]] = {}
    for one in held:
        key = (one.allocation.namespace, node.name, one.allocation.name)
        pods.setdefault(key, []).append(one)
    core = {key: sum(o.grant.core_milli for o in parts) / _PERCENT for key, parts in pods.items()}
    memory = {key: sum(o.grant.memory_bytes for o in parts) for key, parts in pods.items()}
    all_core = sum(card.core_milli for card in cards) / _PERCENT or 1
    all_memory = sum(card.memory_bytes for card in cards) or 1
    yield _gauge(
        "pod_core_request",
        "Compute granted to a pod, in percent of a card.",
        labels,
        list(core.items()),
    )
    yield _gauge(
        "pod_mem_request",
        "Memory granted to a pod, in MiB.",
        labels,
        [(key, value / _MIB) for key, value in memory.items()],
    )
    busy = {
        key: sum((o.use.busy or 0.0) * 100 for o in parts if o.use is not None)
        for key, parts in pods.items()
        if any(o.use is not None and o.use.busy is not None for o in parts)
    }
    used = {
        key: sum(o.use.memory_bytes for o in parts if o.use is not None)
        for key, parts in pods.items()
        if any(o.use is not None for o in parts)
    }
    yield _gauge(
        "pod_core_usage",
        "Compute that a pod uses, in percent of a card.",
        labels,
        list(busy.items()),
    )
    yield _gauge(
        "pod_mem_usage",
        "Memory that a pod uses, in MiB.",
        labels,
        [(key, value / _MIB) for key, value in used.items()],
    )
    yield _gauge(
        "pod_core_utilization_percentage",
        "Of the compute that it was granted, in use.",
        labels,
        [(key, 100 * value / core[key]) for key, value in busy.items() if core[key]],
    )
    yield _gauge(
        "pod_mem_utilization_percentage",
        "Of the memory that it was granted, in use.",
        labels,
        [(key, 100 * value / memory[key]) for key, value in used.items() if memory[key]],
    )
    yield _gauge(
        "pod_core_occupy_node_percentage",
        "Of the node's compute, granted to a pod.",
        labels,
        [(key, 100 * value / all_core) for key, value in core.items()],
    )
    yield _gauge(
        "pod_mem_occupy_node_percentage",
        "Of the node's memory of cards, granted to a pod.",
        labels,
        [(key, 100 * value / all_memory) for key, value in memory.items()],
    )


def _type(card: Device) -> str:
    return f"NVIDIA-{card.model}" if card.vendor == NVIDIA.name else card.model


def _gauge(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    for values, value in samples:
        family.add_metric(list(values), value)
    return family


class Nameless(Collector):
    """Series of which none names a pod: whoever reaches the port could read them, whatever they may read of pods."""

    def __init__(self, inner: Collector) -> None:
        """Series of another collector.

        Args:
            inner: collects all.
        """
        self._inner = inner

    def collect(self) -> Iterator[Metric]:
        """All but those."""
        for metric in self._inner.collect():
            if not any(_NAMING.intersection(sample.labels) for sample in metric.samples):
                yield metric

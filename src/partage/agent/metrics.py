"""The agent's metrics: its own counters, and the node's series of each card, pod and container.

Series have the names of HAMi's monitor and of qGPU's exporter, so dashboards made for these continue to work. The
scheduler service reports sums of the whole cluster. Only containers that hold cards have series, so the number of cards
bounds their number. Series beyond a bound are left out and counted. A pod, container and card have one series
at any time: of several attempts, or pods of one name that exist at once, the newest is shown.

Source: docs/sources/hami.md 8.2; docs/sources/qgpu.md 1.8.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
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
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.5)
_CLAIM_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 45.0)
"""Up to the kubelet's time limit of a call; an instance takes seconds to create."""
_ZONE: Final = "vGPU"
_NAMING: Final = frozenset({"namespace", "pod", "container"})
"""Labels whose values tenants choose."""
_PERCENT: Final = MILLI // 100
_MIB: Final = 2**20

_Samples = Iterable[tuple[Sequence[str], float]]
_ByPod = Mapping[tuple[str, str, str], float]


class Tallies:
    """The agent's counters, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        counter, gauge = self._counter, self._gauge
        limits = "Containers that got devices or were prevented from choosing any."
        unprotected = (
            "Containers that run with a record, or claim one, and were not served by this agent."
        )
        unserved = "Containers that hold units in the kubelet's count and have no grant."
        findings = "Differences of records, journal, kubelet and runtime, by kind."
        repaired = "Containers that the agent recorded again after the journal had lost them."
        mine = "Hardware instances that are ready, and those that are not Partage's."
        one = "One for each hardware instance on the node's cards."
        at = ("card", "profile", "start", "size", "mig_uuid", "gpu_instance", "compute_instance")
        self.injected = counter("injected", limits, "limits")
        self.refused = counter("refused", "Containers that were not made, by rule.", "rule")
        self.holding = gauge("containers", "Containers on this node that hold devices.")
        self.unprotected = gauge("unprotected_containers", unprotected)
        self.evicted = counter("evicted", "Pods of unprotected containers that were evicted.")
        self.killed = counter(
            "killed", "Containers of pods that no longer exist that were killed."
        )
        self.units = gauge(
            "kubelet_units", "Healthy units that the agent reports to the kubelet.", "resource"
        )
        self.registered = gauge(
            "kubelet_registered", "Whether the kubelet watches the reports.", "resource"
        )
        self.unserved = gauge("kubelet_unserved", unserved)
        self.findings = gauge("findings", findings, "kind")
        self.notes = gauge("notes", "The agent's present notes for operators, by code.", "code")
        self.repaired = counter("journal_repaired", repaired)
        self.connected = gauge(
            "connected", "Whether the runtime asks this agent about containers."
        )
        self.instances = gauge("instances", mine, "card", "state")
        self.instance = gauge("instance_info", one, *at, "pod", "state")
        self.devices_published = gauge(
            "devices_published", "Devices that this node offers to ResourceClaims."
        )
        self.claims_prepared = gauge(
            "claims_prepared", "ResourceClaims that are prepared on this node."
        )
        text = "ResourceClaims that were not prepared, by reason; the kubelet tries again."
        self.claim_failures = counter("claim_failures", text, "rule")
        self.claim_seconds = Histogram(
            "partage_agent_claim_seconds",
            "Time to prepare or unprepare a ResourceClaim, by result.",
            ("call", "result"),
            buckets=_CLAIM_BUCKETS,
            registry=self.registry,
        )
        self.seconds = Histogram(
            "partage_agent_decision_seconds",
            "Time to decide about a container and write it down.",
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"partage_agent_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"partage_agent_{name}", text, labels, registry=self.registry)


@dataclass(frozen=True, slots=True)
class Books:
    """The facts at the time of a scrape.

    Attributes:
        held: containers that hold devices, oldest first; of a retried container, the last attempt.
        cards: the drivers' figures, by card.
        uses: the containers' use, by container and card.
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

    @property
    def hami_labels(self) -> tuple[str, ...]:
        """Labels of HAMi's series of a container's part."""
        pod = self.allocation
        part = (str(self.position), self.grant.uuid)
        return (_ZONE, pod.namespace, pod.name, self.container, *part)

    @property
    def qgpu_labels(self) -> tuple[str, ...]:
        """Labels of qGPU's series."""
        pod, card = self.allocation, str(self.grant.minor)
        return (pod.namespace, pod.node, pod.name, self.container, card)


class NodeSeries(Collector):
    """Makes the series on request."""

    def __init__(self, books: Callable[[], Books]) -> None:
        """Take the books again for each answer."""
        self._books = books

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names depend on the node's content."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All current series."""
        books = self._books()
        cards = [one for one in books.node.devices if one.type is DeviceType.GPU]
        held = list(_held(books))
        shown = _shown(held, books)
        left_out = max(len(shown) - MOST, 0)
        shown = shown[:MOST]
        told = "Parts of cards without series of their own."
        yield _gauge("partage_agent_containers_left_out", told, (), [((), left_out)])
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
            use = uses.pop(grant.uuid, None)  # of a card: shown at its first part
            yield _Held(one.allocation, one.name, position, grant, use)


def _shown(held: Sequence[_Held], books: Books) -> list[_Held]:
    """Parts of the newest pod of a name: an ending pod and its successor may both be here."""
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
    used = [(card, books.cards[card.uuid]) for card in cards if card.uuid in books.cards]
    busy = [(card, use.busy * 100) for card, use in used if use.busy is not None]
    power = [(card, use.milliwatts / 1000) for card, use in used if use.milliwatts is not None]
    makers = {card.uuid: "NVIDIA-" if card.vendor == NVIDIA.name else "" for card in cards}
    kinds = {card.uuid: makers[card.uuid] + card.model for card in cards}

    def hami(name: str, text: str, samples: Iterable[tuple[Device, float]]) -> Metric:
        labels = ("zone", "node", "device_index", "device_uuid", "device_type")
        of = [((_ZONE, node, str(c.minor), c.uuid, kinds[c.uuid]), v) for c, v in samples]
        return _gauge(name, text, labels, of)

    def qgpu(name: str, text: str, samples: Iterable[tuple[Device, float]]) -> Metric:
        return _gauge(
            name, text, ("card", "node"), [((str(c.minor), node), v) for c, v in samples]
        )

    memory = [(card, use.memory_bytes) for card, use in used]
    text = "Memory used of a card, as its driver reports it."
    yield hami("hami_host_gpu_memory_used_bytes", text, memory)
    text = "Percent of the time in which a card was busy."
    yield hami("hami_host_gpu_utilization_ratio", text, busy)
    yield qgpu("gpu_core_usage", "Compute used of a card, in percent.", busy)
    text = "Memory used of a card, in MiB."
    yield qgpu("gpu_mem_usage", text, [(card, value / _MIB) for card, value in memory])
    yield qgpu("gpu_power_usage", "Watts that a card draws.", power)
    yield _gauge("gpu_count", "Cards of the node.", ("node",), [((node,), len(cards))])
    given = {card.uuid: (0, 0) for card in cards}
    for one in held:
        if one.grant.uuid in given:
            core, bytes_ = given[one.grant.uuid]
            given[one.grant.uuid] = (core + one.grant.core_milli, bytes_ + one.grant.memory_bytes)
    amounts = (
        ("core", "percent", _PERCENT, [(c, c.core_milli, given[c.uuid][0]) for c in cards]),
        ("mem", "MiB", _MIB, [(c, c.memory_bytes, given[c.uuid][1]) for c in cards]),
    )
    for what, unit, size, parts in amounts:
        for word, values in (
            ("allocatable", [(card, total) for card, total, _ in parts]),
            ("allocated", [(card, part) for card, _, part in parts]),
            ("available", [(card, max(total - part, 0)) for card, total, part in parts]),
        ):
            text = f"Amount of a card that is {word}, by the grants of this node's containers, in {unit}."
            yield qgpu(f"gpu_{what}_{word}", text, [(card, v / size) for card, v in values])


def _container_series(held: Sequence[_Held]) -> Iterator[Metric]:
    used = [(one, one.use) for one in held if one.use is not None]

    def hami(name: str, text: str, samples: Iterable[tuple[_Held, float]]) -> Metric:
        labels = ("zone", "namespace", "pod", "container", "vdevice_index", "device_uuid")
        return _gauge(name, text, labels, [(one.hami_labels, value) for one, value in samples])

    text = "Memory of a card granted to a container."
    granted = [(one, one.grant.memory_bytes) for one in held]
    yield hami("hami_vgpu_memory_limit_bytes", text, granted)
    text = "Memory that a container uses of a card."
    yield hami("hami_vgpu_memory_used_bytes", text, [(one, use.memory_bytes) for one, use in used])
    busy = [(one, use.busy * 100) for one, use in used if use.busy is not None]
    text = "Percent of a card's time that a container received."
    yield hami("hami_container_device_utilization_ratio", text, busy)
    own: dict[tuple[str, ...], list[_Held]] = {}  # a container may have two parts of a card
    for one in held:
        own.setdefault(one.qgpu_labels, []).append(one)
    uses = [(key, use) for key, parts in own.items() if (use := parts[0].use) is not None]
    grants = [(key, [one.grant for one in parts]) for key, parts in own.items()]

    def qgpu(name: str, text: str, samples: _Samples) -> Metric:
        return _gauge(name, text, ("namespace", "node", "pod", "container", "card"), samples)

    core = [(key, sum(one.core_milli for one in parts) // _PERCENT) for key, parts in grants]
    memory = [(key, sum(one.memory_bytes for one in parts) // _MIB) for key, parts in grants]
    text = "Compute granted to a container, in percent."
    yield qgpu("container_request_gpu_utilization", text, core)
    yield qgpu("container_request_gpu_memory", "Memory granted to a container, in MiB.", memory)
    text = "Memory that a container uses, in MiB."
    amounts = [(key, use.memory_bytes / _MIB) for key, use in uses]
    yield qgpu("container_gpu_memory_total", text, amounts)
    text = "Memory of a card that a container's processes use beyond what was counted: contexts, modules, stacks."
    beyond = [(key, u.overhead_bytes) for key, u in uses if u.overhead_bytes is not None]
    yield qgpu("partage_agent_container_overhead_bytes", text, beyond)
    text = "Percent of a card's time that a container received."
    shares = [(key, use.busy * 100) for key, use in uses if use.busy is not None]
    yield qgpu("container_gpu_utilization", text, shares)
    text = "Device time that a container received of a card."
    served = [(key, use.served_ns / 1e9) for key, use in uses if use.served_ns is not None]
    yield qgpu("partage_agent_container_seconds", text, served)


def _tenants(node: Node, held: Sequence[_Held]) -> Metric:
    """The tenants of each card, with the labels by which DCGM's exporter names cards."""
    samples = []
    for one in held:
        grant, pod = one.grant, one.allocation
        card = (grant.uuid, str(grant.minor), node.name)
        part = (pod.namespace, pod.name, one.container, str(one.position))
        profile = grant.mig.profile if grant.mig else ""
        samples.append(((*card, *part, grant.protocol, grant.mode.value, profile), 1.0))
    text = "1 for each part of a card: joins series of the card with pod and protocol."
    of_card, of_part = ("UUID", "gpu", "Hostname"), ("namespace", "pod", "container", "part")
    labels = (*of_card, *of_part, "protocol", "mode", "profile")
    return _gauge("partage_agent_tenant_info", text, labels, samples)


def _pod_series(node: Node, held: Sequence[_Held], cards: Sequence[Device]) -> Iterator[Metric]:
    pods: dict[tuple[str, str, str], list[_Held]] = {}
    for one in held:
        key = (one.allocation.namespace, node.name, one.allocation.name)
        pods.setdefault(key, []).append(one)
    core = {key: sum(o.grant.core_milli for o in parts) / _PERCENT for key, parts in pods.items()}
    memory = {key: sum(o.grant.memory_bytes for o in parts) for key, parts in pods.items()}
    uses = {key: [o.use for o in parts if o.use is not None] for key, parts in pods.items()}
    busy = {
        key: sum((use.busy or 0.0) * 100 for use in parts)
        for key, parts in uses.items()
        if any(use.busy is not None for use in parts)
    }
    used = {key: sum(use.memory_bytes for use in parts) for key, parts in uses.items() if parts}

    def gauge(name: str, text: str, values: _ByPod) -> Metric:
        return _gauge(name, text, ("namespace", "node", "pod"), values.items())

    def percent(part: _ByPod, of: _ByPod) -> _ByPod:
        return {key: 100 * value / of[key] for key, value in part.items() if of[key]}

    all_core = sum(card.core_milli for card in cards) / _PERCENT or 1
    all_memory = sum(card.memory_bytes for card in cards) or 1
    mebibytes = {key: value / _MIB for key, value in memory.items()}
    yield gauge("pod_core_request", "Compute granted to a pod, in percent of a card.", core)
    yield gauge("pod_mem_request", "Memory granted to a pod, in MiB.", mebibytes)
    yield gauge("pod_core_usage", "Compute that a pod uses, in percent of a card.", busy)
    mebibytes = {key: value / _MIB for key, value in used.items()}
    yield gauge("pod_mem_usage", "Memory that a pod uses, in MiB.", mebibytes)
    text = "Used part of the compute granted to a pod."
    yield gauge("pod_core_utilization_percentage", text, percent(busy, core))
    text = "Used part of the memory granted to a pod."
    yield gauge("pod_mem_utilization_percentage", text, percent(used, memory))
    text = "Part of the node's compute that is granted to a pod."
    yield gauge(
        "pod_core_occupy_node_percentage", text, percent(core, dict.fromkeys(core, all_core))
    )
    text = "Part of the node's memory of cards that is granted to a pod."
    yield gauge(
        "pod_mem_occupy_node_percentage", text, percent(memory, dict.fromkeys(memory, all_memory))
    )


def _gauge(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    for values, value in samples:
        family.add_metric(list(values), value)
    return family


class Nameless(Collector):
    """Series without names of pods: readers of the port may have no right to read pods."""

    def __init__(self, inner: Collector) -> None:
        self._inner = inner

    def collect(self) -> Iterator[Metric]:
        """All other series."""
        for metric in self._inner.collect():
            if not any(_NAMING.intersection(sample.labels) for sample in metric.samples):
                yield metric

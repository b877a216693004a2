"""Prometheus series of single cards and pods, with the names that HAMi's and qGPU's dashboards read.

Every card has a dozen families. The service writes them in pieces, and the event loop runs other tasks between two
pieces, so a scrape of a large cluster never delays a filter. Beyond a bound the series of cards are left out and
counted, because no monitoring system survives half a million new series. Series of pods are written only on request.

The series have the names of two generations of HAMi; HAMi up to 2.8 has only the older names. The
series of MIG instances are in `exposition_mig`. Source: docs/sources/hami.md 8.1; docs/sources/qgpu.md 1.8.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Final

from partage.extender.books import Books
from partage.extender.exposition_mig import foreign_series, label_text, mig_series
from partage.inventory.card import Card
from partage.model.allocation import Grant
from partage.model.device import MILLI, DeviceType
from partage.model.node import Node
from partage.wire.outcomes import said

_PERCENT: Final = MILLI // 100
_MIB: Final = 2**20
_PIECE: Final = 512
_NAMESPACES: Final = 1000
"""The most namespaces with series; the first ones in the order of their names."""
_MOST_CARDS: Final = 8192
"""With more cards than this the service writes no series of cards."""


@dataclass(frozen=True, slots=True)
class CardRow:
    """The values of one card's series: percent of compute, bytes of memory, sharers.

    The texts are already escaped.
    """

    node: str
    uuid: str
    index: int
    model: str
    core: int
    core_used: int
    memory: int
    memory_used: int
    sharers: int
    zone: ClassVar = "vGPU"

    @property
    def core_left(self) -> int:
        """Percent."""
        return max(0, self.core - self.core_used)

    @property
    def mib(self) -> int:
        """Memory in MiB."""
        return self.memory // _MIB

    @property
    def mib_used(self) -> int:
        """Used memory in MiB."""
        return self.memory_used // _MIB

    @property
    def mib_left(self) -> int:
        """Free memory in MiB."""
        return max(0, self.memory - self.memory_used) // _MIB

    @property
    def part(self) -> str:
        """The used part of the memory, from 0 to 1."""
        return f"{self.memory_used / self.memory:g}" if self.memory else "0"


@dataclass(frozen=True, slots=True)
class _PodRow:
    """One container's part of one card."""

    node: str
    namespace: str
    pod: str
    container: str
    position: int
    uuid: str
    index: int
    core: int
    memory: int
    zone: ClassVar = "vGPU"

    @property
    def mib(self) -> int:
        return self.memory // _MIB


@dataclass(frozen=True, slots=True)
class _QuotaRow:
    """One key of a namespace's quotas."""

    namespace: str
    quota: str
    hard: int
    used: int
    zone: ClassVar = "vGPU"


_Family = tuple[str, str, str, str]
"""Name, meaning, labels (each with the attribute of a row that it shows), and the attribute with the value."""
_CARD: Final = "device_index=index device_type=model device_uuid=uuid node=node zone=zone"
_CORES: Final = f"device_cores=core {_CARD}"
_LIMITS: Final = f"device_cores=core device_memory_limit=mib {_CARD}"
_OLD: Final = "deviceidx=index devicetype=model deviceuuid=uuid nodeid=node zone=zone"
_OLD_CORES: Final = f"devicecores=core_used {_OLD}"
_OLD_LIMITS: Final = f"devicecores=core_used devicememorylimit=mib sharedcontainers=sharers {_OLD}"
_OLD_SHORT: Final = "deviceidx=index deviceuuid=uuid nodeid=node zone=zone"
_QGPU: Final = "card=index node=node"
_VGPU: Final = (
    "container_index=position device_uuid=uuid namespace=namespace node=node pod=pod zone=zone"
)
_OLD_VGPU: Final = "containeridx=position deviceuuid=uuid nodename=node podname=pod podnamespace=namespace zone=zone"
_QGPU_POD: Final = "card=index container_name=container namespace=namespace node=node pod_name=pod"
_MEMORY, _SHARED, _OLD_PART = (
    "Memory of the card, scaling included.",
    "Containers that share the card.",
    "GPU Memory Allocated Percentage on a certain GPU",
)
_ALLOCATED: Final = "Compute of the card that is allocated, in percent."
_OVERVIEW: Final = "Allocated memory in bytes, with the card's limits as labels."
_PART: Final = "Allocated part of the card's memory, 0 to 1."
_OF_CARDS: Final[tuple[_Family, ...]] = (
    ("hami_gpu_memory_limit_bytes", _MEMORY, _CARD, "memory"),
    ("hami_gpu_core_limit_ratio", "Compute of the card in percent.", _CARD, "core"),
    (
        "hami_gpu_memory_allocated_bytes",
        "Memory of the card that is allocated.",
        _CORES,
        "memory_used",
    ),
    ("hami_gpu_shared_count", _SHARED, _CARD, "sharers"),
    ("hami_gpu_core_allocated_ratio", _ALLOCATED, _CARD, "core_used"),
    ("hami_node_gpu_overview", _OVERVIEW, _LIMITS, "memory_used"),
    ("hami_node_gpu_memory_allocated_ratio", _PART, _CARD, "part"),
    ("GPUDeviceMemoryLimit", "Device memory limit for a certain GPU", _OLD, "memory"),
    ("GPUDeviceCoreLimit", "Device memory core limit for a certain GPU", _OLD, "core"),
    (
        "GPUDeviceMemoryAllocated",
        "Device memory allocated for a certain GPU",
        _OLD_CORES,
        "memory_used",
    ),
    ("GPUDeviceSharedNum", "Number of containers sharing this GPU", _OLD, "sharers"),
    ("GPUDeviceCoreAllocated", "Device core allocated for a certain GPU", _OLD, "core_used"),
    ("nodeGPUOverview", "GPU overview on a certain node", _OLD_LIMITS, "memory_used"),
    ("nodeGPUMemoryPercentage", _OLD_PART, _OLD_SHORT, "part"),
    ("gpu_core_allocatable", "Compute of the card in percent.", _QGPU, "core"),
    ("gpu_core_available", "Compute that is left, in percent.", _QGPU, "core_left"),
    ("gpu_mem_allocatable", "Memory of the card in MiB.", _QGPU, "mib"),
    ("gpu_mem_available", "Memory that is left, in MiB.", _QGPU, "mib_left"),
)
_QGPU_OF_CARDS: Final[tuple[_Family, ...]] = (
    ("gpu_core_allocated", "Compute that is allocated, in percent.", _QGPU, "core_used"),
    ("gpu_mem_allocated", "Memory that is allocated, in MiB.", _QGPU, "mib_used"),
)
_OF_PODS: Final[tuple[_Family, ...]] = (
    ("hami_vgpu_memory_allocated_bytes", "Memory granted to a container.", _VGPU, "memory"),
    (
        "hami_vgpu_core_allocated_ratio",
        "Compute granted to a container, in percent.",
        _VGPU,
        "core",
    ),
    ("vGPUMemoryAllocated", "vGPU memory allocated from a container", _OLD_VGPU, "memory"),
    ("vGPUCoreAllocated", "vGPU core allocated from a container", _OLD_VGPU, "core"),
    ("gpu_core_allocated", "Compute that is allocated, in percent.", _QGPU_POD, "core"),
    ("gpu_mem_allocated", "Memory that is allocated, in MiB.", _QGPU_POD, "mib"),
)
_QUOTA: Final = "namespace=namespace quota_name=quota zone=zone"
_OLD_QUOTA: Final = "limit=hard quotaName=quota quotanamespace=namespace zone=zone"
_OF_QUOTAS: Final[tuple[_Family, ...]] = (
    ("hami_resource_quota_used", "Used part of a quota.", f"limit=hard {_QUOTA}", "used"),
    ("hami_resource_quota_limit", "A quota's limit.", _QUOTA, "hard"),
    ("QuotaUsed", "resourcequota usage for a certain device", _OLD_QUOTA, "used"),
)


async def exposition(
    books: Books, *, of_pods: bool = False, names: bool = True
) -> AsyncIterator[bytes]:
    """The series in Prometheus' text format, in pieces; other tasks run between two pieces.

    Args:
        of_pods: write series of single pods, one for each container and card. Their number grows with the
            cluster's pods, and every new pod adds series.
        names: write series that name namespaces and pods.
    """
    of_pods = of_pods and names
    nodes = [node for node in books.engine.ledger.nodes if node is not None]
    cards = sum(d.type is DeviceType.GPU for node in nodes for d in node.devices)
    left_out = cards if cards > _MOST_CARDS else 0
    yield (
        "# HELP partage_metrics_cards_omitted Cards whose own series are left out, because "
        "there are more than the bound.\n# TYPE partage_metrics_cards_omitted gauge\n"
        f"partage_metrics_cards_omitted {left_out}\n"
    ).encode()
    async for part in _namespaces(books, _NAMESPACES if names else 0):
        yield part
    if left_out:
        return
    rows: list[CardRow] = []
    pods: list[_PodRow] = []
    for number, node in enumerate(nodes):
        if number % 64 == 0:
            await asyncio.sleep(0)
        if books.engine.ledger.index.get(node.name) is None:
            continue  # the node was deleted between two pieces
        rows += _rows(books, node)
        if of_pods:
            pods += _pod_rows(books, node)
    of_cards = (*_OF_CARDS, *(() if of_pods else _QGPU_OF_CARDS))
    for families, its_rows in ((of_cards, rows), (_OF_PODS if of_pods else (), pods)):
        for name, text, labels, value in families:
            yield _head(name, text)
            for start in range(0, len(its_rows), _PIECE):
                await asyncio.sleep(0)
                yield _lines(name, labels, value, its_rows[start : start + _PIECE])
    for piece in mig_series(books.engine.ledger):
        await asyncio.sleep(0)
        yield piece
    if names:
        yield _quotas(books)
    await asyncio.sleep(0)
    yield foreign_series(books.engine.ledger)


async def _namespaces(books: Books, most: int) -> AsyncIterator[bytes]:
    """Amounts of cards that pods of at most `most` namespaces hold now, by protocol; over time, their share-hours."""
    held: Counter[tuple[str, str, str]] = Counter()
    for number, one in enumerate(list(books.engine.ledger.allocations()), 1):
        asked = {grant.uuid: grant.protocol for grant in one.grants}
        for charge in one.charges:
            if charge.type is DeviceType.GPU:
                whose = one.namespace, asked.get(charge.uuid, "")
                held[*whose, "core_milli"] += charge.core_milli
                held[*whose, "memory_bytes"] += charge.memory_bytes
        if not number % _PIECE:
            await asyncio.sleep(0)
    namespaces = sorted({namespace for namespace, _protocol, _dimension in held})
    shown = set(namespaces[:most])
    yield _head(
        "partage_metrics_namespaces_omitted",
        "Namespaces without series of their own, because there are more than the bound or the caller may not "
        "read them.",
    )
    yield f"partage_metrics_namespaces_omitted {len(namespaces) - len(shown)}\n".encode()
    yield _head(
        "partage_namespace_units",
        "Amounts of all cards that the pods of a namespace hold: compute in 1/1000 of a card, memory in bytes.",
    )
    yield "".join(
        f'partage_namespace_units{{dimension="{dimension}",namespace="{label_text(namespace)}",'
        f'protocol="{label_text(protocol)}"}} {amount}\n'
        for (namespace, protocol, dimension), amount in sorted(held.items())
        if namespace in shown
    ).encode()


def _head(name: str, text: str) -> bytes:
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n".encode()


def _lines(
    name: str, labels: str, value: str, rows: Iterable[CardRow | _PodRow | _QuotaRow]
) -> bytes:
    shown, attributes = zip(*(one.split("=") for one in labels.split()), strict=True)
    line = name + "{" + ",".join(f'{label}="%s"' for label in shown) + "} %s\n"
    return "".join(map(line.__mod__, map(attrgetter(*attributes, value), rows))).encode()


def _rows(books: Books, node: Node) -> Iterator[CardRow]:
    index = books.engine.ledger.index[node.name]
    for card in books.engine.ledger.cards(DeviceType.GPU, index):
        device = card.device
        model = said(node, device, "model") or said(node, device, "vendor").upper()
        yield CardRow(
            node=label_text(node.name),
            uuid=label_text(device.uuid),
            index=device.minor,
            model=label_text(model),
            core=device.core_milli // _PERCENT,
            core_used=(device.core_milli - card.core_free) // _PERCENT,
            memory=device.memory_bytes,
            memory_used=device.memory_bytes - card.memory_free,
            sharers=_containers(books, index, card),
        )


def _containers(books: Books, index: int, card: Card) -> int:
    """The number of containers on the card; HAMi counts containers too."""
    uids = books.engine.ledger.tenants(DeviceType.GPU, index, card.row)
    total = 0
    for uid in uids:
        held = books.engine.ledger.allocation(uid)
        total += (
            len({g.container for g in held.grants if g.uuid == card.device.uuid}) if held else 0
        )
    return total


def _pod_rows(books: Books, node: Node) -> Iterator[_PodRow]:
    """A row for each container and card; several instances of one card are one row, so that each series is unique."""
    for held in books.engine.ledger.on_node(node.name):
        entry = books.cluster_cache.pods.get(held.uid)
        names = [c.name for c in entry.view.containers] if entry else []
        parts: defaultdict[tuple[str, str], list[Grant]] = defaultdict(list)
        for grant in held.grants:
            if grant.type is DeviceType.GPU:
                parts[grant.container, grant.uuid].append(grant)
        for (container, uuid), grants in parts.items():
            yield _PodRow(
                label_text(node.name),
                label_text(held.namespace),
                label_text(held.name),
                label_text(container),
                names.index(container) if container in names else 0,
                label_text(uuid),
                grants[0].minor,
                sum(one.core_milli for one in grants) // _PERCENT,
                sum(one.memory_bytes for one in grants),
            )


def _quotas(books: Books) -> bytes:
    """The series of the namespaces' quotas for the device keys that HAMi counts, in MiB or percent."""
    rows: list[_QuotaRow] = []
    book = books.engine.quotas
    for namespace, quotas in sorted(book.quotas.by_namespace.items()):
        for key, hard in sorted({k: h for quota in quotas for k, h in quota.hard}.items()):
            if key.startswith("limits."):
                name, used = label_text(key.removeprefix("limits.")), book.used(namespace)
                rows.append(_QuotaRow(label_text(namespace), name, hard, used.get(key, 0)))
    return b"".join(
        _head(name, text) + _lines(name, labels, value, rows)
        for name, text, labels, value in _OF_QUOTAS
    )

"""Small Koordinator clusters and pods: cards and network cards on switches, functions and partitions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import decisions
import koordinator_rules as koordinator
from hypothesis import strategies as st

from drawn import sampled

_NAME = "koordinator.sh/"
_HINT = "scheduling.koordinator.sh/device-allocate-hint"
_JOINT = "scheduling.koordinator.sh/device-joint-allocate"
_PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
_switch = st.integers(0, 3)


@dataclass(frozen=True)
class Pod:
    """A pod: what its containers name, and what that asks."""

    name: str
    containers: tuple[dict[str, str], ...]
    ask: koordinator.Ask

    def document(self) -> dict[str, Any]:
        """The manifest."""
        ask = self.ask
        gpu = {"requiredTopologyScope": ask.scope} if ask.scope else {}
        rdma: dict[str, Any] = {}
        if ask.strategy:
            rdma["allocateStrategy"] = ask.strategy
        if ask.exclusive:
            rdma["exclusivePolicy"] = "DeviceLevel"
        if ask.selector:
            rdma["selector"] = {"matchLabels": {"type": ask.selector}}
        if ask.function is not None:
            rdma["vfSelector"] = {"matchLabels": {"type": ask.function}} if ask.function else {}
        notes: dict[str, str] = {}
        if gpu or rdma:
            hints = {"gpu": gpu, "rdma": rdma}
            notes[_HINT] = json.dumps({kind: hint for kind, hint in hints.items() if hint})
        if ask.joint:
            scope = {"requiredScope": "SamePCIe"} if ask.same else {}
            notes[_JOINT] = json.dumps({"deviceTypes": ["gpu", "rdma"]} | scope)
        if ask.partition is not None:
            notes[_PARTITION] = json.dumps({"allocatePolicy": ask.partition})
        return decisions.pod(self.name, self.containers, notes, "koord-scheduler")


@dataclass
class World:
    """Nodes with nothing on them, and the pods that come one after another."""

    nodes: list[koordinator.Node]
    pods: list[Pod]

    @property
    def policy(self) -> str:
        """Ours that stands for LeastAllocated, the default, or for MostAllocated."""
        return "binpack" if self.nodes[0].packs else "spread"

    def documents(self) -> list[dict[str, Any]]:
        """The manifests."""
        described = [document for node in self.nodes for document in _described(node)]
        return [*described, *(pod.document() for pod in self.pods)]


def _described(node: koordinator.Node) -> list[dict[str, Any]]:
    cards = {"gpu-core": "100", "gpu-memory": "100Gi", "gpu-memory-ratio": "100"}
    devices = [_device(node.name, "gpu", card, cards) for card in node.gpus]
    devices += [_device(node.name, "rdma", nic, {"rdma": "100"}) for nic in node.nics]
    metadata: dict[str, Any] = {"name": node.name}
    if node.partitions is not None:
        table = {
            str(size): [{"minors": list(p.minors), "allocationScore": p.score} for p in table]
            for size, table in node.partitions.items()
        }
        metadata["annotations"] = {"scheduling.koordinator.sh/gpu-partitions": json.dumps(table)}
        policy = "Honor" if node.honor else "Prefer"
        metadata["labels"] = {"node.koordinator.sh/gpu-partition-policy": policy}
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": metadata,
        "spec": {"devices": devices},
    }
    return [device, decisions.node(node.name, {}, {})]


def _device(
    name: str, kind: str, device: koordinator.Device, resources: Mapping[str, str]
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "type": kind,
        "health": device.healthy,
        "id": f"{name}-{kind}-{device.minor}",
        "minor": device.minor,
        "labels": dict(device.labels),
        "resources": {f"{_NAME}{key}": amount for key, amount in resources.items()},
    }
    if device.pcie is not None:
        result["topology"] = {"socketID": 0, "nodeID": device.numa, "pcieID": device.pcie}
    kinds = sorted({kind for kind, _ in device.functions})
    result["vfGroups"] = [
        {
            "labels": {"type": kind},
            "vfs": [
                {"minor": number, "busID": bus}
                for number, (found, bus) in enumerate(device.functions)
                if found == kind
            ],
        }
        for kind in kinds
    ]
    return result


@cache
@st.composite
def _nodes(
    draw: st.DrawFn, name: str, sizes: tuple[int, ...], *, nics: bool, tables: bool, healthy: bool
) -> koordinator.Node:
    count = draw(sampled(sizes))
    known = draw(sampled((True, True, True, False)))
    switches = draw(st.lists(_switch, min_size=count, max_size=count))
    if draw(st.booleans()):
        switches.sort()

    def device(minor: int, switch: int, **more: Any) -> koordinator.Device:
        well = healthy or draw(sampled((True,) * 11 + (False,)))
        pcie = str(switch) if known else None
        return koordinator.Device(minor, well, switch // 2 if known else 0, pcie, **more)

    cards = [device(minor, switch) for minor, switch in enumerate(switches)]
    found: list[koordinator.Device] = []
    if nics:
        for minor, switch in enumerate(draw(st.lists(_switch, max_size=5)), start=1):
            kinds = draw(st.lists(sampled("ab"), max_size=3))
            functions = tuple((kind, f"0000:{minor}0:00.{n + 2}") for n, kind in enumerate(kinds))
            labels = {"type": draw(sampled(("fast", "slow")))}
            found.append(device(minor, switch, labels=labels, functions=functions))
    partitions = draw(_partitions(count)) if tables else None
    honor = partitions is not None and draw(st.booleans())
    return koordinator.Node(name, cards, found, partitions, honor)


@cache
@st.composite
def _partitions(draw: st.DrawFn, count: int) -> dict[int, list[koordinator.Partition]] | None:
    if draw(st.integers(0, 4)) == 0:
        return None
    table: dict[int, list[koordinator.Partition]] = {}
    for size in (1, 2, 4, 8):
        if size > count or draw(st.integers(0, 5)) == 0:
            continue
        sets = [tuple(range(first, first + size)) for first in range(0, count - size + 1, size)]
        if size in (2, 4) and draw(st.booleans()):
            sets += [
                tuple(range(first, first + 2 * size, 2)) for first in range(count - 2 * size + 1)
            ]
        sets = draw(st.permutations(sets))
        table[size] = [koordinator.Partition(s, draw(sampled((1, 1, 2)))) for s in sets]
    return table


_SHARES = (10, 25, 30, 50, 50, 75)


def _amounts(names: Mapping[str, int]) -> dict[str, str]:
    return {f"{_NAME}{name}": str(amount) for name, amount in names.items()}


@cache
def _cards(
    most: int, *, uneven: bool
) -> st.SearchStrategy[tuple[dict[str, str], dict[str, int], int]]:
    """Limits, what they ask of each card, and how many cards."""
    share = sampled(_SHARES)
    whole = st.integers(1, most)
    forms = [
        share.map(lambda x: (_amounts({"gpu": x}), {"core": x, "ratio": x}, 1)),
        whole.map(lambda n: (_amounts({"gpu": 100 * n}), {"core": 100, "ratio": 100}, n)),
        whole.map(
            lambda n: (
                _amounts({"gpu-core": 100 * n, "gpu-memory-ratio": 100 * n}),
                {"core": 100, "ratio": 100},
                n,
            )
        ),
        whole.map(lambda n: ({"nvidia.com/gpu": str(n)}, {"core": 100, "ratio": 100}, n)),
        st.tuples(share, st.integers(1, 3)).map(
            lambda x: (
                _amounts(
                    {"gpu.shared": x[1], "gpu-core": x[0] * x[1], "gpu-memory-ratio": x[0] * x[1]}
                ),
                {"core": x[0], "ratio": x[0]},
                x[1],
            )
        ),
    ]
    if uneven:
        forms += [
            share.map(lambda x: (_amounts({"gpu-memory-ratio": x}), {"ratio": x}, 1)),
            share.map(lambda x: ({f"{_NAME}gpu-memory": f"{x}Gi"}, {"ratio": x}, 1)),
            st.tuples(share, share).map(
                lambda x: (
                    _amounts({"gpu-core": x[0]}) | {f"{_NAME}gpu-memory": f"{x[1]}Gi"},
                    {"core": x[0], "ratio": x[1]},
                    1,
                )
            ),
        ]
    return st.one_of(forms)


@cache
@st.composite
def _pods(draw: st.DrawFn, name: str, most: int, *, uneven: bool, nics: bool, tables: bool) -> Pod:
    limits: dict[str, str] = {}
    ask = koordinator.Ask()
    wants = draw(sampled(("gpu", "both", "both", "rdma"))) if nics else "gpu"
    if wants != "rdma":
        limits, each, count = draw(_cards(most, uneven=uneven))
        scope = draw(
            sampled(("",) * 6 + ("PCIe", "PCIe", "NUMANode", "NUMANode", "Node", "Device"))
        )
        ask = replace(ask, gpu=each, gpus=count)
        if not (ask.shared and count > 1):  # a row of its own: koordinator.SHARED_SCOPE
            ask = replace(ask, scope=scope)
        if tables and not ask.shared:
            ask = replace(ask, partition=draw(sampled((None, None, "BestEffort", "Restricted"))))
    if wants != "gpu":
        strategy = draw(sampled(("", "", "", "ApplyForAll", "RequestsAsCount")))
        amounts = (1, 2, 3) if strategy == "RequestsAsCount" else (1, 1, 10, 50, 100, 200, 300)
        rdma = draw(sampled(amounts))
        limits = limits | _amounts({"rdma": rdma})
        ask = replace(
            ask,
            rdma=rdma,
            strategy=strategy,
            exclusive=strategy == "RequestsAsCount" and draw(st.booleans()),
            selector=draw(sampled(("", "", "fast"))),
            function=draw(sampled((None, None, "", "a"))),
        )
    if wants == "both":
        joint = draw(sampled(("", "joint", "joint", "same")))
        ask = replace(ask, joint=bool(joint), same=joint == "same")
    return Pod(name, (limits,), ask)


@st.composite
def worlds(
    draw: st.DrawFn,
    *,
    nodes: int = 1,
    sizes: tuple[int, ...] = (1, 2, 3, 4, 8),
    uneven: bool = False,
    nics: bool = False,
    tables: bool = False,
) -> World:
    """A world of so many nodes; with network cards, partitions, and pods that ask unlike parts of compute and memory."""
    size = draw(sampled(sizes))
    packs = draw(sampled((False, False, True)))
    found = [
        replace(
            draw(_nodes(f"n{index}", (size,), nics=nics, tables=tables, healthy=nodes > 1)),
            packs=packs,
        )
        for index in range(nodes)
    ]
    pods = [
        draw(
            _pods(
                f"p{number}",
                min(size, 4) if not tables else size,
                uneven=uneven,
                nics=nics,
                tables=tables,
            )
        )
        for number in range(draw(st.integers(1, 8)))
    ]
    return World(found, pods)

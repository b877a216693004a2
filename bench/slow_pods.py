"""Searches for slow pods: changes the most expensive ones at random, and keeps changes that cost more.

It does not know why a pod is hard. It measures the CPU time of each verb in a cluster of idle cards, or in one with
half of the cards shared, so that hardly two nodes are alike. On a shared machine a call takes longer. So it compares
each call with a reference load that runs right after it, and the least of two tries counts.

    python bench/slow_pods.py [--minutes 60] [--nodes 5000] [--seed 1] [--most 50] [--idle]

It prints the kept pods, the most expensive last, and fails if one costs more than the limit.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import numpy as np

import extender as cluster
import hostile
from partage.extender.cycle import AllowanceSettings
from partage.extender.explain import explain
from partage.extender.service import SchedulerService, ServiceSettings

_ROWS: Final = np.arange(40_000, dtype=np.int64).reshape(8, 5_000)

KEPT: Final = 24
"""The number of pods from which the search continues."""

PROTOCOLS: Final = ("hami", "koordinator", "ratio", "qgpu", "whole", "joint")
NOTES: Final[dict[str, list[str]]] = {
    "hami.io/gpu-scheduler-policy": ["binpack", "spread", "topology-aware"],
    "hami.io/node-scheduler-policy": ["binpack", "spread"],
    "nvidia.com/numa-bind": ["true"],
    "nvidia.com/vgpu-mode": ["either", "hami-core", "mig"],
    "nvidia.com/nouse-gputype": ["V100", ",".join(f"X{i}" for i in range(250))],
    "nvidia.com/nouse-gpuuuid": [",".join(f"GPU-{i}" for i in range(250))],
    "partage.io/node-policy": ["binpack", "spread", "partage", "first-fit", "random"],
    "partage.io/card-policy": ["binpack", "spread", "partage", "first-fit"],
    hostile.JOINT: [
        json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}),
        json.dumps({"deviceTypes": ["gpu", "rdma"]}),
        json.dumps({"deviceTypes": ["rdma", "gpu"]}),
    ],
    hostile.HINT: [
        json.dumps({"gpu": {"requiredTopologyScope": "NUMANode"}}),
        json.dumps({"gpu": {"requiredTopologyScope": "PCIe"}}),
        json.dumps({"gpu": {"exclusivePolicy": "PCIExpressLevel"}}),
        json.dumps({"rdma": {"vfSelector": {"matchLabels": {"type": "general"}}}}),
        json.dumps({"rdma": {"allocateStrategy": "ApplyForAll"}}),
    ],
}


@dataclass(frozen=True)
class Kind:
    """Containers of one kind: `count` of them, each a step larger than the one before."""

    protocol: str
    phase: str
    count: int
    cards: int
    cores: int
    memory: int
    step: int
    cores_step: int

    def asks(self, number: int) -> dict[str, str]:
        """The request of one of the containers."""
        cores = max(0, min(100, self.cores + self.cores_step * (number % 7)))
        memory = max(1, self.memory + self.step * number)
        match self.protocol:
            case "koordinator":
                return {
                    "koordinator.sh/gpu": str(
                        max(1, cores if self.cards < 2 else 100 * self.cards)
                    )
                }
            case "ratio":
                return {
                    "koordinator.sh/gpu-core": str(max(1, cores)),
                    "koordinator.sh/gpu-memory-ratio": str(max(1, min(100, memory // 800 + 1))),
                }
            case "qgpu":
                return {
                    "tke.cloud.tencent.com/qgpu-core": str(max(5, cores // 5 * 5)),
                    "tke.cloud.tencent.com/qgpu-memory": str(max(1, memory // 1024)),
                }
            case "whole":
                return {"nvidia.com/gpu": str(self.cards), "nvidia.com/gpucores": "100"}
            case "joint":
                return {
                    "koordinator.sh/gpu": str(100 * self.cards),
                    "koordinator.sh/rdma": str(100 * (1 + number % 4)),
                }
        return hostile.hami(self.cards, memory, cores)


@dataclass(frozen=True)
class Genes:
    """A pod in the form that the search changes."""

    kinds: tuple[Kind, ...]
    notes: tuple[tuple[str, str], ...] = ()
    terms: int = 0
    preferred: bool = False
    operator: str = "NotIn"

    def pod(self, name: str) -> dict[str, Any]:
        """The pod's manifest."""
        main: list[dict[str, Any]] = []
        initial: list[dict[str, Any]] = []
        for number, kind in enumerate(self.kinds):
            for i in range(kind.count):
                more = {"restartPolicy": "Always"} if kind.phase == "sidecar" else {}
                made = hostile.container(f"c{number}-{i}", kind.asks(i), **more)
                (main if kind.phase == "main" else initial).append(made)
        main = main or [hostile.container("main", hostile.hami(1, 100))]
        spec: dict[str, Any] = {"containers": main, "initContainers": initial}
        if self.terms:
            values = {"NotIn": "n{}", "Gt": "{}", "Lt": "{}"}.get(self.operator, "")
            words = [
                {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/hostname",
                            "operator": self.operator,
                            **({"values": [values.format(i)]} if values else {}),
                        }
                    ]
                }
                for i in range(self.terms)
            ]
            required = {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": words}
            }
            liked = {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": one} for one in words
                ]
            }
            spec["affinity"] = {"nodeAffinity": liked if self.preferred else required}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "uid": name,
                "namespace": "t",
                "annotations": dict(self.notes),
            },
            "spec": {"schedulerName": "partage-scheduler", "priority": 0, **spec},
            "status": {"phase": "Pending"},
        }


def new_kind(chance: Random) -> Kind:
    """Random containers."""
    return Kind(
        chance.choice([*PROTOCOLS, "hami", "hami", "hami"]),
        chance.choice(["main", "main", "main", "init", "sidecar"]),
        chance.choice([1, 2, 3, 6, 12, 20, 32, 60]),
        chance.choice([1, 1, 1, 2, 3, 4, 5, 7, 8]),
        chance.randint(0, 100),
        int(10 ** chance.uniform(1, 4.9)),
        chance.choice([0, 1, 7, 40, 517, 2000]),
        chance.choice([0, 0, 1, 2, 3, 7]),
    )


def new(chance: Random) -> Genes:
    """A random pod."""
    kinds = tuple(new_kind(chance) for _ in range(chance.choice([1, 1, 2, 2, 3, 5])))
    keys = chance.sample(sorted(NOTES), chance.choice([0, 0, 1, 1, 2, 3]))
    notes = tuple((key, chance.choice(NOTES[key])) for key in keys)
    operator = chance.choice(["NotIn", "Gt", "Lt", "Exists", "DoesNotExist"])
    return Genes(kinds, notes, chance.choice([0, 0, 1, 120]), chance.random() < 0.5, operator)


def changed(genes: Genes, others: list[Genes], chance: Random) -> Genes:
    """The pod with one random change."""
    kinds, at = list(genes.kinds), chance.randrange(len(genes.kinds))
    match chance.randrange(9):
        case 0:
            kinds.append(new_kind(chance))
        case 1 if len(kinds) > 1:
            del kinds[at]
        case 2:
            kinds[at] = replace(
                kinds[at], count=max(1, kinds[at].count + chance.choice([-5, -1, 1, 5]))
            )
        case 3:
            kinds[at] = replace(
                kinds[at], cores=max(0, min(100, kinds[at].cores + chance.choice([-9, -1, 1, 9])))
            )
        case 4:
            kinds[at] = replace(
                kinds[at], memory=max(1, int(kinds[at].memory * chance.choice([0.5, 0.9, 1.1, 2])))
            )
        case 5:
            drawn = new_kind(chance)
            name = chance.choice(["protocol", "phase", "cards", "step", "cores_step"])
            kinds[at] = replace(kinds[at], **{name: getattr(drawn, name)})
        case 6:
            return replace(genes, notes=new(chance).notes)
        case 7:
            drawn_ = new(chance)
            return replace(
                genes,
                terms=drawn_.terms,
                preferred=drawn_.preferred,
                operator=drawn_.operator,
            )
        case _:
            kinds[at] = chance.choice(chance.choice(others).kinds)
    return replace(genes, kinds=tuple(kinds))


def reference() -> float:
    """CPU milliseconds of a load that resembles a decision's, with objects and columns."""
    start = time.thread_time()
    made = [{"left": number, "taken": (number, number + 1)} for number in range(4_000)]
    sorted(made, key=lambda one: -one["taken"][1])  # type: ignore[index]
    for number in range(30):
        ((number + 1) * _ROWS >= number).sum(axis=0)
    return (time.thread_time() - start) * 1e3


async def search(given: argparse.Namespace) -> float:
    """The cost of the most expensive pod, in milliseconds."""
    chance = Random(given.seed)  # noqa: S311 # nothing secret
    plenty = ServiceSettings(allowance=AllowanceSettings(10**9, 60_000, 2 * 10**9))
    service = SchedulerService(cluster.Instant(), cluster.Clock(), settings=plenty)
    nodes = range(given.nodes)
    listed = cluster.documents([cluster.node(i) for i in nodes])
    await service.rebuild([*listed, *cluster.documents([hostile.device(i) for i in nodes])])
    if not given.idle:
        hostile.use(service.books.engine.ledger)
    service.lead()
    names = [f"node-{i:05d}" for i in nodes]
    plugin = hostile.Plugin(service, names)
    tried = 0
    alone = min(reference() for _ in range(200))

    def cost(genes: Genes) -> tuple[float, str]:
        nonlocal tried
        tried += 1
        name = f"p{tried}"
        pod = hostile.asking_cpu(genes.pod(name))
        body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
        offered = {"Pod": pod, "NodeNameToMetaVictims": {one: {"Pods": []} for one in names[:100]}}
        verbs: dict[str, Callable[[], object]] = {
            "read": lambda: [service.changed(one) for one in cluster.documents([pod])],
            "filter": lambda: service.filter(body),
            "prioritize": lambda: service.prioritize(body),
            "preempt": lambda: service.preempt(json.dumps(offered).encode()),
            "explain": lambda: explain(service.books, "t", name),
            "propose": lambda: plugin.propose(name),
            "propose again": lambda: plugin.propose(name),
        }
        found = []
        for verb, call in verbs.items():
            if verb.startswith("propose"):
                hostile.forget(service)
            if verb == "propose again":
                plugin.reject(name)
            start = time.thread_time()
            call()
            taken = (time.thread_time() - start) * 1e3
            found.append((taken * min(1.0, alone / reference()), verb))
        service.pod_gone(name)
        hostile.forget(service)
        return max(found)

    kept: list[tuple[float, str, Genes]] = []
    end = time.monotonic() + 60 * given.minutes
    while time.monotonic() < end:
        others = [genes for _, _, genes in kept]
        genes = new(chance) if len(kept) < KEPT or chance.random() < 0.2 else None
        genes = genes or changed(chance.choice(others), others, chance)
        taken, verb = cost(genes)
        if len(kept) < KEPT or taken > kept[0][0]:
            taken, verb = min((taken, verb), cost(genes))
        if len(kept) == KEPT and taken > kept[0][0]:
            del kept[0]
        if len(kept) < KEPT:
            if not kept or taken > kept[-1][0]:
                print(f"{tried:7} tried: {taken:6.1f} ms, {verb}: {genes}", flush=True)
            kept = sorted([*kept, (taken, verb, genes)], key=lambda one: one[0])
    for taken, verb, genes in kept:
        print(f"{taken:6.1f} ms, {verb}: {genes}")
    print(f"{tried} tried in {given.minutes:g} minutes; the dearest costs {kept[-1][0]:.1f} ms")
    return kept[-1][0]


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--most", type=float, default=50.0, help="CPU in ms that one answer may cost"
    )
    parser.add_argument("--idle", action="store_true", help="no card is shared yet")
    given = parser.parse_args()
    return int(asyncio.run(search(given)) > given.most)


if __name__ == "__main__":
    sys.exit(main())

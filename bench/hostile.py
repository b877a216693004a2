"""Cost of pods that are made to be hard: CPU of each verb, in a cluster that could hold them.

Each shape is a new class of request in every round. The gate counts only units of work (`placement.card.Work`);
this program measures their cost. The extender is asked to filter (twice) and to score, and the plugin's question is asked as it
costs most: kube-scheduler wants every node that fits, half of the nodes lack the pod's CPU, and then it has rejected
many nodes. The plugin's pods are classes of their own.

    python bench/hostile.py [--nodes 5000] [--used] [--only NAME] [--rounds 3]
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import extender as cluster
from partage.extender.attempts import Attempts
from partage.extender.cycle import AllowanceSettings
from partage.extender.explain import explain
from partage.extender.retries import MOST_REJECTED
from partage.extender.service import SchedulerService, ServiceSettings
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.wire import plugin as wire

HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
USED = 0.5
"""With `--used`, the part of the cards of which a share is taken."""


def container(name: str, limits: dict[str, str], **more: Any) -> dict[str, Any]:
    """A container that asks for devices."""
    return {
        "name": name,
        "image": "x",
        "resources": {"limits": limits, "requests": limits},
        **more,
    }


def hami(count: int, memory: int, cores: int = 1) -> dict[str, str]:
    """A share in HAMi's names."""
    return {
        "nvidia.com/gpu": str(count),
        "nvidia.com/gpumem": str(memory),
        "nvidia.com/gpucores": str(cores),
    }


def shapes(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: PLR0915 # a list of them
    """Hard pods by name; `seed` makes each a class of its own."""

    def pod(
        containers: list[dict[str, Any]], notes: dict[str, str] | None = None, **spec: Any
    ) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": "t", "annotations": notes or {}},
            "spec": {
                "schedulerName": "partage-scheduler",
                "priority": 0,
                "containers": containers,
                **spec,
            },
            "status": {"phase": "Pending"},
        }

    def many(count: int, ask: Callable[[int], dict[str, str]]) -> list[dict[str, Any]]:
        return [container(f"c{i}", ask(i)) for i in range(count)]

    def affine(terms: list[dict[str, Any]], kind: str = "required") -> dict[str, Any]:
        if kind == "preferred":
            listed = [{"weight": 1, "preference": term} for term in terms]
            return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": listed}}
        return {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
            }
        }

    one = [container("a", hami(1, 100 + seed))]
    yield "plain", pod(one)
    yield "81 equal shares", pod(many(81, lambda _: hami(1, 100 + seed)))
    yield "1000 equal shares", pod(many(1000, lambda _: hami(1, 100 + seed)))
    yield "11 x 8 cards", pod(many(11, lambda _: hami(8, 100 + seed)))
    yield "64 shares of 51 %", pod(many(64, lambda _: hami(1, 100 + seed, 51)))
    yield (
        "9 whole cards",
        pod(
            many(
                9,
                lambda _: {
                    "nvidia.com/gpu": "1",
                    "nvidia.com/gpucores": "100",
                    "nvidia.com/gpumem": str(100 + seed),
                },
            )
        ),
    )
    yield "64 distinct shares", pod(many(64, lambda i: hami(1, 100 + seed + 7 * i, 13 + i % 5)))
    yield (
        "24 of a third and more",
        pod(many(24, lambda i: hami(1, 100 + seed + i, 26 + 7 * (i % 3)))),
    )
    yield "17 of 45 to 52 %", pod(many(16, lambda i: hami(1, 1000 + seed + i, 45 + i % 8)))
    parts = [21, 22, 23, 24, 26, 27, 28, 29, 31, 33, 34, 36, 37, 38, 39, 41, 43, 44, 46]
    odd_sizes = many(24, lambda i: hami(1, 100 + seed + i, parts[i % 19]))
    yield "24 that hardly fit", pod(odd_sizes)
    soft = affine([{"matchExpressions": [{"key": "k", "operator": "Exists"}]}], "preferred")
    yield "24 that hardly fit, soft", pod(odd_sizes, affinity=soft)
    linked = {"hami.io/gpu-scheduler-policy": "topology-aware"}
    yield (
        "24 linked sets of 4",
        pod(many(24, lambda i: hami(4, 100 + seed + i, 8 + i % 3)), linked),
    )
    yield "12 of 2 to 7 cards", pod(many(12, lambda i: hami(2 + i % 6, 100 + seed + i, 30)))
    yield "20 of 3 cards, distinct", pod(many(20, lambda i: hami(3, 100 + seed + i, 9 + i)))
    yield (
        "qgpu 300",
        pod(
            many(
                300,
                lambda i: {
                    "tke.cloud.tencent.com/qgpu-core": str(5 + 5 * (i % 3)),
                    "tke.cloud.tencent.com/qgpu-memory": str(1 + seed % 3),
                },
            )
        ),
    )
    yield (
        "60 distinct, half a card more",
        pod(many(60, lambda i: hami(1, 100 + seed + i, 9 + i % 7))),
    )
    yield "40 sets of 2", pod(many(40, lambda i: hami(2, 100 + seed + 3 * i, 7 + i % 5)))
    yield (
        "9 sets of 4 and shares",
        pod(many(27, lambda i: hami(4 if i % 3 == 0 else 1, 100 + seed + i, 8 + i))),
    )
    yield (
        "16 by their memory",
        pod(many(16, lambda i: hami(1, 36_000 + seed + 517 * i, 1))),
    )
    small = [container(f"i{i}", hami(1 + i % 8, 100 + seed + i, 9)) for i in range(60)]
    yield "60 init containers", pod(one, initContainers=small)
    init = [container(f"i{i}", hami(1 + i % 8, 100 + seed + i, 9)) for i in range(63)]
    last = container("last", hami(8, 100 + seed, 95))
    yield "63 init containers", pod([*one], initContainers=[*init, last])
    side = [
        container(f"s{i}", hami(1, 100 + seed + i, 12), restartPolicy="Always") for i in range(60)
    ]
    yield "60 sidecars and init", pod(one, initContainers=[*side, last])
    unknown = json.dumps(
        {
            "rdma": {
                "allocateStrategy": "ApplyForAll",
                "vfSelector": {"matchLabels": {"type": f"none{seed}"}},
            }
        }
    )
    same = json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})
    both = [container("a", {"koordinator.sh/gpu": "500", "koordinator.sh/rdma": "100"})]
    yield "joint, an unknown function", pod(both, {JOINT: same, HINT: unknown})
    some = json.dumps(
        {
            "rdma": {"vfSelector": {"matchLabels": {"type": "general"}}},
            "gpu": {"requiredTopologyScope": "NUMANode"},
        }
    )
    yield (
        "joint, a function each",
        pod(
            [
                container(
                    "a", {"koordinator.sh/gpu": "800", "koordinator.sh/rdma": str(400 + seed % 3)}
                )
            ],
            {JOINT: same, HINT: some},
        ),
    )
    odd = json.dumps(
        {
            "gpu": {
                "selector": {
                    "matchExpressions": [
                        {"key": f"k{i}", "operator": "NotIn", "values": ["x"]} for i in range(4000)
                    ]
                    + [{"key": "z", "operator": "In", "values": [str(seed)]}]
                }
            }
        }
    )
    gpu = [container("a", {"koordinator.sh/gpu": "100"})]
    yield "hint of 4000 expressions", pod(gpu, {HINT: odd})
    fit = json.dumps(
        {
            "gpu": {
                "selector": {
                    "matchExpressions": [
                        {"key": f"k{seed}-{i}", "operator": "NotIn", "values": ["x"]}
                        for i in range(150)
                    ]
                }
            }
        }
    )
    yield "hint of 150 expressions", pod(gpu, {HINT: fit})
    yield (
        "1000 terms x 20 names",
        pod(
            gpu,
            affinity=affine(
                [
                    {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/hostname",
                                "operator": "In",
                                "values": [f"nx-{i}-{j}-{seed}" for j in range(20)],
                            }
                        ]
                    }
                    for i in range(1000)
                ]
            ),
        ),
    )
    yield (
        "20000 terms",
        pod(
            gpu,
            affinity=affine(
                [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}] * 20000
                + [{"matchExpressions": [{"key": "z", "operator": "In", "values": [str(seed)]}]}]
            ),
        ),
    )
    yield (
        "250 terms",
        pod(
            gpu,
            affinity=affine(
                [
                    {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/hostname",
                                "operator": "NotIn",
                                "values": [f"n{i}-{seed}"],
                            },
                            {"key": "z", "operator": "Exists"},
                        ]
                    }
                    for i in range(120)
                ]
            ),
        ),
    )
    yield (
        "250 preferred terms",
        pod(
            gpu,
            affinity=affine(
                [
                    {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/hostname",
                                "operator": "NotIn",
                                "values": [f"n{i}-{seed}"],
                            }
                        ]
                    }
                    for i in range(120)
                ],
                "preferred",
            ),
        ),
    )
    yield (
        "120 terms of numbers",
        pod(
            gpu,
            affinity=affine(
                [
                    {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/hostname",
                                "operator": "Gt",
                                "values": [str(1000 * seed + i)],
                            }
                        ]
                    }
                    for i in range(120)
                ]
            ),
        ),
    )
    yield (
        "4000 names in one term",
        pod(
            gpu,
            affinity=affine(
                [
                    {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/hostname",
                                "operator": "In",
                                "values": [f"nx{i}-{seed}" for i in range(4000)],
                            }
                        ]
                    }
                ]
            ),
        ),
    )
    yield "250 selector labels", pod(gpu, nodeSelector={f"k{i}": str(seed) for i in range(250)})
    yield (
        "tolerations",
        pod(gpu, tolerations=[{"key": f"k{i}-{seed}", "operator": "Exists"} for i in range(250)]),
    )
    yield (
        "6000 uuids",
        pod(
            [container("a", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"})],
            {"nvidia.com/use-gpuuuid": ",".join(f"GPU-{i:08x}-{seed}" for i in range(6000))},
        ),
    )
    yield (
        "20000 types",
        pod(
            [container("a", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"})],
            {"nvidia.com/nouse-gputype": ",".join(f"X{i}-{seed}" for i in range(20000))},
        ),
    )
    yield (
        "250 types, 64 containers",
        pod(
            many(64, lambda i: hami(1, 100 + seed + 7 * i, 13)),
            {"nvidia.com/nouse-gputype": ",".join(f"X{i}-{seed}" for i in range(250))},
        ),
    )
    yield (
        "8000 resource names",
        pod(
            [
                container(
                    "a",
                    {
                        "koordinator.sh/gpu": "100",
                        **{f"x.example/r{i}-{seed}": "0" for i in range(8000)},
                    },
                )
            ]
        ),
    )
    yield (
        "100 resource names",
        pod(
            [
                container(
                    "a",
                    {
                        "koordinator.sh/gpu": "100",
                        **{f"x.example/r{i}-{seed}": "1" for i in range(100)},
                    },
                )
            ]
        ),
    )
    yield (
        "percent of memory",
        pod(
            many(
                30,
                lambda i: {
                    "nvidia.com/gpu": "2",
                    "nvidia.com/gpumem-percentage": str(20 + i),
                    "nvidia.com/gpucores": str(10 + i % 4),
                },
            )
        ),
    )


def device(index: int) -> dict[str, Any]:
    """A node's cards; every second node has a topology and network cards."""
    found = cluster.device(index)
    if index % 2:
        return found
    for card in found["spec"]["devices"]:
        m = card["minor"]
        card["topology"] = {
            "socketID": -1,
            "nodeID": m // 4,
            "pcieID": f"pci0000:{m // 2:02x}",
            "busID": f"0000:{m:02x}:00.0",
        }
    for k in range(4):
        functions = [{"busID": f"0000:{0x40 + k:02x}:00.{j}", "minor": j} for j in range(2, 6)]
        found["spec"]["devices"].append(
            {
                "type": "rdma",
                "id": f"0000:{0x40 + k:02x}:00.0",
                "minor": k + 1,
                "health": True,
                "resources": {"koordinator.sh/rdma": "100"},
                "topology": {
                    "socketID": -1,
                    "nodeID": k // 2,
                    "pcieID": f"pci0000:{k:02x}",
                    "busID": f"0000:{0x40 + k:02x}:00.0",
                },
                "vfGroups": [{"vfs": functions, "labels": {"type": "general"}}],
            }
        )
    return found


def use(ledger: Ledger, seed: int = 7) -> None:
    """Allocate shares of random cards, so that hardly two nodes are alike."""
    chance = Random(seed)  # noqa: S311 # nothing secret
    for index in list(ledger.index.values()):
        node = ledger.node_at(index)
        for number, card in enumerate(ledger.cards(DeviceType.GPU, index)):
            if chance.random() < USED:
                part = chance.randint(5, 80)
                grant = Grant(
                    "main",
                    DeviceType.GPU,
                    card.device.minor,
                    card.device.uuid,
                    part * 10,
                    part << 29,
                    GrantMode.SHARE,
                )
                name = f"used-{index}-{number}"
                ledger.apply(Allocation(name, "others", name, node.name, (grant,), {}))


class Plugin:
    """kube-scheduler's plugin; half of the nodes of each kind have no CPU left."""

    def __init__(self, service: SchedulerService, names: list[str]) -> None:
        self._attempts = Attempts(service, lambda: True, preempts=False)
        self._clock, self._names, self._number = service.clock, names, 0
        taken = [
            wire.Taken(name, cpu=128_000 if index % 4 > 1 else 0, pods=1)
            for index, name in enumerate(names)
        ]
        self._attempts.propose(wire.Propose(1, "told", 1, taken=taken))

    def propose(self, uid: str) -> wire.Answer:
        """A question about a pod for which every node that fits is wanted."""
        self._number += 1
        return self._attempts.propose(wire.Propose(1, uid, self._number, wide=True))

    def reject(self, uid: str) -> None:
        """Let kube-scheduler have rejected as many nodes for the pod as are remembered."""
        rejected = self._attempts._retries.rejected  # noqa: SLF001 # else a pod needs many questions
        rejected.add(uid, self._names[2:], self._clock.monotonic(), MOST_REJECTED)


def forget(service: SchedulerService) -> None:
    """Forget all requests, as if none had been seen."""
    for _ in range(2):  # the first time the classes are kept for the next policy
        service.books.engine._classes.clear()  # noqa: SLF001 # measurements alone need this


def asking_cpu(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod, whose first container asks for CPU too."""
    resources = pod["spec"]["containers"][0]["resources"]
    resources["requests"] = {**resources["requests"], "cpu": "1"}
    return pod


async def measure(nodes: int, only: str, limit: float, rounds: int, *, used: bool) -> None:
    """Print the verbs' CPU time for each shape: the least of several rounds, each with a class of its own."""
    # A large allowance, so that earlier pods of the namespace do not defer the search for a pod.
    plenty = ServiceSettings(allowance=AllowanceSettings(10**9, 60_000, 2 * 10**9))
    service = SchedulerService(cluster.Instant(), cluster.Clock(), settings=plenty)
    listed = cluster.documents([cluster.node(i) for i in range(nodes)])
    await service.rebuild([*listed, *cluster.documents([device(i) for i in range(nodes)])])
    if used:
        use(service.books.engine.ledger)
    service.lead()
    gc.freeze()  # as the service does
    names = [f"node-{i:05d}" for i in range(nodes)]
    plugin = Plugin(service, names)

    def timed(call: Callable[[], Any]) -> tuple[float, Any]:
        start = time.thread_time()
        answer = call()
        spent = time.thread_time() - start
        if spent > limit:
            raise SystemExit(f"one answer took {spent:.1f} s of CPU")
        return spent * 1e3, answer

    def seen(pod: dict[str, Any]) -> None:
        for one in cluster.documents([pod]):
            service.changed(one)

    found: dict[str, tuple[list[float], str]] = {}
    for round_ in range(rounds):
        for (name, pod), (_, other) in zip(
            shapes(round_ + 1), shapes(rounds + round_ + 1), strict=True
        ):
            if only and only not in name and name != "plain":
                continue
            pod["metadata"] |= {"name": f"p{round_}", "uid": f"{name}-{round_}"}
            body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
            read, _ = timed(partial(seen, pod))
            first, answer = timed(partial(service.filter, body))
            again, _ = timed(partial(service.filter, body))
            scores, _ = timed(partial(service.prioritize, body))
            named = pod["metadata"]["name"]
            told, _ = timed(partial(explain, service.books, "t", named))
            decided = json.loads(answer)
            fits = len(decided.get("NodeNames") or [])
            failed = decided.get("FailedNodes") or decided.get("FailedAndUnresolvableNodes") or {}
            why = decided.get("Error") or next(iter(failed.values()), "")
            service.pod_gone(pod["metadata"]["uid"])
            uid = f"{name}-plugin-{round_}"
            seen(asking_cpu(other | {"metadata": other["metadata"] | {"name": uid, "uid": uid}}))
            forget(service)
            proposed, _ = timed(partial(plugin.propose, uid))
            forget(service)
            plugin.reject(uid)
            rejected, _ = timed(partial(plugin.propose, uid))
            service.pod_gone(uid)
            taken = [read, first, again, scores, told, proposed, rejected]
            before = found.get(name, (taken, ""))[0]
            least = [min(pair) for pair in zip(before, taken, strict=True)]
            found[name] = least, f"fits {fits} {why[:70]}"
    print(f"{nodes} nodes; CPU in ms, the least of {rounds}")
    verbs = ("filter", "again", "scores", "explain", "plugin", "rejected")
    print(f"{'shape':26} {'read':>7} {' '.join(f'{one:>8}' for one in verbs)}  answer")
    for name, (least, answer) in found.items():
        figures = " ".join(f"{one:8.1f}" for one in least)
        print(f"{name:26} {figures[1:]}  {answer}")
    hard = sorted(max(least) for name, (least, _) in found.items() if name != "plain")
    if hard:
        ninth = hard[max(0, len(hard) * 9 // 10 - 1)]
        print(f"{len(hard)} shapes: nine of ten within {ninth:.1f} ms, all within {hard[-1]:.1f}")
        asked = sorted(max(least[-2:]) for name, (least, _) in found.items() if name != "plain")
        ninth = asked[max(0, len(asked) * 9 // 10 - 1)]
        print(f"the plugin's: nine of ten within {ninth:.1f} ms, all within {asked[-1]:.1f}")


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--only", default="", help="shapes whose name has this word")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--used", action="store_true", help="shares of half of the cards are taken"
    )
    parser.add_argument("--limit", type=float, default=20.0, help="CPU seconds of one answer")
    given = parser.parse_args()
    asyncio.run(measure(given.nodes, given.only, given.limit, given.rounds, used=given.used))


if __name__ == "__main__":
    main()

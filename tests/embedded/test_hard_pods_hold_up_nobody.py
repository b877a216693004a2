"""Pods that are made to be hard, sent to a live cluster: its loop goes on, and others get their nodes."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from up_world import PATIENCE, PODS, Document, World, node, pod, run, running

from partage.embedded.manifests import examples, read
from partage.vendors import names
from partage.vendors.reserved import RESERVED

MOST = 1.0
"""Seconds of processor time that one step of the loop may take: a decision takes a fifth of one, and
a busy machine's caches and siblings make it slower. Judging one of these pods took eight and more."""

PARTS = (21, 22, 23, 24, 26, 27, 28, 29, 31, 33, 34, 36, 37, 38, 39, 41, 43, 44, 46)
NOBODY = '{"rdma":{"allocateStrategy":"ApplyForAll","vfSelector":{"matchLabels":{"type":"none"}}}}'
NOTES = {
    "scheduling.koordinator.sh/device-joint-allocate": '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}',
    "scheduling.koordinator.sh/device-allocate-hint": NOBODY,
}


def share(cards: int, memory: int, cores: int) -> dict[str, str]:
    """A share of cards, in names of HAMi."""
    return {
        "nvidia.com/gpu": str(cards),
        "nvidia.com/gpumem": str(memory),
        "nvidia.com/gpucores": str(cores),
    }


def crowd(name: str, *asks: dict[str, str], **spec: object) -> Document:
    """A pod of many containers."""
    found = pod(name, **spec)
    found["spec"]["containers"] = [
        {"name": f"c{i}", "image": "busybox", "resources": {"limits": ask}}
        for i, ask in enumerate(asks)
    ]
    return found


def far(terms: int) -> Document:
    """Node affinity of many terms, none of which a node meets."""
    listed = [
        {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/hostname",
                    "operator": "In",
                    "values": [f"x{i}-{j}" for j in range(20)],
                }
            ]
        }
        for i in range(terms)
    ]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}
        }
    }


HARD = [
    crowd("every-slot", *[share(1, 100, 1)] * 64),
    crowd("more-than-half", *[share(1, 100, 51)] * 64),
    crowd("no-gap", *(share(1, 100 + i, PARTS[i % 19] + (3 if i < 14 else 2)) for i in range(24))),
    crowd(
        "no-gap-again",
        *(share(1, 200 + i, PARTS[i % 19] + (3 if i < 14 else 2)) for i in range(24)),
    ),
    crowd("all-different", *(share(1, 100 + 7 * i, 13 + i % 5) for i in range(64))),
    crowd("sets", *(share(2 + i % 6, 100 + i, 30) for i in range(12))),
    crowd("all-cards", *[share(8, 100, 1)] * 11),
    pod(
        "no-function",
        {"koordinator.sh/gpu": "500", "koordinator.sh/rdma": "100"},
        meta={"annotations": NOTES},
    ),
    pod("nowhere", {"koordinator.sh/gpu": "100"}, affinity=far(120)),
]
REFUSED = [
    crowd("too-many", *[share(1, 100, 1)] * 81),
    pod("too-far", {"koordinator.sh/gpu": "100"}, affinity=far(1000)),
]


@contextmanager
def watched(patch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The processor time of every step of the loop."""
    plain, steps = asyncio.Handle._run, list[float]()  # where every step passes

    def timed(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        plain(handle)
        steps.append(time.thread_time() - begun)

    patch.setattr(asyncio.Handle, "_run", timed)
    yield steps


async def probed(w: World, answers: list[float]) -> None:
    """Ask `/healthz` every 30 ms, until cancelled: the processor time from question to answer, of whatever ran between."""
    while True:
        begun = time.thread_time()
        assert await w.get("/healthz", scheduler=True) == "ok"
        answers.append(time.thread_time() - begun)
        await asyncio.sleep(0.03)


def test_an_ordinary_pod_beside_hard_ones_gets_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty nodes of eight cards; each of the pods alone stopped everything before."""

    async def story() -> None:
        async with running([node(f"n{index}", cards=8) for index in range(40)]) as w:
            with watched(monkeypatch) as steps:
                probes = asyncio.create_task(probed(w, answers))
                for one in REFUSED:
                    code, answer = await w.send("POST", PODS, one)
                    assert code in (400, 403, 422), json.dumps(answer)
                for one in HARD:
                    await w.create(PODS, one)
                await w.create(PODS, pod("ordinary", {"koordinator.sh/gpu": "100"}))
                await w.until("ordinary", lambda found: found["spec"].get("nodeName"))
                for name in ("more-than-half", "no-gap", "no-gap-again", "no-function", "nowhere"):
                    assert await w.refused(name)
                assert "search given up" in await w.refused("no-gap")
                await w.until("every-slot", lambda found: found["spec"].get("nodeName"))
                probes.cancel()
            assert max(steps) < MOST
            assert answers
            assert max(answers) < 4 * MOST

    answers: list[float] = []
    run(story())


GPU = {"koordinator.sh/gpu": "100"}
DEEP = "[" * 100_000
NINES = "9" * 5000
ODD = {
    "deep hint": pod(
        "x", GPU, meta={"annotations": {"scheduling.koordinator.sh/device-allocate-hint": DEEP}}
    ),
    "deep partition": pod(
        "x",
        GPU,
        meta={"annotations": {"scheduling.koordinator.sh/gpu-partition-spec": '{"a":' * 40_000}},
    ),
    "number in a hint": pod(
        "x",
        GPU,
        meta={
            "annotations": {
                "scheduling.koordinator.sh/device-allocate-hint": '{"gpu":1e999999999}'
            }
        },
    ),
    "digits": pod("x", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": NINES}),
    "exponent": pod("x", {"koordinator.sh/gpu": "1e999999999"}),
    "tiny exponent": pod("x", {"koordinator.sh/gpu": "1e-999999999"}),
    "other digits": pod("x", {"koordinator.sh/gpu": "\uff11\uff10\uff10"}),
    "no text": pod("x", {"koordinator.sh/gpu": [1]}),
    "commas": pod(
        "x", share(1, 100, 1), meta={"annotations": {"nvidia.com/use-gpuuuid": "," * 200_000}}
    ),
    "weights": pod(
        "x",
        share(1, 100, 1),
        meta={"annotations": {"hami.io/device-scoring-weights": '{"a":NaN}'}},
    ),
    "profiles": pod(
        "x", share(1, 100, 1), meta={"annotations": {"partage.io/mig-profile": "1g.5gb," * 2000}}
    ),
    "variables": pod(
        "x", GPU, container={"env": [{"name": f"E{i}", "value": "$(E0)"} for i in range(20_000)]}
    ),
    "init containers": pod(
        "x", GPU, initContainers=[{"name": f"i{i}", "image": "x"} for i in range(1000)]
    ),
    "volumes": pod("x", GPU, volumes=[{"name": f"v{i}", "emptyDir": {}} for i in range(20_000)]),
    "claims": pod(
        "x", GPU, resourceClaims=[{"name": f"c{i}", "resourceClaimName": "c"} for i in range(5000)]
    ),
    "labels": pod("x", GPU, meta={"labels": {f"k{i}": "v" for i in range(20_000)}}),
    "gates": pod("x", GPU, schedulingGates=[{"name": f"a/{i}"} for i in range(5000)]),
    "greater than": pod(
        "x",
        GPU,
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "a", "operator": "Gt", "values": [NINES]}]}
                    ]
                }
            }
        },
    ),
    "priority": pod("x", GPU, priority=10**30),
    "gang": pod(
        "x", GPU, meta={"annotations": {"gang.scheduling.koordinator.sh/min-available": NINES}}
    ),
    "name": pod("x", GPU, schedulerName="y" * 5000),
}


def test_odd_pods_are_answered_and_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nonsense in every field: an answer that clients can read, no long step, and other pods get their nodes."""

    async def story() -> None:
        async with running([node(f"n{index}", cards=8) for index in range(40)]) as w:
            with watched(monkeypatch) as steps:
                for number, (name, odd) in enumerate(ODD.items()):
                    sent = odd | {"metadata": odd["metadata"] | {"name": f"odd-{number}"}}
                    code, answer = await w.send("POST", PODS, sent)
                    assert code in (201, 400, 403, 422), (name, json.dumps(answer)[:500])
                await w.create(PODS, pod("ordinary", GPU))
                await w.until("ordinary", lambda found: found["spec"].get("nodeName"))
            assert max(steps) < MOST
            assert await w.get("/readyz", scheduler=True) == "ok"

    run(story())


FREE = sorted(
    one
    for key, one in vars(names).items()
    if key.isupper() and "/" in one[:-1] and not RESERVED.in_annotations([one])
    if one != names.ADJUST  # the webhook refuses nonsense there
)
"""Keys that a pod's author may write."""


def test_no_annotation_of_a_running_pod_closes_its_node() -> None:
    """Pods of every protocol, the examples; what their authors write on them later, nonsense and nothing too."""

    async def states(w: World, marker: str) -> dict[str, str]:
        await w.create(PODS, pod(marker, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}))
        await w.until(
            marker, lambda found: found["spec"].get("nodeName")
        )  # all before it is heard
        return {one.name: one.state for one in w.cluster.overview().nodes}

    async def story() -> None:
        async with running((), read(examples()).objects) as w:
            before = await states(w, "marker")
            bound = [one for one in (await w.get(PODS))["items"] if one["spec"].get("nodeName")]
            assert any(
                names.QGPU_ALLOCATED in one["metadata"].get("annotations", ()) for one in bound
            )
            for number, value in enumerate(("x", "0", "[[", "online", "offline", None)):
                for one in bound:
                    told = {"metadata": {"annotations": dict.fromkeys(FREE, value)}}
                    await w.patch(f"{PODS}/{one['metadata']['name']}", told)
                assert await states(w, f"marker-{number}") == before, value

    run(story())


@pytest.mark.parametrize(
    ("path", "kind", "wanted"),
    [
        ("apps/v1", "Deployment", {"replicas": 30}),
        ("apps/v1", "ReplicaSet", {"replicas": 30}),
        ("batch/v1", "Job", {"parallelism": 30, "completions": 30}),
    ],
)
def test_others_have_their_turn_between_two_pods_of_a_workload(
    path: str, kind: str, wanted: Document
) -> None:
    """Thirty at once are thirty steps: each is admitted, which takes long where it has many containers."""

    async def story() -> None:
        async with running([node("n0", cards=1)]) as w:
            pods, seen = w.cluster.server.store, [0]

            async def look() -> None:
                while seen[-1] < 30:
                    seen.append(len(pods.all("pods")))
                    await asyncio.sleep(0)

            looking = asyncio.create_task(look())
            labels = {"app": "many"}
            template = {"metadata": {"labels": labels}, "spec": pod("x", share(1, 1, 0))["spec"]}
            spec: Document = {"template": template, **wanted}
            if kind == "Job":
                template["spec"]["restartPolicy"] = "Never"
            else:
                spec["selector"] = {"matchLabels": labels}
            await w.create(
                f"/apis/{path}/namespaces/default/{kind.lower()}s",
                {"apiVersion": path, "kind": kind, "metadata": {"name": "many"}, "spec": spec},
            )
            async with asyncio.timeout(PATIENCE):
                await looking
            assert max(after - before for before, after in pairwise(seen)) <= 2

    run(story())


def no_gap(number: int) -> Document:
    """24 shares of 800 percent, each of other amounts than any other pod's."""
    asks = (
        share(1, 100 + i + 24 * number, PARTS[i % 19] + (3 if i < 14 else 2)) for i in range(24)
    )
    return crowd(f"hard-{number}", *asks)


def test_an_ordinary_pod_has_its_turn_before_hard_ones_have_their_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty that all differ, and two Deployments of thirty: each is tried once before it, and no more."""

    async def story() -> None:
        async with running([node(f"n{index}", cards=8) for index in range(40)]) as w:
            daemon = w.cluster._daemon
            assert daemon is not None
            counts = daemon.service.books.counts
            with watched(monkeypatch) as steps:
                for name in ("red", "blue"):
                    template = no_gap(len(name) * 100)
                    template["metadata"] = {"labels": {"app": name}}
                    await w.create(
                        "/apis/apps/v1/namespaces/default/deployments",
                        {
                            "apiVersion": "apps/v1",
                            "kind": "Deployment",
                            "metadata": {"name": name},
                            "spec": {
                                "replicas": 30,
                                "selector": {"matchLabels": {"app": name}},
                                "template": template,
                            },
                        },
                    )
                await w.create("/api/v1/namespaces", {"metadata": {"name": "bad"}})
                for number in range(60):
                    await w.create("/api/v1/namespaces/bad/pods", no_gap(number))
                before = counts["filter refused"]
                await w.create(PODS, pod("ordinary", {"koordinator.sh/gpu": "100"}))
                await w.until("ordinary", lambda found: found["spec"].get("nodeName"))
                # Among those that are tried again, the first to return to the row is the first in it.
                assert counts["filter refused"] - before <= 2 * 120
            assert max(steps) < MOST

    run(story())

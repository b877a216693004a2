"""Pods that are large in one respect cost what their size says, and hold up no other review.

What a review costs is counted, not timed: every call that Python makes on the way. Twice the size
may take little more than twice the calls, for each list of the pod.
"""

import asyncio
import io
import json
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest
from aiohttp.test_utils import TestClient, TestServer
from reviews import Json, container, context, mutated, pod, review, validated

from partage.serving.limits import Limits
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.webhook import server
from partage.webhook.manifest import decode_pod
from partage.webhook.mutating import mutate
from partage.webhook.patch import Patch
from partage.webhook.review import LARGEST, Review, Verdict, decode_review, encode_verdict
from partage.webhook.server import make_app
from partage.webhook.settings import Admission
from partage.webhook.validating import validate
from partage.wire.context import Context
from partage.wire.limits import LIMITS
from partage.wire.pods import translate_pod

RATIO: Final = 2.3
"""Calls that twice the size may take, as a multiple of those that the size takes."""
READ: Final = Context.of(Settings(), FAMILIES)
SHARE: Final = {"nvidia.com/gpumem": "1"}
QGPU: Final = {"tke.cloud.tencent.com/qgpu-core": "5", "tke.cloud.tencent.com/qgpu-memory": "1"}
KOORDINATOR: Final = {"koordinator.sh/gpu-core": "1", "koordinator.sh/gpu-memory-ratio": "1"}
HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"


def many(count: int, limits: Json, **more: Any) -> list[Json]:
    """Containers that ask the same."""
    return [container(f"c{number}", limits, **more) for number in range(count)]


def term(*values: str) -> Json:
    """A term of a node affinity."""
    return {"matchExpressions": [{"key": "zone", "operator": "In", "values": list(values)}]}


def required(*terms: Json) -> Json:
    """A node affinity."""
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}
        }
    }


def one(**spec: Any) -> Json:
    """A pod with one container."""
    return pod(container(limits=SHARE), **spec)


def annotated(**annotations: str) -> Json:
    """A pod with annotations."""
    return pod(container(limits=KOORDINATOR), meta={"annotations": annotations})


CROWDS: Final[dict[str, Callable[[int], Json]]] = {
    "containers of HAMi": lambda n: pod(*many(n, SHARE)),
    "containers of qGPU": lambda n: pod(*many(n, QGPU)),
    "containers of Koordinator": lambda n: pod(*many(n, KOORDINATOR)),
    "containers of three protocols": lambda n: pod(
        *many(n, SHARE)[::3], *many(n, QGPU)[1::3], *many(n, KOORDINATOR)[2::3]
    ),
    "containers that differ": lambda n: pod(
        *(container(f"c{k}", {"nvidia.com/gpumem": str(k + 1)}) for k in range(n))
    ),
    "containers without devices": lambda n: pod(*many(n, {"cpu": "1"}), container("last", SHARE)),
    "containers of one name": lambda n: pod(*[container("main", SHARE)] * n),
    "containers without a name": lambda n: pod(*[{"resources": {"limits": SHARE}}] * n),
    "init containers": lambda n: one(initContainers=many(n, SHARE)),
    "sidecars": lambda n: one(initContainers=many(n, SHARE, restartPolicy="Always")),
}
LONG: Final[dict[str, Callable[[int], Json]]] = {
    "variables": lambda n: pod(
        container(
            limits={"nvidia.com/gpu": "1", "nvidia.com/priority": "1"},
            env=[{"name": f"E{k}", "value": "x"} for k in range(n)],
        )
    ),
    "volumes and mounts": lambda n: pod(
        container(
            limits=SHARE,
            volumeMounts=[{"name": f"v{k}", "mountPath": f"/m{k}"} for k in range(n)],
        ),
        volumes=[{"name": f"v{k}", "emptyDir": {}} for k in range(n)],
    ),
    "ports": lambda n: pod(
        container(limits=SHARE, ports=[{"containerPort": 1, "hostPort": k + 1} for k in range(n)])
    ),
    "resources of one container": lambda n: pod(
        container(limits={**{f"example{k}.com/thing": "1" for k in range(n)}, **SHARE})
    ),
    "resources of the pod": lambda n: one(
        resources={"limits": {f"example{k}.com/thing": "1" for k in range(n)}}
    ),
    "overhead": lambda n: one(overhead={f"example{k}.com/thing": "1" for k in range(n)}),
    "annotations": lambda n: annotated(**{f"a{k}": "x" for k in range(n)}),
    "annotations of ours": lambda n: annotated(**{f"partage.io/a{k}": "x" for k in range(n)}),
    "reserved annotations": lambda n: annotated(
        **{f"tke.cloud.tencent.com/qgpu-pgpu-{k}": "x" for k in range(n)}
    ),
    "labels": lambda n: pod(
        container(limits=SHARE), meta={"labels": {f"l{k}": "x" for k in range(n)}}
    ),
    "owner references": lambda n: pod(
        container(limits=SHARE),
        meta={"ownerReferences": [{"name": f"o{k}", "uid": f"{k}"} for k in range(n)]},
    ),
    "tolerations": lambda n: one(
        tolerations=[{"key": f"t{k}", "operator": "Exists"} for k in range(n)]
    ),
    "terms of affinity": lambda n: one(affinity=required(*(term(str(k)) for k in range(n)))),
    "values of one term": lambda n: one(affinity=required(term(*map(str, range(n))))),
    "node selector": lambda n: one(nodeSelector={f"k{k}": "v" for k in range(n)}),
    "scheduling gates": lambda n: one(schedulingGates=[{"name": f"g{k}"} for k in range(n)]),
    "spread constraints": lambda n: one(
        topologySpreadConstraints=[{"topologyKey": f"k{k}"} for k in range(n)]
    ),
    "names of cards": lambda n: pod(
        container(limits=SHARE),
        meta={"annotations": {"nvidia.com/use-gpuuuid": ",".join(f"GPU-{k}" for k in range(n))}},
    ),
    "a hint": lambda n: annotated(
        **{
            HINT: json.dumps(
                {"gpu": {"selector": {"matchLabels": {f"k{k}": "v" for k in range(n)}}}}
            )
        }
    ),
}


def calls(work: Callable[[], object]) -> int:
    """Calls of functions, written in Python or in C, and steps of generators."""
    count = 0

    def counted(_frame: object, event: str, _about: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def reviewed(manifest: Json, operation: str = "CREATE") -> None:
    """Both webhooks' whole work on a review."""
    before = manifest if operation == "UPDATE" else None
    body = json.dumps(review(manifest, operation, before)).encode()
    for decide in (mutate, validate):
        encode_verdict(decide(decode_review(body), READ, Admission()))


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("what", LONG)
def test_twice_as_long_costs_twice_as_much(what: str, operation: str) -> None:
    """Each list and map of a pod is long in turn."""
    once, twice = (calls(lambda n=n: reviewed(LONG[what](n), operation)) for n in (1500, 3000))

    assert twice < RATIO * once


@pytest.mark.parametrize("what", CROWDS)
def test_twice_as_many_containers_cost_twice_as_much(what: str) -> None:
    """Reading them, which the engine does too and admission does for as many as it lets through."""

    def read(count: int) -> None:
        document = decode_pod(CROWDS[what](count), "team")
        assert not isinstance(document, str)
        translate_pod(document, READ)

    once, twice = (calls(lambda n=n: read(n)) for n in (1000, 2000))

    assert twice < RATIO * once


@pytest.mark.parametrize("what", CROWDS)
def test_a_crowd_of_containers_is_refused_before_it_is_read(what: str) -> None:
    """Twelve thousand are refused by a sentence, for a small part of what reading them would take."""
    manifest = CROWDS[what](12_000)
    assert calls(lambda: reviewed(manifest)) < 100 * 12_000
    for decide in (mutate, validate):
        verdict = decide(decode_review(json.dumps(review(manifest)).encode()), READ, Admission())
        assert not verdict.allowed
        assert "12000 containers" in verdict.message or "12001 containers" in verdict.message
        assert "512 at most" in verdict.message


def test_as_many_containers_as_may_be_are_completed() -> None:
    """The bounds themselves are let through, whole."""
    asking = LIMITS["containers that ask for devices"]
    manifest = mutated(review(pod(*many(asking, SHARE), *many(512, {})[asking:])))

    told = ["nvidia.com/gpu" in c["resources"]["limits"] for c in manifest["spec"]["containers"]]
    assert told == [True] * asking + [False] * (512 - asking)
    assert validated(review(manifest))["allowed"]


BEYOND: Final[dict[str, Callable[[], Json]]] = {
    "containers": lambda: pod(*many(513, {"nvidia.com/gpu": "0"})),
    "containers that ask for devices": lambda: pod(*many(65, {"nvidia.com/gpu": "0"})),
    "amounts of resources": lambda: pod(
        container("g", SHARE), *many(100, {f"x.example/{i}": "0" for i in range(42)})
    ),
    "node affinity terms": lambda: pod(
        container("g", SHARE), affinity=required(*[term("a")] * 129)
    ),
    "bytes": lambda: pod(container("g", SHARE), meta={"annotations": {HINT: "x" * 16_385}}),
    "bytes of annotations": lambda: pod(
        container("g", SHARE), meta={"annotations": {"example.com/pad": "é" * 65_536}}
    ),
}


@pytest.mark.parametrize("scheduler", ["partage-scheduler", "volcano"])
@pytest.mark.parametrize("what", BEYOND)
def test_bounds_hold_whatever_scheduler_a_pod_names(what: str, scheduler: str) -> None:
    """Another scheduler may bind such a pod, and then it is read at each of its changes."""
    manifest = BEYOND[what]()
    manifest["spec"]["schedulerName"] = scheduler

    answer = validated(review(manifest))

    assert not answer["allowed"]
    assert what.split(maxsplit=1)[0] in answer["status"]["message"]
    assert validated(review(manifest, "UPDATE", manifest))["allowed"]


def test_annotations_leave_room_for_a_record() -> None:
    """With less than half of what the API server allows, the pod is let through; without devices with all of it."""
    for size, limits in ((131_072, SHARE), (262_144, {})):
        text = "x" * (size - len("example.com/pad"))
        manifest = pod(container("g", limits), meta={"annotations": {"example.com/pad": text}})
        assert validated(review(manifest))["allowed"]


def test_devices_of_a_pod_as_a_whole_count_too() -> None:
    """A runtime's overhead names a card, and no container does: the bounds hold all the same."""
    manifest = pod(container(), overhead=SHARE, affinity=required(*[term("a")] * 129))

    answer = validated(review(manifest))

    assert "node affinity terms" in answer["status"]["message"]


def test_a_crowd_that_is_there_already_may_be_changed() -> None:
    """A pod of before the bound does not keep its finalizers for ever."""
    manifest = pod(*many(600, SHARE))

    assert validated(review(manifest, "UPDATE", manifest))["allowed"]
    assert not validated(review(manifest, "UPDATE", pod(*many(2, SHARE))))["allowed"]


@pytest.mark.parametrize("what", LONG)
def test_a_refusal_is_short_however_long_the_pod_is(what: str) -> None:
    """Clients show it, and the API server logs it."""
    response = validated(review(LONG[what](20_000)))

    assert len(json.dumps(response)) < 16_384


NUMBERS: Final = (
    "9" * 1_000_000,
    "0." + "3" * 1_000_000,
    "1e999999999",
    "1e-999999999",
    "-" * 9999,
)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda text: text[:6])
@pytest.mark.parametrize("name", ["nvidia.com/gpumem", "cpu", "koordinator.sh/gpu-memory"])
def test_a_number_is_not_worked_out_beyond_what_is_allowed(name: str, number: str) -> None:
    """It may have any number of digits, written out or by exponent."""
    manifest = pod(container(limits={**SHARE, name: number}))

    assert calls(lambda: reviewed(manifest)) < 10_000
    assert not validated(review(manifest))["allowed"]


def test_what_json_alone_can_do_is_answered() -> None:
    """Deep nesting, keys that are repeated, numbers that no machine has: a sentence or a verdict."""
    plain = json.dumps(review(one(x="@")))
    bodies = [
        plain.replace('"@"', "[" * 100_000 + "]" * 100_000),
        plain.replace('"@"', '{"a":' * 100_000 + "1" + "}" * 100_000),
        plain.replace('"x": "@"', ",".join(['"x": 1'] * 100_000)),
        plain.replace('"@"', "9" * 100_000),
        plain.replace('"@"', "1e999999999"),
    ]

    async def run() -> None:
        async with TestClient(TestServer(make_app(context))) as client:
            for body in bodies:
                for path in ("/webhook/mutate", "/webhook/validate"):
                    async with client.post(path, data=io.BytesIO(body.encode())) as answer:
                        assert answer.status in (200, 400)

    asyncio.run(run())


def test_a_large_review_keeps_none_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is decided, small ones and the probes are answered; too many at once are refused."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(asked: Review, read: Context, admission: Admission) -> Verdict:
        if len(json.dumps(asked.object)) > 100_000:
            begun.set()
            assert go_on.wait(240)
        return mutate(asked, read, admission)

    monkeypatch.setattr(server, "mutating", lambda _tracer: slow)
    large = json.dumps(review(LONG["annotations"](20_000))).encode()
    monkeypatch.setattr(server, "_HELD", LARGEST + 15 * len(large))
    small = json.dumps(review(one())).encode()

    async def run() -> None:
        async with TestClient(TestServer(make_app(context))) as client:

            async def ask(body: bytes) -> int:
                async with client.post("/webhook/mutate", data=io.BytesIO(body)) as answer:
                    await answer.read()
                    return answer.status

            waiting = [asyncio.create_task(ask(large)) for _ in range(20)]
            refused: set[asyncio.Task[int]] = set()
            while len(refused) < 4:
                refused, others = await asyncio.wait(waiting, timeout=0.01)
            assert len(others) == 16
            assert await asyncio.to_thread(begun.wait, 240)
            assert await ask(small) == 200
            async with client.get("/healthz") as answer:
                assert answer.status == 200
            go_on.set()
            assert sorted(await asyncio.gather(*waiting)) == [200] * 16 + [503] * 4

    asyncio.run(asyncio.wait_for(run(), 240))


def test_a_body_beyond_three_mebibytes_is_refused() -> None:
    """The limits of the service beside it do not matter."""

    async def run() -> None:
        async with TestClient(TestServer(make_app(context, limits=Limits()))) as client:
            for size, status in ((3 * 2**20, 400), (3 * 2**20 + 1, 413)):
                body = io.BytesIO(b"x" * size)
                async with client.post("/webhook/validate", data=body) as answer:
                    assert answer.status == status

    asyncio.run(run())


def test_a_refusals_cause_is_no_longer_than_its_message() -> None:
    """The client kubectl prints the cause of an invalid pod."""
    answer = encode_verdict(Verdict("u", allowed=False, message="x" * 100_000, code=422))
    assert len(answer) < 8192


def test_what_no_operation_is_in_is_not_copied() -> None:
    """A copy of all of a pod of three megabytes took six sevenths of its review, and all later ones waited for it."""
    given = pod(
        container("a", {"nvidia.com/gpumem": "1"}, env=[{"name": "A", "value": "b"}]),
        container("b", {"cpu": "1"}, env=[{"name": "A"}]),
        meta={"annotations": {"a": "b"}},
    )
    before = json.dumps(given)
    patch = Patch(given)
    patch.put(("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu"), "1")
    patch.put(("spec", "containers", 0, "resources", "requests", "nvidia.com/gpu"), "1")
    patch.append(("spec", "containers", 0, "env"), {"name": "B"})
    patch.append(("spec", "resourceClaims"), {"name": "c"})
    patch.put(("metadata", "labels", "x"), "y")
    assert json.dumps(given) == before
    first, second = patch.result["spec"]["containers"]
    assert second is given["spec"]["containers"][1]
    assert patch.result["metadata"]["annotations"] is given["metadata"]["annotations"]
    assert [one["name"] for one in first["env"]] == ["A", "B"]
    assert first["env"][0] is given["spec"]["containers"][0]["env"][0]
    assert first["resources"]["limits"] == {"nvidia.com/gpumem": "1", "nvidia.com/gpu": "1"}
    assert first["resources"]["requests"]["nvidia.com/gpu"] == "1"

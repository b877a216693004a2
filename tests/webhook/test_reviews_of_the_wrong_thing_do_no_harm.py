"""Scenario 9: the webhook is asked about the wrong object, or about a pod that is meant to break it.

Every request goes over HTTP, and after each a sound pod is still completed and a broken one still
refused. Whatever comes, an answer is a review or a sentence, never a fault of ours, and it comes
long before the API server gives up.
"""

import asyncio
import io
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from reviews import Json, container, context, pod, review

from partage.vendors import names
from partage.webhook.server import make_app

SHARE = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
BROKEN = {"koordinator.sh/gpu-core": "50"}
PATHS = ("/webhook/mutate", "/webhook/validate")
GIVES_UP = 5.0
"""Seconds after which the API server gives up (`timeoutSeconds`); of processor time here."""
FORGED = {"annotations": {names.ALLOCATION: "{}"}}
Asking = Callable[[str, Any], Coroutine[Any, Any, tuple[int, Json]]]


def asked(test: Callable[[Asking], Coroutine[Any, Any, None]]) -> None:
    """Run a test against the webhook as it is served."""

    async def run() -> None:
        async with TestClient(TestServer(make_app(context))) as client:

            async def ask(path: str, body: Any) -> tuple[int, Json]:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                async with client.post(path, data=io.BytesIO(data)) as answer:
                    return answer.status, await answer.json()

            await test(ask)
            _, sound = await ask("/webhook/mutate", review(pod(container(limits=SHARE))))
            assert sound["response"]["patch"]
            _, broken = await ask("/webhook/validate", review(pod(container(limits=BROKEN))))
            assert broken["response"]["allowed"] is False

    asyncio.run(run())


def of(manifest: Any, resource: str, group: str = "", kind: str = "Pod", **more: Any) -> Json:
    """A review of an object of this kind."""
    found = review(manifest, **more)
    name, _, sub = resource.partition("/")
    found["request"] |= {
        "kind": {"group": group, "version": "v1", "kind": kind},
        "resource": {"group": group, "version": "v1", "resource": name},
        "subResource": sub or None,
    }
    return found


DEVICE_POD = pod(container(limits=SHARE), meta=FORGED)
OTHERS = {
    "a node": of({"kind": "Node", "metadata": FORGED}, "nodes", kind="Node"),
    "a deployment with a device pod in it": of(
        {"kind": "Deployment", "metadata": FORGED, "spec": {"template": DEVICE_POD}},
        "deployments",
        "apps",
        "Deployment",
    ),
    "pods of another group": of(DEVICE_POD, "pods", "metrics.k8s.io", "PodMetrics"),
    "a subresource of another group": of(DEVICE_POD, "pods/status", "example.com"),
    "a deletion": of(None, "pods", operation="DELETE", before=DEVICE_POD),
    "a connection": of(
        {"kind": "PodExecOptions", "command": ["sh"]},
        "pods/exec",
        kind="PodExecOptions",
        operation="CONNECT",
    ),
    "an object that is empty": of({}, "pods"),
    "an object of another kind": of({"kind": "Secret", "data": {"a": "b"}}, "pods"),
    "a spec that is a list": of({"spec": [SHARE]}, "pods"),
    "containers that are texts": of({"spec": {"containers": ["a", 7, None]}}, "pods"),
    "a debug container in a device pod": of(
        pod(container(limits=SHARE), ephemeralContainers=[{"name": "debug", "image": "sh"}]),
        "pods/ephemeralcontainers",
        operation="UPDATE",
        before=pod(container(limits=SHARE)),
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", OTHERS)
def test_what_is_not_ours_passes_as_it_is(what: str, path: str) -> None:
    """Under any registration it is allowed, stays unchanged, and the answer has its uid."""

    async def test(ask: Asking) -> None:
        status, answer = await ask(path, OTHERS[what])

        assert status == 200
        assert answer["response"] == {"uid": "r-1", "allowed": True}

    asked(test)


REFUSED = {
    "a record in a debug container's update": of(
        DEVICE_POD,
        "pods/ephemeralcontainers",
        operation="UPDATE",
        before=pod(container(limits=SHARE)),
    ),
    "a record in an update whose old object is missing": of(
        DEVICE_POD, "pods", operation="UPDATE"
    ),
    "a record in an unknown operation": of(DEVICE_POD, "pods", operation="PATCH"),
    "a record in a pod of no kind": of({**DEVICE_POD, "kind": "Node"}, "pods"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_no_detour_brings_a_record_in(what: str) -> None:
    """A user's own record is refused in every operation, kind and subresource."""

    async def test(ask: Asking) -> None:
        status, answer = await ask("/webhook/validate", REFUSED[what])

        assert status == 200
        assert answer["response"]["allowed"] is False
        assert names.ALLOCATION in answer["response"]["status"]["message"]

    asked(test)


def without(*keys: str) -> Json:
    """A review whose request lacks something."""
    found = review(pod(container(limits=SHARE)))
    for key in keys:
        del found["request"][key]
    return found


NOTHING = {
    "no request": {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"},
    "a request of null": {**review(pod()), "request": None},
    "a request that is a list": {**review(pod()), "request": [review(pod())["request"]]},
    "no uid": without("uid"),
    "a uid that is a number": review(pod(), uid=7),
    "a uid of a megabyte": review(pod(container(limits=SHARE)), uid="u" * 2**20),
    "an object that is a text": review("pod"),  # type: ignore[arg-type]
    "an object that is a list": review([pod()]),  # type: ignore[arg-type]
    "another kind": {**review(pod()), "kind": "TokenReview"},
    "another group": {**review(pod()), "apiVersion": "authentication.k8s.io/v1"},
    "an older version": {**review(pod()), "apiVersion": "admission.k8s.io/v1beta1"},
    "an answer": {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "r-1", "allowed": True},
    },
    "nothing": b"",
    "no UTF-8": b'{"kind":"\xff\xfe"}',
    "half of it": json.dumps(review(pod())).encode()[:100],
    "a million brackets": b"[" * 1_000_000,
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", NOTHING)
def test_what_is_no_review_allows_nothing(what: str, path: str) -> None:
    """It is answered with a sentence, which the API server takes for a failed call."""

    async def test(ask: Asking) -> None:
        status, answer = await ask(path, NOTHING[what])

        assert status == 400
        assert answer["message"].startswith("AdmissionReview: ")
        assert len(answer["message"]) < 500
        assert "response" not in answer

    asked(test)


def hinted(text: str, key: str = "scheduling.koordinator.sh/device-allocate-hint") -> Json:
    """A device pod with an annotation."""
    return pod(container(limits=SHARE), meta={"annotations": {key: text}})


HOSTILE = {
    "two thousand containers": pod(*(container(f"c{n}", limits=SHARE) for n in range(2000))),
    "twenty thousand resources": pod(
        container(limits=SHARE | {f"koordinator.sh/gpu{n}": "1" for n in range(20000)})
    ),
    "fifty thousand tolerations": pod(container(limits=SHARE), tolerations=[{"key": "a"}] * 50000),
    "an annotation of a megabyte": hinted("{" * 1_000_000),
    "an annotation nested without end": hinted('{"gpu":' * 100_000),
    "a million types": hinted("," * 1_000_000, "nvidia.com/use-gputype"),
    "an amount of a million digits": pod(container(limits={"koordinator.sh/gpu": "9" * 10**6})),
    "an amount with an exponent": pod(container(limits={"nvidia.com/gpu": "1e999999999"})),
    "a number beyond all bounds": pod(container(limits={"koordinator.sh/gpu": 10**400})),
    "an amount of control characters": pod(container(limits={"nvidia.com/gpu": "1\x00\x1b"})),
    "a priority beyond all bounds": pod(container(limits=SHARE), priority=10**30),
    "a name of another alphabet": pod(container("\u202e\U0001f600" * 1000, limits=SHARE)),
    "an environment that is none": pod(
        container(limits={"nvidia.com/gpu": "1", "nvidia.com/priority": "1"}, env=[1, None, "x"])
    ),
}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_pod_is_judged_like_any_other(what: str, operation: str) -> None:
    """The review is answered in time, and a refusal has a message short enough to read."""

    async def test(ask: Asking) -> None:
        for path in PATHS:
            started = time.process_time()
            status, answer = await ask(path, review(HOSTILE[what], operation, HOSTILE[what]))

            assert time.process_time() - started < GIVES_UP
            assert status == 200
            assert answer["response"]["uid"] == "r-1"
            message = answer["response"].get("status", {}).get("message", "")
            assert bool(message) is not answer["response"]["allowed"]
            assert len(message) < 2000

    asked(test)


@pytest.mark.parametrize("path", [*PATHS, "/webhook/translate"])
def test_a_pod_that_is_just_flat_enough_to_be_decoded_is_no_fault(path: str) -> None:
    """API servers keep what managers of fields write as it is; a copy of it takes more frames than decoding it."""
    text = json.dumps(review(pod(container(limits=SHARE), meta={"managedFields": ["NEST"]})))
    depths = range(300, 1_000, 50)
    bodies = [text.replace('"NEST"', "[" * n + "]" * n).encode() for n in depths]

    async def test(ask: Asking) -> None:
        answers = [await ask(path, body) for body in bodies]

        assert {status for status, _ in answers} <= {200, 400}
        assert answers[0][1]["response"]["allowed"] is True
        told = [answer["message"] for status, answer in answers if status == 400]
        assert set(told) <= {"AdmissionReview: nested too deeply"}

    asked(test)

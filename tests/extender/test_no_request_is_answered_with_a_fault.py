"""Fuzzing of every endpoint over real sockets: no request gets a 5xx."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_client import Running
from world import Manifest, device, half, node, pod, whole

from partage.serving.limits import Limits
from partage.webhook.server import review_routes

POSTS = (
    "/scheduler/filter",
    "/scheduler/prioritize",
    "/scheduler/priorities",
    "/scheduler/bind",
    "/scheduler/preempt",
    "/webhook/mutate",
    "/webhook/validate",
)
GETS = (
    "/healthz",
    "/readyz",
    "/metrics",
    "/api/explain/{}/{}",
    "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries",
    "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/{}",
)


@contextlib.contextmanager
def _running(limits: Limits) -> Iterator[Running]:
    context: list[Any] = []
    routes = review_routes(lambda: context[0].books.cluster_cache.translation.context)
    with Running(
        node("n1"), device("n1"), node("n2"), device("n2"), routes=routes, limits=limits
    ) as s:
        context.append(s.world.service)
        yield s


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """One service for all of them: what one request leaves behind, the next one meets."""
    with _running(Limits()) as s:
        yield s


@pytest.fixture(scope="module")
def hasty() -> Iterator[Running]:
    """One that soon lets go: on a busy machine it lets go of whole requests too, whose client is late."""
    with _running(Limits(patience=0.3, idle=0.3)) as s:
        yield s


TEXTS = st.sampled_from(
    [
        "n1",
        "n2",
        "web",
        "",
        "uid-web",
        "Always",
        "default-scheduler",
        "50",
        "1e99",
        "-1",
        "8Gi",
        "\x00",
        "ü" * 50,
        "a" * 300,
        "koordinator.sh/gpu",
        "nvidia.com/gpu",
        "kubernetes.io/gpu-core",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)
RESOURCES = (
    "koordinator.sh/gpu",
    "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory-ratio",
    "koordinator.sh/gpu-memory",
    "koordinator.sh/gpu.shared",
    "kubernetes.io/gpu",
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpucores",
    "cpu",
    "koordinator.sh/rdma",
    "tke.cloud.tencent.com/qgpu-core",
    "tke.cloud.tencent.com/qgpu-memory",
    "metax-tech.com/sgpu",
)
AMOUNTS = st.dictionaries(
    st.sampled_from(RESOURCES),
    st.sampled_from(["1", "50", "100", "200", "3000", "8Gi", 1, -1, "x", 2**70, 1e300]),
    max_size=3,
)


@st.composite
def pods(draw: st.DrawFn) -> Manifest:
    """A pod that is nearly right: one thing in it may be anything."""
    made = pod(draw(st.sampled_from(["web", "x", "y"])), draw(AMOUNTS))
    for path in draw(st.lists(st.sampled_from(PLACES), max_size=2)):
        here: Any = made
        for step in path[:-1]:
            here = here.setdefault(step, {}) if isinstance(here, dict) else {}
        if isinstance(here, dict):
            here[path[-1]] = draw(VALUES)
    return made


PLACES = (
    ("metadata",),
    ("metadata", "name"),
    ("metadata", "uid"),
    ("metadata", "namespace"),
    ("metadata", "annotations"),
    ("metadata", "labels"),
    ("spec",),
    ("spec", "containers"),
    ("spec", "initContainers"),
    ("spec", "affinity"),
    ("spec", "nodeName"),
    ("spec", "tolerations"),
    ("spec", "topologySpreadConstraints"),
    ("spec", "schedulerName"),
    ("spec", "overhead"),
    ("spec", "resources"),
    ("status",),
    ("spec", "priority"),
    ("kind",),
)
ODD_NAMES = st.lists(TEXTS, max_size=4) | VALUES


@st.composite
def bodies(draw: st.DrawFn) -> Any:
    """What a verb or the webhook is sent, or something like it."""
    made: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"Pod": draw(pods()), "Nodes": None, "NodeNames": draw(ODD_NAMES)},
                {"Pod": draw(pods()), "Nodes": {"items": draw(VALUES)}},
                {
                    "PodName": "web",
                    "PodNamespace": "team",
                    "PodUID": "uid-web",
                    "Node": draw(TEXTS),
                },
                {"Pod": draw(pods()), "NodeNameToMetaVictims": {"n1": draw(VALUES)}},
                {"Pod": draw(pods()), "NodeNameToVictims": {"n1": {"Pods": [draw(pods())]}}},
                {
                    "apiVersion": "admission.k8s.io/v1",
                    "kind": "AdmissionReview",
                    "request": {
                        "uid": "1",
                        "resource": {"resource": draw(st.sampled_from(["pods", "bindings"]))},
                        "operation": draw(st.sampled_from(["CREATE", "UPDATE", "DELETE", ""])),
                        "object": draw(pods()),
                        "oldObject": draw(st.none() | pods()),
                    },
                },
            ]
        )
    )
    for key in draw(st.lists(st.sampled_from([*made, "pod", "nodenames"]), max_size=1)):
        made[key] = draw(VALUES)
    return made


@given(st.sampled_from(POSTS), bodies() | VALUES)
def test_a_body_that_is_nearly_right(running: Running, path: str, body: Any) -> None:
    """Fields of the wrong type, absurd amounts, missing parts: reported, never a fault."""
    status, _, answer = running.post(path, json.dumps(body).encode(errors="surrogatepass"))

    assert status in (200, 400), answer
    json.loads(answer)


@given(st.sampled_from(POSTS), st.binary(max_size=60))
def test_a_body_that_is_not_even_json(running: Running, path: str, body: bytes) -> None:
    """Such bytes are no review and no arguments."""
    status, _, answer = running.post(path, body)

    assert status in (200, 400), answer


@given(st.sampled_from(GETS), st.text(max_size=12), st.text(max_size=12))
def test_a_page_of_any_name(running: Running, path: str, one: str, other: str) -> None:
    """A page that does not exist is not found."""
    target = path.format(*(name.encode().hex() or "%00" for name in (one, other)))
    quoted = path.format(*("".join(f"%{b:02x}" for b in name.encode()) for name in (one, other)))

    for wanted in (target, quoted):
        status, _, answer = running.get(wanted)
        assert status in (200, 400, 404), answer


@given(st.binary(max_size=80), st.sampled_from([b"", *(p.encode() for p in POSTS[:2])]))
def test_bytes_that_are_no_http(hasty: Running, junk: bytes, path: bytes) -> None:
    """They are refused, or their connection is closed after a while; the service goes on."""
    start = b"POST " + path + b" HTTP/1.1\r\n" if path else b""

    status, _, _ = hasty.send(start + junk + b"\r\n\r\n")

    assert status < 500
    assert hasty.world.service.books.engine.ledger.validate() is None


def test_the_builders_of_this_file_make_pods_that_work(running: Running) -> None:
    """Otherwise the fuzzing would test only refusals."""
    asked = {"Pod": pod("ok", half()), "NodeNames": ["n1"]}

    assert json.loads(running.post("/scheduler/filter", asked)[2])["NodeNames"] == ["n1"]
    assert whole()


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
def test_an_amount_of_twenty_digits_is_told(running: Running, verb: str) -> None:
    """It is larger than any number that is packed, and no reason to fail."""
    asked = pod("huge", {"koordinator.sh/gpu": 2**70})

    status, _, answer = running.post(f"/scheduler/{verb}", {"Pod": asked, "NodeNames": ["n1"]})

    assert status == 200, answer

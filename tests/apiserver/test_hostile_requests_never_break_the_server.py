"""Fuzzing: whatever comes in, the answer is never a fault of the server's own (5xx)."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

from apiserver_world import (
    APPLY,
    DEFINITIONS,
    JSON,
    JSON_PATCH,
    MERGE,
    PODS,
    STRATEGIC,
    WIDGETS,
    FixedAmbient,
    World,
    config,
    definition,
    deployment,
    named,
    pod,
    sized,
    widget,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partage.apiserver import ApiServer, protobuf, serve
from partage.apiserver.builtin import kinds

import aiohttp  # isort: skip

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["1", "Always", "web", "$patch", "delete", "10Gi", "2023-11-14T22:13:20Z"])
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
BODIES: list[Any] = [
    named(pod(), labels={"a": "b"}, ownerReferences=[], finalizers=["e.com/x"]),
    sized({"cpu": 1, "e.com/x": 2}, {"cpu": 1}),
    pod(
        volumes=[{"name": "v", "hostPath": {"path": "/"}}],
        tolerations=[{"key": "a", "operator": "Exists"}],
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]
                }
            }
        },
    ),
    config(a="b"),
    deployment(),
    definition(),
    widget(),
    {"metadata": {"name": "x"}, "target": {"kind": "Node", "name": "n"}},
    {"metadata": {"name": "x"}, "spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort"]}},
    {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}], "type": "ClusterIP"}},
    {
        "metadata": {"name": "x"},
        "webhooks": [
            {
                "name": "a",
                "rules": [{"resources": ["pods"]}],
                "clientConfig": {"service": {"name": "x"}},
            }
        ],
    },
    {"metadata": {"name": "x"}, "spec": {"schedule": "@daily", "jobTemplate": {"spec": {}}}},
    {"spec": {"replicas": 1}},
    {"gracePeriodSeconds": 1, "propagationPolicy": "Orphan", "preconditions": {"uid": "x"}},
    [{"op": "replace", "path": "/spec", "value": {}}, {"op": "add", "path": "/a/-", "value": 1}],
]


@st.composite
def spoilt(draw: st.DrawFn) -> Any:
    """A sensible body in which one to three places were replaced by junk."""
    value = json.loads(json.dumps(draw(st.sampled_from(BODIES))))
    for _ in range(draw(st.integers(0, 3))):
        at: Any = value
        for _ in range(draw(st.integers(0, 6))):
            if isinstance(at, dict) and at:
                key = draw(st.sampled_from(sorted(at)))
            elif isinstance(at, list) and at:
                key = draw(st.integers(0, len(at) - 1))
            else:
                break
            if draw(st.booleans()) or not isinstance(at[key], (dict, list)):
                at[key] = draw(JUNK)
                break
            at = at[key]
        else:
            if isinstance(at, dict):
                at[draw(st.text(max_size=5))] = draw(JUNK)
    return value


PATHS = [
    *sorted(
        {
            (f"/apis/{k.group}/v1" if k.group else "/api/v1")
            + ("/namespaces/default/" if k.namespaced else "/")
            + k.plural
            for k in kinds()
        }
    ),
    WIDGETS,
    DEFINITIONS,
    PODS,
    "/api/v1/pods",
]
TAILS = [
    "",
    "/web",
    "/settings",
    "/one",
    "/x",
    "/web/status",
    "/web/scale",
    "/web/binding",
    "/web/eviction",
    "/web/log",
    "/one/scale",
    "/one/status",
    "/default/finalize",
]
QUERIES = st.dictionaries(
    st.sampled_from(
        [
            "labelSelector",
            "fieldSelector",
            "limit",
            "continue",
            "resourceVersion",
            "dryRun",
            "fieldManager",
            "force",
            "fieldValidation",
            "resourceVersionMatch",
            "pretty",
            "gracePeriodSeconds",
            "propagationPolicy",
            "includeObject",
            "container",
            "tailLines",
        ]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
    | st.sampled_from(["1", "true", "All", "Strict", "a=b", "metadata.name=web", "Exact", "0"]),
    max_size=3,
)
MEDIA = [JSON, MERGE, STRATEGIC, JSON_PATCH, APPLY, "application/yaml", protobuf.MEDIA, ""]
ACCEPT = [
    JSON,
    "*/*",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/yaml",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
]
REQUESTS = st.tuples(
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE"]),
    st.sampled_from(PATHS),
    st.sampled_from(TAILS),
    QUERIES,
    st.sampled_from(MEDIA),
    st.sampled_from(ACCEPT),
    spoilt() | JUNK,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(REQUESTS, min_size=10, max_size=40))
def test_no_request_is_a_fault(requests: list[Any]) -> None:
    """Sequences of spoilt requests against a cluster with something in it."""

    async def main() -> None:
        server = ApiServer(around=FixedAmbient().ambient())
        async with serve(server) as url, aiohttp.ClientSession() as session:
            w = World(server, url, session, FixedAmbient())
            await w.post(DEFINITIONS, definition())
            await w.post(WIDGETS, widget())
            await w.post(PODS, pod())
            await w.post("/apis/apps/v1/namespaces/default/deployments", deployment())
            for method, path, tail, query, media, accept, body in requests:
                data = None if method == "GET" else json.dumps(body).encode()
                answer = await w.ask(
                    method, path + tail, data, media=media, accept=accept, **query
                )
                # A stored webhook without a server refuses as the genuine server does.
                if "failed calling webhook" not in str(answer.body):
                    assert answer.code < 500, (
                        method,
                        path + tail,
                        query,
                        media,
                        body,
                        answer.body,
                    )
            await server.settle()

    asyncio.run(main())


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.text(max_size=8) | st.sampled_from(["api", "v1", "apis", "namespaces"]),
                max_size=6,
            ),
            st.binary(max_size=60),
        ),
        min_size=10,
        max_size=30,
    )
)
def test_no_path_is_a_fault(requests: list[tuple[list[str], bytes]]) -> None:
    """Any path and any bytes, to every method."""

    async def main() -> None:
        server = ApiServer()
        async with serve(server) as url, aiohttp.ClientSession() as session:
            for parts, body in requests:
                path = "/".join(quote(part.encode("utf-8", "replace"), safe="") for part in parts)
                for method in ("GET", "POST", "DELETE", "PATCH"):
                    target = aiohttp.client.URL(f"{url}/{path}", encoded=True)
                    headers = {"Content-Type": protobuf.MEDIA if body[:1] < b"\x80" else JSON}
                    async with session.request(
                        method, target, data=body, headers=headers
                    ) as response:
                        assert response.status < 500

    asyncio.run(main())

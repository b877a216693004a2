"""Nodes, ConfigMaps, Secrets, Services, Leases, priority classes, roles, events."""

from typing import Any

import pytest
from apiserver_world import World, config, ok, run

CORE = "/api/v1/namespaces/default"
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "taint": (
        "/api/v1/nodes",
        {"spec": {"taints": [{"key": "-", "value": "-", "effect": "X"}]}},
        "metadata.taints[0].effect: Unsupported value",
    ),
    "taints": (
        "/api/v1/nodes",
        {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}] * 2}},
        "Duplicate value",
    ),
    "capacity": (
        "/api/v1/nodes",
        {"status": {"capacity": {"nvidia.com/gpu": "1500m"}}},
        "status.capacity[nvidia.com/gpu]: Invalid value",
    ),
    "config key": (f"{CORE}/configmaps", {"data": {"a b": "x"}}, "a valid config key must"),
    "service target": (
        f"{CORE}/services",
        {"spec": {"ports": [{"port": 1, "targetPort": 70000}]}},
        "spec.ports[0].targetPort: Invalid value: 70000: must be between 1 and 65535",
    ),
    "strategy": (
        "/apis/apps/v1/namespaces/default/deployments",
        {"spec": {"strategy": {"type": "X"}}},
        "spec.strategy: Unsupported value",
    ),
    "system's priority": (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": "system-x"}},
        "system-x is not a known system priority class",
    ),
    "config twice": (
        f"{CORE}/configmaps",
        {"data": {"a": "x"}, "binaryData": {"a": "eA=="}},
        "duplicate of key present in data",
    ),
    "config size": (f"{CORE}/configmaps", {"data": {"a": "x" * 2**21}}, "Too long"),
    "service": (f"{CORE}/services", {"spec": {}}, "spec.ports: Required value"),
    "service type": (
        f"{CORE}/services",
        {"spec": {"type": "X", "ports": [{"port": 1}]}},
        "spec.type: Unsupported value",
    ),
    "service ports": (
        f"{CORE}/services",
        {"spec": {"ports": [{"port": 1}, {"port": 0}]}},
        "spec.ports[1].name: Required value",
    ),
    "service name": (f"{CORE}/services", {"metadata": {"name": "1a"}}, "a DNS-1035 label must"),
    "lease": (
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        {"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}},
        "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
    ),
    "priority": (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"value": 2_000_000_000},
        "maximum allowed value of a user defined priority",
    ),
    "preemption": (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"preemptionPolicy": "X"},
        "preemptionPolicy: Unsupported value",
    ),
    "role binding": (
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {"roleRef": {"kind": "X"}},
        "roleRef.name: Required value",
    ),
    "role name": (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        {"metadata": {"name": "a/b"}},
        "may not contain '/'",
    ),
    "event": (
        f"{CORE}/events",
        {"involvedObject": {"namespace": "other"}},
        "does not match event.namespace",
    ),
    "quota": (
        f"{CORE}/resourcequotas",
        {"spec": {"hard": {"pods": "-1"}}},
        "spec.hard[pods]: Invalid value",
    ),
}


@pytest.mark.parametrize(("path", "body", "why"), CASES.values(), ids=CASES)
def test_malformed_objects_are_refused(path: str, body: dict[str, Any], why: str) -> None:
    """With the field and the rule."""

    async def story(w: World) -> None:
        answer = await w.post(path, {"metadata": {"name": "x"}, **body})

        assert answer.code == 422
        assert why in answer.message

    run(story)


@pytest.mark.parametrize(("text", "at"), [("?", 0), ("not base64", 3), ("abc", 0), ("abcdab", 4)])
def test_bytes_are_base64(text: str, at: int) -> None:
    """A body with other characters, or not to its end, cannot be decoded; the first of them is named."""

    async def story(w: World) -> None:
        for plural, body in (
            ("secrets", {"data": {"a": text}}),
            ("configmaps", {"binaryData": {"a": text}}),
        ):
            answer = await w.post(f"{CORE}/{plural}", {**body, "metadata": {"name": "a"}})

            assert answer.code == 400
            assert answer.message.endswith(f"illegal base64 data at input byte {at}")

    run(story)


def test_what_is_fixed_stays() -> None:
    """A node's range of addresses, and how often a Job's pods are to succeed."""

    async def story(w: World) -> None:
        ok(
            await w.post(
                "/api/v1/nodes", {"metadata": {"name": "n"}, "spec": {"podCIDR": "10.0.0.0/24"}}
            ),
            201,
        )
        inner = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}
        job = {"metadata": {"name": "j"}, "spec": {"template": {"spec": inner}}}
        jobs = "/apis/batch/v1/namespaces/default/jobs"
        ok(await w.post(jobs, job), 201)

        moved = await w.patch("/api/v1/nodes/n", {"spec": {"podCIDR": "10.0.1.0/24"}})
        more = await w.patch(f"{jobs}/j", {"spec": {"completions": 3}})

        assert (moved.code, more.code) == (422, 422)
        assert "spec.podCIDRs: Forbidden: node updates may not change podCIDR" in moved.message
        assert "spec.completions: Invalid value: 3: field is immutable" in more.message

    run(story)


def test_objects_are_completed() -> None:
    """Secrets' texts, services' addresses, nodes' allocatable, bindings' groups."""

    async def story(w: World) -> None:
        head = {"metadata": {"name": "x"}}
        secret = ok(await w.post(f"{CORE}/secrets", {**head, "stringData": {"a": "b"}}), 201)
        service = ok(
            await w.post(f"{CORE}/services", {**head, "spec": {"ports": [{"port": 80}]}}), 201
        )
        node = ok(await w.post("/api/v1/nodes", {**head, "status": {"capacity": {"cpu": 4}}}), 201)
        claim = ok(await w.post(f"{CORE}/persistentvolumeclaims", head), 201)
        rbac = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        subjects = {
            "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}],
        }
        bound = ok(await w.post(rbac, {**head, **subjects}), 201)

        assert secret["data"] == {"a": "Yg=="}
        assert "stringData" not in secret
        assert service["spec"]["clusterIP"].startswith("10.96.")
        assert service["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
        assert node["status"] == {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}
        assert claim["status"] == {"phase": "Pending"}
        assert bound["subjects"][0]["apiGroup"] == "rbac.authorization.k8s.io"

    run(story)


def test_immutable_data_stays() -> None:
    """A ConfigMap marked immutable keeps its data and its mark; a class keeps its value."""

    async def story(w: World) -> None:
        path = f"{CORE}/configmaps"
        ok(await w.post(path, {**config(a="1"), "immutable": True}), 201)
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        ok(await w.post(classes, {"metadata": {"name": "x"}, "value": 1}), 201)

        data = await w.patch(f"{path}/settings", {"data": {"a": "2"}, "immutable": None})
        value = await w.patch(f"{classes}/x", {"value": 2})

        assert "field is immutable when `immutable` is set" in data.message
        assert "may not be changed in an update" in value.message

    run(story)


def test_events_have_two_names() -> None:
    """What is written by one group is read by the other."""

    async def story(w: World) -> None:
        newer = "/apis/events.k8s.io/v1/namespaces/default/events"
        body = {
            "metadata": {"name": "e"},
            "regarding": {"kind": "Pod", "name": "web", "namespace": "default"},
            "note": "hello",
            "reason": "Because",
            "eventTime": "2023-11-14T22:13:20.000000Z",
        }
        ok(await w.post(newer, body), 201)

        core = ok(await w.get(f"{CORE}/events", fieldSelector="involvedObject.name=web"))["items"]
        again = ok(await w.get(newer, fieldSelector="regarding.name=web"))["items"]
        patched = ok(await w.patch(f"{newer}/e", {"note": "bye"}))

        assert (core[0]["message"], core[0]["involvedObject"]["name"]) == ("hello", "web")
        assert again[0]["note"] == "hello"
        assert patched["apiVersion"] == "events.k8s.io/v1"
        assert ok(await w.get(f"{CORE}/events/e"))["message"] == "bye"

    run(story)


def test_namespaces_keep_their_finalizers_but_by_finalize() -> None:
    """The main path leaves them alone."""

    async def story(w: World) -> None:
        made = ok(await w.post("/api/v1/namespaces", {"metadata": {"name": "team"}}), 201)
        emptied = ok(await w.put("/api/v1/namespaces/team", {**made, "spec": {}}))
        emptied["spec"] = {}
        finalized = ok(await w.put("/api/v1/namespaces/team/finalize", emptied))

        assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
        assert made["spec"] == {"finalizers": ["kubernetes"]}
        assert finalized["spec"] == {}

    run(story)

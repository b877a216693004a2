"""What is refused and filled in of every kind but pods and what makes pods."""

from typing import Any

import pytest
from apiserver_world import World, config, ok, run

CORE = "/api/v1/namespaces/default"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SCALERS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
TARGET = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def asked(*requests: dict[str, Any]) -> dict[str, Any]:
    """A claim with these requests, all of one name."""
    return {"spec": {"devices": {"requests": [{"name": "g", **one} for one in requests]}}}


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
        "status.capacity.nvidia.com/gpu: Invalid value",
    ),
    "selector of a budget": (
        BUDGETS,
        {"spec": {"selector": {"matchLabels": {"a b": "x"}}, "minAvailable": 1}},
        'spec.selector.matchLabels: Invalid value: "a b"',
    ),
    "container of a ReplicationController": (
        f"{CORE}/replicationcontrollers",
        {
            "spec": {
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "a"}], "tolerations": [{"operator": "X"}]},
                }
            }
        },
        "spec.template.spec.containers[0].image: Required value",
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
    "deadline of a template": (
        "/apis/apps/v1/namespaces/default/deployments",
        {
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {
                        "activeDeadlineSeconds": 5,
                        "containers": [{"name": "a", "image": "b"}],
                    },
                },
            }
        },
        "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet",
    ),
    "system's priority": (
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": "system-x"}},
        "system-x is not a known system priority class",
    ),
    "config twice": (
        f"{CORE}/configmaps",
        {"data": {"a": "x"}, "binaryData": {"a": "eA=="}},
        'data[a]: Invalid value: "a": duplicate of key present in binaryData',
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
    "service name": (
        f"{CORE}/services",
        {"metadata": {"name": "a_"}},
        "a lowercase RFC 1123 label",
    ),
    "namespace's dots": (
        "/api/v1/namespaces",
        {"metadata": {"name": "a.b"}},
        "must not contain dots",
    ),
    "service port's name": (
        f"{CORE}/services",
        {"spec": {"ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "a"}]}},
        'spec.ports[1].name: Duplicate value: "a"',
    ),
    "service's node port": (
        f"{CORE}/services",
        {"spec": {"type": "NodePort", "ports": [{"port": 1, "nodePort": 99}]}},
        "The range of valid ports is 30000-32767",
    ),
    "service address": (
        f"{CORE}/services",
        {"spec": {"clusterIP": "1.2.3", "ports": [{"port": 1}]}},
        "must be a valid IP address",
    ),
    "external name": (
        f"{CORE}/services",
        {"spec": {"type": "ExternalName"}},
        "spec.externalName: Required value",
    ),
    "quota of parts": (
        f"{CORE}/resourcequotas",
        {"spec": {"hard": {"pods": "1500m"}}},
        'spec.hard[pods]: Invalid value: "1500m": must be an integer',
    ),
    "quota of less than nothing": (
        f"{CORE}/resourcequotas",
        {"spec": {"hard": {"requests.nvidia.com/gpu": "-1"}}},
        'spec.hard[requests.nvidia.com/gpu]: Invalid value: "-1": must be greater than or equal to 0',
    ),
    "quota's scope": (
        f"{CORE}/resourcequotas",
        {"spec": {"hard": {"pods": "1"}, "scopes": ["Odd"]}},
        "unsupported scope",
    ),
    "certificate": (
        f"{CORE}/secrets",
        {"type": "kubernetes.io/tls", "data": {"tls.crt": "eA=="}},
        "data[tls.key]: Required value",
    ),
    "budget of both": (
        BUDGETS,
        {"spec": {"minAvailable": 1, "maxUnavailable": 1}},
        "minAvailable and maxUnavailable cannot be both set",
    ),
    "budget below none": (
        BUDGETS,
        {"spec": {"minAvailable": -1}},
        "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0",
    ),
    "budget in words": (BUDGETS, {"spec": {"minAvailable": "all"}}, "a valid percent string must"),
    "budget above all": (
        BUDGETS,
        {"spec": {"minAvailable": "101%"}},
        "must not be greater than 100%",
    ),
    "budget of a number without an end": (
        BUDGETS,
        {"spec": {"minAvailable": "9" * 5000 + "%"}},
        "a valid percent string must",
    ),
    "no access mode": (
        f"{CORE}/persistentvolumeclaims",
        {"spec": {}},
        "spec.accessModes: Required value: at least 1 access mode is required",
    ),
    "no verbs": (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        {"rules": [{"resources": ["pods"]}]},
        "rules[0].verbs: Required value: verbs must contain at least one value",
    ),
    "no provisioner": (
        "/apis/storage.k8s.io/v1/storageclasses",
        {},
        "provisioner: Required value",
    ),
    "both strategies": (
        "/apis/apps/v1/namespaces/default/deployments",
        {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}},
        "may not be specified when strategy `type` is 'Recreate'",
    ),
    "no progress": (
        "/apis/apps/v1/namespaces/default/deployments",
        {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}},
        "may not be 0 when `maxSurge` is 0",
    ),
    "deadline before readiness": (
        "/apis/apps/v1/namespaces/default/deployments",
        {"spec": {"minReadySeconds": 10, "progressDeadlineSeconds": 5}},
        "must be greater than minReadySeconds",
    ),
    "slice of no node": (
        SLICES,
        {"spec": {"driver": "d.x"}},
        "exactly one of `nodeName`, `nodeSelector`",
    ),
    "slice of two nodes": (
        SLICES,
        {"spec": {"driver": "d.x", "nodeName": "n", "allNodes": True}},
        'spec: Invalid value: "{`nodeName`, `allNodes`}"',
    ),
    "device": (
        SLICES,
        {"spec": {"driver": "d.x", "nodeName": "n", "devices": [{"name": "GPU_0"}]}},
        'spec.devices[0].name: Invalid value: "GPU_0"',
    ),
    "claim of none": (
        CLAIMS,
        asked({"exactly": {"deviceClassName": "c", "count": -1}}),
        "greater than zero",
    ),
    "claim of all and some": (
        CLAIMS,
        asked({"exactly": {"deviceClassName": "c", "allocationMode": "All", "count": 2}}),
        "must not be specified when allocationMode is 'All'",
    ),
    "claim's mode": (
        CLAIMS,
        asked({"exactly": {"deviceClassName": "c", "allocationMode": "Some"}}),
        'Unsupported value: "Some": supported values: "All", "ExactCount"',
    ),
    "claim's class": (
        CLAIMS,
        asked({"exactly": {"deviceClassName": "A_b"}}),
        'exactly.deviceClassName: Invalid value: "A_b"',
    ),
    "claim of nothing": (CLAIMS, asked({}), "one of `exactly` or `firstAvailable` is required"),
    "claim asks twice": (
        CLAIMS,
        asked({"exactly": {"deviceClassName": "c"}}, {"exactly": {"deviceClassName": "c"}}),
        'spec.devices.requests[1]: Duplicate value: "g"',
    ),
    "alternatives twice": (
        CLAIMS,
        asked({"firstAvailable": [{"name": "s", "deviceClassName": "c"}] * 2}),
        'firstAvailable[1]: Duplicate value: "s"',
    ),
    "claim's constraint": (
        CLAIMS,
        {"spec": {"devices": {"constraints": [{"requests": ["x"], "matchAttribute": "d.x/a"}]}}},
        "must be the name of a request in the claim",
    ),
    "claim's selector": (
        CLAIMS,
        asked({"exactly": {"deviceClassName": "c", "selectors": [{}]}}),
        "selectors[0].cel: Required value",
    ),
    "claim's settings": (
        CLAIMS,
        {"spec": {"devices": {"config": [{"opaque": {"parameters": {}}}]}}},
        "config[0].opaque.driver: Required value",
    ),
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
    "autoscaler's most": (
        SCALERS,
        {"spec": {"scaleTargetRef": TARGET}},
        "spec.maxReplicas: Required value: must be set and greater than 0",
    ),
    "autoscaler's negative most": (
        SCALERS,
        {"spec": {"maxReplicas": -1, "scaleTargetRef": TARGET}},
        "spec.maxReplicas: Invalid value: -1: must be greater than or equal to 1",
    ),
    "autoscaler's bounds": (
        SCALERS,
        {"spec": {"minReplicas": 3, "maxReplicas": 2, "scaleTargetRef": TARGET}},
        "must be greater than or equal to `minReplicas`",
    ),
    "autoscaler's least": (
        SCALERS,
        {"spec": {"minReplicas": 0, "maxReplicas": 2, "scaleTargetRef": TARGET}},
        "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
    ),
    "autoscaler's target": (
        SCALERS,
        {"spec": {"maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "web"}}},
        'spec.scaleTargetRef.apiVersion: Invalid value: "": apiVersion must specify API group',
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
    """The refusal has the field and the rule."""

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


def test_a_rollout_may_surge_by_more_than_all() -> None:
    """No more than all pods can be unavailable, but twice as many can be new."""

    async def story(w: World) -> None:
        template = {
            "metadata": {"labels": {"app": "x"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        rollout = {"maxSurge": "200%", "maxUnavailable": "101%"}
        body = {
            "metadata": {"name": "x"},
            "spec": {
                "selector": {"matchLabels": {"app": "x"}},
                "template": template,
                "strategy": {"rollingUpdate": rollout},
            },
        }
        answer = await w.post("/apis/apps/v1/namespaces/default/deployments", body)

        assert answer.code == 422
        assert answer.message.count("must not be greater than 100%") == 1
        rollout["maxUnavailable"] = "100%"
        ok(await w.post("/apis/apps/v1/namespaces/default/deployments", body), 201)

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
        once = {**head, "spec": {"accessModes": ["ReadWriteOnce"]}}
        claim = ok(await w.post(f"{CORE}/persistentvolumeclaims", once), 201)
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


def test_an_event_says_that_its_reporter_is_unknown() -> None:
    """As a genuine server prints it: kubectl refuses to apply what `kubectl get -o yaml` gives without these fields."""

    async def story(w: World) -> None:
        about = {"kind": "Pod", "name": "web", "namespace": "default"}
        event = {"metadata": {"name": "e"}, "involvedObject": about}
        made = ok(await w.post(f"{CORE}/events", event), 201)

        assert (made["reportingComponent"], made["reportingInstance"]) == ("", "")

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


FIXED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "secret's type": (f"{CORE}/secrets", {"type": "a/b"}, {"type": "c/d"}, "field is immutable"),
    "service's address": (
        f"{CORE}/services",
        {"spec": {"ports": [{"port": 1}]}},
        {"spec": {"clusterIP": "10.96.1.1"}},
        "may not change once set",
    ),
    "role": (
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {"roleRef": {"kind": "ClusterRole", "name": "a"}},
        {"roleRef": {"name": "b"}},
        "cannot change roleRef",
    ),
    "slice's node": (
        SLICES,
        {"spec": {"driver": "d.x", "nodeName": "n", "pool": {"name": "n"}}},
        {"spec": {"nodeName": "m"}},
        "spec.nodeName: Invalid value",
    ),
    "provider": (
        "/api/v1/nodes",
        {"spec": {"providerID": "a"}},
        {"spec": {"providerID": "b"}},
        "node updates may not change providerID",
    ),
    "pod's deadline": (
        f"{CORE}/pods",
        {"spec": {"activeDeadlineSeconds": 5, "containers": [{"name": "a", "image": "b"}]}},
        {"spec": {"activeDeadlineSeconds": 6}},
        "must be less than or equal to previous value",
    ),
    "pod without its deadline": (
        f"{CORE}/pods",
        {"spec": {"activeDeadlineSeconds": 5, "containers": [{"name": "a", "image": "b"}]}},
        {"spec": {"activeDeadlineSeconds": None}},
        "must not update from a positive integer to nil value",
    ),
}


@pytest.mark.parametrize(("path", "value", "change", "why"), FIXED.values(), ids=FIXED)
def test_what_may_not_change_stays(
    path: str, value: dict[str, Any], change: dict[str, Any], why: str
) -> None:
    """422 for a patch of it."""

    async def story(w: World) -> None:
        ok(await w.post(path, {"metadata": {"name": "x"}, **value}), 201)

        answer = await w.patch(f"{path}/x", change)

        assert answer.code == 422
        assert why in answer.message

    run(story)


def test_kubectl_finds_what_it_reads_without_looking() -> None:
    """Selectors, protocols and counts that `kubectl describe` takes for granted, and ports of the nodes."""

    async def story(w: World) -> None:
        head = {"metadata": {"name": "x"}}
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
        template["spec"] = {"containers": [{"name": "a", "image": "b"}]}
        once = {"template": {"spec": {**template["spec"], "restartPolicy": "Never"}}}
        batch, slices = "/apis/batch/v1/namespaces/default", "/apis/discovery.k8s.io/v1"
        controller = ok(
            await w.post(
                f"{CORE}/replicationcontrollers", {**head, "spec": {"template": template}}
            ),
            201,
        )
        job = ok(await w.post(f"{batch}/jobs", {**head, "spec": once}), 201)
        later = {"schedule": "@daily", "jobTemplate": {"spec": once}}
        cron = ok(await w.post(f"{batch}/cronjobs", {**head, "spec": later}), 201)
        ends = {"addressType": "IPv4", "endpoints": [{"addresses": ["1.2.3.4"]}], "ports": [{}]}
        slice_ = ok(
            await w.post(f"{slices}/namespaces/default/endpointslices", {**head, **ends}), 201
        )
        policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
        policy = ok(await w.post(policies, {**head, "spec": {"podSelector": {}}}), 201)
        budget = ok(await w.post(BUDGETS, {**head, "spec": {"minAvailable": 1}}), 201)
        spec = {"type": "NodePort", "ports": [{"port": 80}]}
        service = ok(await w.post(f"{CORE}/services", {**head, "spec": spec}), 201)
        table = ok(
            await w.ask(
                "GET", f"{CORE}/services", accept="application/json;as=Table;v=v1;g=meta.k8s.io"
            )
        )

        assert controller["spec"]["selector"] == controller["metadata"]["labels"] == {"a": "b"}
        assert (controller["spec"]["replicas"], controller["status"]) == (1, {"replicas": 0})
        assert job["metadata"]["labels"]["job-name"] == "x"
        assert "completions" not in cron["spec"]["jobTemplate"]["spec"]
        assert slice_["endpoints"][0]["conditions"] == {}
        assert slice_["ports"] == [{"protocol": "TCP"}]
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert budget["status"]["disruptionsAllowed"] == 0
        port = service["spec"]["ports"][0]["nodePort"]
        assert 30000 <= port <= 32767
        assert f"80:{port}/TCP" in table["rows"][0]["cells"]

    run(story)


def test_a_service_has_node_ports_while_its_type_has_them() -> None:
    """A new type gets them and another loses them; those that the change names itself stay."""

    async def story(w: World) -> None:
        body = {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 80}]}}
        ok(await w.post(f"{CORE}/services", body), 201)

        async def port(**spec: Any) -> int | None:
            changed = ok(await w.patch(f"{CORE}/services/x", {"spec": spec}))
            found = changed["spec"]["ports"][0].get("nodePort")
            return None if found is None else int(found)

        first = await port(type="NodePort")
        assert first is not None
        assert 30000 <= first <= 32767
        assert await port(type="LoadBalancer", ports=[{"port": 80}]) == first
        assert await port(type="ClusterIP") is None
        named = [{"port": 80, "nodePort": 30001}]
        assert await port(type="NodePort", ports=named) == 30001

        outside = {
            "metadata": {"name": "y"},
            "spec": {"type": "ExternalName", "externalName": "a"},
        }
        ok(await w.post(f"{CORE}/services", outside), 201)
        inside = {"type": "NodePort", "externalName": None, "ports": [{"port": 80}]}
        changed = ok(await w.patch(f"{CORE}/services/y", {"spec": inside}))["spec"]
        assert changed["clusterIPs"] == [changed["clusterIP"]]
        assert changed["ports"][0]["nodePort"] >= 30000

    run(story)


def test_an_autoscaler_is_stored_and_shown() -> None:
    """It has the defaults of Kubernetes; what it would measure is unknown."""

    async def story(w: World) -> None:
        metrics = [
            {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"averageValue": "9"}}}
        ]
        for name, more in (("plain", {}), ("own", {"metrics": metrics * 3})):
            spec = {"maxReplicas": 2, "scaleTargetRef": TARGET, **more}
            ok(await w.post(SCALERS, {"metadata": {"name": name}, "spec": spec}), 201)

        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        rows = ok(await w.get(SCALERS, accept=accept))["rows"]
        assert [row["cells"][:6] for row in rows] == [
            ["own", "Deployment/web", "<unknown>/9, <unknown>/9 + 1 more...", 1, 2, 0],
            ["plain", "Deployment/web", "cpu: <unknown>/80%", 1, 2, 0],
        ]

    run(story)


def test_one_class_alone_is_the_default() -> None:
    """A second one beside it is refused, at creation and at an update; the default itself may change."""

    async def story(w: World) -> None:
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        first = {"metadata": {"name": "first"}, "value": 1, "globalDefault": True}
        ok(await w.post(path, first), 201)
        ok(await w.post(path, {"metadata": {"name": "other"}, "value": 1}), 201)
        refused = [
            await w.post(path, {**first, "metadata": {"name": "second"}}),
            await w.patch(f"{path}/other", {"globalDefault": True}),
        ]

        why = "PriorityClass first is already marked as default. Only one default can exist"
        assert [(one.code, why in one.message) for one in refused] == [(403, True)] * 2
        ok(await w.patch(f"{path}/first", {"description": "of mine"}))

    run(story)


def test_critical_classes_are_there() -> None:
    """Every cluster has them; a deleted one is gone."""

    async def story(w: World) -> None:
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        items = ok(await w.get(path))["items"]

        assert {one["metadata"]["name"]: one["value"] for one in items} == {
            "system-cluster-critical": 2_000_000_000,
            "system-node-critical": 2_000_001_000,
        }

    run(story)

"""What the server fills into pods and workloads, and what it refuses in them."""

import time
from typing import Any

import pytest
from apiserver_world import PODS, World, deployment, ok, pod, run, sized

from partage.apiserver import Settings
from partage.apiserver.rules.pods import quality


def container(**fields: Any) -> dict[str, Any]:
    """A pod whose one container has these fields too."""
    return pod(containers=[{"name": "main", "image": "busybox", **fields}])


def test_a_pod_is_completed() -> None:
    """Defaults, tolerations, priority and service account, as every cluster adds them."""

    async def story(w: World) -> None:
        probe = {"httpGet": {"port": 80}}
        spec = pod(
            hostNetwork=True,
            containers=[
                {
                    "name": "main",
                    "image": "registry:5000/app:v1",
                    "ports": [{"containerPort": 80}],
                    "livenessProbe": probe,
                    "env": [
                        {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
                    ],
                }
            ],
            volumes=[
                {"name": "e"},
                {"name": "c", "configMap": {"name": "x"}},
                {"name": "h", "hostPath": {"path": "/x"}},
                {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            ],
            serviceAccount="default",
        )

        found = ok(await w.post(PODS, spec), 201)["spec"]

        main = found["containers"][0]
        assert main["imagePullPolicy"] == "IfNotPresent"
        assert main["ports"] == [{"containerPort": 80, "protocol": "TCP", "hostPort": 80}]
        assert main["livenessProbe"]["httpGet"] == {"port": 80, "path": "/", "scheme": "HTTP"}
        assert main["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
        assert main["resources"] == {}
        assert [max(v) for v in found["volumes"]] == [
            "name",
            "name",
            "name",
            "projected",
        ]
        assert found["volumes"][0]["emptyDir"] == {}
        assert found["volumes"][1]["configMap"]["defaultMode"] == 420
        assert found["serviceAccountName"] == "default"
        assert (found["schedulerName"], found["restartPolicy"]) == ("default-scheduler", "Always")
        assert (found["priority"], found["preemptionPolicy"]) == (0, "PreemptLowerPriority")
        assert [t["key"] for t in found["tolerations"]] == [
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
        ]

    run(story)


IMAGES = {"a": "Always", "a:latest": "Always", "a:1": "IfNotPresent", "a@sha256:0": "IfNotPresent"}


@pytest.mark.parametrize("image", IMAGES)
def test_the_pull_policy_follows_the_tag(image: str) -> None:
    """Moving tags are pulled always."""

    async def story(w: World) -> None:
        found = ok(await w.post(PODS, container(image=image)), 201)

        assert found["spec"]["containers"][0]["imagePullPolicy"] == IMAGES[image]

    run(story)


PRIORITIES = {
    "named": ({"priorityClassName": "high"}, (1000, "high")),
    "system": ({"priorityClassName": "system-node-critical"}, (2_000_001_000, None)),
    "default": ({}, (5, "usual")),
    "given and right": ({"priorityClassName": "high", "priority": 1000}, (1000, "high")),
    "given and wrong": ({"priority": 3}, "the integer value of priority (3) must not be provided"),
    "unknown": ({"priorityClassName": "none"}, "no PriorityClass with name none was found"),
}


@pytest.mark.parametrize(("spec", "outcome"), PRIORITIES.values(), ids=PRIORITIES)
def test_priority_comes_from_the_class(spec: dict[str, Any], outcome: Any) -> None:
    """It is named, or the cluster's default; it never comes from the pod itself."""

    async def story(w: World) -> None:
        classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
        for name, value, usual in (("high", 1000, False), ("usual", 5, True)):
            body = {"metadata": {"name": name}, "value": value, "globalDefault": usual}
            ok(await w.post(classes, body), 201)

        answer = await w.post(PODS, pod(**spec))

        if isinstance(outcome, str):
            assert answer.code == 403
            assert outcome in answer.message
        else:
            assert answer.body["spec"]["priority"] == outcome[0]
            if outcome[1]:
                assert answer.body["spec"]["priorityClassName"] == outcome[1]

    run(story)


AMOUNTS: dict[str, tuple[Any, Any, str]] = {
    "limits alone": ({"nvidia.com/gpu": 2}, None, ""),
    "equal": ({"e.com/x": "1"}, {"e.com/x": 1}, ""),
    "native requests alone": (None, {"kubernetes.io/gpu-core": "100"}, ""),
    "native below its limit": ({"kubernetes.io/gpu": "200"}, {"kubernetes.io/gpu": "100"}, ""),
    "native fraction": (None, {"kubernetes.io/gpu": "500m"}, ""),
    "native in a subdomain": (None, {"x.kubernetes.io/y": "1"}, ""),
    "cpu burst": ({"cpu": 2}, {"cpu": "500m"}, ""),
    "extended requests alone": (
        None,
        {"nvidia.com/gpu": "100"},
        "resources.limits: Required value: Limit must be set for non overcommitable",
    ),
    "extended unequal": (
        {"e.com/x": 2},
        {"e.com/x": 1},
        'resources.requests: Invalid value: "1": must be equal to e.com/x limit of 2',
    ),
    "extended fraction": ({"e.com/x": "500m"}, None, "must be an integer"),
    "negative": ({"cpu": "-1"}, None, "must be greater than or equal to 0"),
    "above its limit": (
        {"cpu": 1},
        {"cpu": 2},
        'resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
    ),
    "unknown standard": ({"gpu": 1}, None, "must be a standard resource type or fully qualified"),
    "not for containers": ({"pods": 1}, None, "must be a standard resource for containers"),
    "quota name": ({"requests.e.com/x": 1}, None, "doesn't follow extended resource name"),
    "malformed name": ({"e.com/-x": 1}, None, "name part must consist of alphanumeric"),
}


@pytest.mark.parametrize(("limits", "requests", "why"), AMOUNTS.values(), ids=AMOUNTS)
def test_resources_are_judged_as_upstream(limits: Any, requests: Any, why: str) -> None:
    """Extended resources are strict, `kubernetes.io/*` names are native and are not."""

    async def story(w: World) -> None:
        answer = await w.post(PODS, sized(limits, requests))

        assert answer.code == (422 if why else 201), answer.body
        if why:
            assert why in answer.message
        else:
            have = answer.body["spec"]["containers"][0]["resources"]
            assert set(have["requests"]) == {*(limits or {}), *(requests or {})}

    run(story)


def test_quantities_are_stored_in_canonical_form() -> None:
    """Numbers become texts; a malformed quantity is refused."""

    async def story(w: World) -> None:
        made = ok(await w.post(PODS, sized({"cpu": 0.5, "memory": "1024Mi"})), 201)
        wrong = await w.post(PODS, sized({"cpu": "two"}))

        assert made["spec"]["containers"][0]["resources"]["limits"] == {
            "cpu": "500m",
            "memory": "1Gi",
        }
        assert wrong.code == 400
        assert "quantities must match the regular expression" in wrong.message

    run(story)


C = "spec.containers[0]"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no containers": (pod(containers=[]), "spec.containers: Required value"),
    "no name": (container(name=""), f"{C}.name: Required value"),
    "bad name": (container(name="A"), "a lowercase RFC 1123 label must consist of"),
    "no image": (container(image=""), f"{C}.image: Required value"),
    "blank image": (container(image=" a"), "must not have leading or trailing whitespace"),
    "pull policy": (
        container(imagePullPolicy="Often"),
        'Unsupported value: "Often": supported values: "Always", "IfNotPresent", "Never"',
    ),
    "same name": (
        pod(containers=[{"name": "a", "image": "x"}] * 2),
        'spec.containers[1].name: Duplicate value: "a"',
    ),
    "init restart": (
        pod(initContainers=[{"name": "i", "image": "x", "restartPolicy": "Maybe"}]),
        'Unsupported value: "Maybe": supported values: "Always", "Never", "OnFailure"',
    ),
    "restart": (pod(restartPolicy="Maybe"), "spec.restartPolicy: Unsupported value"),
    "dns": (pod(dnsPolicy="X"), "spec.dnsPolicy: Unsupported value"),
    "init probe": (
        pod(
            initContainers=[
                {"name": "i", "image": "x", "readinessProbe": {"exec": {"command": ["a"]}}}
            ]
        ),
        "may not be set for init containers without restartPolicy=Always",
    ),
    "probe's command": (container(livenessProbe={"exec": {}}), "exec.command: Required value"),
    "probe's successes": (
        container(livenessProbe={"httpGet": {"port": 1}, "successThreshold": 2}),
        "successThreshold: Invalid value: 2: must be 1",
    ),
    "no dns": (pod(dnsPolicy="None"), "spec.dnsConfig: Required value"),
    "for debugging": (
        pod(ephemeralContainers=[{"name": "e", "image": "x"}]),
        "spec.ephemeralContainers: Forbidden: cannot be set on create",
    ),
    "preemption": (
        pod(preemptionPolicy="Never"),
        "computed PreemptLowerPriority from the given PriorityClass name",
    ),
    "hostname": (
        pod(hostname="a.b"),
        'spec.hostname: Invalid value: "a.b": must not contain dots',
    ),
    "user": (
        pod(securityContext={"runAsUser": -1}),
        "must be between 0 and 2147483647, inclusive",
    ),
    "port's name": (
        container(ports=[{"containerPort": 1, "name": "A_name_too_long_"}]),
        "must be no more than 15 characters",
    ),
    "port without a letter": (
        container(ports=[{"containerPort": 1, "name": "1"}]),
        "must contain at least one letter (a-z)",
    ),
    "port of two hyphens": (
        container(ports=[{"containerPort": 1, "name": "a--b-"}]),
        "must not contain consecutive hyphens",
    ),
    "host's port twice": (
        container(
            ports=[{"containerPort": 1, "hostPort": 5}, {"containerPort": 2, "hostPort": 5}]
        ),
        'ports[1].hostPort: Duplicate value: "TCP//5"',
    ),
    "host's network": (
        pod(
            hostNetwork=True,
            containers=[
                {"name": "a", "image": "x", "ports": [{"containerPort": 1, "hostPort": 2}]}
            ],
        ),
        "must match `containerPort` when `hostNetwork` is true",
    ),
    "pod's own devices": (
        pod(resources={"limits": {"nvidia.com/gpu": 1}}),
        "spec.resources.limits[nvidia.com/gpu]: Unsupported value",
    ),
    "huge pages alone": (
        container(resources={"limits": {"hugepages-2Mi": "4Mi"}}),
        "HugePages require cpu or memory",
    ),
    "unknown claim": (
        container(resources={"claims": [{"name": "card"}]}),
        'claims[0]: Not found: "card": must be one of the names in pod.spec.resourceClaims which is',
    ),
    "claims twice": (
        pod(resourceClaims=[{"name": "c", "resourceClaimName": "x"}] * 2),
        'spec.resourceClaims[1].name: Duplicate value: "c"',
    ),
    "claim from nowhere": (
        pod(resourceClaims=[{"name": "c"}]),
        "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
    ),
    "claim from both": (
        pod(
            resourceClaims=[
                {"name": "c", "resourceClaimName": "x", "resourceClaimTemplateName": "y"}
            ]
        ),
        "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
    ),
    "container's claim twice": (
        pod(
            resourceClaims=[{"name": "c", "resourceClaimName": "x"}],
            containers=[{"name": "a", "image": "x", "resources": {"claims": [{"name": "c"}] * 2}}],
        ),
        'claims[1]: Duplicate value: "c"',
    ),
    "spread": (
        pod(topologySpreadConstraints=[{"topologyKey": "z", "whenUnsatisfiable": "X"}]),
        "maxSkew: Invalid value: 0: must be greater than zero",
    ),
    "spread twice": (
        pod(
            topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}
            ]
            * 2
        ),
        'Duplicate value: "{z, DoNotSchedule}"',
    ),
    "neighbours": (
        pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        "topologyKey: Required value: can not be empty",
    ),
    "wanted neighbours": (
        pod(
            affinity={
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101}]
                }
            }
        ),
        "weight: Invalid value: 101: must be in the range 1-100",
    ),
    "deadline": (pod(activeDeadlineSeconds=0), "must be between 1 and 2147483647, inclusive"),
    "node name": (pod(nodeName="N_1"), "spec.nodeName: Invalid value"),
    "port": (container(ports=[{"containerPort": 70000}]), "must be between 1 and 65535"),
    "no port": (container(ports=[{}]), "containerPort: Required value"),
    "protocol": (
        container(ports=[{"containerPort": 1, "protocol": "X"}]),
        "protocol: Unsupported value",
    ),
    "port names": (
        container(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
        "ports[1].name: Duplicate value",
    ),
    "env name": (container(env=[{"name": "A=B"}]), "a valid environment variable name"),
    "env no name": (container(env=[{"value": "x"}]), "env[0].name: Required value"),
    "env twice": (
        container(
            env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
        ),
        "may not be specified when `value` is not empty",
    ),
    "env from nothing": (container(env=[{"name": "A", "valueFrom": {}}]), "must specify one of"),
    "mount": (
        container(volumeMounts=[{"name": "v", "mountPath": "/v"}]),
        'volumeMounts[0].name: Not found: "v"',
    ),
    "mount nothing": (container(volumeMounts=[{}]), "volumeMounts[0].mountPath: Required value"),
    "probe": (container(livenessProbe={}), "must specify a handler type"),
    "two probes": (
        container(livenessProbe={"exec": {"command": ["x"]}, "tcpSocket": {"port": 1}}),
        "may not specify more than 1 handler type",
    ),
    "probe time": (
        container(livenessProbe={"exec": {"command": ["x"]}, "timeoutSeconds": -1}),
        "timeoutSeconds: Invalid value",
    ),
    "volume twice": (pod(volumes=[{"name": "v"}, {"name": "v"}]), "Duplicate value"),
    "volume no name": (pod(volumes=[{"emptyDir": {}}]), "volumes[0].name: Required value"),
    "volume name": (pod(volumes=[{"name": "V"}]), "volumes[0].name: Invalid value"),
    "two sources": (
        pod(volumes=[{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]),
        "may not specify more than 1 volume type",
    ),
    "no path": (pod(volumes=[{"name": "v", "hostPath": {}}]), "hostPath.path: Required value"),
    "no map": (pod(volumes=[{"name": "v", "configMap": {}}]), "configMap.name: Required value"),
    "no secret": (pod(volumes=[{"name": "v", "secret": {}}]), "secretName: Required value"),
    "toleration operator": (
        pod(tolerations=[{"key": "a", "operator": "Like"}]),
        "operator: Unsupported value",
    ),
    "toleration of all": (pod(tolerations=[{"value": "a"}]), "operator must be Exists when `key`"),
    "toleration value": (
        pod(tolerations=[{"key": "a", "operator": "Exists", "value": "x"}]),
        "value must be empty when `operator` is 'Exists'",
    ),
    "toleration effect": (pod(tolerations=[{"key": "a", "effect": "X"}]), "Unsupported value"),
    "toleration key": (pod(tolerations=[{"key": "-"}]), "tolerations[0].key: Invalid value"),
    "toleration seconds": (
        pod(tolerations=[{"key": "a", "tolerationSeconds": 1}]),
        "effect must be 'NoExecute' when `tolerationSeconds` is set",
    ),
    "gate": (pod(schedulingGates=[{"name": "-"}]), "schedulingGates[0]: Invalid value"),
    "gates": (pod(schedulingGates=[{"name": "a"}] * 2), "schedulingGates[1]: Duplicate value"),
    "gated on a node": (
        pod(nodeName="n", schedulingGates=[{"name": "a"}]),
        "cannot be set until all schedulingGates have been cleared",
    ),
    "node selector": (pod(nodeSelector={"-": "x"}), "spec.nodeSelector: Invalid value"),
    "service account": (pod(serviceAccountName="nobody"), "error looking up service account"),
}


@pytest.mark.parametrize(("value", "why"), REFUSED.values(), ids=REFUSED)
def test_malformed_pods_are_refused(value: dict[str, Any], why: str) -> None:
    """The refusal has the field and the rule."""

    async def story(w: World) -> None:
        answer = await w.post(PODS, value)

        assert answer.code in (403, 422)
        assert why in answer.message

    run(story)


def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
    """A pod that requires nodes by expressions."""
    terms = [{"matchExpressions": list(expressions)}] if expressions else []
    hard = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return pod(affinity={"nodeAffinity": hard})


AFFINITY = {
    "no terms": (affinity(), "must have at least one node selector term"),
    "operator": (affinity({"key": "a", "operator": "Near"}), "not a valid selector operator"),
    "in nothing": (
        affinity({"key": "a", "operator": "In"}),
        "must be specified when `operator` is",
    ),
    "exists value": (
        affinity({"key": "a", "operator": "Exists", "values": ["x"]}),
        "may not be specified when `operator` is 'Exists'",
    ),
    "gt two": (
        affinity({"key": "a", "operator": "Gt", "values": ["1", "2"]}),
        "must be specified single value",
    ),
    "weight": (
        pod(
            affinity={
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 0, "preference": {}}
                    ]
                }
            }
        ),
        "must be in the range 1-100",
    ),
}


@pytest.mark.parametrize(("value", "why"), AFFINITY.values(), ids=AFFINITY)
def test_malformed_affinity_is_refused(value: dict[str, Any], why: str) -> None:
    """The refusal has the field and the rule."""

    async def story(w: World) -> None:
        answer = await w.post(PODS, value)

        assert answer.code == 422
        assert why in answer.message

    run(story)


def test_metaxs_name_needs_relaxed_names() -> None:
    """Upper case in a pod's name is refused, unless the server is set to let it pass."""

    async def genuine(w: World) -> None:
        assert (await w.post(PODS, pod("test-metax-sGPU"))).code == 422

    async def relaxed(w: World) -> None:
        ok(await w.post(PODS, pod("test-metax-sGPU")), 201)
        assert (await w.get(f"{PODS}/test-metax-sGPU")).code == 200
        assert (await w.post(PODS, pod("a_b"))).code == 422
        ok(await w.post("/api/v1/nodes", {"metadata": {"name": "MIG-NODE-A"}}), 201)
        path = f"{PODS}/test-metax-sGPU/binding"
        ok(await w.post(path, {"target": {"name": "MIG-NODE-A"}}), 201)

    run(genuine)
    run(relaxed, Settings(relaxed_names=True))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"containers": [{"name": "main", "image": "new"}]}, ""),
    "toleration added": ({"tolerations": [{"key": "x", "operator": "Exists"}]}, "added"),
    "scheduler": ({"schedulerName": "other"}, "pod updates may not change fields other than"),
    "node": ({"nodeName": "n9"}, "pod updates may not change fields other than"),
    "container": ({"containers": [{"name": "x", "image": "y"}]}, "may not add or remove"),
    "gate": (
        {"schedulingGates": [{"name": "a"}]},
        "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new",
    ),
}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_a_pods_spec_hardly_changes(change: dict[str, Any], why: str) -> None:
    """Images and additional tolerations do; the rest is fixed."""

    async def story(w: World) -> None:
        made = ok(await w.post(PODS, pod()), 201)
        if why == "added":
            change["tolerations"] = [*made["spec"]["tolerations"], *change["tolerations"]]

        answer = await w.patch(
            f"{PODS}/web", {"spec": change}, "application/strategic-merge-patch+json"
        )

        assert answer.code == (422 if why not in ("", "added") else 200), answer.body
        assert why in answer.message or why == "added"

    run(story)


def test_gated_pods_may_still_move_and_be_let_go() -> None:
    """Node selectors change while a gate is there; gates can be removed, tolerations cannot."""

    async def story(w: World) -> None:
        mine = [{"key": "mine", "operator": "Exists"}]
        gated = pod(schedulingGates=[{"name": "a"}], tolerations=mine)
        made = ok(await w.post(PODS, gated), 201)
        moved = ok(await w.patch(f"{PODS}/web", {"spec": {"nodeSelector": {"a": "b"}}}))
        free = ok(await w.patch(f"{PODS}/web", {"spec": {"schedulingGates": None}}))
        less = await w.patch(f"{PODS}/web", {"spec": {"tolerations": []}})

        assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
        assert moved["spec"]["nodeSelector"] == {"a": "b"}
        assert "schedulingGates" not in free["spec"]
        assert "existing toleration can not be modified" in less.message

    run(story)


def test_a_label_of_a_pod_with_many_tolerations_is_changed_at_once() -> None:
    """With 3 MB of them that took minutes; only their seconds may change."""

    async def story(w: World) -> None:
        many = [
            {"key": f"k{i}", "operator": "Exists", "effect": "NoExecute"} for i in range(20_000)
        ]
        ok(await w.post(PODS, pod(tolerations=many)), 201)
        started = time.process_time()
        ok(await w.patch(f"{PODS}/web", {"metadata": {"labels": {"a": "b"}}}))
        assert time.process_time() - started < 4

        many[7]["tolerationSeconds"] = 5
        longer = ok(await w.patch(f"{PODS}/web", {"spec": {"tolerations": many}}))
        assert longer["spec"]["tolerations"][7]["tolerationSeconds"] == 5
        many[7]["key"] = "other"
        answer = await w.patch(f"{PODS}/web", {"spec": {"tolerations": many}})
        assert "existing toleration can not be modified" in answer.message

    run(story)


QUALITIES: dict[str, tuple[Any, Any, str]] = {
    "nothing": ({}, {}, "BestEffort"),
    "devices alone": ({"e.com/x": "1"}, {"e.com/x": "1"}, "BestEffort"),
    "equal": ({"cpu": "1", "memory": "1"}, {"cpu": "1", "memory": "1"}, "Guaranteed"),
    "one of two": ({"cpu": "1"}, {"cpu": "1"}, "Burstable"),
    "less": ({"cpu": "2", "memory": "1"}, {"cpu": "1", "memory": "1"}, "Burstable"),
}


@pytest.mark.parametrize(("limits", "requests", "name"), QUALITIES.values(), ids=QUALITIES)
def test_quality_of_service(limits: Any, requests: Any, name: str) -> None:
    """CPU and memory alone decide it."""
    one = {"resources": {"limits": limits, "requests": requests}}

    assert quality({"containers": [one]}) == name


APPS = "/apis/apps/v1/namespaces/default"


def changed(**spec: Any) -> dict[str, Any]:
    """A deployment with other fields in its spec."""
    value = deployment()
    return {**value, "spec": {**value["spec"], **spec}}


WORKLOADS = {
    "no selector": (changed(selector=None), "spec.selector: Required value"),
    "empty selector": (changed(selector={}), "empty selector is invalid for deployment"),
    "other labels": (
        changed(selector={"matchLabels": {"a": "b"}}),
        "`selector` does not match template `labels`",
    ),
    "replicas": (changed(replicas=-1), "must be greater than or equal to 0"),
    "no template": (changed(template={}), "spec.template.spec.containers: Required value"),
}


@pytest.mark.parametrize(("value", "why"), WORKLOADS.values(), ids=WORKLOADS)
def test_malformed_workloads_are_refused(value: dict[str, Any], why: str) -> None:
    """The refusal has the field and the rule."""

    async def story(w: World) -> None:
        answer = await w.post(f"{APPS}/deployments", value)

        assert answer.code == 422
        assert why in answer.message

    run(story)


def test_workloads_are_completed_and_keep_their_selector() -> None:
    """All four kinds get their defaults; a selector never changes."""

    async def story(w: World) -> None:
        spec = {**deployment()["spec"]}
        spec.pop("replicas")
        for plural, kind in (
            ("deployments", "Deployment"),
            ("replicasets", "ReplicaSet"),
            ("statefulsets", "StatefulSet"),
            ("daemonsets", "DaemonSet"),
        ):
            body = {"kind": kind, "apiVersion": "apps/v1", "metadata": {"name": "w"}, "spec": spec}
            made = ok(await w.post(f"{APPS}/{plural}", body), 201)
            if kind != "DaemonSet":
                assert made["spec"]["replicas"] == 1
            assert made["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirst"
            made["spec"]["selector"] = {"matchLabels": {"app": "web", "x": "y"}}
            made["spec"]["template"]["metadata"]["labels"]["x"] = "y"
            answer = await w.put(f"{APPS}/{plural}/w", made)
            assert (
                "updates to statefulset spec for fields other than 'replicas'"
                if kind == "StatefulSet"
                else "spec.selector: Invalid value"
            ) in answer.message

    run(story)


def test_defaults_hold_wherever_their_struct_stands() -> None:
    """A field in a volume, a hook's request, a container's claim, one that a set makes: as a genuine server does."""

    async def story(w: World) -> None:
        files = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
        hook = {"preStop": {"httpGet": {"port": 80}}}
        hooked = {"name": "main", "image": "busybox", "lifecycle": hook}
        volume = {"name": "v", "downwardAPI": {"items": files}}
        claiming = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": "card"}]}}
        claimed = [{"name": "card", "resourceClaimName": "one-card"}]
        both = [hooked, claiming]
        new = pod(volumes=[volume], containers=both, resourceClaims=claimed)
        made = ok(await w.post(PODS, new), 201)["spec"]
        claim = {"metadata": {"name": "d"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
        stateful = {
            "metadata": {"name": "s"},
            "spec": {**deployment()["spec"], "volumeClaimTemplates": [claim]},
        }
        claims = ok(await w.post(f"{APPS}/statefulsets", stateful), 201)["spec"]

        source = made["volumes"][0]["downwardAPI"]
        assert source["items"][0]["fieldRef"]["apiVersion"] == "v1"
        request = made["containers"][0]["lifecycle"]["preStop"]["httpGet"]
        assert request == {"port": 80, "path": "/", "scheme": "HTTP"}
        assert made["containers"][1]["resources"]["claims"] == [{"name": "card"}]
        assert claims["volumeClaimTemplates"][0]["spec"]["volumeMode"] == "Filesystem"

    run(story)


def test_jobs_own_their_pods_by_uid() -> None:
    """The selector is the server's; restartPolicy is compulsory; the template is fixed."""

    async def story(w: World) -> None:
        jobs = "/apis/batch/v1/namespaces/default/jobs"
        inner = {"containers": [{"name": "a", "image": "b"}]}

        def job(name: str, **spec: Any) -> dict[str, Any]:
            return {"metadata": {"name": name}, "spec": {"template": {"spec": {**inner, **spec}}}}

        missing = await w.post(jobs, job("j"))
        always = await w.post(jobs, job("j", restartPolicy="Always"))
        made = ok(await w.post(jobs, job("j", restartPolicy="Never")), 201)
        made["spec"]["template"]["spec"]["priority"] = 3
        fixed = await w.put(f"{jobs}/j", made)
        cron = "/apis/batch/v1/namespaces/default/cronjobs"
        planned = {"jobTemplate": {"spec": job("j", restartPolicy="Never")["spec"]}}
        timeless = await w.post(cron, {"metadata": {"name": "c"}, "spec": planned})
        odd = await w.post(
            cron, {"metadata": {"name": "c"}, "spec": {"schedule": "now", "jobTemplate": {}}}
        )

        assert 'Required value: valid values: "OnFailure", "Never"' in missing.message
        assert "Unsupported value" in always.message
        uid = made["metadata"]["uid"]
        assert made["spec"]["selector"]["matchLabels"] == {
            "batch.kubernetes.io/controller-uid": uid
        }
        assert made["spec"]["template"]["metadata"]["labels"]["job-name"] == "j"
        assert "spec.template: Invalid value" in fixed.message
        assert "spec.schedule: Required value" in timeless.message
        assert "expected exactly 5 fields" in odd.message

    run(story)

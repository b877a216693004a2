"""The author of an object that `partage up` stores and no part of it acts on gets a warning when it is stored."""

from typing import Any

from up_world import PODS, World, node, pod, run, running

from partage.apiserver.builtin import kinds
from partage.apiserver.kinds import Kind
from partage.embedded.admitting import UNACTED
from partage.embedded.manifests import Manifest

ACTED_ON = {
    "nodes": "agents, the scheduler",
    "pods": "the kubelet, the scheduler",
    "namespaces": "the API server",
    "events": "their readers; old ones are deleted",
    "configmaps": "the scheduler reads those of HAMi and its like",
    "secrets": "their readers",
    "serviceaccounts": "pods name them",
    "resourcequotas": "the API server",
    "deployments.apps": "workloads",
    "replicasets.apps": "workloads",
    "statefulsets.apps": "workloads",
    "jobs.batch": "workloads",
    "leases.coordination.k8s.io": "their readers",
    "priorityclasses.scheduling.k8s.io": "the API server",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": "the API server",
    "validatingwebhookconfigurations.admissionregistration.k8s.io": "the API server",
    "customresourcedefinitions.apiextensions.k8s.io": "the API server",
    "resourceclaims.resource.k8s.io": "claim_places",
    "resourceclaimtemplates.resource.k8s.io": "claim_lives",
    "deviceclasses.resource.k8s.io": "claim_places",
    "resourceslices.resource.k8s.io": "claim_slices",
}
"""The parts that act on the other kinds, or the clients for which they are kept."""

SELECTOR = {"matchLabels": {"app": "web"}}
TEMPLATE = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main", "image": "busybox"}]},
}
ONCE = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}
ROLE = {"apiGroup": "rbac.authorization.k8s.io", "name": "r"}
BODIES: dict[str, dict[str, Any]] = {
    "controllerrevisions.apps": {"revision": 1, "data": {}},
    "cronjobs.batch": {
        "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": ONCE}}}
    },
    "daemonsets.apps": {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
    "replicationcontrollers": {"spec": {"selector": {"app": "web"}, "template": TEMPLATE}},
    "endpointslices.discovery.k8s.io": {"addressType": "IPv4", "endpoints": []},
    "ingressclasses.networking.k8s.io": {"spec": {"controller": "example.com/c"}},
    "ingresses.networking.k8s.io": {
        "spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}
    },
    "networkpolicies.networking.k8s.io": {"spec": {"podSelector": {}}},
    "services": {"spec": {"ports": [{"port": 80}]}},
    "persistentvolumeclaims": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    },
    "persistentvolumes": {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/x"},
        }
    },
    "storageclasses.storage.k8s.io": {"provisioner": "example.com/p"},
    "clusterrolebindings.rbac.authorization.k8s.io": {"roleRef": {**ROLE, "kind": "ClusterRole"}},
    "rolebindings.rbac.authorization.k8s.io": {"roleRef": {**ROLE, "kind": "Role"}},
    "horizontalpodautoscalers.autoscaling": {
        "spec": {
            "maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        }
    },
    "limitranges": {"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}},
    "poddisruptionbudgets.policy": {"spec": {"minAvailable": 1, "selector": SELECTOR}},
    "runtimeclasses.node.k8s.io": {"handler": "h"},
    "validatingadmissionpolicies.admissionregistration.k8s.io": {
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["configmaps"],
                    }
                ]
            },
            "validations": [{"expression": "true"}],
        }
    },
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": {
        "spec": {"policyName": "p", "validationActions": ["Deny"]}
    },
}


def path_of(kind: Kind) -> str:
    """Where objects of a kind are created."""
    root = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
    return (
        f"{root}/namespaces/default/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"
    )


async def warned(w: World, method: str, path: str, body: dict[str, Any]) -> list[str]:
    """The warnings of an answer, which must be a good one."""
    merge = method == "PATCH"
    head = {"Content-Type": "application/merge-patch+json"} if merge else {}
    url = w.cluster.addresses.api + path
    async with w.http.request(method, url, json=body, headers=head) as answer:
        assert answer.status in (200, 201), await answer.text()
        return answer.headers.getall("Warning", [])


def test_every_kind_is_acted_on_or_told() -> None:
    """A kind that is served for the first time belongs on one of the two lists."""
    stored = {kind.resource for kind in kinds() if kind.verbs != ("create",)}

    assert stored == set(UNACTED) | set(ACTED_ON)
    assert not set(UNACTED) & set(ACTED_ON)


def test_the_author_of_what_nothing_acts_on_is_warned() -> None:
    """Creation and update bring the warning; what something acts on brings none."""

    async def story() -> None:
        async with running([node()]) as w:
            for kind in kinds():
                if kind.resource not in UNACTED:
                    continue
                body = {
                    "apiVersion": kind.api_version,
                    "kind": kind.kind,
                    "metadata": {"name": kind.version},
                    **BODIES.get(kind.resource, {}),
                }
                said = f" {kind.kind} and nothing acts on it"
                first = await warned(w, "POST", path_of(kind), body)
                assert [said in one for one in first].count(True) == 1, (kind.resource, first)
                label = {"metadata": {"labels": {"a": "b"}}}
                again = await warned(w, "PATCH", f"{path_of(kind)}/{kind.version}", label)
                assert [said in one for one in again].count(True) == 1, (kind.resource, again)
            settings = {"metadata": {"name": "it"}}
            assert not await warned(w, "POST", "/api/v1/namespaces/default/configmaps", settings)

    run(story())


def test_the_definition_that_qgpus_page_keeps_is_kept() -> None:
    """GPU objects of old versions are stored and read; each write and read has a warning that they are out of use."""
    path = "/apis/elasticgpu.io/v1alpha1/gpus"
    card = {
        "apiVersion": "elasticgpu.io/v1alpha1",
        "kind": "GPU",
        "metadata": {"name": "n0-00", "labels": {"elasticgpu.io/node": "n0"}},
        "spec": {"index": 0, "uuid": "GPU-0", "model": "T4", "memory": 1, "nodeName": "n0"},
    }

    async def story() -> None:
        async with running([node()]) as w:
            (said,) = await warned(w, "POST", path, card)
            assert "kept for old versions of qGPU; Partage does not read it" in said
            found = await w.get(f"{path}/n0-00")
            assert found["spec"] == card["spec"]
            body = {"status": {"state": "Healthy"}}
            (_said,) = await warned(w, "PATCH", f"{path}/n0-00/status", body)

    run(story())


def test_a_pod_with_a_claim_of_a_volume_that_is_not_there_is_warned_of() -> None:
    """It runs all the same; one whose claim is there gets no such warning."""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}

    async def story() -> None:
        async with running([node()]) as w:
            (told,) = await warned(w, "POST", PODS, pod("early", volumes=[volume]))
            assert 'persistentvolumeclaim \\"data\\" not found' in told
            await w.phase("early", "Running")
            claim = {"metadata": {"name": "data"}, **BODIES["persistentvolumeclaims"]}
            await w.create("/api/v1/namespaces/default/persistentvolumeclaims", claim)
            assert not await warned(w, "POST", PODS, pod("late", volumes=[volume]))

    run(story())


def test_manifests_that_nothing_acts_on_are_noted() -> None:
    """A note on each of those of `-f`, with the outcome of the others."""
    value = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "closed"},
        "spec": {"podSelector": {}},
    }

    async def story() -> None:
        async with running([node()], [Manifest("policy.yaml", value)]) as w:
            (note,) = w.cluster.outcome.notes
            assert note.startswith("policy.yaml: partage up stores a NetworkPolicy and nothing")

    run(story())

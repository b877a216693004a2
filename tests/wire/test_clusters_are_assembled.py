"""All documents together: which object replaces which, what workloads make, which quotas hold."""

from typing import Any

import pytest
from manifests import Manifest, cluster, config_map, container, device, documents, node, pod

from partage.model.errors import InvalidDocument
from partage.model.pod import Pod
from partage.scheduler.events import Quota


def workload(
    kind: str = "Deployment", name: str = "web", meta: Manifest | None = None, **spec: Any
) -> Manifest:
    """A workload whose pods ask for half a card."""
    group = {"Job": "batch/v1"}.get(kind, "apps/v1")
    template = {
        "metadata": {"labels": {"app": name}, "name": "ignored"},
        "spec": {"containers": [container(limits={"koordinator.sh/gpu": 50})]},
    }
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": name, "namespace": "ml", **(meta or {})},
        "spec": {"template": template, **spec},
    }


def owned(by: str, name: str, kind: str = "ReplicaSet") -> Manifest:
    """Metadata of an object that a controller made."""
    return {
        "namespace": "ml",
        "ownerReferences": [
            {"kind": kind, "name": by, "controller": True},
            {"kind": "X", "name": name},
        ],
    }


def job(**status: object) -> Manifest:
    """A Job of five pods, four at a time."""
    return {**workload("Job", parallelism=4, completions=5), "status": status}


def pods(*manifests: Manifest) -> list[Pod]:
    """The pods of these manifests."""
    return [translated.pod for translated in cluster(*manifests).pods]


@pytest.mark.parametrize(
    ("manifest", "count"),
    [
        pytest.param(workload(), 1, id="one by default"),
        pytest.param(workload(replicas=3), 3, id="replicas"),
        pytest.param(workload(replicas=0), 0, id="none"),
        pytest.param(workload("ReplicaSet", replicas=2), 2, id="ReplicaSet"),
        pytest.param(workload("StatefulSet", replicas=2), 2, id="StatefulSet"),
        pytest.param(workload("Job"), 1, id="Job"),
        pytest.param(workload("Job", parallelism=4), 4, id="parallelism"),
        pytest.param(workload("Job", parallelism=4, completions=3), 3, id="completions"),
        pytest.param(workload("Job", suspend=True), 0, id="suspended"),
        pytest.param({**workload("Job"), "status": {"completionTime": "x"}}, 0, id="completed"),
        pytest.param(job(succeeded=3), 2, id="pods that succeeded are deleted"),
        pytest.param(job(conditions=[{"type": "Failed", "status": "True"}]), 0, id="failed"),
        pytest.param(
            {**workload("Job", parallelism=4), "status": {"succeeded": 1}}, 0, id="work queue"
        ),
    ],
)
def test_workloads_make_pods(manifest: Manifest, count: int) -> None:
    """Named by number, in the workload's namespace, with the template's labels and a uid each."""
    made = cluster(manifest).pods

    assert [m.pod.key for m in made] == [f"ml/web-{i}" for i in range(count)]
    assert all(m.view.labels == {"app": "web"} for m in made)
    assert len({m.pod.uid for m in made}) == count
    assert made == cluster(manifest).pods


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (
            workload(replicas=-1),
            "(Deployment ml/web): field spec.replicas: expected a number from 0 to 100000, got -1",
        ),
        (workload(replicas=10**9), "got 1000000000"),
        (workload("Job", parallelism=-1), "field spec.parallelism"),
        (workload("Job", completions=-1), "field spec.completions"),
        (workload(template=None), "field spec.template.spec: missing"),
        ({**workload(), "spec": None}, "field spec.template.spec: missing"),
    ],
)
def test_numbers_of_pods_that_cannot_be(manifest: Manifest, field: str) -> None:
    """The error names the workload's field."""
    with pytest.raises(InvalidDocument) as caught:
        cluster(manifest)

    assert field in str(caught.value)


def test_workloads_of_two_kinds_and_one_name_make_all_their_pods() -> None:
    """In a cluster their pods have names of their own, so none replaces another."""
    found = cluster(workload("Deployment", replicas=2), workload("StatefulSet", replicas=2))

    assert [one.pod.name for one in found.pods] == ["web-0", "web-1", "web-2", "web-3"]
    assert found.notes == ()


def test_a_dump_of_a_live_cluster_adds_only_what_is_missing() -> None:
    """A Deployment, its ReplicaSet and one of its three pods give three pods."""
    found = pods(
        workload(replicas=3),
        workload("ReplicaSet", "web-5d", owned("web", "x", "Deployment"), replicas=3),
        pod("web-5d-abc", meta=owned("web-5d", "y")),
        pod("web-0", meta={"namespace": "ml"}),
    )

    assert [p.name for p in found] == ["web-1", "web-2", "web-5d-abc", "web-0"]


def test_ended_pods_of_a_dump_are_replaced() -> None:
    """Their workload replaces them; a Job does so if more have to succeed."""

    def ended(name: str, phase: str, by: str, kind: str) -> Manifest:
        return {**pod(name, meta=owned(by, "y", kind)), "status": {"phase": phase}}

    found = pods(
        workload("ReplicaSet", "web", replicas=2),
        ended("web-a", "Failed", "web", "ReplicaSet"),
        workload("Job", "five", parallelism=4, completions=5),
        ended("five-a", "Succeeded", "five", "Job"),
        ended("five-b", "Succeeded", "five", "Job"),
        ended("five-c", "Failed", "five", "Job"),
        pod("five-d", meta=owned("five", "y", "Job")),
    )

    assert [p.name for p in found if not p.finished] == [
        *("web-0", "web-1", "five-0", "five-1", "five-d")
    ]


def test_a_replica_set_of_an_absent_deployment_counts_itself() -> None:
    """Its own pods are taken into account."""
    found = pods(
        workload("ReplicaSet", "web-5d", owned("web", "x", "Deployment"), replicas=2),
        pod("web-5d-abc", meta=owned("web-5d", "y")),
    )

    assert [p.name for p in found] == ["web-5d-0", "web-5d-abc"]


def test_the_same_object_twice_is_the_later_one() -> None:
    """It takes the place of the first one, and a note says so."""
    found = cluster(
        pod("a", priority=1), pod("b"), pod("a", priority=2), pod("a", meta={"namespace": "x"})
    )

    assert [(p.pod.key, p.pod.priority) for p in found.pods] == [
        ("default/a", 2),
        ("default/b", 0),
        ("x/a", 0),
    ]
    assert found.notes == (
        "test.json: document 3 (Pod default/a): replaces test.json: document 1",
    )


def test_a_uid_of_two_pods_faults_the_second() -> None:
    """None is lost, and the UIDs that Partage uses differ."""
    first, second, third = pods(*(pod(name, meta={"uid": "u"}) for name in "abc"))

    assert (first.uid, first.request.fault) == ("u", None)
    assert len({first.uid, second.uid, third.uid}) == 3
    for each in (second, third):
        assert each.request.fault is not None
        assert each.request.fault.message == "uid u is already used by default/a"


def test_order_is_that_of_the_documents() -> None:
    """Nodes and pods, several sources one after another."""
    found = cluster(pod("b"), node("z"), device("a"), pod("a"), node("y"))

    assert [n.name for n in found.nodes] == ["z", "a", "y"]
    assert [p.pod.name for p in found.pods] == ["b", "a"]


def _quota(name: str, namespace: str | None = None, **spec: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def test_quotas_by_namespace() -> None:
    """CPU in milli, everything else in whole units, cut off; several quotas of a namespace all hold."""
    found = cluster(
        _quota(
            "a",
            hard={
                "requests.cpu": "1.5",
                "limits.nvidia.com/gpumem": "30k",
                "requests.nvidia.com/gpu": "2.5",
                "pods": 3,
            },
        ),
        _quota("b", hard={"cpu": "10m"}),
        _quota("c", "ml"),
        {**_quota("d", "ml"), "spec": None},
    )

    assert found.quotas.by_namespace == {
        "default": (
            Quota(
                "a",
                (
                    ("requests.cpu", 1500),
                    ("limits.nvidia.com/gpumem", 30_000),
                    ("requests.nvidia.com/gpu", 2),
                    ("pods", 3),
                ),
            ),
            Quota("b", (("cpu", 10),)),
        ),
        "ml": (Quota("c", ()),),
    }


@pytest.mark.parametrize("spec", [{"scopes": ["BestEffort"]}, {"scopeSelector": {"x": 1}}])
def test_quotas_with_scopes_are_told(spec: Manifest) -> None:
    """They are not applied."""
    found = cluster(_quota("a", **spec))

    assert found.quotas.by_namespace == {}
    assert "quotas with scopes are not applied" in found.notes[0]


def test_a_quota_that_is_no_quantity_is_an_error() -> None:
    """It names the key."""
    with pytest.raises(InvalidDocument, match=r"field spec\.hard\.pods: 'x' is not a quantity"):
        cluster(_quota("a", hard={"pods": "x"}))


def test_namespaces_and_foreign_maps_are_read_past() -> None:
    """They add no node, no pod and no note."""
    found = cluster(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}},
        config_map("x", a="b"),
    )

    assert (found.nodes, found.pods, found.notes) == ((), (), ())


def test_a_pod_document_is_expected() -> None:
    """Another kind is a mistake of the caller, reported as an error of the document."""
    from partage.wire.pods import translate_pod  # noqa: PLC0415 # used here only

    (found,) = documents(node())
    with pytest.raises(InvalidDocument, match="field kind: Node is not Pod"):
        translate_pod(found, cluster().context)


def test_claims_that_a_dump_leaves_out_are_noted() -> None:
    """Their devices count as free, so that a dump of pods alone shows idle cards that are not."""
    claim = {"name": "gpu", "resourceClaimName": "c"}
    bound = pod("a", nodeName="n1", resourceClaims=[claim])
    held = {"kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {}}
    over = {**bound, "status": {"phase": "Succeeded"}}

    told = cluster(node("n1"), bound).notes

    assert [one for one in told if one.startswith("Pod default/a: its ResourceClaims are not")]
    for kept in ((bound, held), (over,)):
        assert not [one for one in cluster(node("n1"), *kept).notes if "are not there" in one]

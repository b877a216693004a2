"""What a pod needs of ordinary resources, where it may go, and whether it is over."""

from typing import Any

import pytest
from manifests import Manifest, cluster, container, documents, only, pod, read

from partage.model.errors import InvalidDocument
from partage.model.reason import ReasonCode
from partage.model.request import Phase
from partage.model.selector import NodeTerm, Operator, Taint
from partage.scheduler.facts import fact_of
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.limits import LIMITS
from partage.wire.translation import Translation

SIDECAR = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("spec", "host"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param(
            {"containers": [container(requests={"cpu": "1500m", "memory": "1Gi"})]},
            {"cpu": 1500, "memory": 2**30},
            id="requests",
        ),
        pytest.param(
            {"containers": [container(limits={"cpu": 2}, requests={"memory": "1Ki"})]},
            {"cpu": 2000, "memory": 1024},
            id="a limit without request is a request",
        ),
        pytest.param(
            {
                "containers": [
                    container("a", requests={"cpu": "100.5m"}),
                    container("b", requests={"cpu": "100.4m"}),
                ]
            },
            {"cpu": 201},
            id="rounded up once",
        ),
        pytest.param(
            {
                "containers": [container(requests={"cpu": 1})],
                "initContainers": [
                    container("i", requests={"cpu": 3}),
                    container("j", requests={"cpu": 2}),
                ],
            },
            {"cpu": 3000},
            id="init containers count by maximum",
        ),
        pytest.param(
            {
                "containers": [container(requests={"cpu": 1})],
                "initContainers": [
                    container("i", requests={"cpu": 3}),
                    container("s", requests={"cpu": 2}, **SIDECAR),
                    container("j", requests={"cpu": 2}),
                ],
            },
            {"cpu": 4000},
            id="an init container runs beside earlier sidecars",
        ),
        pytest.param(
            {
                "containers": [container(requests={"cpu": 1})],
                "initContainers": [container("s", requests={"cpu": 2}, **SIDECAR)],
            },
            {"cpu": 3000},
            id="sidecars are summed",
        ),
        pytest.param(
            {
                "containers": [container(requests={"cpu": 1})],
                "overhead": {"cpu": "250m", "memory": "1"},
            },
            {"cpu": 1250, "memory": 1},
            id="overhead",
        ),
        pytest.param(
            {
                "containers": [container(requests={"cpu": 1})],
                "resources": {"requests": {"cpu": 4}, "limits": {"memory": 5}},
            },
            {"cpu": 4000, "memory": 5},
            id="the pod as a whole",
        ),
        pytest.param(
            {
                "containers": [
                    container(requests={"cpu": 1}, limits={"cpu": 2, "hugepages-2Mi": 2})
                ],
                "resources": {"limits": {"cpu": 4, "hugepages-2Mi": 4}},
            },
            {"cpu": 1000, "hugepages-2Mi": 4},
            id="a limit of the whole beside the containers' requests",
        ),
        pytest.param(
            {
                "containers": [
                    container(
                        limits={
                            "nvidia.com/gpu": 1,
                            "metax-tech.com/sgpu": 0,
                            "foo.io/bar": 2,
                            "cpu": 0,
                        }
                    )
                ]
            },
            {"foo.io/bar": 2},
            id="device names are not counted, foreign ones are",
        ),
        pytest.param(
            {"containers": [container(requests={"cpu": "9E"})]},
            {"cpu": 2**61},
            id="huge amounts are cut",
        ),
    ],
)
def test_host_resources(spec: Manifest, host: dict[str, int]) -> None:
    """Whole units, CPU in milli; every pod needs one pod."""
    assert read(pod(**spec)).host == {**host, "pods": 1}


def test_triggers_of_vendors_are_checked_on_the_node() -> None:
    """A name that only wakes a vendor's plugin is an ordinary resource."""
    found = read(
        pod(
            "web",
            container(
                limits={
                    "metax-tech.com/sgpu": "1",
                    "koordinator.sh/gpu.shared": "1",
                    "koordinator.sh/gpu-core": "10",
                    "koordinator.sh/gpu-memory": "1Gi",
                }
            ),
        )
    )

    assert found.host == {"metax-tech.com/sgpu": 1, "pods": 1}


def test_containers_are_seen_as_written() -> None:
    """Init containers and sidecars come first; nothing is defaulted."""
    view = only(
        pod(
            "p",
            container("a", limits={"cpu": 1}),
            initContainers=[container("i"), container("s", **SIDECAR)],
            schedulerName="x",
            meta={"labels": {"l": None}, "annotations": {"k": "v"}, "uid": "u"},
        )
    ).view

    assert [(c.name, c.phase) for c in view.containers] == [
        ("i", Phase.INIT),
        ("s", Phase.SIDECAR),
        ("a", Phase.MAIN),
    ]
    assert view.containers[2].requests == {}
    assert (view.uid, view.scheduler, view.labels, view.annotations) == (
        "u",
        "x",
        {"l": ""},
        {"k": "v"},
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param(
            {"containers": [container(requests={"cpu": "1 GB"})]},
            "field spec.containers[0].resources.requests.cpu: '1 GB' is not a quantity",
            id="cpu",
        ),
        pytest.param(
            {"containers": [container(limits={"memory": True})]},
            "field spec.containers[0].resources.limits.memory: quantity True is a boolean",
            id="bool",
        ),
        pytest.param(
            {"containers": [container(limits={"memory": []})]},
            "field spec.containers[0].resources.limits.memory: a quantity is a text or a number, not list",
            id="list",
        ),
        pytest.param(
            {"containers": 5}, "field spec.containers: expected array | null, got int", id="type"
        ),
        pytest.param(
            {"overhead": {"cpu": "x"}},
            "field spec.overhead.cpu: 'x' is not a quantity",
            id="overhead",
        ),
        pytest.param(
            {"initContainers": [container("i", limits={"cpu": "x"})]},
            "field spec.initContainers[0].resources.limits.cpu",
            id="init",
        ),
    ],
)
def test_an_ordinary_amount_that_is_none_is_no_pod(spec: Manifest, field: str) -> None:
    """Kubernetes could not decode it either."""
    with pytest.raises(InvalidDocument) as caught:
        cluster(pod(**spec))

    assert str(caught.value).startswith("test.json: document 1 (Pod default/web): ")
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        pytest.param([{"image": "x"}], "spec.containers[0].name: missing", id="no name"),
        pytest.param([], "spec.containers: at least one container is required", id="none"),
    ],
)
def test_a_pod_that_kubernetes_would_not_admit_waits(
    containers: list[Manifest], message: str
) -> None:
    """It can be decoded as a Pod, so it is the pod's fault and not the document's."""
    found = cluster(pod(containers=containers))

    fault = found.pods[0].pod.request.fault

    assert fault is not None
    assert fault.message == message


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"containers": [container(limits={"nvidia.com/gpu": "x"})]},
            "container main: nvidia.com/gpu: 'x' is not a quantity",
            id="text",
        ),
        pytest.param(
            {"containers": [container(limits={"nvidia.com/gpumem": [1]})]},
            "container main: nvidia.com/gpumem: a quantity is a text or a number, not list",
            id="list",
        ),
        pytest.param(
            {"containers": [container(limits={"koordinator.sh/gpu": -1})]},
            "container main: koordinator.sh/gpu: -1 must not be negative",
            id="negative",
        ),
        pytest.param(
            {"containers": [container(limits={"metax-tech.com/sgpu": "?"})]},
            "container main: metax-tech.com/sgpu: '?' is not a quantity",
            id="trigger",
        ),
        pytest.param(
            {"containers": [container(limits={"cpu": -1})]},
            "container main: cpu: -1 must not be negative",
            id="negative cpu",
        ),
        pytest.param(
            {"containers": [container(), container()]},
            "container main: the name is used twice",
            id="twins",
        ),
        pytest.param(
            {"resources": {"limits": {"koordinator.sh/gpu": 1}}},
            "the pod: koordinator.sh/gpu: containers must ask for devices",
            id="pod level",
        ),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "a", "operator": "Is"}]}
                            ]
                        }
                    }
                }
            },
            "operator 'Is' of key 'a' is not one of In,",
            id="operator",
        ),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchFields": [
                                        {"key": "spec.x", "operator": "In", "values": ["a"]}
                                    ]
                                }
                            ]
                        }
                    }
                }
            },
            "field 'spec.x' is not one of metadata.name",
            id="field",
        ),
    ],
)
def test_a_broken_rule_is_a_fault(spec: Manifest, message: str) -> None:
    """The pod is read, and waits with the rule it broke."""
    fault = read(pod(**spec)).request.fault

    assert fault is not None
    assert message in fault.message


def _constraint(affinity: Any, **spec: Any) -> Any:
    return read(pod(affinity={"nodeAffinity": affinity}, **spec)).constraint


def test_node_affinity_is_kept_whole() -> None:
    """Every operator, fields, terms as alternatives, and preferences with weights."""
    expressions = [
        {"key": f"k{i}", "operator": operator, "values": ["1"]}
        for i, operator in enumerate(Operator)
    ]
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    constraint = _constraint(
        {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": expressions}, {"matchFields": fields}]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 7, "preference": {"matchExpressions": expressions[:1]}},
                {"weight": 9},
            ],
        },
        nodeSelector={"zone": "a", "empty": None},
    )

    assert [r.operator for r in constraint.terms[0].labels] == list(Operator)
    assert constraint.matches("n1", {"zone": "a", "empty": ""})
    assert not constraint.matches("n2", {"zone": "a", "empty": ""})
    assert not constraint.matches("n1", {"zone": "b", "empty": ""})
    assert constraint.preferred == ((7, NodeTerm(constraint.terms[0].labels[:1])),)


@pytest.mark.parametrize("weight", [-1, 0, 101, 10**25])
def test_a_weight_that_kubernetes_refuses_is_a_fault(weight: int) -> None:
    """A sum of such weights would not fit the nodes' scores."""
    term = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    preferred = [{"weight": weight, "preference": term}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}

    fault = read(pod(affinity=affinity)).request.fault

    assert fault is not None
    assert f"weight {weight} is not in 1 to 100" in fault.message


@pytest.mark.parametrize("terms", [{"nodeSelectorTerms": []}, {}, {"nodeSelectorTerms": [{}]}])
def test_required_affinity_without_terms_matches_nothing(terms: Manifest) -> None:
    """Kubernetes does the same."""
    constraint = _constraint({"requiredDuringSchedulingIgnoredDuringExecution": terms})

    assert not constraint.matches("n1", {})


def test_tolerations_are_read() -> None:
    """Absent fields mean what Kubernetes says they do."""
    everything, one, nothing = read(
        pod(
            tolerations=[
                {"operator": "Exists"},
                {"key": "k", "value": "v", "effect": "NoSchedule"},
                {},
            ]
        )
    ).tolerations

    assert everything.tolerates(Taint("x", "y", "NoExecute"))
    assert one.tolerates(Taint("k", "v", "NoSchedule"))
    assert not nothing.tolerates(Taint("k", "v", "NoSchedule"))


def _class(name: str, value: int, **more: Any) -> Manifest:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        **more,
    }


@pytest.mark.parametrize(
    ("spec", "priority"),
    [
        pytest.param({"priority": 5, "priorityClassName": "high"}, 5, id="the number wins"),
        pytest.param({"priorityClassName": "high"}, 1000, id="class"),
        pytest.param({"priorityClassName": "system-node-critical"}, 2_000_001_000, id="built in"),
        pytest.param({}, -3, id="global default"),
        pytest.param({"priorityClassName": "gone"}, -3, id="unknown class"),
    ],
)
def test_priority(spec: Manifest, priority: int) -> None:
    """The number, else the class, else the default; of two defaults the lower holds."""
    classes = (
        _class("high", 1000),
        _class("low", -3, globalDefault=True),
        _class("mid", 4, globalDefault=True),
    )

    found = cluster(*classes, pod(**spec))

    assert found.pods[0].pod.priority == priority
    assert any("2 priority classes are the global default; low holds" in n for n in found.notes)
    unknown = [n for n in found.pods[0].pod.request.notes if "priority class gone" in n]
    assert len(unknown) == (spec.get("priorityClassName") == "gone")


ENDED = {"name": "main", "state": {"terminated": {"exitCode": 0}}}
FAILED = {"name": "main", "state": {"terminated": {"exitCode": 1}}}
RUNNING = {"name": "main", "state": {"running": {}}}
RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("status", "meta", "spec", "over"),
    [
        pytest.param({"phase": "Succeeded"}, {}, {}, True, id="succeeded"),
        pytest.param({"phase": "Failed"}, {}, {}, True, id="failed"),
        pytest.param({"phase": "Running"}, DELETED, {}, False, id="deleting is not over"),
        pytest.param(
            {"containerStatuses": [RUNNING]}, DELETED, {}, False, id="deleting and running"
        ),
        pytest.param({"containerStatuses": [ENDED]}, DELETED, {}, True, id="deleting and ended"),
        pytest.param({"containerStatuses": [ENDED]}, {}, {}, False, id="it will be started again"),
        pytest.param(
            {"containerStatuses": [FAILED]}, {}, {"restartPolicy": "Never"}, True, id="never again"
        ),
        pytest.param(
            {"containerStatuses": [FAILED]},
            {},
            {"restartPolicy": "OnFailure"},
            False,
            id="retried",
        ),
        pytest.param(
            {"containerStatuses": [ENDED]},
            {},
            {"restartPolicy": "OnFailure"},
            True,
            id="succeeded once",
        ),
        pytest.param(
            {"containerStatuses": []}, {}, {"restartPolicy": "Never"}, False, id="nothing known"
        ),
        pytest.param(
            {"containerStatuses": [ENDED]},
            {},
            {"restartPolicy": "Never", "initContainers": [container("s", **SIDECAR)]},
            False,
            id="a sidecar runs",
        ),
        pytest.param(
            {"containerStatuses": [FAILED]},
            {},
            {"restartPolicy": "Never", "containers": [container(restartPolicy="Always")]},
            False,
            id="a container's own policy starts it again",
        ),
        pytest.param(
            {"containerStatuses": [FAILED]},
            {},
            {"restartPolicy": "Never", "containers": [container(restartPolicy="OnFailure")]},
            False,
            id="a container's own policy retries it",
        ),
        pytest.param(
            {"containerStatuses": [FAILED]},
            {},
            {"restartPolicy": "Always", "containers": [container(restartPolicy="Never")]},
            True,
            id="a container's own policy ends it",
        ),
        pytest.param(
            {"containerStatuses": [ENDED]},
            {},
            {
                "restartPolicy": "Never",
                "containers": [container(restartPolicy="Never", restartPolicyRules=[RULE])],
            },
            False,
            id="a rule may start it again",
        ),
        pytest.param(
            {"containerStatuses": [ENDED]},
            DELETED,
            {"containers": [container(restartPolicy="Never", restartPolicyRules=[RULE])]},
            True,
            id="no rule starts what is being deleted",
        ),
    ],
)
def test_when_a_pod_is_over(
    status: Manifest, meta: Manifest, spec: Manifest, *, over: bool
) -> None:
    """A pod has finished only when its containers have ended for good."""
    assert read({**pod(meta=meta, **spec), "status": status}).finished is over


def test_what_is_not_looked_at_is_told() -> None:
    """Offline decisions ignore some wishes, and say so."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a"}]}
    notes = read(
        pod(
            "p",
            container(ports=[{"hostPort": 80}]),
            affinity={"podAffinity": required, "podAntiAffinity": required},
            topologySpreadConstraints=[{}],
        )
    ).request.notes

    assert [note.partition(":")[0] for note in notes] == [
        "affinity to other pods",
        "anti-affinity to other pods",
        "topology spread",
        "host ports",
    ]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(
            {"cpu": "1500m", "memory": "1Ki"},
            {
                "cpu": 1500,
                "requests.cpu": 1500,
                "limits.cpu": 1500,
                "memory": 1024,
                "requests.memory": 1024,
                "limits.memory": 1024,
            },
            id="ordinary",
        ),
        pytest.param(
            {"nvidia.com/gpu": 2},
            {"nvidia.com/gpu": 2, "requests.nvidia.com/gpu": 2, "limits.nvidia.com/gpu": 2},
            id="cards",
        ),
        pytest.param(
            {"nvidia.com/gpu": "200"},
            {"nvidia.com/gpu": 2, "requests.nvidia.com/gpu": 2, "limits.nvidia.com/gpu": 2},
            id="percent of cards",
        ),
        pytest.param(
            {"koordinator.sh/gpu-memory": "1Gi"},
            {
                "koordinator.sh/gpu-memory": 2**30,
                "requests.koordinator.sh/gpu-memory": 2**30,
                "limits.koordinator.sh/gpu-memory": 2**30,
                "kubernetes.io/gpu-memory": 2**30,
                "requests.kubernetes.io/gpu-memory": 2**30,
                "limits.kubernetes.io/gpu-memory": 2**30,
            },
            id="bytes, in both dialects",
        ),
        pytest.param(
            {"kubernetes.io/rdma": 50},
            {
                f"{part}{domain}/rdma": 50
                for part in ("", "requests.", "limits.")
                for domain in ("koordinator.sh", "kubernetes.io")
            },
            id="the other way round",
        ),
        pytest.param(
            {"kubernetes.io/gpu": 50, "koordinator.sh/gpu": 30},
            {
                f"{part}{domain}/gpu": 30
                for part in ("", "requests.", "limits.")
                for domain in ("koordinator.sh", "kubernetes.io")
            },
            id="the new name wins",
        ),
    ],
)
def test_quota_amounts(limits: Manifest, expected: dict[str, int]) -> None:
    """They have the keys that a ResourceQuota writes."""
    assert read(pod("p", container(limits=limits))).quota == {
        "pods": 1,
        "count/pods": 1,
        **expected,
    }


def test_limits_of_the_whole_pod_and_overhead_count_for_quotas() -> None:
    """Kubernetes counts them so: overhead only beside a limit."""
    spec = {
        "containers": [container(limits={"cpu": 1, "memory": 10})],
        "resources": {"limits": {"memory": 50}},
        "overhead": {"cpu": "250m", "memory": 5, "ephemeral-storage": 7},
    }
    quota = read(pod(**spec)).quota

    assert (quota["limits.cpu"], quota["limits.memory"]) == (1250, 55)
    assert "limits.ephemeral-storage" not in quota


def test_a_family_counts_its_own_quota_keys() -> None:
    """HAMi's memory key counts all devices together; as a share it is counted when granted."""
    fixed = read(pod("p", container(limits={"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000})))
    share = read(
        pod("p", container(limits={"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50}))
    )

    assert fixed.quota["limits.nvidia.com/gpumem"] == 6000
    assert "limits.nvidia.com/gpumem" not in share.quota
    assert share.request.groups[0].metered[0][0] == "limits.nvidia.com/gpumem"


@pytest.mark.parametrize(
    ("gates", "node", "message"),
    [
        pytest.param(
            [{"name": "a.io/x"}, {"name": "b"}], "", "scheduling gates: a.io/x, b", id="gated"
        ),
        pytest.param(
            [{"name": "a.io/x"}] * 5000,
            "",
            f"scheduling gates: {'a.io/x, ' * 999}"[:1023] + "…",
            id="thousands",
        ),
        pytest.param([], "", "", id="no gates"),
        pytest.param([{"name": "a"}], "n1", "", id="bound already"),
    ],
)
def test_gates_hold_a_pod_back(gates: list[Manifest], node: str, message: str) -> None:
    """Kubernetes binds no pod that has gates; a dump of a bound one is state."""
    fault = read(pod("p", schedulingGates=gates, nodeName=node)).request.fault

    assert (fault.message if fault else "") == message
    assert fault is None or fault.code is ReasonCode.SCHEDULING_GATED


def test_a_bound_pod_is_not_taken_for_a_pending_one_that_is_read_no_further() -> None:
    """Both ask alike, beyond all bounds; nothing of the pending one was read, and the bound one holds devices."""
    many = [
        container(f"c{index}", limits={"koordinator.sh/gpu": 100})
        for index in range(LIMITS["containers that ask for devices"] + 1)
    ]
    (pending,), (bound,) = documents(pod("a", *many)), documents(pod("b", *many, nodeName="n1"))
    translation = Translation(Context.of(Settings()))

    assert translation.read(pending).pod.request.fault is not None
    _, suspicion = fact_of(translation.read(bound).pod)

    assert suspicion is not None


def test_a_request_by_the_old_name_gives_way_to_a_limit_by_the_new() -> None:
    """Quotas count what the pod gets."""
    both = container(limits={"koordinator.sh/gpu": 100}, requests={"kubernetes.io/gpu": 50})

    quota = read(pod("p", both)).quota

    assert quota["requests.koordinator.sh/gpu"] == quota["requests.kubernetes.io/gpu"] == 100


def test_an_outvoted_old_name_is_told() -> None:
    """The note appears only if the amounts differ."""
    differing = container("a", limits={"kubernetes.io/gpu": 50, "koordinator.sh/gpu": 30})
    equal = container("b", limits={"kubernetes.io/gpu": 20, "koordinator.sh/gpu": 20})

    notes = read(pod("p", differing, equal)).request.notes

    assert notes == ("container a: koordinator.sh/gpu: 30 holds, and not kubernetes.io/gpu: 50",)

"""The CEL of the conditions and of the admission policy, beside the webhook's own rules."""

import json
from functools import cache
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from reviews import Json, container, context, pod, review

from partage.cli.webhook import webhook
from partage.vendors.names import CLAIM_FINALIZER, DRA_DRIVER
from partage.vendors.reserved import RESERVED
from partage.webhook.installation import MUTATE, VALIDATE, Endpoint, conditions, installation
from partage.webhook.manifest import names_devices
from partage.webhook.review import decode_review
from partage.webhook.settings import Admission
from partage.webhook.validating import validate

celpy = pytest.importorskip("celpy", reason="cel-python is not installed: CEL is not evaluated")

WRITER = "system:serviceaccount:partage-system:partage-scheduler"
OBJECTS = {
    (one["kind"], one["metadata"]["name"]): one
    for one in installation(Endpoint(), context(), Admission(break_glass="sre"))
}
FORGING, NODE_NAME, LABELS = (
    OBJECTS["ValidatingAdmissionPolicy", name]["spec"]
    for name in ("partage-reserved-keys", "partage-node-name", "partage-pod-labels")
)


@cache
def program(expression: str) -> Any:
    """The expression, compiled."""
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def holds(expression: str, request: Json) -> bool:
    """What the expression comes to for the request of a review."""
    bound = {
        "object": celpy.json_to_cel(request["object"]),
        "oldObject": celpy.json_to_cel(request.get("oldObject")),
        "request": celpy.json_to_cel({k: v for k, v in request.items() if "bject" not in k}),
    }
    return bool(program(expression).evaluate(bound))


def asked(webhook: str, request: Json) -> bool:
    """Whether the API server would ask the webhook."""
    return all(holds(one["expression"], request) for one in conditions(webhook, context()))


def denied(request: Json, policy: Json = FORGING) -> list[str]:
    """What a policy says against the request; empty where it lets it pass."""
    if not all(holds(one["expression"], request) for one in policy["matchConditions"]):
        return []
    return [
        one["message"] for one in policy["validations"] if not holds(one["expression"], request)
    ]


def request_of(
    manifest: Json, before: Json | None = None, user: str = "jane", **more: Any
) -> Json:
    """The request part of a review."""
    operation = "CREATE" if before is None else "UPDATE"
    found: Json = review(manifest, operation, before)["request"]
    return {**found, "userInfo": {"username": user, "groups": ["system:authenticated"]}, **more}


ASKED: dict[str, tuple[Json, bool]] = {
    "no resources": (pod(), False),
    "ordinary resources": (pod(container(limits={"cpu": "1", "memory": "1Gi"})), False),
    "foreign resources": (pod(container(limits={"example.com/gpu": "1"})), False),
    "a limit": (pod(container(limits={"nvidia.com/gpu": "1"})), True),
    "a request": (pod(container(requests={"kubernetes.io/gpu": "100"})), True),
    "a trigger": (pod(container(limits={"metax-tech.com/sgpu": "1"})), True),
    "the second container": (
        pod(container("a"), container("b", limits={"tke.cloud.tencent.com/qgpu-core": "5"})),
        True,
    ),
    "an init container": (
        pod(initContainers=[container("i", limits={"koordinator.sh/gpu": "100"})]),
        True,
    ),
    "the pod as a whole": (pod(resources={"limits": {"koordinator.sh/gpu": "100"}}), True),
    "overhead": (pod(overhead={"koordinator.sh/gpu": "100"}), True),
}


@pytest.mark.parametrize(("manifest", "expected"), ASKED.values(), ids=ASKED)
def test_only_pods_that_concern_partage_depend_on_the_webhook(
    manifest: Json,
    expected: bool,  # noqa: FBT001 # a column of the table
) -> None:
    """The API server calls the mutating webhook exactly where a device is named."""
    assert asked(MUTATE, request_of(manifest)) is expected
    assert asked(VALIDATE, request_of(manifest)) is expected


SHARE = container(limits={"nvidia.com/gpu": "1"})
WAITS = pod(SHARE)
RUNS = pod(SHARE, nodeName="n1")
ENDED = {"kind": "Pod", "metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}}


def changed(manifest: Json, meta: Json | None = None, **spec: Any) -> Json:
    """The pod with other metadata, or another spec."""
    metadata = {**manifest["metadata"], **(meta or {})}
    return {**manifest, "metadata": metadata, "spec": {**manifest["spec"], **spec}}


UNASKED: dict[str, tuple[Json, Json]] = {
    "a job's finalizer comes off": (RUNS, changed(RUNS, meta=ENDED["metadata"])),
    "a label of a pod that runs": (changed(RUNS, {"labels": {"a": "b"}}), RUNS),
    "a label of a pod that waits": (changed(WAITS, {"labels": {"a": "b"}}), WAITS),
    "an annotation": (changed(WAITS, {"annotations": {"a": "b"}}), WAITS),
    "an owner": (changed(RUNS, {"ownerReferences": [{"name": "x"}]}), RUNS),
    "a deletion": (changed(WAITS, {"deletionTimestamp": "2026-01-01T00:00:00Z"}), WAITS),
    "a vendor's plugin turns a reserved key": (
        changed(RUNS, {"annotations": {"hami.io/bind-phase": "success"}}),
        changed(RUNS, {"annotations": {"hami.io/bind-phase": "allocating"}}),
    ),
    "a condition": ({**RUNS, "status": {"phase": "Succeeded"}}, RUNS),
    "an image of a pod that runs": (changed(RUNS, containers=[{**SHARE, "image": "b"}]), RUNS),
    "a deadline": (changed(RUNS, activeDeadlineSeconds=5), RUNS),
    "a toleration": (changed(WAITS, tolerations=[{"operator": "Exists"}]), WAITS),
    "a gate comes off": (WAITS, changed(WAITS, schedulingGates=[{"name": "kueue.x-k8s.io/a"}])),
    "a node selector beside a gate": (changed(WAITS, nodeSelector={"a": "b"}), WAITS),
    "nothing": (WAITS, WAITS),
    "a pod without devices": (pod(container("b")), pod(container("a"))),
    "a reserved key alone": (pod(meta={"annotations": {"partage.io/allocation": "{}"}}), pod()),
}


@pytest.mark.parametrize(("after", "before"), UNASKED.values(), ids=UNASKED)
def test_what_controllers_and_people_change_of_a_pod_never_waits_for_the_webhook(
    after: Json, before: Json
) -> None:
    """Finalizers, labels, conditions, gates; what it asks of devices stays the same."""
    assert not asked(VALIDATE, request_of(after, before))


@pytest.mark.parametrize(
    ("after", "before"),
    [
        (WAITS, pod()),
        (pod(container(limits={"nvidia.com/gpu": "2"})), WAITS),
        (pod(SHARE, container("b")), WAITS),
        (changed(WAITS, initContainers=[container("i")]), WAITS),
        (WAITS, changed(WAITS, initContainers=[container("i")])),
        (changed(WAITS, overhead={"cpu": "1"}), WAITS),
        (changed(WAITS, resources={"limits": {"nvidia.com/gpu": "1"}}), WAITS),
    ],
    ids=["a device", "an amount", "a container", "init", "no init", "overhead", "the whole"],
)
def test_a_waiting_pod_that_asks_something_else_is_judged_anew(after: Json, before: Json) -> None:
    """Some servers let the containers of a pod change."""
    assert asked(VALIDATE, request_of(after, before))


def test_a_reserved_key_alone_is_left_to_the_policy() -> None:
    """It is in the API server, so no outage of the webhook stops who may write the key."""
    carrying = pod(meta={"annotations": {"partage.io/allocation": "{}"}})

    assert not asked(VALIDATE, request_of(carrying))
    assert denied(request_of(carrying))


MIRROR = {"annotations": {"kubernetes.io/config.mirror": "abc"}}
OWN = "system:node:n1"
PLACED: dict[str, tuple[Json, Json | None, str, bool]] = {
    "no node": (WAITS, None, "jane", True),
    "no device": (pod(nodeName="n1"), None, "jane", True),
    "a node": (RUNS, None, "jane", False),
    "another scheduler": (pod(SHARE, nodeName="n1", schedulerName="volcano"), None, "jane", False),
    "no scheduler": (pod(SHARE, nodeName="n1", schedulerName=""), None, "jane", False),
    "a mirror": (pod(SHARE, meta=MIRROR, nodeName="n1"), None, "jane", False),
    "a mirror without a node": (pod(SHARE, meta=MIRROR), None, "jane", False),
    "a mirror without devices": (pod(meta=MIRROR, nodeName="n1"), None, "jane", True),
    "the node itself": (pod(SHARE, meta=MIRROR, nodeName="n1"), None, OWN, True),
    "another node": (pod(SHARE, meta=MIRROR, nodeName="n2"), None, OWN, False),
    "a node for a mirror of none": (pod(SHARE, meta=MIRROR), None, OWN, False),
    "half a node's name": (pod(SHARE, meta=MIRROR, nodeName="n"), None, OWN, False),
    "the scheduler's account": (RUNS, None, WRITER, False),
    "a memory of one": (
        pod(container(limits={"nvidia.com/gpumem": "1"}), nodeName="n1", schedulerName="x"),
        None,
        "jane",
        False,
    ),
    "a request": (
        pod(container(requests={"koordinator.sh/gpu": "1"}), nodeName="n1"),
        None,
        "jane",
        False,
    ),
    "an init container": (pod(initContainers=[SHARE], nodeName="n1"), None, "jane", False),
    "the pod as a whole": (
        pod(resources={"limits": {"koordinator.sh/gpu": "1"}}, nodeName="n1"),
        None,
        "jane",
        False,
    ),
    "overhead": (pod(overhead={"kubernetes.io/rdma": "1"}, nodeName="n1"), None, "jane", False),
    "a trigger": (
        pod(container(limits={"metax-tech.com/sgpu": "1"}), nodeName="n1"),
        None,
        "jane",
        False,
    ),
    "a node that comes later": (RUNS, WAITS, "jane", False),
    "a mirror that comes later": (pod(SHARE, meta=MIRROR), WAITS, "jane", False),
    "bound long ago": (changed(RUNS, {"labels": {"a": "b"}}), RUNS, "jane", True),
    "bound and ended": (changed(RUNS, ENDED["metadata"]), RUNS, "jane", True),
}


@pytest.mark.parametrize(("after", "before", "user", "allowed"), PLACED.values(), ids=PLACED)
def test_a_pod_with_devices_names_no_node_whatever_scheduler_it_names(
    after: Json,
    before: Json | None,
    user: str,
    allowed: bool,  # noqa: FBT001 # a column of the table
) -> None:
    """The node itself aside, for its own static pods; policy and webhook say the same."""
    request = request_of(after, before, user)
    asked_of = {**review(after), "request": request}

    verdict = validate(decode_review(json.dumps(asked_of).encode()), context(), Admission())

    assert bool(denied(request, NODE_NAME)) is not allowed
    assert verdict.allowed is allowed
    if not allowed:
        assert denied(request, NODE_NAME) == [verdict.message]
        assert "nodeSelector" in verdict.message


NAMES = st.sampled_from(
    ["cpu", "nvidia.com/gpu", "nvidia.com/gpumem", "koordinator.sh/gpu", "example.com/x", "a'b\\"]
)
AMOUNTS = st.dictionaries(NAMES, st.just("1"), max_size=2)
CONTAINERS = st.builds(
    lambda limits, requests: container(limits=limits, requests=requests),
    st.none() | AMOUNTS,
    st.none() | AMOUNTS,
)
PODS = st.builds(
    lambda main, init: pod(*main, **({"initContainers": init} if init else {})),
    st.lists(CONTAINERS, min_size=1, max_size=2),
    st.lists(CONTAINERS, max_size=1),
)


@settings(max_examples=60, deadline=None)
@given(PODS)
def test_the_condition_agrees_with_the_webhooks_own_look(manifest: Json) -> None:
    """The API server asks about exactly those pods that the webhook would look at."""
    assert asked(MUTATE, request_of(manifest)) == names_devices(manifest, context())


def test_renamed_resources_are_asked_about() -> None:
    """HAMi's names are settings, and may hold whatever a text may."""
    renamed = context(count_name="example.com/it's-a\\gpu")
    request = request_of(pod(container(limits={"example.com/it's-a\\gpu": "1"})))

    assert all(holds(one["expression"], request) for one in conditions(MUTATE, renamed))
    assert not asked(MUTATE, request)


KEY, LABEL, PREFIXED = (
    "partage.io/allocation",
    "hami.io/vgpu-node",
    "tke.cloud.tencent.com/qgpu-pgpu-main",
)


def with_meta(field: str, **pairs: str) -> Json:
    """A pod with annotations or labels."""
    return pod(meta={field: pairs})


FORGED: dict[str, tuple[Json, Json | None, bool]] = {
    "a new pod without keys": (pod(), None, False),
    "a new pod with its own keys": (with_meta("annotations", team="a"), None, False),
    "a new record": (with_meta("annotations", **{KEY: "{}"}), None, True),
    "a new label": (with_meta("labels", **{LABEL: "n1"}), None, True),
    "a new prefixed key": (with_meta("annotations", **{PREFIXED: "0"}), None, True),
    "a new prefixed label": (with_meta("labels", **{PREFIXED: "0"}), None, True),
    "a removed prefixed label": (pod(), with_meta("labels", **{PREFIXED: "0"}), True),
    "a prefixed label left alone": (
        with_meta("labels", **{PREFIXED: "0", "x": "new"}),
        with_meta("labels", **{PREFIXED: "0"}),
        False,
    ),
    "a changed record": (
        with_meta("annotations", **{KEY: "b"}),
        with_meta("annotations", **{KEY: "a"}),
        True,
    ),
    "a removed record": (pod(), with_meta("annotations", **{KEY: "a"}), True),
    "a removed prefixed key": (pod(), with_meta("annotations", **{PREFIXED: "0"}), True),
    "a changed prefixed key": (
        with_meta("annotations", **{PREFIXED: "1"}),
        with_meta("annotations", **{PREFIXED: "0"}),
        True,
    ),
    "a removed label": (with_meta("labels", a="b"), with_meta("labels", **{LABEL: "n1"}), True),
    "a record left alone": (
        with_meta("annotations", **{KEY: "a", "x": "new"}),
        with_meta("annotations", **{KEY: "a"}),
        False,
    ),
}


@pytest.mark.parametrize(("after", "before", "expected"), FORGED.values(), ids=FORGED)
def test_forging_is_refused_without_the_webhook(
    after: Json,
    before: Json | None,
    expected: bool,  # noqa: FBT001 # a column of the table
) -> None:
    """The policy says no exactly where the webhook does, to all but the writers."""
    request = request_of(after, before)
    verdict = validate(
        decode_review(json.dumps({**review(after), "request": request}).encode()),
        context(),
        Admission(),
    )

    assert bool(denied(request)) is expected
    assert verdict.allowed is not expected
    assert denied(request_of(after, before, WRITER)) == []
    assert denied({**request, "userInfo": {"username": "jane", "groups": ["sre"]}}) == []


def test_an_update_that_changes_no_key_is_not_looked_into() -> None:
    """Tens of thousands of labels made each report of a kubelet several seconds of the API server's work."""
    (carries,) = (
        one["expression"]
        for one in FORGING["matchConditions"]
        if one["name"] == "carries-a-reserved-key"
    )
    notes = {"partage.io/allocation": "{}", "a": "b"}
    held = {**pod(), "metadata": {"name": "web", "annotations": notes, "labels": {"a": "b"}}}
    runs = {**held, "status": {"phase": "Running"}}
    assert not holds(carries, request_of(runs, held))
    bare = pod()
    assert not holds(carries, request_of({**bare, "status": {"phase": "Running"}}, bare))
    for field in ("annotations", "labels"):
        other = {**held, "metadata": {**held["metadata"], field: {"a": "c"}}}
        gone = {**held, "metadata": {k: v for k, v in held["metadata"].items() if k != field}}
        for after, before in ((other, held), (held, other), (gone, held), (held, gone)):
            assert holds(carries, request_of(after, before))
    assert holds(carries, request_of(held))


def test_a_binding_that_carries_a_record_is_refused() -> None:
    """Its annotations would end on the pod."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "web", "annotations": {KEY: "{}"}},
        "target": {"kind": "Node", "name": "n1"},
    }
    plain = {**binding, "metadata": {"name": "web"}}

    assert "only Partage may write" in denied(request_of(binding))[0]
    assert denied(request_of(binding, user=WRITER)) == []
    assert denied(request_of(plain)) == []


KEYS = st.sampled_from(
    [KEY, PREFIXED, "hami.io/bind-phase", "other", "tke.cloud.tencent.com/qgpu"]
)
PAIRS = st.dictionaries(KEYS, st.sampled_from(["a", "b"]), max_size=3)
METAS = st.fixed_dictionaries(
    {},
    optional={
        "annotations": PAIRS,
        "labels": st.dictionaries(
            st.sampled_from([LABEL, "app"]), st.sampled_from(["a", "b"]), max_size=2
        ),
    },
)


@settings(max_examples=40, deadline=None)
@given(METAS, st.none() | METAS)
def test_policy_and_webhook_refuse_the_same_keys(after: Json, before: Json | None) -> None:
    """For any keys before and after, both come to the same verdict."""
    request = request_of(pod(meta=after), None if before is None else pod(meta=before))
    old = before or {}
    found = RESERVED.differing(
        (old.get("annotations", {}), after.get("annotations", {})),
        (old.get("labels", {}), after.get("labels", {})),
    )

    assert bool(denied(request)) == bool(found)


def test_no_pod_has_so_many_labels_that_its_node_cannot_list_it() -> None:
    """A new one and an update; a pod from before loses labels, or keeps them."""

    def labelled(count: int) -> Json:
        return pod(meta={"labels": {f"l{number}": "" for number in range(count)}})

    for after, before, allowed in (
        (pod(), None, True),
        (labelled(256), None, True),
        (labelled(257), None, False),
        (labelled(257), labelled(256), False),
        (labelled(257), pod(), False),
        (labelled(300), labelled(300), True),
        (labelled(299), labelled(300), True),
    ):
        assert bool(denied(request_of(after, before), LABELS)) is not allowed


def test_own_and_system_namespaces_are_left_out_and_nothing_can_hang() -> None:
    """What Partage runs on can start while Partage is down."""
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        (hook,) = OBJECTS[kind, "partage"]["webhooks"]
        (elsewhere,) = hook["namespaceSelector"]["matchExpressions"]
        assert elsewhere["operator"] == "NotIn"
        assert {"kube-system", "partage-system"} <= set(elsewhere["values"])
        assert hook["timeoutSeconds"] <= 10
        assert [rule["resources"] for rule in hook["rules"]] == [["pods"]]
    for policy in (FORGING, NODE_NAME, LABELS):
        (rule,) = policy["matchConstraints"]["resourceRules"]
        assert "CONNECT" not in rule["operations"]
        assert policy["failurePolicy"] == "Fail"
    (rule,) = FORGING["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["pods", "pods/*", "bindings"]
    bindings = [one for (kind, _), one in OBJECTS.items() if kind.endswith("PolicyBinding")]
    assert {one["spec"]["policyName"] for one in bindings} == {
        "partage-reserved-keys",
        "partage-node-name",
        "partage-pod-labels",
    }
    assert all(one["spec"]["validationActions"] == ["Deny"] for one in bindings)


def test_a_claim_begins_to_be_allocated_by_its_finalizer_once() -> None:
    """Only there, and where an allocation of ours loses it, does the policy ask for the user; other finalizers are free."""
    made = installation(Endpoint(), context(), Admission(), claims=True)
    (begun,) = [
        one["spec"]
        for one in made
        if one["kind"] == "ValidatingAdmissionPolicy"
        and one["metadata"]["name"] == "partage-claim-finalizer"
    ]
    (condition,) = begun["matchConditions"]

    def claim(*finalizers: str, driver: str = "") -> Json:
        meta = {"finalizers": list(finalizers)} if finalizers else {}
        devices = {"results": [{"driver": "other"}, {"driver": driver}]}
        status = {"status": {"allocation": {"devices": devices}}} if driver else {}
        return {"kind": "ResourceClaim", "metadata": {"name": "c", **meta}, **status}

    other = "example.com/mine"
    ours, foreign = (
        claim(CLAIM_FINALIZER, driver=driver) for driver in (DRA_DRIVER, "gpu.example.com")
    )
    for after, before, expected in (
        (claim(CLAIM_FINALIZER), None, True),
        (claim(other, CLAIM_FINALIZER), claim(other), True),
        (claim(CLAIM_FINALIZER), claim(), True),
        (claim(), None, False),
        (claim(other), claim(), False),
        (claim(other, CLAIM_FINALIZER), claim(CLAIM_FINALIZER), False),
        (claim(), claim(CLAIM_FINALIZER), False),
        (claim(driver=DRA_DRIVER), ours, True),
        (claim(other, driver=DRA_DRIVER), ours, True),
        (claim(CLAIM_FINALIZER, other, driver=DRA_DRIVER), ours, False),
        (claim(), claim(driver=DRA_DRIVER), False),
        (claim(driver="gpu.example.com"), foreign, False),
    ):
        assert holds(condition["expression"], request_of(after, before)) is expected
    (rule,) = begun["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE"], ["resourceclaims"])
    assert begun["failurePolicy"] == "Fail"


def test_only_the_namespace_that_partage_runs_in_is_left_out() -> None:
    """Otherwise a user could create a namespace of the usual name, and forge records in it."""
    (validating,) = [
        one
        for one in manifests("--namespace", "elsewhere")
        if one["kind"] == "ValidatingWebhookConfiguration"
    ]
    (selector,) = validating["webhooks"][0]["namespaceSelector"]["matchExpressions"]

    assert "elsewhere" in selector["values"]
    assert "partage-system" not in selector["values"]


def manifests(*options: str) -> list[Json]:
    """What the command prints to install it."""
    run = CliRunner().invoke(webhook, ["--manifests", *options])
    assert run.exit_code == 0, run.output
    return [one for one in yaml.safe_load_all(run.output) if one]

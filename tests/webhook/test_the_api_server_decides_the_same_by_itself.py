"""The CEL of the conditions and of the admission policy, beside the webhook's own rules."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reviews import Json, container, context, pod, review

from partage.vendors.reserved import RESERVED
from partage.webhook.installation import MUTATE, VALIDATE, Endpoint, conditions, installation
from partage.webhook.manifest import names_devices
from partage.webhook.review import decode_review
from partage.webhook.settings import Admission
from partage.webhook.validating import validate

celpy = pytest.importorskip("celpy", reason="cel-python is not installed: CEL is not evaluated")

WRITER = "system:serviceaccount:partage-system:partage-scheduler"
OBJECTS = {
    one["kind"]: one for one in installation(Endpoint(), context(), Admission(break_glass="sre"))
}
POLICY = OBJECTS["ValidatingAdmissionPolicy"]["spec"]


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


def denied(request: Json) -> list[str]:
    """What the policy says against the request; empty where it lets it pass."""
    if not all(holds(one["expression"], request) for one in POLICY["matchConditions"]):
        return []
    return [
        one["message"] for one in POLICY["validations"] if not holds(one["expression"], request)
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
        pod(container("a"), container("b", limits={"tke.cloud.tencent.com/qgpu-core": "5"})), True
    ),
    "an init container": (
        pod(initContainers=[container("i", limits={"koordinator.sh/gpu": "100"})]), True
    ),
    "the pod as a whole": (pod(resources={"limits": {"koordinator.sh/gpu": "100"}}), True),
    "overhead": (pod(overhead={"koordinator.sh/gpu": "100"}), True),
}  # fmt: skip


@pytest.mark.parametrize(("manifest", "expected"), ASKED.values(), ids=ASKED)
def test_only_pods_that_concern_partage_depend_on_the_webhook(
    manifest: Json,
    expected: bool,  # noqa: FBT001 # a column of the table
) -> None:
    """The mutating webhook is asked exactly where a device is named."""
    assert asked(MUTATE, request_of(manifest)) is expected
    assert asked(VALIDATE, request_of(manifest)) is expected


def test_a_reserved_key_alone_is_asked_about_and_a_leaving_pod_is_not() -> None:
    """Validation hears of reserved keys; whoever removes a finalizer is not held up."""
    carrying = pod(meta={"annotations": {"partage.io/allocation": "{}"}})
    leaving = pod(
        container(limits={"nvidia.com/gpu": "1"}),
        meta={"deletionTimestamp": "2026-01-01T00:00:00Z"},
    )

    assert asked(VALIDATE, request_of(carrying))
    assert not asked(MUTATE, request_of(carrying))
    assert asked(VALIDATE, request_of(pod(), carrying))
    assert not asked(VALIDATE, request_of(leaving, leaving))


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
    """Whatever the webhook would look at is what the API server asks about."""
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
    "a changed record": (
        with_meta("annotations", **{KEY: "b"}), with_meta("annotations", **{KEY: "a"}), True
    ),
    "a removed record": (pod(), with_meta("annotations", **{KEY: "a"}), True),
    "a removed prefixed key": (pod(), with_meta("annotations", **{PREFIXED: "0"}), True),
    "a changed prefixed key": (
        with_meta("annotations", **{PREFIXED: "1"}), with_meta("annotations", **{PREFIXED: "0"}), True
    ),
    "a removed label": (with_meta("labels", a="b"), with_meta("labels", **{LABEL: "n1"}), True),
    "a record left alone": (
        with_meta("annotations", **{KEY: "a", "x": "new"}), with_meta("annotations", **{KEY: "a"}), False
    ),
}  # fmt: skip


@pytest.mark.parametrize(("after", "before", "expected"), FORGED.values(), ids=FORGED)
def test_forging_is_refused_without_the_webhook(
    after: Json,
    before: Json | None,
    expected: bool,  # noqa: FBT001 # a column of the table
) -> None:
    """The policy says no exactly where the webhook does, to everybody but the writers."""
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
METAS = st.fixed_dictionaries({}, optional={"annotations": PAIRS, "labels": st.dictionaries(
    st.sampled_from([LABEL, "app"]), st.sampled_from(["a", "b"]), max_size=2)})  # fmt: skip


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


def test_own_and_system_namespaces_are_left_out_and_nothing_can_hang() -> None:
    """So that what Partage runs on can start while Partage is down."""
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        (hook,) = OBJECTS[kind]["webhooks"]
        (elsewhere,) = hook["namespaceSelector"]["matchExpressions"]
        assert elsewhere["operator"] == "NotIn"
        assert {"kube-system", "partage-system"} <= set(elsewhere["values"])
        assert hook["timeoutSeconds"] <= 10
        assert [rule["resources"] for rule in hook["rules"]] == [["pods"]]
    (rule,) = POLICY["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["pods", "pods/*", "bindings"]
    assert "CONNECT" not in rule["operations"]
    assert OBJECTS["ValidatingAdmissionPolicyBinding"]["spec"]["validationActions"] == ["Deny"]

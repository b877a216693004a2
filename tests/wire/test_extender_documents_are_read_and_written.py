"""What kube-scheduler sends besides what the service's tests send, and a quick check for pods with devices."""

import json

import pytest
from manifests import container, documents, pod

from partage.model.errors import InvalidDocument
from partage.model.reason import NodeReason, ReasonCode, Refusal
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire import shapes
from partage.wire.context import Context
from partage.wire.extender import (
    Victims,
    decode_bind,
    decode_filter,
    decode_preempt,
    filter_reply,
    passing_reply,
    preempt_reply,
    refused_reply,
)
from partage.wire.translation import is_flexible, names_devices

CONTEXT = Context.of(Settings(), FAMILIES)
GPU = {"koordinator.sh/gpu": "100"}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}


def _spec(manifest: object) -> shapes.PodSpec | None:
    (document,) = documents(manifest)
    assert isinstance(document.shape, shapes.Pod)
    return document.shape.spec


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, False),
        ({"affinity": {"nodeAffinity": PREFERRED}}, True),
        ({"affinity": {"podAffinity": PREFERRED}}, True),
        ({"affinity": {"podAntiAffinity": REQUIRED}}, False),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, False),
    ],
    ids=["none", "nodes", "pods", "required", "any way", "or not"],
)
def test_wishes_that_only_kube_scheduler_weighs_are_seen(spec: object, expected: object) -> None:
    """Required rules have been checked before an extender is asked."""
    assert isinstance(spec, dict)

    assert is_flexible(_spec(pod("web", **spec))) is expected


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (pod("web", container(limits={"cpu": "1"})), False),
        (pod("web", container(limits=GPU)), True),
        (pod("web", container(requests=GPU)), True),
        (pod("web", container(), initContainers=[container("i", requests=GPU)]), True),
        (pod("web", container(), resources={"limits": GPU}), True),
        (pod("web", container(), overhead=GPU), True),
        (pod("web", container(limits={"metax-tech.com/sgpu": "1"})), False),
    ],
    ids=["cpu", "limits", "requests", "init", "pod", "overhead", "trigger alone"],
)
def test_pods_that_name_devices_are_told_from_others(manifest: object, expected: object) -> None:
    """A device may be named anywhere, even where it is not allowed."""
    assert names_devices(_spec(manifest), CONTEXT) is expected
    assert not names_devices(None, CONTEXT)


def test_the_prepared_answer_is_the_plain_one() -> None:
    """The fast form says the same as the slow one."""
    args = decode_filter(json.dumps({"Pod": pod(), "NodeNames": ["a", 'b"', "ü"]}).encode())

    passing = json.loads(filter_reply(args, args.names))
    assert json.loads(passing_reply(args)) == passing


@pytest.mark.parametrize(
    "body",
    [
        {"Pod": {"metadata": {}}},
        {"Pod": pod(), "Nodes": {"items": [{"metadata": {}}]}},
        {"Pod": pod(), "Nodes": {"items": [{"metadata": None}]}},
    ],
    ids=["pod without a name", "node without a name", "node without metadata"],
)
def test_what_has_no_name_is_refused(body: object) -> None:
    """No answer could name it."""
    with pytest.raises(InvalidDocument, match="name"):
        decode_filter(json.dumps(body).encode())


def test_names_that_are_no_array_do_not_pass() -> None:
    """They are returned unread only where they can be names."""
    args = decode_filter(json.dumps({"Pod": pod(), "NodeNames": {"a": 1}}).encode())

    with pytest.raises(InvalidDocument, match="array"):
        passing_reply(args)


def test_no_nodes_at_all_is_a_question_about_none() -> None:
    """Go writes null for both."""
    args = decode_filter(json.dumps({"Pod": pod(), "Nodes": None, "NodeNames": None}).encode())

    assert args.names == []
    assert json.loads(passing_reply(args))["NodeNames"] == []


@pytest.mark.parametrize("missing", ["PodName", "PodUID", "Node"])
def test_bind_names_what_is_missing(missing: str) -> None:
    """The namespace alone has a default."""
    full = {"PodName": "web", "PodUID": "u", "Node": "n"}

    assert decode_bind(json.dumps(full).encode()).namespace == "default"
    with pytest.raises(InvalidDocument, match=missing):
        decode_bind(json.dumps({**full, missing: ""}).encode())


@pytest.mark.parametrize(
    ("field", "pods"),
    [
        ("NodeNameToMetaVictims", [{"UID": "u1"}, {"UID": "u2"}]),
        ("nodenametovictims", [{"metadata": {"uid": "u1"}}, {"metadata": {"uid": "u2"}}, {}]),
    ],
)
def test_victims_are_read_in_both_forms(field: str, pods: list[object]) -> None:
    """By identity or as whole pods; one without an identity is none."""
    victims = {"n": {"Pods": pods, "NumPDBViolations": 2}, "idle": {}}

    read = decode_preempt(json.dumps({"Pod": pod(), field: victims}).encode())

    assert read.victims == {"n": Victims(("u1", "u2"), 2), "idle": Victims(())}
    answer = json.loads(preempt_reply(read.victims))["NodeNameToMetaVictims"]
    assert answer["n"] == {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 2}


@pytest.mark.parametrize(
    ("code", "helped", "hopeless"),
    [
        (ReasonCode.INSUFFICIENT_MEMORY, {"a", "c"}, {"b"}),
        (ReasonCode.SEARCH_DEFERRED, {"a"}, {"b", "c"}),
        (ReasonCode.INVALID_REQUEST, {"a"}, {"b", "c"}),
    ],
)
def test_a_refusal_says_of_each_node_whether_evicting_helps(
    code: ReasonCode, helped: set[str], hopeless: set[str]
) -> None:
    """A node without a reason of its own is hopeless only if the pod is, or if its search was put off."""
    args = decode_filter(json.dumps({"Pod": pod(), "NodeNames": ["a", "b", "c"]}).encode())
    nodes = {
        "a": NodeReason(ReasonCode.INSUFFICIENT_MEMORY, "8Gi of 16Gi"),
        "b": NodeReason(ReasonCode.TAINT, "dedicated"),
    }

    answer = json.loads(refused_reply(args, args.names, Refusal(code, "x" * 2_000_000, nodes)))

    assert answer["NodeNames"] == []
    assert set(answer["FailedNodes"]) == helped
    assert set(answer["FailedAndUnresolvableNodes"]) == hopeless
    assert answer["FailedNodes"]["a"] == "InsufficientMemory: 8Gi of 16Gi"
    told = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    assert told["c"].startswith(code)
    assert len(json.dumps(answer)) < 2_000_000

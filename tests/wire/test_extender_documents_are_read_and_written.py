"""What kube-scheduler sends besides what the service's tests send, and a quick check for pods with devices."""

import json

import pytest
from manifests import container, documents, pod

from partage.model.errors import InvalidDocument
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire import shapes
from partage.wire.context import Context
from partage.wire.extender import (
    decode_bind,
    decode_filter,
    filter_reply,
    passing_reply,
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
    assert not is_flexible(None)


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

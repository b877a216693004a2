"""Mutation: what the webhook fills in, and what it leaves alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reviews import Json, answered, container, context, mutated, pod, review, validated

from partage.vendors import names
from partage.webhook.mutating import mutate
from partage.webhook.settings import Admission

HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}


def _resources(manifest: Json, index: int = 0) -> Json:
    found: Json = manifest["spec"]["containers"][index]["resources"]
    return found


@pytest.mark.parametrize("given_in", ["limits", "requests"])
def test_devices_are_copied_between_requests_and_limits(given_in: str) -> None:
    """The published example has requests alone, which no API server takes for extended names."""
    result = mutated(review(pod(container(**{given_in: {"cpu": "1", **HALF}}))))

    found = _resources(result)
    assert {k: found["limits"][k] for k in HALF} == HALF
    assert {k: found["requests"][k] for k in HALF} == HALF
    other = "requests" if given_in == "limits" else "limits"
    assert "cpu" not in found[other]


def test_init_containers_and_vendors_triggers_are_copied_too() -> None:
    """Every name of a device is copied, in any container."""
    limits = {
        "koordinator.sh/gpu.shared": "1",
        "koordinator.sh/gpu-memory": "1Gi",
        "metax-tech.com/sgpu": "1",
    }
    manifest = pod(container(), initContainers=[container("first", requests=limits)])

    result = mutated(review(manifest))

    assert result["spec"]["initContainers"][0]["resources"]["limits"] == limits


def test_amounts_that_differ_are_left_for_validation() -> None:
    """The webhook does not guess which one is meant."""
    manifest = pod(
        container(limits={"koordinator.sh/gpu": "100"}, requests={"koordinator.sh/gpu": "50"})
    )

    assert _resources(mutated(review(manifest))) == _resources(manifest)


@pytest.mark.parametrize(
    "scheduler", ["", "koord-scheduler", "partage-scheduler", "hami-scheduler"]
)
def test_a_lone_count_in_percent_becomes_cards_and_keeps_its_original(scheduler: str) -> None:
    """The published page writes 100 for one card; a quota then counts one."""
    limits = {"nvidia.com/gpu": "200"}
    asked = review(pod(container(limits=limits), container("b"), schedulerName=scheduler))

    result = mutated(asked)

    assert _resources(result)["limits"]["nvidia.com/gpu"] == "2"
    assert _resources(result)["requests"]["nvidia.com/gpu"] == "2"
    original = json.loads(result["metadata"]["annotations"][names.ORIGINAL_REQUEST])
    assert original == {"main": limits}


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpu": "2"},
        {"nvidia.com/gpu": "150"},
        {"nvidia.com/gpu": "0"},
        {"nvidia.com/gpu": "10000"},
        {"nvidia.com/gpu": "100", "nvidia.com/gpumem": "1000"},
        {"nvidia.com/gpu": "x"},
    ],
    ids=["cards", "no hundreds", "none", "hundreds of cards", "HAMi's count", "no number"],
)
def test_other_counts_stay_as_they_are(limits: Json) -> None:
    """Only what can mean nothing but percent is rewritten."""
    manifest = pod(container(limits=limits), schedulerName="partage-scheduler")

    result = mutated(review(manifest))

    assert _resources(result)["limits"]["nvidia.com/gpu"] == limits["nvidia.com/gpu"]
    assert names.ORIGINAL_REQUEST not in result["metadata"].get("annotations", {})


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"nvidia.com/gpumem": "3000"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"},
            {
                "nvidia.com/gpu": "1",
                "nvidia.com/gpumem-percentage": "100",
                "nvidia.com/gpucores": "100",
            },
        ),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
        ),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"},
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"},
        ),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "0"},
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "0"},
        ),
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "0"},
            {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "0"},
        ),
    ],
    ids=["count", "all of a card", "memory given", "part given", "no part given", "cores given"],
)
def test_hamis_defaults_are_written_where_hami_reads(limits: Json, expected: Json) -> None:
    """Count 1 when only amounts are asked; all compute when all memory is; what is said stays."""
    result = mutated(review(pod(container(limits=limits))))

    assert _resources(result)["limits"] == expected


@pytest.mark.parametrize(
    "limits",
    [
        {"nvidia.com/gpu": "-1", "nvidia.com/gpumem": "1000"},
        {"nvidia.com/gpu": "many", "nvidia.com/gpumem": "1000"},
        {
            "nvidia.com/gpu": "1",
            "nvidia.com/gpumem-percentage": "100",
            "nvidia.com/gpucores": "-5",
        },
    ],
    ids=["negative count", "no number", "negative cores"],
)
def test_no_default_stands_for_a_broken_amount(limits: Json) -> None:
    """It stays as its author wrote it, so it is refused: no pod gets a card for less than none."""
    result = mutated(review(pod(container(limits=limits))))

    assert _resources(result)["limits"] == limits


def test_a_lone_count_gets_hamis_cores_only_from_hamis_scheduler() -> None:
    """For all others it would become another protocol's request."""
    limits = {"nvidia.com/gpu": "1"}

    hami = mutated(review(pod(container(limits=limits), schedulerName="hami-scheduler")))
    other = mutated(review(pod(container(limits=limits), schedulerName="koord-scheduler")))

    assert _resources(hami)["limits"] == {**limits, "nvidia.com/gpucores": "100"}
    assert _resources(other)["limits"] == limits


def test_hamis_names_and_defaults_are_those_of_its_configuration() -> None:
    """Renamed resources, and a default count of 0 that adds nothing."""
    read = context(count_name="example.com/vgpu", default_count=2)
    none = context(default_count=0)

    renamed = mutated(review(pod(container(limits={"nvidia.com/gpumem": "10"}))), read)
    plain = mutated(review(pod(container(limits={"nvidia.com/gpumem": "10"}))), none)

    assert _resources(renamed)["limits"]["example.com/vgpu"] == "2"
    assert list(_resources(plain)["limits"]) == ["nvidia.com/gpumem"]


@pytest.mark.parametrize("env", [None, [], [{"name": "A", "value": "b"}]])
def test_a_priority_reaches_the_library_by_its_variable(env: list[Json] | None) -> None:
    """Once, and without disturbing what is there."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10", "nvidia.com/priority": "1"}
    more = {} if env is None else {"env": env}

    result = mutated(review(pod(container(limits=limits, **more))))
    again = mutated(review(result))

    expected = [*(env or []), {"name": "CUDA_TASK_PRIORITY", "value": "1"}]
    assert result["spec"]["containers"][0]["env"] == expected
    assert again == result


def test_koordinators_names_are_left_as_they_were_written() -> None:
    """The engine reads them itself; upstream's rewriting only makes requests that are refused."""
    limits = {"koordinator.sh/gpu": "200"}

    assert _resources(mutated(review(pod(container(limits=limits)))))["limits"] == limits


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, "partage-scheduler"),
        ("", "partage-scheduler"),
        ("default-scheduler", "partage-scheduler"),
        ("koord-scheduler", "koord-scheduler"),
        ("hami-scheduler", "hami-scheduler"),
    ],
)
def test_device_pods_of_the_default_scheduler_become_partages(
    name: str | None, expected: str
) -> None:
    """Other names that Partage serves stay: they show whose a lone count is."""
    spec = {} if name is None else {"schedulerName": name}

    result = mutated(review(pod(container(limits=HALF), **spec)))

    assert result["spec"]["schedulerName"] == expected


def test_pods_of_other_schedulers_are_left_alone_and_warned() -> None:
    """Partage does not reserve their devices, and the user gets a warning at once."""
    manifest = pod(container(requests=HALF), schedulerName="volcano")
    off = Admission(convert_default=False)
    default = pod(container(requests=HALF))

    assert mutated(review(manifest)) == manifest
    assert mutated(review(default), admission=off) == default
    response = answered(mutate, review(manifest), context(), Admission())
    assert "volcano" in response["warnings"][0]
    assert "volcano" in validated(review(manifest))["warnings"][0]


@pytest.mark.parametrize(
    "asked",
    [
        review(pod(container(limits={"cpu": "1"}))),
        review(pod(container(limits=HALF)), "UPDATE", pod()),
        review(pod(container(limits=HALF)), namespace="kube-system"),
        review(pod(container(limits=HALF)), resource="pods/status"),
        review(None, "DELETE", pod(container(limits=HALF))),
        review({"spec": {"containers": "none", "initContainers": [5]}}),
        review(pod({"name": 5, "resources": {"limits": {"cpu": {}}}}, meta={"labels": 7})),
    ],
    ids=["no devices", "update", "excluded", "subresource", "deletion", "odd", "odder"],
)
def test_nothing_else_is_ever_touched(asked: Json) -> None:
    """Nothing can stop or change pods without devices, whatever else they are."""
    response = answered(mutate, asked, context(), Admission())

    assert response["allowed"]
    assert "patch" not in response


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        (pod(container(limits=HALF), nodeSelector=[]), 400),
        (pod(container(limits={**HALF, "cpu": "much"})), 422),
    ],
    ids=["wrong type", "no quantity"],
)
def test_a_device_pod_that_cannot_be_read_is_refused_with_the_field(
    manifest: Json, code: int
) -> None:
    """It would be refused by the API server itself a moment later."""
    response = answered(mutate, review(manifest), context(), Admission())

    assert not response["allowed"]
    assert response["status"]["code"] == code
    assert "spec" in response["status"]["message"]


NAMES = st.sampled_from(
    [
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
        "cpu",
        "nvidia.com/gpumem-percentage",
        "koordinator.sh/gpu",
        "kubernetes.io/gpu-core",
        "tke.cloud.tencent.com/qgpu-core",
    ]
)
AMOUNTS = st.none() | st.dictionaries(
    NAMES, st.sampled_from(["0", "1", "50", "100", "200", 100, "3000"]), max_size=3
)


@given(
    st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=2),
    st.sampled_from(["", "hami-scheduler", "koord-scheduler"]),
)
def test_mutating_twice_changes_nothing_more(
    amounts: list[tuple[Json | None, Json | None]], scheduler: str
) -> None:
    """The API server may call again after another webhook."""
    containers = [
        container(f"c{i}", limits, requests) for i, (limits, requests) in enumerate(amounts)
    ]
    once = mutated(review(pod(*containers, schedulerName=scheduler)))

    assert mutated(review(once)) == once


def test_what_another_webhook_adds_between_two_calls_is_completed_beside_the_rest() -> None:
    """The originals of both calls are kept; what is no such annotation is replaced."""
    once = mutated(review(pod(container("a", {"nvidia.com/gpu": "200"}))))
    once["spec"]["containers"].append(container("b", {"nvidia.com/gpu": "300"}))

    twice = mutated(review(once))

    amounts = [one["resources"]["limits"]["nvidia.com/gpu"] for one in twice["spec"]["containers"]]
    assert amounts == ["2", "3"]
    kept = json.loads(twice["metadata"]["annotations"][names.ORIGINAL_REQUEST])
    assert kept == {"a": {"nvidia.com/gpu": "200"}, "b": {"nvidia.com/gpu": "300"}}
    for odd in ("[]", "{", '{"b": 5}', "9" * 5000):
        once["metadata"]["annotations"][names.ORIGINAL_REQUEST] = odd
        told = mutated(review(once))["metadata"]["annotations"][names.ORIGINAL_REQUEST]
        assert json.loads(told) == {"b": {"nvidia.com/gpu": "300"}}

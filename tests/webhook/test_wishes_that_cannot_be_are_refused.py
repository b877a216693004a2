"""What a pod chooses about its limits is judged when it is made, in the agent's own words."""

import pytest
from reviews import Json, container, pod, review, validated

from partage.model.errors import InvalidValue
from partage.vendors import names
from partage.vendors.wishes import POLICIES, read_wishes

SHARE = {"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory": "4Gi"}
HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"}
QGPU = {names.QGPU_CORE: "30", names.QGPU_MEMORY: "4"}
PROTOCOLS = {"koordinator": SHARE, "hami": HAMI, "qgpu": QGPU}


def _asking(amounts: Json, **annotations: str) -> Json:
    keys = {
        "policy": names.COMPUTE_POLICY,
        "app": names.QGPU_APP_CLASS,
        "beyond": names.MEMORY_BEYOND,
    }
    said = {keys[key]: value for key, value in annotations.items()}
    return pod(container("main", amounts), meta={"annotations": said})


@pytest.mark.parametrize("amounts", PROTOCOLS.values(), ids=PROTOCOLS)
@pytest.mark.parametrize(
    "wishes",
    [
        {"policy": "fair"},
        {"policy": ""},
        {"policy": "Best-Effort"},
        {"app": "vip"},
        {"beyond": "much"},
        {"beyond": "-1"},
    ],
    ids=str,
)
def test_a_word_that_is_no_choice_is_refused_in_the_agents_words(
    amounts: Json, wishes: dict[str, str]
) -> None:
    """Annotation, value and what may be chosen; one place of truth for both."""
    wanted = _asking(amounts, **wishes)

    response = validated(review(wanted))

    assert not response["allowed"]
    assert response["status"]["code"] == 422
    with pytest.raises(InvalidValue) as refused:
        read_wishes(wanted["metadata"]["annotations"], {}, 0)
    assert str(refused.value) in response["status"]["message"]


def test_the_refusal_names_all_that_may_be_chosen() -> None:
    """It has full names and abbreviations."""
    message = validated(review(_asking(SHARE, policy="fair")))["status"]["message"]

    assert f"annotation {names.COMPUTE_POLICY}: 'fair' is not one of" in message
    assert all(word in message for word in POLICIES)


@pytest.mark.parametrize("amounts", PROTOCOLS.values(), ids=PROTOCOLS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_choice_is_admitted(amounts: Json, policy: str) -> None:
    """This holds for every protocol whose shares Partage's library keeps."""
    assert validated(review(_asking(amounts, policy=policy)))["allowed"]


@pytest.mark.parametrize(
    ("amounts", "policy", "why"),
    [
        ({"koordinator.sh/gpu-memory": "4Gi"}, "fixed-share", "no quota of compute"),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}, "bs", "no quota of compute"),
        (
            {
                "koordinator.sh/gpu.shared": "1",
                "koordinator.sh/gpu-core": "30",
                "koordinator.sh/gpu-memory": "4Gi",
                "metax-tech.com/sgpu": "1",
            },
            "burst-share",
            "are enforced by their vendor",
        ),
    ],
    ids=["memory alone", "HAMi's memory alone", "MetaX"],
)
def test_a_policy_that_nobody_could_give_is_refused(amounts: Json, policy: str, why: str) -> None:
    """It would look like a promise."""
    response = validated(review(_asking(amounts, policy=policy)))

    assert not response["allowed"]
    assert why in response["status"]["message"]
    assert names.COMPUTE_POLICY in response["status"]["message"]


def test_best_effort_needs_no_quota() -> None:
    """It promises none."""
    memory = {"koordinator.sh/gpu-memory": "4Gi"}

    assert validated(review(_asking(memory, policy="best-effort")))["allowed"]


def test_a_policy_for_whole_cards_is_told_to_mean_nothing() -> None:
    """A warning, not a refusal: the pod gets more than it chose."""
    response = validated(review(_asking({"koordinator.sh/gpu": "100"}, policy="fixed-share")))

    assert response["allowed"]
    assert any("has no effect" in warning for warning in response["warnings"])


def test_pods_without_devices_may_say_what_they_like() -> None:
    """No program reads it."""
    assert validated(review(_asking({"cpu": "1"}, policy="fair")))["allowed"]

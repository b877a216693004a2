"""Everything in an allocation beyond its claim's requests is reported: devices, amounts, other requests."""

from typing import Any

import pytest

from claim_documents import claim, document, result, share
from partage.wire.claims import beyond_asked


def asking(**exactly: Any) -> dict[str, Any]:
    """A claim of one request."""
    made = claim()
    (request,) = made["spec"]["devices"]["requests"]
    request["exactly"] |= exactly
    return made


def beyond(asked: dict[str, Any], *results: Any) -> str:
    """What is reported."""
    return beyond_asked(document(claim(*results)), document(asked))


HALF = asking(capacity={"requests": {"cores": "50", "memory": "10.5Mi"}})


@pytest.mark.parametrize(
    ("cores", "memory", "told"),
    [
        ("50", "11Mi", ""),
        ("1", "1Mi", ""),
        ("51", "11Mi", "request gpu: more cores than it asks for"),
        ("50", "12Mi", "request gpu: more memory than it asks for"),
        ("odd", "11Mi", "request gpu: more cores than it asks for"),
    ],
)
def test_amounts_are_compared_in_the_steps_in_which_they_are_given(
    cores: str, memory: str, told: str
) -> None:
    """A request is rounded up as the allocator rounds it; what cannot be read is too much."""
    assert beyond(HALF, share(cores=cores, memory=memory)) == told


@pytest.mark.parametrize(
    ("memory", "told"), [("1Mi", ""), ("2Mi", "request gpu: more memory than it asks for")]
)
def test_a_request_for_no_memory_gets_the_least_that_a_share_has(memory: str, told: str) -> None:
    """The allocator rounds it up to that; its pods would wait forever."""
    none = asking(capacity={"requests": {"cores": "0", "memory": "0"}})
    assert beyond(none, share(cores="0", memory=memory)) == told


def test_an_amount_under_both_of_its_names_is_the_larger_one() -> None:
    """All of the card is then in the books, because such an allocation cannot be read."""
    twice = {"cores": "1", "gpu.partage.io/cores": "100", "memory": "1Mi"}
    assert beyond(HALF, result(consumedCapacity=twice)) != ""


def test_what_is_not_asked_for_may_be_any() -> None:
    """A whole card, for a request that names none; not for one that names amounts."""
    assert beyond(asking(), share(cores="100", memory="40Gi")) == ""
    assert beyond(asking(), result()) == ""
    assert beyond(HALF, result()) != ""


def test_an_instance_has_no_amounts_of_its_own() -> None:
    """The request's amounts chose it; nothing is consumed of it."""
    assert beyond(HALF, result("gpu-2-mig-2g-20gb-0")) == ""


def test_devices_are_counted_by_request() -> None:
    """One where nothing is said, all where that is asked for."""
    two = share("gpu-0"), share("gpu-1")
    assert beyond(asking(), *two) == "request gpu: more devices than it asks for"
    assert beyond(asking(count=2), *two) == ""
    assert beyond(asking(count="two"), *two) == "request gpu: more devices than it asks for"
    assert beyond(asking(allocationMode="All"), *two) == ""
    assert beyond(asking(), share(request="other")) == "the claim has no request other"
    assert beyond(asking(), share(driver="gpu.example.com"), share("gpu-1", driver="b")) == ""


def test_alternatives_have_names_of_their_own() -> None:
    """`request/alternative`, as the allocator writes them."""
    made = claim()
    made["spec"]["devices"]["requests"] = [
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "small", "capacity": {"requests": {"cores": "10"}}},
                {"name": "big"},
            ],
        },
    ]
    assert beyond(made, share(request="gpu/big", cores="90")) == ""
    assert beyond(made, share(request="gpu/small", cores="90")) != ""
    assert beyond(made, share(request="gpu")) == "the claim has no request gpu"

"""What ResourceClaims ask together is a request of the engine's; where that cannot be said exactly, there is none."""

import json
from typing import Any

import pytest

from claim_documents import claim, document, share
from partage.model.device import MILLI, SliceMode
from partage.model.request import DeviceRequest, PodRequest
from partage.vendors.names import MIG_CLASS, SHARE_CLASS, TRANSLATED
from partage.wire.claim_requests import request_of_claims
from partage.wire.claim_shapes import Shape, Translated, encode_translated
from partage.wire.documents import Document
from partage.wire.extender import decode_pod

OURS = 'device.attributes["gpu.partage.io"]'
GIB = 2**30


def pod(**annotations: str) -> Document:
    """A pod whose claims these are."""
    metadata = {"name": "p", "namespace": "team", "uid": "p", "annotations": annotations}
    return decode_pod(json.dumps({"metadata": metadata, "spec": {}}).encode())


def wanting(cores: str = "30", memory: str = "10Gi", **more: Any) -> Document:
    """A claim of one share that is not allocated."""
    manifest = claim()
    capacity = {"requests": {"cores": cores, "memory": memory}}
    exactly = {"deviceClassName": SHARE_CLASS, "capacity": capacity, **more}
    given = {key: value for key, value in exactly.items() if value is not None}
    manifest["spec"]["devices"]["requests"][0]["exactly"] = given
    return document(manifest)


def cel(*terms: str) -> list[dict[str, Any]]:
    """Selectors of one expression each."""
    return [{"cel": {"expression": one}} for one in terms]


def asks(found: PodRequest | None) -> list[DeviceRequest]:
    """The requests, of which each container has one."""
    assert found is not None
    return [group.request for group in found.groups]


def test_shares_ask_for_their_amounts() -> None:
    """Each claim in its turn, as containers do."""
    first, second = asks(request_of_claims(pod(), [wanting(), wanting("50", "1Gi", count=2)]))

    assert (first.core_milli, first.memory_bytes, first.count) == (300, 10 * GIB, 1)
    assert (second.core_milli, second.memory_bytes, second.count) == (500, GIB, 2)


def test_all_compute_is_a_whole_card() -> None:
    """No pod shares it, whatever memory is named."""
    (whole,) = asks(request_of_claims(pod(), [wanting("100", "1Gi")]))

    assert whole.whole
    assert (whole.core_milli, whole.memory_milli) == (MILLI, MILLI)


def test_equal_attributes_choose_cards() -> None:
    """Joined, and the same said twice."""
    terms = cel(f'{OURS}.model == "A100" && {OURS}.vendor == "nvidia"', f'{OURS}.model == "A100"')

    (found,) = asks(request_of_claims(pod(), [wanting(selectors=terms)]))

    assert (found.filter.use_types, found.filter.vendors) == (("A100",), ("nvidia",))


def test_an_instance_is_asked_for_by_its_profile() -> None:
    """The class has instances; amounts beside a profile are left to kube-scheduler."""
    profile = cel(f'{OURS}.profile == "1g.10gb"')
    asked = {"deviceClassName": MIG_CLASS, "selectors": profile}

    (found,) = asks(request_of_claims(pod(), [wanting(capacity=None, **asked)]))

    assert (found.instances, found.profile) == (True, "1g.10gb")
    assert found.filter.modes == (SliceMode.MIG,)
    assert request_of_claims(pod(), [wanting(**asked)]) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"deviceClassName": "gpu.example.com"},
        {"allocationMode": "All"},
        {"adminAccess": True},
        {"selectors": cel(f"{OURS}.memory > 1")},
        {"selectors": cel(f'{OURS}.model == "A100"', f'{OURS}.model == "H100"')},
        {"selectors": cel(f'{OURS}.profile == "1g.10gb"')},
        {"capacity": {"requests": {"cores": "30"}}},
        {"capacity": {"requests": {"memory": "1Gi"}}},
        {"capacity": {"requests": {"cores": "101", "memory": "1Gi"}}},
        {"capacity": {"requests": {"cores": "30", "memory": "1Gi", "else": "1"}}},
        {"deviceClassName": MIG_CLASS, "capacity": None},
        {"capacity": {"requests": {"cores": "much"}}},
    ],
)
def test_what_is_not_exact_is_left_to_kube_scheduler(odd: dict[str, Any]) -> None:
    """Alone, and beside a claim that is."""
    assert request_of_claims(pod(), [wanting(**odd)]) is None
    assert request_of_claims(pod(), [wanting(), wanting(**odd)]) is None


def test_allocated_claims_and_too_many_are_left_to_kube_scheduler() -> None:
    """Each request costs a look at all nodes."""
    assert request_of_claims(pod(), []) is None
    assert request_of_claims(pod(), [document(claim(share()))]) is None
    assert request_of_claims(pod(), [pod()]) is None
    assert request_of_claims(pod(), [wanting()] * 100) is None


def test_alternatives_and_constraints_are_left_to_kube_scheduler() -> None:
    """One of several, or cards that are alike."""
    for change in ("alternatives", "constraints"):
        manifest = claim()
        devices = manifest["spec"]["devices"]
        exactly = {
            "deviceClassName": SHARE_CLASS,
            "capacity": {"requests": {"cores": "30", "memory": "1Gi"}},
        }
        (request,) = devices["requests"]
        request["exactly"] = exactly
        assert request_of_claims(pod(), [document(manifest)]) is not None
        if change == "alternatives":
            first = [{"name": f"n{number}", **exactly} for number in range(2)]
            devices["requests"] = [{"name": "gpu", "firstAvailable": first}]
        else:
            devices["constraints"] = [{"matchAttribute": "gpu.partage.io/model"}]
        assert request_of_claims(pod(), [document(manifest)]) is None


def test_a_pod_that_became_claims_asks_as_it_did() -> None:
    """Its annotation says what claims cannot; one that does not match the claims is ignored."""
    asked = Shape(core_milli=300, memory_milli=500)
    told = encode_translated({"main": Translated(asked)})

    (found,) = asks(request_of_claims(pod(**{TRANSLATED: told}), [wanting()]))
    assert (found.core_milli, found.memory_milli, found.memory_bytes) == (300, 500, 0)

    for said in ("{", "[]", told):
        more = [wanting(), wanting()] if said == told else [wanting()]
        first = asks(request_of_claims(pod(**{TRANSLATED: said}), more))[0]
        assert (first.memory_milli, first.memory_bytes) == (0, 10 * GIB)

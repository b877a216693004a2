"""The lists of pods include pods that ask by ResourceClaims alone, except those of other drivers."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from world import document, half, pod

from partage.dashboard import overview
from partage.dashboard.overview import overview_document
from partage.dashboard.queries import PodQuery
from partage.dashboard.workloads import claimant_document, pods_document
from partage.extender import claimants
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.extender.rebuild import filled
from partage.wire import shapes
from partage.wire.documents import Document

SHARE, OTHER = "share.gpu.partage.io", "gpu.example.com"


def claim(
    device_class: str, uid: str = "c", namespace: str = "team", results: Any = ()
) -> Document:
    """A claim of one device."""
    allocation = {"allocation": {"devices": {"results": results}}} if results else {}
    request = {"name": "r", "exactly": {"deviceClassName": device_class}}
    return document(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": namespace, "uid": uid},
            "spec": {"devices": {"requests": [request]}},
            "status": allocation,
        }
    )


def claimant(name: str, version: int = 1, namespace: str = "team", **more: Any) -> Document:
    """A pod that names the claim and no device."""
    meta = {"uid": name, "resourceVersion": str(version), "namespace": namespace}
    made = pod(name, {}, meta=meta)
    made["spec"] |= {"resourceClaims": [{"name": "d", "resourceClaimName": "c"}]} | more
    said = {"type": "PodScheduled", "status": "False", "message": "cannot allocate all claims"}
    made["status"] = {"phase": "Pending", "conditions": [said]}
    return document(made)


def books(device_class: str) -> Books:
    """Books that know one pod by its names, and one by the claim."""
    cluster_cache = ClusterCache()
    cluster_cache.claim_changed(claim(device_class))
    found = Books(cluster_cache, Hooks())
    ordinary = pod("m", half(), meta={"uid": "m", "resourceVersion": "1"})
    found.take([*cluster_cache.pod_changed(document(ordinary))], 0.0)
    for name in ("z", "a"):
        assert cluster_cache.pod_changed(claimant(name)) == []
    return found


def listed(of: Books, query: PodQuery) -> list[str]:
    """Names of the pods in the list."""
    return [one["name"] for one in asyncio.run(pods_document(of, query))["pods"]]


def test_they_stand_among_the_others_in_order() -> None:
    """They are in order of name, in pages, in searches, and in the overview's counts, with kube-scheduler's message."""
    known = books(SHARE)

    assert listed(known, PodQuery(state="waiting")) == ["a", "m", "z"]
    assert listed(known, PodQuery(reverse="yes")) == ["z", "m", "a"]
    assert listed(known, PodQuery(offset=2, limit=5)) == ["z"]
    assert listed(known, PodQuery(text="Z")) == ["z"]
    assert listed(known, PodQuery(protocol="claim")) == ["a", "z"]
    assert listed(known, PodQuery(order="age")) == ["m", "a", "z"]
    for none in (PodQuery(state="placed"), PodQuery(code="X"), PodQuery(namespace="other")):
        assert listed(known, none) == []
    seen = asyncio.run(overview_document(known))
    assert seen["pods"]["waiting"] == 3
    assert {one["name"]: one["message"] for one in seen["waiting"]}["a"] == (
        "it waits for its ResourceClaims: cannot allocate all claims"
    )
    assert seen["waiting_by_code"] == [{"code": "", "pods": 3}]
    assert seen["pods"]["waiting_by_claims"] == 2  # kube-scheduler's own rules keep none of these


def ended() -> Document:
    """The pod, which has run to its end."""
    made = claimant("a", 2, nodeName="n1")
    assert isinstance(made.shape, shapes.Pod)
    status = shapes.PodStatus(phase="Succeeded")
    return replace(made, shape=msgspec.structs.replace(made.shape, status=status))


@pytest.mark.parametrize(
    ("then", "placed"),
    [
        (claimant("a", 2, nodeName="n1"), ["a"]),
        (ended(), []),
        (claimant("a", 2, resourceClaims=[]), []),
    ],
    ids=["bound", "ended", "asks no more"],
)
def test_they_wait_no_more(then: Document, placed: list[str]) -> None:
    """Their wait ends when they are bound or gone; an older state does not bring them back."""
    known = books(SHARE)
    cache = known.cluster_cache

    cache.pod_changed(then)
    cache.pod_gone("z")
    cache.pod_changed(claimant("z"))

    assert listed(known, PodQuery(state="waiting")) == ["m"]
    assert listed(known, PodQuery(state="placed")) == placed
    assert listed(known, PodQuery()) == [*placed, "m"]
    counted = asyncio.run(overview_document(known))["pods"]
    assert counted == {"placed": len(placed), "waiting": 1, "waiting_by_claims": 0}


def test_another_drivers_are_not_told() -> None:
    """Pods with unknown claims are not listed either."""
    assert listed(books(OTHER), PodQuery()) == ["m"]
    known = books(SHARE)
    known.cluster_cache.claim_gone(claim(SHARE))
    assert listed(known, PodQuery()) == ["m"]


@pytest.mark.parametrize(
    ("driver", "waiting"), [("gpu.partage.io", ["a", "m", "z"]), (OTHER, ["m"])]
)
def test_an_operators_class_of_this_driver_is_ours(driver: str, waiting: list[str]) -> None:
    """A class of another driver is not; a class may appear after its claims, change and be deleted."""
    known = Books(ClusterCache(), Hooks())
    ordinary = pod("m", half(), meta={"uid": "m", "resourceVersion": "1"})
    told = [claimant("z"), claimant("a"), document(ordinary), claim("fast"), fast(driver)]
    asyncio.run(filled(known, told))

    assert listed(known, PodQuery(state="waiting")) == waiting
    known.cluster_cache.changed(fast("third.example.com"))
    assert listed(known, PodQuery(state="waiting")) == ["m"]
    known.cluster_cache.changed(fast(driver))
    assert listed(known, PodQuery(state="waiting")) == waiting
    known.cluster_cache.gone(fast(driver))
    assert listed(known, PodQuery(state="waiting")) == ["m"]


@pytest.mark.parametrize(("driver", "placed"), [("gpu.partage.io", ["a"]), (OTHER, [])])
@pytest.mark.parametrize("device_class", [SHARE, "gone"])
def test_what_a_claim_holds_says_whose_it_is(
    driver: str, placed: list[str], device_class: str
) -> None:
    """This holds for any name of its class, known or unknown."""
    known = books(device_class)
    result = {"request": "r", "driver": driver, "pool": "n1", "device": "gpu-0"}
    known.cluster_cache.claim_changed(claim(device_class, results=[result]))
    known.cluster_cache.pod_changed(claimant("a", 2, nodeName="n1"))

    assert listed(known, PodQuery(state="placed")) == placed


def fast(driver: str) -> Document:
    """A class of an operator."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return document(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "fast"},
            "spec": {"selectors": [selector]},
        }
    )


def test_a_claim_may_come_after_its_pod() -> None:
    """It may be deleted before the pod, and another claim of its name may ask another driver."""
    known = books(OTHER)
    assert listed(known, PodQuery()) == ["m"]
    known.cluster_cache.claim_gone(claim(OTHER))
    known.cluster_cache.claim_changed(claim(SHARE, "c2"))
    assert listed(known, PodQuery()) == ["a", "m", "z"]
    known.cluster_cache.claim_gone(claim(OTHER))  # once more, and late
    assert listed(known, PodQuery()) == ["a", "m", "z"]
    known.cluster_cache.claim_gone(claim(SHARE, "c2"))
    known.cluster_cache.claim_changed(claim(SHARE, "c2"))  # late: it is gone
    assert listed(known, PodQuery()) == ["m"]


def test_a_claim_that_comes_and_goes_has_no_pod_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five thousand pods may name it: its creation and deletion took the scheduler 76 ms each."""
    known = books(SHARE)
    read: list[Document] = []
    named = claimants.claims_named

    def counted(one: Document) -> list[tuple[str, str, str]]:
        read.append(one)
        return named(one)

    monkeypatch.setattr(claimants, "claims_named", counted)

    for _ in range(3):
        known.cluster_cache.claim_gone(claim(SHARE))
        known.cluster_cache.claim_changed(claim(SHARE))

    assert not read


def test_a_crowd_of_one_namespace_hides_no_other() -> None:
    """Thousands of one namespace are listed first; the pod of another is found by name and namespace, and all count."""
    known = books(SHARE)
    for number in range(1200):
        known.cluster_cache.pod_changed(claimant(f"crowd-{number}"))
    known.cluster_cache.claim_changed(claim(SHARE, "other", "other"))
    late = claimant("late", namespace="other")
    known.cluster_cache.pod_changed(late)

    assert listed(known, PodQuery(namespace="other")) == ["late"]
    assert listed(known, PodQuery(text="late")) == ["late"]
    assert asyncio.run(overview_document(known))["pods"]["waiting"] == 1204


def test_only_shown_pods_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """The overview shows the first 20 in line, by priority, age and name, of however many wait."""
    known = books(SHARE)
    for number in range(200):
        known.cluster_cache.pod_changed(claimant(f"p{number:03}", priority=number))
    described: list[str] = []

    def counted(of: Books, one: Document) -> dict[str, Any]:
        described.append(one.name)
        return claimant_document(of, one)

    monkeypatch.setattr(overview, "claimant_document", counted)
    seen = asyncio.run(overview_document(known))

    assert [one["name"] for one in seen["waiting"]] == described
    assert described == [f"p{number:03}" for number in range(199, 179, -1)]

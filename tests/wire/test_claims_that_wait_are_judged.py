"""Claims of manifests are allocated as Kubernetes' allocator would; one that waits has its reason, card by card."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from partage.agent.discovery.found import Inventory
from partage.agent.dra.slices import Offered, resource_slices
from partage.model.node import Node
from partage.model.policy import Policy
from partage.model.reason import ReasonCode
from partage.sim.claims import ClaimAllocator
from partage.sim.offline import Outcome, PodOutcome, schedule
from partage.wire.cluster import assemble
from partage.wire.device_pools import Offer
from partage.wire.device_requests import Ask
from partage.wire.device_selectors import Selectors
from partage.wire.documents import decode

pytest.importorskip("celpy", reason="cel-python is not installed: selectors are not judged")

Manifest = dict[str, Any]
SHARE = "share.gpu.partage.io"
MIG = "mig.gpu.partage.io"
OURS = 'device.attributes["gpu.partage.io"]'


def _node(name: str = "n1", cards: int = 2, *, mig: bool = False) -> list[Manifest]:
    resources = {"gpu-core": "100", "gpu-memory": "40Gi", "gpu-memory-ratio": "100"}
    labels = {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": "NVIDIA-A100-SXM4-40GB",
    }
    register = [
        {
            "id": f"{name}-{n}",
            "index": n,
            "count": 10,
            "devmem": 40960,
            "devcore": 100,
            "type": "NVIDIA A100-SXM4-40GB",
            "mode": "mig",
            "health": True,
        }
        for n in range(cards)
    ]
    notes = {"hami.io/node-nvidia-register": json.dumps(register)} if mig else {}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": notes},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
    }
    devices = [
        {
            "type": "gpu",
            "id": f"{name}-{n}",
            "minor": n,
            "health": True,
            "resources": {f"koordinator.sh/{key}": value for key, value in resources.items()},
        }
        for n in range(cards)
    ]
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }
    return [node] if mig else [node, device]


def _request(name: str = "card", **exactly: Any) -> Manifest:
    return {"name": name, "exactly": {"deviceClassName": SHARE, **exactly}}


def _of(cores: int, memory: str, **more: Any) -> Manifest:
    return _request(capacity={"requests": {"cores": str(cores), "memory": memory}}, **more)


def _selected(expression: str, **more: Any) -> Manifest:
    return _request(selectors=[{"cel": {"expression": expression}}], **more)


def _ways(number: int, memory: str) -> Manifest:
    """A request with eight alternatives, which are alike."""
    exactly = {**_of(1, memory)["exactly"]}
    return {
        "name": f"r{number}",
        "firstAvailable": [{"name": f"s{n}", **exactly} for n in range(8)],
    }


def _claim(name: str, *requests: Manifest, **more: Any) -> Manifest:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": list(requests), **more}},
    }


def _pod(name: str, *claims: str, **limits: str) -> Manifest:
    resources = {"limits": {f"koordinator.sh/{key}": value for key, value in limits.items()}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {
            "containers": [{"name": "main", "resources": resources}],
            "resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims],
        },
    }


def _asking(name: str, *requests: Manifest, **more: Any) -> list[Manifest]:
    """A claim and the pod that names it, which is named alike."""
    return [_claim(name, *requests, **more), _pod(name, name)]


def _slices(nodes: list[Manifest], **changes: Any) -> list[Manifest]:
    """What the agents of nodes publish."""
    found: list[Manifest] = []
    for node in _run(nodes).cluster.nodes:
        known: Node = replace(node, **changes)
        found += resource_slices(known, Inventory(), "", 1, Offered(instances=True))
    return found


def _run(*parts: list[Manifest], policy: Policy | None = None) -> Outcome:
    lines = b"\n".join(json.dumps(one).encode() for part in parts for one in part)
    return schedule(assemble([decode("cluster.json", lines)]), policy)


def _by_name(outcome: Outcome) -> Mapping[str, PodOutcome]:
    return {one.pod.pod.name: one for one in outcome.pods}


def _places(outcome: Outcome) -> dict[str, str]:
    """Node and cards of each pod that got a place."""
    return {
        name: f"{one.allocation.node}:"
        + ",".join(str(grant.minor) for grant in one.allocation.grants)
        for name, one in _by_name(outcome).items()
        if one.allocation is not None
    }


def _told(outcome: Outcome, name: str) -> str:
    refusal = _by_name(outcome)[name].refusal
    assert refusal is not None, f"{name} got a place"
    lines = [f"{refusal.code}: {refusal.message}"]
    for node, why in refusal.nodes.items():
        lines.append(f"{node}: {why.message}")
        lines += [f"{node} gpu-{card.minor}: {card.code} {card.detail}" for card in why.cards]
    return "\n".join(lines)


def test_claims_get_the_first_device_with_room_and_pods_by_protocol_what_they_leave() -> None:
    """They come in the order of priority and of the documents, over one ledger."""
    outcome = _run(
        _node(),
        _asking("a", _of(60, "20Gi")),
        _asking("b", _of(60, "20Gi")),
        [_pod("small", **{"gpu-core": "30", "gpu-memory-ratio": "30"})],
        _asking("c", _of(40, "10Gi")),
        [_pod("whole", **{"gpu-core": "100", "gpu-memory-ratio": "100"})],
    )

    assert _places(outcome) == {"a": "n1:0", "b": "n1:1", "small": "n1:0", "c": "n1:1"}
    assert not any(outcome.ledger.overbooked(one.uid) for one in outcome.ledger.allocations())


def test_amounts_are_told_against_what_is_left_and_by_whom_the_rest_is_held() -> None:
    """The message tells it for each card, nearest first, with the most that would fit."""
    told = _told(
        _run(
            _node(),
            [_pod("small", **{"gpu-core": "30", "gpu-memory-ratio": "30"})],
            _asking("a", _of(60, "20Gi")),
            _asking("b", _of(100, "40Gi")),
            _asking("big", _of(80, "30Gi")),
        ),
        "big",
    )

    assert told.startswith("InsufficientCore: 0/1 nodes"), told
    assert "claim default/big, request card: nearest gpu-" in told
    assert "fits with at most 40% of cores" in told
    assert "n1 gpu-0: InsufficientCore cores 80% asked, 40% left" in told
    assert "60% + 20Gi held by 1 claim" in told
    assert "30% + 12Gi held by 1 pod of koordinator" in told


@pytest.mark.parametrize(
    ("request_", "code", "why"),
    [
        (
            _selected(f'{OURS}.productName == "NVIDIA-H200"'),
            ReasonCode.SELECTOR_MISMATCH,
            "selector of the request is false",
        ),
        (
            _selected(f'{OURS}.architecture == "hopper"'),
            ReasonCode.SELECTOR_MISMATCH,
            "has no answer: no such member in mapping: 'architecture'",
        ),
        (_request(deviceClassName=MIG), ReasonCode.SELECTOR_MISMATCH, f"is of class {MIG}"),
        (_request(deviceClassName="gpu.nvidia.com"), ReasonCode.CLAIM_UNREADY, "DeviceClass gpu.nvidia.com is not there"),
        (_of(100, "80Gi"), ReasonCode.INSUFFICIENT_MEMORY, "more than one share may have"),
        (_request(capacity={"requests": {"bandwidth": "1"}}), ReasonCode.INSUFFICIENT_DEVICES, "no capacity bandwidth"),
        (_of(10, "1Gi", count=3), ReasonCode.INSUFFICIENT_CARDS, "2 of 3 devices"),
        (_request(count=33), ReasonCode.CLAIM_UNREADY, "more than 32"),
        (_request(capacity={"requests": {"cores": "x"}}), ReasonCode.CLAIM_UNREADY, "capacity.requests[cores]"),
        (_request(count="two"), ReasonCode.CLAIM_UNREADY, "count"),
    ],
)  # fmt: skip
def test_what_no_idle_card_has_is_named(request_: Manifest, code: ReasonCode, why: str) -> None:
    """Selectors, classes, amounts and numbers that the devices do not have."""
    outcome = _run(_node(), _asking("odd", request_))
    refusal = _by_name(outcome)["odd"].refusal

    assert refusal is not None
    assert refusal.code is code, _told(outcome, "odd")
    assert why in _told(outcome, "odd")


def test_no_claim_gets_more_than_32_devices() -> None:
    """Kubernetes' allocator has the same bound: by all requests together, and where a request asks for all devices."""
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"d{number}"} for number in range(40)]
    spec = {"driver": "x.example", "nodeName": "n1", "pool": pool, "devices": devices}
    theirs = {"selectors": [{"cel": {"expression": 'device.driver == "x.example"'}}]}
    head = {"apiVersion": "resource.k8s.io/v1"}
    others = [
        {**head, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec},
        {**head, "kind": "DeviceClass", "metadata": {"name": "x"}, "spec": theirs},
    ]

    def some(name: str, **exactly: Any) -> Manifest:
        return _request(name, deviceClassName="x", **exactly)

    outcome = _run(
        _node(),
        others,
        _asking("many", some("a", count=20), some("b", count=13)),
        _asking("all", some("a", allocationMode="All")),
        _asking("most", some("a", count=20), some("b", count=12)),
    )

    assert _places(outcome) == {"most": "n1:"}
    assert "more than 32 devices" in _told(outcome, "many")
    assert "not all together" in _told(outcome, "all")


def test_a_claim_or_template_that_is_not_there_is_named() -> None:
    """What is made of a template is a claim of the pod's own."""
    pod = _pod("late", "missing")
    templated = _pod("made", "x")
    templated["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimTemplateName": "half"}]
    lost = _pod("lost", "x")
    lost["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimTemplateName": "none"}]
    template = _claim("half", _of(50, "20Gi"))
    template |= {"kind": "ResourceClaimTemplate", "spec": {"spec": template["spec"]}}
    outcome = _run(_node(), [pod, templated, lost, template])

    assert _places(outcome) == {"made": "n1:0"}
    assert "ResourceClaim default/missing" in _told(outcome, "late")
    assert "ResourceClaimTemplate default/none" in _told(outcome, "lost")


def test_taints_are_borne_or_told() -> None:
    """Taints of a device that fell ill, and of one that is closed for pods that have all of it."""
    nodes = _node(cards=1)
    (card,) = _run(nodes).cluster.nodes[0].devices
    ill = _slices(nodes, devices=(replace(card, healthy=False),))
    full = _slices(nodes, devices=(replace(card, doubt="held-by-pods"),))
    exists = {"operator": "Exists"}
    patient = _asking("patient", _of(10, "1Gi", tolerations=[exists]))
    strict = _asking("strict", _of(10, "1Gi"))

    outcome = _run(nodes, ill, strict, patient)
    assert _places(outcome) == {"patient": "n1:0"}
    assert "taint gpu.partage.io/unhealthy" in _told(outcome, "strict")
    assert "fits with a toleration of gpu.partage.io/unhealthy" in _told(outcome, "strict")
    assert "CardNotIdle: " in _told(_run(nodes, full, strict), "strict")


def test_counters_keep_instances_and_shares_of_one_card_apart() -> None:
    """An instance takes its units; the counter that is used up is named."""
    nodes = _node(cards=1, mig=True)
    profile = f'{OURS}.profile == "%s"'
    big = _selected(profile % "4g.20gb", deviceClassName=MIG)
    other = _selected(profile % "3g.20gb", deviceClassName=MIG)
    outcome = _run(
        nodes,
        _asking("a", big),
        _asking("b", other),
        _asking("c", big),
        _asking("s", _of(10, "1Gi")),
    )

    assert _places(outcome).keys() == {"a", "b"}
    told = _told(outcome, "c")
    assert "MigPlacement" in told or "CardNotIdle" in told
    assert "counter" in told or "another claim holds it" in told


def test_constraints_are_kept_and_told() -> None:
    """Devices that fit one by one and have nothing in common."""
    bound = {"matchAttribute": "gpu.partage.io/uuid"}
    apart = {"distinctAttribute": "gpu.partage.io/uuid"}
    alike = _asking("alike", _of(10, "1Gi", count=2), constraints=[bound])
    different = _asking("different", _of(10, "1Gi", count=2), constraints=[apart])
    outcome = _run(_node(), alike, different)

    assert _places(outcome) == {"different": "n1:0,1"}
    assert "JointAllocation" in _told(outcome, "alike")
    first, *nodes = _told(outcome, "alike").splitlines()
    assert "with constraints on gpu.partage.io/uuid" in first
    assert "constraints on gpu.partage.io/uuid" in nodes[0]


@pytest.mark.parametrize(
    ("values", "alike", "different"),
    [
        pytest.param([{"string": "1"}, {"string": "1"}], True, False, id="equal"),
        pytest.param([{"string": "1"}, {"int": 1}], False, True, id="text-and-number"),
        pytest.param([{"string": "True"}, {"bool": True}], False, True, id="text-and-boolean"),
        pytest.param([{"int": 1}, {"bool": True}], False, True, id="number-and-boolean"),
        pytest.param(
            [{"strings": ["a", "b"]}, {"strings": ["b", "c"]}], True, False, id="overlap"
        ),
        pytest.param([{"strings": ["a"]}, {"strings": ["b"]}], False, True, id="disjoint"),
        pytest.param([{"strings": ["a", "b"]}, {"string": "b"}], True, False, id="list-and-text"),
    ],
)
def test_values_agree_by_type_and_by_member(
    values: list[Manifest], *, alike: bool, different: bool
) -> None:
    """Kubernetes' allocator compares attributes so, of any number of devices of one request."""
    slices = _slices(_node())
    for one, value in zip(slices[0]["spec"]["devices"], values, strict=False):
        one["attributes"]["group"] = value
    for bound, agrees in (("matchAttribute", alike), ("distinctAttribute", different)):
        claim = _asking(
            "pair", _of(10, "1Gi", count=2), constraints=[{bound: "gpu.partage.io/group"}]
        )
        assert bool(_places(_run(_node(), slices, claim))) is agrees


def test_alternatives_are_tried_in_order_and_all_takes_all() -> None:
    """`firstAvailable`, and `allocationMode: All`."""
    several = {
        "name": "card",
        "firstAvailable": [
            {
                "name": "large",
                "deviceClassName": SHARE,
                "capacity": {"requests": {"memory": "80Gi"}},
            },
            {"name": "small", **_of(50, "20Gi")["exactly"]},
        ],
    }
    every = _request(allocationMode="All", capacity={"requests": {"cores": "20", "memory": "1Gi"}})
    outcome = _run(_node(), _asking("either", several), _asking("every", every))

    assert _places(outcome) == {"either": "n1:0", "every": "n1:0,1"}


def test_a_claim_that_is_allocated_says_where_its_pod_goes() -> None:
    """Pods that share a claim, and one that another scheduler has allocated."""
    shared = _claim("shared", _of(50, "20Gi"))
    held = _claim("held", _of(30, "10Gi"))
    result = {
        "request": "card",
        "driver": "gpu.partage.io",
        "pool": "n2",
        "device": "gpu-1",
        "consumedCapacity": {"cores": "80", "memory": "30Gi"},
    }
    held["status"] = {"allocation": {"devices": {"results": [result]}}}
    outcome = _run(
        _node("n1"),
        _node("n2"),
        [shared, held, _pod("one", "shared"), _pod("two", "shared"), _pod("there", "held")],
        [_pod("torn", "held", "shared")],
        policy=Policy.parse("first-fit"),
    )

    assert _places(outcome) == {"one": "n1:0", "two": "n1:0", "there": "n2:1"}
    assert "claim default/held is allocated on node n2" in _told(outcome, "torn")


def test_a_pod_with_devices_of_its_own_gets_both_on_one_node() -> None:
    """The pod waits when no node has both."""
    share = {"gpu-core": "60", "gpu-memory-ratio": "60"}
    outcome = _run(
        _node("n1", cards=1),
        _node("n2", cards=2),
        [_claim("a", _of(60, "20Gi")), _pod("both", "a", **share)],
        [_claim("b", _of(60, "20Gi")), _pod("neither", "b", **share)],
    )

    assert _places(outcome).keys() == {"both"}
    assert _places(outcome)["both"].startswith("n2:")


def test_slices_stand_for_a_node_that_nothing_else_tells_of() -> None:
    """Slices of another driver do so, whose cards the ledger does not count; an incomplete pool is left out."""
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "theirs"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n7",
            "pool": {"name": "n7", "generation": 3, "resourceSliceCount": 1},
            "devices": [{"name": "card-0", "attributes": {"model": {"string": "x"}}, "capacity": {"memory": {"value": "40Gi"}}}],
        },
    }  # fmt: skip
    class_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "theirs"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
    }
    asks = [_asking(name, _request(deviceClassName="theirs")) for name in ("first", "second")]
    outcome = _run([slice_, class_], *asks)
    assert _by_name(outcome)["first"].allocation is not None
    assert "another claim holds it" in _told(outcome, "second")

    slice_["spec"]["pool"]["resourceSliceCount"] = 2  # type: ignore[index]
    outcome = _run([slice_, class_], *asks)
    assert any("pool n7 of driver gpu.example.com is left out" in one for one in outcome.notes)


def test_parts_of_a_unit_are_counted_too() -> None:
    """Two halves of one make it full, and a third waits."""
    device = {
        "name": "card-0",
        "allowMultipleAllocations": True,
        "capacity": {"parts": {"value": "1", "requestPolicy": {"default": "1"}}},
    }
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "theirs"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n7",
            "pool": {"name": "n7", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }
    class_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "theirs"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
    }
    half = _request(deviceClassName="theirs", capacity={"requests": {"parts": "500m"}})
    outcome = _run([slice_, class_], *(_asking(name, half) for name in ("a", "b", "c")))

    assert [_by_name(outcome)[name].allocation is not None for name in "abc"] == [
        True,
        True,
        False,
    ]


def test_amounts_that_neither_request_nor_slice_bound_are_all_of_the_device() -> None:
    """A policy without a default is none, as for Kubernetes."""
    node = _node(cards=1)
    slices = _slices(node)
    for one in slices[0]["spec"]["devices"]:
        for capacity in one["capacity"].values():
            capacity["requestPolicy"] = {"validRange": {"min": "1"}}
    outcome = _run(node, slices, _asking("first", _request()), _asking("second", _request()))

    assert _places(outcome)["first"] == "n1:0"
    assert "0 left" in _told(outcome, "second")


def test_requests_of_one_claim_may_share_a_card_and_devices_of_one_request_may_not() -> None:
    """Kubernetes' allocator does so, which distinguishes shares by an id."""
    two = [{"name": name, "exactly": _of(40, "1Gi")["exactly"]} for name in ("a", "b")]
    node = _node(cards=1)
    outcome = _run(node, _asking("two", *two), _asking("pair", _of(1, "1Mi", count=2)))

    assert _places(outcome) == {"two": "n1:0,0"}
    assert "1 of 2 devices" in _told(outcome, "pair")


def test_all_devices_are_those_with_room() -> None:
    """Kubernetes' allocator leaves out of `allocationMode: All` what has too little left."""
    every = _request(allocationMode="All", capacity={"requests": {"cores": "20", "memory": "1Gi"}})
    outcome = _run(_node(), _asking("most", _of(90, "1Gi")), _asking("every", every))

    assert _places(outcome) == {"most": "n1:0", "every": "n1:1"}


def test_a_selector_without_an_answer_ends_the_search_at_its_device() -> None:
    """Kubernetes' allocator does so; devices behind one that serves are not looked at."""
    node = _node()
    named = _selected(f'{OURS}.model == "NVIDIA-A100-SXM4-40GB"')
    for bare, place in (("gpu-0", None), ("gpu-1", "n1:0")):
        slices = _slices(node)
        for one in slices[0]["spec"]["devices"]:
            if one["name"] == bare:
                del one["attributes"]["model"]
        outcome = _run(node, slices, _asking("named", named))

        assert _places(outcome).get("named") == place
        if place is None:
            assert "gpu-0: selector of the request has no answer" in _told(outcome, "named")
    lacks = _selected(f"isURL({OURS}.model)")
    assert "gives up" not in _told(_run(node, _asking("lacks", lacks)), "lacks")


def test_access_for_administrators_counts_for_the_claims_beside_it() -> None:
    """Kubernetes' allocator counts it until the pod's claims are allocated."""
    node, rest = _node(cards=1), _claim("rest", _of(1, "1Gi"))
    watches = _claim("all", _request(adminAccess=True))

    assert "JointAllocation" in _told(_run(node, [watches, rest, _pod("p", "all", "rest")]), "p")


def test_a_capacity_is_asked_for_by_the_name_that_the_slice_has() -> None:
    """Kubernetes compares the whole name, with or without a domain."""
    full = _request(capacity={"requests": {"gpu.partage.io/cores": "10"}})

    told = _told(_run(_node(), _asking("full", full)), "full")
    assert "it has no capacity gpu.partage.io/cores" in told


def test_a_hard_claim_ends_and_says_so() -> None:
    """Requests that exclude each other in more ways than are tried."""
    bound = {"distinctAttribute": "gpu.partage.io/kind"}
    requests = [_of(1, "1Mi") | {"name": f"r{n}"} for n in range(8)]
    outcome = _run(_node(cards=8), _asking("hard", *requests, constraints=[bound]))

    assert "JointAllocation" in _told(outcome, "hard") or "SearchLimit" in _told(outcome, "hard")


def test_alternatives_beyond_those_that_are_tried_are_not_said_to_fail() -> None:
    """One of eight requests can have the one idle card, in the 128th combination."""
    tenth = _of(10, "1Gi")["exactly"]
    ways = [{"name": "all", **_of(100, "40Gi")["exactly"]}, {"name": "part", **tenth}]
    requests = [{"name": f"r{n}", "firstAvailable": ways} for n in range(8)]
    outcome = _run(_node(), _asking("busy", _of(10, "1Gi")), _asking("many", *requests))

    told = _told(outcome, "many")
    assert "SearchLimit" in told
    assert "64 combinations of their alternatives" in told


def test_an_amount_that_no_device_has_is_not_said_to_fit_with_less_of_others() -> None:
    """The message does not say either that a request asks for all sharers, as it names none."""
    odd = _request(capacity={"requests": {"cores": "90", "memory": "1Gi", "bandwidth": "1"}})
    told = _told(_run(_node(), _asking("a", _of(20, "1Gi")), _asking("odd", odd)), "odd")

    assert "no capacity bandwidth" in told
    assert "cores 90% asked, 80% left" in told
    assert "fits with" not in told
    many = [_asking(f"a{n}", _of(1, "1Gi")) for n in range(10)]
    shared = json.loads(json.dumps(_node(cards=1, mig=True)).replace("mig", "hami-core"))
    told = _told(_run(shared, *many, _asking("more", _of(1, "1Gi"))), "more")
    assert "sharers 1 asked, 0 left" in told


def test_access_for_administrators_is_not_counted_and_needs_room_for_a_share() -> None:
    """Kubernetes' allocator does so: a request that names no amounts asks for all of a card."""
    watches = _of(1, "1Mi", adminAccess=True)
    outcome = _run(
        _node(cards=1),
        _asking("most", _of(99, "39Gi")),
        _asking("first", watches),
        _asking("second", watches),
        _asking("all", _request(adminAccess=True)),
        _asking("rest", _of(1, "1Gi")),
    )

    assert _places(outcome).keys() == {"most", "first", "second", "rest"}
    assert "cores 100% asked" in _told(outcome, "all")


def test_requests_that_many_devices_meet_cost_little_beside_one_that_none_meets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same holds beside a request for all devices, which are those with room for it."""
    looks = Counter[str]()
    miss = ClaimAllocator._miss

    def counted(allocator: ClaimAllocator, ask: Ask, offer: Offer) -> object:
        looks[ask.name] += 1
        return miss(allocator, ask, offer)

    monkeypatch.setattr(ClaimAllocator, "_miss", counted)
    easy = [_of(1, "1Mi") | {"name": f"r{n}"} for n in range(8)]
    hard = _of(1, "900Gi") | {"name": "hard"}
    every = _request(
        "every", allocationMode="All", capacity={"requests": {"cores": "90", "memory": "1Gi"}}
    )
    outcome = _run(
        _node(cards=8),
        _asking("first", _of(20, "1Gi")),
        _asking("one", *easy, hard),
        _asking("all", *easy, every),
    )

    assert "900Gi asked" in _told(outcome, "one")
    assert _places(outcome)["all"] == "n1:" + ",".join(["0"] * 8 + [str(n) for n in range(1, 8)])
    assert looks.total() < 1_000


COSTLY: dict[str, tuple[list[Manifest], Manifest]] = {
    "the last of 32 requests is met nowhere": (
        [_ways(n, "1Mi") for n in range(31)] + [_ways(31, "900Gi")],
        {},
    ),
    "none of 32 requests is met": ([_ways(n, "900Gi") for n in range(32)], {}),
    "all of 32 must differ": (
        [_ways(n, "1Mi") for n in range(32)],
        {"constraints": [{"distinctAttribute": "gpu.partage.io/uuid"}]},
    ),
    "17 halves of eight cards": ([_of(50, "1Mi") | {"name": f"r{n}"} for n in range(17)], {}),
}


@pytest.mark.parametrize("shape", COSTLY)
def test_claims_of_a_namespace_cost_together_what_one_may(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at 100 nodes took a minute, and each further pod as much again."""
    done = [0]
    miss, room = ClaimAllocator._miss, ClaimAllocator._room

    def missed(allocator: ClaimAllocator, *args: Any) -> object:
        done[0] += 1
        return miss(allocator, *args)

    def looked(allocator: ClaimAllocator, *args: Any) -> object:
        done[0] += 8
        return room(allocator, *args)

    monkeypatch.setattr(ClaimAllocator, "_miss", missed)
    monkeypatch.setattr(ClaimAllocator, "_room", looked)
    monkeypatch.setattr("partage.sim.claims.MOST_LOOKS", 4_000)
    requests, more = COSTLY[shape]
    outcome = _run(
        *(_node(f"n{n}", 8) for n in range(3)),
        *(_asking(f"hard{n}", *requests, **more) for n in range(6)),
        [
            {**one, "metadata": one["metadata"] | {"namespace": "other"}}
            for one in _asking("easy", _of(10, "1Gi"))
        ],
    )

    assert "easy" in _places(outcome)
    assert "hard0" not in _places(outcome)
    # Each of seven pods looks twice at each of 24 devices. A node at the bound is still explained whole.
    assert done[0] < 4_000 + 7 * (2 * 24 + 8 * 8 * 9)


def test_selectors_of_a_namespace_take_together_what_those_of_one_pod_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five seconds for each of a hundred such pods were a command that does not end."""
    spent = [0]
    judged = Selectors._judged

    def counted(selectors: Selectors, *args: Any) -> bool | str:
        before = selectors.left
        found = judged(selectors, *args)
        spent[0] += before - selectors.left
        return found

    monkeypatch.setattr(Selectors, "_judged", counted)
    monkeypatch.setattr("partage.sim.claims.MOST_STEPS", 20_000)
    costly = [
        _asking(
            f"hard{pod}",
            *(
                _selected(f"[1, 2, 3].all(x, x > 0) && {pod} + {n} < 0") | {"name": f"r{n}"}
                for n in range(32)
            ),
        )
        for pod in range(8)
    ]
    easy = _asking(
        "easy",
        _selected(f'{OURS}.kind == "share"', capacity=_of(10, "1Gi")["exactly"]["capacity"]),
    )
    outcome = _run(
        _node(),
        *costly,
        [{**one, "metadata": one["metadata"] | {"namespace": "other"}} for one in easy],
    )

    assert "easy" in _places(outcome)
    assert spent[0] < 20_000 + 10_000


def test_a_slice_that_cannot_be_read_leaves_out_its_pool_alone() -> None:
    """An account of one node may write its slices: an amount too large ended every answer about claims."""
    slices = _slices([*_node("n1"), *_node("n2")])
    for one in slices:
        if one["spec"]["nodeName"] == "n2":
            one["spec"]["devices"][0]["capacity"]["memory"]["value"] = "10Ei"
    outcome = _run(
        _node("n1"), _node("n2"), slices, *(_asking(f"a{n}", _of(100, "40Gi")) for n in range(3))
    )

    assert sorted(_places(outcome).values()) == ["n1:0", "n1:1"]
    assert any("pool n2 of driver gpu.partage.io is left out" in one for one in outcome.notes)
    assert any("'10Ei' is larger" in one for one in outcome.notes)

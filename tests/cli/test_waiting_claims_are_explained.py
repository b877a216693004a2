"""`explain` says why a pod waits for a ResourceClaim, over manifests, a live cluster and a snapshot of it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from claim_documents import claim, share
from partage.agent.discovery.found import Inventory
from partage.agent.dra.slices import resource_slices
from partage.cli.main import main
from partage.model.device import Device, DeviceType
from partage.model.node import Node

sys.path.append(str(Path(__file__).parents[1] / "embedded"))

from up_world import PODS, World, eventually, node, pod, run, running

pytest.importorskip("celpy", reason="cel-python is not installed: selectors are not judged")

GIB = 2**30
EXAMPLE = Path(__file__).parents[2] / "examples/claims"
DRA = "/apis/resource.k8s.io/v1/"
CLAIMS = f"{DRA}namespaces/default/resourceclaims"


def _asked(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def _waiting(name: str, cores: str, **exactly: Any) -> dict[str, Any]:
    """A claim that is not allocated."""
    made = claim(name=name)
    made["metadata"] = {"name": name, "namespace": "default"}
    (request,) = made["spec"]["devices"]["requests"]
    request["exactly"] |= {"capacity": {"requests": {"cores": cores, "memory": "4Gi"}}, **exactly}
    return made


def _naming(name: str) -> dict[str, Any]:
    """A pod that names the claim of its own name, may use every node, and that no scheduler tries."""
    made = pod(name, {})
    made["spec"] |= {
        "resourceClaims": [{"name": "card", "resourceClaimName": name}],
        "schedulerName": "by-hand",
        "tolerations": [{"operator": "Exists"}],
    }
    return made


def _slice(node_name: str, devices: list[Device]) -> dict[str, Any]:
    card = {"node.koordinator.sh/gpu-vendor": "nvidia"}
    (made,) = resource_slices(
        Node(node_name, labels=card, devices=tuple(devices)), Inventory(), "u", 1
    )
    del made["metadata"]["ownerReferences"]
    return made


async def _filled(world: World) -> None:
    """A card of which a claim holds 70 percent, one that is ill, and three pods with claims."""
    held = claim(share(pool="n0", cores="70", memory="8Gi"), name="held")
    status = held.pop("status")
    finalizers = held["metadata"]["finalizers"]
    held["metadata"] = {"name": "held", "namespace": "default", "finalizers": finalizers}
    made = await world.create(CLAIMS, held)
    code, answer = await world.send("PUT", f"{CLAIMS}/held/status", made | {"status": status})
    assert code == 200, answer
    ill = {"annotations": {"simulate.partage.io/unhealthy": "1=Xid 79"}}
    await world.patch("/api/v1/nodes/n0", {"metadata": ill})
    await eventually(
        lambda: world.get(f"{DRA}resourceslices"),
        lambda found: "gpu.partage.io/unhealthy" in json.dumps(found),
    )
    selector = {"cel": {"expression": 'device.attributes["gpu.partage.io"].productName == "H200"'}}
    ours = {"cel": {"expression": 'device.driver == "gpu.partage.io"'}}
    await world.create(
        f"{DRA}deviceclasses",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "fast"},
            "spec": {"selectors": [ours]},
        },
    )
    for one in (
        _waiting("mine", "10", deviceClassName="fast"),
        _waiting("large", "60"),
        _waiting("other", "10", selectors=[selector]),
        _waiting("odd", "10", deviceClassName="no-such-class"),
    ):
        await world.create(CLAIMS, one)
        await world.create(PODS, _naming(one["metadata"]["name"]))


EXPECTED = {
    "large": ("InsufficientCore", "cores 60% asked, 30% left", "fits with at most 30% of cores"),
    "other": ("SelectorMismatch", "selector of the request is false", "productName"),
    "odd": ("ClaimUnready", "request gpu: DeviceClass no-such-class is not there", "try: create"),
}


def test_each_card_is_told_with_numbers(tmp_path: Path) -> None:
    """The cluster and its snapshot give the same; the snapshot holds nothing but what is asked for."""
    path = tmp_path / "cluster.json"

    async def story() -> None:
        async with running([node(cards=2)]) as world:
            await _filled(world)
            kubeconfig = world.cluster.addresses.kubeconfig
            for name, told in EXPECTED.items():
                done = await asyncio.to_thread(_asked, "explain", name, "--kubeconfig", kubeconfig)
                assert done.exit_code == 3, done.output
                assert all(one in done.stdout for one in told), done.stdout
            top = await asyncio.to_thread(_asked, "top", "--kubeconfig", kubeconfig)
            assert {"default/large", "default/other", "default/mine"} <= set(top.stdout.split())
            ill = await asyncio.to_thread(_asked, "explain", "large", "--kubeconfig", kubeconfig)
            assert "taint gpu.partage.io/unhealthy" in ill.stdout
            assert "70% + 8Gi held by 1 claim" in ill.stdout
            done = await asyncio.to_thread(
                _asked, "snapshot", "--kubeconfig", kubeconfig, "-o", path
            )
            assert done.exit_code == 0, done.output
            masked = await asyncio.to_thread(
                _asked, "snapshot", "--kubeconfig", kubeconfig, "--mask"
            )
            kinds = [json.loads(line)["kind"] for line in masked.stdout.splitlines()]
            assert kinds.count("ResourceClaim") == 1
            assert not {"ResourceSlice", "DeviceClass"} & set(kinds)

    run(story())
    for name, told in EXPECTED.items():
        done = _asked("explain", name, "-f", path)
        assert all(one in done.stdout for one in told), done.stdout
    found = {
        one["name"]: one
        for one in json.loads(_asked("schedule", path, "-o", "json").stdout)["pods"]
    }
    assert {name: found[name]["reason"]["code"] for name in EXPECTED} == {
        name: told[0] for name, told in EXPECTED.items()
    }


def test_pods_of_manifests_that_wait_by_claims_are_listed_with_the_reason(tmp_path: Path) -> None:
    """Those whose claims templates would make too, and by classes of the operator's."""
    large = _waiting("large", "100")
    (request,) = large["spec"]["devices"]["requests"]
    request["exactly"]["capacity"]["requests"]["memory"] = "400Gi"
    path = tmp_path / "more.json"
    waits = {**_naming("large"), "apiVersion": "v1", "kind": "Pod"}
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [large, waits]}))
    files = ("-f", EXAMPLE, "-f", path)

    found = {
        one["name"]: one
        for one in json.loads(_asked("top", "pods", *files, "-o", "json").stdout)["pods"]
    }

    assert found["large"]["code"] == "InsufficientMemory"
    assert "asked 400Gi" in found["large"]["message"]
    assert {"claims-serve-0", "claims-serve-1", "claims-memory-alone"} <= found.keys()
    assert found["claims-serve-0"]["code"] is None
    top = _asked("top", *files).stdout
    assert "default/large  InsufficientMemory" in top
    assert "default/claims-serve-2" in top


def test_devices_of_nodes_that_the_pod_may_not_use_are_not_compared(tmp_path: Path) -> None:
    """Neither the line nor the advice is about a card that the pod's selector, its tolerations or a cordon exclude."""
    cards = [Device(DeviceType.GPU, 0, "GPU-0", memory_bytes=16 * GIB, model="T4")]
    closed = {
        "labelled": {},
        "tainted": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        "cordoned": {"unschedulable": True},
    }
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"pool": "b" if name == "labelled" else "a"}},
            "spec": spec,
        }
        for name, spec in closed.items()
    ]
    waits = _naming("waits")
    waits["spec"] |= {"nodeSelector": {"pool": "a"}, "tolerations": []}
    slices = [_slice(name, cards) for name in closed]
    many = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [*nodes, *slices, _waiting("waits", "200"), waits],
    }
    path = tmp_path / "all.json"
    path.write_text(json.dumps(many), encoding="utf-8")

    told = json.loads(_asked("explain", "waits", "-f", path, "-o", "json").stdout)["reason"]

    codes = {name: why["code"] for name, why in told["nodes"].items()}
    assert codes == {
        "labelled": "NodeAffinity",
        "tainted": "Taint",
        "cordoned": "NodeUnschedulable",
    }
    assert not any(why["cards"] for why in told["nodes"].values())


def test_a_pod_whose_claim_gets_a_card_is_told_which(tmp_path: Path) -> None:
    """The command reads manifests, and the claim gets its place first."""
    cards = [Device(DeviceType.GPU, 0, "GPU-0", memory_bytes=16 * GIB, model="T4")]
    held = _naming("held")
    many = {"apiVersion": "v1", "kind": "List", "items": [_slice("n0", cards), _waiting("held", "60"), held]}  # fmt: skip
    path = tmp_path / "all.json"
    path.write_text(json.dumps(many), encoding="utf-8")

    done = _asked("explain", "held", "-f", path)
    assert done.exit_code == 0, done.output
    assert "gets a place on node n0" in done.stdout
    assert "claim (held, request gpu: share.gpu.partage.io)" in done.stdout
    assert "60%      4Gi     share" in done.stdout


def test_without_the_library_other_pods_are_explained_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod with a claim waits, and its reason names what is missing."""
    monkeypatch.setitem(sys.modules, "celpy", None)
    monkeypatch.delitem(sys.modules, "partage.wire.cel", raising=False)
    monkeypatch.delattr("partage.wire.cel", raising=False)
    cards = [Device(DeviceType.GPU, 0, "GPU-0", memory_bytes=16 * GIB, model="T4")]
    lines = [_slice("n0", cards), _waiting("held", "60"), _naming("held"), pod("plain", {})]
    path = tmp_path / "all.json"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    done = _asked("explain", "held", "-f", path)
    assert done.exit_code == 3
    assert "pip install cel-python" in " ".join(done.stdout.split())
    found = {
        one["name"]: one
        for one in json.loads(_asked("schedule", path, "-o", "json").stdout)["pods"]
    }
    assert found["plain"]["node"] == "n0"

"""What the agent offers to ResourceClaims where a genuine API server has a feature gate off: less, and it says why."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from claims_node import API, dgx
from control_plane import control_plane, missing

from partage.agent.discovery.found import Inventory
from partage.agent.dra.publishing import Publisher
from partage.agent.metrics import Tallies
from partage.agent.notes import Notes
from partage.kube.client import Client
from partage.kube.loading import load_config
from partage.model.node import Node

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "never")


@pytest.mark.parametrize("gate", ["ConsumableCapacity", "PartitionableDevices", "DeviceTaints"])
def test_what_a_gate_would_drop_is_not_offered(tmp_path: Path, gate: str) -> None:
    """No share without its amounts, no instance without its counters, no ill card without its taint."""
    sound, ill = dgx("one", "A100-80GB").devices[:2]
    node = Node("one", devices=(sound, replace(ill, healthy=False)))
    notes = Notes()
    # Rules of taints cannot do without taints.
    off = f"DRA{gate}=false,DRADeviceTaintRules=false"
    with control_plane(tmp_path, f"--feature-gates={off}") as plane:
        plane.call("POST", "/api/v1/nodes", {"kind": "Node", "metadata": {"name": "one"}})

        async def publish() -> list[int]:
            config = load_config({}, kubeconfig=plane.kubeconfig())
            async with Client(config) as client:
                own = Publisher(client, "one", Inventory, Tallies(), notes, instances=True)
                return [await own.once(node), await own.once(node)]

        written = asyncio.run(publish())
        slices = plane.call("GET", f"{API}/resourceslices")["items"]

    offered = {one["name"]: one for part in slices for one in part["spec"].get("devices", ())}
    assert bool(written[0]) == bool(offered)
    assert written[1] == 0
    assert [one.code for one in notes.said] == ["ResourceSlices"]
    assert f"DRA{gate}" in notes.said[0].message
    instances = {name for name in offered if "-mig-" in name}
    assert (
        offered.keys() - instances
        == {
            "ConsumableCapacity": set(),
            "PartitionableDevices": {"gpu-0", "gpu-1"},
            "DeviceTaints": {"gpu-0"},
        }[gate]
    )
    assert bool(instances) == (gate == "DeviceTaints")
    assert not any(name.startswith("gpu-1-") for name in instances)
    assert all("capacity" in one for one in offered.values())
    if gate == "PartitionableDevices":
        assert "taints" in offered["gpu-1"]

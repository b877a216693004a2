"""AMD's whole cards from sysfs to the container: found, reported, placed, counted and given."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nodes_world import Node as Machine

from partage.agent.container_edits import HostFacts, Instance
from partage.agent.device_document import device_document
from partage.agent.discovery.found import Inventory
from partage.agent.injection import Injected, Place, Refusal, inject
from partage.agent.kubelet.units import offers
from partage.agent.nri.messages import Container, Device, LinuxContainer, PodSandbox
from partage.sim.offline import PodOutcome, schedule
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.cluster import assemble
from partage.wire.context import Context
from partage.wire.documents import decode
from partage.wire.nodes import device_totals, translate_node

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Two cards whose numbers below `/dev/dri` differ: a display took the first of one kind."""
    one = Machine(tmp_path)
    one.write("dev/kfd", "")
    for index, bus in enumerate(("03", "23")):
        home = one.pci(
            f"0000:{bus}:00.0",
            "0x1002",
            "0x038000",
            mem_info_vram_total=str(192 * GIB),
            unique_id=f"af{index}",
            product_name="AMD Instinct MI300X",
        )
        for name in (f"card{index + 1}", f"renderD{128 + index}"):
            (home / "drm" / name).mkdir(parents=True)
            one.write(f"dev/dri/{name}", "")
    return one


def _node(inventory: Inventory) -> Any:
    device = device_document("n1", inventory, None, "2026-01-01T00:00:00Z")
    context = Context.of(Settings(), FAMILIES)
    (document,) = decode("Device", json.dumps(device).encode()).documents
    return translate_node(None, document, context).node


def _placed(inventory: Inventory, limits: Mapping[str, str]) -> PodOutcome:
    device = device_document("n1", inventory, None, "2026-01-01T00:00:00Z")
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}},
    }
    container = {"name": "main", "resources": {"limits": dict(limits), "requests": dict(limits)}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "team", "uid": "u1"},
        "spec": {"containers": [container]},
    }
    listed = {"apiVersion": "v1", "kind": "List", "items": [node, device, pod]}
    (outcome,) = schedule(assemble([decode("list", json.dumps(listed).encode())])).pods
    return outcome


def _given(inventory: Inventory, outcome: PodOutcome, *env: str) -> Injected | Refusal | None:
    """What the container of a placed pod gets from an agent that found these devices."""
    found = {one.device.uuid: one.files for one in inventory.found}
    host = HostFacts(lambda *_: Instance(), found=lambda uuid: found.get(uuid, ()))
    place = Place(_node(inventory), Settings(), FAMILIES, host)
    sandbox = PodSandbox(
        "p", "train", "u1", "team", annotations=dict(outcome.rendering.annotations)
    )
    return inject(sandbox, Container("c", "p", "main", env=env), place, ())


@pytest.mark.parametrize(
    ("limits", "files"),
    [
        pytest.param(
            {"amd.com/gpu": "1"},
            ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card1"),
            id="AMD's own name",
        ),
        pytest.param(
            {"koordinator.sh/gpu": "100"},
            ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card1"),
            id="Koordinator's",
        ),
        pytest.param(
            {"amd.com/gpu": "2"},
            (
                "/dev/kfd",
                "/dev/dri/renderD128",
                "/dev/dri/card1",
                "/dev/dri/renderD129",
                "/dev/dri/card2",
            ),
            id="both cards",
        ),
    ],
)
def test_a_whole_card_comes_with_the_files_that_were_found(
    machine: Machine, limits: Mapping[str, str], files: tuple[str, ...]
) -> None:
    """Its number below `/dev/dri` is known to discovery alone."""
    inventory = machine.discover()
    outcome = _placed(inventory, limits)
    assert outcome.refusal is None, outcome.refusal

    found = _given(inventory, outcome, "AMD_VISIBLE_DEVICES=all")

    assert isinstance(found, Injected), found
    assert found.given.files == files
    assert found.given.env == {"AMD_VISIBLE_DEVICES": "none", "NVIDIA_VISIBLE_DEVICES": "void"}
    assert found.given.limits == "whole"


def test_without_discovery_the_row_tells_the_files(machine: Machine) -> None:
    """An agent that serves cards that another agent reports knows a card by its number."""
    inventory = machine.discover()
    outcome = _placed(inventory, {"amd.com/gpu": "1"})
    blind = replace(inventory, found=tuple(replace(one, files=()) for one in inventory.found))

    found = _given(blind, outcome)

    assert isinstance(found, Injected), found
    assert found.given.files == ("/dev/kfd", "/dev/dri/renderD128")


def test_a_card_without_its_files_is_closed(machine: Machine) -> None:
    """No container could open it."""
    (machine.folder / "dev/dri/renderD129").unlink()

    first, second = machine.discover().found
    assert (first.device.healthy, second.device.healthy) == (True, False)
    assert second.device.health_detail == "its device file /dev/dri/renderD129 is not there"
    assert (second.reason, second.files) == ("DeviceFilesMissing", ())

    (machine.folder / "dev/kfd").unlink()
    assert [one.healthy for one in machine.discover().devices] == [False, False]


def test_the_node_reports_both_names_that_pods_ask(machine: Machine) -> None:
    """Kubelet and kube-scheduler refuse a pod that requests a resource that its node does not report."""
    node = _node(machine.discover())

    assert str(device_totals(node)["koordinator.sh/gpu"]) == "200"
    units = {offer.resource: len(offer.units) for offer in offers(node, Settings())}
    assert units == {"amd.com/gpu": 2}


@pytest.mark.parametrize("path", ["/dev/kfd", "/dev/dri/renderD129", "/dev/dri/card2"])
def test_a_device_file_without_a_record_is_refused(machine: Machine, path: str) -> None:
    """The rule is that of NVIDIA's files."""
    place = Place(
        _node(machine.discover()), Settings(), FAMILIES, HostFacts(lambda *_: Instance())
    )
    devices = LinuxContainer((Device(path, "c"),))
    sandbox = PodSandbox("p", "thief", "u2", "team")

    found = inject(sandbox, Container("c", "p", "main", linux=devices), place, ())

    assert isinstance(found, Refusal)
    assert found.rule == "NoRecord"
    assert path in found.message


def test_other_vendors_share_the_folder_of_render_nodes(machine: Machine) -> None:
    """On a node without such cards a render node is some display's."""
    node = replace(_node(machine.discover()), properties={"vendor": "nvidia"})
    node = replace(node, devices=tuple(replace(one, vendor="nvidia") for one in node.devices))
    place = Place(node, Settings(), FAMILIES, HostFacts(lambda *_: Instance()))
    devices = LinuxContainer((Device("/dev/dri/renderD128", "c"),))

    sandbox = PodSandbox("p", "desk", "u3", "team")
    found = inject(sandbox, Container("c", "p", "main", linux=devices), place, ())

    assert not isinstance(found, Refusal)


def test_an_agent_refuses_a_card_that_it_cannot_give(machine: Machine) -> None:
    """A record from before the scheduler knew: nothing starts without its card."""
    inventory = machine.discover()
    outcome = _placed(inventory, {"koordinator.sh/gpu": "100"})
    strange = replace(
        inventory,
        found=tuple(
            replace(one, files=(), device=replace(one.device, vendor="acme"))
            for one in inventory.found
        ),
    )

    found = _given(strange, outcome)

    assert isinstance(found, Refusal)
    assert found.rule == "DeviceFilesUnknown"
    assert names.ALLOCATION in outcome.rendering.annotations

"""Whoever holds one node's credentials may write anything of that node, and the books have room for all nodes alike."""

import itertools
import json
from typing import Any

import pytest

from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.documents import Document, decode
from partage.wire.nodes import TranslatedNode, translate_node

Manifest = dict[str, Any]
CONTEXT = Context.of(Settings(), FAMILIES)
MEMORY = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "16Gi"}


def document(manifest: Manifest) -> Document:
    """A document of the manifest."""
    (found,) = decode("test.json", json.dumps(manifest).encode()).documents
    return found


def read(devices: list[Manifest], **annotations: str) -> TranslatedNode:
    """A node with such a Device object and annotations."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n0", "annotations": annotations},
        "status": {"allocatable": {"cpu": "8"}},
    }
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "n0"},
        "spec": {"devices": devices},
    }
    return translate_node(document(node), document(device), CONTEXT)


def card(minor: int, **extras: str) -> Manifest:
    """One card."""
    return {"type": "gpu", "id": f"GPU-{minor}", "minor": minor, "health": True, "resources": MEMORY | extras}  # fmt: skip


def test_a_node_has_so_many_devices_of_a_type_and_no_more() -> None:
    """Fifteen thousand cards on one of five thousand nodes took gigabytes."""
    found = read([card(minor) for minor in reversed(range(15_000))])
    assert [one.minor for one in found.node.devices] == list(range(256))
    assert any("14744 devices" in note for note in found.notes)
    ledger = Ledger()
    ledger.upsert_node(found.node)
    assert ledger.planes[DeviceType.GPU].cards == 256


def test_a_registration_by_annotation_has_the_same_bound() -> None:
    """Each 60 bytes of it are a card."""
    listed = ":".join(f"GPU-{n},10,16384,100,NVIDIA-A100,0,true" for n in range(4000)) + ":"
    found = read([], **{names.HAMI_REGISTER: listed})
    assert len(found.node.devices) <= 256


def test_amounts_of_other_names_have_a_bound() -> None:
    """A device with thousands of them is closed."""
    odd = card(0, **{f"koordinator.sh/x{n}": "1" for n in range(10_000)})
    (one,) = read([odd]).node.devices
    assert not one.healthy
    assert not one.extras


@pytest.mark.parametrize("others", [0, 3])
def test_names_that_no_card_has_any_more_leave_the_books(others: int) -> None:
    """A node that names other ones with each report."""
    ledger = Ledger()
    numbers = itertools.count()
    for index in range(others):
        ledger.upsert_node(Node(f"other-{index}", devices=read([card(0, **{"koordinator.sh/kept": "1"})]).node.devices))  # fmt: skip
    for _ in range(100):
        fresh = {f"koordinator.sh/x{next(numbers)}": "1" for _ in range(10)}
        ledger.upsert_node(read([card(0, **fresh)]).node)
    assert len(ledger.planes[DeviceType.GPU].extras) == 10 + (others > 0)
    ledger.validate()

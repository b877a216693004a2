"""`partage discover`: what is printed, what is refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from nodes_world import Node

from partage.cli.discover import discover
from partage.wire.device_objects import translate_devices
from partage.wire.documents import decode

SLOWEST = 60.0
"""Seconds that a slow machine may take; nothing is measured by them."""


@pytest.fixture
def simulated(tmp_path: Path) -> Path:
    """A file of simulated devices."""
    file = tmp_path / "devices.yaml"
    file.write_text("{model: C500, cards: 2, rdma: 1, functions: 1, faults: '1=hot'}")
    return file


def test_a_table_for_people(simulated: Path) -> None:
    """One line a device, with what it suffers from."""
    found = CliRunner().invoke(discover, ["--node", "n1", "--simulated", str(simulated)])

    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert lines[0].split() == ["CARD", "MODEL", "MEMORY", "NUMA", "PCI", "STATE", "ID"]
    assert lines[2].split()[:7] == ["gpu", "1", "metax", "C500", "64Gi", "1", "0000:11:00.0"]
    assert " hot " in lines[2]


def test_the_object_is_one_that_the_scheduler_reads(simulated: Path) -> None:
    """`-o device` is a manifest of the node's devices."""
    found = CliRunner().invoke(
        discover, ["--node", "n1", "--simulated", str(simulated), "-o", "device"]
    )

    (document,) = decode("node.yaml", found.stdout.encode()).documents
    devices, notes = translate_devices(document, document.labels)
    assert document.name == "n1"
    assert notes == []
    assert [one.healthy for one in devices] == [True, False, True]


def test_a_node_of_another_root_is_looked_at(tmp_path: Path) -> None:
    """The host's files may be mounted anywhere; problems are reported."""
    node = Node(tmp_path)
    node.nic("mlx5_3", "0000:40:00.0", functions=1)
    node.link("sys/class/infiniband/mlx5_9/device", tmp_path)

    found = CliRunner().invoke(discover, ["--host-root", str(tmp_path), "-o", "json"])

    document = json.loads(found.stdout)
    assert [one["minor"] for one in document["devices"]] == [3]
    assert document["devices"][0]["functions"] == ["0000:40:00.1"]
    assert "mlx5_9" in document["problems"][0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ("{model: X1}", "model"),
        ("{model: C500, cards: -1}", "cards"),
        ("{model: X1, vendor: acme, memory: 8Gi}", "vendor"),
        ("{model: X1, vendor: nvidia, memory: much}", "memory"),
        ("{", "devices.yaml"),
    ],
    ids=["absent", "unknown model", "negative", "unknown vendor", "no quantity", "no YAML"],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    """One line that names the file and the rule; exit 2."""
    file = tmp_path / "devices.yaml"
    if text is not None:
        file.write_text(text)

    found = CliRunner().invoke(discover, ["--simulated", str(file)])

    assert found.exit_code == 2
    assert "devices.yaml" in found.stderr
    assert why in found.stderr
    assert "Traceback" not in found.output


def test_a_root_that_is_not_there_is_no_node_without_devices(tmp_path: Path) -> None:
    """A wrong mount must not read as an empty node."""
    found = CliRunner().invoke(discover, ["--host-root", str(tmp_path / "host")])

    assert found.exit_code == 2
    assert f"--host-root {tmp_path}/host: no such folder" in found.stderr.replace("\n", "")

"""Journals, CDI specifications and the driver's run, as files."""

import json
import os
from pathlib import Path

import pytest

from fakes.nvml import FakeNvml
from partage.agent.mig.cdi import KIND, Numbers, Spec, Specs, read_numbers, render
from partage.agent.mig.driver import read_epoch
from partage.agent.mig.journal import CardJournal, Entry, FileJournals, Stage, replace_file
from partage.agent.mig.nvml import CardFacts
from partage.agent.mig.plan import Wanted
from partage.agent.mig.runner import Node, Runner
from partage.model.errors import InvalidDocument, InvalidRecord
from partage.model.mig import MigSlice

ENTRY = Entry(MigSlice("1g.10gb", 6, 1), "uid-1", Stage.READY, "boot/7", 9, 0, "MIG-1")
NUMBERS = Numbers(195, 510, 511, {"gpu3/gi9/access": 21, "gpu3/gi9/ci0/access": 22})


def test_a_journal_reads_back_as_written(tmp_path: Path) -> None:
    """Every field, the mode too; a card without a file has an empty journal."""
    journals = FileJournals(tmp_path / "mig")
    journal = CardJournal("GPU-1", (ENTRY,), "boot/7")

    journals.save(journal)

    assert journals.load("GPU-1") == journal
    assert journals.load("GPU-2") == CardJournal("GPU-2")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"v":1}',
        '{"v":2,"journal":{"card":"GPU-1"}}',
        '{"v":1,"journal":{"card":"GPU-2"}}',
        '{"v":1,"journal":{"card":"GPU-1","entries":[{}]}}',
    ],
    ids=["empty", "torn", "list", "no journal", "version", "other card", "empty entry"],
)
def test_an_unreadable_journal_stops_its_card(tmp_path: Path, text: str) -> None:
    """Nothing on the card is touched, and the fault names the file."""
    nvml = FakeNvml()
    kept = nvml.foreign("7g.80gb", 0)
    journals = FileJournals(tmp_path)
    journals.path("GPU-1").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRecord, match="GPU-1"):
        journals.load("GPU-1")
    journals.path("GPU-0").write_text(text, encoding="utf-8")
    node = Node(nvml, journals, Specs(tmp_path), lambda: "1", lambda: NUMBERS)

    outcome = Runner(nvml.cards()[0], node).settle([], 0.0)

    assert "GPU-0.json" in outcome.fault
    assert nvml.instances("GPU-0") == (kept,)


def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine stops before the content is on disk: the old one is whole."""
    path = tmp_path / "file.json"
    replace_file(path, b"old")

    def stop(_file: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", stop)
        with pytest.raises(KeyboardInterrupt):
            replace_file(path, b"new")

    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.glob("[!.]*")] == ["file.json"]
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_specification_has_the_nodes_of_one_instance() -> None:
    """Control, card, unified memory, and the two capabilities, by number."""
    document = json.loads(render("MIG-1", (3, 9, 0), NUMBERS))

    assert (document["cdiVersion"], document["kind"]) == ("0.3.0", KIND)
    (device,) = document["devices"]
    assert device["name"] == "MIG-1"
    assert [
        (node["path"], node["major"], node["minor"])
        for node in device["containerEdits"]["deviceNodes"]
    ] == [
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia3", 195, 3),
        ("/dev/nvidia-uvm", 510, 0),
        ("/dev/nvidia-uvm-tools", 510, 1),
        ("/dev/nvidia-caps/nvidia-cap21", 511, 21),
        ("/dev/nvidia-caps/nvidia-cap22", 511, 22),
    ]


def test_an_instance_without_a_capability_is_named() -> None:
    """The driver has not registered it yet: tried again later, not guessed."""
    with pytest.raises(InvalidDocument, match="gpu3/gi9/ci1/access"):
        render("MIG-1", (3, 9, 1), NUMBERS)


def test_specifications_are_found_again(tmp_path: Path) -> None:
    """By card and start; files of others and broken ones are kept apart."""
    specs = Specs(tmp_path / "cdi")
    specs.write("GPU-1", 4, render("MIG-4", (3, 9, 0), NUMBERS))
    specs.write("GPU-1", 0, b"{")
    specs.write("GPU-11", 0, render("MIG-11", (3, 9, 0), NUMBERS))
    (tmp_path / "cdi/nvidia.json").write_text("{}", encoding="utf-8")

    assert specs.present("GPU-1") == (Spec(0, ""), Spec(4, "MIG-4"))
    specs.remove("GPU-1", 4)
    specs.remove("GPU-1", 4)
    assert specs.present("GPU-1") == (Spec(0, ""),)


def test_numbers_come_from_proc(tmp_path: Path) -> None:
    """Majors from /proc/devices, capabilities from the driver's list."""
    (tmp_path / "driver/nvidia-caps").mkdir(parents=True)
    (tmp_path / "devices").write_text(
        "Character devices:\n  1 mem\n195 nvidia-frontend\n511 nvidia-caps\n510 nvidia-uvm\n",
        encoding="utf-8",
    )
    minors = tmp_path / "driver/nvidia-caps/mig-minors"
    with pytest.raises(InvalidDocument, match="mig-minors"):
        read_numbers(tmp_path)
    minors.write_text("config 1\nmonitor 2\ngpu3/gi9/access 21\n", encoding="utf-8")

    assert read_numbers(tmp_path) == Numbers(
        195, 510, 511, {"config": 1, "monitor": 2, "gpu3/gi9/access": 21}
    )
    (tmp_path / "devices").write_text("195 nvidia\n", encoding="utf-8")
    with pytest.raises(InvalidDocument, match="nvidia-uvm"):
        read_numbers(tmp_path)


def test_an_epoch_changes_with_boot_and_reload(tmp_path: Path) -> None:
    """The kernel's boot id and the number of the module's directory."""
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one\n", encoding="ascii")
    module = tmp_path / "sys/module/nvidia"
    with pytest.raises(InvalidDocument, match="loaded"):
        read_epoch(tmp_path)
    module.mkdir(parents=True)
    first = read_epoch(tmp_path)
    assert first == read_epoch(tmp_path)
    module.rename(tmp_path / "before")
    module.mkdir()

    second = read_epoch(tmp_path)
    boot.write_text("two\n", encoding="ascii")

    assert len({first, second, read_epoch(tmp_path)}) == 3


def test_real_files_carry_an_instance_through_a_new_process(tmp_path: Path) -> None:
    """Made by one agent, known and removed by the next."""
    nvml, facts = FakeNvml(), CardFacts("GPU-0", 3, "card", "", keeps_mode=True)
    numbers = Numbers(195, 1, 2, {"gpu3/gi1/access": 1, "gpu3/gi1/ci0/access": 2})
    specs = Specs(tmp_path / "cdi")

    def agent() -> Runner:
        journals = FileJournals(tmp_path / "journal")
        return Runner(facts, Node(nvml, journals, specs, lambda: "1", lambda: numbers))

    wanted = [Wanted(MigSlice("1g.10gb", 6, 1), "uid-1")]

    made = agent().settle(wanted, 0.0).ready
    known = agent().settle(wanted, 0.0).ready
    agent().settle([], 0.0)

    assert made == known
    assert [r.uuid for r in made] == ["MIG-1"]
    assert nvml.instances("GPU-0") == specs.present("GPU-0") == ()

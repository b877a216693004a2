"""A pod may have 64 containers with devices, and a node a dozen such pods: each decision goes through all that they hold."""

import dataclasses
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from partage.agent import injection
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.journal import Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Container, PodSandbox
from partage.model.allocation import Allocation, Charge, Grant, GrantMode, charges_of
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.pod import Record
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import decode, encode

CARD = Device(DeviceType.GPU, 0, "GPU-a", vendor="nvidia", memory_bytes=2**36, slots=100)
PLACE = Place(Node("n1", devices=(CARD,)), Settings(), FAMILIES, HostFacts(lambda *_: Instance()))


def _pod(uid: str, containers: Iterable[str]) -> PodSandbox:
    grants = tuple(
        Grant(one, DeviceType.GPU, 0, "GPU-a", 10, 2**28, GrantMode.SHARE, protocol="koordinator")
        for one in containers
    )
    record = encode(Allocation(uid, "team", uid, "n1", grants))
    return PodSandbox(f"sandbox-{uid}", uid, uid, "team", annotations={names.ALLOCATION: record})


def test_what_a_pod_holds_is_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an agent that gave it, and by one that read it back; and its sum is made once for all of them."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").symlink_to("/dev/null")
    many = [f"c{number}" for number in range(40)]
    keeper = Keeper(lambda: PLACE, Host(tmp_path), Journal(tmp_path / "journal"), Tallies())
    compared: list[int] = []

    def counted(grants: Sequence[Grant]) -> Iterable[Charge]:
        compared.append(len(grants))
        return charges_of(grants)

    for name in many:
        keeper.create(_pod("u1", many), Container(f"id-{name}", "sandbox-u1", name))
    keeper.journal.close()
    again = Keeper(lambda: PLACE, Host(tmp_path), Journal(tmp_path / "journal"), Tallies())

    injection._charges.cache_clear()
    monkeypatch.setattr(injection, "charges_of", counted)
    for number, one in enumerate((keeper, again)):
        assert len(one.books.allocations) == 40
        assert len(set(map(id, one.books.allocations))) == 1
        pod = _pod(f"v{number}", ("main",))
        assert injection.conflict(_allocation(pod), PLACE, one.books.allocations) is None
    assert sorted(compared) == [1, 40]


@pytest.mark.parametrize("served", [True, False])
def test_a_list_of_the_runtimes_reads_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, served: bool
) -> None:
    """Of containers that the journal has lost, and of containers that were never given anything."""
    many = [f"c{number}" for number in range(40)]
    good, moved = _pod("u1", many), _pod("u2", many)
    odd = moved.annotations[names.ALLOCATION].replace('"n1"', '"n2"')
    pods = good, dataclasses.replace(moved, annotations={names.ALLOCATION: odd})
    books = {names.SERVED: "none"} if served else {}
    containers = tuple(
        Container(f"{one.uid}-{name}", one.id, name, annotations=books)
        for one in pods
        for name in many
    )
    keeper = Keeper(lambda: PLACE, Host(tmp_path), Journal(tmp_path / "journal"), Tallies())
    read: list[str] = []

    def counted(text: str, uid: str, node: str) -> Record:
        read.append(uid)
        return decode(text, uid, node)

    monkeypatch.setattr(injection, "decode", counted)
    keeper.synchronize(pods, containers)
    assert sorted(read) == ["u1", "u2"]
    assert len(keeper.books.held) == 40
    assert len(keeper.journal.entries) == (40 if served else 0)
    keeper.journal.close()
    again = Keeper(lambda: PLACE, Host(tmp_path), Journal(tmp_path / "journal"), Tallies())
    assert sorted(read) == ["u1", "u1", "u2"] if served else ["u1", "u2"]
    assert len(again.books.held) == (40 if served else 0)


def test_what_the_journal_lost_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk takes a moment for each write, and the runtime has thousands of containers."""
    many = [f"c{number}" for number in range(40)]
    keeper = Keeper(lambda: PLACE, Host(tmp_path), Journal(tmp_path / "journal"), Tallies())
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    keeper.synchronize(
        (_pod("u1", many),),
        tuple(
            Container(f"id-{name}", "sandbox-u1", name, annotations={names.SERVED: "none"})
            for name in many
        ),
    )
    assert len(keeper.journal.entries) == 40
    assert len(flushed) <= 3


def test_one_name_that_cannot_be_written_loses_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A runtime's names may contain any bytes; nothing stays open either."""
    caplog.set_level(logging.CRITICAL, "partage")  # xdist cannot send such a name to its parent
    journal = Journal(tmp_path / "journal")
    keeper = Keeper(lambda: PLACE, Host(tmp_path), journal, Tallies())
    opened = len(list(Path("/proc/self/fd").iterdir()))
    keeper.synchronize(
        (_pod("u1", ("a", "b")),),
        tuple(
            Container(f"id-{name!a}", "sandbox-u1", name, annotations={names.SERVED: "none"})
            for name in ("a", "\udcff", "b")
        ),
    )
    assert [one.name for one in journal.entries.values()] == ["a", "b"]
    assert len(keeper.books.held) == 3
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def _allocation(pod: PodSandbox) -> Allocation:
    found = injection.recorded(pod, "n1")
    assert isinstance(found, Allocation)
    return found

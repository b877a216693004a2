"""A pod may have 64 containers with devices, and a node a dozen such pods: each decision goes through all that they hold."""

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
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import encode

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


def _allocation(pod: PodSandbox) -> Allocation:
    found = injection.recorded(pod, "n1")
    assert isinstance(found, Allocation)
    return found

"""Partage's own enforcement library, as the agent mounts it: rooms, seats, wishes, what becomes of crashes."""

import dataclasses
import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from partage.agent import container_admission
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.host import Host
from partage.agent.injection import Injected, Place, Refusal, inject
from partage.agent.isolation import container_dirs
from partage.agent.isolation import files as tenant_files
from partage.agent.isolation.account import ACCOUNT_BYTES, read_account
from partage.agent.isolation.container_dirs import INSIDE, PRELOAD, CardQuota, Rooms
from partage.agent.isolation.limits import CardLimits, read
from partage.agent.isolation.processes import root_of
from partage.agent.isolation.providers import HamiCore, Isolation, MigOnly, OwnLibrary, Shares
from partage.agent.isolation.seats import SEAT_BYTES, read_seat, seat_file
from partage.agent.journal import Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Adjustment, Container, Mount, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import SEATS, DeviceType
from partage.model.errors import InvalidDocument, InvalidValue
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.vendors.wishes import Policy, Priority
from partage.wire.record import encode

GIB = 2**30
NODE = Node(
    "n1",
    properties={"qgpu-policy": "fixed-share"},
    devices=tuple(
        model.Device(DeviceType.GPU, minor, f"GPU-{minor}", vendor="nvidia", memory_bytes=80 * GIB)
        for minor in range(2)
    ),
)
SHARE = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, 4 * GIB, GrantMode.SHARE, protocol="qgpu")
WHOLE = structs.replace(
    SHARE, minor=1, uuid="GPU-1", core_milli=1000, memory_bytes=80 * GIB, mode=GrantMode.WHOLE
)
QUOTA = (CardQuota("GPU-0", GIB, 300, Policy.FIXED_SHARE),)


def _place(provider: OwnLibrary | MigOnly | None = None) -> Place:
    provider = provider or OwnLibrary(compute=True)
    facts = HostFacts(lambda _pod, _card, _mig: Instance(), provider=provider)
    return Place(NODE, Settings(), FAMILIES, facts)


def _pod(
    *grants: Grant, uid: str = "u1", annotations: Mapping[str, str] | None = None
) -> PodSandbox:
    record = encode(Allocation(uid, "team", uid, "n1", grants))
    said = {names.ALLOCATION: record, **(annotations or {})}
    return PodSandbox(f"sandbox-{uid}", uid, uid, "team", annotations=said)


def _container(uid: str = "u1", **fields: object) -> Container:
    return Container(f"container-{uid}", f"sandbox-{uid}", "main", **fields)  # type: ignore[arg-type]


class Machine:
    """A node's files, and keepers over them one after another."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "host"
        self.state = self.root / "state"
        (self.root / "dev").mkdir(parents=True)
        for name in ("nvidia0", "nvidia1"):  # a character device that needs no leave to link to
            (self.root / "dev" / name).symlink_to("/dev/null")
        self.boot = folder / "proc/sys/kernel/random/boot_id"
        self.boot.parent.mkdir(parents=True)
        self.boot.write_text("one\n")
        self.built = folder / "built.so"
        self.built.write_bytes(b"the library")
        self.folder = folder

    def rooms(self) -> Rooms:
        """Rooms as an agent that starts takes them up."""
        return Rooms(self.built, self.state, "/state", self.folder)

    def keeper(self, *, required: bool = False, proc: Path = Path("/proc")) -> Keeper:
        """An agent that starts."""
        journal = Journal(self.folder / "journal")
        isolation = Isolation(self.rooms(), required, proc)
        return Keeper(_place, Host(self.root), journal, Tallies(), isolation)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A node's files."""
    return Machine(tmp_path)


def _mounted(adjustment: Adjustment | None) -> dict[str, tuple[str, str]]:
    assert adjustment is not None
    return {m.destination: (m.source, m.options[1]) for m in adjustment.mounts}


def test_a_share_gets_the_library_its_limits_and_its_card(machine: Machine) -> None:
    """Read-only but for its account and its own seat; the loader loads the library."""
    keeper = machine.keeper()

    adjustment = keeper.create(_pod(SHARE), _container())

    room = "/state/containers/container-u1"
    assert _mounted(adjustment) == {
        INSIDE: (room, "ro"),
        f"{INSIDE}/account": ("/state/private/container-u1/account", "rw"),
        f"{INSIDE}/card-0": ("/state/seats/GPU-0", "ro"),
        f"{INSIDE}/card-0/seat-0": ("/state/seats/GPU-0/seat-0", "rw"),
        PRELOAD: (f"{room}/preload", "ro"),
    }
    assert adjustment is not None
    assert adjustment.annotations == {names.SERVED: "partage"}
    here = machine.state / "containers/container-u1"
    library = next(here.glob("*.so"))
    assert (here / "preload").read_text() == f"{INSIDE}/{library.name}\n"
    assert library.read_bytes() == b"the library"
    assert stat.S_IMODE(library.stat().st_mode) == 0o555
    card = read((here / "limits").read_text()).cards[0]
    assert (card.uuid, card.memory_bytes, card.core_milli) == ("GPU-0", 4 * GIB, 300)
    assert (card.policy, card.priority, card.swap_bytes) == (
        Policy.FIXED_SHARE,
        Priority.ORDINARY,
        0,
    )


def test_tenants_of_a_card_have_seats_of_their_own(machine: Machine) -> None:
    """Two seats; one is free again when its container has ended."""
    rooms = machine.rooms()
    first, second = rooms.open("container-a", QUOTA), rooms.open("container-b", QUOTA)

    assert [room.limits.cards[0].slot for room in (first, second)] == [0, 1]
    assert first.seats_of(first.limits.cards[0]) == second.seats_of(second.limits.cards[0])
    assert not (first.folder / first.library).samefile(second.folder / second.library)
    rooms.close("container-a")
    assert rooms.open("container-c", QUOTA).limits.cards[0].slot == 0
    assert sorted(rooms.rooms) == ["container-b", "container-c"]


def test_a_whole_card_beside_a_share_is_left_alone(machine: Machine) -> None:
    """A card without limits would be closed to the container, so it has some that hold nothing back."""
    machine.keeper().create(_pod(SHARE, WHOLE), _container())

    limits = read((machine.state / "containers/container-u1/limits").read_text())
    assert [(c.uuid, c.policy, c.memory_bytes) for c in limits.cards] == [
        ("GPU-0", Policy.FIXED_SHARE, 4 * GIB),
        ("GPU-1", Policy.NONE, 0),
    ]


def test_whole_cards_alone_need_nothing(machine: Machine) -> None:
    """No room, no mounts."""
    adjustment = machine.keeper().create(_pod(WHOLE), _container())

    assert _mounted(adjustment) == {}
    assert not list((machine.state / "containers").iterdir())


@pytest.mark.parametrize(
    ("annotations", "env", "policy", "priority"),
    [
        ({}, (), Policy.FIXED_SHARE, Priority.ORDINARY),
        ({names.COMPUTE_POLICY: "burst-share"}, (), Policy.FIXED_SHARE, Priority.ORDINARY),
        ({names.COMPUTE_POLICY: "be"}, (), Policy.FIXED_SHARE, Priority.ORDINARY),
        ({names.QGPU_APP_CLASS: "online"}, (), Policy.FIXED_SHARE, Priority.ORDINARY),
        ({names.QGPU_APP_CLASS: "offline"}, (), Policy.FIXED_SHARE, Priority.OFFLINE),
        ({}, ("CUDA_TASK_PRIORITY=0",), Policy.FIXED_SHARE, Priority.ORDINARY),
        ({}, ("CUDA_TASK_PRIORITY=1",), Policy.FIXED_SHARE, Priority.OFFLINE),
        (
            {},
            ("GPU_CORE_UTILIZATION_POLICY=disable",),
            Policy.FIXED_SHARE,
            Priority.ORDINARY,
        ),
        (
            {names.COMPUTE_POLICY: "fs"},
            ("GPU_CORE_UTILIZATION_POLICY=disable",),
            Policy.FIXED_SHARE,
            Priority.ORDINARY,
        ),
    ],
    ids=[
        "the node's",
        "the pod's",
        "short",
        "online",
        "offline",
        "first",
        "second",
        "HAMi's word",
        "annotation first",
    ],
)
def test_a_pod_chooses_its_policy_and_precedence(
    machine: Machine,
    annotations: dict[str, str],
    env: tuple[str, ...],
    policy: Policy,
    priority: Priority,
) -> None:
    """The qGPU document's names by annotation, HAMi's by variable; no more than the node's label and its operator grant."""
    machine.keeper().create(_pod(SHARE, annotations=annotations), _container(env=env))

    limits = read((machine.state / "containers/container-u1/limits").read_text())
    assert (limits.cards[0].policy, limits.cards[0].priority) == (policy, priority)


def test_no_quota_is_best_effort(machine: Machine) -> None:
    """A share of memory alone has no compute that could be guaranteed."""
    machine.keeper().create(_pod(structs.replace(SHARE, core_milli=0)), _container())

    limits = read((machine.state / "containers/container-u1/limits").read_text())
    assert limits.cards[0].policy is Policy.BEST_EFFORT


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({names.COMPUTE_POLICY: "all"}, "'all' is not one of best-effort, be, fixed-share"),
        ({names.QGPU_APP_CLASS: "vip"}, "'vip' is not one of online, offline"),
        ({names.MEMORY_BEYOND: "4Gi"}, "allows a container 0 to 0 bytes"),
        ({names.MEMORY_BEYOND: "much"}, names.MEMORY_BEYOND),
    ],
    ids=["policy", "class", "beyond", "no quantity"],
)
def test_a_wish_that_cannot_be_is_refused(annotations: dict[str, str], why: str) -> None:
    """The refusal has the rule; memory of the host is allocated only where the operator allows it."""
    found = inject(_pod(SHARE, annotations=annotations), _container(), _place(), ())

    assert isinstance(found, Refusal)
    assert found.rule == "BadWish"
    assert why in found.message


def test_memory_beyond_the_grant_is_explicit() -> None:
    """The pod asks, the operator allows."""
    place = _place(OwnLibrary(most_beyond_bytes=8 * GIB, compute=True))

    found = inject(_pod(SHARE, annotations={names.MEMORY_BEYOND: "4Gi"}), _container(), place, ())

    assert isinstance(found, Injected)
    assert found.given.quota is not None
    assert found.given.quota[0].swap_bytes == 4 * GIB


@pytest.mark.parametrize(
    "at",
    [PRELOAD, INSIDE, f"{INSIDE}/limits", f"{INSIDE}/../isolation/x/..", f"/{PRELOAD}"],
)
def test_a_mount_over_the_limits_is_refused(at: str) -> None:
    """A volume of the pod's would hide what keeps it to its limits."""
    found = inject(_pod(SHARE), _container(mounts=(Mount(at, "bind", "/x"),)), _place(), ())

    assert isinstance(found, Refusal)
    assert found.rule == "Tampered"


def test_shares_are_refused_where_only_instances_are_kept() -> None:
    """Provider `mig`."""
    found = inject(_pod(SHARE), _container(), _place(MigOnly()), ())

    assert isinstance(found, Refusal)
    assert "--isolation mig" in found.message


def test_a_restarted_agent_knows_rooms_and_seats(machine: Machine) -> None:
    """No container gets a seat that another has."""
    machine.rooms().open("container-a", QUOTA)

    rooms = machine.rooms()

    assert rooms.rooms["container-a"].limits.cards[0].slot == 0
    assert rooms.open("container-b", QUOTA).limits.cards[0].slot == 1


def test_a_new_library_is_a_new_file(machine: Machine) -> None:
    """Running containers keep the old one, even after the folder of libraries forgot it."""
    old = machine.rooms().open("container-a", QUOTA)
    machine.built.write_bytes(b"a better library")

    rooms = machine.rooms()
    new = rooms.open("container-b", QUOTA)

    assert (old.folder / old.library).read_bytes() == b"the library"
    assert (new.folder / new.library).read_bytes() == b"a better library"
    rooms.keep(())
    machine.rooms()
    assert [path.name for path in (machine.state / "lib").iterdir()] == [new.library]


def test_after_a_boot_all_is_new(machine: Machine) -> None:
    """Containers do not outlive the machine, and its clock starts at zero."""
    machine.rooms().open("container-a", QUOTA)
    machine.boot.write_text("two\n")

    assert not machine.rooms().rooms
    assert not list((machine.state / "seats").iterdir())
    assert not list((machine.state / "private").iterdir())


@pytest.mark.parametrize("size", [0, 100, 10**6], ids=["cut off", "cut short", "made longer"])
def test_a_seat_that_was_spoilt_is_whole_for_the_next(machine: Machine, size: int) -> None:
    """A tenant can spoil its own seat alone, and not for those after it."""
    rooms = machine.rooms()
    spoilt = rooms.open("container-a", QUOTA)
    folder = spoilt.seats_of(spoilt.limits.cards[0])
    assert folder is not None
    os.truncate(seat_file(folder, 0), size)

    assert rooms.open("container-b", QUOTA).limits.cards[0].slot == 1
    rooms.close("container-a")

    assert rooms.open("container-c", QUOTA).limits.cards[0].slot == 0
    assert {path.stat().st_size for path in folder.iterdir()} == {SEAT_BYTES}
    assert read_seat(folder, 0) is None


def test_files_that_tenants_made_longer_get_their_size_again(machine: Machine) -> None:
    """The agent mends those on the disk between two looks."""
    rooms = machine.rooms()
    room = rooms.open("container-a", QUOTA)
    folder = room.seats_of(room.limits.cards[0])
    assert folder is not None
    os.truncate(seat_file(folder, 0), 10**6)
    os.truncate(room.account, 10**7)

    rooms.mend()

    assert seat_file(folder, 0).stat().st_size == SEAT_BYTES
    assert room.account.stat().st_size == ACCOUNT_BYTES


@pytest.mark.parametrize("mode", [0, 0o200, 0o600])
def test_a_seat_that_its_tenant_closed_is_readable_again(machine: Machine, mode: int) -> None:
    """Neighbours of another user would not see its turns."""
    rooms = machine.rooms()
    room = rooms.open("container-a", QUOTA)
    folder = room.seats_of(room.limits.cards[0])
    assert folder is not None
    seat_file(folder, 0).write_bytes(b"1" * SEAT_BYTES)
    seat_file(folder, 0).chmod(mode)

    rooms.mend()

    assert stat.S_IMODE(seat_file(folder, 0).stat().st_mode) == 0o666
    assert seat_file(folder, 0).read_bytes() == b"1" * SEAT_BYTES


@pytest.mark.parametrize("size", [0, 100, ACCOUNT_BYTES - 1])
def test_an_account_that_was_cut_off_stays_so(machine: Machine, size: int) -> None:
    """Its counts are lost: zeros in their place would read as a container that uses nothing."""
    rooms = machine.rooms()
    room = rooms.open("container-a", QUOTA)
    os.truncate(room.account, size)

    rooms.mend()

    assert room.account.stat().st_size == size
    with pytest.raises(InvalidDocument):
        read_account(room.account)


def test_terms_are_the_agents_word(machine: Machine) -> None:
    """Policy, precedence and quota of each tenant, as long as it is there; no other user may write them."""
    rooms = machine.rooms()
    room = rooms.open("container-a", QUOTA)
    terms = room.seats / "GPU-0/terms"

    assert int.from_bytes(terms.read_bytes()[:8], "little") == 1 << 56 | 1 << 40 | 1 << 32 | 300
    assert stat.S_IMODE(terms.stat().st_mode) == 0o644
    rooms.open("container-b", QUOTA)
    rooms.close("container-a")
    assert terms.read_bytes()[:8] == bytes(8)


def test_no_two_tenants_have_the_same_seat_file(machine: Machine) -> None:
    """This holds after a restart, and where a seat could not be freed; neighbours see it by the number of its file."""
    rooms = machine.rooms()
    rooms.open("container-a", QUOTA)
    folder = rooms.rooms["container-a"].seats / "GPU-0"

    def number() -> int:
        return int.from_bytes((folder / "terms").read_bytes()[64 * 8 : 65 * 8], "little")

    had = []
    for one in range(4):
        room = rooms.open(f"container-b{one}", QUOTA)
        assert room.limits.cards[0].slot == 1
        had.append((os.open(seat_file(folder, 1), os.O_RDWR), number()))
        if one == 1:
            rooms = machine.rooms()
        if one == 2:
            (folder / "seat-1").rename(folder / "aside")
            (folder / "seat-1").mkdir()  # as if it could not be renamed
            rooms.close(f"container-b{one}")
            (folder / "seat-1").rmdir()
            (folder / "aside").rename(folder / "seat-1")
        else:
            rooms.close(f"container-b{one}")

    files = [os.fstat(descriptor).st_ino for descriptor, _ in had]
    for descriptor, _ in had:
        os.close(descriptor)
    assert len(set(files)) == 4
    assert sorted({number for _, number in had}) == [number for _, number in had]
    assert read_seat(folder, 1) is None


def test_seats_of_an_older_agent_keep_their_files(machine: Machine) -> None:
    """The libraries beside them do not know that a seat may get another one."""
    rooms = machine.rooms()
    rooms.open("container-a", QUOTA)
    folder = rooms.rooms["container-a"].seats / "GPU-0"
    with (folder / "terms").open("r+b") as terms:
        terms.seek(63 * 8)
        terms.write(bytes(63 * 8))
    before = seat_file(folder, 1).stat().st_ino

    for one in range(2):
        rooms.open(f"container-b{one}", QUOTA)
        seat_file(folder, 1).write_bytes(b"x" * SEAT_BYTES)
        rooms.close(f"container-b{one}")

    assert seat_file(folder, 1).stat().st_ino == before
    assert read_seat(folder, 1) is None
    rooms.close("container-a")
    room = machine.rooms().open("container-c", QUOTA)
    assert (room.seats / "GPU-0/terms").read_bytes()[63 * 8 :][:8] == b"\1" + bytes(7)


def test_rooms_of_an_older_agent_are_kept(machine: Machine) -> None:
    """Its containers run on with their own library and page; a new one beside them gets another seat."""
    rooms = machine.rooms()
    room = rooms.open("container-a", QUOTA)
    (room.folder / "limits").chmod(0o644)
    text = (room.folder / "limits").read_text()
    (room.folder / "limits").write_text(
        text.replace("limits 2", "limits 1").replace("seats card-0", "page card-0")
    )
    (room.folder / "digest").unlink()
    (machine.state / "cards").mkdir()

    again = machine.rooms()
    old, new = again.rooms["container-a"], again.open("container-b", QUOTA)

    assert (old.limits.version, old.account) == (1, old.folder / "account")
    assert old.seats_of(old.limits.cards[0]) is None
    assert new.limits.cards[0].slot == 1
    assert (machine.state / "cards").exists()
    again.close("container-a")
    assert not (machine.rooms(), (machine.state / "cards").exists())[1]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a\0b"])
def test_no_name_leads_elsewhere(machine: Machine, name: str) -> None:
    """A container's identity does not, nor does a card's."""
    rooms = machine.rooms()

    with pytest.raises(InvalidValue):
        rooms.open(name, QUOTA)
    with pytest.raises(InvalidValue):
        rooms.open("container-a", (replace(QUOTA[0], uuid=name),))
    assert not list((machine.state / "containers").iterdir())


def test_a_room_of_a_later_agent_is_left_to_its_container(machine: Machine) -> None:
    """After a roll-back, what a container reads stays until it ends."""
    room = machine.rooms().open("container-a", QUOTA)
    (room.folder / "limits").chmod(0o644)
    later = (room.folder / "limits").read_text().replace("limits 2", "limits 3")
    (room.folder / "limits").write_text(later)

    rooms = machine.rooms()

    assert "version 3 is not known" in rooms.problems[-1]
    assert not rooms.rooms
    assert (room.folder / "limits").read_text() == later
    assert room.account.exists()
    rooms.keep(())
    assert not room.folder.exists()
    assert not room.account.exists()


@pytest.mark.parametrize("back", [True, False], ids=["for a moment", "for good"])
def test_the_seat_of_a_room_that_cannot_be_read_goes_to_nobody_else(
    machine: Machine, *, back: bool
) -> None:
    """The agent reads the room again later, and gives its seat to no other container meanwhile."""
    room = machine.rooms().open("container-a", QUOTA)
    (room.folder / "limits").rename(machine.folder / "limits")
    rooms = machine.rooms()
    assert not rooms.rooms

    if back:
        (machine.folder / "limits").rename(room.folder / "limits")
    other = rooms.open("container-b", QUOTA)

    (card,) = {one.slot for one in other.limits.cards}
    assert card != 0
    assert set(rooms.rooms) == ({"container-a", "container-b"} if back else {"container-b"})
    if back:
        assert card == 1
        assert rooms.rooms["container-a"].limits.cards[0].slot == 0


def test_two_rooms_that_cannot_be_read_one_after_the_other_keep_their_seats(
    machine: Machine,
) -> None:
    """Each agent that starts cannot read another room; even without terms, no container gets a seat that is taken."""
    nothing = replace(QUOTA[0], core_milli=0, policy=Policy.BEST_EFFORT)
    quota = (replace(nothing, priority=Priority.OFFLINE),)
    slots = set()
    for name in ("container-a", "container-b", "container-c", "container-d"):
        room = machine.rooms().open(name, quota)
        slots.add(room.limits.cards[0].slot)
        (room.folder / "limits").rename(machine.folder / f"limits-{name}")

    assert len(slots) == 4
    (room.seats / "GPU-0/terms").unlink()
    with pytest.raises(OSError, match="terms"):
        machine.rooms().open("container-e", quota)


@pytest.mark.parametrize("left", [(".terms.77",), ("terms",), ("terms", "seat-0", ".seat-1.77")])
def test_seats_that_a_kill_left_half_made_are_made_whole(
    machine: Machine, left: tuple[str, ...]
) -> None:
    """This holds beside a room that cannot be read too, for which no agent that starts removes a card's files."""
    other = (replace(QUOTA[0], uuid="GPU-1"),)
    (machine.rooms().open("container-a", other).folder / "limits").unlink()
    whole = machine.rooms().open("container-b", QUOTA).seats / "GPU-0"
    half = {name: (whole / name.lstrip(".").removesuffix(".77")).read_bytes() for name in left}
    machine.rooms().close("container-b")
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir(mode=0o755)
    for name, content in half.items():
        (whole / name).write_bytes(content)
        (whole / name).chmod(0o666)  # as it was while it was made
    if "terms" in left:
        (whole / "terms").write_bytes(bytes(63 * 8) + (1).to_bytes(8, "little") * 63)
        os.truncate(whole / "terms", SEAT_BYTES)

    room = machine.rooms().open("container-c", QUOTA)

    assert read_seat(whole, room.limits.cards[0].slot) is None
    assert len(list(whole.iterdir())) == 64
    assert stat.S_IMODE((whole / "terms").stat().st_mode) == 0o644


def test_a_kill_finds_no_terms_that_others_may_write(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have their mode before they have their name."""
    modes, link = dict[str, int](), os.link

    def linked(source: Path, target: Path) -> None:
        modes[target.name] = stat.S_IMODE(source.stat().st_mode)
        link(source, target)

    monkeypatch.setattr(os, "link", linked)
    machine.rooms().open("container-a", QUOTA)

    assert modes["terms"] == 0o644
    assert modes["seat-0"] == 0o666


def test_a_room_that_cannot_be_read_is_not_made_anew_over_its_container(machine: Machine) -> None:
    """Its account stays, even when the runtime asks for the container again."""
    room = machine.rooms().open("container-a", QUOTA)
    (room.folder / "limits").unlink()

    with pytest.raises(
        InvalidValue, match="the folder of container container-a is there and cannot be read"
    ):
        machine.rooms().open("container-a", QUOTA)
    assert room.account.exists()


def test_an_account_that_could_not_be_removed_hinders_no_next_try(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the proxy a container has the same name at the next try."""
    rooms = machine.rooms()
    with monkeypatch.context() as patch:
        patch.setattr(tenant_files, "_removed", lambda _folder: None)
        patch.setattr(tenant_files, "make_account", _fails)
        with pytest.raises(OSError, match="Too many"):
            rooms.open("container-a", QUOTA)

    assert rooms.open("container-a", QUOTA).account.exists()


def test_amounts_that_are_half_changed_are_known_as_they_are(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second card cannot be written: what is in force in the first is what the agent goes by."""
    rooms = machine.rooms()
    first = QUOTA[0]
    room = rooms.open("container-a", (first, replace(first, uuid="GPU-1")))
    less = tuple(replace(card, core_milli=100) for card in room.amounts)
    genuine = container_dirs.set_amounts

    def one(path: Path, index: int, card: CardLimits) -> None:
        if index:
            _fails()
        genuine(path, index, card)

    with monkeypatch.context() as patch:
        patch.setattr(container_dirs, "set_amounts", one)
        with pytest.raises(OSError, match="Too many"):
            rooms.adjust("container-a", less)
    assert [card.core_milli for card in rooms.rooms["container-a"].cards] == [100, 300]
    assert machine.rooms().rooms["container-a"].cards == rooms.rooms["container-a"].cards


def _fails(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_room_that_cannot_be_moved_away_keeps_its_seat_until_it_can(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are there, and its container may be too, as far as the agent can know."""
    rooms = machine.rooms()
    room = rooms.open("container-a", QUOTA)

    def fails(*_: object) -> Path:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fails)
        with pytest.raises(OSError, match="Input/output"):
            rooms.close("container-a")
    assert rooms.open("container-b", QUOTA).limits.cards[0].slot == 1
    assert rooms.keep(["container-b"]) == ["container-a"]
    assert not room.folder.exists()
    assert rooms.open("container-c", QUOTA).limits.cards[0].slot == 0


def test_a_room_that_stays_keeps_no_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three have ended, and the folder of the first cannot be moved away: the others go."""
    rooms = machine.rooms()
    for name in ("container-a", "container-b", "container-c"):
        rooms.open(name, QUOTA)
    genuine = Path.rename

    def first(path: Path, target: Path) -> Path:
        if path.name == "container-a":
            raise OSError(errno.EIO, "Input/output error")
        return genuine(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", first)
        with pytest.raises(OSError, match="Input/output"):
            rooms.keep([])
    assert list(rooms.rooms) == ["container-a"]


def test_a_card_has_a_number_of_seats(machine: Machine) -> None:
    """The 64th tenant is refused, and leaves nothing."""
    rooms = machine.rooms()
    for number in range(63):
        rooms.open(f"container-{number}", QUOTA)

    with pytest.raises(InvalidValue, match="all its 63 seats"):
        rooms.open("container-63", QUOTA)
    assert len(list((machine.state / "containers").iterdir())) == 63


def test_containers_without_turns_take_no_seat(tmp_path: Path) -> None:
    """A tenant's many small shares of memory close the card to none, and leave all seats to those with turns."""
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("one")
    (tmp_path / "built.so").write_bytes(b"the library")
    rooms = Rooms(tmp_path / "built.so", tmp_path / "state", "/state", tmp_path)

    for number in range(SEATS + 1):
        rooms.open(f"container-{number}", (CardQuota("GPU-0", 2**20, 10, Policy.NONE),))
    for number in range(SEATS):
        rooms.open(f"with-turns-{number}", (CardQuota("GPU-0", 2**20, 10, Policy.FIXED_SHARE),))

    slots = {
        room.limits.cards[0].slot
        for name, room in rooms.rooms.items()
        if name.startswith("with-turns")
    }
    assert slots == set(range(SEATS))


def test_a_room_that_cannot_be_made_leaves_its_seat_free(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full while the library is copied: the seat stays free, and the card's folder goes."""
    rooms = machine.rooms()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(OSError, match="No space left"):
            rooms.open("container-a", QUOTA)
    assert not [*(machine.state / "seats").iterdir()]
    assert not [*(machine.state / "private").iterdir()]
    assert rooms.open("container-a", QUOTA).limits.cards[0].slot == 0


def test_a_library_that_is_not_there_is_told(machine: Machine) -> None:
    """The message names the file."""
    machine.built.unlink()

    with pytest.raises(InvalidDocument, match=r"built\.so"):
        machine.rooms()


# --- images ----------------------------------------------------------------------------------


def _proc(machine: Machine, root: Path, container: str) -> Path:
    """A process table with the first process of a container, whose root is given."""
    proc = machine.folder / "table"
    (proc / "42").mkdir(parents=True)
    (proc / "42/cgroup").write_text(f"0::/kubepods/burstable/podx/{container}\n")
    (proc / "42/root").symlink_to(root)
    return proc


def _image(folder: Path, libc: bytes | None) -> Path:
    root = folder / "root"
    (root / "lib64").mkdir(parents=True)
    if libc is not None:
        (root / "lib64/libc.so.6").write_bytes(b"\x7fELF\0" + libc + b"\0")
    return root


@pytest.mark.parametrize(
    ("libc", "why"),
    [
        (b"GLIBC_2.2.5\0GLIBC_2.12", "C library is 2.12; 2.17 or newer"),
        (None, "no GNU C library"),
        (b"GLIBC_2.2.5\0GLIBC_2.17", ""),
        (b"GLIBC_2.2.5\0GLIBC_2.41", ""),
    ],
    ids=["old", "none", "oldest that does", "new"],
)
def test_the_library_is_kept_out_of_images_that_cannot_load_it(
    machine: Machine, libc: bytes | None, why: str
) -> None:
    """The loader finds nothing to load, in the file that is mounted already; the room says why."""
    container = _container(args=("/bin/true",))
    proc = _proc(machine, _image(machine.folder, libc), container.id)
    keeper = machine.keeper(proc=proc)
    keeper.create(_pod(SHARE), container)
    with (machine.state / "containers/container-u1/preload").open() as mounted:
        keeper.start(_pod(SHARE), container)
        loaded = mounted.read()

    assert keeper.isolation is not None
    assert why in keeper.isolation.rooms.rooms[container.id].spared
    assert bool(loaded) is not bool(why)
    assert machine.rooms().rooms[container.id].spared == (
        keeper.isolation.rooms.rooms[container.id].spared
    )


def test_what_cannot_be_held_is_not_started_where_that_is_the_rule(machine: Machine) -> None:
    """`--not-in-force evict`."""
    container = _container()
    proc = _proc(machine, _image(machine.folder, None), container.id)
    keeper = machine.keeper(required=True, proc=proc)
    keeper.create(_pod(SHARE), container)

    with pytest.raises(Refused, match="NotEnforceable"):
        keeper.start(_pod(SHARE), container)


def _layers(folder: Path, **layers: Mapping[str, bytes | None]) -> list[Path]:
    """Layers of a root, topmost first; None is a file that the layer takes away."""
    for name, files in layers.items():
        (folder / name).mkdir()
        for path, content in files.items():
            at = folder / name / path
            at.parent.mkdir(parents=True, exist_ok=True)
            if content is not None:
                at.write_bytes(content)
            elif os.geteuid():
                pytest.skip("only root can take a file of a layer away")
            else:
                os.mknod(at, stat.S_IFCHR, 0)
    return [folder / name for name in layers]


NEW, OLD_LIBC = (b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.%d\0" % minor for minor in (41, 12))


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ({"top": {}, "base": {"lib64/libc.so.6": OLD_LIBC}}, "2.12; 2.17 or newer"),
        ({"top": {"lib64/libc.so.6": NEW}, "base": {"lib64/libc.so.6": OLD_LIBC}}, ""),
        ({"top": {"lib64/libc.so.6": None}, "base": {"lib64/libc.so.6": NEW}}, "no GNU C library"),
        ({"top": {"lib64": None}, "base": {"lib64/libc.so.6": NEW}}, "no GNU C library"),
        ({"top": {"lib64/other": b""}, "base": {"lib64/libc.so.6": NEW}}, ""),
        ({"top": {"lib64": b"a file"}, "base": {"lib64/libc.so.6": NEW}}, "no GNU C library"),
    ],
    ids=["below", "above", "taken away", "folder taken away", "folder of both", "hidden"],
)
def test_an_image_is_judged_by_its_layers_before_it_has_a_root(
    machine: Machine, layers: dict[str, dict[str, bytes | None]], why: str
) -> None:
    """The proxy sees it so: nothing is put together yet, and no process is there."""
    container = _container(args=("/bin/true",))
    keeper = machine.keeper()
    keeper.create(_pod(SHARE), container)

    keeper.start(_pod(SHARE), container, _layers(machine.folder, **layers))

    assert keeper.isolation is not None
    assert why in keeper.isolation.rooms.rooms[container.id].spared
    assert bool(keeper.isolation.rooms.rooms[container.id].spared) is bool(why)


@pytest.mark.parametrize("required", [True, False])
def test_an_image_that_cannot_be_looked_at_is_not_started_where_that_is_the_rule(
    machine: Machine, *, required: bool
) -> None:
    """Otherwise the library stays; what comes of it is seen when it runs."""
    keeper = machine.keeper(required=required, proc=machine.folder)
    keeper.create(_pod(SHARE), _container())

    if required:
        with pytest.raises(Refused, match="cannot be looked at before it starts: no layers"):
            keeper.start(_pod(SHARE), _container(), (), "no layers")
    else:
        keeper.start(_pod(SHARE), _container(), (), "no layers")
        assert keeper.isolation is not None
        assert not keeper.isolation.rooms.rooms["container-u1"].spared


def test_a_process_that_the_runtime_names_is_found_among_any_number(machine: Machine) -> None:
    """The table is not read then: tenants may have thousands; a number that is another's by now is not believed."""
    proc = _proc(machine, machine.folder, "container-u1")
    (proc / "43").mkdir()
    (proc / "43/cgroup").write_text("0::/kubepods/burstable/podx/container-u2\n")

    assert root_of("container-u1", proc, 43) == proc / "42/root"
    (proc / "43/cgroup").write_text("0::/kubepods/burstable/podx/container-u1\n")
    assert root_of("container-u1", proc, 43) == proc / "43/root"


@pytest.mark.parametrize("required", [True, False])
def test_an_image_on_a_server_that_does_not_answer_holds_up_no_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, required: bool
) -> None:
    """A volume may be the tenant's own server, and the program that starts lie on it."""
    answers, looks = threading.Event(), []

    def hangs(*_: object) -> NoReturn:
        looks.append(1)
        answers.wait()
        raise AssertionError

    container = _container(args=("/mnt/program",))
    proc = _proc(machine, _image(machine.folder, None), container.id)
    keeper = machine.keeper(required=required, proc=proc)
    keeper.create(_pod(SHARE), container)
    with monkeypatch.context() as patch:
        patch.setattr(container_admission, "_PATIENCE", 0.1)
        patch.setattr(container_admission, "judge_image", hangs)
        for _ in range(4):  # the runtime tries again
            if required:
                with pytest.raises(Refused, match="files that do not answer"):
                    keeper.start(_pod(SHARE), container)
            else:
                keeper.start(_pod(SHARE), container)
            while not looks:  # of a thread that a busy machine may start late
                time.sleep(0.01)
    assert looks == [1]  # the others waited for nothing
    assert keeper.create(_pod(SHARE, uid="u2"), _container("u2")) is not None
    assert keeper.isolation is not None
    assert not keeper.isolation.rooms.rooms[container.id].spared
    answers.set()


@pytest.mark.parametrize("required", [True, False])
def test_an_image_that_the_agent_has_no_descriptor_for_is_not_spared(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, required: bool
) -> None:
    """It was not looked at: the library stays, or the container is refused."""

    def fails(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    container = _container()
    proc = _proc(machine, _image(machine.folder, None), container.id)
    keeper = machine.keeper(required=required, proc=proc)
    keeper.create(_pod(SHARE), container)
    monkeypatch.setattr(container_admission, "judge_image", fails)
    if required:
        with pytest.raises(Refused, match="lacks a resource: Too many open files"):
            keeper.start(_pod(SHARE), container)
    else:
        keeper.start(_pod(SHARE), container)
    assert keeper.isolation is not None
    assert not keeper.isolation.rooms.rooms[container.id].spared


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from([names.COMPUTE_POLICY, names.QGPU_APP_CLASS, names.MEMORY_BEYOND]),
        st.text(max_size=80),
    ),
    st.lists(st.text(max_size=40), max_size=4),
)
def test_hostile_wishes_give_limits_or_a_reason(
    annotations: dict[str, str], env: list[str]
) -> None:
    """Anything that a pod's author writes becomes limits, or a refusal with the rule."""
    found = inject(_pod(SHARE, annotations=annotations), _container(env=tuple(env)), _place(), ())

    if isinstance(found, Refusal):
        assert found.rule == "BadWish"
    else:
        assert isinstance(found, Injected)
        assert found.given.quota is not None
        assert found.given.quota[0].memory_bytes == 4 * GIB


def test_without_compute_memory_alone_is_capped(machine: Machine) -> None:
    """No launch is held back, whatever the node's policy; the quota stays, for the report that it is not held."""
    provider = OwnLibrary()
    shares = Shares("u", "main", {}, {}, {}, "fixed-share", (SHARE,))

    kept = provider.keep(shares).quota

    assert kept == (CardQuota("GPU-0", 4 * GIB, 300, Policy.NONE),)
    best = provider.keep(dataclasses.replace(shares, policy="best-effort")).quota
    assert best == (CardQuota("GPU-0", 4 * GIB, 0, Policy.NONE),)


def test_hami_s_library_counts_cards_of_the_container(machine: Machine) -> None:
    """It counts them by number, not by the order of grants; a card counts once, and gets no neighbour's limit."""
    second = structs.replace(SHARE, minor=1, uuid="GPU-1", core_milli=500)
    shares = Shares("u", "main", {}, {}, {}, "", (second, SHARE))

    assert _limits_of(shares) == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "4096m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_SM_LIMIT_0": "30",
        "CUDA_DEVICE_SM_LIMIT_1": "50",
    }
    assert _limits_of(dataclasses.replace(shares, grants=(WHOLE, SHARE))) == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
        "CUDA_DEVICE_SM_LIMIT_0": "30",
        "CUDA_DEVICE_SM_LIMIT_1": "100",
    }
    memory = structs.replace(second, core_milli=0)
    assert _limits_of(dataclasses.replace(shares, grants=(SHARE, memory))) == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "4096m",
        "CUDA_DEVICE_SM_LIMIT_0": "30",
        "CUDA_DEVICE_SM_LIMIT_1": "100",
    }
    for grants, percent in (((SHARE,), "30"), ((structs.replace(SHARE, core_milli=0),), "100")):
        assert _limits_of(dataclasses.replace(shares, grants=grants)) == {
            "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
            "CUDA_DEVICE_SM_LIMIT": percent,
        }
    assert _limits_of(dataclasses.replace(shares, grants=(SHARE, SHARE))) == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "8192m",
        "CUDA_DEVICE_SM_LIMIT": "60",
    }


@pytest.mark.parametrize(
    ("annotations", "policy", "words"),
    [
        ({}, "fixed-share", ("force", None)),
        ({names.COMPUTE_POLICY: "be"}, "fixed-share", ("force", None)),
        ({names.COMPUTE_POLICY: "bs", names.QGPU_APP_CLASS: "online"}, "be", (None, "0")),
        ({names.COMPUTE_POLICY: "fs"}, "be", ("force", None)),
        ({names.QGPU_APP_CLASS: "offline"}, "", (None, "1")),
    ],
)
def test_hami_s_library_hears_what_the_pod_chose(
    annotations: dict[str, str], policy: str, words: tuple[str | None, str | None]
) -> None:
    """Policy and precedence in its own words; the pod's policy goes before the node's where it takes less."""
    shares = Shares("u", "main", annotations, {}, {}, policy, (SHARE,), may_be_online=True)
    env = HamiCore().keep(shares).env

    assert (env.get("GPU_CORE_UTILIZATION_POLICY"), env.get("CUDA_TASK_PRIORITY")) == words


def _limits_of(shares: Shares) -> dict[str, str]:
    env = HamiCore().keep(shares).env
    return {name: text for name, text in env.items() if "_LIMIT" in name}

"""In force: yes or no, and why, for each container."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from native_world import World

from partage.agent.isolation.account import make_account
from partage.agent.isolation.force import Cause, judge
from partage.agent.isolation.library import as_mapped, install
from partage.agent.isolation.limits import CardLimits, ContainerLimits, write
from partage.agent.isolation.programs import Reach
from partage.agent.isolation.rooms import Room
from partage.agent.isolation.seats import give_seat, make_seats, seat_file
from partage.agent.isolation.sight import ProcessView, look, read_room

LIMITS = ContainerLimits(1, (CardLimits("GPU-1", "card-0", 0, 2**30, 300),))


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A container's room as the agent leaves it."""
    built = tmp_path / "built.so"
    built.write_bytes(b"the library")
    make_account(tmp_path / "account")
    write(tmp_path / "limits", LIMITS)
    seats = tmp_path / "seats"
    seats.mkdir()
    make_seats(seats / "GPU-1")
    give_seat(seats / "GPU-1", LIMITS.cards[0])
    library = install(built, tmp_path)
    return Room(tmp_path, "/state", library.name, LIMITS, seats, tmp_path / "account")


def process(room: Room) -> ProcessView:
    """A process as it should be."""
    preload = f"/run/partage/{room.library}\n"
    return ProcessView(
        pid=7, uses_card=True, has_library=True, preload=preload, reach=Reach.REACHED
    )


def test_a_container_as_it_should_be_is_in_force(room: Room) -> None:
    """Nothing wrong: yes."""
    force = judge(room, read_room(room), (process(room),))

    assert force.in_force
    assert str(force) == "in force: yes"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"preload": ""}, Cause.PRELOAD),
        ({"preload": "/opt/other.so"}, Cause.PRELOAD),
        ({"has_library": False}, Cause.OUTSIDE),
        ({"has_library": False, "covered": True}, Cause.OUTSIDE),
        ({"has_library": False, "reach": Reach.STATIC}, Cause.OUTSIDE),
        ({"has_library": False, "reach": Reach.MUSL}, Cause.OUTSIDE),
        ({"taken_first": "/opt/x.so, which defines dlsym"}, Cause.OUTSIDE),
    ],
    ids=["no preload", "another preload", "outside", "covered", "static", "musl", "another first"],
)
def test_a_process_outside_is_named(room: Room, change: dict[str, object], cause: Cause) -> None:
    """The process and the reason are in the message."""
    odd = replace(process(room), **change)  # type: ignore[arg-type]

    force = judge(room, read_room(room), (odd,))

    assert [fault.cause for fault in force.faults] == [cause]
    assert str(force).startswith("in force: no; process 7")


def test_a_process_that_uses_no_card_may_be_static(room: Room) -> None:
    """A static helper that never touches a card is nobody's business."""
    helper = replace(process(room), uses_card=False, has_library=False, reach=Reach.STATIC)

    assert judge(room, read_room(room), (helper,)).in_force


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("limits", Cause.LIMITS),
        ("account", Cause.ACCOUNT),
        ("library", Cause.LIBRARY),
        ("seat", Cause.SEAT),
    ],
)
@pytest.mark.parametrize("act", ["removed", "changed"])
def test_tampering_with_a_file_is_seen(room: Room, name: str, cause: Cause, act: str) -> None:
    """Each file that the agent mounted is compared with what it was."""
    path = {
        "library": room.folder / room.library,
        "seat": seat_file(room.seats / "GPU-1", 0),
    }.get(name, room.folder / name)
    path.unlink()
    if act == "changed":
        path.write_bytes(b"something else")

    force = judge(room, read_room(room), ())

    assert [fault.cause for fault in force.faults] == [cause]


def test_a_refusal_of_the_library_is_reported(world: World) -> None:
    """A process whose seat is gone says so in the account, and it stays there after its end."""
    tenant = world.tenant()
    (tenant.folder / "card-0").unlink()

    tenant.run("memory", "show")

    account = tenant.folder / "account"
    room = Room(tenant.folder, "", "", LIMITS, world.folder, account)
    force = judge(room, read_room(room), ())
    assert Cause.REFUSED in {fault.cause for fault in force.faults}


def test_a_running_process_is_looked_at(world: World) -> None:
    """The kernel's own tables tell what is mapped."""
    tenant = world.tenant()
    running = tenant.start("memory", "plain", "1048576", "dlsym", "hold")
    assert running.stdout is not None
    while not running.stdout.readline().startswith("total"):
        pass

    shipped = as_mapped(tenant.library)
    seen = look(running.pid, str(tenant.library), shipped)
    running.communicate(timeout=60)

    assert seen is not None
    assert shipped
    assert (seen.uses_card, seen.has_library, seen.taken_first) == (True, True, "")
    assert seen.reach is Reach.REACHED
    assert look(running.pid, str(tenant.library)) is None
    own = look(os.getpid(), str(tenant.library), shipped)
    assert own is not None
    assert not own.uses_card


def test_a_file_mounted_over_the_library_is_not_the_library(world: World) -> None:
    """The kernel tells which file is mapped, whatever a mount namespace shows at its path."""
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no user and mount namespaces of one's own here")
    tenant = world.tenant()
    other = world.folder / "other.so"
    shutil.copyfile(tenant.library, other)
    mount = f"mount --bind {other} {tenant.library}; exec env LD_PRELOAD={tenant.library} $0 $@"
    program = [str(tenant.programs / "memory"), "plain", "1048576", "dlsym", "hold"]
    environment = {**os.environ, **tenant.environment}
    del environment["LD_PRELOAD"]
    with subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", mount, *program],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        while not running.stdout.readline().startswith("total"):
            assert running.poll() is None

        seen = look(running.pid, str(tenant.library), as_mapped(tenant.library))
        by_path = look(running.pid, str(tenant.library))
        running.communicate(timeout=60)

    assert seen is not None
    assert by_path is not None
    assert (seen.uses_card, seen.has_library, seen.covered) == (True, False, True)
    assert by_path.has_library

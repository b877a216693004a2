"""Shared memory: robust against SIGKILL at any instruction, and against whatever is written to it."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_world import MIB, SANITIZERS, WAIT, World, attempts, sanitized

from native_build import built
from partage.agent.isolation.account import make_account, read_account
from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.seats import (
    SEAT_MAGIC,
    free_seat,
    give_seat,
    make_seats,
    read_seat,
    seat_file,
)
from partage.model.errors import InvalidDocument
from partage.vendors.wishes import Policy

KILLS = int(os.environ.get("PARTAGE_KILLS", "200"))
SECONDS = float(os.environ.get("PARTAGE_KILL_SECONDS", "0"))
SANITIZER = os.environ.get("PARTAGE_KILL_SANITIZER", "")
"""A long run by hand: so many seconds at least, of 64 processes; `asan` or `tsan`."""
TENANTS, EACH = (8, 8) if SECONDS else (4, 2)
CAP = EACH * 64 * MIB
"""Of each tenant: what its processes hold may be more, and then some are refused and end."""
WAY = "linked" if SANITIZER else "dlsym"
LOAD = ["load", "--way", WAY, "--seconds", "86400"]
COMMANDS = [
    [*LOAD, "--depth", "4", "--size", "300000"],
    [*LOAD, "--how", "graph", "--threads", "2", "--size", "50000"],
    [*LOAD, "--threads", "3", "--depth", "0", "--size", "100000"],
    ["memory", "plain", str(MIB), WAY, "hold", "96"],
    ["memory", "handle", str(4 * MIB), WAY, "hold", "24"],
    ["memory", "pool", str(4 * MIB), WAY, "hold", "24"],
    ["memory", "capture", str(4 * MIB), WAY, "hold", "24"],
]


@pytest.fixture
def killed_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A modelled card, of the build that is asked for."""
    build = built(f"native-{SANITIZER}", SANITIZERS[SANITIZER]) if SANITIZER else built()
    world = World(tmp_path_factory.mktemp("w"), build)
    yield world
    world.close()


def ended(process: subprocess.Popen[str]) -> None:
    """Kill a process: it had memory refused at most, and no sanitizer had anything to say of it."""
    process.kill()
    _, error = process.communicate()
    refused = process.returncode > 0 and "driver error 2" in error
    assert refused or (process.returncode, error) == (-signal.SIGKILL, ""), (process, error)


def test_after_random_kills_nothing_hangs_and_nothing_is_lost(killed_world: World) -> None:
    """Tenants' processes are killed at random, while they start or work; then each tenant has its whole cap and its turn."""
    world, chance = killed_world, random.Random(20)
    tenants = [
        world.tenant(slot, memory=CAP, core=100, policy=Policy.BURST_SHARE)
        for slot in range(TENANTS)
    ]
    for tenant in tenants:
        sanitized(tenant, SANITIZER)

    def started(number: int) -> subprocess.Popen[str]:
        process = tenants[number % TENANTS].start(*chance.choice(COMMANDS))
        assert process.stdout is not None
        if chance.random() < 0.5:  # else it may end as it starts
            process.stdout.readline()
        return process

    running = [started(number) for number in range(TENANTS * EACH)]
    kills, until = 0, time.monotonic() + SECONDS
    while kills < KILLS or time.monotonic() < until:
        number = chance.randrange(len(running))
        time.sleep(chance.random() * 0.02)
        ended(running[number])
        running[number] = started(number)
        kills += 1
    for process in running:
        ended(process)

    for tenant in tenants:
        done = tenant.run("memory", "plain", str(32 * MIB), WAY)
        assert f"total {CAP}" in done.stdout, done.stderr
        assert f"info {CAP} {CAP} {CAP}" in done.stdout
    last = tenants[0].start(*LOAD, "--depth", "0")
    assert last.stdout is not None
    assert last.stdout.readline() == "ready\n"
    world.meter.until(0.2e9, last)  # the dead have no turns
    ended(last)
    print(f"{kills} kills of {len(running)} processes")  # noqa: T201 # of a long run


@pytest.mark.parametrize("seed", range(1, 4))
def test_corrupt_memory_costs_fairness_alone(seed: int) -> None:
    """Under sanitizers, no content of seats, account or limits breaks the library's readers."""
    build = built("native-asan", "address,undefined")

    done = subprocess.run(
        [build / "corrupt", str(seed), "400"],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )

    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


@pytest.mark.parametrize(
    "name", ["card-0/seat-0", "card-0/seat-5", "card-0/terms", "account", "amounts"]
)
def test_a_tenant_goes_on_while_its_pages_are_scribbled_over(world: World, name: str) -> None:
    """Garbage in shared memory neither crashes nor hangs the work, which began before."""
    chance = random.Random(7)
    tenant = world.tenant(core=500, policy=Policy.BURST_SHARE)
    process = tenant.start("load", "--seconds", "1", "--depth", "2", "--size", "100000")
    path = tenant.folder / name
    size = path.stat().st_size
    assert process.stdout is not None
    # A program that begins with such a page may be refused the card.
    assert process.stdout.readline() == "ready\n"

    with path.open("r+b", buffering=0) as file:
        for _ in attempts():
            if process.poll() is not None:
                break
            for _ in range(20):
                file.seek(chance.randrange(size // 8) * 8)
                file.write(chance.choice([b"\xff" * 8, bytes(8), chance.randbytes(8)]))
            time.sleep(0.005)
    out, error = process.communicate()

    assert process.returncode == 0, error
    assert "done" in out


def test_the_agent_reads_any_content(tmp_path: Path) -> None:
    """Seats and processes are read from garbage as well as from order; a file cut off is named."""
    folder, account = tmp_path / "card", tmp_path / "account"
    make_seats(folder)
    make_account(account)
    seat = seat_file(folder, 0)
    assert read_seat(folder, 0) is None
    assert read_account(account) == ()

    chance = random.Random(3)
    seat.write_bytes(SEAT_MAGIC.to_bytes(8, "little") + chance.randbytes(4088))
    content = chance.randbytes(account.stat().st_size)
    account.write_bytes(account.read_bytes()[:8] + content[8:])
    assert read_seat(folder, 0)
    assert read_account(account)

    os.truncate(seat, 100)
    os.truncate(account, 100)
    with pytest.raises(InvalidDocument, match="cut off"):
        read_seat(folder, 0)
    with pytest.raises(InvalidDocument, match="cut off"):
        read_account(account)
    seat.write_bytes(chance.randbytes(4096))
    with pytest.raises(InvalidDocument, match="written over"):
        read_seat(folder, 0)


def test_seats_in_use_are_never_made_again(tmp_path: Path) -> None:
    """An agent that restarts finds the files that tenants have mapped."""
    make_seats(tmp_path)
    card = CardLimits("GPU-1", "card-0", 0, 0, 300)
    give_seat(tmp_path, card, HeldFiles())
    inode = seat_file(tmp_path, 0).stat().st_ino
    content = SEAT_MAGIC.to_bytes(8, "little") + (9).to_bytes(8, "little")
    seat_file(tmp_path, 0).write_bytes(content.ljust(4096, b"\0"))

    make_seats(tmp_path)
    assert seat_file(tmp_path, 0).stat().st_ino == inode
    seat = read_seat(tmp_path, 0)
    assert seat is not None
    assert seat.container == 9

    free_seat(tmp_path, 0, HeldFiles())
    assert read_seat(tmp_path, 0) is None

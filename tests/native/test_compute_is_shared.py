"""Compute: shares by measured device time, in virtual time to a point, with real processes in proportion."""

import subprocess
from pathlib import Path

import pytest
from native_world import WAIT, World, built, uuid

from partage.agent.isolation.limits import CardLimits, Policy, Priority
from partage.agent.isolation.seats import Seat, read_seat


def test_shares_are_within_a_point_in_virtual_time(build: object) -> None:
    """Alone, pairs and up to 16 tenants; burst arithmetic 50/50/0 and 25/25/50; online first."""
    simulate = built() / "simulate"

    done = subprocess.run(
        [simulate, "4"], capture_output=True, text=True, check=False, timeout=WAIT
    )

    assert done.returncode == 0, "\n".join(
        line for line in done.stdout.splitlines() if "WRONG" in line
    )


def seat_of(folder: Path, slot: int) -> Seat:
    """What the tenant of a seat says."""
    seat = read_seat(folder, slot)
    assert seat is not None
    return seat


def work(text: str) -> tuple[int, int]:
    """Launches done and the ns they took."""
    words = text.split()
    at = words.index("done")
    return int(words[at + 1]), int(words[at + 2])


@pytest.mark.parametrize(
    "options",
    [
        ["--way", "dlsym", "--depth", "1"],
        ["--way", "proc", "--how", "graph", "--depth", "4"],
        ["--way", "linked", "--how", "together", "--depth", "0"],
        ["--how", "config", "--depth", "0"],
        ["--size", "20000", "--depth", "0"],
        ["--threads", "3", "--depth", "2"],
    ],
    ids=["kernel", "graph", "cooperative", "config", "small", "threads"],
)
def test_a_fixed_share_is_never_passed_even_alone(world: World, options: list[str]) -> None:
    """However work is launched, a quota of 20 % of an idle card stays 20 % of it."""
    tenant = world.tenant(core=200, policy=Policy.FIXED_SHARE)

    done = tenant.run("load", "--seconds", "1.5", *options)

    assert done.returncode == 0, done.stderr
    count, span = work(done.stdout)
    size = 20_000 if "20000" in options else 1_000_000
    # 50 ms of wall time may be saved up, and the work launched ahead is counted when it ends.
    assert count * size < 0.2 * (span + 50e6) + 40e6
    assert count * size > 0.02 * span


def test_busy_tenants_share_in_proportion_to_their_quotas(world: World) -> None:
    """Two tenants of 10 % and 40 %, bursting: the second gets about four times as much."""
    small = world.tenant(0, core=100, policy=Policy.BURST_SHARE)
    large = world.tenant(1, core=400, policy=Policy.BURST_SHARE)

    processes = [
        tenant.start("load", "--seconds", "2", "--depth", "0") for tenant in (small, large)
    ]
    counts = [work(process.communicate(timeout=WAIT)[0])[0] for process in processes]

    assert 2 * counts[0] < counts[1] < 8 * counts[0]
    seats = [seat_of(small.folder / "card-0", slot) for slot in range(2)]
    assert seats[1].served_ns > seats[0].served_ns > 0
    assert not seats[0].has_work


def test_idle_time_is_used(world: World) -> None:
    """A bursting tenant alone is not held to its quota."""
    tenant = world.tenant(core=50, policy=Policy.BURST_SHARE)

    count, span = work(tenant.run("load", "--seconds", "1", "--depth", "0").stdout)

    assert count * 1_000_000 > 0.2 * span


def test_processes_of_one_container_share_its_quota(world: World) -> None:
    """Three processes get no more than one would."""
    tenant = world.tenant(core=200, policy=Policy.FIXED_SHARE)

    processes = [tenant.start("load", "--seconds", "1.5", "--depth", "2") for _ in range(3)]
    done = [work(process.communicate(timeout=WAIT)[0]) for process in processes]

    assert (
        sum(count for count, _ in done) * 1_000_000
        < 0.2 * (max(s for _, s in done) + 150e6) + 60e6
    )


def test_offline_work_waits_for_online_work(world: World) -> None:
    """While online work is busy, offline work gets next to nothing; then it goes on."""
    offline = world.tenant(0, core=0, priority=Priority.OFFLINE)
    online = world.tenant(1, core=0, priority=Priority.ONLINE)

    waiting = offline.start("load", "--seconds", "2.5", "--depth", "2")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "ready\n"
    urgent, _ = work(online.run("load", "--seconds", "1.5", "--depth", "8").stdout)
    patient, _ = work(waiting.communicate(timeout=WAIT)[0])

    assert urgent > 0
    assert patient > 0


def test_capturing_a_graph_is_not_disturbed(world: World) -> None:
    """The library's own event calls step aside of a capture in the strictest mode."""
    tenant = world.tenant(core=500, policy=Policy.FIXED_SHARE)

    done = tenant.run(
        "load", "--how", "graph", "--threads", "4", "--seconds", "0.3", "--depth", "2"
    )

    assert done.returncode == 0, done.stderr


def test_each_card_has_limits_of_its_own(
    build: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The second card is held to its quota as the first is, and keeps its own books."""
    world = World(tmp_path_factory.mktemp("w"), build, cards=2)
    quotas = (600, 100)
    limits = [
        CardLimits(uuid(i), f"card-{i}", 0, 0, quota, Policy.FIXED_SHARE)
        for i, quota in enumerate(quotas)
    ]
    tenant = world.tenant_of(0, *limits)

    command = ["load", "--seconds", "1.5", "--depth", "0", "--device"]
    processes = [tenant.start(*command, str(card)) for card in range(2)]
    done = [work(process.communicate(timeout=WAIT)[0]) for process in processes]
    world.close()

    for (count, span), quota in zip(done, quotas, strict=True):
        assert 0 < count * 1_000_000 < quota / 1000 * (span + 100e6) + 40e6
    served = [seat_of(tenant.folder / f"card-{card}", 0).served_ns for card in range(2)]
    assert served[0] > served[1] > 0

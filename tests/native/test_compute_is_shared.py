"""Compute: shares by device time, with real processes, by every way to launch.

Whether shares and charges are right, to a point and to the millisecond, is judged in virtual time (`simulate` here, `replay` in
`test_it_holds_in_virtual_time.py`), and on a quiet machine by `bench/isolation.py`. What real processes receive depends on when
this machine lets them run. So they show that each entry point is held and goes on: by what the modelled card counted for them,
within bounds that nothing but a library that does not hold passes (`Meter.held`), or by an order that no delay changes.
"""

import subprocess
import time
from pathlib import Path

import pytest
from native_world import WAIT, Tenant, World, attempts, uuid, within

from native_build import built
from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.seats import Seat, read_seat
from partage.vendors.wishes import Policy, Priority


def test_shares_are_within_a_point_in_virtual_time(build: object) -> None:
    """Alone, pairs, up to 16 tenants, bursts, online first; a waking tenant has its part within 50 ms."""
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


def busy(tenant: Tenant, *options: str) -> subprocess.Popen[str]:
    """A program that launches until it is killed; its first launch is about to come."""
    process = tenant.start("load", "--seconds", "600", *options)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def launched(process: subprocess.Popen[str]) -> int:
    """Launches done when a program reported next."""
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words[:1] == ["report"], "it has ended"
    return int(words[2])


def end(*processes: subprocess.Popen[str]) -> None:
    """Kill them and take their output."""
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "options",
    [
        ["--way", "dlsym", "--depth", "1"],
        ["--way", "proc", "--how", "graph", "--depth", "4"],
        ["--way", "linked", "--how", "together", "--depth", "0"],
        ["--how", "config", "--depth", "0"],
        ["--size", "20000", "--depth", "0"],
        ["--threads", "3", "--depth", "2"],
        ["--way", "proc", "--how", "fill", "--size", "1000000000", "--depth", "0"],
        ["--how", "move", "--size", "1000000000", "--depth", "4"],
    ],
    ids=["kernel", "graph", "cooperative", "config", "small", "threads", "fill", "move"],
)
def test_a_fixed_share_is_kept_even_alone(world: World, options: list[str]) -> None:
    """However work is launched, a quota of 20 % of an idle card holds it, and lets it go on."""
    process = busy(world.tenant(core=200, policy=Policy.FIXED_SHARE), *options)

    world.meter.held(0.2, process)
    end(process)


@pytest.mark.parametrize(
    "options",
    [["--size", "400000000"], ["--how", "graph", "--size", "40000000"]],
    ids=["kernel", "graph"],
)
def test_work_that_outlasts_patience_keeps_its_quota(world: World, options: list[str]) -> None:
    """Two launches of 400 ms were never measured, and one passes them; then each waits until all is paid."""
    tenant = world.tenant(core=400, policy=Policy.FIXED_SHARE)

    started = time.monotonic()
    process = busy(tenant, "--depth", "0", *options)
    world.meter.until(1.21e9, process)
    fourth = time.monotonic() - started
    end(process)

    # 1.2 s of the card are paid after 3 s, and were over after 1.2; some of each may not have been counted.
    assert fourth > 2.1


def test_long_work_that_is_known_is_not_late(world: World) -> None:
    """Once it was measured, a kernel of 400 ms is not passed by another until it has ended."""
    tenant = world.tenant(core=999, policy=Policy.FIXED_SHARE)

    process = busy(tenant, "--depth", "0", "--size", "400000000", "--report", "50")
    served = 0
    while served <= 3e9:
        count = launched(process)
        (served,) = world.meter.served(process)
    end(process)

    assert count * 400e6 - served < 450e6


def test_launches_pass_work_that_does_not_end_one_at_a_time(world: World) -> None:
    """What runs may wait for the next launch, so each passes after its patience of 250 ms; no two pass at once."""
    tenant = world.tenant(core=200, policy=Policy.FIXED_SHARE)

    started = time.monotonic()
    process = busy(tenant, "--depth", "0", "--size", "60000000000", "--report", "50")
    count = 0
    while count <= 3:
        count = launched(process)
        assert count <= 2 + (time.monotonic() - started) / 0.25
    end(process)


def charged_each(tenant: Tenant, *command: str) -> float:
    """Device ns that a program is charged for each of its launches."""
    done = tenant.run(*command)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    return seat_of(tenant.folder / "card-0", 0).served_ns / int(words[words.index("done") + 1])


WAITS = [
    *("host", "host2", "callback", "value32", "value32_v2", "value64", "value64_v2"),
    *("batch", "batch_v2", "semaphore", "event"),
]
"""What keeps a stream for a time (native/tests/odd.c); each has a form for per-thread streams."""


@pytest.mark.parametrize(
    "how", [*WAITS, *(f"{wait}+" for wait in WAITS), "context", "green", "legacy", "host."]
)
def test_what_a_stream_waits_for_between_launches_is_not_charged(
    world_by_work: World, how: str
) -> None:
    """20 us of the card, then 180 us of the host or of something else, many times: the latter is no device time.

    What is charged in whole is judged in virtual time: here a launch that is interrupted counts as less.
    """
    tenant = world_by_work.tenant(core=300, policy=Policy.BURST_SHARE)

    assert 0 < charged_each(tenant, "odd", "waits", how) < 3 * 20_000


@pytest.mark.parametrize(
    "options",
    [
        ["--depth", "256"],
        ["--depth", "512"],
        ["--depth", "512", "--how", "own"],
    ],
    ids=["waits", "long waits", "own stream"],
)
def test_all_that_the_card_does_is_counted(world: World, options: list[str]) -> None:
    """A program that sits in its waits is counted by looks a millisecond apart, each of which finds many batches over."""
    tenant = world.tenant(policy=Policy.BURST_SHARE)
    process = busy(tenant, "--size", "8000", *options)

    world.meter.until(0.1e9, process)
    counted = seat_of(tenant.folder / "card-0", 0).served_ns
    (before,) = world.meter.served(process)
    after = world.meter.until(before + 0.3e9, process)
    since = seat_of(tenant.folder / "card-0", 0).served_ns
    end(process)

    # In whole in virtual time; here a launch that is interrupted counts as less.
    assert since - counted > 0.5 * (after - before)


def test_overlapping_batches_are_counted_once(build: object) -> None:
    """What is charged for batches on streams that overlap is the union of their times, whenever each was seen to be over.

    And a batch that is lost while launches of it are made leaves nothing to the next batch in its place.
    """
    done = subprocess.run(
        [built() / "union", "1", "300"], capture_output=True, text=True, check=False, timeout=WAIT
    )

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("how", ["eventless", "endless", "mistaken"])
def test_launches_that_cannot_be_measured_are_not_free(world: World, how: str) -> None:
    """The driver may have no event for a stream, mark no end, or refuse to end a context: the expected time counts."""
    tenant = world.tenant(core=200, policy=Policy.FIXED_SHARE)
    if how == "endless":
        tenant.environment["FAKE_GPU_ENDLESS"] = "1"

    done = tenant.run("odd", how)

    count, span = work(done.stdout)
    within(0.2, count * 1e6, span / 1e9)


def test_the_larger_quota_gets_more(world: World) -> None:
    """Two tenants of 10 % and 40 %, bursting."""
    tenants = [
        world.tenant(i, core=core, policy=Policy.BURST_SHARE) for i, core in enumerate((100, 400))
    ]
    processes = [busy(tenant, "--depth", "0") for tenant in tenants]

    world.meter.some_span(0.5, lambda small, large: 0 < 2 * small < large, *processes)
    seats = [seat_of(tenants[0].folder / "card-0", slot) for slot in range(2)]
    end(*processes)

    assert min(seat.served_ns for seat in seats) > 0


def test_idle_time_is_used(world: World) -> None:
    """A bursting tenant alone is not held to its quota of 5 %."""
    tenant = world.tenant(core=50, policy=Policy.BURST_SHARE)
    process = busy(tenant, "--depth", "0")

    world.meter.some_span(0.5, lambda part: part > 0.1, process)
    end(process)


@pytest.mark.parametrize("threads", [1, 3])
def test_small_launches_do_not_keep_a_large_one_waiting(world: World, threads: int) -> None:
    """A graph of 20 ms has its turn beside threads that always have small kernels of 100 us to launch.

    Up to 300 of those pass one of forty graphs, where it waits in the queue; without a place in it thousands do, every
    time. They go on as well while the graph's own thread is not woken, so one run of many counts. A quota keeps launches
    at the gate: a tenant that is alone and has none is not held there.
    """
    tenant = world.tenant(core=900, policy=Policy.FIXED_SHARE)

    for _ in attempts():
        done = tenant.run("odd", "large", str(threads))
        assert done.returncode == 0, done.stderr
        if int(done.stdout.split()[2]) < 2000:
            break


def test_a_tenant_that_ends_says_that_it_has_no_work(world: World) -> None:
    """No other tenant waits for it any more."""
    tenant = world.tenant(core=400, policy=Policy.BURST_SHARE)

    assert tenant.run("load", "--seconds", "0.1").returncode == 0

    assert not seat_of(tenant.folder / "card-0", 0).has_work


def test_processes_of_one_container_share_its_quota(world: World) -> None:
    """Three processes get together what one would, and each its turn."""
    tenant = world.tenant(core=200, policy=Policy.FIXED_SHARE)

    processes = [busy(tenant, "--depth", "2") for _ in range(3)]
    began = time.monotonic()
    before = world.meter.served(*processes)
    for process, had in zip(processes, before, strict=True):
        world.meter.until(had + 0.1e9, process)
    served = sum(world.meter.served(*processes)) - sum(before)
    span = time.monotonic() - began
    end(*processes)

    within(0.2, served, span)


def test_offline_work_waits_for_online_work(world: World) -> None:
    """While online work is busy, offline work gets next to nothing; then it goes on."""
    offline = busy(world.tenant(0, core=0, priority=Priority.OFFLINE), "--depth", "2")
    online = busy(world.tenant(1, core=0, priority=Priority.ONLINE), "--depth", "0")

    world.meter.some_span(0.5, lambda patient, urgent: 0 < urgent > 2 * patient, offline, online)
    end(online)
    # How soon it goes on is judged in virtual time; that it does, here.
    (before,) = world.meter.served(offline)
    world.meter.until(before + 0.1e9, offline)
    end(offline)


def test_capturing_a_graph_is_not_disturbed(world: World) -> None:
    """The library's own event calls step aside of a capture in the strictest mode."""
    tenant = world.tenant(core=500, policy=Policy.FIXED_SHARE)

    done = tenant.run(
        "load", "--how", "graph", "--threads", "4", "--seconds", "0.3", "--depth", "2"
    )

    assert done.returncode == 0, done.stderr


def test_a_stream_may_end_while_another_card_is_current(
    build: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its work is counted, if with less where a launch was interrupted, and no end is marked on a stream that is gone."""
    world = World(tmp_path_factory.mktemp("w"), build, cards=2)
    tenant = world.tenant(policy=Policy.BURST_SHARE)

    done = tenant.run("cards", "ending")
    world.close()

    assert done.returncode == 0, done.stderr
    assert seat_of(tenant.folder / "card-1", 0).served_ns > 0.1 * 50 * 3 * 20_000


def test_work_is_charged_to_its_card_where_contexts_come_and_go(
    build: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A context of the second card may get the name of one of the first that is gone."""
    world = World(tmp_path_factory.mktemp("w"), build, cards=2)
    tenant = world.tenant(policy=Policy.BURST_SHARE)

    done = tenant.run("cards", "anew")
    world.close()

    assert done.returncode == 0, done.stderr
    first, second = (seat_of(tenant.folder / f"card-{i}", 0).served_ns for i in range(2))
    assert first < second


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
        within(quota / 1000, count * 1e6, span / 1e9)
    served = [seat_of(tenant.folder / f"card-{card}", 0).served_ns for card in range(2)]
    assert min(served) > 0

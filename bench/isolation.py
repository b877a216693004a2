"""Isolation on the modelled card: shares, hand-over, kills and the cost of a launch.

    make native
    .venv/bin/python bench/isolation.py [--seconds 5] [--realtime]

Runs real processes under the library, on the stand-in driver. Exits with 1 if a figure misses its requirement, and
prints which. `--realtime` runs them with SCHED_FIFO (root), so that other work on the machine does not count as their
latency. The card's time is modelled, so shares are exact. But the machine determines how fast the processes wake up.
"""

import argparse
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from partage.agent.isolation.account import make_account
from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.library import install
from partage.agent.isolation.limits import CardLimits, ContainerLimits, write
from partage.agent.isolation.seats import give_seat, make_seats
from partage.vendors.wishes import Policy, Priority

BUILD = Path(__file__).parents[1] / "build" / "native"
UUID = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00"
SIZE = 1_000_000
POINTS, WAKE_MS = 1, 50
"""Requirements: allowed points between share and quota in the long run, and ms until a waking tenant has its part."""
GAPS_US, GROUP_US = 20, 500
"""For small kernels: the idle time between launches that a group may count without a driver call, and its length."""
BUSY = 0.8
"""Counting is judged only if launches kept the card busy for this part of the time."""
MISSED: list[str] = []
"""Missed requirements."""


@dataclass(frozen=True)
class Load:
    """A tenant's limits and its work."""

    quota: int
    policy: Policy
    options: tuple[str, ...] = ("--depth", "0")
    priority: Priority = Priority.ORDINARY
    delay: float = 0
    seconds: float = 0


def environment(folder: Path, slot: int, load: Load | None) -> dict[str, str]:
    names = {"FAKE_GPU_SOCKET": str(folder / "gpu"), "LD_LIBRARY_PATH": str(BUILD / "fake")}
    if load:
        home = folder / f"t{slot}"
        home.mkdir()
        (home / "card-0").symlink_to(folder / "card-0")
        make_account(home / "account")
        library = install(BUILD / "libpartage-isolation.so", home)
        card = CardLimits(UUID, "card-0", slot, 0, load.quota, load.policy, load.priority)
        give_seat(home / "card-0", card, HeldFiles())
        write(home / "limits", ContainerLimits(slot + 1, (card,)))
        names["LD_PRELOAD"] = str(library)
    return {**os.environ, **names}


def reports(text: str) -> list[tuple[int, int]]:
    found = re.findall(r"^report (\d+) (\d+)$", text, re.MULTILINE)
    return [(int(at), int(count)) for at, count in found]


def at(series: list[tuple[int, int]], when: int) -> float:
    """The launches done at a time, interpolated between the reports around it."""
    before = [point for point in series if point[0] <= when]
    after = [point for point in series if point[0] > when]
    if not before:
        return 0
    if not after:
        return before[-1][1]
    (t0, c0), (t1, c1) = before[-1], after[0]
    return c0 + (c1 - c0) * (when - t0) / (t1 - t0)


def modelled(folder: Path) -> subprocess.Popen[bytes]:
    """Start the modelled card, and return when it listens."""
    card = subprocess.Popen([BUILD / "fake-card", folder / "gpu"], stdout=subprocess.PIPE)
    if card.stdout is not None:
        card.stdout.readline()
    return card


def run(loads: list[Load], seconds: float) -> list[list[tuple[int, int]]]:
    """Run all loads together; returns each tenant's reports."""
    folder = Path(tempfile.mkdtemp())
    make_seats(folder / "card-0")
    card = modelled(folder)
    try:
        running = []
        begun = time.monotonic()
        for slot, load in enumerate(loads):
            time.sleep(max(0, begun + load.delay - time.monotonic()))
            span = str(load.seconds or seconds - load.delay)
            command = [
                str(BUILD / "load"),
                "--seconds",
                span,
                "--size",
                str(SIZE),
                "--report",
                "5",
            ]
            where = environment(folder, slot, load)
            running.append(
                subprocess.Popen(
                    [*command, *load.options], env=where, stdout=subprocess.PIPE, text=True
                )
            )
        return [reports(process.communicate(timeout=300)[0]) for process in running]
    finally:
        card.kill()
        card.wait()
        shutil.rmtree(folder)


def shares(series: list[list[tuple[int, int]]], start: float, end: float) -> list[float]:
    """Each tenant's percent of the card between two times, in seconds after the last tenant began."""
    zero = max(one[0][0] for one in series)
    t0, t1 = zero + int(start * 1e9), zero + int(end * 1e9)
    return [100 * (at(one, t1) - at(one, t0)) * SIZE / (t1 - t0) for one in series]


def judged(good: bool, what: str) -> str:  # noqa: FBT001 # the answer, not a switch
    if not good:
        MISSED.append(what)
    return "ok" if good else "MISSED"


def steady(seconds: float) -> None:
    rows = [[200], [700]]
    rows += [[quota, 1000 - quota] for quota in (50, 100, 300, 500)]
    rows += [[1000 // count] * count for count in (4, 8, 16)]
    print("fixed-share: quota, received, largest error in points, sum")
    for quotas in rows:
        loads = [Load(quota, Policy.FIXED_SHARE) for quota in quotas]
        got = shares(run(loads, seconds + 1.5), 0.5, seconds)
        error = max(abs(share - quota / 10) for share, quota in zip(got, quotas, strict=True))
        text = " ".join(f"{share:.2f}" for share in got)
        quoted = "/".join(str(q / 10) for q in quotas)
        verdict = judged(error <= POINTS, f"fixed-share {quoted}: {error:.2f} points off")
        print(f"  {quoted:40} {text}  {error:.2f}  {sum(got):.1f}  {verdict}")


def counting(seconds: float) -> None:
    """Compare the library's count with the card's work; the shortest kernels end several groups before one look."""
    print("counted by the library, percent of the device time of the launches made")
    for size, depth, threads in (
        (8_000, 256, 1),
        (8_000, 512, 1),
        (300_000, 16, 1),
        (SIZE, 6, 1),
        (700_000, 3, 3),
    ):
        folder = Path(tempfile.mkdtemp())
        make_seats(folder / "card-0")
        card = modelled(folder)
        try:
            where = environment(folder, 0, Load(500, Policy.BURST_SHARE))
            command = [str(BUILD / "load"), "--seconds", str(seconds), "--size", str(size)]
            command += ["--depth", str(depth), "--threads", str(threads)]
            done = subprocess.run(command, env=where, stdout=subprocess.PIPE, check=True)
            books = (folder / "t0" / "account").read_bytes()[64:]  # struct card_books
        finally:
            card.kill()
            card.wait()
            shutil.rmtree(folder)
        count, span = (int(word) for word in done.stdout.split()[-2:])
        part = 100 * int.from_bytes(books[16:24], "little") / (count * size)
        what = f"kernels of {size / 1000:g} us, {depth} before each wait, {threads} stream(s)"
        if count * size < BUSY * span:
            # Each mark is a message to the modelled card. If they take longer than kernels, they dominate.
            print(
                f"  {what:50} {part:.1f}  not judged: launches take {span / count / 1000:.0f} us here"
            )
            continue
        bound = POINTS + (100 * GAPS_US / GROUP_US if size < GAPS_US * 1000 else 0)
        verdict = judged(abs(part - 100) <= bound, f"counting of {what}: {part:.1f} %")
        print(f"  {what:50} {part:.1f}  {verdict}")


def hand_over(seconds: float) -> None:
    burst = Policy.BURST_SHARE
    loads = [Load(50, burst), Load(50, burst), Load(100, burst, delay=2)]
    first, firsts, befores = [], [], []
    for _ in range(5):
        series = run(loads, seconds)
        woke = series[2][0][0]
        began = next((when for when, count in series[2] if count > 0), woke)
        first.append((began - woke) / 1e6)
        firsts.append(shares(series, 0.05, seconds - 2.6))
        befores.append(shares(series[:2], 0.3, 1.5))
    # A turn is 1.7 % of the time in which two tenants have the card in one run.
    before = [statistics.mean(one[i] for one in befores) for i in range(2)]
    off = max(abs(share - 50) for share in before)
    verdict = judged(off <= POINTS, f"burst-share 5/5 with 10 idle: {off:.2f} points off")
    print(f"burst-share 5/5 busy, 10 idle: {before[0]:.1f}/{before[1]:.1f}  {verdict}")
    mean = [statistics.mean(one[i] for one in firsts) for i in range(3)]
    off = max(abs(share - part) for share, part in zip(mean, (25, 25, 50), strict=True))
    verdict = judged(off <= POINTS, f"burst-share from {WAKE_MS} ms on: {off:.2f} points off")
    print(f"  10 wakes; from 50 ms after: {'/'.join(f'{share:.1f}' for share in mean)}  {verdict}")
    verdict = judged(max(first) <= WAKE_MS, f"first launch after {max(first):.1f} ms")
    print(
        f"  first launch passed after {statistics.median(first):.1f} ms, at most {max(first):.1f} ms  {verdict}"
    )


def online(seconds: float) -> None:
    low = Load(0, Policy.BEST_EFFORT, priority=Priority.OFFLINE)
    high = Load(0, Policy.BEST_EFFORT, priority=Priority.ONLINE, delay=1, seconds=1)
    series = run([low, high], seconds)
    got = shares(series, 0.05, 0.9)
    later = shares(series, 1.3, seconds - 1.5)
    good = got[0] <= POINTS and later[0] >= 100 - POINTS
    verdict = judged(good, f"offline {got[0]:.1f} beside online, {later[0]:.1f} afterwards")
    print(
        f"offline/online, both busy: {got[0]:.1f}/{got[1]:.1f}; after online ended: {later[0]:.1f}  {verdict}"
    )


def cost() -> None:
    """Measure the CPU time that the library adds to a launch; the calls of this driver cost almost nothing."""
    kinds: dict[str, Load | None] = {
        "without the library": None,
        "policy none": Load(1000, Policy.NONE),
        "burst-share, alone": Load(500, Policy.BURST_SHARE),
        "fixed-share, cap not reached": Load(999, Policy.FIXED_SHARE),
    }
    folder = Path(tempfile.mkdtemp())
    make_seats(folder / "card-0")
    print("CPU time per launch over a driver that does nothing, median of 7")
    try:
        places = {
            kind: environment(folder, i, load) for i, (kind, load) in enumerate(kinds.items())
        }
        got: dict[str, list[float]] = {kind: [] for kind in kinds}
        command = [str(BUILD / "load"), "--seconds", "0.4", "--size", "20", "--depth", "0"]
        for _ in range(7):
            for kind, where in places.items():
                where["FAKE_GPU_SOCKET"] = "instant"
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                done = subprocess.run(command, env=where, stdout=subprocess.PIPE, check=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                got[kind].append(used * 1e9 / int(done.stdout.split()[-2]))
        base = statistics.median(got["without the library"])
        for kind, values in got.items():
            median = statistics.median(values)
            print(f"  {kind:30} {median:6.0f} ns  {median - base:+5.0f} ns")
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--realtime", action="store_true", help="run under SCHED_FIFO (root)")
    parser.add_argument("--cost", action="store_true", help="only what a launch costs")
    options = parser.parse_args()
    if not (BUILD / "load").exists():
        sys.exit("bench: build/native/load is missing; run make native first")
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
    if options.cost:
        cost()
        return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    counting(options.seconds)
    steady(options.seconds)
    hand_over(options.seconds)
    online(options.seconds)
    cost()
    if MISSED:
        sys.exit("MISSED: " + "; ".join(MISSED))
    print("all as required")


if __name__ == "__main__":
    main()

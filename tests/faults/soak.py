"""`make soak`: churn with faults for as long as you like, and nothing lost, leaked, doubled, crashed.

Pods come at a steady rate, live for a few seconds and go in every way there is (`churn`), while
faults drawn from a seed hit the instances of the scheduler (`trouble`): requests that fail or are
lost before or after they were carried out, watches that end or lie, cards that fall ill, instances
that are killed or stand still for longer than their Lease. Invariants are looked at at every
change of a pod, the audit of the books every other second. At the end everything must be free.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import invariants
from bed import Bed, bed, node
from churn import Churn
from instances import Spawned
from trouble import STEADY, Trouble

from partage.apiserver import ApiError

_EVENTS_SECONDS = 20.0
_AUDIT_SECONDS = 2.0
_SETTLED_SECONDS = 120.0
_EMPTY_SECONDS = 600.0


def arguments() -> argparse.Namespace:
    """What may be set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=50.0, help="pods a second")
    parser.add_argument("--seed", type=int, default=0, help="of pods and faults")
    parser.add_argument("--nodes", type=int, default=40, help="of eight cards each")
    parser.add_argument("--instances", type=int, default=2, help="besides one that is not killed")
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument(
        "--peace", type=float, default=90.0, help="seconds that a new leader is left alone"
    )
    parser.add_argument("--quiet", action="store_true", help="no faults, for comparison")
    parser.add_argument("--output", type=Path, help="folder for logs and the summary")
    return parser.parse_args()


class Soak:
    """One run.

    Attributes:
        audits: looks at the leader's audit.
        dirty: what they found.
        fallen: instances that ended though nobody ended them.
        memory: MiB of the steady instance, with the seconds since the start.
    """

    def __init__(self, cluster: Bed, given: argparse.Namespace) -> None:
        self.cluster = cluster
        self.given = given
        chance = random.Random(given.seed)  # noqa: S311 # repeatable, nothing secret
        self.churn = Churn(cluster, given.rate, random.Random(chance.random()))  # noqa: S311 # same
        self.trouble = Trouble(cluster, chance, given.nodes, given.only, given.peace)
        self.audits = 0
        self.dirty: list[str] = []
        self.fallen: list[str] = []
        self.memory: list[tuple[float, float]] = []
        self._begun = time.monotonic()

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    async def run(self) -> dict[str, Any]:
        """All of it; what came of it."""
        seconds = self.given.minutes * 60
        looking = [
            asyncio.create_task(work)
            for work in (self._audit(), self._progress(), self._forget_events())
        ]
        try:
            work = [self.churn.run(seconds)]
            work += [] if self.given.quiet else [self.trouble.run(seconds)]
            await asyncio.gather(*work)
            say("no more pods, no more faults; waiting until all is free")
            async with asyncio.timeout(_EMPTY_SECONDS):
                await self.churn.emptied()
            found = await self.cluster.sound()
        finally:
            for task in looking:
                task.cancel()
            await asyncio.gather(*looking, return_exceptions=True)
        return self._summary(found)

    # --- looking -----------------------------------------------------------------------------

    async def _audit(self) -> None:
        """Ask the leader again and again what its audit found, and see whether all still run."""
        while True:
            await asyncio.sleep(_AUDIT_SECONDS)
            leader = self.cluster.relay.instances.get(self.cluster.leader())
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                if leader is not None:
                    await self._audited(leader.url)
            for one in self.cluster.spawned.values():
                if not one.running and one.name not in self.trouble.wanted:
                    assert one.process is not None
                    self.fallen.append(f"{one.name} ended with {one.process.returncode}")
                    await one.start()
            self.memory.append((self.passed, _memory(self.cluster.spawned[STEADY])))

    async def _audited(self, url: str) -> None:
        timeout = aiohttp.ClientTimeout(2)
        async with self.cluster.http.get(f"{url}/metrics", timeout=timeout) as answer:
            rows = (await answer.text()).splitlines()
        series = ("partage_audit_leaked_units{", "partage_audit_missing_units{")
        found = [row for row in rows if row.startswith(series) and float(row.split()[-1])]
        self.audits += 1
        if found:
            self.dirty.append(f"{self.passed:.0f} s: {found}")

    async def _forget_events(self) -> None:
        """Delete events, of which a run makes hundreds of thousands."""
        server = self.cluster.server
        while True:
            await asyncio.sleep(_EVENTS_SECONDS)
            for record in list(server.store.all("events")):
                with contextlib.suppress(ApiError):
                    await server.delete("events", record.namespace, record.name)
                await asyncio.sleep(0)

    async def _progress(self) -> None:
        """One line now and then."""
        while True:
            await asyncio.sleep(15.0)
            there = sum(1 for _ in self.cluster.server.store.all("pods"))
            say(
                f"{self.passed:6.0f} s  {self.churn.made} pods made, {self.cluster.kube.bound} "
                f"bound, {there} there; {self.trouble.made.total()} faults; {len(self.dirty)} of "
                f"{self.audits} audits found something; {len(self.cluster.watchman.wrong)} broken "
                f"invariants; {len(self.fallen)} crashes; {self._latest_memory:.0f} MiB"
            )

    @property
    def _latest_memory(self) -> float:
        return self.memory[-1][1] if self.memory else 0.0

    def _summary(self, found: invariants.Findings) -> dict[str, Any]:
        allocated = 'partage_pool_units{dimension="core_milli",state="allocated"}'
        gaps, spawned = self.trouble.gaps, self.cluster.spawned.values()
        settled = [mib for at, mib in self.memory if at > _SETTLED_SECONDS] or [0.0]
        return {
            "minutes": self.given.minutes, "seed": self.given.seed, "nodes": self.given.nodes,
            "pods": {
                "made": self.churn.made, "bound": self.cluster.kube.bound,
                "not_made_because_too_many_waited": self.churn.spared,
                "made_per_second": round(self.churn.made / (self.given.minutes * 60), 1),
            },
            "seconds_to_bind": {str(share): _at(self.churn.waits, share) for share in (0.5, 0.9, 0.99, 1.0)},
            "faults": dict(self.trouble.made), "requests_hit": dict(self.cluster.wire.hit),
            "leader_lost": {
                "times": len(gaps), "mean_s": round(statistics.fmean(gaps or [0.0]), 1),
                "max_s": round(max(gaps, default=0.0), 1),
            },
            "changes_looked_at": self.cluster.watchman.seen,
            "audits": self.audits, "audits_that_found_something": self.dirty,
            "broken_invariants": self.cluster.watchman.wrong[:20],
            "units_left_at_the_end": found.metrics.get(allocated),
            "crashes": self.fallen,
            "tracebacks": {one.name: len(one.tracebacks) for one in spawned},
            "cpu_seconds": {
                **{one.name: _cpu(one) for one in spawned}, "all else": round(time.process_time(), 1),
            },
            "memory_mib": {
                "after_two_minutes": round(settled[0]), "end": round(settled[-1]),
                "most": round(max(settled)),
            },
        }  # fmt: skip


def good(summary: dict[str, Any]) -> bool:
    """Whether nothing went wrong."""
    return not (
        summary["audits_that_found_something"]
        or summary["broken_invariants"]
        or summary["crashes"]
        or summary["units_left_at_the_end"]
        or any(summary["tracebacks"].values())
    )


def say(text: str) -> None:
    """Tell who waits."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _at(values: list[float], share: float) -> float:
    ordered = sorted(values)
    place = min(int(share * len(ordered)), len(ordered) - 1)
    return round(ordered[place], 3) if ordered else 0.0


def _memory(one: Spawned) -> float:
    """MiB that a process has in memory; 0 where that cannot be read."""
    with contextlib.suppress(OSError):
        for row in Path(f"/proc/{one.pid}/status").read_text().splitlines():
            if row.startswith("VmRSS"):
                return int(row.split()[1]) / 1024
    return 0.0


def _cpu(one: Spawned) -> float:
    """Seconds of processor time since its last start; 0 where that cannot be read."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
        return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 1)
    return 0.0


async def main() -> int:
    """Run, print, and say whether it was good."""
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="partage-soak-") as made:
        folder = given.output or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        fleet = [node(f"n{number}", 8) for number in range(given.nodes)]
        async with bed(*fleet, folder=folder) as cluster:
            for name in (STEADY, *(f"other-{n}" for n in range(given.instances))):
                await cluster.spawn(name, lease=15)
            await cluster.led()
            summary = await Soak(cluster, given).run()
    say(json.dumps(summary, indent=2))
    if given.output:
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return 0 if good(summary) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

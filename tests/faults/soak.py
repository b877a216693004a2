"""`make soak`: churn with faults for as long as you like, and nothing lost, leaked, doubled, crashed.

Pods come at a steady rate, live for a few seconds and go in every way there is (`churn`), while
faults drawn from a seed hit what is around them (`trouble`): requests that fail or are lost before
or after they were carried out, watches that end or lie, cards that fall ill, nodes and Device
objects that go and come, clocks that are set, a webhook and instances that are killed or stand
still. One instance's wall clock is ten minutes fast throughout. Invariants are looked at at every
change of a pod, the audit of the books every other second, and one card has a queue before it
(`lane`). At the end everything must be free; what else must be shown is in `verdict`.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import invariants
from bed import Bed, bed, node
from churn import SHAPES, Churn
from instances import Spawned
from lane import LANE, Lane
from trouble import STEADY, Trouble
from verdict import failed
from webhook_process import start_webhook

from partage.apiserver import ApiError
from partage.embedded.fleet import SimulatedNode

_EVENTS_SECONDS = 20.0
_AUDIT_SECONDS = 2.0
_EMPTY_SECONDS = 600.0
_LEASE = 15
_UNREAD = 5
"""Looks in a row at which a leader may not have a clean audit yet: it makes one each second."""
_LAST_SECONDS = 30.0
"""Nothing is broken at the end: what the last fault kept waiting is bound before it is counted."""
_ALLOCATED = 'partage_pool_units{dimension="core_milli",state="allocated"}'
_SKEW = 600.0
_GATHER_SECONDS = 0.02
_LONG_MINUTES = 10.0
_NODES = 0.8
"""For a pod a second: with fewer, pods wait for cards and no more are made."""
_MOST = 40
"""Pods that there may be, for a pod a second."""


def arguments() -> argparse.Namespace:
    """What may be set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=50.0, help="pods a second")
    parser.add_argument("--seed", type=int, default=0, help="of pods and faults")
    parser.add_argument("--nodes", type=int, help="of eight cards each; 40 for 50 pods a second")
    parser.add_argument("--instances", type=int, default=1, help="besides one that is not killed")
    parser.add_argument("--only", default="", help="faults whose name holds this text")
    parser.add_argument(
        "--peace", type=float, default=90.0, help="seconds that a new leader is left alone"
    )
    parser.add_argument("--quiet", action="store_true", help="no faults, for comparison")
    parser.add_argument("--no-webhook", action="store_true", help="admit all pods unread")
    parser.add_argument("--seam", choices=["extender", "plugin"], default="plugin")
    parser.add_argument("--output", type=Path, help="folder for logs and the summary")
    given = parser.parse_args()
    given.nodes = given.nodes or math.ceil(_NODES * given.rate)
    return given


def fleet(nodes: int) -> list[SimulatedNode]:
    """The nodes: most of A100s, a twentieth that cut instances, as many of MetaX, one with a queue."""
    few = max(2, nodes // 20)
    taint = {"key": LANE, "effect": "NoSchedule"}
    return [
        *(node(f"n{number}", 8) for number in range(nodes)),
        *(
            node(f"mig-{n}", 8, model="H100-80GB-HBM3", mode="mig", registers=("hami",))
            for n in range(few)
        ),
        *(node(f"metax-{n}", 8, model="C500", mode="sgpu") for n in range(few)),
        node(LANE, 1, labels={LANE: "yes"}, taints=(taint,)),
    ]


class Soak:
    """One run.

    Attributes:
        audits: clean audits of a leader that were read.
        dirty: audits that found something, or were missing.
        fallen: processes that ended by themselves.
        memory: MiB of the steady instance, with the seconds since the start.
    """

    def __init__(
        self, cluster: Bed, nodes: list[SimulatedNode], given: argparse.Namespace
    ) -> None:
        self.cluster = cluster
        self.given = given
        chance = random.Random(given.seed)  # noqa: S311 # repeatable, nothing secret
        self.churn = Churn(
            cluster,
            given.rate,
            random.Random(chance.random()),  # noqa: S311 # same
            math.ceil(_MOST * given.rate),
            asked=not given.no_webhook,
        )
        self.trouble = Trouble(cluster, chance, nodes[:-1], given.only, given.peace)
        self.lane = Lane(cluster, self._quiet)
        self.audits = 0
        self.dirty: list[str] = []
        self.fallen: list[str] = []
        self.memory: list[tuple[float, float]] = []
        self.calm: Counter[str] = Counter()
        self._unread = 0
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
            for work in (self._look(), self._progress(), self._forget_events())
        ]
        try:
            work = [self.churn.run(seconds), self.lane.run(seconds), self._count(seconds)]
            work += (
                []
                if self.given.quiet
                else [self.trouble.run(max(seconds - _LAST_SECONDS, seconds / 2))]
            )
            await asyncio.gather(*work)
            say("no more pods, no more faults; waiting until all is free")
            async with asyncio.timeout(_EMPTY_SECONDS):
                await self.churn.emptied()
            found = await self._free()
        finally:
            for task in looking:
                task.cancel()
            ended = await asyncio.gather(*looking, return_exceptions=True)
            self.fallen += [f"the harness: {one!r}" for one in ended if isinstance(one, Exception)]
        return self._summary(found)

    async def _free(self) -> invariants.Findings:
        """What is found when nothing is left. The service hears a moment later than the harness of the last pod's end."""
        end = time.monotonic() + _LAST_SECONDS
        while True:
            found = await self.cluster.sound()
            if not found.metrics.get(_ALLOCATED) or time.monotonic() > end:
                return found
            await asyncio.sleep(0.5)

    # --- looking -----------------------------------------------------------------------------

    def _calm(self) -> bool:
        """Whether the rate that was asked for must be kept now."""
        return self.trouble.calm(self.churn.waiting, int(max(self.given.rate, 1.0)))

    def _quiet(self) -> bool:
        """Whether waiting pods must be served at once now."""
        return self.trouble.quiet() and self._calm()

    async def _count(self, seconds: float) -> None:
        """Add up pods, second by second, while no announced fault lasts."""
        end = self.passed + seconds
        while self.passed + 1.0 < end:
            began, calm, announced = self.passed, self._calm(), self.trouble.announced
            made, bound = self.churn.made, self.churn.bound
            await asyncio.sleep(1.0)
            if calm and self._calm() and announced == self.trouble.announced:
                self.calm["milliseconds"] += round((self.passed - began) * 1000)
                self.calm["made"] += self.churn.made - made
                self.calm["bound"] += self.churn.bound - bound

    async def _look(self) -> None:
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
        if found:
            self.dirty.append(f"{self.passed:.0f} s: {found}")
        elif "partage_audit_clean 1.0" in rows:
            self._unread = 0
            self.audits += 1
        elif "partage_leader 1.0" in rows:
            self._unread += 1
            if self._unread == _UNREAD:
                self.dirty.append(f"{self.passed:.0f} s: the leader has no clean audit")

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
            waiting = self.churn.waiting_shapes
            most = ", ".join(f"{count} {name}" for name, count in waiting.most_common(2))
            say(
                f"{self.passed:6.0f} s  {self.churn.made} pods made, {self.churn.bound} bound, "
                f"{waiting.total()} wait ({most}); {self.trouble.made.total()} faults; {len(self.dirty)} of "
                f"{self.audits} audits found something; {len(self.cluster.watchman.wrong)} broken "
                f"invariants; {len(self.fallen)} crashes; {self._latest_memory:.0f} MiB"
            )

    @property
    def _latest_memory(self) -> float:
        return self.memory[-1][1] if self.memory else 0.0

    def _summary(self, found: invariants.Findings) -> dict[str, Any]:
        spawned, churn, calm = self.cluster.spawned.values(), self.churn, self.calm
        seconds = calm["milliseconds"] / 1000
        shapes = {name: churn.bound_by_shape[name] for name in SHAPES}
        return {
            "minutes": self.given.minutes,
            "seed": self.given.seed,
            "nodes": self.given.nodes,
            "seam": self.given.seam,
            "rate": self.given.rate,
            "lease": _LEASE,
            "quiet": self.given.quiet,
            "only": self.given.only,
            "pods": {
                "made": churn.made,
                "bound": churn.bound,
                "bound_by_shape": shapes,
                "not_made_because_too_many_waited": churn.spared,
                "made_per_second": round(churn.made / (self.given.minutes * 60), 1),
                "kept_out_while_the_webhook_was_away": churn.refused,
            },
            "outside_of_announced_faults": {
                "seconds": round(seconds),
                "made_per_second": round(calm["made"] / max(seconds, 1.0), 1),
                "bound_per_second": round(calm["bound"] / max(seconds, 1.0), 1),
            },
            "seconds_to_bind": {
                str(share): _at(list(chain(*churn.waits.values())), share)
                for share in (0.5, 0.9, 0.99, 1.0)
            },
            "seconds_to_bind_p90_by_shape": {n: _at(one, 0.9) for n, one in churn.waits.items()},
            "release_to_next_binding": {
                "all": self.lane.released,
                "counted": len(self.lane.gaps),
                "p50_s": _at(self.lane.gaps, 0.5),
                "p99_s": _at(self.lane.gaps, 0.99),
                "max_s": _at(self.lane.gaps, 1.0),
            },
            "faults": {name: self.trouble.made[name] for name in self.trouble.kinds},
            "requests_hit": dict(self.cluster.wire.hit),
            "leader_lost": {
                how: {
                    "times": len(gaps),
                    "mean_s": round(statistics.fmean(gaps or [0.0]), 1),
                    "max_s": round(max(gaps, default=0.0), 1),
                }
                for how, gaps in self.trouble.gaps.items()
            },
            "changes_looked_at": self.cluster.watchman.seen,
            "audits": self.audits,
            "audits_least": int(seconds / _AUDIT_SECONDS / 2),
            "audits_that_found_something": self.dirty,
            "broken_invariants": self.cluster.watchman.wrong[:20],
            "units_left_at_the_end": found.metrics.get(_ALLOCATED),
            "crashes": self.fallen,
            "tracebacks": {one.name: len(one.tracebacks) for one in spawned},
            "cpu_seconds": {
                **{one.name: _cpu(one) for one in spawned},
                "all else": round(time.process_time(), 1),
            },
            "memory_mib": self._memory(),
        }

    def _memory(self) -> dict[str, float]:
        """Medians of the second and the last fifth of the run; of a short run they say nothing."""
        whole = self.given.minutes * 60
        early = [mib for at, mib in self.memory if 0.2 * whole <= at < 0.4 * whole]
        late = [mib for at, mib in self.memory if 0.8 * whole <= at < whole]
        seen = self.given.minutes >= _LONG_MINUTES and early and late
        return {
            "seen": bool(seen),
            "early": round(statistics.median(early or [0.0])),
            "late": round(statistics.median(late or [0.0])),
            "most": round(max((mib for _, mib in self.memory), default=0.0)),
        }


def say(text: str) -> None:
    """A line for the user."""
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
        nodes = fleet(given.nodes)
        async with bed(*nodes, folder=folder, seam=given.seam) as cluster:
            cluster.wire.gather = _GATHER_SECONDS
            for name in (STEADY, *(f"other-{n}" for n in range(given.instances))):
                skew = _SKEW if name == "other-0" else 0.0
                await cluster.spawn(name, lease=_LEASE, skew=skew)
            if not given.no_webhook:
                await start_webhook(cluster)
            await cluster.led()
            summary = await Soak(cluster, nodes, given).run()
    wrong = summary["failed"] = failed(summary)
    say(json.dumps(summary, indent=2))
    if given.output:
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    for sentence in wrong:
        say(f"FAILED: {sentence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

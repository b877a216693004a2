"""Checks for every container whether its limits are in force, reports the result, and evicts pods if configured.

    rooms, processes ──see──> sight ──survey──> statements ──> metrics
                                                    ├───────> condition of the pod, on change
                                                    └───────> eviction, if that is the operator's rule

The agent writes a condition only if it differs from the pod's present one, so an agent that was away repeats nothing.
An eviction respects disruption budgets, as kubectl drain does. The agent repeats it as long as it is needed, after ever
longer pauses.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge

from partage.agent.container_admission import Keeper
from partage.agent.discovery.found import Inventory
from partage.agent.isolation.lookers import Lookers
from partage.agent.isolation.node_scan import Seen, Sight, see
from partage.agent.isolation.overhead import Overheads
from partage.agent.isolation.statements import (
    NOT_ENFORCED,
    Answer,
    Statement,
    survey,
    unseen,
    untried,
)
from partage.agent.isolation.unmanaged_processes import Strangers
from partage.agent.metrics import Tallies
from partage.agent.notes import Code, Notes
from partage.agent.trouble import Rounds
from partage.agent.uses import Meter
from partage.daemon.agent import IsolationOptions
from partage.daemon.evicting import Pauses
from partage.kube.client import Client
from partage.kube.clock import time_text
from partage.kube.errors import Conflict, KubeError, NotFound
from partage.kube.resources import PODS
from partage.vendors import names
from partage.vendors.traits import NVIDIA

_LOG: Final = logging.getLogger("partage.daemon")
_GRACE: Final = 3
"""Looks in a row that find a container's limits not in force, before its pod is evicted: a process may be starting.
After so many failed looks the state is unknown."""
_SHOWN: Final = 1000

Body = dict[str, Any]


def used_by_processes(inventory: Inventory) -> dict[str, Mapping[int, int]]:
    """Memory by card and process, of cards whose driver reports it."""
    return {
        one.device.uuid: one.use.processes
        for one in inventory.found
        if one.use is not None and one.use.processes is not None
    }


class StatementSeries:
    """The metrics of the statements."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["namespace", "pod", "container", "provider"]
        self.in_force = Gauge(
            "partage_agent_limits_in_force",
            "Whether a container's limits are in force; absent if unknown.",
            labels,
            registry=registry,
        )
        self.broken = Gauge(
            "partage_agent_limits_not_in_force",
            "Containers whose limits are not in force.",
            registry=registry,
        )
        self.unenforced = Gauge(
            "partage_agent_compute_not_enforced",
            "Containers whose memory is limited and whose compute is not, as configured.",
            labels,
            registry=registry,
        )
        self.cut = Gauge(
            "partage_agent_wishes_cut",
            "Containers whose pods asked for a policy or a precedence that the node's operator does not grant.",
            registry=registry,
        )
        self.excess = Gauge(
            "partage_agent_memory_beyond_grant_bytes",
            "Memory of a card that a container uses beyond its grant, as the driver reports it.",
            ["namespace", "pod", "container", "device_uuid"],
            registry=registry,
        )


class Statements:
    """The statements of one node; `run` it. `said` has each container's statement at the last look."""

    name = "statements"

    def __init__(
        self,
        keeper: Keeper,
        tallies: Tallies,
        meter: Meter,
        client: Client | None,
        settings: IsolationOptions,
        *,
        proc: Path = Path("/proc"),
        found: Callable[[], Inventory] = Inventory,
        notes: Notes | None = None,
    ) -> None:
        """Start without statements.

        Args:
            tallies: their registry gets the metrics.
            meter: reads the use of cards in the same looks.
            client: of the API server; None writes no conditions.
            found: the result of the last search for devices, with the memory of processes.
            notes: get the drivers on which the library was not tried.
        """
        self._found, self._overheads, self._proc = found, Overheads(settings.slack), proc
        self._strangers = Strangers()
        self._sight = Sight()
        self._inventory = Inventory()
        self._used: dict[str, Mapping[int, int]] = {}
        self._untried: Mapping[str, str] = {}
        self._notes = notes or Notes()
        self._keeper, self._meter, self._client = keeper, meter, client
        self._settings = settings
        self._lookers: Lookers[tuple[Seen, ...]] = Lookers()
        self.said: tuple[Statement, ...] = ()
        self._news = asyncio.Event()
        self._written: dict[str, tuple[str, str]] = {}
        self._logged: dict[str, str] = {}
        self._odd: dict[str, int] = {}
        self._series = StatementSeries(tallies.registry)

    async def run(self) -> None:
        """Look and report until cancelled; no look waits for the API server."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._looks(), name="agent:limits")
            if self._client is not None:
                tasks.create_task(self._tells(self._client), name="agent:limits-told")

    async def _looks(self) -> None:
        rounds = Rounds("whether limits are in force cannot be seen")
        while True:
            with rounds:
                self._take(await asyncio.to_thread(self._look))
            if rounds.failed >= _GRACE:
                self._take(unseen(self.said, rounds.problem))
            self._news.set()
            await asyncio.sleep(self._settings.period)

    async def _tells(self, client: Client) -> None:
        writes, evictions = (Pauses(client, self._settings.period) for _ in range(2))
        while True:
            await self._news.wait()
            self._news.clear()
            await self._tell(client, writes, evictions)

    def _look(self) -> list[Statement]:
        entries = self._keeper.entries  # before rooms: a later entry has a later room
        rooms = self._keeper.rooms
        inventory = self._found()
        if inventory is not self._inventory:
            self._inventory, self._used = inventory, used_by_processes(inventory)
            self._warn(inventory)
        whose = {key: one.pod.partition("/")[0] for key, one in entries.items()}
        sight = self._sight = see(rooms, self._proc, self._sight, self._lookers, whose)
        now = self._keeper.entries.keys()  # the files of those that ended during the look are gone
        entries = {key: one for key, one in entries.items() if key in now}
        self._overheads.look(rooms, self._used, sight)
        self._strangers.look(rooms, sight, self._used)
        self._meter.look(rooms, sight)
        said = survey(
            entries,
            rooms,
            sight,
            self._overheads.above,
            self._strangers.found,
            self._overheads.grown,
            self._untried,
            "" if self._settings.mps is None else self._settings.mps.problem,
        )
        if self._keeper.isolation is not None:
            self._keeper.isolation.rooms.mend()
        return said

    def _warn(self, inventory: Inventory) -> None:
        """Warn of drivers on which the library was not tried; log each of them once."""
        if self._keeper.isolation is None:
            return
        drivers = {
            one.device.uuid: untried(one.driver)
            for one in inventory.found
            if one.device.vendor == NVIDIA.name
        }
        for text in sorted(set(drivers.values()) - {"", *self._untried.values()}):
            _LOG.warning("%s", text)
        # A card that is missing for a moment keeps its driver.
        self._untried = {**self._untried, **drivers}
        self._notes.say("drivers", Code.DRIVER_UNTRIED, filter(None, drivers.values()))

    def _take(self, said: Sequence[Statement]) -> None:
        before = {one.container: one.answer for one in self.said}
        self.said = tuple(said)
        self._series.in_force.clear()
        self._series.excess.clear()
        self._series.unenforced.clear()
        whose = {one.container: (*one.pod.partition("/")[::2], one.name) for one in said}
        for (container, card), excess in self._overheads.excess.items():
            if container in whose:
                self._series.excess.labels(*whose[container], card).set(excess)
        for one in said:
            labels = *whose[one.container], one.provider
            if one.answer is not Answer.UNKNOWN:
                self._series.in_force.labels(*labels).set(one.answer is Answer.YES)
            if one.cause == NOT_ENFORCED:
                self._series.unenforced.labels(*labels).set(1)
                continue
            if one.answer is Answer.NO and before.get(one.container) is not Answer.NO:
                told = "pod %s, container %s: limits are not in force: %s"
                _LOG.warning(told, one.pod, one.name, one.message)
        broken = [one for one in said if one.answer is Answer.NO and one.cause != NOT_ENFORCED]
        self._series.broken.set(len(broken))
        self._series.cut.set(sum(one.cut for one in said))
        self._odd = {one.container: self._odd.get(one.container, 0) + 1 for one in broken}

    # --- the API server ----------------------------------------------------------------------

    async def _tell(self, client: Client, writes: Pauses, evictions: Pauses) -> None:
        whose = attrgetter("pod", "uid")
        found = groupby(sorted(self.said, key=whose), whose)
        pods = {key: tuple(parts) for key, parts in found}
        self._written = {uid: self._written[uid] for _, uid in pods if uid in self._written}
        self._logged = {uid: self._logged[uid] for _, uid in pods if uid in self._logged}
        for pauses in (writes, evictions):
            pauses.keep({uid for _, uid in pods})
        for (pod, uid), parts in pods.items():
            failed, happened = "the condition of its limits cannot be written", ""
            try:
                if not await self._write(client, pod, uid, parts, writes):
                    continue
                # Looks go on meanwhile: a pod is evicted for nothing that its condition does not say.
                odd = any(
                    one.answer is Answer.NO and self._odd.get(one.container, 0) >= _GRACE
                    for one in parts
                )
                if odd and self._settings.evict:
                    if evictions.waits(uid):
                        continue
                    evictions.add(uid)
                    failed = "it cannot be evicted"
                    namespace, _, name = pod.partition("/")
                    await client.evict(namespace, name, uid=uid)
                    happened = "evicted, its limits are not in force"
            except (Conflict, NotFound):
                continue  # the pod is gone, or another pod has its name
            except KubeError as error:
                happened = f"{failed}: {error}"
            if happened and self._logged.get(uid) != happened:
                _LOG.warning("pod %s: %s", pod, happened)
            self._logged[uid] = happened

    async def _write(
        self, client: Client, pod: str, uid: str, parts: tuple[Statement, ...], pauses: Pauses
    ) -> bool:
        """Bring a pod's condition up to date; False if it is too early for that: its container changes it all the time."""
        wanted = condition_of(parts)
        told = (wanted["status"], wanted["message"])
        if self._written.get(uid) == told:
            return True
        if pauses.waits(uid):
            return False
        pauses.add(uid)
        namespace, _, name = pod.partition("/")
        found = await client.get(PODS, name, namespace=namespace, into=Body)
        if (found.get("metadata") or {}).get("uid") != uid:
            return True  # another pod has this name: ours is gone, and its containers end
        known: Body = next(
            (
                one
                for one in (found.get("status") or {}).get("conditions") or ()
                if one.get("type") == wanted["type"]
            ),
            {},
        )
        if (known.get("status"), known.get("message")) != told:
            since = known.get("lastTransitionTime")
            if known.get("status") != wanted["status"] or not since:
                since = time_text(client.clock.now())
            body = {
                "metadata": {"uid": uid},
                "status": {"conditions": [{**wanted, "lastTransitionTime": since}]},
            }
            await client.patch_pod_status(namespace, name, body, into=Body)
        self._written[uid] = told
        return True


def condition_of(parts: Sequence[Statement]) -> dict[str, str]:
    """A pod's condition, from the statements about its containers."""
    for answer in (Answer.NO, Answer.UNKNOWN, Answer.YES):
        mine = [one for one in parts if one.answer is answer]
        if mine:
            break
    text = "; ".join(f"container {one.name}: {one.message}" for one in mine)
    return {
        "type": names.LIMITS_CONDITION,
        "status": answer.value,
        "reason": mine[0].cause,
        "message": text[:_SHOWN],
    }

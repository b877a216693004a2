"""Compares all sources that know the node's containers, repeatedly, and reports disagreements.

The sources never answer at the same moment, so a finding counts when two looks in a row have it
(`reconcile.confirmed`). It is logged once, counted by kind at `/metrics`, and kept in a file beside the journal for
`partage doctor --node`. A pod that runs with devices but without a record is passed on for eviction, except in
namespaces whose pods without a record are left alone.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from partage.agent.container_admission import Keeper
from partage.agent.differences import TABLE, Finding, Kind, write_findings
from partage.agent.discovery.found import Inventory
from partage.agent.held_allocations import Running, Unprotected
from partage.agent.injection import Place
from partage.agent.isolation.processes import users
from partage.agent.kubelet.messages import PodResources
from partage.agent.kubelet.units import Offer, counted
from partage.agent.notes import Code, Notes
from partage.agent.reconcile import Facts, bound_pods, confirmed, reconcile
from partage.agent.trouble import Rounds
from partage.daemon.isolation_status import used_by_processes
from partage.wire import shapes

_LOG: Final = logging.getLogger("partage.daemon")
_PERIOD: Final = 30.0
"""Seconds between two looks."""


class Kubelet(Protocol):
    """The facts of the kubelet's side of the agent."""

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Resources and units that the agent reports to the kubelet."""

    @property
    def pods(self) -> Sequence[shapes.Pod] | None:
        """Pods of the node; None while they are unknown."""

    async def held(self) -> tuple[PodResources, ...] | None:
        """The units of each pod; None while the kubelet reports nothing."""


class Reconciling:
    """The comparison on one node; `take` its state, and `run` it. The last two looks confirm `findings`."""

    name: Final = "reconciling"

    def __init__(
        self,
        keeper: Keeper,
        folder: Path,
        kubelet: Kubelet | None = None,
        notes: Notes | None = None,
        found: Callable[[], Inventory] = Inventory,
        proc: Path = Path("/proc"),
    ) -> None:
        """Compare nothing yet.

        Args:
            keeper: gives containers their devices.
            kubelet: the kubelet's side, if the agent serves the kubelet.
            notes: get the disagreements.
            found: the result of the last search for devices, with the processes on each.
        """
        self._found, self._proc = found, proc
        self._notes = notes or Notes()
        self._keeper = keeper
        self._folder = folder
        self._kubelet = kubelet
        self._place: Place | None = None
        self._seen: list[Finding] = []
        self._written: list[Finding] | None = None
        self.findings: list[Finding] = []
        for kind in Kind:
            keeper.tallies.findings.labels(kind).set(0)

    def take(self, place: Place) -> None:
        """Compare with the node's present state from now on."""
        self._place = place

    async def run(self) -> None:
        """Compare until cancelled."""
        await Rounds("containers cannot be compared").every(_PERIOD, self.look)

    async def look(self) -> None:
        """Compare once, and report the findings that two looks have in common."""
        if self._place is None or not self._place.node.devices:
            return  # the node's devices are unknown
        side, books = self._kubelet, self._keeper.books
        held = None if side is None else await side.held()
        pods = None if side is None else side.pods
        running = None if books.running is None else list(books.running.values())
        # With thousands of containers it takes longer than the runtime waits for an answer.
        seen = await asyncio.to_thread(self._compared, self._place, held, pods, running)
        found = confirmed(self._seen, seen)
        self._seen = seen
        self._tell(found, self._place.exempt)
        await self._write(found)

    def _compared(
        self,
        place: Place,
        held: tuple[PodResources, ...] | None,
        pods: Sequence[shapes.Pod] | None,
        running: Sequence[Running] | None,
    ) -> list[Finding]:
        """All differences now; it reads files."""
        offers = () if self._kubelet is None else self._kubelet.offers
        used = used_by_processes(self._found())
        facts = Facts(
            place,
            list(self._keeper.journal.entries.values()),
            offers,
            None if pods is None else bound_pods(pods, place.node.name),
            None if held is None else counted(held, {one.resource for one in offers}),
            running,
            users(used, {one.container for one in running or ()}, self._proc),
        )
        return reconcile(facts)

    def _tell(self, found: list[Finding], exempt: Collection[str]) -> None:
        known = {one.who for one in self.findings}
        texts = [
            f"pod {one.namespace}/{one.pod}, container {one.container}: {one.kind}: {one.message}"
            for one in found
        ]
        for one, text in zip(found, texts, strict=True):
            if one.who not in known:
                _LOG.warning("%s (%s)", text, TABLE[one.kind].done)
        self.findings = found
        self._notes.say(self.name, Code.DISAGREEMENT, texts)
        for kind in Kind:
            self._keeper.tallies.findings.labels(kind).set(sum(one.kind is kind for one in found))
        self._keeper.suspected = tuple(
            Unprotected(one.namespace, one.pod, one.uid, one.container, one.message)
            for one in found
            if one.kind is Kind.RUNS_WITHOUT_RECORD and one.namespace not in exempt
        )
        self._keeper.orphaned = frozenset(one.uid for one in found if one.kind is Kind.POD_GONE)

    async def _write(self, found: list[Finding]) -> None:
        if found == self._written:
            return
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        try:
            # The event loop answers the runtime and must not wait for a disk.
            await asyncio.to_thread(write_findings, self._folder, found, now)
            self._written = found
        except OSError as error:
            _LOG.warning("%s cannot be written: %s", self._folder, error.strerror)

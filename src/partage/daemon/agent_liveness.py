"""Closes nodes whose agent is away to new pods with devices, and opens them when it is back.

    agents' leases ──list, every 10 s──> silent agents (controllers.heartbeats)
        ──annotation of the Node──> all books, by the watch of Nodes like any other fact

Only the leader looks and writes. It lists leases and does not watch them, because at 5,000 nodes a watch would report
five hundred renewals a second, and only their existence matters. The list asks for the newest state, so that no server
answers from a stale cache.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client import Counter as Counted
from prometheus_client.core import GaugeMetricFamily, Metric

from partage.controllers.heartbeats import Heartbeats, Heeded
from partage.extender.books import Books
from partage.kube.client import Client
from partage.kube.election import Lease
from partage.kube.errors import Conflict, Invalid, KubeError, NotFound
from partage.kube.events import EventRecorder
from partage.kube.recorder import Regarding
from partage.kube.resources import LEASES, NODES, Scope
from partage.model.node import Node
from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.wire.silence import LEASE_NAMESPACE, LEASE_PREFIX, silence, silence_text

_LOG: Final = logging.getLogger("partage.daemon")
_WRITERS: Final = 8
_GAP: Final = 2.5
"""Longest time between two looks that belong together, in periods."""
LEAST: Final = 30.0
"""Shortest limit in seconds: an agent renews every 10 to 12 s, and may miss one renewal."""


@dataclass(frozen=True, slots=True)
class SilenceSettings:
    """When an agent counts as silent.

    Attributes:
        limit: seconds without a renewal; 0 closes no node and opens closed nodes.
        period: seconds between two looks at the leases.
    """

    limit: float = 60.0
    period: float = 10.0
    namespace: str = LEASE_NAMESPACE


class AgentSilence:
    """The loop that closes and opens nodes, and its series."""

    def __init__(
        self,
        client: Client,
        books: Callable[[], Books | None],
        recorder: EventRecorder,
        may: Callable[[], bool],
        settings: SilenceSettings,
        registry: CollectorRegistry,
    ) -> None:
        """A loop that does not run yet. `books`: None while they are made. `may`: whether this instance leads now."""
        self._client, self._books, self._may = client, books, may
        self._recorder, self._settings = recorder, settings
        self._beats = self._fresh()
        self._silent = 0
        self._problem = ""
        self._failed = Counted(
            "partage_agents_unlisted",
            "Looks at the agents' leases that failed; silence is counted from zero after each.",
            registry=registry,
        )
        registry.register(self)

    def _fresh(self) -> Heartbeats:
        return Heartbeats(self._settings.limit, self._settings.period * _GAP)

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`."""
        found = GaugeMetricFamily(
            "partage_agents",
            "Nodes with an agent's lease, as the leader sees them: heard, or silent and closed.",
            labels=["state"],
        )
        found.add_metric(["heard"], len(self._beats) - self._silent)
        found.add_metric(["silent"], self._silent)
        yield found

    async def run(self) -> None:
        """Work until cancelled, without the counts of an earlier leader."""
        self._beats = self._fresh()
        try:
            while True:
                try:
                    await self.look()
                except Exception:  # noqa: BLE001 # logged; the service goes on
                    self._beats.missed()
                    _LOG.exception("cannot judge which agents are silent")
                await self._client.clock.sleep(self._settings.period)
        finally:
            self._beats, self._silent = self._fresh(), 0

    async def look(self) -> None:
        """Look at all leases once, and close and open nodes."""
        asked = self._client.clock.monotonic()
        try:
            marks = await self._marks()
        except KubeError as error:
            self._beats.missed()
            self._failed.inc()
            if str(error) != self._problem:
                _LOG.warning("agents' leases cannot be listed, no node is closed: %s", error)
            self._problem = str(error)
            return
        self._problem = ""
        books = self._books()
        if books is None:
            return
        nodes = {node.name: node for node in books.engine.ledger.nodes if node is not None}
        # Leases outlive their nodes.
        marks = {name: mark for name, mark in marks.items() if name in nodes}
        closed = {
            name
            for name, node in nodes.items()
            if any(one.code is ReasonCode.AGENT_SILENT for one in node.verdicts)
        }
        found = self._beats.look(marks, closed, asked, self._client.clock.monotonic())
        self._silent = found.silent
        if found.silent * 2 > len(self._beats) > 1 and found.close:
            _LOG.error("%d of %d agents are silent", found.silent, len(self._beats))
        await self._write(found, nodes)

    async def _marks(self) -> Mapping[str, str]:
        """The renewal time in each node's lease; empty if no node is to be closed."""
        if not self._settings.limit:
            return {}
        scope = Scope(LEASES, self._settings.namespace, labels=names.AGENT)
        listed = await self._client.list_all(scope, into=Lease)
        # An unreadable lease never changes here, so its agent becomes silent.
        found = {odd.meta.name or "": "" for odd in listed.undecodable}
        found |= {one.metadata.name: one.spec.renew_time or "" for one in listed.items}
        return {
            name.removeprefix(LEASE_PREFIX): mark
            for name, mark in found.items()
            if name.startswith(LEASE_PREFIX)
        }

    async def _write(self, found: Heeded, nodes: Mapping[str, Node]) -> None:
        now, turn = self._client.clock.now(), asyncio.Semaphore(_WRITERS)

        async def write(node: Node, text: str | None) -> None:
            async with turn:
                if self._may():
                    await self._annotate(node, text)

        async with asyncio.TaskGroup() as group:
            for name, seconds in found.close.items():
                text = silence_text(now - timedelta(seconds=seconds), self._settings.limit)
                group.create_task(write(nodes[name], text), name=f"silence:close:{name}")
            for name in found.open:
                group.create_task(write(nodes[name], None), name=f"silence:open:{name}")

    async def _annotate(self, node: Node, text: str | None) -> None:
        """Report it on the Node, in the log and as an event; the next look repeats a failed write."""
        metadata: dict[str, Any] = {"annotations": {names.AGENT_SILENT: text}}
        body = {"metadata": {**metadata, **({"uid": node.uid} if node.uid else {})}}
        try:
            await self._client.patch(NODES, node.name, body, into=msgspec.Raw)
        except (NotFound, Conflict, Invalid):
            return  # the node is gone, or another node has its name
        except KubeError as error:
            _LOG.warning("node %s: the state of its agent cannot be written: %s", node.name, error)
            return
        where = Regarding("v1", "Node", node.name)
        said = silence({names.AGENT_SILENT: text}) if text is not None else None
        if said is None:
            _LOG.info("node %s: its agent is back, or none is expected any more", node.name)
            self._recorder.normal(where, "AgentHeard", "new pods with devices are placed again")
            return
        message = f"{said.message}; no new pod with devices is placed here until it is back"
        _LOG.warning("node %s: %s", node.name, message)
        self._recorder.warning(where, "AgentSilent", message)

"""Finds the node's devices, passes them to the agent and reports them: the work of `partage agent` beside injection.

    backends or a simulation ──search──> Device object ──> the API server, on change
                                              └──────────> the agent itself, at once

The agent serves the devices that it found itself. The API server only adds the Node's facts (labels, the mode of its
cards). The agent keeps these in a file as well, so that it serves as before if it starts while the API server is away.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from partage.agent.device_document import device_document
from partage.agent.discovery.found import Inventory, Roots
from partage.agent.discovery.search import Search, booted
from partage.agent.notes import Code, Notes
from partage.agent.reporting import DEVICES, AgentReporting, ReportingHooks, ReportingSettings
from partage.agent.seal import sealed, unsealed
from partage.agent.trouble import Rounds
from partage.kube.client import Client
from partage.model.errors import UNREADABLE, InvalidDocument
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.settings import Settings
from partage.wire import shapes
from partage.wire.context import Context
from partage.wire.documents import Document, decode
from partage.wire.nodes import translate_node

_LOG: Final = logging.getLogger("partage.daemon")
_FILE: Final = "node.json"
_SHAPES: Final = {"node": shapes.Node, "device": shapes.Device}
_KEPT: Final = ("labels", "annotations")
"""The parts of a Node that its agent reads; the file keeps them alone."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DiscoveryOptions:
    """How to search for devices; the folder `kept` has the last known state."""

    roots: Roots
    backends: tuple[str, ...]
    reporting: ReportingSettings = ReportingSettings()
    kept: Path = Path("/var/lib/partage/agent")


class NodeDiscovery:
    """The discovery of one node's devices; `run` it."""

    name = "discovery"

    def __init__(
        self,
        node: str,
        options: DiscoveryOptions,
        take: Callable[[Node], None],
        client: Client | None,
        settings: Callable[[], Settings] = Settings,
        annotated: Callable[
            [Mapping[str, str], Collection[str]], Mapping[str, str]
        ] = lambda *_: {},
        notes: Notes | None = None,
    ) -> None:
        """Search once, and pass the result to `take` before this returns.

        Args:
            take: gets the node when it or the settings differ from the last time.
            settings: the families' settings in force now.
            annotated: see `ReportingHooks`.
            notes: are reported, and get the problems of searches.

        Raises:
            ValueError: a backend does not exist.
        """
        self._name, self._options, self._take, self._client = node, options, take, client
        self._settings, self._annotated = settings, annotated
        self._search = Search(options.roots, node, backends=options.backends)
        self._notes = notes or Notes()
        self._last: tuple[Body, Body] | None = None
        self._read_by: Settings | None = None
        self._heard = self._kept = Body()
        self._writes = Rounds("node.json cannot be written")
        self._news = asyncio.Event()
        self.found = Inventory()
        known = self._read()
        self._restore(known.get("device"))
        found = self._search()
        for problem in found.problems:
            _LOG.warning("%s", problem)
        known_device = known.get("device")
        device = device_document(node, found, known_device or None, f"{_now():%FT%TZ}")
        self._hear(known.get("node") or _bare(node), device, found)
        with self._writes:
            self._write()

    async def run(self) -> None:
        """Search, pass on, report and write down until cancelled."""
        work = self._alone() if self._client is None else self._reported(self._client)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_written(), name="agent:node.json")
                tasks.create_task(work, name="agent:devices")
        finally:
            self._search.close()

    async def _keep_written(self) -> None:
        """Write each state that is heard, in a thread: the event loop must not wait for a disk."""
        while True:
            with self._writes:
                await asyncio.to_thread(self._write)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._options.reporting.period)
            self._news.clear()

    async def _reported(self, client: Client) -> None:
        reporting = AgentReporting(
            client,
            self._name,
            self._search,
            self._options.reporting,
            ReportingHooks(
                hami=lambda: self._settings().hami,
                told=lambda problem: _LOG.warning("%s", problem),
                restore=self._restore,
                annotated=self._annotated,
                heard=self._hear,
                notes=lambda: self._notes.text,
                dropped=self._dropped,
            ),
        )
        await reporting.run(asyncio.Event())

    async def _alone(self) -> None:
        problems: tuple[str, ...] = ()
        rounds = Rounds("devices cannot be discovered")
        while True:
            await asyncio.sleep(self._options.reporting.period)
            with rounds:
                found = await asyncio.to_thread(self._search)
                if found.problems != problems:
                    for problem in found.problems:
                        _LOG.warning("%s", problem)
                problems = found.problems
                self._hear(None, None, found)

    def _restore(self, device: Body | None) -> None:
        self._search.health.restore(device, time.monotonic(), booted(self._options.roots))

    def _dropped(self, fields: Sequence[str]) -> None:
        told = (
            f"the API server drops {', '.join(fields)} of devices, because the definition "
            f"{DEVICES.plural}.{DEVICES.group} is older than this agent"
        )
        if fields:
            _LOG.warning("%s", told)
        self._notes.say("definition", Code.DEVICE_FIELDS, (told,) if fields else ())

    def _hear(self, node: Body | None, device: Body | None, found: Inventory) -> None:
        """Pass on the node if a part that the agent reads has changed, or the settings have.

        Without a report of the API server, the node stays as last known, and the device follows from `found`.
        """
        self.found = found
        self._notes.say(self.name, Code.DISCOVERY, found.problems)
        known_node, known_device = self._last or (_bare(self._name), {})
        node = known_node if node is None else node
        if device is None:
            device = device_document(self._name, found, known_device or None, f"{_now():%FT%TZ}")
            owners = (known_device.get("metadata") or {}).get("ownerReferences")
            if (
                owners
            ):  # as in the report of the same search, which would look like a change otherwise
                device["metadata"]["ownerReferences"] = owners
        metadata = node.get("metadata") or {}
        plain = _bare(self._name)
        plain["metadata"] |= {key: metadata.get(key) or {} for key in _KEPT}
        settings = self._settings()
        if self._last == (plain, device) and self._read_by == settings:
            return
        try:
            context = Context.of(settings)
            read = translate_node(_document("Node", plain), _document("Device", device), context)
        except InvalidDocument as error:
            _LOG.warning("node %s cannot be read: %s", self._name, error)
            return
        self._last, self._read_by = (plain, device), settings
        if self._options.roots.simulated is not None:
            self._search.faults = plain["metadata"]["annotations"].get(
                names.SIMULATE_UNHEALTHY, ""
            )
        self._take(read.node)
        self._heard = {"node": plain, "device": device}
        self._news.set()

    def _read(self) -> Body:
        try:
            known = json.loads(unsealed((self._options.kept / _FILE).read_bytes()))
            if known["name"] != self._name:
                return {}
            for kind, shape in _SHAPES.items():
                msgspec.convert(known.get(kind), shape | None)
        except (OSError, TypeError, KeyError, InvalidDocument, *UNREADABLE):
            return {}
        return {kind: known[kind] for kind in _SHAPES if known.get(kind)}

    def _write(self) -> None:
        """Write the last state, unless the file has it. Raises `OSError`."""
        known = self._heard
        if known is self._kept:
            return
        draft = self._options.kept / f".{_FILE}"
        self._options.kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_bytes(sealed(json.dumps({"name": self._name, **known}).encode()))
        os.replace(draft, self._options.kept / _FILE)  # noqa: PTH105 # whole or not at all
        self._kept = known


def _bare(name: str) -> Body:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def _document(kind: str, body: Body) -> Document:
    batch = decode(kind, json.dumps({**body, "kind": kind}).encode())
    return batch.documents[0]


def _now() -> datetime:
    return datetime.now(UTC)

"""Keeps a node's ResourceSlices in the API server up to date: writes on change only, and reads back.

An API server whose feature gates are off drops fields without an error. Half of a slice is worse than
none: instances without their counters would be allocated beside shares of the same card. The agent therefore first
sends slices that the server checks and does not store. It does not offer devices whose fields the server drops, and
its notes name the gate. While fields are dropped, it asks again at intervals. It also compares stored slices with the
sent ones, and withdraws everything if they differ.

A pool changes in all of its slices at once: each gets a new generation, and the allocator ignores slices of an
older one. The order of devices is a preference, so they move only if that changes which one is tried first. The agent
reads its slices at intervals, because a kubelet removes its node's slices when it starts, and half a minute
after the driver has gone. So an uninstalled agent leaves no slices.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import msgspec

from partage.agent.discovery.found import Inventory
from partage.agent.dra.ordering import Room, arranged
from partage.agent.dra.slices import Offered, resource_slices, slice_of
from partage.agent.metrics import Tallies
from partage.agent.notes import Code, Notes
from partage.agent.trouble import Rounds
from partage.kube.client import Client
from partage.kube.clock import sleep_until
from partage.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from partage.kube.objects import Meta
from partage.kube.resources import NODES, Resource, Scope
from partage.model.node import Node
from partage.vendors.names import DRA_DRIVER

SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", namespaced=False)
CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims")

_LOG: Final = logging.getLogger("partage.agent")
_LOOK: Final = 30.0
"""Seconds between two reads of the stored slices, and the pause after a failure."""
_PROBE: Final = 600.0
"""Seconds between two probes of an API server that drops fields: its gates may be switched on."""
_ROUND: Final = 1.0
"""Seconds between two rounds of writes: pods change often, and a round writes every slice of the node."""

_GATES: Final = (
    ("shares", "DRAConsumableCapacity", "nothing is offered to claims"),
    ("counters", "DRAPartitionableDevices", "no hardware instance is offered to claims"),
    ("taints", "DRADeviceTaints", "an unhealthy or closed card is left out of its slice"),
)
"""Fields of slices, the gate of each, and what an API server without it cannot have."""

Body = dict[str, Any]


class _Slice(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: Body


@dataclass(frozen=True, slots=True)
class _Kept:
    """The fields that the API server keeps, by their gate."""

    shares: bool = False
    counters: bool = False
    taints: bool = False

    @property
    def lacking(self) -> tuple[str, ...]:
        """The parts that are not offered because a gate is off, and that gate."""
        return tuple(
            f"the API server drops fields of ResourceSlices: {what} until its feature gate {gate} is on"
            for part, gate, what in _GATES
            if not getattr(self, part)
        )


@dataclass(eq=False)
class Publisher:
    """The slices of one node; `take` its devices, and `run` it. `instances`: this agent creates hardware instances."""

    name: ClassVar[str] = "resource-slices"

    client: Client
    node: str
    found: Callable[[], Inventory]
    tallies: Tallies
    notes: Notes
    instances: bool = field(kw_only=True)
    _node: Node | None = None
    _left: Mapping[int, Room] = field(default_factory=dict)
    _totals: Mapping[int, int] = field(default_factory=dict)
    _uid: str = ""
    _kept: _Kept | None = None
    _probed_at: float = -math.inf
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(
        self, node: Node, left: Mapping[int, Room], totals: Mapping[int, int] | None = None
    ) -> None:
        """Replace the node's state.

        `node`: as claims may use it. `left`: the room on each card beside claims too, by number. `totals`: each card's
        memory in bytes, regardless of pods' grants.
        """
        news = node, left, totals or {}
        if news != (self._node, self._left, self._totals):
            self._node, self._left, self._totals = news
            self._news.set()

    def look(self) -> None:
        """Read the stored slices now: the kubelet may have removed them."""
        self._news.set()

    async def run(self) -> None:
        """Publish until cancelled; retries writes that the API server refuses."""
        rounds = Rounds("ResourceSlices cannot be published", KubeError)
        while True:
            self._news.clear()
            with rounds:
                if self._node is not None and await self.once(self._node, self._left):
                    await self.client.clock.sleep(_ROUND)
            # A failure may look again at once: a slice that another client keeps must not make it do so without an end.
            await self.client.clock.sleep(min(_ROUND * rounds.failed, _LOOK))
            await sleep_until(self.client.clock, _LOOK, self._news)

    async def once(self, node: Node, left: Mapping[int, Room] | None = None) -> int:
        """Compare, and write the differences; return the number of slices written or deleted.

        `left`: as for `take`; None if it is unknown: the devices are then in order of their numbers. Raises `KubeError`:
        the API server does not answer, or refuses; the next look tries again.
        """
        kept = await self._gates()
        stored = await self._stored()
        if not self._uid or not stored:  # deleted with their Node: this may be another
            found = await self.client.get(NODES, self.node, into=Body)
            self._uid = str((found.get("metadata") or {}).get("uid") or "")
        before = names_in(stored[name].spec for name in sorted(stored))
        order = arranged(before, left or {})
        wanted = self._wanted(node, kept, order)
        try:
            wrote = await self._write(wanted, stored)
        except (AlreadyExists, Conflict, NotFound):
            self._news.set()  # another client wrote first, or the Node is another one: look again
            self._uid = ""
            raise
        devices = sum(len(one["spec"].get("devices", ())) for one in wanted)
        self.tallies.devices_published.set(devices if self._kept is kept else 0)
        return wrote

    def devices(self, node: Node) -> list[Body]:
        """The devices of a node that may be in its slices, as far as the kept fields are known.

        One that is left out for want of taints is among them: a claim may have it since it was well.
        """
        kept = replace(self._kept or _Kept(shares=True, counters=True), taints=True)
        return [
            one for part in self._wanted(node, kept) for one in part["spec"].get("devices", ())
        ]

    def _wanted(self, node: Node, kept: _Kept, order: Iterable[str] = ()) -> tuple[Body, ...]:
        if not kept.shares:
            return ()
        offered = Offered(instances=self.instances and kept.counters, taints=kept.taints)
        return resource_slices(node, self.found(), self._uid, 1, offered, order, self._totals)

    # --- the server's fields -----------------------------------------------------------------

    async def _gates(self) -> _Kept:
        """The kept fields; known ones are probed again at intervals while some are dropped."""
        before, now = self._kept, self.client.clock.monotonic()
        if before is not None and not (before.lacking and now - self._probed_at >= _PROBE):
            return before
        kept = await self._probe()
        self._kept, self._probed_at = kept, now
        if kept != before:
            self._say(kept.lacking)
        return kept

    async def _probe(self) -> _Kept:
        """The fields that it would keep of two small slices; it stores neither."""
        counter = {"probe": {"value": "1"}}
        device = {
            "name": "probe",
            "allowMultipleAllocations": True,
            "capacity": {"probe": {"value": "1", "requestPolicy": {"default": "1"}}},
            "consumesCounters": [{"counterSet": "probe", "counters": counter}],
            "taints": [{"key": f"{DRA_DRIVER}/probe", "effect": "NoSchedule"}],
        }
        sets = [{"name": "probe", "counters": counter}]
        pool = {"name": self.node, "generation": 0, "resourceSliceCount": 2}
        probes: tuple[Body, ...] = {"devices": [device]}, {"sharedCounters": sets}
        stored = []
        for index, content in enumerate(probes):
            body = slice_of(self.node, f"probe-{index}", pool, content)
            stored.append(await self.client.create(SLICES, body, into=_Slice, dry_run=True))
        found = (stored[0].spec.get("devices") or [{}])[0]
        return _Kept(
            shares=found.get("capacity") == device["capacity"]
            and found.get("allowMultipleAllocations") is True,
            counters=bool(found.get("consumesCounters"))
            and stored[1].spec.get("sharedCounters") == sets,
            taints=bool(found.get("taints")),
        )

    def _say(self, what: tuple[str, ...]) -> None:
        for one in what:
            _LOG.warning("%s", one)
        self.notes.say(self.name, Code.RESOURCE_SLICES, what)

    # --- reading and writing -----------------------------------------------------------------

    async def _stored(self) -> dict[str, _Slice]:
        """The node's stored slices of this driver, by name."""
        fields = f"spec.nodeName={self.node},spec.driver={DRA_DRIVER}"
        found = await self.client.list_all(Scope(SLICES, fields=fields), into=_Slice)
        for one in found.undecodable:
            _LOG.warning("ResourceSlice %s cannot be read: %s", one.meta.name, one.problem)
        return {one.metadata.name: one for one in found.items}

    async def _write(self, wanted: tuple[Body, ...], stored: Mapping[str, _Slice]) -> int:
        names = {one["metadata"]["name"] for one in wanted}
        gone = [one for name, one in stored.items() if name not in names]
        told = [(one.spec.get("pool") or {}).get("generation") for one in stored.values()]
        generations = {one if isinstance(one, int) else 0 for one in told}
        if (
            len(generations) <= 1
            and names == stored.keys()
            and all(
                is_as_wanted(stored[one["metadata"]["name"]].spec, one["spec"]) for one in wanted
            )
        ):
            return 0
        generation = max(generations, default=0) + 1
        wrote = 0
        for one in wanted:
            body = deepcopy(one)
            body["spec"]["pool"]["generation"] = generation
            name = body["metadata"]["name"]
            if (before := stored.get(name)) is None:
                after = await self.client.create(SLICES, body, into=_Slice)
            else:
                body["metadata"]["resourceVersion"] = before.metadata.resource_version
                after = await self.client.update(SLICES, name, body, into=_Slice)
            wrote += 1
            if as_sent(after.spec) != body["spec"]:
                return wrote + await self._take_back(name)
        for old in gone:
            await self._delete(old)
        return wrote + len(gone)

    async def _take_back(self, name: str) -> int:
        """Remove all slices; the next look probes the server again."""
        found = await self._stored()
        for one in found.values():
            await self._delete(one)
        self._kept = None
        told = f"ResourceSlice {name} was stored otherwise than it was sent; "
        self._say((f"{told}nothing is offered to claims until the API server keeps it",))
        return len(found)

    async def _delete(self, one: _Slice) -> None:
        try:
            await self.client.delete(SLICES, one.metadata.name, uid=one.metadata.uid)
        except NotFound:
            _LOG.debug("ResourceSlice %s has gone already", one.metadata.name)


def as_sent(stored: Any) -> Any:
    """A document without fields that a server adds itself: the time of a taint."""
    if isinstance(stored, Mapping):
        return {key: as_sent(part) for key, part in stored.items() if key != "timeAdded"}
    return [as_sent(part) for part in stored] if isinstance(stored, list) else stored


def is_as_wanted(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a stored slice has the wanted spec, in any generation."""
    return _without_generation(as_sent(stored)) == _without_generation(wanted)


def names_in(specs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Names of the devices in slices' specs, which are in the order of their names, in the allocator's order."""
    for spec in specs:
        for device in spec.get("devices") or ():
            yield str(device.get("name"))


def _without_generation(spec: Mapping[str, Any]) -> Body:
    pool = {key: part for key, part in spec["pool"].items() if key != "generation"}
    return {**spec, "pool": pool}

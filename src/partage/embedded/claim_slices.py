"""Simulated nodes' offers to ResourceClaims: their agents' ResourceSlices, written on change.

The agent's own rules (`agent.dra`) decide the offer and its order. Pods' holdings come from the books, as an
agent reads them from its pods' records. A node with an agent of its own, which renews a Lease, is left to it:
the earlier offer is deleted, and an agent with `--dra` offers the devices that it finds.
"""

import asyncio
from collections.abc import Callable, Mapping
from operator import is_
from typing import Final

from partage.agent.discovery.found import Inventory
from partage.agent.dra.ordering import arranged, rooms
from partage.agent.dra.publishing import is_as_wanted, names_in
from partage.agent.dra.slices import Body, Offered, resource_slices
from partage.agent.dra.withdrawn import left_for_claims
from partage.apiserver import ApiError, ApiServer, Change, Record
from partage.embedded.claim_lives import CLAIMS
from partage.embedded.definitions import DEVICES
from partage.embedded.watching import follow_all, node_user
from partage.extender.books import Books
from partage.model.allocation import Allocation
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.vendors.names import DRA_DRIVER
from partage.wire.silence import LEASE_NAMESPACE, LEASE_PREFIX

SLICES: Final = "resourceslices.resource.k8s.io"
LEASES: Final = "leases.coordination.k8s.io"

_ROUND: Final = 0.2
"""Seconds between two rounds of writes; a round writes a node's slices once, however many pods changed."""
_LOOK: Final = 5.0
"""Seconds between two looks at all nodes, as an agent looks at its own."""


_Held = tuple[Node, list[Allocation]]
"""A node in the books, and its allocations."""
_Known = tuple[Record | None, _Held | None, dict[str, Record]]
"""Sources of a node's slices: its object, its cards and their allocations, the earlier slices."""


class Slices:
    """All nodes' ResourceSlices."""

    def __init__(self, server: ApiServer, books: Callable[[], Books]) -> None:
        """No offer yet; `books` have the allocations."""
        self._server = server
        self._books = books
        self._dirty: set[str] = set()
        self._stored: dict[str, dict[str, Record]] = {}
        self._offered: dict[str, _Known] = {}
        self._left: set[str] = set()

    async def publish(self) -> None:
        """Publish the offers of all present nodes, before pods are decided."""
        for one in self._server.store.all(SLICES):
            await self._slice(Change("ADDED", one, None))
        for node in list(self._server.store.all("nodes")):
            await self._offer(node.name)
            await asyncio.sleep(0)

    async def run(self) -> None:
        """Publish until cancelled."""
        others = dict.fromkeys(("nodes", DEVICES, "pods", CLAIMS), self._saw)
        await follow_all(self._server, {SLICES: self._slice, **others}, self._publish())

    async def _saw(self, change: Change) -> None:
        """Mark a node for a look if its object changed, or if a pod or a claim takes or releases its devices."""
        if change.record.resource == "pods":
            self._dirty.add((change.record.value.get("spec") or {}).get("nodeName") or "")
        elif change.record.resource == CLAIMS:
            for one in (change.record, change.before):
                status = (one.value.get("status") or {}) if one is not None else {}
                devices = (status.get("allocation") or {}).get("devices") or {}
                self._dirty |= {part["pool"] for part in devices.get("results") or ()}
        else:
            self._dirty.add(change.record.name)

    async def _slice(self, change: Change) -> None:
        spec = change.record.value.get("spec") or {}
        if spec.get("driver") != DRA_DRIVER:
            return
        mine = self._stored.setdefault(spec.get("nodeName", ""), {})
        if change.kind == "DELETED":
            mine.pop(change.record.name, None)
            self._dirty.add(spec.get("nodeName", ""))
        else:
            mine[change.record.name] = change.record

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        look = loop.time() + _LOOK
        while True:
            await asyncio.sleep(_ROUND)
            if loop.time() >= look:
                # The books receive the change independently, perhaps later.
                self._dirty |= {one.name for one in self._server.store.all("nodes")}
                look = loop.time() + _LOOK
            names, self._dirty = self._dirty, set()
            for name in names:
                await self._offer(name)
                await asyncio.sleep(0)

    async def _offer(self, name: str) -> None:
        """Write a node's slices if they differ."""
        if self._server.store.get(LEASES, LEASE_NAMESPACE, f"{LEASE_PREFIX}{name}") is not None:
            if name not in self._left:
                await self._leave(name)
            return
        self._left.discard(name)
        node, stored = self._server.store.get("nodes", "", name), self._stored.get(name, {})
        held = self._held(name) if node is not None else None
        known = node, held, dict(stored)
        if _unchanged(known, self._offered.get(name)):
            return
        wanted = () if node is None or held is None else _wanted(held, node.uid, stored)
        specs = {one["metadata"]["name"]: one for one in wanted}
        if specs.keys() == stored.keys() and all(
            is_as_wanted(stored[key].value["spec"], one["spec"]) for key, one in specs.items()
        ):
            if node is None:
                self._offered.pop(name, None)
            else:
                self._offered[name] = known
            return
        self._offered.pop(name, None)  # until the watch shows the writes
        generations = [one.value["spec"]["pool"]["generation"] for one in stored.values()]
        user, next_one = node_user(name), {"generation": max(generations, default=0) + 1}
        try:
            for key, one in specs.items():
                spec = one["spec"]
                body = one | {"spec": spec | {"pool": spec["pool"] | next_one}}
                if key in stored:
                    await self._server.update(SLICES, body, user=user)
                else:
                    await self._server.create(SLICES, body, user=user)
            for key in stored.keys() - specs.keys():
                await self._server.delete(SLICES, "", key, user=user)
        except ApiError:
            self._dirty.add(name)  # another writer was faster, so look again

    async def _leave(self, name: str) -> None:
        """Delete a node's offer from before it had an agent, as its kubelet would, but no slice of the agent."""
        stored, offered = self._stored.get(name, {}), self._offered.pop(name, None)
        ours = stored if offered is None else offered[2]
        self._left.add(name)
        try:
            for key, one in dict(stored).items():
                if ours.get(key) is one:
                    await self._server.delete(SLICES, "", key, user=node_user(name))
        except ApiError:
            self._left.discard(name)  # the agent was faster, so look again

    def _held(self, name: str) -> _Held | None:
        """A node in the books, and its allocations; None for an unknown node."""
        ledger = self._books().engine.ledger
        if name not in ledger.index:
            return None
        node = ledger.nodes[ledger.index[name]]
        return None if node is None else (node, [*ledger.on_node(name)])


def _unchanged(one: _Known, before: _Known | None) -> bool:
    """Whether the sources of the slices are unchanged; a change replaces the objects."""
    if before is None or one[0] is not before[0] or one[2] != before[2]:
        return False
    if one[1] is None or before[1] is None:
        return one[1] is before[1]
    (node, held), (old, had) = one[1], before[1]
    return node is old and len(held) == len(had) and all(map(is_, held, had))


def _wanted(held: _Held, uid: str, stored: Mapping[str, Record]) -> tuple[Body, ...]:
    node, all_held = held
    left = left_for_claims(node, [one for one in all_held if not one.claim])
    before = names_in(stored[name].value["spec"] for name in sorted(stored))
    order = arranged(before, rooms(node, left_for_claims(node, all_held)))
    totals = {one.minor: one.memory_bytes for one in node.devices if one.type is DeviceType.GPU}
    offered = Offered(instances=True)
    return resource_slices(left, Inventory(), uid, 1, offered, order, totals)

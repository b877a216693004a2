"""The ledger: who holds what of which device, as columns; the only owner of mutable state.

Every change is an entry applied or undone, or a node seen or gone. Entries are keyed by pod UID
and hold all that their release needs. What the columns say follows from nodes, entries and
suspicions alone, whatever the order they came in: `validate` recomputes everything and compares.

The ledger never chooses. It also never forgets: a device that vanished from its node stays as a
closed ghost while somebody is booked on it, and a pod on an unknown node waits here until the
node is seen.

Invariants, by field:
    entries          one a pod; at most one node each.
    planes           free = total - sum of the charges on the card, in every dimension.
    open             never true on a card that is unhealthy, cordoned, quarantined, held
                     exclusively, fenced by somebody else, or booked beyond its means.
    hosted           by node, which kinds of pod with GPUs are on it: bit 0 for one with shares,
                     bit n for one with n whole cards.
    changes          every node whose columns changed, in order; emptied only together with
                     everything that remembers how far it has read.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from partage.inventory.card import (
    CEILING,
    Card,
    Suspicion,
    bounded,
    doubles,
    ghost,
    is_flat,
    kinds_of,
)
from partage.inventory.plane import CLOSED, Ints, Plane
from partage.model.allocation import Allocation, Charge, together
from partage.model.device import Device, DeviceType
from partage.model.errors import LedgerError
from partage.model.node import Node
from partage.model.reason import ReasonCode
from partage.model.request import Scope

__all__ = ["CEILING", "UNCHECKED", "Card", "Ledger", "Suspicion"]

UNCHECKED: Final = 2**62
"""Room of an ordinary resource that the node does not tell; it is not checked."""

_CLOSED_NUMBER: Final = {code: number for number, code in enumerate(CLOSED)}
_ASSUMED: Final = ("cpu", "memory", "pods", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class _Entry:
    allocation: Allocation
    charges: tuple[Charge, ...]


class Ledger:
    """State of all devices and of the nodes' ordinary resources."""

    def __init__(self) -> None:
        self.planes: dict[DeviceType, Plane] = {t: Plane(1, 16) for t in DeviceType}
        self.host_free: dict[str, Ints] = {n: np.zeros(16, np.int64) for n in _ASSUMED}
        self.host_total: dict[str, Ints] = {n: np.zeros(16, np.int64) for n in _ASSUMED}
        self.present = np.zeros(16, np.bool_)
        self.hosted: Ints = np.zeros(16, np.int64)
        self.unchecked = np.zeros(16, np.bool_)
        self.nodes: list[Node | None] = []
        self.index: dict[str, int] = {}
        self.kinds: list[Device | None] = [None]
        self.changes: list[int] = []
        self.node_changes: list[int] = []
        self._kind_index: dict[object, int] = {}
        self._uuids: dict[str, set[tuple[DeviceType, int, int]]] = {}
        self._entries: dict[str, _Entry] = {}
        self._by_node: dict[str, dict[str, _Entry]] = {}
        self._rows: dict[int, dict[DeviceType, list[Device]]] = {}
        self._ghosts: dict[int, dict[DeviceType, int]] = {}
        self._claims: dict[int, dict[tuple[DeviceType, int], str]] = {}
        self._doubles: dict[int, frozenset[tuple[DeviceType, int]]] = {}
        self._tenants: dict[tuple[DeviceType, int, int], dict[str, Charge]] = {}
        self._fences: dict[tuple[DeviceType, int, int], set[str]] = {}
        self._suspicions: dict[str, Suspicion] = {}
        self._suspected: dict[str, dict[str, Suspicion]] = {}
        self._vacant: list[int] = []
        self._flat: set[int] = set()

    # --- asking ------------------------------------------------------------------------------

    def __contains__(self, uid: str) -> bool:
        """Whether the pod has an entry."""
        return uid in self._entries

    def allocation(self, uid: str) -> Allocation | None:
        """What the pod holds, or None."""
        entry = self._entries.get(uid)
        return entry.allocation if entry else None

    def allocations(self) -> Iterator[Allocation]:
        """What every pod holds, in the order of arrival."""
        return (entry.allocation for entry in self._entries.values())

    def on_node(self, name: str) -> Iterator[Allocation]:
        """What the pods of one node hold, in the order of arrival."""
        return (entry.allocation for entry in self._by_node.get(name, {}).values())

    def suspicion(self, uid: str) -> Suspicion | None:
        """What is closed because of the pod, or None."""
        return self._suspicions.get(uid)

    def suspicions(self) -> Mapping[str, Suspicion]:
        """Everything that is closed because of a pod, by its UID."""
        return self._suspicions

    def at_uuid(self, uuid: str) -> Iterable[tuple[DeviceType, int, int]]:
        """Where a device sits: type, node index and row; normally one place."""
        return self._uuids.get(uuid, ())

    def node_at(self, index: int) -> Node:
        """The node at an index.

        Raises:
            LedgerError: nobody is there.
        """
        node = self.nodes[index]
        if node is None:
            raise LedgerError(f"no node at index {index}")
        return node

    def device_at(self, type_: DeviceType, index: int, row: int) -> Device:
        """The device at a position."""
        return self._rows[index][type_][row]

    def is_flat(self, index: int) -> bool:
        """Whether whole cards of the node may be chosen one by one, whatever lies between them."""
        return index in self._flat

    def cards(self, type_: DeviceType, index: int) -> list[Card]:
        """A copy of the state of a node's cards of one type, in the order of minors."""
        plane = self.planes[type_]
        return [
            self._card(plane, type_, index, row, device)
            for row, device in enumerate(self._rows[index].get(type_, ()))
        ]

    def tenants(self, type_: DeviceType, index: int, row: int) -> Mapping[str, Charge]:
        """Charges on one card by pod UID."""
        return self._tenants.get((type_, index, row), {})

    def overbooked(self, name: str) -> dict[str, tuple[str, ...]]:
        """Devices of a node that are booked beyond their means: UUID to the pods on them."""
        index = self.index.get(name)
        if index is None:
            return {}
        found: dict[str, tuple[str, ...]] = {}
        for type_, devices in self._rows[index].items():
            plane = self.planes[type_]
            for row, device in enumerate(devices):
                if plane.core_free[row, index] < 0 or plane.memory_free[row, index] < 0:
                    uids = self._tenants.get((type_, index, row), ())
                    pods = (self._entries[uid].allocation for uid in uids)
                    found[device.uuid] = tuple(sorted(f"{p.namespace}/{p.name}" for p in pods))
        return found

    def host_used(self, name: str) -> dict[str, int]:
        """Ordinary resources that pods of a node hold, by name."""
        used: dict[str, int] = {}
        for entry in self._by_node.get(name, {}).values():
            for resource, amount in entry.allocation.host.items():
                used[resource] = used.get(resource, 0) + amount
        return used

    def host_left(self, index: int, names: Iterable[str]) -> dict[str, int]:
        """Ordinary resources that a node has left; `UNCHECKED` where it tells of none at all."""
        nothing = UNCHECKED if self.unchecked[index] else 0
        return {
            name: int(self.host_free[name][index]) if name in self.host_free else nothing
            for name in names
        }

    # --- changing ----------------------------------------------------------------------------

    def upsert_node(self, node: Node) -> None:
        """Take in a node, or what it has become; entries on it are booked again by UUID."""
        index = self.index.get(node.name)
        if index is None:
            index = self._vacant.pop() if self._vacant else len(self.nodes)
            if index == len(self.nodes):
                self.nodes.append(None)
                self._reserve_nodes(index + 1)
            self.index[node.name] = index
        self.nodes[index] = node
        self.present[index] = True
        self._load(index)

    def remove_node(self, name: str) -> None:
        """Forget a node; entries of its pods stay until the pods are gone."""
        index = self.index.pop(name, None)
        if index is None:
            return
        self._unload(index)
        self.nodes[index] = None
        self.present[index] = False
        for column in (*self.host_free.values(), *self.host_total.values()):
            column[index] = 0
        self._vacant.append(index)
        self.changes.append(index)
        self.node_changes.append(index)

    def apply(self, allocation: Allocation) -> None:
        """Book an allocation that is a fact, even where it goes beyond a card's means.

        A card that is booked beyond its means is closed; nothing is dropped.

        Raises:
            LedgerError: the pod has an entry already.
        """
        if allocation.uid in self._entries:
            raise LedgerError(f"pod {allocation.uid} is booked already; undo it first")
        entry = _Entry(allocation, tuple(bounded(charge) for charge in allocation.charges))
        self._entries[allocation.uid] = entry
        self._by_node.setdefault(allocation.node, {})[allocation.uid] = entry
        index = self.index.get(allocation.node)
        if index is None:
            return
        rows = [self._locate(index, charge) for charge in entry.charges]
        if None in rows or any(self._ghosts[index].values()):
            self._load(index)
            return
        self._book_host(index, allocation.host, -1)
        for charge, row in zip(entry.charges, rows, strict=True):
            if row is not None:
                self._book(index, row, allocation.uid, charge)
        self.hosted[index] |= kinds_of(entry.charges)
        self.changes.append(index)

    def undo(self, uid: str) -> Allocation | None:
        """Give back everything a pod holds; what it held, or None when it held nothing."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return None
        allocation = entry.allocation
        mates = self._by_node[allocation.node]
        del mates[uid]
        if not mates:
            del self._by_node[allocation.node]
        index = self.index.get(allocation.node)
        if index is None:
            return allocation
        if any(self._ghosts.get(index, {}).values()):
            self._load(index)
            return allocation
        self._book_host(index, allocation.host, 1)
        for charge in entry.charges:
            row = self._locate(index, charge)
            if row is None:
                raise LedgerError(f"pod {uid} was booked on {charge.uuid}, which is not there")
            self._unbook(index, row, uid, charge)
        self._write_hosted(index, self._by_node.get(allocation.node, {}).values())
        self.changes.append(index)
        return allocation

    def suspect(self, uid: str, suspicion: Suspicion) -> None:
        """Close capacity because of a pod whose books cannot be trusted."""
        before = self._suspicions.get(uid)
        if before == suspicion:
            return
        if before is not None:
            self._forget(uid, before)
        self._suspicions[uid] = suspicion
        self._suspected.setdefault(suspicion.node, {})[uid] = suspicion
        for name in {suspicion.node, before.node if before else suspicion.node}:
            self._reopen(name)

    def acquit(self, uid: str) -> bool:
        """Open again what was closed because of a pod; whether there was anything."""
        suspicion = self._suspicions.pop(uid, None)
        if suspicion is None:
            return False
        self._forget(uid, suspicion)
        self._reopen(suspicion.node)
        return True

    # --- checking ----------------------------------------------------------------------------

    def validate(self) -> None:
        """Recompute everything from nodes, entries and suspicions, and compare.

        Raises:
            LedgerError: a law is broken; the message names the node and the figures.
        """
        fresh = Ledger()
        for node in self.nodes:
            if node is not None:
                fresh.upsert_node(node)
        for entry in self._entries.values():
            fresh.apply(entry.allocation)
        for uid, suspicion in self._suspicions.items():
            fresh.suspect(uid, suspicion)
        mine, theirs = self.picture(), fresh.picture()
        if mine != theirs:
            wrong = [n for n in mine if mine[n] != theirs.get(n)]
            name = wrong[0] if wrong else "?"
            raise LedgerError(
                f"books of node {name} are {mine.get(name)}, recomputed {theirs.get(name)}"
            )
        for type_, plane in self.planes.items():
            if bool(np.any(plane.open & ((plane.core_free < 0) | (plane.memory_free < 0)))):
                raise LedgerError(f"an open {type_} is booked beyond its means")

    def picture(self) -> dict[str, object]:
        """Everything the ledger says, by node name; equal ledgers have equal pictures."""
        result: dict[str, object] = {}
        for name, index in self.index.items():
            cards = [
                (c.device.type, c.device.minor, c.device.uuid, c.core_free, c.memory_free,
                 c.slots_free, c.tenants, c.closed, tuple(sorted((c.extras_free or {}).items())),
                 tuple(sorted(c.functions_taken)))
                for type_ in DeviceType
                for c in self.cards(type_, index)
            ]  # fmt: skip
            told = {*self.node_at(index).allocatable, *_ASSUMED}
            host = {r: int(column[index]) for r, column in self.host_free.items() if r in told}
            pods = sorted(self._by_node.get(name, ()))
            kinds = int(self.hosted[index])
            result[name] = (sorted(cards, key=repr), sorted(host.items()), pods, kinds)
        return result

    # --- inside ------------------------------------------------------------------------------

    def _reserve_nodes(self, nodes: int) -> None:
        have = self.present.shape[0]
        if nodes <= have:
            return
        size = max(nodes, have * 2)
        for plane in self.planes.values():
            plane.grow(plane.cards, size)
        self.present = np.concatenate([self.present, np.zeros(size - have, np.bool_)])
        self.hosted = np.concatenate([self.hosted, np.zeros(size - have, np.int64)])
        self.unchecked = np.concatenate([self.unchecked, np.zeros(size - have, np.bool_)])
        for columns in (self.host_free, self.host_total):
            for resource, column in columns.items():
                columns[resource] = np.concatenate([column, np.zeros(size - have, np.int64)])

    def _unload(self, index: int) -> None:
        for type_, devices in self._rows.pop(index, {}).items():
            for row, device in enumerate(devices):
                place = (type_, index, row)
                self._tenants.pop(place, None)
                self._fences.pop(place, None)
                places = self._uuids.get(device.uuid)
                if places is not None:
                    places.discard(place)
                    if not places:
                        del self._uuids[device.uuid]
            self.planes[type_].clear(index)
        self._ghosts.pop(index, None)
        self._doubles.pop(index, None)
        self._claims.pop(index, None)
        self._flat.discard(index)
        self.hosted[index] = 0

    def _load(self, index: int) -> None:
        """Write a node's columns afresh from the node and the entries on it."""
        node = self.node_at(index)
        self._unload(index)
        entries = self._by_node.get(node.name, {})
        rows: dict[DeviceType, list[Device]] = {}
        for device in sorted(node.devices, key=lambda device: device.minor):
            rows.setdefault(device.type, []).append(device)
        if is_flat(node, rows.get(DeviceType.GPU, ())):
            self._flat.add(index)
        self._rows[index] = rows
        self._ghosts[index] = dict.fromkeys(DeviceType, 0)
        twice = doubles(node.devices)
        if twice:
            self._doubles[index] = twice
        lost = [
            charge
            for entry in entries.values()
            for charge in entry.charges
            if self._locate(index, charge) is None
        ]
        for charge in sorted(lost, key=lambda charge: (charge.uuid, charge.minor)):
            if self._locate(index, charge) is None:
                rows.setdefault(charge.type, []).append(ghost(charge))
                self._ghosts[index][charge.type] += 1
            self._claims.setdefault(index, {}).setdefault((charge.type, charge.minor), charge.uuid)
        for type_, devices in rows.items():
            plane = self.planes[type_]
            plane.grow(len(devices), self.present.shape[0])
            for row, device in enumerate(devices):
                self._write_total(plane, index, row, device)
                self._uuids.setdefault(device.uuid, set()).add((type_, index, row))
        self._write_host(index, node)
        self._write_hosted(index, entries.values())
        for uid, entry in entries.items():
            self._book_host(index, entry.allocation.host, -1)
            for charge in entry.charges:
                place = self._locate(index, charge)
                if place is not None:
                    self._book(index, place, uid, charge)
        self.changes.append(index)
        self.node_changes.append(index)

    def _write_total(self, plane: Plane, index: int, row: int, device: Device) -> None:
        core, memory = min(device.core_milli, CEILING), min(device.memory_bytes, CEILING)
        plane.core_total[row, index] = plane.core_free[row, index] = core
        plane.memory_total[row, index] = plane.memory_free[row, index] = memory
        slots = min(device.slots, CEILING)
        plane.slots_total[row, index] = plane.slots_free[row, index] = slots
        for unit, amount in device.extras:
            total, free = plane.unit_columns(unit)
            total[row, index] = free[row, index] = min(amount, CEILING)
        plane.kind[row, index] = self._kind(device)
        self._refresh(device.type, index, row)

    def _write_host(self, index: int, node: Node) -> None:
        for resource in node.allocatable:
            if resource not in self.host_free:
                total = np.where(self.unchecked, UNCHECKED, 0).astype(np.int64)
                self.host_total[resource] = total
                self.host_free[resource] = total.copy()
                self._book_late(resource, index)
        self.unchecked[index] = not node.allocatable
        for resource, column in self.host_free.items():
            default = UNCHECKED if resource in _ASSUMED or not node.allocatable else 0
            column[index] = min(node.allocatable.get(resource, default), UNCHECKED)
            self.host_total[resource][index] = column[index]

    def _write_hosted(self, index: int, entries: Iterable[_Entry]) -> None:
        kinds = 0
        for entry in entries:
            kinds |= kinds_of(entry.charges)
        self.hosted[index] = kinds

    def _book_late(self, resource: str, newcomer: int) -> None:
        """Book a resource that a newcomer brought in for the pods of all other nodes."""
        for name, entries in self._by_node.items():
            index = self.index.get(name, newcomer)
            if index != newcomer:
                for entry in entries.values():
                    amount = entry.allocation.host.get(resource, 0)
                    self._book_host(index, {resource: amount}, -1)

    def _kind(self, device: Device) -> int:
        key = (
            device.vendor, device.model, device.mode, device.hidden_from,
            frozenset(device.labels.items()),
            frozenset(frozenset(f.labels.items()) for f in device.functions),
        )  # fmt: skip
        kind = self._kind_index.get(key)
        if kind is None:
            kind = self._kind_index[key] = len(self.kinds)
            self.kinds.append(device)
        return kind

    def _locate(self, index: int, charge: Charge) -> int | None:
        """The row of a charge's device: by UUID, or by minor when the record knows no UUID.

        A ghost that has a UUID stands for that device alone, so a record without one gets its own.
        """
        devices = self._rows[index].get(charge.type, ())
        real = len(devices) - self._ghosts[index][charge.type]
        for row, device in enumerate(devices):
            if charge.uuid:
                if device.uuid == charge.uuid:
                    return row
            elif device.minor == charge.minor and (row < real or not device.uuid):
                return row
        return None

    def _book_host(self, index: int, host: Mapping[str, int], sign: int) -> None:
        for resource, amount in host.items():
            column = self.host_free.get(resource)
            if column is not None:
                column[index] += sign * min(amount, CEILING)

    def _book(self, index: int, row: int, uid: str, charge: Charge) -> None:
        plane = self.planes[charge.type]
        plane.core_free[row, index] -= charge.core_milli
        plane.memory_free[row, index] -= charge.memory_bytes
        plane.tenants[row, index] += charge.slots
        for unit, amount in charge.extras:
            plane.unit_columns(unit)[1][row, index] -= amount
        place = (charge.type, index, row)
        tenants = self._tenants.setdefault(place, {})
        mine = tenants.get(uid)
        tenants[uid] = charge if mine is None else together(mine, charge)
        for other in self._around(index, row, charge):
            self._fences.setdefault((charge.type, index, other), set()).add(uid)
            self._refresh(charge.type, index, other)
        self._refresh(charge.type, index, row)

    def _unbook(self, index: int, row: int, uid: str, charge: Charge) -> None:
        plane = self.planes[charge.type]
        plane.core_free[row, index] += charge.core_milli
        plane.memory_free[row, index] += charge.memory_bytes
        plane.tenants[row, index] -= charge.slots
        for unit, amount in charge.extras:
            plane.unit_columns(unit)[1][row, index] += amount
        place = (charge.type, index, row)
        tenants = self._tenants.get(place, {})
        tenants.pop(uid, None)  # once for a card that a record names twice
        if not tenants:
            self._tenants.pop(place, None)
        for other in self._around(index, row, charge):
            self._fences[charge.type, index, other].discard(uid)
            self._refresh(charge.type, index, other)
        self._refresh(charge.type, index, row)

    def _around(self, index: int, row: int, charge: Charge) -> Iterator[int]:
        """Rows that a charge's fence encloses, its own included."""
        if charge.fence is None:
            return
        devices = self._rows[index][charge.type]
        centre = devices[row].topology
        for other, device in enumerate(devices):
            there = device.topology
            if other == row or charge.fence is Scope.NODE:
                yield other
            elif charge.fence is not Scope.DEVICE and centre is not None and there is not None:
                near = there.numa == centre.numa
                if near and (charge.fence is Scope.NUMA or there.pcie == centre.pcie):
                    yield other

    def _refresh(self, type_: DeviceType, index: int, row: int) -> None:
        """Derive what is not a sum: free slots and whether the card is open."""
        plane = self.planes[type_]
        limit = int(plane.slots_total[row, index])
        for charge in self._tenants.get((type_, index, row), {}).values():
            if charge.sharers is not None and charge.sharers < limit:
                limit = charge.sharers
        plane.slots_free[row, index] = limit - plane.tenants[row, index]
        closed = self._closed(type_, index, row)
        plane.open[row, index] = closed is None
        plane.closed[row, index] = _CLOSED_NUMBER[closed[0]] if closed else 0

    def _closed(self, type_: DeviceType, index: int, row: int) -> tuple[ReasonCode, str] | None:
        device = self._rows[index][type_][row]
        if not device.healthy:
            return ReasonCode.UNHEALTHY, device.health_detail
        if device.cordoned:
            return ReasonCode.CORDONED, ""
        plane = self.planes[type_]
        if plane.core_free[row, index] < 0 or plane.memory_free[row, index] < 0:
            return ReasonCode.QUARANTINED, "booked beyond its means"
        node = self.node_at(index)
        for suspicion in self._suspected.get(node.name, {}).values():
            if suspicion.covers(type_, device.minor):
                return ReasonCode.QUARANTINED, suspicion.message
        if (type_, device.minor) in self._doubles.get(index, ()):
            return ReasonCode.QUARANTINED, "its uuid or minor stands for several devices"
        claim = self._claims.get(index, {}).get((type_, device.minor))
        if claim is not None:
            return (
                ReasonCode.QUARANTINED,
                f"a record names {claim} as card {device.minor}, here is {device.uuid}",
            )
        tenants = self._tenants.get((type_, index, row), {})
        if any(charge.exclusive for charge in tenants.values()):
            return ReasonCode.CARD_NOT_IDLE, "held by one pod alone"
        if self._fences.get((type_, index, row)):
            return ReasonCode.CARD_NOT_IDLE, "fenced by a pod that wants its neighbours idle"
        return None

    def _forget(self, uid: str, suspicion: Suspicion) -> None:
        mates = self._suspected[suspicion.node]
        del mates[uid]
        if not mates:
            del self._suspected[suspicion.node]

    def _reopen(self, name: str) -> None:
        index = self.index.get(name)
        if index is None:
            return
        for type_, devices in self._rows[index].items():
            for row in range(len(devices)):
                self._refresh(type_, index, row)
        self.changes.append(index)

    def _card(self, plane: Plane, type_: DeviceType, index: int, row: int, device: Device) -> Card:
        closed = None if plane.open[row, index] else self._closed(type_, index, row)
        taken: frozenset[str] = frozenset()
        if device.functions:
            charges = self._tenants.get((type_, index, row), {}).values()
            taken = frozenset(f for charge in charges for f in charge.functions)
        return Card(
            device=device,
            row=row,
            core_free=int(plane.core_free[row, index]),
            memory_free=int(plane.memory_free[row, index]),
            slots_free=int(plane.slots_free[row, index]),
            tenants=int(plane.tenants[row, index]),
            closed=closed[0] if closed else None,
            closed_detail=closed[1] if closed else "",
            extras_free={u: int(plane.unit_columns(u)[1][row, index]) for u, _ in device.extras},
            functions_taken=taken,
        )

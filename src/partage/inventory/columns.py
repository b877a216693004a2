"""The books' columns: the offer of every node, its free amounts, and which pod holds what of them.

`Columns` is the part of the ledger that books pods and writes columns, node by node. The columns follow from nodes,
entries and suspicions alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Final, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from partage.inventory.card import CEILING, Suspicion, Tree, doubles, ghost, tree_of
from partage.inventory.instances import (
    CUT,
    Cuts,
    cut_by_others,
    joinable,
    strangers,
    taken,
    taken_by,
)
from partage.inventory.plane import CLOSED, Index, Ints, Plane
from partage.model.allocation import Allocation, Charge, charges_of, together
from partage.model.device import Device, DeviceType
from partage.model.errors import LedgerError
from partage.model.node import Node
from partage.model.reason import ReasonCode
from partage.model.request import Scope

_MANY: Final = 128
"""Above this many kinds of card, names of resources or sets of instances, unused ones are looked for."""

WIDTHS: Final = (16, 32, 64, 128)
"""The numbers of devices of a type for which the nodes with more are known."""

UNCHECKED: Final = 2**62
"""Room of an ordinary resource that the node does not report; it is not checked."""

ASSUMED: Final = ("cpu", "memory", "pods", "ephemeral-storage")
"""Ordinary resources that are not checked on a node that does not report them."""

KEPT: Final = 2**15
"""Changes that a log keeps at least; a reader that comes too late for them looks at everything."""

_FEW: Final = 16
"""Nodes with many devices are few if at most one node in this number has many."""

_CLOSED_NUMBER: Final = {code: number for number, code in enumerate(CLOSED)}


class Entry(msgspec.Struct, frozen=True, gc=False):
    """The allocation of one pod, and its charges."""

    allocation: Allocation
    charges: tuple[Charge, ...]


class ChangeLog:
    """Node indexes in the order of their changes, `count` so far; a node that changed twice is listed twice."""

    def __init__(self, kept: int = KEPT) -> None:
        """An empty log that keeps at least the `kept` latest changes."""
        self._kept = kept
        self._recent: Index = np.zeros(2 * kept, np.intp)
        self._used = 0
        self.count = 0

    def append(self, index: int) -> None:
        """Record that a node changed."""
        if self._used == self._recent.shape[0]:
            self._recent[: self._kept] = self._recent[self._kept :]
            self._used = self._kept
        self._recent[self._used] = index
        self._used += 1
        self.count += 1

    def since(self, seen: int) -> Index | None:
        """The nodes that changed after the first `seen` changes; None if the log no longer has them.

        The result is a view that is valid until the next change.
        """
        start = seen - self.count + self._used
        return self._recent[start : self._used] if start >= 0 else None


def distinct(nodes: Index) -> Index:
    """The same nodes, each once, in ascending order."""
    return np.array(sorted(set(nodes.tolist())), np.intp)


class Columns:
    """State of all devices and of the nodes' ordinary resources, as columns."""

    def __init__(self) -> None:
        self.planes: dict[DeviceType, Plane] = {t: Plane(1, 16) for t in DeviceType}
        self.host_free: dict[str, Ints] = {n: np.zeros(16, np.int64) for n in ASSUMED}
        self.host_total: dict[str, Ints] = {n: np.zeros(16, np.int64) for n in ASSUMED}
        self.present = np.zeros(16, np.bool_)
        self.hosted: Ints = np.zeros(16, np.int64)
        self.bare = np.zeros(16, np.bool_)
        self.shut = np.zeros(16, np.bool_)
        self.unchecked = np.zeros(16, np.bool_)
        self.nodes: list[Node | None] = []
        self.index: dict[str, int] = {}
        self.kinds: list[Device | None] = [None]
        self.registrars: set[str] = set()
        self.seated = False
        self.changes = ChangeLog()
        self.node_changes = ChangeLog()
        self.made_room = 0
        self.kind_changes = 0
        self._kind_index: dict[object, int] = {}
        self._unused_kinds: list[int] = []
        self._most_kinds = self._most_names = self._most_cuts = _MANY
        self._uuids: dict[str, set[tuple[DeviceType, int, int]]] = {}
        self._entries: dict[str, Entry] = {}
        self._by_node: dict[str, dict[str, Entry]] = {}
        self._rows: dict[int, dict[DeviceType, list[Device]]] = {}
        self._ghosts: dict[int, dict[DeviceType, int]] = {}
        self._claims: dict[int, dict[tuple[DeviceType, int], str]] = {}
        self._doubles: dict[int, frozenset[tuple[DeviceType, int]]] = {}
        self._tenants: dict[tuple[DeviceType, int, int], dict[str, Charge]] = {}
        self._fences: dict[tuple[DeviceType, int, int], set[str]] = {}
        self._strange: dict[tuple[DeviceType, int, int], tuple[int, int]] = {}
        self._suspected: dict[str, dict[str, Suspicion]] = {}
        self._withheld: dict[int, dict[tuple[DeviceType, int], str]] = {}
        self.trees: dict[int, Tree] = {}
        self._known_trees: dict[Tree, Tree] = {}
        self.cuts = Cuts()
        self.cut_nodes: set[int] = set()
        self._wider: dict[int, set[int]] = {width: set() for width in WIDTHS}

    @property
    def models(self) -> list[str]:
        """By kind of card, its model; empty for no card."""
        return [device.model if device else "" for device in self.kinds]

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    def allocation(self, uid: str) -> Allocation | None:
        """The pod's allocation, or None."""
        entry = self._entries.get(uid)
        return entry.allocation if entry else None

    def devices(self, type_: DeviceType, index: int) -> Sequence[Device]:
        """The devices of one type on a node, by row."""
        return self._rows[index].get(type_, ())

    def node_at(self, index: int) -> Node:
        """The node at an index. Raises `LedgerError`: the index has no node."""
        node = self.nodes[index]
        if node is None:
            raise LedgerError(f"no node at index {index}")
        return node

    def narrowed(self) -> tuple[Self, Ints] | None:
        """The books with only as many positions for devices as nearly all nodes need, and the few other nodes.

        Every node has room for as many devices as the largest one. So a caller with many questions about all nodes asks
        the narrow books first, and then the whole books about these few. None if the books cannot be narrower.
        """
        most = max(plane.cards for plane in self.planes.values())
        for width in WIDTHS:
            few = self._wider[width]
            if width < most and len(few) * _FEW <= len(self.index):
                part = copy(self)
                part.planes = {type_: plane.first(width) for type_, plane in self.planes.items()}
                return part, np.array(sorted(few), np.intp)
        return None

    def apply(self, allocation: Allocation) -> None:
        """Book an allocation that is a fact, even if it exceeds a card's amounts.

        An overbooked card is closed; nothing is dropped. Raises `LedgerError`: the pod has an entry already.
        """
        uid, name = allocation.uid, allocation.node
        if uid in self._entries:
            raise LedgerError(f"pod {uid} is in the ledger already; undo it first")
        charges = tuple([_bounded(charge) for charge in charges_of(allocation.grants)])
        entry = self._entries[uid] = Entry(allocation, charges)
        mates = self._by_node.get(name)
        if mates is None:
            mates = self._by_node[name] = {}
        mates[uid] = entry
        index = self.index.get(name)
        if index is not None:
            self._book_entry(index, uid, entry)

    def undo(self, uid: str) -> Allocation | None:
        """Release everything that a pod holds; returns its allocation, or None if it had none."""
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
        if index in self._ghosts:
            self._load(index)
            return allocation
        self._book_host(index, allocation.host, 1)
        for charge in entry.charges:
            row = self._locate(index, charge)
            if row is None:
                raise LedgerError(f"pod {uid} was allocated on {charge.uuid}, which is not there")
            self._unbook(index, row, uid, charge)
        self._write_hosted(index, self._by_node.get(allocation.node, {}).values())
        if allocation.node in self._suspected:
            self._withhold(index)
        self.changes.append(index)
        self.made_room += 1
        return allocation

    def restate(self, allocation: Allocation) -> bool:
        """Replace a pod's allocation by one that takes the same of the same node; returns whether it does.

        A grant may have got its protocol only on its node. Then nothing is booked again, and no room appears.
        """
        entry = self._entries.get(allocation.uid)
        if entry is None:
            return False
        before, name = entry.allocation, allocation.node
        charges = tuple([_bounded(charge) for charge in charges_of(allocation.grants)])
        if (before.node, before.host, entry.charges) != (name, allocation.host, charges):
            return False
        self._entries[allocation.uid] = self._by_node[name][allocation.uid] = Entry(
            allocation, charges
        )
        index = self.index.get(name)
        if index is not None:
            self.changes.append(index)
        return True

    def _unload(self, index: int) -> None:
        for type_, devices in self._rows.pop(index, {}).items():
            for row, device in enumerate(devices):
                place = (type_, index, row)
                self._tenants.pop(place, None)
                self._fences.pop(place, None)
                self._strange.pop(place, None)
                places = self._uuids.get(device.uuid)
                if places is not None:
                    places.discard(place)
                    if not places:
                        del self._uuids[device.uuid]
            self.planes[type_].clear(index)
        self._withheld.pop(index, None)
        self._ghosts.pop(index, None)
        self._doubles.pop(index, None)
        self._claims.pop(index, None)
        self.trees.pop(index, None)
        self.cut_nodes.discard(index)
        for nodes in self._wider.values():
            nodes.discard(index)
        self.hosted[index] = 0

    def _load(self, index: int) -> None:
        """Rewrite a node's columns from the node and the entries on it."""
        node = self.node_at(index)
        self._unload(index)
        entries = self._by_node.get(node.name, {})
        rows: dict[DeviceType, list[Device]] = {}
        for device in sorted(node.devices, key=lambda device: device.minor):
            rows.setdefault(device.type, []).append(device)
        if any(device.cutting is not None for device in node.devices):
            self.cut_nodes.add(index)
        self._rows[index] = rows
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
                ghosts = self._ghosts.setdefault(index, {})
                ghosts[charge.type] = ghosts.get(charge.type, 0) + 1
            self._claims.setdefault(index, {}).setdefault((charge.type, charge.minor), charge.uuid)
        self._note_width(index, max(map(len, rows.values()), default=0))
        for type_, devices in rows.items():
            plane = self.planes[type_]
            plane.grow(len(devices), self.present.shape[0])
            for row, device in enumerate(devices):
                self._write_total(plane, index, row, device)
                self._uuids.setdefault(device.uuid, set()).add((type_, index, row))
        tree = tree_of(rows.get(DeviceType.GPU, ()))
        if tree is not None:
            self.trees[index] = self._known_trees.setdefault(tree, tree)
            if len(self._known_trees) > _MANY + 2 * len(self.trees):
                self._known_trees = {one: one for one in self.trees.values()}
        self.bare[index], self.shut[index] = not rows, node.shut
        self._write_host(index, node)
        self._write_hosted(index, entries.values())
        for uid, entry in entries.items():
            self._book_host(index, entry.allocation.host, -1)
            for charge in entry.charges:
                place = self._locate(index, charge)
                if place is not None:
                    self._book(index, place, uid, charge)
        self._withhold(index)
        self.changes.append(index)
        self.node_changes.append(index)
        self.made_room += 1

    def _note_width(self, index: int, devices: int) -> None:
        """Record a node's number of devices of one type, ghosts included."""
        for width, nodes in self._wider.items():
            if devices > width:
                nodes.add(index)

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
                self._forget_names()
                total = np.where(self.unchecked, UNCHECKED, 0).astype(np.int64)
                self.host_total[resource] = total
                self.host_free[resource] = total.copy()
                self._book_late(resource, index)
        self.unchecked[index] = not node.allocatable
        for resource, column in self.host_free.items():
            default = UNCHECKED if resource in ASSUMED or not node.allocatable else 0
            column[index] = min(node.allocatable.get(resource, default), UNCHECKED)
            self.host_total[resource][index] = column[index]
            column[index] -= min(node.taken.get(resource, 0), UNCHECKED)

    def _write_hosted(self, index: int, entries: Iterable[Entry]) -> None:
        kinds = 0
        for entry in entries:
            kinds |= _kinds_of(entry.charges)
        self.hosted[index] = kinds

    def _book_late(self, resource: str, newcomer: int) -> None:
        """Book a resource that a new node introduced for the pods of all other nodes."""
        for name, entries in self._by_node.items():
            index = self.index.get(name, newcomer)
            if index != newcomer:
                for entry in entries.values():
                    amount = entry.allocation.host.get(resource, 0)
                    self._book_host(index, {resource: amount}, -1)

    def _kind(self, device: Device) -> int:
        key = (
            device.vendor,
            device.model,
            device.mode,
            device.hidden_from,
            device.registrar,
            frozenset(device.labels.items()),
            frozenset(frozenset(f.labels.items()) for f in device.functions),
            device.cutting,
            device.seated,
        )
        kind = self._kind_index.get(key)
        if kind is None:
            self._forget_kinds()
            if self._unused_kinds:
                kind = self._unused_kinds.pop()
                self.kinds[kind] = device
            else:
                kind = len(self.kinds)
                self.kinds.append(device)
            self._kind_index[key] = kind
            self.kind_changes += 1
            if device.registrar:
                self.registrars.add(device.registrar)
            self.seated = self.seated or device.seated
        return kind

    def _forget_kinds(self) -> None:
        """Free the numbers of kinds without a card, once there are many.

        The writer of one node's documents may name new kinds in each, and every request for cards reads all known
        kinds.
        """
        if len(self._kind_index) < self._most_kinds:
            return
        used = set[int]().union(
            *(np.unique(plane.kind).tolist() for plane in self.planes.values())
        )
        for key, kind in [*self._kind_index.items()]:
            if kind not in used:
                del self._kind_index[key]
                self.kinds[kind] = None
                self._unused_kinds.append(kind)
        self._most_kinds = max(_MANY, 2 * len(self._kind_index))

    def _forget_names(self) -> None:
        """Drop the columns of resources that no node reports, once there are many."""
        if len(self.host_free) < self._most_names:
            return
        told = {*ASSUMED}.union(*(node.allocatable for node in self.nodes if node is not None))
        for resource in [*self.host_free.keys() - told]:
            del self.host_free[resource], self.host_total[resource]
        self._most_names = max(_MANY, 2 * len(self.host_free))

    def _locate(self, index: int, charge: Charge) -> int | None:
        """The row of a charge's device: by UUID, or by minor if the record has no UUID.

        A ghost with a UUID represents only that device, so a record without one gets its own ghost.
        """
        devices = self._rows[index].get(charge.type, ())
        if charge.uuid:
            for row, device in enumerate(devices):
                if device.uuid == charge.uuid:
                    return row
            return None
        real = self._real(index, charge.type)
        for row, device in enumerate(devices):
            if device.minor == charge.minor and (row < real or not device.uuid):
                return row
        return None

    def _real(self, index: int, type_: DeviceType) -> int:
        """How many devices of a type the node has; ghosts follow them."""
        devices = self._rows[index].get(type_, ())
        return len(devices) - self._ghosts.get(index, {}).get(type_, 0)

    def _book_host(self, index: int, host: Mapping[str, int], sign: int) -> None:
        for resource, amount in host.items():
            column = self.host_free.get(resource)
            if column is not None:
                column[index] += sign * (min(CEILING, amount))

    def _book_entry(self, index: int, uid: str, entry: Entry) -> None:
        """Book a pod on its node, which is written anew if a device of the pod is not there, or a ghost is."""
        rows = [self._locate(index, charge) for charge in entry.charges]
        if None in rows or index in self._ghosts:
            self._load(index)
            return
        self._book_host(index, entry.allocation.host, -1)
        for charge, row in zip(entry.charges, rows, strict=True):
            if row is not None:
                self._book(index, row, uid, charge)
        self.hosted[index] |= _kinds_of(entry.charges)
        if entry.allocation.node in self._suspected:
            self._withhold(index)
        self.changes.append(index)

    def _book(self, index: int, row: int, uid: str, charge: Charge) -> None:
        plane, at = self.planes[charge.type], (row, index)
        core = plane.core_free.item(at) - charge.core_milli
        memory = plane.memory_free.item(at) - charge.memory_bytes
        sharers = plane.tenants.item(at) + charge.slots
        plane.core_free[at], plane.memory_free[at], plane.tenants[at] = core, memory, sharers
        for unit, amount in charge.extras:
            plane.unit_columns(unit)[1][at] -= amount
        place = (charge.type, index, row)
        tenants = self._tenants.get(place)
        if tenants is None:
            tenants = self._tenants[place] = {}
        mine = tenants.get(uid)
        tenants[uid] = charge if mine is None else together(mine, charge)
        # One more sharer of an open card changes less than `_refresh` checks.
        joins = not charge.exclusive and charge.fence is None and not charge.instances
        if joins and core >= 0 <= memory and plane.open[at] and index not in self.cut_nodes:
            left = plane.slots_free.item(at) - charge.slots
            limit = left if charge.sharers is None else charge.sharers - sharers
            plane.slots_free[at] = min(left, limit)
        else:
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
        """Rows inside a charge's fence, its own included."""
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
        """Derive the values that are not sums: free slots and whether the card is open."""
        plane = self.planes[type_]
        if index in self.cut_nodes:
            self._count_strangers(type_, index, row)
        limit = int(plane.slots_total[row, index])
        for charge in self._tenants.get((type_, index, row), {}).values():
            if charge.sharers is not None and charge.sharers < limit:
                limit = charge.sharers
        plane.slots_free[row, index] = limit - plane.tenants[row, index]
        closed = self._closed(type_, index, row)
        plane.open[row, index] = closed is None
        plane.closed[row, index] = _CLOSED_NUMBER[closed[0]] if closed else 0
        if index in self.cut_nodes:
            plane.cut[row, index] = self._cut(type_, index, row, closed)

    def _count_strangers(self, type_: DeviceType, index: int, row: int) -> None:
        """Subtract the amounts of foreign instances that no pod's charge covers."""
        device, place = self._rows[index][type_][row], (type_, index, row)
        if not device.foreign or device.cutting is None:
            return
        there = strangers(device, self._tenants.get(place, {}))
        now, before = taken_by(device.cutting, there), self._strange.get(place, (0, 0))
        self.planes[type_].core_free[row, index] += before[0] - now[0]
        self.planes[type_].memory_free[row, index] += before[1] - now[1]
        self._strange[place] = now

    def _cut(
        self, type_: DeviceType, index: int, row: int, closed: tuple[ReasonCode, str] | None
    ) -> int:
        """Number of the set of instances on the card; 0 if no other can be made."""
        device = self._rows[index][type_][row]
        on_it = joinable(device, self._tenants.get((type_, index, row), {}), closed)
        if on_it is None or device.cutting is None:
            return 0
        found = self.cuts.number(device.cutting, on_it)
        if len(self.cuts.known) > self._most_cuts:
            self._forget_cuts()
            found = self.cuts.number(device.cutting, on_it)
        return found

    def _forget_cuts(self) -> None:
        """Renumber the combinations that are on some card, once there are many others.

        The writer of one node's documents may report new tables and instances in each, and every request for instances
        reads all known ones.
        """
        before, self.cuts = self.cuts.known, Cuts()
        for plane in self.planes.values():
            used = np.unique(plane.cut)
            numbers = [
                self.cuts.number(one.cutting, one.instances) if one is not None else 0
                for one in (before[number] for number in used)
            ]
            plane.cut[:] = np.array(numbers, plane.cut.dtype)[np.searchsorted(used, plane.cut)]
        self._most_cuts = max(_MANY, 2 * len(self.cuts.known))

    def _closed(self, type_: DeviceType, index: int, row: int) -> tuple[ReasonCode, str] | None:
        closed = self._closed_itself(type_, index, row)
        if closed is None and index in self._withheld:
            message = self._withheld[index].get((type_, row))
            return None if message is None else (ReasonCode.QUARANTINED, message)
        return closed

    def _closed_itself(
        self, type_: DeviceType, index: int, row: int
    ) -> tuple[ReasonCode, str] | None:
        """Why the card takes no pod, apart from pods without a record that may be using it."""
        device = self._rows[index][type_][row]
        if not device.healthy:
            return ReasonCode.UNHEALTHY, device.health_detail
        if device.cordoned:
            return ReasonCode.CORDONED, ""
        if device.doubt:
            return ReasonCode.QUARANTINED, device.doubt
        plane, tenants = self.planes[type_], self._tenants.get((type_, index, row), {})
        many = len(tenants)
        if plane.core_free[row, index] < 0 or plane.memory_free[row, index] < 0:
            # Two managers allocate it, or one record was edited.
            return ReasonCode.QUARANTINED, f"over-committed by {many} pod{'s' * (many != 1)}"
        node = self.node_at(index)
        for suspicion in self._suspected.get(node.name, {}).values():
            if type_ in suspicion.types:
                return ReasonCode.QUARANTINED, suspicion.brief
        if (type_, device.minor) in self._doubles.get(index, ()):
            return ReasonCode.QUARANTINED, "its uuid or minor stands for several devices"
        claim = self._claims.get(index, {}).get((type_, device.minor))
        if claim is not None:
            return (
                ReasonCode.QUARANTINED,
                f"a record names {claim} as card {device.minor}, here is {device.uuid}",
            )
        closed = cut_by_others(device) if device.foreign else None
        if any(charge.exclusive or charge.instances for charge in tenants.values()):
            found = taken(device, tenants)
            if found not in (None, CUT):
                return found
            closed = closed or found
        if self._fences.get((type_, index, row)):
            return ReasonCode.CARD_NOT_IDLE, "closed by a pod that asks for idle neighbours"
        return closed

    def _withhold(self, index: int) -> None:
        """Close as many idle cards of a node as pods without a record may be using there.

        It is unknown which cards these pods use. A card that a pod holds by a record is never closed for them, and
        never more cards than they may use. So the same pods give the same result in any order.
        """
        name = self.node_at(index).name
        wanted = sorted(
            (not (one.vendors or one.avoid_vendors), one, uid, suspicion.brief)
            for uid, suspicion in self._suspected.get(name, {}).items()
            for one in suspicion.may_use
        )
        chosen: dict[tuple[DeviceType, int], str] = {}
        idle = {type_: self._idle(type_, index) for type_ in {one.type for _, one, *_ in wanted}}
        for _any_vendor, one, _uid, message in wanted:
            left = idle[one.type]
            rows = [row for row, vendor in left.items() if one.accepts(vendor)][: one.count]
            for row in rows:
                del left[row]
                chosen[one.type, row] = message
        before = self._withheld.pop(index, {})
        if chosen:
            self._withheld[index] = chosen
        for type_, row in before.keys() ^ chosen.keys():
            self._refresh(type_, index, row)
        if before.keys() - chosen.keys():
            self.made_room += 1

    def _idle(self, type_: DeviceType, index: int) -> dict[int, str]:
        """Open cards without a pod, by row: the vendor of each."""
        return {
            row: device.vendor
            for row, device in enumerate(self._rows[index].get(type_, ()))
            if not device.foreign
            and not self._tenants.get((type_, index, row))
            and self._closed_itself(type_, index, row) is None
        }


def _kinds_of(charges: Sequence[Charge]) -> int:
    """Bits of one pod for the column `hosted`; the few with more than 62 cards share a bit."""
    cards = shares = 0
    for charge in charges:
        if charge.type is DeviceType.GPU:
            if charge.exclusive:
                cards += 1
            else:
                shares = 1
    return (1 << min(cards, 62) if cards else 0) | shares


def _bounded(charge: Charge) -> Charge:
    """The charge, with absurd amounts reduced to the most that the columns can count."""
    few = charge.core_milli <= CEILING and charge.slots <= CEILING
    few = few and charge.memory_bytes <= CEILING
    if few and (not charge.extras or all(a <= CEILING for _unit, a in charge.extras)):
        return charge
    return replace(
        charge,
        core_milli=min(charge.core_milli, CEILING),
        memory_bytes=min(charge.memory_bytes, CEILING),
        slots=min(charge.slots, CEILING),
        extras=tuple((unit, min(amount, CEILING)) for unit, amount in charge.extras),
    )

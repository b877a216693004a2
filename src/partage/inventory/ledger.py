"""The ledger: which pod holds how much of which device, as columns; the only owner of mutable state.

Every change applies or undoes an entry, or adds or removes a node. Entries are keyed by pod UID and hold everything
that their release needs. The columns follow from nodes, entries and suspicions alone, in any order of arrival:
`validate` recomputes everything and compares.

The ledger never chooses and never forgets. A device that vanished from its node stays as a closed ghost while a pod is
booked on it. A pod on an unknown node waits here until the node is seen.

Invariants, by field:
    entries          one a pod; at most one node each.
    planes           free = total - sum of the charges on the card, in every dimension; less the amounts of
                     foreign instances without a charge.
    open             never true on a card that is unhealthy, cordoned, quarantined, held
                     exclusively, fenced by another pod, or overbooked.
    hosted           by node, which kinds of pod with GPUs are on it: bit 0 for one with shares,
                     bit n for one with n whole cards.
    bare             by node, whether it has no devices at all.
    shut             by node, whether it gives no device to any new pod (`Node.shut`).
    trees            by node index, the topology of its GPUs by row; none if it is not known of all of them.
    changes          every node whose columns changed, in order.
    node_changes     the nodes that were added, removed, or changed their offer.
    kind_changes     grows with every new kind of card; its number may have been another's.
    made_room        grows with every change that may let a refused pod in.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final

import numpy as np

from partage.inventory.card import Card, Suspicion
from partage.inventory.columns import ASSUMED, UNCHECKED, Columns
from partage.inventory.instances import strangers
from partage.inventory.plane import Plane
from partage.model.allocation import Allocation, Charge
from partage.model.device import Device, DeviceType
from partage.model.errors import LedgerError
from partage.model.mig import MigSlice
from partage.model.node import Node

_STATE: Final = attrgetter(
    *("device.type", "device.minor", "device.uuid", "core_free", "memory_free", "slots_free"),
    *("tenants", "closed", "instances", "takes_instances", "foreign"),
)
"""What a picture tells of a card, beside its native units and virtual functions."""


class Ledger(Columns):
    """State of all devices and of the nodes' ordinary resources."""

    def __init__(self) -> None:
        super().__init__()
        self._suspicions: dict[str, Suspicion] = {}
        self._vacant: list[int] = []

    # --- asking ------------------------------------------------------------------------------

    def allocations(self) -> Iterator[Allocation]:
        """Every pod's allocation, in the order of arrival."""
        return (entry.allocation for entry in self._entries.values())

    def on_node(self, name: str) -> Iterator[Allocation]:
        """The allocations on one node, in the order of arrival."""
        return (entry.allocation for entry in self._by_node.get(name, {}).values())

    def suspicion(self, uid: str) -> Suspicion | None:
        """The capacity closed because of the pod, or None."""
        return self._suspicions.get(uid)

    def suspicions(self) -> Mapping[str, Suspicion]:
        """All capacity closed because of a pod, by its UID."""
        return self._suspicions

    def at_uuid(self, uuid: str) -> Iterable[tuple[DeviceType, int, int]]:
        """The places of a device: type, node index and row; normally one."""
        return self._uuids.get(uuid, ())

    def cards(self, type_: DeviceType, index: int) -> list[Card]:
        """A copy of the state of a node's cards of one type, in the order of minors."""
        plane = self.planes[type_]
        return [
            self._card(plane, type_, index, row, device)
            for row, device in enumerate(self._rows[index].get(type_, ()))
        ]

    def _card(self, plane: Plane, type_: DeviceType, index: int, row: int, device: Device) -> Card:
        closed = None if plane.open[row, index] else self._closed(type_, index, row)
        functions: frozenset[str] = frozenset()
        if device.functions:
            charges = self._tenants.get((type_, index, row), {}).values()
            functions = frozenset(f for charge in charges for f in charge.functions)
        card = Card(
            device=device,
            row=row,
            core_free=int(plane.core_free[row, index]),
            memory_free=int(plane.memory_free[row, index]),
            slots_free=int(plane.slots_free[row, index]),
            tenants=int(plane.tenants[row, index]),
            closed=closed[0] if closed else None,
            closed_detail=closed[1] if closed else "",
            extras_free={u: int(plane.unit_columns(u)[1][row, index]) for u, _ in device.extras},
            functions_taken=functions,
        )
        if device.cutting is not None:
            held = sorted(
                (one.start, one.size, one.profile, uid)
                for uid, charge in self._tenants.get((type_, index, row), {}).items()
                for one in charge.instances
            )
            card.instances = tuple(MigSlice(name, start, size) for start, size, name, _ in held)
            card.holders = tuple(
                self._by_node[self.node_at(index).name][uid].allocation.holder for *_, uid in held
            )
            card.takes_instances = bool(plane.cut[row, index])
        if device.foreign:
            card.foreign = strangers(device, self._tenants.get((type_, index, row), {}))
        return card

    def tenants(self, type_: DeviceType, index: int, row: int) -> Mapping[str, Charge]:
        """Charges on one card by pod UID."""
        return self._tenants.get((type_, index, row), {})

    def overbooked(self, uid: str) -> dict[str, tuple[str, ...]]:
        """Devices of a pod that are overbooked: UUID (or number without one) to the pods on them.

        A device that is gone offers nothing, which is no clash of its pods.
        """
        entry = self._entries.get(uid)
        index = None if entry is None else self.index.get(entry.allocation.node)
        found: dict[str, tuple[str, ...]] = {}
        if entry is None or index is None:
            return found
        for charge in entry.charges:
            row, plane = self._locate(index, charge), self.planes[charge.type]
            if (
                row is not None
                and row < self._real(index, charge.type)
                and (plane.core_free[row, index] < 0 or plane.memory_free[row, index] < 0)
            ):
                uids = self._tenants.get((charge.type, index, row), ())
                pods = (self._entries[uid].allocation for uid in uids)
                device = self._rows[index][charge.type][row]
                found[device.uuid or f"{device.type} {device.minor}"] = tuple(
                    sorted(one.holder for one in pods)
                )
        return found

    def host_left(self, index: int, names: Iterable[str]) -> dict[str, int]:
        """Ordinary resources that a node has left; `UNCHECKED` if it reports none at all."""
        nothing = UNCHECKED if self.unchecked[index] else 0
        return {
            name: int(self.host_free[name][index]) if name in self.host_free else nothing
            for name in names
        }

    # --- changing ----------------------------------------------------------------------------

    def upsert_node(self, node: Node) -> None:
        """Add or update a node; entries on it are booked again by UUID."""
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

    def update_taken(self, node: Node) -> None:
        """Update the resources that pods take of a node beside devices, if nothing else of it has changed."""
        index = self.index[node.name]
        before, self.nodes[index] = self.node_at(index).taken, node
        gained = 0
        for resource in before.keys() | node.taken.keys():
            column = self.host_free.get(resource)
            more = min(before.get(resource, 0), UNCHECKED)
            more -= min(node.taken.get(resource, 0), UNCHECKED)
            if column is not None and more:
                column[index] += more
                gained = max(gained, more)
        self.changes.append(index)
        self.made_room += gained > 0

    def _reserve_nodes(self, nodes: int) -> None:
        have = self.present.shape[0]
        if nodes <= have:
            return
        size = max(nodes, have * 2)
        for plane in self.planes.values():
            plane.grow(plane.cards, size)
        flags, amounts = np.zeros(size - have, np.bool_), np.zeros(size - have, np.int64)
        self.hosted = np.append(self.hosted, amounts)
        for name in ("present", "bare", "shut", "unchecked"):
            setattr(self, name, np.append(getattr(self, name), flags))
        for columns in (self.host_free, self.host_total):
            for resource, column in columns.items():
                columns[resource] = np.append(column, amounts)

    def remove_node(self, name: str) -> None:
        """Remove a node; entries of its pods stay until the pods are gone."""
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
        """Reopen the capacity closed because of a pod; returns whether there was any."""
        suspicion = self._suspicions.pop(uid, None)
        if suspicion is None:
            return False
        self._forget(uid, suspicion)
        self._reopen(suspicion.node)
        return True

    def _reopen(self, name: str) -> None:
        index = self.index.get(name)
        if index is None:
            return
        self._withhold(index)
        for type_, devices in self._rows[index].items():
            for row in range(len(devices)):
                self._refresh(type_, index, row)
        self.changes.append(index)
        self.made_room += 1

    # --- checking ----------------------------------------------------------------------------

    def validate(self, names: Collection[str] | None = None) -> None:
        """Recompute everything from nodes, entries and suspicions, and compare.

        `names`: only these nodes; None checks all. Raises `LedgerError`: a law is broken; the message names the node
        and the figures.
        """
        fresh = Ledger()
        for resource in self.host_free:  # foreign resources count if a node reports none
            for columns in (fresh.host_free, fresh.host_total):
                columns[resource] = np.zeros(fresh.present.shape[0], np.int64)
        names = tuple(self.index if names is None else (n for n in names if n in self.index))
        for name in names:
            fresh.upsert_node(self.node_at(self.index[name]))
        for name in names:
            for entry in self._by_node.get(name, {}).values():
                fresh.apply(entry.allocation)
            for uid, suspicion in self._suspected.get(name, {}).items():
                fresh.suspect(uid, suspicion)
        theirs = fresh.picture(names)
        for name, mine in self.picture(names).items():
            if mine != theirs.get(name):
                raise LedgerError(
                    f"ledger of node {name} is {mine}, recomputed {theirs.get(name)}"
                )
        miscut = self._miscut({self.index[name] for name in names})
        if miscut:
            raise LedgerError(miscut)
        for type_, plane in self.planes.items():
            if bool(np.any(plane.open & ((plane.core_free < 0) | (plane.memory_free < 0)))):
                raise LedgerError(f"an open {type_} is over-committed")

    def picture(self, names: Collection[str] | None = None) -> dict[str, object]:
        """The ledger's state of these nodes, or all, by name; equal ledgers have equal pictures."""
        result: dict[str, object] = {}
        for name in self.index if names is None else names:
            index = self.index[name]
            cards = [
                (
                    *_STATE(c),
                    tuple(sorted((c.extras_free or {}).items())),
                    tuple(sorted(c.functions_taken)),
                )
                for type_ in DeviceType
                for c in self.cards(type_, index)
            ]
            told = {*self.node_at(index).allocatable, *ASSUMED}
            host = {r: int(column[index]) for r, column in self.host_free.items() if r in told}
            pods = sorted(self._by_node.get(name, ()))
            kinds = int(self.hosted[index])
            result[name] = (sorted(cards, key=repr), sorted(host.items()), pods, kinds)
        return result

    # --- inside ------------------------------------------------------------------------------

    def _forget(self, uid: str, suspicion: Suspicion) -> None:
        mates = self._suspected[suspicion.node]
        del mates[uid]
        if not mates:
            del self._suspected[suspicion.node]

    def _miscut(self, indexes: set[int]) -> str:
        """A card of these nodes whose column `cut` differs from its instances; empty if there is none."""
        for index in indexes & self.cut_nodes:
            for type_ in DeviceType:
                for row in range(len(self._rows[index].get(type_, ()))):
                    closed = self._closed(type_, index, row)
                    cut = int(self.planes[type_].cut[row, index])
                    if cut != self._cut(type_, index, row, closed):
                        return (
                            f"{type_} {row} of {self.node_at(index).name} is not cut as allocated"
                        )
        return ""

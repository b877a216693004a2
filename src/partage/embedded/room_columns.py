"""What is left on every node as columns, so that a pod is not held against node after node.

Rules that do not depend on what is left (cordons, taints, selectors, affinity) are asked once a node
and kept for all pods with the same ones; a node that changed is asked again. Nodes lie in the order
in which they came. `Rooms.survey_plainly` is the twin.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from partage.inventory.changes import ChangeLog, distinct
from partage.inventory.plane import Bools, Ints
from partage.model.node import Node
from partage.model.pod import Pod

T = TypeVar("T", bound=np.generic)

MOST: Final = 2**62
"""The most of a resource that a column holds; pods that ask for more are looked at node by node."""
_KINDS: Final = 64
"""Kinds of pods, by their rules, for which verdicts are kept."""
_SPARE: Final = 64


class _Verdicts:
    """What the rules of one kind of pods say of every node.

    Attributes:
        allowed: by position, whether they let the pod in.
        texts: by position, what speaks against it.
        counts: how many nodes each text is said of.
        seen: changes of nodes that these verdicts know.
    """

    def __init__(self) -> None:
        self.allowed: Bools = np.zeros(0, np.bool_)
        self.texts: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self.seen = 0

    def write(self, position: int, text: str | None) -> None:
        """What is said of a node: a text against it, nothing, or None where there is no node."""
        before = self.texts.pop(position, None)
        if before is not None:
            self.counts[before] -= 1
            if not self.counts[before]:
                del self.counts[before]
        if text:
            self.texts[position] = text
            self.counts[text] += 1
        self.allowed[position] = text == ""


class RoomColumns:
    """Names and free amounts by position."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._positions: dict[str, int] = {}
        self._names: list[str | None] = []
        self._known: NDArray[np.object_] = np.zeros(0, np.object_)
        self._free: dict[str, Ints] = {}
        self._changes = ChangeLog()
        self._verdicts: OrderedDict[object, _Verdicts] = OrderedDict()

    # --- facts -------------------------------------------------------------------------------

    def node_seen(self, node: Node, free: Mapping[str, int]) -> None:
        """A node is there or has changed, with so much left."""
        position = self._positions.get(node.name)
        if position is None:
            position = self._positions[node.name] = len(self._names)
            self._names.append(node.name)
            if position >= self._known.shape[0]:
                self._grow(2 * position + _SPARE)
            self._known[position] = node.name
        for column in self._free.values():
            column[position] = 0
        self._write(position, free)
        self._changes.append(position)

    def node_gone(self, name: str, left: Callable[[str], Mapping[str, int]]) -> None:
        """A node is there no more, and `left` is left on another."""
        position = self._positions.pop(name)
        self._names[position] = None
        self._changes.append(position)
        if len(self._names) <= 2 * len(self._positions) + _SPARE:
            return
        others = [one for one in self._names if one is not None]
        self._reset()
        self._names = [*others]
        self._positions = {one: position for position, one in enumerate(others)}
        self._grow(len(others) + _SPARE)
        self._known[: len(others)] = others
        for position, one in enumerate(others):
            self._write(position, left(one))
            self._changes.append(position)

    def free_changed(self, name: str, free: Mapping[str, int]) -> None:
        """So much of these resources is left on a node."""
        self._write(self._positions[name], free)

    def _write(self, position: int, free: Mapping[str, int]) -> None:
        for resource, amount in free.items():
            column = self._free.get(resource)
            if column is None:
                column = self._free[resource] = np.zeros(self._known.shape[0], np.int64)
            column[position] = max(-MOST, min(amount, MOST))

    def _grow(self, size: int) -> None:
        self._known = _grown(self._known, size)
        self._free = {resource: _grown(column, size) for resource, column in self._free.items()}

    # --- questions ---------------------------------------------------------------------------

    def allowed(
        self, pod: Pod, objection: Callable[[str, Pod], str]
    ) -> tuple[Bools, Mapping[str, int]]:
        """Nodes that no rule keeps from the pod, whatever is left; and how many are kept by which.

        Args:
            pod: without devices.
            objection: what a rule says of a node, by its name; empty where none says anything.
        """
        kind = (pod.tolerations, pod.constraint.selector, pod.constraint.terms)
        verdicts = self._verdicts.setdefault(kind, _Verdicts())
        self._verdicts.move_to_end(kind)
        if len(self._verdicts) > _KINDS:
            self._verdicts.popitem(last=False)
        if verdicts.allowed.shape[0] < self._known.shape[0]:
            verdicts.allowed = _grown(verdicts.allowed, self._known.shape[0])
        changed = self._changes.since(verdicts.seen)
        positions = range(len(self._names)) if changed is None else distinct(changed).tolist()
        verdicts.seen = len(self._changes)
        for position in positions:
            name = self._names[position]
            verdicts.write(position, None if name is None else objection(name, pod))
        return verdicts.allowed.copy(), dict(verdicts.counts)

    def with_room(self, host: Mapping[str, int], among: Bools) -> tuple[list[str], dict[str, int]]:
        """Nodes with as much left as is asked; and how many lack which resource first.

        Args:
            host: what is asked, by resource, at most `MOST` of each.
            among: the nodes that are asked about; overwritten.
        """
        short: dict[str, int] = {}
        for resource, asked in host.items():
            if asked <= 0:
                continue
            column = self._free.get(resource)
            enough = np.zeros_like(among) if column is None else column >= asked
            lacking = int(np.count_nonzero(among & ~enough))
            if lacking:
                short[resource] = lacking
                among &= enough
        fitting: list[str] = self._known[among].tolist()
        return fitting, short


def _grown(old: NDArray[T], size: int) -> NDArray[T]:
    new = np.zeros(size, old.dtype)
    new[: old.shape[0]] = old
    return new

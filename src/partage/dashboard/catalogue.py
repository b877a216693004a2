"""Facts about each node except its tenants: its place by name, its models, its searchable text.

All facts follow from the nodes' offers, which seldom change. Only changed nodes are read again, in pieces
between which other tasks run.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from partage.inventory.columns import distinct
from partage.inventory.ledger import Ledger
from partage.inventory.plane import CLOSED, Bools, Index, Ints
from partage.model.device import DeviceType
from partage.model.reason import ReasonCode
from partage.wire.outcomes import said

_PIECE: Final = 64
"""Nodes read before other tasks run."""
HELD: Final = CLOSED.index(ReasonCode.CARD_NOT_IDLE)
"""In the column `closed`: the card is not closed; a pod has all of it."""
_DIGITS: Final = re.compile(r"([0-9]{1,18})")
_MAKER: Final = re.compile(r"^nvidia[ -]+", re.IGNORECASE)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """The key of natural order: `n2` before `n10`."""
    return tuple(
        (1, int(part), part) if number % 2 else (0, 0, part)
        for number, part in enumerate(_DIGITS.split(name))
    )


def plain_model(model: str) -> str:
    """A card's model without the vendor, which only drivers put in front."""
    return _MAKER.sub("", model).replace(" ", "-")


class Catalogue:
    """Nodes of one service's books, by their index in the ledger.

    Attributes:
        kinds: vendor and model, by the number of a kind of card.
        models: by card and node the number of its kind, -1 without a card; shape (cards, nodes).
        order: indexes of all nodes in natural order of names.
        rank: the place of each node in that order; shape (nodes,).
        bare: whether a node is known and has no device; shape (nodes,).
        cordoned: whether it is cordoned; shape (nodes,).
        latest: number of changes at its last change; shape (nodes,).
    """

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._reset()

    def _reset(self) -> None:
        self._read = self._seen = 0
        self.kinds: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self.models: Ints = np.full((0, 0), -1, np.int64)
        self.order: Index = np.zeros(0, np.intp)
        self.rank: Ints = np.zeros(0, np.int64)
        self.bare: Bools = np.zeros(0, np.bool_)
        self.cordoned: Bools = np.zeros(0, np.bool_)
        self.latest: Ints = np.zeros(0, np.int64)
        self._texts: list[str] = []

    async def refresh(self, ledger: Ledger) -> None:
        """Take in changes since the last time; one call at a time."""
        known = ledger is self._ledger
        changed = ledger.node_changes.since(self._read) if known else None
        if changed is None:
            self._ledger = None
            self._reset()
            self._read = ledger.node_changes.count
            await self._take(list(ledger.index.values()), ledger)
            self._ledger = ledger
            self._sort(ledger)
        while (changed := ledger.node_changes.since(self._read)) is not None and changed.size:
            read = self._read + changed.size
            await self._take(distinct(changed).tolist(), ledger)
            self._read = read
            self._sort(ledger)
        self._grow(ledger)
        moved = ledger.changes.since(self._seen)
        self._seen = ledger.changes.count
        self.latest[slice(None) if moved is None else moved] = self._seen

    def known(self) -> Bools:
        """Whether each node exists; shape (nodes,)."""
        found = np.zeros(self.rank.shape, np.bool_)
        found[self.order] = True
        return found

    def found(self, text: str) -> Bools:
        """Nodes with this text, in lower case, in their name, a model or a UUID of a card."""
        found = np.zeros(self.rank.shape, np.bool_)
        found[[index for index, one in enumerate(self._texts) if text in one]] = True
        return found & self.known()

    def closed(self, ledger: Ledger) -> Bools:
        """Nodes that are cordoned or have a card closed by a fault or an operator."""
        found = self.cordoned.copy()
        for plane in ledger.planes.values():
            shut = ((plane.closed > 0) & (plane.closed != HELD)).any(axis=0)
            found[: shut.size] |= shut
        return found & self.known()

    def used(self, ledger: Ledger) -> Bools:
        """Nodes on which some pod holds a device."""
        found = np.zeros(self.rank.shape, np.bool_)
        for plane in ledger.planes.values():
            held = (plane.tenants > 0).any(axis=0)
            found[: held.size] |= held
        return found & self.known()

    def of_kind(self, vendor: str, model: str) -> Bools:
        """Nodes with a card of this vendor and model; an empty one stands for any."""
        wanted = [
            number
            for number, kind in enumerate(self.kinds)
            if vendor in ("", kind[0]) and model in ("", kind[1])
        ]
        return np.isin(self.models, wanted).any(axis=0) & self.known()

    async def _take(self, nodes: Sequence[int], ledger: Ledger) -> None:
        for number, index in enumerate(nodes, 1):
            self._grow(ledger)
            self._write(index, ledger)
            if not number % _PIECE:
                await asyncio.sleep(0)

    def _grow(self, ledger: Ledger) -> None:
        cards, nodes = ledger.planes[DeviceType.GPU].core_total.shape
        nodes = max(nodes, len(ledger.nodes))
        have = self.models.shape
        if cards <= have[0] and nodes <= have[1]:
            return
        models = np.full((cards, nodes), -1, np.int64)
        models[: have[0], : have[1]] = self.models
        self.models = models
        for name in ("rank", "bare", "cordoned", "latest"):
            old = getattr(self, name)
            new = np.zeros(nodes, old.dtype)
            new[: old.shape[0]] = old
            setattr(self, name, new)
        self._texts += [""] * (nodes - len(self._texts))

    def _write(self, index: int, ledger: Ledger) -> None:
        node = ledger.nodes[index]
        self.models[:, index] = -1
        self.bare[index] = node is not None and not node.devices
        self.cordoned[index] = node is not None and node.unschedulable
        self._texts[index] = ""
        if node is None:
            return
        words = {node.name: None}
        for row, device in enumerate(ledger.devices(DeviceType.GPU, index)):
            model = said(node, device, "model")
            kind = said(node, device, "vendor"), plain_model(model) or "unknown"
            number = self._numbers.setdefault(kind, len(self._numbers))
            if number == len(self.kinds):
                self.kinds.append(kind)
            self.models[row, index] = number
            words.update(dict.fromkeys((kind[1], model)))
        words.update(dict.fromkeys(device.uuid for device in node.devices))
        self._texts[index] = "\n".join(words).lower()

    def _sort(self, ledger: Ledger) -> None:
        self._grow(ledger)
        self.order = np.array(
            [ledger.index[name] for name in sorted(ledger.index, key=natural)], np.intp
        )
        self.rank[self.order] = np.arange(self.order.size)

"""Keeps slots free for big requests: which nodes would lose one, and which slots are short.

A slot of a reserve is room for one pod as large as its largest. Slots are short if fewer are left than the forecast
pods need, with some margin. Then placements that take one rank behind all others; a pod that fits nowhere else still
gets its place.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from partage.inventory.plane import Bools, Index, Ints
from partage.placement.tables import Prices

MIB: Final = 2**20
_MANY: Final = 2**20
MARGIN: Final = 3.0  # standard deviations of the number of pods to come


class Guard:
    """Slots of every reserve on every node.

    Attributes:
        supply: slots left in the cluster, by reserve.
        slots: slots by reserve and node; those of a node lie together.
        cards, cpu, memory: the size of one slot of each reserve; memory in bytes.
        allowed: by reserve and row of the prices' models, whether its cards are accepted.
        need: slots needed for each pod to come, by reserve.
        per_pod: compute that a pod takes on average, milli.
    """

    def __init__(self, prices: Prices, size: int) -> None:
        reserves = self.reserves = prices.reserves
        self.per_pod = max(prices.milli_per_pod, 1.0)
        self.cards = np.array([r.count for r in reserves], np.int64)
        self.cpu = np.array([r.cpu_milli for r in reserves], np.int64)
        self.memory = np.array([r.memory_mib for r in reserves], np.int64) * MIB
        self._least = np.array([r.least_cpu for r in reserves], np.int64)
        self.need = np.array([r.need for r in reserves], np.float64)
        self._bits = np.left_shift(1, np.arange(len(reserves), dtype=np.int64))
        # The last column is for models that are not in the prices.
        self.allowed: Bools = np.array(
            [
                [not r.count or not r.models or m in r.models for m in (*prices.models, None)]
                for r in reserves
            ],
            np.bool_,
        ).reshape(len(reserves), len(prices.models) + 1)
        self.slots: Ints = np.zeros((size, len(reserves)), np.int64).T
        self.supply: Ints = np.zeros(len(reserves), np.int64)

    def write(self, nodes: Index, cpu: Ints, memory: Ints, idle: Ints, model: Index) -> None:
        """Recount the slots of some nodes.

        Args:
            nodes: each once.
            cpu: CPU left, milli.
            memory: memory left, bytes.
            idle: untouched cards.
            model: row of the cards' model.
        """
        slots = self._counted(cpu, memory, idle, model)
        self.supply += slots.sum(axis=1) - self.slots[:, nodes].sum(axis=1)
        self.slots[:, nodes] = slots

    def flags(
        self,
        host: Mapping[str, int],
        count: int,
        nodes: Index,
        left: tuple[Ints, Ints, Ints, Index],
    ) -> Ints:
        """For each node, a bit for each reserve that loses a slot if the pod goes there.

        Args:
            left: the amounts that it would leave there, in the form of `write`.
        """
        lost = self._counted(*left) < self.slots[:, nodes]
        lost &= ~self.exempt(host, count)[:, None]
        result: Ints = (lost * self._bits[:, None]).sum(axis=0)
        return result

    def exempt(self, host: Mapping[str, int], count: int) -> Bools:
        """By reserve, whether a pod with such a request may take its slots."""
        same = np.where(self.cards > 0, count >= self.cards, count == 0)
        result: Bools = same & (host.get("cpu", 0) >= self._least)
        return result

    def tight(self, idle_milli: int) -> int:
        """A bit for each reserve that has fewer slots than it will need.

        Args:
            idle_milli: compute left in the cluster, which gives the number of pods to come.
        """
        wanted = self.need * (idle_milli / self.per_pod)
        short = (wanted > 0) & (self.supply <= wanted + MARGIN * np.sqrt(wanted))
        return int((short * self._bits).sum())

    def _counted(self, cpu: Ints, memory: Ints, idle: Ints, model: Index) -> Ints:
        slots: Ints = np.full((self.cards.size, cpu.size), _MANY, np.int64)
        for have, asked in ((idle, self.cards), (cpu, self.cpu), (memory, self.memory)):
            room = np.maximum(have, 0) // np.maximum(asked, 1)[:, None]
            np.minimum(slots, np.where(asked[:, None] > 0, room, _MANY), out=slots)
        slots[~self.allowed[:, model]] = 0
        return slots

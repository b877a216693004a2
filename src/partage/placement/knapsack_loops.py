"""The knapsack behind prices in compiled loops; see `placement.prices.knapsack`."""

import numpy as np
from numpy.typing import NDArray

from partage.inventory.plane import Ints
from partage.placement.jit import compiled

Floats = NDArray[np.float64]


@compiled
def knapsack_loops(size: Ints, gain: Floats, units: int, least: float) -> tuple[Floats, Ints]:
    """Best value of 0 to `units` hundredths for each row of gains, and the item taken last.

    Args:
        size: hundredths of each item, ascending.
        gain: (rows, items); below 0 for items that are never taken.
        units: hundredths of a card.
        least: the least advantage of an item over an unused hundredth.

    Returns:
        (units + 1, rows) values, and as many positions of items; -1 if a hundredth is unused.
    """
    rows, items = gain.shape
    best = np.zeros((units + 1, rows))
    last = np.full((units + 1, rows), -1, np.int64)
    mine = np.zeros(units + 1)
    for row in range(rows):
        for room in range(1, units + 1):
            top, found = -np.inf, -1
            for item in range(items):
                if size[item] > room:
                    break
                value = mine[room - size[item]] + gain[row, item]
                if value > top:
                    top, found = value, item
            mine[room] = mine[room - 1]
            if found >= 0 and top > mine[room] + least:
                mine[room] = top
                last[room, row] = found
        best[:, row] = mine
    return best, last

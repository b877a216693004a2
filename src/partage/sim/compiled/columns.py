"""The loops' input: columns in plain tuples, in a common order.

A named tuple would cost a microsecond a call.
"""

from typing import Final

from partage.inventory.plane import Bools, Floats, Index, Ints
from partage.model.policy import Strategy

STRATEGIES: Final = {
    Strategy.FIRST_FIT: 0,
    Strategy.BESTFIT: 1,
    Strategy.DOTPROD: 2,
    Strategy.GPUPACKING: 3,
    Strategy.GPUCLUSTERING: 4,
    Strategy.BINPACK: 5,
    Strategy.SPREAD: 6,
    Strategy.FGD: 7,
    Strategy.PARTAGE: 8,
}
"""The strategies that have loops, and their numbers."""

Cards = tuple[Bools, Ints, Ints, Ints, Ints, Ints]
"""Columns that decide what fits, by card and node: open, compute left, memory left and in total, slots left, tenants.
"""

Used = tuple[Bools, Ints, Ints, Ints, Ints, Ints]
"""Columns for how full a node is, by card and node: open, compute left and in total, memory left and in total, kind."""

Host = tuple[Ints, Ints, Ints, Ints]
"""By node: CPU left and in total, memory left and in total."""

Places = tuple[Bools, Bools, Ints, Ints]
"""By node: whether it exists and is in question, its preference, and its place in the order."""

Room = tuple[tuple[Ints, Ints, Ints, Ints], tuple[int, int, int, int]]
"""Ordinary resources: four columns, and the request of each."""

Asked = tuple[int, bool, bool, int, int, int, int, bool]
"""A plain request: cards (0 for none), whole, alone, compute, memory in bytes or else in thousandths of the card's, the
most sharers (-1 for no limit), whether it claims compute."""

Wanted = tuple[int, int, bool, int, int]
"""The amounts taken: cards, compute of each, whether they are taken entirely; CPU and memory."""

Found = tuple[Index, Bools]
"""Fitting nodes, from the first on, and the fitting cards of each."""

Counts = tuple[Ints, Ints, Ints, Ints, Floats]
"""A gauge's columns: `left` by card and node, `fit` and `small` by node and threshold, `total` and
`frag` by node."""

Shapes = tuple[Ints, Ints, Floats, Ints, Index, Bools, Ints, Floats, Floats]
"""A lens: CPU, cards, chance, thresholds, row, allowed, plain CPU and chance, points."""

Valued = tuple[Ints, Ints, Ints, Index, Floats, Floats]
"""A price gauge's columns: left by card and node, total, idle, model by card and node, sums by node
and pair, value."""

PriceTable = tuple[Floats, Floats, Floats, Floats, Floats]
"""Worth by model, hundredths and pair; price of a core and of a GiB by pair; scarcity by model;
bonus by idle cards."""

Guarded = tuple[Ints, Ints, Ints, Ints]
"""Reserves: cards, CPU and memory of one; and slots by node and reserve."""

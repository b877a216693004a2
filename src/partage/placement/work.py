"""Counted work: what a decision may cost, whatever a pod asks.

Work is counted in cards judged for one group, and in sets of cards compared; one unit is a few
microseconds (`bench/hostile.py` shows how many). A count never depends on a clock, so the same
question stops at the same place on every machine.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["MOST", "MOST_A_NODE", "Work"]

MOST: Final = 6_000
"""Units that one decision may take over all nodes, before only the most promising ones are tried."""

MOST_A_NODE: Final = 2_000
"""Units that the exact rule may take on one node."""


@dataclass(slots=True)
class Work:
    """Work that may be done, and how much of it is done.

    Attributes:
        limit: units that may be done.
        done: units that are done.
    """

    limit: int = MOST
    done: int = 0

    @property
    def spent(self) -> bool:
        """Whether nothing may be done any more."""
        return self.done >= self.limit

    def add(self, units: int = 1) -> None:
        """Count work that is done."""
        self.done += units

"""Counted work: it limits the cost of any decision.

One unit is one card judged for one group, or one set of cards compared. It takes a few microseconds (`bench/hostile.py`
measures it). A count never depends on a clock, so the same question stops at the same place on every machine.
"""

from typing import Final

MOST: Final = 6_000
"""Units that one decision may take over all nodes; then only the most promising nodes are tried.

A pod that finds no place then gets `SearchLimit`, and is tried again like any other when room appears.
"""

MOST_A_NODE: Final = 2_000
"""Units that the exact rule may take on one node."""

FEW: Final = 400
"""Units that are enough for ordinary pods: one or a few requests for devices, on any node."""


class Work:
    """The limit of work, and the work done.

    Attributes:
        limit: units that may be done.
        few: whether that is less than for a decision: enough for ordinary pods, without a search.
        done: units done, including remembered ones that count as if done again.
        recalled: the remembered units among them.
        aside: work that does not count against the limit: score updates, and sentences.
    """

    __slots__ = ("aside", "done", "few", "limit", "recalled")

    def __init__(self, limit: int = MOST) -> None:
        self.limit, self.few = limit, limit < MOST
        self.done = self.recalled = self.aside = 0

    @property
    def spent(self) -> bool:
        """Whether the limit is reached."""
        return self.done >= self.limit

    @property
    def taken(self) -> int:
        """The units really done."""
        return self.done - self.recalled + self.aside

    def include(self, part: "Work") -> None:
        """Add work that had its own limit."""
        self.done += part.done
        self.recalled += part.recalled

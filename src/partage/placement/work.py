"""Counted work: the limit on the cost of a decision, whatever a pod asks.

One unit is one card judged for one group, or one set of cards compared. It takes a few microseconds (`bench/hostile.py`
measures it). A count never depends on a clock, so the same question stops at the same place on every machine.
"""

from dataclasses import dataclass
from typing import Final

MOST: Final = 6_000
"""Units that one decision may take over all nodes, before only the most promising ones are tried.

A pod that finds none says `SearchLimit`, and is woken as any other when room appears.
"""

MOST_A_NODE: Final = 2_000
"""Units that the exact rule may take on one node."""

FEW: Final = 400
"""Units within which ordinary pods are decided: one or a few requests for devices, on any node."""


@dataclass(slots=True)
class Work:
    """Work that may be done, and how much of it is done.

    Attributes:
        limit: units that may be done.
        done: units that are done, those included that count as if they were done again.
        recalled: of these, what was remembered instead.
        aside: what was done beside, and does not count against the limit: scores brought up to date,
            and sentences.
    """

    limit: int = MOST
    done: int = 0
    recalled: int = 0
    aside: int = 0

    @property
    def spent(self) -> bool:
        """Whether nothing may be done any more."""
        return self.done >= self.limit

    @property
    def few(self) -> bool:
        """Whether less may be done than a decision is worth: enough for ordinary pods, without a search."""
        return self.limit < MOST

    @property
    def taken(self) -> int:
        """What it really took."""
        return self.done - self.recalled + self.aside

    def include(self, part: "Work") -> None:
        """Count what was done within bounds of its own."""
        self.done += part.done
        self.recalled += part.recalled

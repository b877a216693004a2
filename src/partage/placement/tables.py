"""What a strategy knows beyond the books: tables made from the mix of requests.

Tables are made off the decision path and enter the engine as an event, so that a replay with the
same events takes the same decisions.
"""

from dataclasses import dataclass

from partage.placement.fragmentation import Workload

__all__ = ["Tables"]


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of all strategies that need some; empty at the start.

    Attributes:
        version: counts the changes.
        workload: the usual requests, for `fgd`.
        seed: of the draws of `random`.
    """

    version: int = 0
    workload: Workload = Workload()
    seed: int = 0

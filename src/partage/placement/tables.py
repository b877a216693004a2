"""Tables that a strategy uses beside the books, made from the mix of requests.

They are made off the decision path and enter the engine as an event, so a replay with the same events takes the same
decisions.
"""

from dataclasses import dataclass

from partage.inventory.plane import Floats
from partage.model.policy import Strategy
from partage.placement.fragmentation import Workload

UNITS = 100
"""Steps in which a card's compute is counted: hundredths."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """A group of big requests that keeps slots free for itself.

    Attributes:
        count: cards that each asks; 0 for pods without cards.
        cpu_milli, memory_mib: the most that any of them asks.
        models: accepted card models, empty for any.
        need: slots needed for each pod to come.
        least_cpu: pods with as many cards and at least this CPU may take the slots.
    """

    count: int
    cpu_milli: int
    memory_mib: int
    models: tuple[str, ...]
    need: float
    least_cpu: int


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """The worth of remainders of cards, CPU and memory, learnt from a mix of requests.

    Attributes:
        models: card models, in the order of the rows of `worth` and `scarcity`.
        pairs: prices of CPU and memory considered together, milli a core and milli a GiB.
        worth: the worth in milli of `u` hundredths left on a card, by model, `u` and pair.
        scarcity: the demand for the model by requests that accept no other, up to 1.5.
        sets: (cards, share of demand) for requests of several cards.
        milli_per_pod: mean compute that a pod asks.
        reserves: those for big requests.
    """

    models: tuple[str, ...]
    pairs: Floats
    worth: Floats
    scarcity: Floats
    sets: tuple[tuple[int, float], ...] = ()
    milli_per_pod: float = 1.0
    reserves: tuple[Reserve, ...] = ()


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of all strategies that need some; empty at the start.

    Attributes:
        version: counts the changes.
        workload: the usual requests, for `fgd`.
        seed: of the draws of `random`.
        prices: for `partage`; None until they are learnt.
        expected: the usual requests of a small cluster, for `partage` without prices.
        stand_in: the fallback, which decides for `partage` if it has neither; None for its own first fit.
    """

    version: int = 0
    workload: Workload = Workload()
    seed: int = 0
    prices: Prices | None = None
    stand_in: Strategy | None = None
    expected: Workload = Workload()

    @property
    def chosen(self) -> str:
        """The decider for `partage`: `prices`, `capacity`, or the fallback strategy."""
        if self.prices is None and self.expected.shapes:
            return "capacity"
        return "prices" if self.prices else (self.stand_in or Strategy.FIRST_FIT).value

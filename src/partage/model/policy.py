"""How to choose among places that fit: one strategy between nodes, one between cards."""

from dataclasses import dataclass
from enum import StrEnum

from partage.model.errors import InvalidValue


class Strategy(StrEnum):
    """A strategy's name, the same at both levels."""

    BINPACK = "binpack"  # most used first
    SPREAD = "spread"  # least used first
    FIRST_FIT = "first-fit"  # first in order
    PARTAGE = "partage"  # the default: least loss of value
    RANDOM = "random"  # any place that fits, by a seeded draw
    BESTFIT = "bestfit"  # least compute and CPU left on the node
    DOTPROD = "dotprod"  # least product of the request and the free amounts
    GPUPACKING = "gpupacking"  # shared cards first, then used nodes, then idle ones
    GPUCLUSTERING = "gpuclustering"  # beside pods that ask for as many cards
    FGD = "fgd"  # least growth of capacity that usual requests cannot use

    @property
    def scores_cards(self) -> bool:
        """Whether the strategy scores cards one by one as it scores nodes."""
        return self in (Strategy.RANDOM, Strategy.FGD)


@dataclass(frozen=True, slots=True)
class CardWeights:
    """The weights of slots, compute and memory when cards are compared."""

    slot: int = 1
    core: int = 1
    memory: int = 1

    def __post_init__(self) -> None:
        if min(self.slot, self.core, self.memory) < 0:
            raise InvalidValue("scoring weights must not be negative")
        if self.slot + self.core + self.memory == 0:
            raise InvalidValue("at least one scoring weight must be above 0")


@dataclass(frozen=True, slots=True)
class CardOrder:
    """The order of one node's cards that a pod chooses itself.

    Attributes:
        strategy: between cards; None leaves it to the policy in force.
        by_numa: compare NUMA nodes before use.
        then_numa: compare NUMA nodes of cards that the strategy finds equal.
        by_links: choose the set of cards with the best links (and for one card the worst linked).
        weights: the weights of use; None for the default.
    """

    strategy: Strategy | None = None
    by_numa: bool = False
    then_numa: bool = False
    by_links: bool = False
    weights: CardWeights | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """Criteria of the protocol's own scheduler beyond compute and memory in use.

    Attributes:
        sharers: sharers count as use, as much as compute and as memory, of cards and of nodes.
        left: spread compares nodes by their free amounts, in cards; a large node may have more left than a less used
            small one.
        topology: a share prefers a PCIe switch and a NUMA node in use, so that idle ones stay whole.
    """

    sharers: bool = False
    left: bool = False
    topology: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy in force: a strategy between nodes and one between cards.

    Its name is `node/card`, or one word if both are the same.
    """

    node: Strategy = Strategy.PARTAGE
    card: Strategy = Strategy.PARTAGE

    @staticmethod
    def parse(name: str) -> "Policy":
        """The policy called `name`, in any case: `binpack`, or `spread/binpack` for nodes and cards separately.

        Raises `InvalidValue`: no such policy.
        """
        node, slash, card = name.lower().partition("/")
        try:
            return Policy(Strategy(node), Strategy(card if slash else node))
        except ValueError:
            known = ", ".join(Strategy)
            raise InvalidValue(
                f"no policy {name!r}; choose one of {known}, or NODE/CARD such as spread/binpack"
            ) from None

    def __str__(self) -> str:
        """The name that `parse` reads."""
        return self.node.value if self.node is self.card else f"{self.node}/{self.card}"

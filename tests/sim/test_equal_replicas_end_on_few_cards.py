"""The default policy packs a Deployment's replicas, though it learns from them alone."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from waves import CASES, Kind, fewest, orders, used


@pytest.mark.parametrize(
    ("kinds", "cards"),
    [
        pytest.param(((300, 10, 12),), 4, id="thirds"),
        pytest.param(((340, 10, 10),), 5, id="a-third-stays"),
        pytest.param(((300, 15, 10),), 5, id="memory-binds"),
        pytest.param(((0, 10, 16),), 4, id="memory-alone"),
        pytest.param(((500, 20, 6), (1000, 40, 4)), 7, id="beside-whole-cards"),
    ],
)
def test_replicas_end_on_the_fewest_cards(kinds: tuple[Kind, ...], cards: int) -> None:
    """Any order gives that; FGD that knew of them alone would take six cards for the first."""
    assert kinds in CASES
    assert fewest(kinds) == cards
    assert {used(kinds, order, "partage") for order in orders(kinds)} == {cards}


def test_the_fewest_cards_are_found_among_all_ways() -> None:
    """Filling card after card with the largest that fits would take four."""
    assert fewest(((400, 1, 2), (300, 1, 4), (500, 1, 2))) == 3
    assert fewest(((300, 1, 6), (400, 1, 6))) == 5
    assert fewest(((100, 18, 9),)) == 5

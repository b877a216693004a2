"""With prices, the place that loses least wins; then the fuller node; then the tighter card."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from fakes.builders import card, make_node, make_pod, share, whole
from partage.inventory.plane import Floats
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.policy import Strategy
from partage.model.reason import Refusal
from partage.placement.tables import UNITS, Prices, Reserve, Tables
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen, Placement, TablesChanged

LINEAR = 10.0 * np.arange(UNITS + 1)
HALVES = 500.0 * (np.arange(UNITS + 1) // 50)


def engine_of(
    free: Mapping[str, Sequence[int]], worth: Floats, reserves: tuple[Reserve, ...] = ()
) -> Engine:
    """Nodes with so many percent free on each card, and one table for all pairs."""
    engine = Engine()
    for name, percents in free.items():
        cards = [card(i, prefix=name, model="A") for i in range(len(percents))]
        engine.handle(NodeSeen(make_node(name, cards)))
        for minor, percent in enumerate(percents):
            if percent < 100:
                uid = f"{name}-{minor}"
                grant = Grant(
                    "c", DeviceType.GPU, minor, uid, 10 * (100 - percent), 1, GrantMode.SHARE
                )
                engine.ledger.apply(Allocation(uid, "d", uid, name, (grant,)))
    prices = Prices(
        ("A",), np.zeros((1, 2)), worth.reshape(1, -1, 1), np.zeros(1), (), 100.0, reserves
    )
    engine.handle(TablesChanged(Tables(prices=prices)))
    return engine


def place_of(engine: Engine, percent: int) -> tuple[str, int]:
    """Where a share goes."""
    found = engine.evaluate(make_pod("a", share(percent)))
    assert isinstance(found, Placement)
    return found.allocation.node, found.allocation.grants[0].minor


@pytest.mark.parametrize(
    ("free", "percent", "worth", "expected"),
    [
        pytest.param({"x": [50], "y": [80]}, 30, HALVES, ("y", 0), id="keeps-the-half"),
        pytest.param({"x": [100, 100], "y": [60, 50]}, 30, LINEAR, ("y", 1), id="fuller-node"),
        pytest.param({"x": [60, 40]}, 30, LINEAR, ("x", 1), id="tighter-card"),
        pytest.param({"x": [60, 50, 90]}, 30, HALVES, ("x", 2), id="best-card-within"),
        pytest.param({"x": [70], "y": [70]}, 30, LINEAR, ("x", 0), id="order-of-nodes"),
    ],
)
def test_a_share_goes_where_least_is_lost(
    free: Mapping[str, Sequence[int]], percent: int, worth: Floats, expected: tuple[str, int]
) -> None:
    """Percents free by node, what is asked, and the place."""
    assert place_of(engine_of(free, worth), percent) == expected


def test_a_slot_of_a_short_reserve_is_taken_last_but_taken() -> None:
    """A share avoids the only pair of idle cards, until nothing else has room."""
    pair = Reserve(2, 0, 0, (), 9.0, 0)
    free = {"x": [100, 100], "y": [100]}
    engine = engine_of(free, LINEAR, (pair,))

    assert place_of(engine_of({"x": [100, 100], "y": [100, 0, 100]}, LINEAR), 30)[0] == "x"
    assert place_of(engine, 30) == ("y", 0)
    assert isinstance(engine.schedule(make_pod("w", whole(2))), Placement)
    engine = engine_of({"x": [100, 100]}, LINEAR, (pair,))
    assert place_of(engine, 30)[0] == "x"


def test_too_much_is_refused_as_without_prices() -> None:
    """Prices never decide what fits."""
    engine = engine_of({"x": [50]}, LINEAR)

    assert isinstance(engine.evaluate(make_pod("a", share(60))), Refusal)


def test_another_strategy_stands_in_until_prices_are_learnt() -> None:
    """With a stand-in the tighter node wins; with prices, or without it, the first of equals."""
    free = {"x": [90], "y": [40]}
    engine = engine_of(free, LINEAR)
    engine.handle(TablesChanged(Tables(version=2)))
    assert place_of(engine, 30)[0] == "x"

    engine.handle(TablesChanged(Tables(version=3, stand_in=Strategy.BESTFIT)))
    assert place_of(engine, 30)[0] == "y"

    forties = 500.0 * (np.arange(UNITS + 1) >= 40)
    one = Prices(("A",), np.zeros((1, 2)), forties.reshape(1, -1, 1), np.zeros(1))
    engine.handle(TablesChanged(Tables(version=4, prices=one, stand_in=Strategy.BESTFIT)))
    assert place_of(engine, 30)[0] == "x"

"""Instances are placed exactly, inside what an operator permits, and as the plain twin says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.errors import InvalidValue
from partage.model.mig import Engines, MigAxis, MigProfile, MigSlice
from partage.placement.layouts import Allowed, Layouts, tabulate
from partage.vendors.mig import MIG_CARDS
from plain_instances import Plain

A100 = MIG_CARDS["A100-80GB"].axis
A30 = MIG_CARDS["A30-24GB"].axis
TABLES = tabulate(A100)
ODD = MigAxis(
    "odd",
    (
        MigProfile("one", 1, 1, (0, 1, 2, 3, 4), 10, 150, 5, Engines(copy=1)),
        MigProfile(
            "media",
            1,
            1,
            (0, 2, 4),
            10,
            150,
            1,
            Engines(copy=1, jpeg=1),
            attributes=frozenset({"media"}),
        ),  # type: ignore[arg-type]
        MigProfile("two", 2, 2, (0, 3), 20, 300, 2, Engines(copy=2)),
        MigProfile("three", 3, 3, (1, 2), 30, 500, 1, Engines(copy=4)),
        MigProfile("all", 5, 5, (0,), 50, 1000, 1, Engines(copy=6, jpeg=1)),
    ),
    apart=(("two", "three"),),
)
SEED = Allowed(
    geometries=(
        (("1g.10gb", 7),),
        (("2g.20gb", 3), ("1g.10gb", 1)),
        (("3g.40gb", 2),),
        (("7g.80gb", 1),),
    )
)


def _states(tables: Layouts, *cards: str) -> np.ndarray:
    """States from texts such as `1g.10gb@6 2g.20gb@0`."""
    rows = []
    for card in cards:
        parts = [part.split("@") for part in card.split()]
        rows.append(tables.state(tables.axis.profile(n).at(int(s)) for n, s in parts))
    return np.array(rows, np.int32)


def choose(
    tables: Layouts, states: np.ndarray, wish: tuple[str, ...]
) -> tuple[int, MigSlice] | None:
    """The best place for one instance on cards in these states, or None when no card has room."""
    found = tables.cheapest(states, tables.column(wish))
    return None if found is None else found[:2]


def _text(place: tuple[int, MigSlice]) -> str:
    card, one = place
    return f"{card}:{one.profile}@{one.start}"


@pytest.mark.parametrize(
    ("cards", "wish", "place"),
    [
        ([""], ("1g.10gb",), "0:1g.10gb@6"),
        ([""], ("3g.40gb",), "0:3g.40gb@4"),
        ([""], ("2g.20gb",), "0:2g.20gb@2"),
        (["", "1g.10gb@6"], ("2g.20gb",), "1:2g.20gb@4"),
        (["", "3g.40gb@4"], ("3g.40gb",), "1:3g.40gb@0"),
        (["1g.10gb@0", ""], ("7g.80gb",), "1:7g.80gb@0"),
        (["", ""], ("4g.40gb",), "0:4g.40gb@0"),
        (["1g.10gb@0"], ("4g.40gb",), None),
        (["4g.40gb@0"], ("4g.40gb", "3g.40gb"), "0:3g.40gb@4"),
        (["1g.10gb+me@6"], ("1g.10gb+me",), None),
    ],
)
def test_an_instance_goes_where_least_is_lost(
    cards: list[str], wish: tuple[str, ...], place: str | None
) -> None:
    """Used cards before idle ones, edges before the middle, a preferred profile before others."""
    found = choose(TABLES, _states(TABLES, *cards), wish)

    assert (None if found is None else _text(found)) == place


def test_without_cards_there_is_no_place() -> None:
    """The choice returns no place then."""
    assert choose(TABLES, np.zeros(0, np.int32), ("1g.10gb",)) is None


def test_an_allowlist_bounds_what_is_made() -> None:
    """Instances of other profiles may be there; none is made."""
    tables = tabulate(A100, Allowed(profiles=frozenset({"1g.10gb", "3g.40gb"})))
    states = _states(tables, "2g.20gb@0")

    assert choose(tables, states, ("2g.20gb",)) is None
    assert choose(tables, states, ("3g.40gb",)) is not None


@pytest.mark.parametrize(
    ("card", "wish", "place"),
    [
        ("", ("1g.10gb", "2g.20gb"), "0:1g.10gb@6"),
        ("2g.20gb@0", ("1g.10gb",), "0:1g.10gb@6"),
        ("2g.20gb@0 1g.10gb@6", ("1g.10gb",), None),
        ("1g.10gb@6", ("2g.20gb",), "0:2g.20gb@4"),
        ("1g.10gb@0", ("2g.20gb",), None),
        ("1g.10gb@0", ("1g.10gb",), "0:1g.10gb@6"),
        ("3g.40gb@4", ("2g.20gb", "3g.40gb"), "0:3g.40gb@0"),
        ("4g.40gb@0", ("3g.40gb",), None),
        ("", ("4g.40gb",), None),
    ],
)
def test_geometries_bound_the_layouts(card: str, wish: tuple[str, ...], place: str | None) -> None:
    """The first geometry that runs the wish and holds what is there, at its positions."""
    tables = tabulate(A100, SEED)
    found = choose(tables, _states(tables, card), wish)

    assert (None if found is None else _text(found)) == place


def test_a_busy_card_moves_to_another_geometry() -> None:
    """1g at 6 is part of seven 1g, and of three 2g and one 1g."""
    tables = tabulate(A100, SEED)
    state = tables.state([A100.profile("1g.10gb").at(6)])
    bit = tables.positions.index(A100.profile("2g.20gb").at(0))

    assert tables.geometry[0, tables.positions.index(A100.profile("1g.10gb").at(6))] == 0
    assert tables.geometry[state, bit] == 1


def test_states_follow_and_return() -> None:
    """An instance added and removed leads back."""
    one = A100.profile("2g.20gb").at(4)
    state = TABLES.state([one])

    assert TABLES.instances(state) == (one,)
    assert TABLES.without(state, one) == 0
    with pytest.raises(InvalidValue, match=r"no 2g\.20gb at 0"):
        TABLES.without(state, A100.profile("2g.20gb").at(0))


@pytest.mark.parametrize(
    ("instances", "part"),
    [
        ([MigSlice("1g.10gb", 0, 1), MigSlice("2g.20gb", 0, 2)], "both take unit 0"),
        ([MigSlice("9g", 0, 1)], "no MIG profile '9g'"),
        ([MigSlice("1g.10gb", 7, 1)], "from unit 7"),
        ([MigSlice("1g.10gb", 6, 1)] * 2, "both take unit 6"),
    ],
    ids=["overlap", "unknown", "start", "twice"],
)
def test_what_is_no_layout_has_no_state(instances: list[MigSlice], part: str) -> None:
    """The rule that is broken is named."""
    with pytest.raises(InvalidValue, match=part):
        TABLES.state(instances)


@pytest.mark.parametrize(
    "allowed",
    [Allowed(profiles=frozenset({"1g"})), Allowed(geometries=((("1g", 7),),))],
    ids=["allowlist", "geometry"],
)
def test_unknown_profiles_in_a_configuration_are_named(allowed: Allowed) -> None:
    """The message lists the model's profiles."""
    with pytest.raises(InvalidValue, match=r"no MIG profile '1g'; it has 1g\.10gb"):
        tabulate(A100, allowed)


def test_a_card_whose_positions_nobody_knows_takes_nothing() -> None:
    """Without positions there is one state, and no place."""
    tables = tabulate(MIG_CARDS["RTX-PRO-5000-Blackwell-48GB"].axis)

    assert choose(tables, np.zeros(3, np.int32), ("1g.24gb",)) is None


def test_tables_have_an_end() -> None:
    """More positions or layouts than tables can hold are refused by name, not computed for ever."""
    many = tuple(MigProfile(f"{n}", 1, 1, tuple(range(9)), 1, 1, 9) for n in range(8))

    with pytest.raises(InvalidValue, match="72 positions; 64 at most"):
        tabulate(MigAxis("many", many))
    with pytest.raises(InvalidValue, match="more than 50000 layouts"):
        tabulate(MigAxis("many", many[:5]))


# --- the twin ------------------------------------------------------------------------------------

CONFIGURATIONS = {
    "any": (ODD, Allowed()),
    "list": (ODD, Allowed(profiles=frozenset({"one", "media", "three"}))),
    "media": (ODD, Allowed(profiles=frozenset({"media"}))),
    "table": (ODD, Allowed(geometries=((("one", 3), ("two", 1)), (("one", 2), ("three", 1))))),
    "both": (ODD, Allowed(frozenset({"one"}), ((("two", 2), ("one", 1)), (("one", 5),)))),
    "a30": (A30, Allowed()),
}
TWINS = {name: (tabulate(*made), Plain(*made)) for name, made in CONFIGURATIONS.items()}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_worth_is_what_the_twin_says(name: str) -> None:
    """Every state's worth and every permitted position, by both."""
    tables, plain = TWINS[name]
    for state in range(len(tables.masks)):
        card = frozenset(tables.instances(state))
        assert int(tables.worth[state]) == plain.worth(card)
        for bit, one in enumerate(tables.positions):
            number = plain.geometry(card, one)
            assert int(tables.geometry[state, bit]) == (-1 if number is None else number)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_decisions_are_what_the_twin_says(data: st.DataObject) -> None:
    """Card and position agree for any cards and any wish."""
    tables, plain = TWINS[data.draw(st.sampled_from(sorted(TWINS)))]
    states = data.draw(st.lists(st.integers(0, len(tables.masks) - 1), min_size=1, max_size=6))
    names = [p.name for p in tables.axis.profiles]
    wish = tuple(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))

    found = choose(tables, np.array(states, np.int32), wish)

    expected = plain.choose([frozenset(tables.instances(state)) for state in states], wish)
    assert found == expected

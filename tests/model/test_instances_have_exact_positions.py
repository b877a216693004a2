"""Layouts are counted as published, and what cannot exist is refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.errors import InvalidValue
from partage.model.mig import Engines, MigAxis, MigProfile, MigSlice, layouts
from plain_instances import maximal_layouts

SMALL = MigAxis(
    "small",
    (
        MigProfile("one", 1, 1, (0, 1, 2), 10, 250, 3, Engines(copy=1)),
        MigProfile("media", 1, 1, (0, 1, 2), 10, 250, 1, Engines(copy=1, jpeg=1)),
        MigProfile("two", 2, 2, (0, 2), 20, 500, 2, Engines(copy=2)),
        MigProfile("all", 4, 4, (0,), 40, 1000, 1, Engines(copy=4, jpeg=1)),
    ),
)


def test_the_axis_is_as_long_as_its_widest_instance_reaches() -> None:
    """Length and engines follow from the profiles."""
    assert SMALL.length == 4
    assert SMALL.engines == Engines(copy=4, jpeg=1)


def test_an_axis_without_positions_has_no_length() -> None:
    """A model without published positions can be described, but not cut."""
    axis = MigAxis("unknown", (MigProfile("one", 1, 1, (), 0, 500, 2),))

    assert axis.length == 0
    assert axis.engines is None
    assert not list(layouts(axis))


@pytest.mark.parametrize(
    ("instances", "part"),
    [
        (["one", 0, 1, "one", 1, 1], ""),
        (["one", 1, 1, "two", 0, 2], "both take unit 1"),
        (["one", 3, 1], "cannot take 1 units from unit 3"),
        (["two", 0, 1], "cannot take 1 units from unit 0"),
        (["seven", 0, 1], "no MIG profile 'seven'"),
        (["media", 0, 1, "media", 1, 1], "2 instances of media"),
    ],
    ids=["valid", "overlap", "start", "size", "unknown", "count"],
)
def test_a_set_of_instances_is_judged(instances: list[object], part: str) -> None:
    """The first rule broken is named; a layout has no fault."""
    chosen = [
        MigSlice(str(instances[i]), int(str(instances[i + 1])), int(str(instances[i + 2])))
        for i in range(0, len(instances), 3)
    ]
    fault = SMALL.fault(chosen)

    assert (part in fault) if part else not fault


def test_engines_are_a_second_constraint() -> None:
    """Disjoint instances that want more engines than the card has are no layout."""
    greedy = MigProfile("greedy", 1, 1, (0, 1, 2), 10, 250, 3, Engines(copy=3))
    axis = MigAxis("small", (*SMALL.profiles, greedy))

    assert "copy" in axis.fault([greedy.at(0), greedy.at(1)])
    assert axis.valid([greedy.at(0), axis.profile("one").at(1)])


def test_profiles_may_have_to_stay_apart() -> None:
    """Some drivers refuse two profiles on one card although they would fit."""
    axis = MigAxis("old", SMALL.profiles, apart=(("one", "two"),))

    assert "cannot be on one card" in axis.fault([MigSlice("one", 0, 1), MigSlice("two", 2, 2)])
    assert axis.valid([MigSlice("two", 0, 2), MigSlice("two", 2, 2)])


def test_a_profile_knows_its_positions() -> None:
    """An instance has the size of its profile; a start that is not legal is refused."""
    assert SMALL.profile("two").at(2) == MigSlice("two", 2, 2)
    with pytest.raises(InvalidValue, match="only at 0 or 2"):
        SMALL.profile("two").at(1)


def test_an_unknown_profile_is_answered_with_those_there_are() -> None:
    """The message lists the model's profiles."""
    with pytest.raises(InvalidValue, match="it has one, media, two, all"):
        SMALL.profile("three")


@pytest.mark.parametrize(
    "profile",
    [
        {"name": "", "size": 1, "starts": (0,), "count": 1},
        {"name": "x", "size": 0, "starts": (0,), "count": 1},
        {"name": "x", "size": 1, "starts": (1, 0), "count": 1},
        {"name": "x", "size": 1, "starts": (-1,), "count": 1},
        {"name": "x", "size": 1, "starts": (0,), "count": 0},
    ],
    ids=["name", "size", "order", "negative", "count"],
)
def test_impossible_profiles_are_refused(profile: dict[str, object]) -> None:
    """A profile has a name, a size, and ascending starts."""
    with pytest.raises(InvalidValue):
        MigProfile(compute=1, memory_bytes=0, core_milli=1, **profile)  # type: ignore[arg-type]


def test_a_name_is_listed_once() -> None:
    """Two profiles of one name make records ambiguous."""
    with pytest.raises(InvalidValue, match="one is listed 2 times"):
        MigAxis("twice", (SMALL.profiles[0], SMALL.profiles[0]))


@given(st.sets(st.sampled_from(SMALL.positions)))
def test_layouts_are_exactly_the_valid_sets(chosen: set[MigSlice]) -> None:
    """A non-empty set of instances is listed if and only if it has no fault."""
    listed = {frozenset(found) for found in layouts(SMALL)}

    assert (frozenset(chosen) in listed) == (bool(chosen) and SMALL.valid(chosen))


def test_maximal_layouts_cannot_grow() -> None:
    """Each maximal layout is valid, and every layout is part of one."""
    whole = [frozenset(found) for found in maximal_layouts(SMALL)]

    assert all(any(set(found) <= one for one in whole) for found in layouts(SMALL))
    assert not any(one < other for one in whole for other in whole)

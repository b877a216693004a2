"""What is worked out once for a plain share, and divided only where it may matter, is what the rules say of each card."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fakes.builders import card as device
from fakes.builders import make_node, share, whole
from partage.inventory.card import CEILING, Card
from partage.model.device import DeviceType, VirtualFunction
from partage.model.policy import CardOrder, Strategy
from partage.model.reason import ReasonCode
from partage.model.request import DeviceRequest, PodRequest
from partage.model.selector import Requirement, Selector
from partage.placement.card import Work, accepted, bare_amounts, refusal
from partage.placement.order import left, ordered
from partage.placement.picks import Picker
from partage.placement.sums import _at_most

AMOUNTS = st.integers(0, 2000)
REQUESTS = st.builds(
    lambda base, sharers, registrar, claims: replace(
        base, sharers=sharers, registrar=registrar, claims_core=claims
    ),
    st.sampled_from(
        (
            share(20, 4),
            share(100, 16),
            share(1, 1),
            share(0, 4),
            share(30, ratio=25),
            share(20, 4, unused=True),
            share(20, 4, exclusive=True),
            whole(),
        )
    ),
    st.none() | st.integers(1, 4),
    st.sampled_from(("", "hami", "qgpu")),
    st.booleans(),
)
CARDS = st.lists(
    st.builds(
        lambda core, memory, slots, tenants, closed, registrar, size: (
            core,
            memory,
            slots,
            tenants,
            closed,
            registrar,
            size,
        ),
        st.integers(-100, 1000),
        st.integers(-1, 16),
        st.integers(-1, 5),
        st.integers(0, 5),
        st.sampled_from((None, None, None, ReasonCode.UNHEALTHY, ReasonCode.CARD_NOT_IDLE)),
        st.sampled_from(("", "hami")),
        st.sampled_from((0, 8, 16)),
    ),
    min_size=1,
    max_size=6,
)


def cards_of(given_: list[tuple[int, int, int, int, ReasonCode | None, str, int]]) -> list[Card]:
    """Cards with so much left."""
    return [
        Card(
            replace(device(row, memory=size), registrar=registrar),
            row,
            core,
            memory * 2**30,
            slots,
            tenants,
            closed,
        )
        for row, (core, memory, slots, tenants, closed, registrar, size) in enumerate(given_)
    ]


@given(REQUESTS, CARDS)
def test_a_search_takes_the_cards_that_the_rule_does_not_refuse(
    request_: DeviceRequest,
    given_: list[tuple[int, int, int, int, ReasonCode | None, str, int]],
) -> None:
    """Card by card, the same cards in the same order."""
    cards = cards_of(given_)
    picker = Picker(
        make_node(), {DeviceType.GPU: cards}, PodRequest(), Strategy.PARTAGE, None, Work()
    )

    found = picker._serving(request_, "test")

    assert found == [one for one in cards if refusal(one, request_, "test") is None]
    assert picker._serving(request_, "test") == found


@given(REQUESTS, CARDS)
def test_cards_come_in_the_same_order(
    request_: DeviceRequest,
    given_: list[tuple[int, int, int, int, ReasonCode | None, str, int]],
) -> None:
    """They are ordered by what the request leaves of them, then by their minors."""
    cards = cards_of(given_)
    if bare_amounts(request_) is None:
        return

    found = ordered(cards, request_, CardOrder(), Strategy.PARTAGE)

    assert found == sorted(cards, key=lambda one: (left(one, request_), one.device.minor))


@given(
    st.lists(st.tuples(st.integers(0, 64), st.integers(0, CEILING)), min_size=4, max_size=4),
    st.integers(0, CEILING + 1) | st.lists(st.integers(0, CEILING), min_size=2, max_size=2),
    st.sampled_from((64, 5000)),
)
def test_what_goes_into_what_is_left_is_divided_alike(
    cells: list[tuple[int, int]], least: int | list[int], groups: int
) -> None:
    """Amounts may be of any size, one for all nodes or one for each."""
    serves, free = (np.array(one, np.int64).reshape(2, 2) for one in zip(*cells, strict=True))
    asked = least if isinstance(least, int) else np.array(least, np.int64)

    found = _at_most(serves.copy(), free, asked, groups)

    for row in range(2):
        for column in range(2):
            each = least if isinstance(least, int) else least[column]
            goes = int(free[row, column]) // each if each else 64
            assert found[row, column] == min(int(serves[row, column]), goes)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_functions_of_one_group_are_judged_alike(listed: list[tuple[int, bool]]) -> None:
    """The answer is as if each were asked about; a selector is asked once in one group's row."""
    groups = [{"type": f"g{number}"} for number in range(4)]
    functions = [
        VirtualFunction(place, f"bus-{place}", dict(groups[group]) if apart else groups[group])
        for place, (group, apart) in enumerate(listed)
    ]
    asked: list[object] = []

    class Counted(Selector):
        """A selector that counts."""

        def matches(self, labels: Mapping[str, str]) -> bool:
            """As any, and noted."""
            asked.append(labels)
            return Selector.matches(self, labels)

    for wanted in ("g0", "g3"):
        asked.clear()
        selector = Counted((Requirement("type", "In", (wanted,)),))
        found = [*accepted(functions, selector)]
        assert found == [one for one in functions if one.labels["type"] == wanted]
        rows = sum(one.labels != before.labels for before, one in pairwise(functions))
        assert len(asked) == rows + bool(functions)

"""Kubernetes' allocator takes the first device that fits, in the order of slices: so that order is the packing."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim_documents import AXIS, GIB, card, node
from partage.agent.discovery.found import Inventory
from partage.agent.dra.ordering import arranged, rooms
from partage.agent.dra.slices import Offered, resource_slices
from partage.agent.dra.withdrawn import left_for_claims
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.mig import MigSlice
from partage.model.node import Node


class Allocating:
    """A node's slices beside an allocator that takes the first device that fits.

    Attributes:
        late: allocations that the agent has not heard of when it publishes.
    """

    def __init__(self, *cards: Device, late: int = 0) -> None:
        self.node, self.late = node("n1", *cards), late
        self.order: list[int] = []
        self.held: list[Grant] = []

    def left(self, late: int = 0) -> Node:
        """The node less what is held."""
        known = self.held[: max(len(self.held) - late, 0)]
        return left_for_claims(
            self.node,
            [Allocation(f"u{n}", "ns", f"c{n}", "n1", (one,)) for n, one in enumerate(known)],
        )

    def devices(self) -> Iterator[dict[str, Any]]:
        """What is published, as an allocator comes upon it."""
        self.order = arranged(self.order, rooms(self.node, self.left(self.late)))
        found = resource_slices(
            self.node, Inventory(), "u", 1, Offered(instances=True), self.order
        )
        for part in sorted(found, key=lambda one: str(one["metadata"]["name"])):
            yield from part["spec"].get("devices", ())

    def share(self, gib: int) -> int | None:
        """A share of so much memory and as much compute; the number of its card."""
        there = {one.minor: one for one in self.left().devices if not one.doubt}
        for one in self.devices():
            minor = int(one["attributes"]["index"]["int"])
            card_ = next(each for each in self.node.devices if each.minor == minor)
            core = 1000 * gib * GIB // card_.memory_bytes
            if (
                "cores" not in one["capacity"]
                or minor not in there
                or there[minor].memory_bytes < gib * GIB
                or there[minor].core_milli < core
            ):
                continue
            self.held.append(grant(minor, core, gib * GIB, GrantMode.SHARE))
            return minor
        return None

    def instance(self, profile: str) -> tuple[int, int] | None:
        """An instance of a profile; the number of its card, and where it starts."""
        for one in self.devices():
            told = one["attributes"]
            if told.get("profile", {}).get("string") != profile:
                continue
            minor, start = told["index"]["int"], told["start"]["int"]
            place = AXIS.profile(profile).at(start)
            mates = [each.mig for each in self.held if each.minor == minor and each.mig]
            if place not in mates and AXIS.valid((*mates, place)):
                self.held.append(grant(minor, 250, 10 * GIB, GrantMode.MIG, place))
                return minor, start
        return None


def grant(
    minor: int, core: int, memory: int, mode: GrantMode, place: MigSlice | None = None
) -> Grant:
    """What a claim holds."""
    return Grant("0", DeviceType.GPU, minor, f"GPU-{minor}", core, memory, mode, mig=place)


def big(*sizes: int) -> list[Device]:
    """Cards of so many GiB."""
    return [card(n, memory=size * GIB) for n, size in enumerate(sizes)]


def test_shares_go_where_the_least_is_left() -> None:
    """Two cards of 80Gi hold 20, 70, 10 and 60Gi, in this order too."""
    cards = Allocating(*big(80, 80))
    assert [cards.share(size) for size in (20, 70, 10, 60)] == [0, 1, 1, 0]


def test_in_the_order_of_their_numbers_the_last_would_be_refused() -> None:
    """What the allocator does where the agent is late by every claim."""
    cards = Allocating(*big(80, 80), late=9)
    assert [cards.share(size) for size in (20, 70, 10, 60)] == [0, 1, 0, None]


@pytest.mark.parametrize("sizes", [(80, 40), (40, 80)])
def test_of_idle_cards_the_one_with_the_least_memory_goes_first(sizes: tuple[int, int]) -> None:
    """The larger one stays free for a request that needs it, and such a request gets it."""
    cards = Allocating(*big(*sizes))
    assert cards.share(10) == sizes.index(40)
    assert cards.share(60) == sizes.index(80)


def test_instances_go_to_the_card_in_use_from_its_end() -> None:
    """The low units stay together, and idle cards stay whole."""
    cards = Allocating(*(card(n, mode=SliceMode.MIG) for n in range(3)))
    cards.held.append(grant(1, 250, 10 * GIB, GrantMode.MIG, AXIS.profile("1g.10gb").at(3)))
    assert cards.instance("1g.10gb") == (1, 2)
    assert cards.instance("2g.20gb") == (1, 0)
    assert cards.instance("1g.10gb") == (0, 3)
    assert cards.instance("2g.20gb") == (0, 0)
    assert cards.instance("2g.20gb") == (2, 2)


@given(
    st.lists(st.integers(0, 4), max_size=5),
    st.dictionaries(st.integers(0, 4), st.tuples(st.booleans(), st.integers(0, 3)), max_size=5),
)
def test_no_card_moves_without_need(before: list[int], left: dict[int, tuple[bool, int]]) -> None:
    """All cards, each once, the least room first; an order that is as good stays as it is."""
    found = arranged(before, left)
    assert sorted(found) == sorted(left)
    assert [left[minor] for minor in found] == sorted(left.values())
    assert arranged(found, left) == found
    known = [minor for minor in dict.fromkeys(before) if minor in left]
    if [left[minor] for minor in known] == sorted(left.values()):
        assert found == known


def test_what_takes_nobody_has_no_room() -> None:
    """An ill, closed or cordoned card is no idle one, and neither is one whose holders are unknown."""
    there = node("n1", card(0))
    assert rooms(there, left_for_claims(there, [])) == {0: (True, 40 * GIB)}
    assert rooms(there, left_for_claims(there, None)) == {0: (False, 0)}

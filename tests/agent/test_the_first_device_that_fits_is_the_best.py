"""Kubernetes' allocator takes the first device that fits, in the order of slices: so that order is the packing."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim_documents import AXIS, GIB, card, node
from partage.agent.discovery.found import Inventory
from partage.agent.dra.ordering import Room, arranged, rooms
from partage.agent.dra.slices import Offered, resource_slices
from partage.agent.dra.withdrawn import left_for_claims
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType, SliceMode
from partage.model.mig import MigSlice, in_order, layouts
from partage.model.node import Node
from partage.wire.claims import instance_name, share_name


class Allocating:
    """A node's slices beside an allocator that takes the first device that fits.

    Attributes:
        late: allocations that the agent has not heard of when it publishes.
    """

    def __init__(self, *cards: Device, late: int = 0) -> None:
        self.node, self.late = node("n1", *cards), late
        self.order: list[str] = []
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


def test_each_profile_has_its_own_best_card() -> None:
    """The fuller card has the only place of a large instance; a small one goes where nothing large is lost."""
    cards = Allocating(*(card(n, mode=SliceMode.MIG) for n in range(2)))
    small = AXIS.profile("1g.10gb")
    cards.held += [
        grant(0, 500, 20 * GIB, GrantMode.MIG, AXIS.profile("2g.20gb").at(2)),
        grant(1, 250, 10 * GIB, GrantMode.MIG, small.at(2)),
    ]
    assert cards.instance("1g.10gb") == (1, 3)
    assert cards.instance("2g.20gb") == (0, 0)
    assert cards.instance("2g.20gb") == (1, 0)


def test_a_claim_by_memory_gets_the_smallest_instance() -> None:
    """The allocator takes the first one with as much memory."""
    cards = Allocating(*(card(n, mode=SliceMode.MIG) for n in range(2)))
    cards.held.append(grant(1, 250, 10 * GIB, GrantMode.MIG, AXIS.profile("2g.20gb").at(2)))
    sizes = [
        AXIS.profile(one["attributes"]["profile"]["string"]).size
        for one in cards.devices()
        if "profile" in one["attributes"]
    ]
    assert sizes == sorted(sizes)


ROOMS = st.builds(
    lambda amount, made: Room(not made, amount, AXIS, made),
    st.integers(0, 3),
    st.sampled_from([(), *map(in_order, layouts(AXIS))]) | st.none(),
)


@given(st.data(), st.dictionaries(st.integers(0, 4), ROOMS, max_size=5))
def test_no_share_moves_without_need(data: st.DataObject, left: dict[int, Room]) -> None:
    """All cards, each once, the least room first; equally good ones keep their order. Beside instances no share fits."""
    rank = {
        share_name(minor): (room.idle, 0 if room.made else room.amount)
        for minor, room in sorted(left.items())
    }
    before = data.draw(st.permutations(list(rank)))[: data.draw(st.integers(0, 5))]
    found = [name for name in arranged(before, left) if name in rank]
    assert found == sorted(dict.fromkeys([*before, *rank]), key=rank.__getitem__)


@given(st.data(), st.dictionaries(st.integers(0, 4), ROOMS, max_size=5))
def test_instances_move_only_where_another_is_better(
    data: st.DataObject, left: dict[int, Room]
) -> None:
    """For each profile the first place with room, in use before idle, costs its card the fewest complete layouts."""
    plain = {"1g.10gb+me": "1g.10gb", "1g.10gb-me": "1g.10gb"}
    every = [frozenset(one) for one in layouts(AXIS, ["1g.10gb", "2g.20gb"])]
    complete = [one for one in every if not any(one < other for other in every)]
    places = {
        instance_name(minor, one): (room, one)
        for minor, room in left.items()
        for one in AXIS.positions
    }

    def cost(name: str) -> tuple[bool, int]:
        room, one = places[name]
        made = [
            replace(each, profile=plain.get(each.profile, each.profile))
            for each in (*(room.made or ()), one)
        ]
        kept = [sum(each >= set(those) for each in complete) for those in (made[:-1], made)]
        return room.idle, kept[0] - kept[1]

    def firsts(order: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in order:
            room, one = places.get(name, (Room(False, 0), None))
            if one is not None and room.made is not None and AXIS.valid((*room.made, one)):
                found.setdefault(one.profile, name)
        return found

    before = data.draw(st.permutations(sorted(places)))
    found = arranged(before, left)
    assert sorted(found) == sorted([*places, *map(share_name, left)])
    assert arranged(found, left) == found
    after = firsts(found)
    for profile, was in firsts(list(before)).items():
        fitting = [
            name
            for name, (room, one) in places.items()
            if one.profile == profile and room.made is not None and AXIS.valid((*room.made, one))
        ]
        best = min(map(cost, fitting))
        assert cost(after[profile]) == best
        if cost(was) == best:
            assert after[profile] == was


def test_what_takes_nobody_has_no_room() -> None:
    """An ill, closed or cordoned card is no idle one, and neither is one whose holders are unknown."""
    there = node("n1", card(0))
    assert rooms(there, left_for_claims(there, [])) == {0: Room(True, 40 * GIB)}
    assert rooms(there, left_for_claims(there, None)) == {0: Room(False, 0)}

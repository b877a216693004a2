"""What a record is to say of shares that change: more only where it is reserved, less only as far as the node reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.builders import GIB, card, make_node, make_pod, share
from partage.model.adjustment import Grants, most, within
from partage.model.allocation import Grant, GrantMode, charges_of
from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.scheduler.adjustment import more, recorded, short
from partage.scheduler.engine import Engine
from partage.scheduler.events import BindSucceeded, NodeSeen, Placement, RoomKept
from partage.vendors import names
from partage.wire.adjustment import asked, read_changes

CARDS = st.sampled_from(
    [("main", 0, "GPU-0"), ("main", 1, "GPU-1"), ("side", 0, "GPU-0"), ("side", 1, "GPU-1")]
)
PLACES = st.lists(CARDS, min_size=1, max_size=4, unique=True)
AMOUNT = st.tuples(st.integers(1, 1000), st.integers(1, 16))


def grants_at(places: list[tuple[str, int, str]], amounts: list[tuple[int, int]]) -> Grants:
    """A share at each place, of so much compute and so many GiB."""
    return tuple(
        Grant(who, DeviceType.GPU, minor, uuid, core, memory * GIB, GrantMode.SHARE)
        for (who, minor, uuid), (core, memory) in zip(places, amounts, strict=True)
    )


@st.composite
def three(draw: st.DrawFn) -> tuple[Grants, Grants, Grants]:
    """What a record says, what is asked, and what the node reported, of the same places."""
    places = draw(PLACES)
    lists = [draw(st.lists(AMOUNT, min_size=len(places), max_size=len(places))) for _ in range(3)]
    held, wanted, report = (grants_at(places, one) for one in lists)
    return held, wanted, report


@given(three())
def test_a_record_never_falls_below_what_the_node_may_still_enforce(
    sets: tuple[Grants, Grants, Grants],
) -> None:
    """It also always has what is asked."""
    held, wanted, report = sets

    for told in (None, report):
        said = recorded(held, wanted, told)
        enforced = told if told is not None and within(told, held) else held
        assert within(wanted, said)
        assert within(enforced, said)
        assert within(said, most(wanted, enforced))


@given(three())
def test_what_is_reserved_more_makes_up_the_difference_of_every_card(
    sets: tuple[Grants, Grants, Grants],
) -> None:
    """Card by card, over all containers; a card that is lowered adds nothing."""
    held, wanted, _ = sets

    extra = {one.uuid: one for one in more(held, wanted)}
    before = {one.uuid: one for one in charges_of(held)}
    for charge in charges_of(wanted):
        one, had = extra.get(charge.uuid), before[charge.uuid]
        assert (one.core_milli if one else 0) == max(0, charge.core_milli - had.core_milli)
        assert (one.memory_bytes if one else 0) == max(0, charge.memory_bytes - had.memory_bytes)
    assert all(one.slots == 0 for one in extra.values())


def test_room_is_what_others_left_of_the_very_card() -> None:
    """Another card of the node with more room does not count; an unknown node or card has none."""
    engine = Engine()
    engine.handle(NodeSeen(make_node(devices=[card(0)])))
    for name in ("a", "b"):
        decision = engine.schedule(make_pod(name, share(40, 1)))
        assert isinstance(decision, Placement)
        engine.handle(BindSucceeded(decision.allocation.uid))
        mine = decision.allocation.grants
    held = mine
    raised = tuple(replace(one, core_milli=600) for one in held)
    beyond = tuple(replace(one, core_milli=601) for one in held)

    assert short(engine.ledger, "node-1", more(held, raised)) == ""
    assert "card 0: 20.1 % and 0 MiB more asked, 20 % and" in short(
        engine.ledger, "node-1", more(held, beyond)
    )
    engine.handle(RoomKept(make_pod("a-more"), "node-1", more(held, raised)))
    assert "20 % and 0 MiB more asked, 0 % and" in short(
        engine.ledger, "node-1", more(held, raised)
    )
    assert short(engine.ledger, "away", more(held, raised)) == "node away is not known"
    elsewhere = tuple(replace(one, uuid="GPU-9") for one in more(held, raised))
    assert short(engine.ledger, "node-1", elsewhere) == "card 0 is not there"


ODD = st.text(alphabet="computemry=/,0123456789.GiMkn- é٣", max_size=60)
AMOUNTS = st.integers(-1, 110).map("compute={}".format) | st.builds(
    "memory={}{}".format, st.integers(0, 1100), st.sampled_from(("Mi", "Gi", "Ti", "M", ""))
)
PARTS = st.builds("{}{}".format, st.sampled_from(("", "main/", " side/")), AMOUNTS)


@given(ODD | st.lists(PARTS, min_size=1, max_size=2).map(",".join))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    """No other error, and nothing beyond a whole card."""
    try:
        changes, why = read_changes(text), ""
    except InvalidValue as error:
        changes, why = (), str(error)
    assert changes or why.startswith(f"annotation {names.ADJUST}: ")
    assert all(0 <= one.core_milli <= 1000 and one.memory_bytes >= 0 for one in changes)


@pytest.mark.parametrize(
    ("mode", "core", "memory", "why"),
    [
        (GrantMode.WHOLE, 1000, GIB, "has no share of a card"),
        (GrantMode.SHARE, 0, GIB, "no amount of compute"),
        (GrantMode.SHARE, 100, 0, "no amount of memory"),
    ],
)
def test_amounts_that_a_grant_has_not_cannot_be_asked(
    mode: GrantMode, core: int, memory: int, why: str
) -> None:
    """The sentence names what is missing."""
    grant = Grant("main", DeviceType.GPU, 0, "GPU-0", core, memory, mode)

    with pytest.raises(InvalidValue, match=why):
        asked("compute=50,memory=2Gi", (grant,))
    assert (
        asked(
            "side/memory=2Gi",
            (grant, replace(grant, container="side", mode=GrantMode.SHARE, memory_bytes=GIB)),
        )[1].memory_bytes
        == 2 * GIB
    )

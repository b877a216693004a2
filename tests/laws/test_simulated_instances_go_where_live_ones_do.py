"""The simulator's cards and the engine's cards take an instance at the same place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.cutting import Cutting, Geometry, arrangements
from partage.placement.instances import Sized, places
from partage.placement.layouts import Allowed, tabulate
from partage.vendors.mig import MIG_CARDS

AXIS = MIG_CARDS["A100-80GB"].axis
PLAIN = frozenset(p.name for p in AXIS.profiles if p.plain)
SLOTS = ((("1g.10gb", 7),), (("2g.20gb", 3), ("1g.10gb", 1)), (("3g.40gb", 2),))
BOUNDS = {
    "any layout": (Cutting(AXIS, PLAIN), Allowed()),
    "allowlist": (
        Cutting(AXIS, PLAIN, frozenset({"1g.10gb", "3g.40gb"})),
        Allowed(profiles=frozenset({"1g.10gb", "3g.40gb"})),
    ),
    "geometries": (
        Cutting(
            AXIS,
            PLAIN,
            geometries=tuple(
                Geometry(number, slots, arrangements(AXIS, slots))
                for number, slots in enumerate(SLOTS)
            ),
        ),
        Allowed(geometries=SLOTS),
    ),
}
TABLES = {name: tabulate(AXIS, allowed) for name, (_, allowed) in BOUNDS.items()}


@pytest.mark.parametrize("name", BOUNDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_card_takes_the_same_instance(name: str, data: st.DataObject) -> None:
    """With anything on the card, and any bounds: the same position, or none."""
    cutting, tables = BOUNDS[name][0], TABLES[name]
    state = data.draw(st.integers(0, len(tables.masks) - 1))
    profile = data.draw(st.sampled_from([p.name for p in AXIS.profiles]))

    live = places(cutting, tables.instances(state), Sized(profile, 0, 0, 0))

    simulated = tables.cheapest(np.array([state], np.int32), tables.column((profile,)))
    assert (live[0].instance if live else None) == (simulated and simulated[1])

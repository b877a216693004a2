"""Tables as a scheduler could have learnt them, for the laws: prices with reserves, or usual requests."""

import numpy as np
from hypothesis import strategies as st

from drawn import sampled
from partage.placement.fragmentation import Shape, Workload
from partage.placement.prices import PAIRS
from partage.placement.tables import UNITS, Prices, Reserve, Tables

MODELS = ("NVIDIA A100", "Tesla T4")


@st.composite
def prices(draw: st.DrawFn) -> Prices:
    """Tables as a learner could make them: worth grows with what is left."""
    chance = np.random.default_rng(draw(st.integers(0, 999)))
    steps = chance.exponential(10.0, (len(MODELS), UNITS + 1, PAIRS.shape[0]))
    steps[:, 0] = 0.0
    reserves = (
        Reserve(2, 1000, 1024, (), draw(sampled([0.0, 0.5, 9.0])), 1000),
        Reserve(1, 0, 0, MODELS[:1], draw(sampled([0.0, 2.0])), 500),
        Reserve(0, 2000, 0, (), draw(sampled([0.0, 3.0])), 2000),
    )
    return Prices(
        MODELS, PAIRS, steps.cumsum(axis=1), np.array([0.5, 1.5]), ((2, 0.4),), 500.0, reserves
    )


USUAL = Workload.of(
    [
        *[Shape(4000, 330, 1)] * 7,
        *[Shape(8000, 1000, 1, MODELS[0])] * 5,
        *[Shape(2000, 0, 0)] * 4,
        *[Shape(16_000, 1000, 2)] * 2,
    ]
)
tables = st.one_of(
    prices().map(lambda found: Tables(workload=USUAL, prices=found)),
    st.just(Tables(workload=USUAL, expected=USUAL)),
)

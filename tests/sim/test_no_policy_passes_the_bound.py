"""The bound by cutting stock is above every policy, and tight where cards alone decide."""

from pathlib import Path

import pytest
from small_traces import write

from answers import SOLVER_THERE
from partage.model.errors import PartageError
from partage.model.policy import Policy
from partage.sim.bound import ceiling, over
from partage.sim.metrics import allocation_of
from partage.sim.openb import Sequence, drawn, read_trace
from partage.sim.replay import replay

pytestmark = pytest.mark.skipif(not SOLVER_THERE, reason="highspy is not installed")
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"


def sequence(count: int) -> Sequence:
    """Rows in turn; order of nodes does not matter to the bound."""
    return Sequence(tuple(range(count)), (0, 1, 2, 3), "test")


@pytest.mark.parametrize(
    ("sizes", "percent"),
    [
        pytest.param([600] * 20, 60.0, id="one-a-card"),
        pytest.param([600] * 14 + [400] * 14, 100.0, id="pairs-that-fill"),
        pytest.param([600] * 14 + [300] * 14, 90.0, id="pairs-that-do-not"),
        pytest.param([330] * 60, 99.0, id="three-a-card"),
        pytest.param([5] * 2800, 100.0, id="below-a-hundredth"),
        pytest.param([5] * 140, 5.0, id="few-below-a-hundredth"),
    ],
)
def test_patterns_of_shares_fill_cards(tmp_path: Path, sizes: list[int], percent: float) -> None:
    """Fourteen cards, and shares of a few sizes, none of which must be placed."""
    rows = [f"p{i},0,0,1,{size}," for i, size in enumerate(sizes)]
    trace = read_trace(write(tmp_path, pods=(HEAD, *rows)), "small")

    assert ceiling(trace, sequence(len(sizes)), 0.0) == pytest.approx(percent)


def test_what_must_be_placed_lowers_it_or_cannot_be(tmp_path: Path) -> None:
    """Small shares that came first keep large ones out; too many of one size have no place."""
    sizes = [510] * 7 + [1000] * 14
    rows = [f"p{i},0,0,1,{size}," for i, size in enumerate(sizes)]
    trace = read_trace(write(tmp_path, pods=(HEAD, *rows)), "small")

    assert ceiling(trace, sequence(21), 0.0) == pytest.approx(100.0)
    assert ceiling(trace, sequence(21), 0.26) == pytest.approx(100 * (7 * 0.51 + 7) / 14)

    rows = [f"p{i},0,0,1,510," for i in range(30)]
    crowded = read_trace(write(tmp_path, pods=(HEAD, *rows)), "small")
    with pytest.raises(PartageError, match="before 90% load"):
        ceiling(crowded, sequence(30))


def test_no_policy_is_above_it(tmp_path: Path) -> None:
    """A drawn sequence under three policies."""
    trace = read_trace(write(tmp_path), "small")
    order = drawn(trace, 7)
    most = ceiling(trace, order, 0.0)

    for name in ("fgd", "first-fit", "bestfit"):
        run = replay(trace, order, Policy.parse(name), accelerate=False)
        assert allocation_of(run)[-1] <= most + 0.01


def test_runs_share_the_bound_of_what_none_refused(tmp_path: Path) -> None:
    """Every run of a picture keeps to it; it is that of the load before the first refusal."""
    rows = [f"p{i},0,0,1,{size}," for i, size in enumerate([510] * 7 + [1000] * 14)]
    trace = read_trace(write(tmp_path, pods=(HEAD, *rows)), "small")
    order = sequence(21)
    runs = [
        replay(trace, order, Policy.parse(name), accelerate=False) for name in ("fgd", "bestfit")
    ]

    assert [int((run.node < 0).argmax()) for run in runs] == [14, 14]
    assert over(runs) == pytest.approx(100 * (7 * 0.51 + 7) / 14)
    assert all(allocation_of(run)[-1] <= over(runs) + 0.01 for run in runs)

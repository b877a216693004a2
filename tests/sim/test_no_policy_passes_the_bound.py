"""The bound by cutting stock is above every policy, and tight where cards alone decide."""

import random
from pathlib import Path

import pytest
from small_traces import write

from answers import SOLVER_THERE
from partage.model.errors import PartageError
from partage.model.policy import Policy
from partage.sim.bound import ceiling, ceiling_with_cpu, over, unrefused
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


def busy(chance: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Nodes of a few sorts that lack CPU or memory, and pods that fill them."""
    nodes = ["sn,cpu_milli,memory_mib,gpu,model"]
    for number in range(4):
        cards = chance.choice([0, 1, 2, 4])
        cpu, memory = chance.choice([8000, 16_000, 32_000]), chance.choice([32_768, 131_072])
        nodes.append(f"n{number},{cpu},{memory},{cards},{chance.choice(['T4', 'G2'])}")
    nodes.append("n4,16000,65536,2,T4")
    pods = [HEAD]
    for number in range(60):
        count = chance.choice([0, 1, 1, 1, 2])
        milli = chance.choice([0, 250, 330, 600, 1000]) if count == 1 else 1000
        cpu, memory = chance.choice([500, 2000, 6000]), chance.choice([1024, 16_384])
        wanted = chance.choice(["", "", "T4"]) if count and milli else ""
        count, milli = (count, milli) if count and milli else (0, 0)
        pods.append(f"p{number},{cpu},{memory},{count},{milli},{wanted}")
    return tuple(nodes), tuple(pods)


@pytest.mark.parametrize("seed", range(20))
def test_no_policy_is_above_the_bound_with_processors(tmp_path: Path, seed: int) -> None:
    """Every pod before a policy's first refusal has a place; with them required the bound holds, and lies below."""
    nodes, pods = busy(random.Random(seed))  # noqa: S311 # a seeded case, not a secret
    trace = read_trace(write(tmp_path, nodes=nodes, pods=pods), "small")
    order = Sequence(tuple(range(60)), tuple(range(5)), "test")

    for name in ("partage", "fgd", "first-fit", "bestfit", "spread"):
        run = replay(trace, order, Policy.parse(name), accelerate=False)
        most = ceiling_with_cpu(trace, order, unrefused(run))
        assert allocation_of(run)[-1] <= most + 0.01
        assert most <= ceiling(trace, order, 0.0) + 0.01


@pytest.mark.parametrize(
    ("nodes", "pods", "early", "percent"),
    [
        pytest.param(["8000,65536,2,T4"], ["4000,0,1,500,"] * 4, 0, 50.0, id="processors"),
        pytest.param(["8000,65536,2,T4"], ["1000,32768,1,500,"] * 4, 0, 50.0, id="memory"),
        pytest.param(
            ["8000,65536,2,T4"], ["4000,0,0,0,"] + ["4000,0,1,1000,"] * 2, 1, 50.0, id="others"
        ),
        pytest.param(
            ["8000,65536,2,T4"], ["4000,0,0,0,"] + ["4000,0,1,1000,"] * 2, 0, 100.0, id="may-wait"
        ),
        pytest.param(
            ["8000,65536,1,T4", "8000,65536,1,G2"], ["1000,0,1,1000,G2"] * 2, 0, 50.0, id="models"
        ),
        pytest.param(
            ["8000,65536,1,T4"] * 2, ["1000,0,2,1000,", "1000,0,1,600,"], 0, 30.0, id="two-cards"
        ),
        pytest.param(["8000,65536,1,T4"], ["1000,0,1,600,", "9,0,1,5,"], 0, 60.5, id="small"),
    ],
)
def test_processors_memory_and_models_lower_the_bound(
    tmp_path: Path, nodes: list[str], pods: list[str], early: int, percent: float
) -> None:
    """By hand: what a node lacks, what pods without cards take, and cards that a pod may not use."""
    trace = read_trace(
        write(
            tmp_path,
            nodes=(
                "sn,cpu_milli,memory_mib,gpu,model",
                *(f"n{i},{node}" for i, node in enumerate(nodes)),
            ),
            pods=(HEAD, *(f"p{i},{pod}" for i, pod in enumerate(pods))),
        ),
        "small",
    )

    assert ceiling_with_cpu(trace, sequence(len(pods)), early) == pytest.approx(percent)
    crowd = Sequence((0,) * 40, (0, 1, 2, 3), "test")
    with pytest.raises(PartageError, match="the first 40 pods"):
        ceiling_with_cpu(trace, crowd, 40)

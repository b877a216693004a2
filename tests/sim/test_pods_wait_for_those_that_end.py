import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from small_traces import PODS, write

from partage.cli.simulate import simulate
from partage.model.errors import InvalidValue
from partage.model.policy import Policy, Strategy
from partage.sim.metrics import failed_by_kind, waiting
from partage.sim.openb import Sequence, Trace, drawn, read_trace
from partage.sim.replay import Life, poisson, replay, trace_lives

NODE = ("sn,cpu_milli,memory_mib,gpu,model", "n0,8000,8192,1,T4")
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time"


def _trace(folder: Path, *pods: str) -> tuple[Trace, Sequence]:
    trace = read_trace(write(folder, nodes=NODE, pods=(HEADER, *pods)), "small")
    return trace, Sequence(tuple(range(len(pods))), (0,), "by hand")


def test_who_waits_is_placed_when_room_appears(tmp_path: Path) -> None:
    """Three pods that each need the only card follow one another, in order of arrival."""
    trace, sequence = _trace(
        tmp_path, "a,1,1,1,1000,,0,100", "b,1,1,1,1000,,10,60", "c,1,1,1,600,,20,30"
    )

    run = replay(trace, sequence, Policy.parse("first-fit"), lives=trace_lives(trace))

    assert run.started.tolist() == [0, 100, 150]
    found = waiting(run)
    assert (found.at_once, found.accepted) == (round(1 / 3, 6), 1)
    assert found.mean == round((0 + 90 + 130) / 3, 3)
    assert found.idle_mean == 0
    assert run.engine.ledger.picture() == _idle(trace, sequence)


def _idle(trace: Trace, sequence: Sequence) -> dict[str, object]:
    return replay(trace, sequence, Policy(), lives=()).engine.ledger.picture()


def test_an_end_makes_room_for_an_arrival_at_the_same_time(tmp_path: Path) -> None:
    """At one moment ends come before arrivals, and a later small pod may overtake a big one."""
    trace, sequence = _trace(
        tmp_path, "a,1,1,1,500,,0,50", "b,1,1,1,1000,,10,70", "c,1,1,1,500,,50,"
    )

    run = replay(trace, sequence, Policy.parse("bestfit"), lives=trace_lives(trace))

    assert run.started.tolist()[:2] == [0, 50]
    assert failed_by_kind(run)["fraction"] == 0


def test_who_never_finds_a_place_is_not_accepted(tmp_path: Path) -> None:
    """A pod that no node can ever host waits to the end and counts as failed."""
    trace, sequence = _trace(tmp_path, "a,1,1,1,500,,0,50", "b,1,1,2,1000,,10,20")

    run = replay(trace, sequence, Policy.parse("fgd"), lives=trace_lives(trace))

    assert waiting(run).accepted == 0.5
    assert waiting(run, ("many-cards",)).accepted == 0
    assert waiting(run, ("cpu-only",)).mean == 0
    assert failed_by_kind(run)["many-cards"] == 1


@pytest.mark.parametrize("policy", list(Strategy))
def test_poisson_runs_repeat_and_give_everything_back(tmp_path: Path, policy: Strategy) -> None:
    """The same seed gives the same run; in the end the cluster is as empty as before."""
    trace = read_trace(write(tmp_path), "small")
    sequence = drawn(trace, 3)
    lives = poisson(sequence, 60, rate=1.0, lifetime=5.0, seed=9)
    runs = [replay(trace, sequence, Policy(policy, policy), lives=lives, seed=9) for _ in range(2)]

    assert waiting(runs[0]) == waiting(runs[1])
    assert runs[0].node.tolist() == runs[1].node.tolist()
    assert waiting(runs[0]).accepted == 1
    assert runs[0].engine.ledger.picture() == _idle(trace, sequence)
    runs[0].engine.audit()


def test_lifetimes_do_not_depend_on_the_rate(tmp_path: Path) -> None:
    """Another rate moves arrivals and leaves lifetimes as they were."""
    trace = read_trace(write(tmp_path), "small")
    slow, fast = (poisson(drawn(trace, 1), 20, rate, 5.0, 1) for rate in (1.0, 10.0))

    assert [life.length for life in slow] == [life.length for life in fast]
    assert slow[-1].start > 5 * fast[-1].start


def test_own_times_can_come_closer_together(tmp_path: Path) -> None:
    """`speed` divides the time between arrivals and keeps lifetimes."""
    trace = read_trace(write(tmp_path), "small")

    lives = trace_lives(trace, speed=10.0)

    assert lives[1] == Life(1, 1.0, 290.0)
    assert lives[3].length is None


def test_own_times_must_be_there_and_make_sense(tmp_path: Path) -> None:
    """A pod without a creation time, or that ends before it comes, is named by row."""
    missing, _ = _trace(tmp_path, "a,1,1,0,0,,0,5", "b,1,1,0,0,,,")
    with pytest.raises(InvalidValue, match=r"pods_small.csv: row 2 .*no creation_time"):
        trace_lives(missing)
    reverse, _ = _trace(tmp_path, "a,1,1,0,0,,9,5")
    with pytest.raises(InvalidValue, match=r"row 1 .*before creation_time"):
        trace_lives(reverse)
    with pytest.raises(InvalidValue, match="must be above 0"):
        poisson(drawn(reverse, 1), 5, 0.0, 1.0, 1)


@pytest.mark.parametrize("mode", ["trace", "poisson"])
def test_the_command_reports_waiting(tmp_path: Path, mode: str) -> None:
    """Acceptance, waits and idle cards over time are in the document, and in the table."""
    folder = write(tmp_path)
    arguments = ["openb", str(folder), "--trace", "small", "--departures", mode]

    table = CliRunner().invoke(simulate, arguments)
    found: Any = json.loads(CliRunner().invoke(simulate, [*arguments, "-o", "json"]).stdout)

    assert table.stdout.startswith("POLICY")
    assert "ACCEPTED" in table.stdout
    assert 0 < found["accepted_at_once"] <= found["accepted"] <= 1
    assert set(found["waiting_seconds"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert len(found["idle_gpus"]["over_time"]) == 101
    assert list(found["by_kind"]) == ["cpu-only", "fraction", "one-card", "many-cards"]


def test_a_rate_may_be_given(tmp_path: Path) -> None:
    """--rate, --lifetime and --arrivals set a Poisson run; few arrivals never wait."""
    arguments = [
        "openb",
        str(write(tmp_path)),
        "--trace",
        "small",
        "--departures",
        "poisson",
        "--rate",
        "1",
        "--lifetime",
        "0.01",
        "--arrivals",
        "30",
        "-o",
        "json",
    ]

    found = json.loads(CliRunner().invoke(simulate, arguments).stdout)

    assert found["pods"] == 30
    assert found["accepted_at_once"] == 1


def test_a_trace_without_times_says_so(tmp_path: Path) -> None:
    """Exit status 2 and a line that names the row."""
    pods = [",".join(line.split(",")[:5]) for line in PODS]

    result = CliRunner().invoke(
        simulate,
        ["openb", str(write(tmp_path, pods=pods)), "--trace", "small", "--departures", "trace"],
    )

    assert result.exit_code == 2
    assert "row 1 (line 2): no creation_time" in result.stderr

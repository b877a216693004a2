"""`partage simulate openb` learns prices from what arrives, or from a recorded history."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from small_traces import PODS, write

from answers import SOLVER_THERE
from partage.cli.simulate import simulate
from partage.placement import learning
from partage.placement.learning import asks_of
from partage.placement.mix import Ask, Mix, Stock
from partage.scheduler.engine import Engine
from partage.scheduler.events import NodeSeen
from partage.sim.history import read_history, write_history
from partage.sim.openb import read_trace
from partage.sim.replay import cluster, template

needs_solver = pytest.mark.skipif(not SOLVER_THERE, reason="highspy is not installed")


def _invoke(folder: Path, *arguments: str) -> Result:
    command = ["openb", str(folder), "--trace", "small", "-o", "json", *arguments]
    return CliRunner().invoke(simulate, command)


def _result(folder: Path, *arguments: str) -> Any:
    result = _invoke(folder, *arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    timing = ("seconds", "cpu_seconds", "pods_per_second", "tables_seconds")
    return {key: value for key, value in found.items() if key not in timing}


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cluster counts as large enough for prices."""
    monkeypatch.setattr(learning, "_SMALL", 0)


@pytest.mark.usefixtures("large")
def test_a_running_scheduler_counts_a_pod_as_a_replay_does(tmp_path: Path) -> None:
    """A replay reads the models in the table; the scheduler reads them from the nodes that the pod selects."""
    trace = read_trace(write(tmp_path), "small")
    engine, nodes = Engine(), cluster(trace)
    for node in nodes:
        engine.handle(NodeSeen(node))
    rows = list(trace.pods)
    found = list(asks_of([template(row) for row in rows], engine.ledger, engine.accepting))

    stock = Stock.of(nodes)
    pairs = [
        (Mix.of({a: 1}, stock), Mix.of({row.ask: 1}, stock))
        for a, row in zip(found, rows, strict=True)
    ]
    there = stock.by_model(stock.cards) > 0
    assert all((a.allowed == b.allowed)[:, there].all() for a, b in pairs)
    assert [(a.count, a.milli) for a in found] == [(r.ask.count, r.ask.milli) for r in rows]
    assert found[1].models == ("T4",)


@needs_solver
@pytest.mark.usefixtures("large")
def test_prices_are_made_once_enough_has_arrived(tmp_path: Path) -> None:
    """Three hundred pods are not enough, a few more are; the same run again gives the same result."""
    folder = write(tmp_path)
    poisson = ("--departures", "poisson", "--arrivals")

    assert _result(folder, *poisson, "300")["tables_built"] == 0
    once, again = (_result(folder, *poisson, "302") for _ in range(2))
    assert once["tables_built"] == 1
    assert once == again


def test_a_small_cluster_makes_no_prices(tmp_path: Path) -> None:
    """Usual requests decide there; and the same run again gives the same result."""
    folder = write(tmp_path)
    poisson = ("--departures", "poisson", "--arrivals", "302")

    once, again = (_result(folder, *poisson) for _ in range(2))

    assert once["tables_built"] == 0
    assert once == again
    assert once != _result(folder, *poisson, "--policy", "first-fit")


@needs_solver
@pytest.mark.usefixtures("large")
def test_a_history_gives_prices_before_the_first_pod(tmp_path: Path) -> None:
    """A table of pods and the saved mix of the same pods do the same."""
    folder = write(tmp_path)
    table, saved = folder / "pods_small.csv", folder / "mix.json"
    write_history(saved, read_history(table))

    one, other = (_result(folder, "--history", str(path)) for path in (table, saved))

    assert one["tables_built"] == 1
    assert one == other


@pytest.mark.usefixtures("large")
def test_without_a_solver_the_better_of_two_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rehearsal chooses between FGD and first fit, and the result says which."""
    folder = write(tmp_path)
    monkeypatch.setitem(sys.modules, "highspy", None)

    found = _result(folder, "--history", str(folder / "pods_small.csv"))

    assert found["tables_chosen"] in (["fgd"], ["first-fit"])
    assert set(_result(folder)["tables_chosen"]) <= {"fgd", "first-fit"}


@pytest.mark.usefixtures("large")
def test_a_history_that_does_not_fit_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New tables are made from what came; a history that fits is kept."""
    folder = write(tmp_path)
    monkeypatch.setitem(sys.modules, "highspy", None)
    write_history(tmp_path / "other.json", {Ask(96_000, 1024, 8, 1000): 50})
    arrivals = ("--load", "1000", "--departures", "poisson", "--arrivals", "310", "--history")

    assert _result(folder, *arrivals, str(tmp_path / "other.json"))["tables_built"] > 1
    assert _result(folder, *arrivals, str(folder / "pods_small.csv"))["tables_built"] == 1


def test_other_policies_learn_nothing(tmp_path: Path) -> None:
    """A history makes no difference to them."""
    folder = write(tmp_path)
    history = ("--history", str(folder / "pods_small.csv"))

    plain = _result(folder, "--policy", "fgd")
    assert _result(folder, "--policy", "fgd", *history) == plain
    assert plain["tables_built"] == 0


def test_a_saved_history_holds_what_came(tmp_path: Path) -> None:
    """Equal requests are counted together, however their models are written."""
    folder = write(tmp_path, pods=(*PODS[:2], "p1,4000,8192,1,500,,0,100", PODS[5]))
    saved = tmp_path / "mix.json"

    assert _invoke(folder, "--load", "1", "--save-history", str(saved)).exit_code == 0
    _invoke(folder, "--departures", "trace", "--save-history", str(saved))

    assert read_history(saved) == {
        Ask(4000, 8192, 1, 500): 2,
        Ask(1000, 1024, 1, 250, ("T4",)): 1,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "No such file", id="missing"),
        pytest.param("{", "not a list of requests", id="not-json"),
        pytest.param("{}", "not a list of requests", id="no-list"),
        pytest.param("[1]", "got `int` - at `$[0]`", id="no-request"),
        pytest.param('[{"cpu_milli": -1}]', ">= 0 - at `$[0].cpu_milli`", id="negative"),
        pytest.param(
            '[{"cpu_milli":1,"memory_mib":1,"cards":1,"milli":2000,"count":1}]',
            "<= 1000 - at `$[0].milli`",
            id="too-much",
        ),
        pytest.param(
            '[{"cpu_milli":1,"memory_mib":1,"cards":1,"milli":1,"count":1,"models":3}]',
            "got `int` - at `$[0].models`",
            id="models",
        ),
    ],
)
def test_a_broken_history_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    """One line says which file and which entry."""
    folder, path = write(tmp_path), tmp_path / "mix.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    result = _invoke(folder, "--history", str(path))

    assert result.exit_code == 2
    assert f"{path}: " in result.output
    assert message in result.output
    assert len(result.output.splitlines()) == 1

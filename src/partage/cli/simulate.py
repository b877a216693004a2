"""`partage simulate`: simulated outcomes by policy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from partage.cli.ending import end
from partage.cli.mig import mig
from partage.cli.parameters import (
    Real,
    Sectioned,
    Whole,
    keep_apart,
    option,
    options,
    output_option,
)
from partage.cli.repack import repack
from partage.cli.structured import structured
from partage.cli.tables import PlainTable, paper
from partage.cli.whatif import cluster
from partage.daemon.gc_tuning import collecting_later
from partage.model.errors import PartageError
from partage.model.policy import Policy, Strategy
from partage.placement.prices import SolverMissing
from partage.sim import bound, metrics, plots
from partage.sim.history import read_history, write_history
from partage.sim.openb import TUNED, Sequence, Trace, drawn, read_sequence, read_trace
from partage.sim.replay import Lives, Run, poisson, replay, trace_lives

_HOUR: Final = 3600.0
_TOLD: Final = 64
"""Arrivals between two updates of the progress bar."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def simulate() -> None:
    """Replay a trace or change a cluster, and compare policies. The engine is the real one.

    \b
    Examples:
      partage simulate cluster dump.yaml --policy binpack
      partage simulate repack dump.yaml --may-restart "batch/*"
    """  # noqa: D301 # click wants the control character itself


simulate.add_command(cluster)
simulate.add_command(mig)
simulate.add_command(repack)


@simulate.command(cls=Sectioned)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@options(
    click.option(
        "--trace",
        "name",
        required=True,
        metavar="T",
        help="Name of the trace, the file DIR/pods_T.csv.",
    ),
    click.option(
        "--sequences",
        type=click.Path(path_type=Path),
        metavar="FILE.npz",
        help="Arrival orders: arrays pod_T_SEED (rows of pods_T.csv) and node_T_SEED (rank of each "
        "node among equals). Default: shuffled and tuned as the FGD paper does, by Python's "
        "generator, so a seed gives another order than the paper's.",
    ),
    option("--seed", type=int, default=42, metavar="S", help="Seed of the order of arrival."),
    option(
        "--load",
        type=Whole(1, 1000),
        default=TUNED,
        metavar="PERCENT",
        help="Total compute that a drawn sequence asks for, of the cluster's.",
    ),
    click.option(
        "--history",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="With policy partage: learn prices beforehand from these pods, a table like pods_T.csv "
        "or what --save-history wrote. Default: learn from the pods that arrive.",
    ),
    click.option(
        "--save-history",
        type=click.Path(path_type=Path),
        metavar="FILE.json",
        help="Write the mix of arrived requests to this file, for --history.",
    ),
    title="Pods that come",
)
@options(
    click.option(
        "--departures",
        type=click.Choice(["trace", "poisson"]),
        help="Let pods end: at the trace's own times, or after exponential lifetimes. A pod without a "
        "place then waits. Default: as published, no pod leaves and no pod waits.",
    ),
    click.option(
        "--rate",
        type=Real(0, min_open=True),
        metavar="R",
        help="With --departures poisson: arrivals an hour, instead of --offered.",
    ),
    option(
        "--lifetime",
        type=Real(0, min_open=True),
        default=1.0,
        metavar="H",
        help="With --departures poisson: mean lifetime in hours.",
    ),
    click.option(
        "--arrivals",
        type=Whole(1),
        metavar="N",
        help="With --departures poisson: number of pods; the sequence begins again at its end. Default: "
        "twice the sequence.",
    ),
    option(
        "--offered",
        type=Real(0, min_open=True),
        default=100.0,
        metavar="PERCENT",
        help="With --departures poisson: compute asked for on average, of the cluster's.",
    ),
    option(
        "--speed",
        type=Real(0, min_open=True),
        default=1.0,
        metavar="F",
        help="With --departures trace: pods arrive F times closer together; lifetimes stay.",
    ),
    title="Pods that end",
)
@click.option(
    "--policy",
    "names",
    multiple=True,
    metavar="P",
    help=f"{', '.join(Strategy)}, or NODE/CARD such as spread/binpack. May be repeated to compare "
    "policies. Default: partage.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw all policies in one picture, .png or .svg (needs partage[plot]).",
)
@output_option("How to print results; a list where --policy is repeated.")
def openb(  # noqa: PLR0913, PLR0917 # click passes every option by its name
    directory: Path,
    name: str,
    sequences: Path | None,
    seed: int,
    names: tuple[str, ...],
    load: int,
    departures: str | None,
    rate: float | None,
    lifetime: float,
    arrivals: int | None,
    offered: float,
    speed: float,
    history: Path | None,
    save_history: Path | None,
    plot: Path | None,
    output: str,
) -> None:
    """Replay an openb trace of DIR: nodes.csv and pods_T.csv.

    Every pod goes through the same engine as live pods do. Allocation and fragmentation are given
    in percent of all GPUs, at 80 to 130 % arrived load.

    \b
    Examples:
      partage simulate openb traces --trace default
      partage simulate openb traces --trace default --policy fgd --plot p.svg
      partage simulate openb traces --trace default --departures poisson

    \b
    Exit status:
      0  done
      2  a file is missing or broken, or there is no such policy
    """  # noqa: D301 # click wants the control character itself
    keep_apart("plot")
    keep_apart("save_history", beside={"history"})
    try:
        policies = [Policy.parse(name) for name in names or (Strategy.PARTAGE.value,)]
        if plot is not None:
            plots.check(plot)
        trace = read_trace(directory, name)
        sequence = read_sequence(sequences, trace, seed) if sequences else drawn(trace, seed, load)
        if departures == "trace":
            lives: Lives | None = trace_lives(trace, speed)
        elif departures == "poisson":
            hours = lifetime * _HOUR
            each = rate / _HOUR if rate else _rate(trace, sequence, offered) / hours
            lives = poisson(sequence, arrivals or 2 * len(sequence.pods), each, hours, seed)
        else:
            lives = None
        known = read_history(history) if history else None
        runs = []
        for policy in policies:
            total = len(sequence.pods if lives is None else lives)
            with _progress(str(policy), total) as told, collecting_later():
                runs.append(
                    replay(
                        trace,
                        sequence,
                        policy,
                        lives=lives,
                        seed=seed,
                        progress=told,
                        history=known,
                    )
                )
        if save_history is not None:
            write_history(save_history, runs[0].counts)
        _print(runs, seed, departures, output)
        if plot is not None:
            _plot(plot, runs, seed, departures)
    except PartageError as error:
        end(error)


def _rate(trace: Trace, sequence: Sequence, offered: float) -> float:
    """Arrivals per lifetime that request `offered` percent of the cluster's compute."""
    asked = sum(trace.pods[row].demand for row in sequence.pods)
    return trace.capacity * offered / 100.0 * len(sequence.pods) / max(asked, 1)


@contextmanager
def _progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=total)

        def told(arrived: int) -> None:
            if arrived % _TOLD == 0 or arrived == total:
                progress.update(task, completed=arrived)

        yield told


# --- results -------------------------------------------------------------------------------------


def _print(runs: list[Run], seed: int, departures: str | None, output: str) -> None:
    results = [_result(run, seed, departures) for run in runs]
    if not structured(output, results if len(results) > 1 else results[0]):
        run = runs[0]
        with paper() as console:
            console.print(_waiting_table(results) if departures else _load_table(results))
            console.print(
                f"trace {run.trace.name}, {len(run.lives)} pods, {len(run.trace.nodes)} nodes, "
                f"{run.trace.capacity // 1000} GPUs; order: {run.sequence.source}",
                style="dim",
            )


def _result(run: Run, seed: int, departures: str | None) -> dict[str, Any]:
    failed = metrics.failed_by_kind(run)
    pods = len(run.lives)
    result: dict[str, Any] = {
        "trace": run.trace.name,
        "seed": seed,
        "policy": str(run.policy),
        "pods": pods,
        "placed": pods - sum(failed.values()),
        "failed": sum(failed.values()),
        "failed_cpu_only": failed["cpu-only"],
        "failed_by_kind": failed,
        "sequence": run.sequence.source,
    }
    if departures is None:
        found = metrics.curves(run)
        result |= {
            "allocation": found.at(found.allocation),
            "frag": found.at(found.frag),
            "frag_ratio": found.at(found.frag_ratio),
            "idle_gpus": found.at(found.idle),
            "first_refused_many_card": metrics.first_refused(run, "many-cards"),
        }
    else:
        result |= {"departures": departures} | _waiting(run)
    return result | {
        "seconds": round(run.seconds, 6),
        "cpu_seconds": round(run.cpu_seconds, 6),
        "tables_seconds": round(run.tables_seconds, 3),
        "tables_built": len(run.tables_chosen),
        "tables_chosen": run.tables_chosen,
        "accelerated": run.accelerated,
        "pods_per_second": round(pods / run.seconds, 1) if run.seconds else None,
    }


def _waiting(run: Run) -> dict[str, Any]:
    found = metrics.waiting(run)
    return {
        "accepted_at_once": found.at_once,
        "accepted": found.accepted,
        "waiting_seconds": {"mean": found.mean, **found.percentiles},
        "idle_gpus": {"mean": found.idle_mean, "over_time": [list(p) for p in found.idle]},
        "by_kind": {
            kind: {"accepted_at_once": part.at_once, "accepted": part.accepted, "mean": part.mean}
            for kind in metrics.KINDS
            for part in (metrics.waiting(run, (kind,)),)
        },
    }


def _load_table(results: list[dict[str, Any]]) -> PlainTable:
    levels = [str(level) for level in metrics.LEVELS]
    table = PlainTable(
        "POLICY",
        "PLACED",
        "FAILED",
        "CPU-ONLY",
        *(f"ALLOC@{x}" for x in levels),
        "FRAG@100",
        "FRAG@130",
        "IDLE@130",
        "PODS/S",
        keys=1,
    )
    for result in results:
        allocation, frag = result["allocation"], result["frag"]
        table.add_row(
            result["policy"],
            str(result["placed"]),
            str(result["failed"]),
            str(result["failed_cpu_only"]),
            *(_number(allocation[x]) for x in levels),
            _number(frag["100"]),
            _number(frag["130"]),
            _number(result["idle_gpus"]["130"], 1),
            _number(result["pods_per_second"], 0),
        )
    return table


def _waiting_table(results: list[dict[str, Any]]) -> PlainTable:
    table = PlainTable(
        "POLICY",
        "PODS",
        "AT ONCE",
        "ACCEPTED",
        "MEAN WAIT",
        "P50",
        "P90",
        "P99",
        "IDLE GPUS",
        "PODS/S",
        keys=1,
    )
    for result in results:
        wait = result["waiting_seconds"]
        table.add_row(
            result["policy"],
            str(result["pods"]),
            f"{result['accepted_at_once']:.2%}",
            f"{result['accepted']:.2%}",
            *(f"{_number(wait[key], 0)} s" for key in ("mean", "p50", "p90", "p99")),
            _number(result["idle_gpus"]["mean"], 1),
            _number(result["pods_per_second"], 0),
        )
    return table


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _plot(path: Path, runs: list[Run], seed: int, departures: str | None) -> None:
    title = f"openb {runs[0].trace.name}, seed {seed}"
    if departures:
        title += f", departures: {departures}"
        plots.plot_waiting(path, title, [(str(r.policy), metrics.waiting(r)) for r in runs])
    else:
        try:
            most = bound.over(runs)
        except SolverMissing:
            most = None  # the picture omits it
        plots.plot_loads(path, title, [(str(r.policy), metrics.curves(r)) for r in runs], most)

"""`partage simulate cluster`: a cluster's manifests under another policy, other nodes, or shares."""

import re
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from partage.cli.ending import end
from partage.cli.parameters import Real, flag, keep_apart, output_option, strict_option
from partage.cli.patience import patience
from partage.cli.reading import batches, named
from partage.cli.structured import structured
from partage.cli.tables import PlainTable, Styled, paper
from partage.cli.visible import noted
from partage.model.errors import InvalidDocument, InvalidValue, PartageError
from partage.model.policy import Policy, Strategy
from partage.sim.page import page, verdict
from partage.sim.whatif import MOST_ADDED, Change, Result, evaluate
from partage.wire.cluster import Cluster, assemble

TODAY: Final = "today"
_MILLI: Final = 10
_COPIES: Final = re.compile(r"(?P<name>.+)=(?P<count>[0-9]{1,6})")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help=f"{', '.join(Strategy)}, or NODE/CARD such as spread/binpack. May be repeated: one case "
    "a policy, in which every running pod is placed again. Default: the cluster's own.",
)
@click.option(
    "--add-nodes",
    "add",
    multiple=True,
    metavar="NODE=N",
    help="Add N nodes like NODE, empty and healthy. May be repeated, up to 10,000 nodes.",
)
@click.option(
    "--remove-nodes",
    "remove",
    multiple=True,
    metavar="PATTERN",
    help="Remove the nodes whose names match this shell pattern; their pods get another place. May be "
    "repeated.",
)
@click.option(
    "--share",
    type=Real(0, 100, min_open=True, max_open=True),
    metavar="PERCENT",
    help="Give every pod that asks for one whole card this part of its compute and memory.",
)
@flag(
    "--anew", help="Place running pods again, as if all had just arrived; --policy does so anyway."
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="Permute the order among equally good nodes. Default: as in FILE.",
)
@click.option(
    "--page",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Write the result as one page to hand on; it needs nothing else.",
)
@strict_option
@output_option("How to print the result.")
def cluster(  # noqa: PLR0913, PLR0917 # click passes every option by its name
    files: tuple[str, ...],
    policies: tuple[str, ...],
    add: tuple[str, ...],
    remove: tuple[str, ...],
    share: float | None,
    anew: bool,  # noqa: FBT001 # click passes every option by its name
    seed: int | None,
    target: Path | None,
    strict: bool,  # noqa: FBT001 # click passes every option by its name
    output: str,
) -> None:
    """Compare the cluster of FILE... with changed ones.

    FILE is what `partage schedule` reads: manifests, or a dump of a cluster. The first row is the
    cluster as it is, with its waiting pods scheduled. Each further row is a case with all changes
    asked for. Columns are pods that run and wait, allocated parts of the cards, and the
    number of further pods of each kind that would fit.

    \b
    Examples:
      partage simulate cluster dump.yaml --policy binpack --policy spread
      partage simulate cluster dump.yaml --share 25
      partage simulate cluster dump.yaml --add-nodes gpu-node-1=4 --page p.html

    \b
    Exit status:
      0  done
      2  FILE cannot be used, a change cannot be made, or there is no such policy
    """  # noqa: D301 # click wants the control character itself
    keep_apart("target")
    try:
        changes = _changes(policies, add, remove, share, anew=anew)
        with patience(f"reading {named(files)}"):
            known = assemble(list(batches(files, strict=strict)))
        with patience("deciding"):
            results = _evaluated(known, changes, seed)
        if target is not None:
            target.write_text(page(results, ", ".join(files)), "utf-8")
    except OSError as error:
        end(f"{target}: {error.strerror}; name another file with --page")
    except (InvalidDocument, PartageError) as error:
        end(str(error))
    noted(known.notes)
    if not structured(output, [_document(result) for result in results]):
        _print(results)


def _changes(
    policies: tuple[str, ...],
    add: tuple[str, ...],
    remove: tuple[str, ...],
    share: float | None,
    *,
    anew: bool,
) -> list[tuple[str, Change]]:
    """The requested cases, each with its name."""
    copies = tuple(_copies(text) for text in add)
    told = [f"{count} more like {name}" for name, count in copies]
    told += [f"without {pattern}" for pattern in remove]
    if share is not None:
        told.append(f"shares of {share:g} %")
    milli = None if share is None else max(1, round(share * _MILLI))
    change = Change(add=copies, remove=remove, share=milli, anew=anew)
    if not policies:
        if change == Change():
            return []
        return [(", ".join(told) or "placed again", change)]
    return [
        (", ".join([str(policy), *told]), Change(policy, copies, remove, milli, anew=True))
        for policy in map(Policy.parse, policies)
    ]


def _copies(text: str) -> tuple[str, int]:
    found = _COPIES.fullmatch(text)
    if found is None:
        raise InvalidValue(
            f"--add-nodes {text}: it must be NODE=N with N from 1 to {MOST_ADDED:,}, such as gpu-node-1=4"
        )
    return found["name"], int(found["count"])


def _evaluated(
    known: Cluster, changes: list[tuple[str, Change]], seed: int | None
) -> list[Result]:
    cases = [(TODAY, Change()), *changes]
    console = Console(stderr=True)
    if not console.is_terminal:
        return [evaluate(known, change, name, seed) for name, change in cases]
    results = []
    with console.status("") as status:
        for number, (name, change) in enumerate(cases, 1):
            status.update(f"{name} ({number} of {len(cases)})")
            results.append(evaluate(known, change, name, seed))
    return results


def _document(result: Result) -> dict[str, Any]:
    return {
        "name": result.name,
        "policy": result.policy,
        "nodes": result.nodes,
        "cards": result.cards,
        "pods": result.pods,
        "running": result.running,
        "waiting": dict(result.waiting),
        "core_milli": {"total": result.core_total, "used": result.core_milli},
        "memory_bytes": {"total": result.memory_total, "used": result.memory_bytes},
        "closed_cards": result.closed,
        "idle_cards": result.idle,
        "shared_cards": result.shared,
        "models": {m: {"cards": n, "idle": i} for m, (n, i) in sorted(result.models.items())},
        "kinds": [
            {
                "asks": k.asks,
                "pods": k.pods,
                "running": k.running,
                "more": k.more,
                "more_bounded": k.bounded,
            }
            for k in result.kinds
        ],
        "examples": {
            code: {"pod": pod, "message": message}
            for code, (pod, message) in result.examples.items()
        },
    }


def _print(results: list[Result]) -> None:
    with paper() as console:
        console.print(_overview(results))
        console.print()
        console.print(_kinds(results))
        _print_waiting(console, results)
        console.print()
        console.print(Text(verdict(results), style="bold"))


def _overview(results: list[Result]) -> PlainTable:
    table = PlainTable(
        "CASE",
        "POLICY",
        "NODES",
        "CARDS",
        "CLOSED",
        "IDLE",
        "SHARED",
        "COMPUTE",
        "MEMORY",
        "RUNNING",
        "WAITING",
        keys=2,
    )
    for r in results:
        waiting = sum(r.waiting.values())
        table.add_row(
            r.name,
            r.policy,
            str(r.nodes),
            str(r.cards),
            str(r.closed),
            str(r.idle),
            str(r.shared),
            f"{100 * r.core_share:.1f}%",
            f"{100 * r.memory_share:.1f}%",
            f"{r.running} of {r.pods}",
            Styled(str(waiting), "yellow" if waiting else "default"),
        )
    return table


def _kinds(results: list[Result]) -> PlainTable:
    """Room for more pods of each kind, one column a case."""
    columns = ("PODS THAT ASK", "PODS", *(f"FIT MORE: {r.name}" for r in results))
    table = PlainTable(*columns, keys=1)
    asked = list(dict.fromkeys(kind.asks for r in results for kind in r.kinds))
    for asks in asked:
        found = [{kind.asks: kind for kind in r.kinds}.get(asks) for r in results]
        pods = max(kind.pods for kind in found if kind)
        cells = [f"{k.more}{'+' if k.bounded else ''}" if k else "-" for k in found]
        table.add_row(asks, str(pods), *cells)
    return table


def _print_waiting(console: Console, results: list[Result]) -> None:
    """Reasons with their counts, one column a case, and the line of one pod that waits for each."""
    codes = list(dict.fromkeys(code for r in results for code in r.waiting))
    if not codes:
        return
    table = PlainTable("WAITING FOR", *(r.name for r in results), keys=1)
    for code in codes:
        counts = [str(r.waiting.get(code, 0)) for r in results]
        table.add_row(Styled(code, "yellow"), *counts)
    console.print()
    console.print(table)
    console.print()
    for code in codes:
        pod, message = next(r.examples[code] for r in results if code in r.examples)
        console.print(Text(code, style="yellow").append(f"  {pod}", style="default"))
        console.print(Padding(Text(message), (0, 0, 0, 4)))

"""`partage up`: a whole cluster in one process, for trials, lessons and tests."""

import asyncio
import contextlib
import gc
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.text import Text

from partage.cli import loop
from partage.cli.ending import end
from partage.cli.parameters import (
    Sectioned,
    Whole,
    flag,
    keep_apart,
    options,
    output_option,
    strict_option,
)
from partage.cli.patience import patience
from partage.cli.reading import empty, named, refuse, sources
from partage.cli.tables import PlainTable, Styled, given, paper, print_waiting
from partage.cli.traces import sent_traces, trace_options
from partage.cli.visible import visible
from partage.embedded.applying import Outcome
from partage.embedded.cluster import Addresses, EmbeddedCluster, Plan
from partage.embedded.fleet import DEFAULT_FLEET
from partage.embedded.manifests import Manifests, examples, read_sources
from partage.embedded.overview import Overview, WaitingLine
from partage.model.errors import InvalidDocument, InvalidValue, PartageError
from partage.wire.documents import read_file
from partage.wire.yaml_values import YamlError, yaml_values

_PATIENCE: Final = 5.0
"""Seconds to wait for the first decisions before the state is printed."""
_RARELY: Final = 50_000
_MOST_BYTES: Final = 2**22
_PORT: Final = Whole(0, 65535)


@click.command(cls=Sectioned)
@click.option(
    "--port",
    type=_PORT,
    default=0,
    metavar="N",
    help="Port of the API server. Default: one that is free.",
)
@click.option(
    "--scheduler-port",
    type=_PORT,
    default=0,
    metavar="N",
    help="Port of the scheduler service, the webhook and the dashboard. Default: one that is free.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the kubeconfig to this file, but do not replace another cluster's. Default: a file of its "
    "own, removed at the end.",
)
@options(
    click.option(
        "--nodes",
        multiple=True,
        metavar="FILE",
        help="Nodes: SimulatedNode documents, or plain Node and Device manifests. May be repeated. "
        "Default: those of the manifests applied, else a small mixed fleet.",
    ),
    click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        metavar="FILE",
        help="Apply these manifests; a file or a folder, or - for standard input. May be repeated.",
    ),
    strict_option,
    flag("--no-examples", help="Do not apply the example manifests of all four protocols."),
    click.option(
        "--state",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Keep the cluster's objects in FILE from one run to the next; if it exists already, that cluster "
        "goes on, without examples.",
    ),
    title="What it starts with",
)
@trace_options
@output_option(
    "Format of the addresses; json is one line, printed when all is ready.", "table", "json"
)
def up(  # noqa: PLR0913, PLR0917 # click passes every option by its name
    port: int,
    scheduler_port: int,
    kubeconfig: Path | None,
    nodes: tuple[str, ...],
    files: tuple[str, ...],
    no_examples: bool,  # noqa: FBT001 # see above
    state: Path | None,
    strict: bool,  # noqa: FBT001 # see above
    traces: bool,  # noqa: FBT001 # see above
    output: str,
) -> None:
    """Start a whole cluster in this process, and end it with Ctrl-C.

    An API server that kubectl works against, simulated nodes with fake devices, the scheduler, the
    webhook and the controllers, all on loopback. Nothing is executed: pods run for as long as they
    sleep, or as their annotation simulate.partage.io/lifetime says. Never for production: that is
    Kubernetes itself.

    \b
    Examples:
      partage up
      partage up --kubeconfig kubeconfig --no-examples
      partage up --nodes fleet.yaml -f pods.yaml --state cluster.db

    \b
    Exit status:
      0  ended by Ctrl-C or SIGTERM
      2  a port is taken, or a file cannot be used or --strict refuses it
    """  # noqa: D301 # click wants the control character itself
    keep_apart("kubeconfig", "state")
    try:
        _check_kubeconfig(kubeconfig)
        resumed = state is not None and state.exists()
        samples = () if no_examples or resumed else examples()
        found = _found(nodes, files, samples, resumed=resumed)
        if strict:
            refuse(found.doubtful)
        plan = Plan(
            simulated=found.simulated,
            objects=found.objects,
            port=port,
            scheduler_port=scheduler_port,
            kubeconfig=kubeconfig,
            file=state,
            resumable=DEFAULT_FLEET if resumed else (),
            notes=found.notes,
        )
        gc.set_threshold(_RARELY)
        with sent_traces("partage-up", wanted=traces) as tracer:
            loop.run(partial(_serve, replace(plan, tracer=tracer), output))
    except PartageError as error:
        end(error)


def _found(
    nodes: Sequence[str], files: Sequence[str], samples: Sequence[Path], *, resumed: bool
) -> Manifests:
    """All objects to create beside the saved ones; a `resumed` cluster continues, and has its nodes."""
    wanted = (nodes, tuple(map(str, samples)), files)
    given = [(names, read_sources(sources(names))) for names in wanted if names]
    for names, one in given:
        if not (one.simulated or one.objects):
            raise empty(names)
        if names is nodes and not one.describe_nodes:
            told = named(names)
            raise InvalidDocument(
                f"{told}: no node there; give --nodes documents of kind Node or SimulatedNode, and others with -f"
            )
    found = [one for _, one in given]
    simulated = tuple(node for one in found for node in one.simulated)
    twice = Counter(node.name for node in simulated)
    for name, times in twice.items():
        if times > 1:
            raise InvalidDocument(
                f"simulated node {name} is described twice; name each once in --nodes and -f"
            )
    if not any(one.describe_nodes for one in found) and not resumed:
        simulated = tuple(DEFAULT_FLEET)
    return Manifests(
        simulated,
        tuple(manifest for one in found for manifest in one.objects),
        tuple(note for one in found for note in one.notes),
        tuple(doubt for one in found for doubt in one.doubtful),
    )


def _check_kubeconfig(path: Path | None) -> None:
    """Reject a kubeconfig path that has another cluster's."""
    if path is None or not path.exists():
        return
    try:
        known = next(iter(yaml_values(read_file(path, _MOST_BYTES))), None)
    except (OSError, YamlError) as error:
        raise InvalidValue(
            f"the kubeconfig {path} exists and cannot be read: {error}; name another file"
        ) from error
    clusters = (known.get("clusters") or ()) if isinstance(known, dict) else None
    if known is not None and (
        clusters is None or [c.get("name") for c in clusters if isinstance(c, dict)] != ["partage"]
    ):
        raise InvalidValue(
            f"the kubeconfig {path} is another cluster's; name a file that does not exist yet"
        )


async def _serve(plan: Plan, output: str, stop: asyncio.Event) -> None:
    """Run the cluster until a signal ends it."""
    async with contextlib.AsyncExitStack() as stack:
        with patience(f"starting {len(plan.simulated)} nodes and {len(plan.objects)} objects"):
            cluster = await stack.enter_async_context(EmbeddedCluster(plan))
            await cluster.settled(_PATIENCE)
        if output == "json":
            _complain(cluster)
            click.echo(msgspec.json.encode(cluster.addresses))
        else:
            printed(cluster.overview(), cluster.addresses, cluster.outcome)
        sys.stdout.flush()
        await stop.wait()


def _complain(cluster: EmbeddedCluster) -> None:
    """Print rejected and skipped manifests on standard error."""
    for refused in cluster.outcome.refused:
        said = f"partage up: {refused.manifest.where}: {refused.message}"
        click.echo(visible(said), err=True)
    for note in cluster.outcome.notes:
        click.echo(visible(f"partage up: {note}"), err=True)


def printed(seen: Overview, where: Addresses, outcome: Outcome) -> None:
    """Print the cluster's state, and the next steps."""
    with paper() as console:
        if seen.placed:
            console.print(_placed(seen))
        decided = [one for one in seen.waiting if one.reason]
        if decided:
            console.print()
            print_waiting(console, map(_waits, decided))
        if outcome.refused:
            console.print()
            refused = ((one, one.manifest) for one in outcome.refused)
            print_waiting(
                console,
                ((f"{m.namespace or 'default'}/{m.name}", m.kind, r.message) for r, m in refused),
                title="REFUSED",
            )
        for note in outcome.notes:
            console.print(Text(note, style="dim"))
        console.print()
        console.print(_nodes(seen))
        console.print()
        line = f"export KUBECONFIG={where.kubeconfig}"
        for name, value in (
            ("dashboard", where.dashboard),
            ("API", where.api),
            ("kubectl", line),
            ("", "kubectl get pods -A -o wide"),
            ("partage", f"export PARTAGE_SCHEDULER={where.scheduler}"),
            ("", "partage top"),
        ):
            console.print(Text.assemble((f"{name:11}", "bold"), value), soft_wrap=True)
        placed = len(seen.placed)
        said = f"{placed} {'pod' if placed == 1 else 'pods'} placed, {len(decided)} waiting"
        if undecided := len(seen.waiting) - len(decided):
            said += f", {undecided} not looked at yet"
        console.print(Text(f"{said}. Ctrl-C ends it all."))


def _waits(one: WaitingLine) -> tuple[str, str, str]:
    """Name, code and message."""
    code, colon, message = one.reason.partition(": ")
    if colon and code.isalpha():
        return one.name, code, message
    return one.name, "Unschedulable", one.reason


def _placed(seen: Overview) -> PlainTable:
    table = PlainTable("POD", "NODE", "PHASE", "CARDS", "GIVEN")
    for one in seen.placed:
        table.add_row(one.name, one.node, one.phase, one.cards, given(one.given))
    return table


def _nodes(seen: Overview) -> PlainTable:
    table = PlainTable("NODE", "CARDS", "COMPUTE", "MEMORY", "PODS", "STATE")
    for one in seen.nodes:
        cards = f"{one.cards} x {one.model or 'card'}" if one.cards else "none"
        style = "green" if one.state == "ok" else "red"
        table.add_row(
            one.name, cards, one.compute, one.memory, str(one.pods), Styled(one.state, style)
        )
    return table

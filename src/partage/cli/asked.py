"""Options and texts that `explain`, `top` and `inspect` share."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from partage.cli.answering import Asked
from partage.cli.asking import CannotAsk, Where, ask
from partage.cli.ending import end
from partage.cli.parameters import (
    cluster_options,
    file_option,
    options,
    output_option,
    strict_option,
)
from partage.cli.patience import patience
from partage.cli.visible import noted, visible
from partage.model.errors import PartageError

_T = TypeVar("_T")

NOT_FOUND: Final = 4

answer_options = options(
    cluster_options,
    click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        metavar="FILE",
        help="Answer for these manifests instead of a cluster: YAML or JSON, a folder, or - for "
        "standard input, such as what `kubectl get -o yaml` printed. May be repeated.",
    ),
    strict_option,
    click.option(
        "--scheduler",
        envvar="PARTAGE_SCHEDULER",
        default="",
        metavar="URL",
        help="Ask the scheduler service at this URL. Environment: PARTAGE_SCHEDULER. Default: read the "
        "cluster's objects with the rights of your kubeconfig, and ask the engine.",
    ),
    click.option(
        "--service",
        envvar="PARTAGE_SERVICE",
        default="",
        metavar="NAMESPACE/NAME:PORT",
        help="Ask the scheduler service through the API server's proxy. Environment: "
        "PARTAGE_SERVICE.",
    ),
    file_option("--token-file", help="Bearer token for --scheduler."),
    file_option(
        "--scheduler-ca",
        "authority",
        help="Authority of --scheduler's certificate, PEM. Default: those of the system.",
    ),
    output_option(
        "How to print the answer; wide is a table with more columns.",
        "table",
        "wide",
        "json",
        "yaml",
    ),
    title="Who answers, and how",
)


def answered(
    given: dict[str, Any],
    question: Callable[[Asked], Awaitable[_T]],
    *,
    placing: bool = False,
    silent: bool = False,
) -> _T:
    """The answer, or the program's end. `placing`: pods of manifests first get places. `silent`: show no progress."""
    where = Where(**{name: one for name, one in given.items() if name != "output"})
    try:
        if where.files:
            if typed := _typed("scheduler", "service"):
                raise CannotAsk(f"-f and {typed} exclude each other; leave one out")
            where = Where(files=where.files, strict=where.strict, placing=placing)
        else:
            where = _meant(where)
        with contextlib.nullcontext() if silent else patience(_doing(where)):
            return ask(where, question)
    except PartageError as error:
        end(error)


def _meant(where: Where) -> Where:
    """The source, without what the environment names where a typed option names another. Raises `CannotAsk`."""
    if _typed("scheduler") and not _typed("service"):
        where = replace(where, service="")
    elif not _typed("scheduler") and _typed("service", "kubeconfig", "context"):
        where = replace(where, scheduler="")
    if where.scheduler and where.service:
        raise CannotAsk("--scheduler and --service exclude each other; leave one out")
    if not where.scheduler and (typed := _typed("token_file", "authority")):
        raise CannotAsk(f"{typed} needs --scheduler; name one, or leave {typed} out")
    return where


def _typed(*names: str) -> str:
    """The first of these parameters that was typed, as an option; empty for none."""
    context = click.get_current_context()
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if one.name in names and source is ParameterSource.COMMANDLINE:
            return one.opts[0]
    return ""


def _doing(where: Where) -> str:
    if where.files:
        from partage.cli.reading import named  # noqa: PLC0415 # with YAML and the shapes of all documents

        return f"reading {named(where.files)}"
    service = where.scheduler or where.service
    return f"asking the scheduler service {service}" if service else "asking the API server"


def told(asked: Asked) -> None:
    """Print on standard error the source of the answer, and unreadable inputs."""
    click.echo(visible(f"answered by {asked.told}"), err=True)
    noted(asked.notes)

"""Options that several subcommands have, and what services do with signals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from partage.cli.logs import FORMATS, LEVELS
from partage.model.errors import InvalidValue
from partage.model.policy import Policy

_F = TypeVar("_F", bound=Callable[..., Any])
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
"""A file that exists."""


class PolicyType(click.ParamType[Policy]):
    """A policy's name on the command line."""

    name = "policy"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Policy:
        """The policy of that name, or a usage error."""
        try:
            return Policy.parse(str(value))
        except InvalidValue as error:
            self.fail(str(error), param, ctx)


def options(*given: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Several options as one decorator, in the order of the help."""

    def decorate(function: _F) -> _F:
        for option in reversed(given):
            function = option(function)
        return function

    return decorate


def option(*names: str, **given: Any) -> Callable[[_F], _F]:
    """An option whose default its help shows."""
    return click.option(*names, show_default=True, **given)


def output_option(told: str, *forms: str) -> Callable[[_F], _F]:
    """How a command prints.

    Args:
        told: what the help says of it.
        forms: what it can print, the default first; a table, JSON and YAML where none is named.
    """
    choice = forms or ("table", "json", "yaml")
    return option("-o", "--output", type=click.Choice(choice), default=choice[0], help=told)


strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Refuse manifests with fields that their kind does not have, or keys given twice. Default: "
    "say so, and go on without them.",
)

cluster_options = options(
    click.option(
        "--kubeconfig",
        type=FILE,
        metavar="FILE",
        help="How to reach the cluster. Default: KUBECONFIG, ~/.kube/config, or the service "
        "account of the pod this runs in.",
    ),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
)

logging_options = options(
    option(
        "--log-format",
        type=click.Choice(FORMATS),
        default="text",
        help="One line of text, or one JSON object, an event.",
    ),
    option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        help="The least important events that are logged.",
    ),
)

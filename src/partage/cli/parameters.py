"""Options that several subcommands share, and the services' handling of signals."""

import math
import re
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from partage.cli.logs import FORMATS, LEVELS
from partage.model.errors import InvalidValue
from partage.model.policy import Policy, Strategy

_F = TypeVar("_F", bound=Callable[..., Any])
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
"""A file that exists."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,251}[A-Za-z0-9])?")


class Whole(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"


class Real(click.FloatRange):
    """A number within bounds, and no infinite one."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, or a usage error; no bound holds for one that is none."""
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return found


class Name(click.ParamType[str]):
    """The name of an object, which may follow its kind as in `kubectl get pod/NAME`."""

    name = "name"

    def __init__(self, *kinds: str, form: str = "NAME") -> None:
        """A name of this form.

        Args:
            kinds: words for the object's kind.
        """
        self.kinds, self._form = kinds, form

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name without its kind, or a usage error; empty if none was typed."""
        kind, slash, rest = value.partition("/")
        text = rest if slash and kind in self.kinds else value
        formed = text.count("/") in {one.count("/") for one in self._form.split(" or ")}
        if value and not (formed and all(map(_NAME.fullmatch, text.split("/")))):
            rule = "a name has letters, digits, '-', '_' and '.' alone, at most 253"
            self.fail(f"{value!r} is not {self._form}; {rule}.", param, ctx)
        return text


NAME: Final = Name()


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


class Sectioned(click.Command):
    """A command whose help has its options under headings, those without one first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the typed arguments; the kind of a name may precede it, as after `kubectl get`."""
        types = [one.type for one in self.params]
        kinds = {kind for one in types if isinstance(one, Name) for kind in one.kinds}
        named = len(args) > 1 and args[0] in kinds and not args[1].startswith("-")
        return super().parse_args(ctx, args[1:] if named else args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them."""
        found: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                title = getattr(param, "section", "") or "Options"
                found.setdefault(title, []).append(record)
        for title, records in found.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def options(*given: Callable[[_F], _F], title: str = "") -> Callable[[_F], _F]:
    """Several options as one decorator, in the order of the help, under the `title` in a `Sectioned` command."""

    def decorate(function: _F) -> _F:
        # click collects options until it makes the command, the last one first.
        before = len(vars(function).get("__click_params__", ()))
        for option in reversed(given):
            function = option(function)
        for one in vars(function)["__click_params__"][before:]:
            one.section = title or getattr(one, "section", "")
        return function

    return decorate


def option(*names: str, **given: Any) -> Callable[[_F], _F]:
    """An option with its default in its help."""
    return click.option(*names, show_default=True, **given)


def flag(*names: str, **given: Any) -> Callable[[_F], _F]:
    """An option without a value."""
    return click.option(*names, is_flag=True, **given)


def _of_type(type_: Any, metavar: str) -> Callable[..., Callable[[_F], _F]]:
    """Makes options with a value of this type, and a default in their help."""

    def made(*names: str, **given: Any) -> Callable[[_F], _F]:
        shown = {"show_default": bool(given.get("default"))} | given
        return click.option(*names, type=type_, metavar=metavar, **shown)

    return made


name_option = _of_type(NAME, "NAME")
file_option = _of_type(FILE, "FILE")
folder_option = _of_type(click.Path(file_okay=False, path_type=Path), "FOLDER")


def keep_apart(*written: str, beside: Container[str] = ()) -> None:
    """Refuse a file that this command writes if another parameter names it too: one of both would be lost.

    `written`: parameters of the running command that name files to write. `beside`: parameters that may name a written
    file.
    """
    context = click.get_current_context()
    named = [
        (param, path)
        for param in context.command.params
        if param.name not in beside
        for path in _paths(param, context.params.get(param.name or ""))
    ]
    for target, path in named:
        for other, same in named:
            if target.name in written and other is not target and _one_file(path, same):
                both = " and ".join(
                    one.opts[0] if one.param_type_name == "option" else one.make_metavar(context)
                    for one in (target, other)
                )
                raise click.UsageError(
                    f"{both} name the same file {path}; give each a file of its own"
                )


def _paths(param: click.Parameter, value: Any) -> list[Path]:
    """The files that a parameter's value names."""
    given = value if isinstance(value, tuple) else (value,)
    manifests = param.name == "files"
    return [Path(one) for one in given if isinstance(one, Path) or (manifests and one != "-")]


def _one_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, which may not exist yet; devices such as /dev/null take any number."""
    try:
        there = one.exists()
        if there and other.exists():
            return one.is_file() and one.samefile(other)
        return not there and one.resolve() == other.resolve()
    except (OSError, RuntimeError):
        return False  # the program that opens it says why


health_port = click.option(
    "--health-port",
    type=Whole(1, 65535),
    metavar="N",
    help="Port for the probes alone, so that no caller of another port keeps them waiting.",
)
"""Options of every service that a kubelet runs."""


def policy_option(told: str, **given: Any) -> Callable[[_F], _F]:
    """The option for a policy, whose help also has the strategies: `told` has a `%s` for them."""
    strategies = ", ".join(Strategy)
    return click.option(
        "--policy", type=PolicyType(), metavar="NAME", help=told.replace("%s", strategies), **given
    )


def output_option(told: str, *forms: str) -> Callable[[_F], _F]:
    """The option for a command's output: `forms`, the default first; a table, JSON and YAML if none is named."""
    choice = forms or ("table", "json", "yaml")
    return option("-o", "--output", type=click.Choice(choice), default=choice[0], help=told)


strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Refuse manifests with fields that their kind does not have, or keys given twice. Default: "
    "note them, and continue without them.",
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
    title="Cluster",
)

config_options = (
    click.option(
        "--config-namespace",
        "config_namespaces",
        type=NAME,
        multiple=True,
        metavar="NAME",
        help="Use only ConfigMaps of this namespace. May be repeated. Default: all.",
    ),
    click.option(
        "--config-name",
        "config_names",
        type=NAME,
        multiple=True,
        metavar="NAME",
        help="Use only ConfigMaps of this name, and need no right to read others. May be repeated. "
        "Default: any.",
    ),
)
"""Namespaces of ConfigMaps with settings."""

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
    title="Logging",
)

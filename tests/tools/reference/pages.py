"""Pages made from what is declared: commands and options, settings, names, alerts, the chart's values."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import click
import yaml

from partage.cli.main import main
from partage.vendors import names, settings
from partage.vendors.catalog import FAMILIES
from partage.vendors.reserved import RESERVED
from partage.vendors.settings import Settings
from partage.wire.context import Context

__all__ = [
    "alerts_page",
    "commands_page",
    "declared_pages",
    "names_page",
    "settings_page",
    "table",
    "value_comments",
    "values_page",
]

HEAD: Final = "<!-- Made by `make reference`; change the program instead. -->\n"
_VALUES: Final = "deploy/helm/partage/values.yaml"
_ALERTS: Final = "deploy/observability/alerts.yaml"


def declared_pages(root: Path) -> dict[str, str]:
    """Every page of this module by file name.

    Args:
        root: of the repository.
    """
    return {
        "alerts.md": alerts_page((root / _ALERTS).read_text(encoding="utf-8")),
        "commands.md": commands_page(),
        "names.md": names_page(),
        "settings.md": settings_page(),
        "values.md": values_page((root / _VALUES).read_text(encoding="utf-8")),
    }


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; `|` inside cells is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |\n"
        for line in lines
    )


# --- commands ----------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its options, as `--help` tells them."""
    text = (
        f"{HEAD}# All commands\n\nThe output of `partage COMMAND --help` for each command. Each also works as `kubectl partage`. "
        "Pages with examples and documents: [schedule](schedule.md), [up](up.md), "
        "[explain, top, inspect](asking.md), [doctor](doctor.md), [snapshot and replay](replay.md), "
        "[simulate](simulate.md), [scheduler](scheduler.md), [webhook](webhook.md), [agent](agent.md), "
        "[discover](agent-discovery.md), [withdraw](../how-to/uninstall.md).\n"
    )
    return text + "".join(_command(path, command) for path, command in _walk("partage", main))


def _walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command, info_name=path)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None:
            yield from _walk(f"{path} {name}", found)


def _command(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    text = f"\n## {path}\n\n```\n{path} {usage}\n```\n\n{_prose(command.help or '')}"
    rows = [
        _option(one, context)
        for one in command.params
        if isinstance(one, click.Option) and not one.hidden
    ]
    return f"{text}\n{table(('option', 'default', ''), rows)}"


def _prose(text: str) -> str:
    """Help as paragraphs; what click keeps as it is stands in a block."""
    parts: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            parts.append(f"```\n{paragraph.removeprefix(chr(8) + chr(10))}\n```")
        else:
            parts.append(" ".join(paragraph.split()).replace("<", "&lt;"))
    return "\n\n".join(parts) + "\n" if parts else ""


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    forms = ", ".join((*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
    told = option.get_help_extra(context)
    default = told.get("default", "")
    more = [option.help or ""]
    if option.envvar and f"Environment: {option.envvar}" not in (option.help or ""):
        more.append(f"Environment: `{option.envvar}`.")
    return (
        f"`{forms}{value}`",
        f"`{default}`" if default else "",
        " ".join(more).replace("<", "&lt;"),
    )


# --- settings ----------------------------------------------------------------------------------


def settings_page() -> str:
    """Every setting that ConfigMaps make, with its default and meaning."""
    text = (
        f"{HEAD}# Settings\n\nThe settings of the protocols' ConfigMaps, with the published defaults. [Controllers](controllers.md#configmaps) "
        "has the rules for reading and refusing ConfigMaps. [`/api/config/<node>`](http.md#configuration) shows the settings in force on "
        "a node. Programs have [options](commands.md), an installation has [values of the chart](values.md).\n"
    )
    for one in fields(Settings):
        part = type(one.default)
        text += f"\n## {one.name}\n\n{_summary(part)}\n\n{table(('field', 'default', ''), _fields(part))}"
    text += f"\n## hami: of one node\n\n{_summary(settings.HamiNodeSettings)}\n\n"
    return text + table(("field", "default", ""), _fields(settings.HamiNodeSettings))


def _summary(kind: type) -> str:
    text = " ".join((inspect.getdoc(kind) or "").split("\n\nAttributes:")[0].split())
    return re.sub(r" \(facts: [^)]*\)", "", text)


def _fields(kind: type) -> Iterator[tuple[str, str, str]]:
    told = _attributes(kind)
    for one in fields(kind):
        default = one.default if one.default is not MISSING else None
        yield f"`{one.name}`", _shown(default), told.get(one.name, "")


def _shown(value: Any) -> str:
    if value is None or value in ((), ""):
        return ""
    return "" if is_dataclass(value) else f"`{value}`"


def _attributes(kind: type) -> dict[str, str]:
    """What a docstring says of each attribute."""
    _, _, text = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    parts = re.split(r"^(\w+): ", textwrap.dedent(text), flags=re.MULTILINE)
    return {
        name: " ".join(said.split()) for name, said in zip(parts[1::2], parts[2::2], strict=True)
    }


# --- names -------------------------------------------------------------------------------------


def names_page() -> str:
    """Every resource name with the protocols that read it, and every key that is kept."""
    context = Context.of(Settings(), FAMILIES)
    text = (
        f"{HEAD}# All names\n\n[Keys](annotations.md) has their meanings.\n\n## Resources\n\n"
        "Partage decides about a pod that names one of these. If two protocols read a name, "
        "the pod and the node decide [which one owns it](schedule.md#how-names-are-read).\n\n"
    )
    read = [(f"`{name}`", ", ".join(context.owners[name])) for name in sorted(context.owners)]
    woken = [(f"`{name}`", "wakes a vendor's device plugin") for name in sorted(context.triggers)]
    text += table(("resource", "read by"), read + woken)
    text += (
        "\n## Reserved keys\n\nOnly Partage and vendors' own plugins may write them on pods; "
        "[admission](http.md#admission) refuses every other writer.\n\n"
    )
    kept = [
        *((k, "annotation") for k in RESERVED.annotations),
        *((f"{k}<container>", "annotation") for k in RESERVED.prefixes),
        *((k, "label") for k in RESERVED.labels),
    ]
    text += table(("key", "on pods"), ((f"`{key}`", where) for key, where in sorted(kept)))
    text += "\n## Names in the code\n\nEvery key, with its constant.\n\n"
    return text + table(("key", "name in `vendors/names.py`"), _spelled())


def _spelled() -> Iterator[tuple[str, str]]:
    tree = ast.parse(inspect.getsource(names))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value = getattr(names, node.target.id)
            values = [value] if isinstance(value, str) else list(_flat(value))
            yield ", ".join(f"`{one}`" for one in values), f"`{node.target.id}`"


def _flat(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, frozenset)):
        for one in sorted(value, key=str):
            yield from _flat(one)


# --- alerts ------------------------------------------------------------------------------------


def alerts_page(text: str) -> str:
    """Every alert with what it is raised by, and how long that has to hold.

    Args:
        text: the rules.
    """
    made = (
        f"{HEAD}# All alerts\n\nThe rules of `deploy/observability/alerts.yaml`: an alert is raised once its expression has held for the time "
        "beside it. [React to an alert](../how-to/react-to-an-alert.md) has their meanings, and names the ones that should page a person.\n"
    )
    for group in yaml.safe_load(text)["groups"]:
        made += f"\n## {group['name']}\n\n"
        made += table(
            ("alert", "severity", "expression", "for"),
            (
                (
                    f"[{rule['alert']}](../how-to/react-to-an-alert.md#{rule['alert'].lower()})",
                    rule["labels"]["severity"],
                    f"`{rule['expr']}`",
                    rule.get("for", "at once"),
                )
                for rule in group["rules"]
            ),
        )
    return made


# --- the chart ---------------------------------------------------------------------------------


def values_page(text: str) -> str:
    """Every value of the chart with its default, and the comment that stands above it.

    Args:
        text: the chart's values.yaml.
    """
    made = f"{HEAD}# Values of the chart\n\n`helm install` with `--set NAME=VALUE` or `-f FILE`. helm refuses any other value.\n\n"
    return made + table(
        ("value", "default", ""),
        ((name, default, _as_text(told)) for name, default, told in _values(text)),
    )


def _as_text(comment: str) -> str:
    """A comment in Markdown: `<NAME>` is no tag, and braces are code, not attributes of the cell."""
    return re.sub(r"(?:- )?\{[^}]*\}", r"`\g<0>`", comment.replace("<", "&lt;"))


def value_comments(text: str) -> dict[str, str]:
    """The comment above each value that has one, by the value's path.

    Args:
        text: the chart's values.yaml.
    """
    return {name.strip("`"): told for name, _, told in _values(text) if told}


def _values(text: str) -> Iterator[tuple[str, str, str]]:
    loaded = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            comment = []
            continue
        depth = len(line) - len(line.lstrip())
        if line.lstrip().startswith("#"):
            comment.append(line.strip(" #"))
            continue
        found = re.match(r"^\s*([\w]+):\s*(.*)$", line)
        if found is None:  # part of a list
            continue
        path = [*((d, name) for d, name in path if d < depth), (depth, found[1])]
        names_down = [part for _, part in path]
        value = found[2] or _listed(loaded, names_down)
        if value or comment:
            yield f"`{'.'.join(names_down)}`", f"`{value}`" if value else "", " ".join(comment)
        comment = []


def _listed(loaded: Any, names_down: Sequence[str]) -> str:
    """A list that stands below its name, in one line; empty for what is no list."""
    for name in names_down:
        loaded = loaded[name]
    if not isinstance(loaded, list):
        return ""
    return str(yaml.safe_dump(loaded, default_flow_style=True, width=10_000)).strip()

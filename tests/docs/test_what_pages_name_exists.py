"""Options, values of the chart, series, alerts and make targets that pages name are there.

`test_named_files_are_there` has paths and modules, `test_every_code_block_is_tried` commands in blocks; this has what stands
between backquotes in a sentence.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml
from page_blocks import PAGES, ROOT

from partage.cli.main import main

QUOTED: Final = re.compile(r"`([^`\n]+)`")
RECORDS: Final = ("CHANGELOG.md", "docs/decisions/", "docs/conformance", "docs/sources/")
"""What is said of another time, or of another program."""
NAMED: Final = [path for path in PAGES if not str(path.relative_to(ROOT)).startswith(RECORDS)]
OTHERS: Final = frozenset(
    (
        "--as",
        "--config",
        "--container-runtime-endpoint",
        "--field-selector",
        "--force",
        "--gpu-reset",
        "--grace-period",
        "--hard",
        "--help",
        "--delete-emptydir-data",
        "--ignore-daemonsets",
        "--ignore-dra-requests",
        "--image",
        "--insecure-ignore-tlog",
        "--key",
        "--no-hooks",
        "--noderesource-plugins",
        "--pip-args",
        "--profile",
        "--raw",
        "--reset-then-reuse-values",
        "--reuse-values",
        "--runtime-config",
        "--set",
        "--set-json",
        "--signature",
        "--type",
        "--validate",
    )
)
"""Options of kubectl, helm, Kubernetes' and Koordinator's programs, nvidia-smi, pipx and cosign."""
FOREIGN: Final = frozenset({"docs/how-to/beside-the-gpu-operator.md: devicePlugin.enabled"})
"""Values of other charts."""


@cache
def _options() -> frozenset[str]:
    """Of every command, of the scripts beside the package, and what our patch gives another program."""

    def of(command: click.Command) -> Iterator[str]:
        for one in command.params:
            yield from (*one.opts, *one.secondary_opts)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for word in command.list_commands(context):
                if below := command.get_command(context, word):
                    yield from of(below)

    scripts = [*ROOT.glob("bench/*.py"), *ROOT.glob("deploy/*.py"), *ROOT.glob("tests/tools/*.py")]
    others = (ROOT / "deploy/integrations/cluster-autoscaler.yaml").read_text("utf-8")
    return (
        frozenset(of(main))
        | {
            word
            for one in scripts
            for word in re.findall(r'"(--[a-z][\w-]+)"', one.read_text("utf-8"))
        }
        | set(re.findall(r"value: (--[a-z][\w-]+)", others))
    )


@cache
def _values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(
        (ROOT / "deploy/helm/partage/values.yaml").read_text("utf-8")
    )
    return found


def _is_value(path: str) -> bool:
    """Whether the chart has it, or a map in it that may have any key."""
    at: Any = _values()
    for part in path.split("."):
        if not isinstance(at, dict) or not at:
            return not at
        if part not in at:
            return False
        at = at[part]
    return True


@cache
def _series() -> tuple[str, ...]:
    page = (ROOT / "docs/reference/series.md").read_text("utf-8")
    return tuple(re.findall(r"\bpartage_\w+", page))


@cache
def _alerts() -> frozenset[str]:
    rules = (ROOT / "deploy/observability/alerts.yaml").read_text("utf-8")
    return frozenset(re.findall(r"alert: (\w+)", rules))


@cache
def _targets() -> frozenset[str]:
    return frozenset(
        re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    )


def missing(text: str, page: str = "") -> Iterator[str]:
    """What a page names between backquotes, outside of blocks, and that is not there."""
    modules = page == "ARCHITECTURE.md"
    for quoted in QUOTED.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", quoted):
            if option not in OTHERS and option not in _options():
                yield option
        for value in re.findall(r"(?<![\w./-])([a-z]\w+(?:\.\w+)+)", quoted):
            file = value.endswith((".yaml", ".md", ".py", ".json"))
            ours = value.partition(".")[0] in _values() and not modules and not file
            if ours and f"{page}: {value}" not in FOREIGN and not _is_value(value):
                yield value
        for series in re.findall(r"\bpartage_[a-z_]+\b", quoted):
            bare = re.sub(r"_(bucket|count|sum)$", "", series)
            if not any(one.startswith((series, bare)) for one in _series()):
                yield series
        for alert in re.findall(r"\bPartage[A-Z]\w+", quoted):
            if alert not in _alerts():
                yield alert
        target = re.match(r"make ([a-z][\w-]*)", quoted)
        if target and target[1] not in _targets():
            yield target[0]


@pytest.mark.parametrize("page", NAMED, ids=[str(one.relative_to(ROOT)) for one in NAMED])
def test_what_a_page_names_exists(page: Path) -> None:
    """Each by the name of today."""
    name = str(page.relative_to(ROOT))
    assert list(missing(page.read_text("utf-8"), name)) == []


def test_what_is_not_there_is_noticed() -> None:
    """One of each kind, and none of what is there."""
    wrong = (
        "`--no-such-option` `agent.nothing` `partage_none_total` `PartageSleeps` `make nothing`"
    )
    assert len(list(missing(wrong))) == 5
    there = "`--isolation-compute` `agent.isolation.compute` `partage_leader` `PartageSlow` `make docs`"
    assert list(missing(there)) == []

"""The help of every command fits a terminal, has examples that can be typed, and headings where options are many."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from partage.cli.main import _NAMES, main

WIDTH = 80
MANY = 10
"""Options without a heading of their own at most."""
FEW = 20
"""Options under one heading at most."""


def _walk(
    path: tuple[str, ...], command: click.Command
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _walk((*path, name), found)


TREE = dict(_walk((), main))
every = pytest.mark.parametrize("path", TREE, ids=lambda path: " ".join(("partage", *path)))


def _help(path: tuple[str, ...]) -> list[str]:
    outcome = CliRunner(env={"COLUMNS": str(WIDTH)}).invoke(main, [*path, "--help"])
    assert outcome.exit_code == 0
    return outcome.stdout.splitlines()


def _examples(path: tuple[str, ...]) -> list[str]:
    """What is typed after `partage`."""
    told = "\n".join(_help(path)).partition("\n  Examples:\n")[2].partition("\n\n")[0]
    typed = (re.search(r"\bpartage ([^|)#>]*)", line) for line in told.splitlines())
    return [found[1] for found in typed if found]


@every
def test_no_line_is_wider_than_a_terminal(path: tuple[str, ...]) -> None:
    """Eighty columns, as a terminal opens; click shortens a list's text with dots where it is longer."""
    lines = _help(path)

    assert [line for line in lines if len(line) > WIDTH] == []
    assert [line for line in lines if re.search(r"[a-z]\.\.\.$", line)] == []


@every
def test_examples_can_be_typed(path: tuple[str, ...]) -> None:
    """Each is of this command, with options and arguments that it has."""
    examples = [shlex.split(one) for one in _examples(path)]

    assert examples
    for words in examples:
        assert tuple(words[: len(path)]) == path
        own = next(size for size in range(len(words), -1, -1) if tuple(words[:size]) in TREE)
        command = TREE[tuple(words[:own])]
        parsed, rest, _order = command.make_parser(click.Context(command)).parse_args(words[own:])
        assert not rest
        for one in command.params:
            assert not one.required or parsed.get(one.name or "")


@every
def test_many_options_are_under_headings(path: tuple[str, ...]) -> None:
    """Each option once; it says what it does and is among few."""
    lines = _help(path)
    told = "\n".join(lines[lines.index("Options:") :])
    options = re.findall(r"^  (-[^ ,]+)", told, re.MULTILINE)
    parts = [part.count("\n  -") for part in re.split(r"\n(?=\S[^\n]*:\n)", told)]

    assert len(options) == len(set(options))
    assert max(parts) <= (FEW if len([part for part in parts if part]) > 1 else MANY)
    assert all(
        one.help or one.hidden for one in TREE[path].params if isinstance(one, click.Option)
    )


def test_a_list_of_subcommands_says_what_their_help_begins_with() -> None:
    """The list loads none of them, so it keeps these sentences itself."""
    said = {path[0]: one.get_short_help_str(WIDTH) for path, one in TREE.items() if len(path) == 1}

    assert said == _NAMES

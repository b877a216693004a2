"""Terminal captures in pages: blocks that begin with `$ partage`, and what the command prints.

A page shows what the program really prints, because a test compares; in README this writes it. A line of
`…` alone stands for lines that a page leaves out.
"""

import re
import shlex
from typing import Final

from click.testing import CliRunner

from partage.cli.main import main

__all__ = ["captures", "comes_out", "commands", "output", "refreshed"]

_BLOCK: Final = re.compile(r"```console\n(?P<body>.*?)```", re.DOTALL)
_PROMPT: Final = "$ "
_GAP: Final = "…\n"


def commands(page: str) -> list[str]:
    """Every command line that a page shows behind a prompt, in order."""
    return [
        line.removeprefix(_PROMPT)
        for block in _BLOCK.finditer(page)
        for line in block["body"].splitlines()
        if line.startswith(_PROMPT)
    ]


def captures(page: str) -> list[tuple[str, str]]:
    """Every `partage` command behind a prompt that has lines below it, and these lines."""
    parts = [
        part.partition("\n")
        for block in _BLOCK.finditer(page)
        for part in re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]
    ]
    return [
        (command, shown) for command, _, shown in parts if shown and command.startswith("partage ")
    ]


def comes_out(shown: str, printed: str) -> bool:
    """Whether a page shows what is printed; each line of `…` alone stands for one line or more."""
    lines = (
        "(?:.*\n)+?" if line == _GAP else re.escape(line)
        for line in shown.splitlines(keepends=True)
    )
    return bool(re.fullmatch("".join(lines), printed))


def output(command: str) -> str:
    """What a `partage` command prints, without blanks at the ends of lines; the first so many by `| head -N`.

    Raises:
        ValueError: it ends with another code than 0 or 3.
    """
    command, _, most = command.partition(" | head -")
    result = CliRunner().invoke(main, shlex.split(command)[1:])
    if result.exit_code not in (0, 3):
        raise ValueError(f"{command}: exit {result.exit_code}: {result.output}")
    lines = result.stdout.splitlines()[: int(most) if most else None]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def refreshed(page: str) -> str:
    """The page with every capture as the program prints it now.

    A capture is a block of one `partage` command with lines below it; paths are relative to the
    working directory.
    """
    return _BLOCK.sub(lambda block: _refreshed(block[0], block["body"]), page)


def _refreshed(block: str, body: str) -> str:
    prompt, _, shown = body.partition("\n")
    command = prompt.removeprefix(_PROMPT)
    if not (prompt.startswith(f"{_PROMPT}partage ") and shown and _PROMPT not in shown):
        return block
    return f"```console\n{prompt}\n{output(command)}```"

"""Ends a command that cannot continue: one line on standard error, and an exit code.

The line names the command and the thing, then the violated rule and a remedy. The code that finds the problem
writes the line.
"""

import sys
from typing import Final, NoReturn

import click

from partage.cli.visible import visible

CANNOT: Final = 2
"""Exit code: an option, a file or an address cannot be used, or there is no answer."""


def end(problem: object, code: int = CANNOT) -> NoReturn:
    """Print the reason, and end."""
    context, words = click.get_current_context(silent=True), list[str]()
    while context is not None:
        if context.parent is not None or not isinstance(context.command, click.Group):
            words.insert(0, context.command.name or "")
        context = context.parent
    click.echo(visible(f"{' '.join(['partage', *words])}: {problem}"), err=True)
    sys.exit(code)

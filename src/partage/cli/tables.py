"""Tables for people: aligned, in colour on a terminal only, no blanks at the ends of lines."""

import contextlib
from collections.abc import Iterator
from typing import Final

import click
from rich.console import Console
from rich.table import Table

__all__ = ["bar", "paper", "plain_table"]

_WIDE: Final = 160
_BAR: Final = 10
_WHOLE: Final = frozenset({"POD", "NODE", "CARD", "PHASE", "CODE", "PROTOCOL", "STATE"})
"""Columns of names, which are never broken: people copy them."""


@contextlib.contextmanager
def paper() -> Iterator[Console]:
    """Where to print; what was printed comes out when the context ends."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    with console.capture() as captured:
        yield console
    text = captured.get()
    if not console.is_terminal:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    click.echo(text, nl=False)


def plain_table(*columns: str) -> Table:
    """A table without lines; columns of names are not broken."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _WHOLE)
    return table


def bar(fraction: float) -> str:
    """A bar of ten steps."""
    filled = min(_BAR, max(0, round(fraction * _BAR)))
    return "█" * filled + "░" * (_BAR - filled)

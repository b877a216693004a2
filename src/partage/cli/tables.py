"""Tables for people: aligned, in colour on a terminal only, no blanks at the ends of lines."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

__all__ = ["bar", "given", "paper", "plain_table", "print_waiting"]

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


def given(text: str) -> Text:
    """What a pod was given, or that it has no devices."""
    return Text(text) if text else Text("no devices", style="dim")


def print_waiting(
    console: Console, pods: Iterable[tuple[str, str, str]], title: str = "WAITING"
) -> None:
    """Pods that wait, each with a line of its own for the reason: it is what people read.

    Args:
        console: where.
        pods: name, code and message of each; a message may be empty.
        title: above them.
    """
    console.print(Text(title, style="bold"))
    for name, code, message in pods:
        head = Text(f"{name}  ").append(code, style="yellow")
        console.print(head, soft_wrap=True)
        if message:
            console.print(Padding(Text(message), (0, 0, 0, 4)))

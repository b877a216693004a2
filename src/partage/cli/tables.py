"""Tables for people: aligned, in colour on a terminal only, no blanks at the ends of lines.

On a narrow terminal bars and empty columns go first, then texts are folded between words; names and numbers are never
broken, and what is still too wide runs on, as kubectl's tables do.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partialmethod
from typing import Final

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from partage.cli.visible import visible

_WIDE: Final = 160
_BAR: Final = 10
_WHOLE: Final = frozenset(
    {"POD", "NODE", "CARD", "PHASE", "CODE", "PROTOCOL"}
    | {"COMPUTE", "MEMORY", "PODS", "SHARERS", "ASKED", "FREE"}
)
"""Columns of names, which are never broken because people copy them, and of numbers."""
_FILLED: Final = "█"
_EMPTY: Final = "░"
_GAP: Final = 2
_BLANKS: Final = re.compile(r"(?:\s|\x1b\[[0-9;]*m)+$")
_PLAIN: Final = "\x1b[0m"
_WORD: Final = 24
"""A word longer than this may be broken to fold a text."""


class _Paper(Console):
    """What is wider than the terminal runs on, and nothing of it is lost."""

    print = partialmethod(Console.print, crop=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Its pieces; what comes from objects gives the terminal no command."""
        for one in super().render(renderable, options):
            yield one if one.control else one._replace(text=visible(one.text))


class _Fitted(Table):
    """A table that gives way on a narrow terminal; see this module's summary."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its lines."""
        columns = _fitted(self.columns, options.max_width)
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, _GAP, 0, 0),
            header_style=self.header_style,
            show_header=self.show_header,
        )
        table.columns, table.rows = columns, self.rows
        if all(map(_fits, columns)):
            yield from self._straight(console, columns)
            return
        width = sum((column.width or 0) + _GAP for column in columns)
        yield from table.__rich_console__(console, options.update(width=width, max_width=width))

    def _straight(self, console: Console, columns: Sequence[Column]) -> Iterator[Segment]:
        """Its lines where none is folded; rich takes ten times as long for tables of thousands of rows."""
        head = [Text(str(column.header), style=self.header_style) for column in columns]
        rows = zip(*(column.cells for column in columns), strict=True)
        for row in (head, *rows) if self.show_header else rows:
            plain = ""
            for cell, column in zip(row, columns, strict=True):
                text = cell if isinstance(cell, Text) else Text(str(cell))
                if text.spans or text.style:
                    yield Segment(plain)
                    plain = ""
                    if text.spans:
                        yield from text.render(console)
                    else:
                        yield Segment(text.plain, console.get_style(text.style))
                else:
                    plain += text.plain
                plain += " " * ((column.width or 0) - text.cell_len + _GAP)
            yield Segment(f"{plain}\n")


def _fits(column: Column) -> bool:
    return all(
        "\n" not in text and cell_len(text) <= (column.width or 0) for text in _cells(column)
    )


def _fitted(columns: Sequence[Column], width: int) -> list[Column]:
    """Columns with the width that each gets."""
    widths = [max(map(_longest, _cells(column)), default=0) for column in columns]
    if sum(widths) + _GAP * (len(widths) - 1) > width:
        columns = _without_ornaments(columns)
        widths = [max(map(_longest, _cells(column)), default=0) for column in columns]
    least = [
        have if column.no_wrap else min(have, max(map(_word, _cells(column)), default=0))
        for have, column in zip(widths, columns, strict=True)
    ]
    while sum(widths) + _GAP * (len(widths) - 1) > width:
        widest = max(range(len(widths)), key=lambda n: (widths[n] > least[n], widths[n]))
        if widths[widest] == least[widest]:
            break
        widths[widest] -= 1
    return [
        replace(column, _index=number, width=have)
        for number, (column, have) in enumerate(zip(columns, widths, strict=True))
    ]


def _cells(column: Column) -> list[str]:
    return [str(column.header), *(str(cell) for cell in column.cells)]


def _longest(text: str) -> int:
    return max(map(cell_len, text.splitlines()), default=0)


def _word(text: str) -> int:
    return min(_WORD, max(map(cell_len, text.split()), default=0))


def _without_ornaments(columns: Sequence[Column]) -> list[Column]:
    """Columns that say something; a bar's heading goes to the numbers beside it."""
    kept: list[Column] = []
    heading = ""
    for column in columns:
        drawn = {sign for cell in column.cells for sign in str(cell)}
        if drawn <= {_FILLED, _EMPTY}:
            heading = str(column.header) if drawn else heading
            continue
        kept.append(replace(column, header=column.header or heading))
        heading = ""
    return kept


def screen() -> Console:
    """The terminal itself, on which tables are fitted as on paper."""
    return _Paper(highlight=False)


@contextlib.contextmanager
def paper() -> Iterator[Console]:
    """Where to print; what was printed comes out when the context ends."""
    console = _Paper(highlight=False)
    if not console.is_terminal:
        console = _Paper(highlight=False, width=_WIDE)
    with console.capture() as captured:
        yield console
    click.echo("".join(f"{_trimmed(line)}\n" for line in captured.get().splitlines()), nl=False)


def _trimmed(line: str) -> str:
    """The line without blanks at its end, which would run on into the next one; styles end."""
    end = _BLANKS.search(line)
    if end is None:
        return line
    return line[: end.start()] + (_PLAIN if "\x1b" in end[0] else "")


def plain_table(*columns: str) -> Table:
    """A table without lines; columns of names are not broken."""
    table = _Fitted(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _WHOLE)
    return table


def bar(fraction: float) -> str:
    """A bar of ten steps."""
    filled = min(_BAR, max(0, round(fraction * _BAR)))
    return _FILLED * filled + _EMPTY * (_BAR - filled)


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

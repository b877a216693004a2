"""Tables for people: aligned, in colour on a terminal only, no blanks at the ends of lines.

On a narrow terminal bars and empty columns go first, then names of models get short, then texts are folded between words;
names and numbers are never broken, and what is still too wide runs on, as kubectl's tables do.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Final, NamedTuple

import click
from rich.cells import cell_len
from rich.console import COLOR_SYSTEMS, Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from partage.cli.visible import visible
from partage.vendors.traits import short_models

_WIDE: Final = 160
_BAR: Final = 10
_WHOLE: Final = frozenset(
    {"POD", "NODE", "CARD", "PHASE", "CODE", "PROTOCOL"}
    | {"COMPUTE", "MEMORY", "PODS", "SHARERS", "ASKED", "FREE"}
)
"""Columns of names, which are never broken because people copy them, and of numbers."""
_MODELS: Final = frozenset({"CARDS", "MODEL"})
_FILLED: Final = "█"
_EMPTY: Final = "░"
_GAP: Final = 2
_HEAD: Final = "bold"
_BLANKS: Final = re.compile(r"(?:\s|\x1b\[[0-9;]*m)+$")
_PLAIN: Final = "\x1b[0m"
_WORD: Final = 24
"""A word longer than this may be broken to fold a text."""


class Styled(NamedTuple):
    """A cell in a style of rich's: `text` in it, `more` behind without one."""

    text: str
    style: str
    more: str = ""

    def __str__(self) -> str:
        """As it is without colours."""
        return self.text + self.more


Cell = str | Styled


class _Drawn(str):
    """A text with its colours, made visible already."""

    __slots__ = ()


class _Paper(Console):
    """What is wider than the terminal runs on, and nothing of it is lost."""

    print = partialmethod(Console.print, crop=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Its pieces; what comes from objects gives the terminal no command."""
        for one in super().render(renderable, options):
            raw = one.control or isinstance(one.text, _Drawn)
            yield one if raw else one._replace(text=visible(one.text))


@dataclass(slots=True)
class _Column:
    """A column of a table.

    Attributes:
        texts: what they say, each text once, and the heading.
        width: in signs.
    """

    header: str
    cells: list[Cell]
    texts: frozenset[str] = frozenset()
    width: int = 0

    def __post_init__(self) -> None:
        seen = {cell: _visible(cell) for cell in set(self.cells)}
        self.cells = [seen[cell] for cell in self.cells]
        self.texts = frozenset({self.header, *map(str, seen.values())})
        self.width = max(map(_longest, self.texts))


class Line:
    """A line of cells in their styles, which runs on where it is too long; without cells an empty one."""

    def __init__(self, *cells: Cell) -> None:
        self._cells = [_visible(cell) for cell in cells]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The line."""
        yield Segment(_Drawn("".join(_coloured(console, cell) for cell in self._cells) + "\n"))


class PlainTable:
    """A table without lines that gives way on a narrow terminal; see this module's summary.

    Of a column each text is measured and drawn once: tables of thousands of rows say few things often.
    """

    def __init__(self, *columns: str, headed: bool = True) -> None:
        self._headers, self._headed = columns, headed
        self._rows: list[tuple[Cell, ...]] = []

    def add_row(self, *cells: Cell) -> None:
        """One more; cells that are left out at its end are empty."""
        self._rows.append(cells + ("",) * (len(self._headers) - len(cells)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its lines."""
        found = zip(*self._rows, strict=True) if self._rows else [()] * len(self._headers)
        given = [
            _Column(header, list(cells))
            for header, cells in zip(self._headers, found, strict=True)
        ]
        columns = _fitted(given, options.max_width)
        if all(map(_fits, columns)):
            yield Segment(_Drawn(self._straight(console, columns)))
            return
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, _GAP, 0, 0),
            header_style=_HEAD,
            show_header=self._headed,
        )
        for column in columns:
            whole = column.header in _WHOLE
            table.add_column(column.header, overflow="fold", no_wrap=whole, width=column.width)
        for row in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*map(_rich, row))
        width = sum(column.width + _GAP for column in columns)
        yield from table.__rich_console__(console, options.update(width=width, max_width=width))

    def _straight(self, console: Console, columns: Sequence[_Column]) -> str:
        """Its lines where none is folded; rich takes a hundred times as long for thousands of rows."""
        drawn = []
        for column in columns:
            head: list[Cell] = [Styled(column.header, _HEAD)] if self._headed else []
            texts = {
                cell: _coloured(console, cell) + " " * (column.width + _GAP - cell_len(str(cell)))
                for cell in {*head, *column.cells}
            }
            drawn.append([texts[cell] for cell in (*head, *column.cells)])
        return "".join(f"{''.join(line).rstrip()}\n" for line in zip(*drawn, strict=True))


def _visible(cell: Cell) -> Cell:
    if isinstance(cell, Styled):
        return Styled(visible(cell.text), cell.style, visible(cell.more))
    return visible(cell)


def _rich(cell: Cell) -> Text:
    if isinstance(cell, Styled):
        return Text(cell.text, style=cell.style).append(cell.more, "default")
    return Text(cell)


def _coloured(console: Console, cell: Cell) -> str:
    if not isinstance(cell, Styled) or not cell.text or not console.color_system:
        return str(cell)
    style = console.get_style(cell.style)
    if console.no_color:
        style = style.without_color
    system = COLOR_SYSTEMS[console.color_system]
    return style.render(cell.text, color_system=system) + cell.more


def _fits(column: _Column) -> bool:
    return all("\n" not in text and cell_len(text) <= column.width for text in column.texts)


def _fitted(columns: Sequence[_Column], width: int) -> Sequence[_Column]:
    """Columns with the width that each gets."""
    if _total(columns) > width:
        columns = _without_ornaments(columns)
    if _total(columns) > width:
        columns = [_short(column) if column.header in _MODELS else column for column in columns]
    least = [
        column.width
        if column.header in _WHOLE
        else min(column.width, max(map(_word, column.texts)))
        for column in columns
    ]
    while _total(columns) > width:
        widest = max(
            range(len(columns)), key=lambda n: (columns[n].width > least[n], columns[n].width)
        )
        if columns[widest].width == least[widest]:
            break
        columns[widest].width -= 1
    return columns


def _short(column: _Column) -> _Column:
    """The column with short names of models."""
    cells = [cell if isinstance(cell, Styled) else short_models(cell) for cell in column.cells]
    return _Column(column.header, cells)


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width + _GAP for column in columns) - _GAP


def _longest(text: str) -> int:
    return max(map(cell_len, text.splitlines()), default=0)


def _word(text: str) -> int:
    return min(_WORD, max(map(cell_len, text.split()), default=0))


def _without_ornaments(columns: Sequence[_Column]) -> list[_Column]:
    """Columns that say something; a bar's heading goes to the numbers beside it."""
    kept: list[_Column] = []
    heading = ""
    for column in columns:
        drawn = {sign for cell in set(column.cells) for sign in str(cell)}
        if drawn <= {_FILLED, _EMPTY}:
            heading = column.header if drawn else heading
            continue
        kept.append(_Column(column.header or heading, column.cells))
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
    if not line.endswith((" ", _PLAIN)):
        return line
    end = _BLANKS.search(line)
    if end is None:
        return line
    return line[: end.start()] + (_PLAIN if "\x1b" in end[0] else "")


def bar(fraction: float) -> str:
    """A bar of ten steps."""
    filled = min(_BAR, max(0, round(fraction * _BAR)))
    return _FILLED * filled + _EMPTY * (_BAR - filled)


def given(text: str) -> Cell:
    """What a pod was given, or that it has no devices."""
    return text or Styled("no devices", "dim")


def print_waiting(
    console: Console, pods: Iterable[tuple[str, str, str]], title: str = "WAITING"
) -> None:
    """Pods that wait (name, code and message), each with a line of its own for the reason: it is what people read."""
    console.print(Text(title, style="bold"))
    for name, code, message in pods:
        head = Text(f"{name}  ").append(code, style="yellow")
        console.print(head, soft_wrap=True)
        if message:
            console.print(Padding(Text(message), (0, 0, 0, 4)))

"""Tables for people: aligned, in colour on a terminal only, no blanks at the ends of lines.

On a terminal a table fits the width. Bars and empty columns go first. Then names of models become short, texts are
folded between words, a namespace is put above its name, names are cut in their middle, and the table's least
important columns go. Last, amounts are folded between words too. Numbers, and a card's kind and number, are never
broken. Figures that do not fit beside each other are put below each other. Elsewhere a row is one line of whole names.
"""

import contextlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partialmethod
from itertools import zip_longest
from typing import Final, NamedTuple, Self

import click
from rich.cells import cell_len, set_cell_size
from rich.console import COLOR_SYSTEMS, Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from partage.cli.visible import visible
from partage.vendors.traits import short_models

_WIDE: Final = 160
_BAR: Final = 10
_NAMES: Final = frozenset({"POD", "NODE", "CONTAINER", "CLAIM"})
"""Columns of names; a cut name keeps its beginning, and its end, which distinguishes a controller's pods."""
_AMOUNTS: Final = frozenset(
    {"ANNOTATION", "ASKED", "CARD", "CODE", "COMPUTE", "FREE", "MEMORY", "PHASE", "PODS"}
    | {"PROTOCOL", "SHARERS"}
)
"""Columns of numbers and single words."""
_CARD: Final = "CARD"
_MODELS: Final = frozenset({"CARDS", "MODEL"})
_FILLED: Final = "█"
_EMPTY: Final = "░"
_BARS: Final = [_FILLED * filled + _EMPTY * (_BAR - filled) for filled in range(_BAR + 1)]
_CUT: Final = "…"
_GAP: Final = 2
_HEAD: Final = "bold"
_BLANKS: Final = re.compile(r"(?:\s|\x1b\[[0-9;]*m)+")
_PLAIN: Final = "\x1b[0m"
_WORD: Final = 24
"""Folding may break a longer word, and a longer name may be cut before columns go."""
_SHORT: Final = 16
_LEAST: Final = 12
"""Least width of a folded or cut text."""


class Styled(NamedTuple):
    """A cell in a style of rich's: `text` with it, then `more` without a style."""

    text: str
    style: str
    more: str = ""

    def __str__(self) -> str:
        return self.text + self.more


Cell = str | Styled


class _Drawn(str):
    """A text with its colours, already made visible."""

    __slots__ = ()


class _Paper(Console):
    """Output without losses: too wide text continues on the next line. `wide`: names stay whole at any width."""

    wide = False
    print = partialmethod(Console.print, crop=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Its pieces; text from objects contains no command for the terminal."""
        for one in super().render(renderable, options):
            raw = one.control or isinstance(one.text, _Drawn)
            yield one if raw else one._replace(text=visible(one.text))


@dataclass(slots=True)
class _Column:
    """A column of a table.

    Attributes:
        figures: whether it is aligned right.
        texts: the cells' texts, each once, and the heading.
        width: in characters.
    """

    header: str
    cells: list[Cell]
    figures: bool = False
    texts: frozenset[str] = frozenset()
    width: int = 0

    def __post_init__(self) -> None:
        seen = {cell: _changed(cell, visible) for cell in set(self.cells)}
        self.cells = [seen[cell] for cell in self.cells]
        self.texts = frozenset({self.header, *map(str, seen.values())})
        self.width = max(map(_longest, self.texts))

    def least(self, step: int) -> int:
        """Its least width: at step 0 texts fold, at 1 long names are cut, at 2 all names, at 3 amounts fold, at 4 names get shorter, at 5 words."""
        if self.figures:
            cells = self.texts - {self.header}
            return max(_word(self.header), max(map(_longest, cells), default=0))
        if self.header in _NAMES:
            return min(self.width, (self.width, _WORD, _SHORT, _SHORT, _LEAST, _LEAST)[step])
        if self.header == _CARD and step:
            return max(map(_longest, map(_card_lines, self.texts)))
        if self.header in _AMOUNTS and step < 3:
            return self.width
        return min(self.width, max(map(_word, self.texts)), self.width if step < 5 else _LEAST)

    def of_width(self, width: int) -> Self:
        """The same with this width."""
        other = copy(self)
        other.width = width
        return other


class Line:
    """A line of cells in their styles, continued if too long; an empty line without cells."""

    def __init__(self, *cells: Cell) -> None:
        self._cells = [_changed(cell, visible) for cell in cells]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(_Drawn("".join(_coloured(console, cell) for cell in self._cells) + "\n"))


class PlainTable:
    """A table without lines that fits a narrow terminal; see this module's summary.

    It measures and draws each text of a column once, because tables of thousands of rows have few different texts.
    """

    def __init__(
        self, *columns: str, headed: bool = True, keys: int = 0, spare: Container[str] = ()
    ) -> None:
        """An empty table.

        `keys`: number of columns that identify a row, the others being figures; 0 for another kind of table. `spare`:
        columns that a narrow terminal omits.
        """
        self._headers, self._keys, self._spare = columns, keys, spare
        self._rows: list[tuple[Cell, ...]] = []
        self._between: dict[int, list[RenderableType | None]] = {0: [None]} if headed else {}

    def add_row(self, *cells: Cell) -> None:
        """Add a row; omitted cells at its end are empty."""
        self._rows.append(cells + ("",) * (len(self._headers) - len(cells)))

    def add_line(self, line: RenderableType | None = None) -> None:
        """Add a line between earlier and later rows; the headings if it has no content."""
        self._between.setdefault(len(self._rows), []).append(line)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found = zip(*self._rows, strict=True) if self._rows else [()] * len(self._headers)
        columns = [
            _Column(header, list(cells), figures=0 < self._keys <= number)
            for number, (header, cells) in enumerate(zip(self._headers, found, strict=True))
        ]
        if not console.is_terminal or _total(columns) <= options.max_width:
            parts = [columns]
        elif self._keys:
            parts = list(_parted(columns, options.max_width))
        else:
            whole = isinstance(console, _Paper) and console.wide
            parts = [_fitted(columns, options.max_width, self._spare, whole=whole)]
        for number, part in enumerate(parts):
            if number:
                yield Segment(_Drawn("\n"))
            yield from self._drawn(console, options, part)

    def _drawn(
        self, console: Console, options: ConsoleOptions, columns: Sequence[_Column]
    ) -> RenderResult:
        lines = [
            {cell: _lines(console, cell, column) for cell in set(column.cells)}
            for column in columns
        ]
        blanks = [" " * (column.width + _GAP) for column in columns]

        def row(cells: Sequence[list[str]]) -> str:
            if max(map(len, cells), default=0) < 2:  # the usual row, without a second line
                return "".join([one[0] for one in cells]).rstrip() + "\n"
            return "".join(
                f"{''.join(part or blank for part, blank in zip(line, blanks, strict=True)).rstrip()}\n"
                for line in zip_longest(*cells, fillvalue="")
            )

        heads = [_lines(console, Styled(column.header, _HEAD), column) for column in columns]
        pending: list[str] = []
        rows = zip(*(column.cells for column in columns), strict=True)
        for number in range(len(self._rows) + 1):
            for one in self._between.get(number, ()):
                if one is None:
                    pending.append(row(heads))
                    continue
                yield Segment(_Drawn("".join(pending)))
                pending.clear()
                yield from console.render(one, options)
            if number < len(self._rows):
                cells = next(rows)
                pending.append(
                    row([known[cell] for known, cell in zip(lines, cells, strict=True)])
                )
        yield Segment(_Drawn("".join(pending)))


def _rich(cell: Cell) -> Text:
    if isinstance(cell, Styled):
        return Text(cell.text, style=cell.style).append(cell.more, "default")
    return Text(cell)


def _coloured(console: Console, cell: Cell) -> str:
    if not isinstance(cell, Styled):
        return cell
    return _inked(console, cell.text, console.get_style(cell.style)) + cell.more


def _inked(console: Console, text: str, style: Style | None) -> str:
    if style is None or not text or not console.color_system:
        return text
    if console.no_color:
        style = style.without_color
    return style.render(text, color_system=COLOR_SYSTEMS[console.color_system])


def _lines(console: Console, cell: Cell, column: _Column) -> list[str]:
    """A drawn cell, with the blanks up to the next column."""
    text = str(cell)
    if "\n" not in text and cell_len(text) <= column.width:
        return [_padded(_coloured(console, cell), cell_len(text), column)]
    if column.header in _NAMES:
        cell = _changed(cell, lambda words: _short_names(words, column.width))
    if column.header == _CARD:
        cell = _changed(cell, _card_lines)
    folded = _rich(cell).wrap(console, column.width, overflow="fold")
    for line in folded:
        line.rstrip()
    return [
        _padded(
            "".join(_inked(console, part.text, part.style) for part in line.render(console)),
            line.cell_len,
            column,
        )
        for line in folded
    ]


def _padded(drawn: str, width: int, column: _Column) -> str:
    blanks = " " * (column.width - width)
    return f"{blanks}{drawn}{' ' * _GAP}" if column.figures else f"{drawn}{blanks}{' ' * _GAP}"


def _fitted(
    columns: list[_Column], width: int, spare: Container[str], *, whole: bool
) -> list[_Column]:
    """Columns with their final widths."""
    columns = _without_ornaments(columns)
    if _total(columns) > width:
        columns = [_short(column) if column.header in _MODELS else column for column in columns]
    if whole:
        return _narrowed(columns, width, 0)
    needed = [column for column in columns if column.header not in spare]
    for step, some in ((0, columns), (1, columns), *((step, needed) for step in range(1, 6))):
        columns = _narrowed(some, width, step)
        if _total(columns) <= width:
            break
    return columns


def _narrowed(columns: Sequence[_Column], width: int, step: int) -> list[_Column]:
    """The columns, with the widest made narrower until all fit or none can shrink; `step` as in `_Column.least`."""
    least = [column.least(step) for column in columns]
    widths = [
        narrow if column.header == _CARD else column.width
        for column, narrow in zip(columns, least, strict=True)
    ]
    over = _total(columns) - width
    while over > 0:
        widest = max(range(len(widths)), key=lambda n: (widths[n] > least[n], widths[n]))
        if widths[widest] == least[widest]:
            break
        widths[widest] -= 1
        over -= 1
    return [column.of_width(one) for column, one in zip(columns, widths, strict=True)]


def _parted(columns: Sequence[_Column], width: int) -> Iterator[list[_Column]]:
    """Tables of as many figures as fit beside the key columns, of which the first one is repeated."""
    keys = [column for column in columns if not column.figures]
    part = list(keys)
    for column in columns[len(keys) :]:
        narrow = column.of_width(column.least(0))
        if (
            len(part) > len(keys)
            and sum(one.least(0) + _GAP for one in part) + narrow.width > width
        ):
            yield _narrowed(part, width, 0)
            keys = keys[:1]
            part = list(keys)
        part.append(narrow)
    yield _narrowed(part, width, 0)


def _short(column: _Column) -> _Column:
    """The column with short names of models."""
    return _Column(column.header, [_changed(cell, short_models) for cell in column.cells])


def _changed(cell: Cell, change: Callable[[str], str]) -> Cell:
    if isinstance(cell, Styled):
        return Styled(change(cell.text), cell.style, change(cell.more))
    return change(cell)


def _card_lines(text: str) -> str:
    """One line for each kind of cards."""
    return text.replace(", ", ",\n")


def _short_names(text: str, width: int) -> str:
    """The text without the middle of words longer than the width; a namespace without room is above its name."""
    return " ".join(_short_name(word, width) for word in text.split(" "))


def _short_name(name: str, width: int) -> str:
    if cell_len(name) <= width:
        return name
    namespace, slash, own = name.rpartition("/")
    if slash:
        return f"{_short_name(namespace, width - 1)}/\n{_short_name(own, width)}"
    end = (width - 1) // 2
    return f"{set_cell_size(name, width - 1 - end)}{_CUT}{set_cell_size(name[::-1], end)[::-1]}"


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width + _GAP for column in columns) - _GAP


def _longest(text: str) -> int:
    return max(map(cell_len, text.splitlines()), default=0)


def _word(text: str) -> int:
    return min(_WORD, max(map(cell_len, text.split()), default=0))


def _without_ornaments(columns: Sequence[_Column]) -> list[_Column]:
    """Columns with content; a bar's heading goes to the numbers beside it."""
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


def screen(*, wide: bool = False) -> Console:
    """The terminal itself, with tables fitted as on paper."""
    console = _Paper(highlight=False)
    console.wide = wide
    return console


@contextlib.contextmanager
def paper(*, wide: bool = False) -> Iterator[Console]:
    """A console for output, which is written when the context ends. `wide`: names stay whole, for `-o wide`."""
    console = screen(wide=wide)
    if not console.is_terminal:
        console.width = _WIDE
    with console.capture() as captured:
        yield console
    click.echo("".join(f"{_trimmed(line)}\n" for line in captured.get().splitlines()), nl=False)


def _trimmed(line: str) -> str:
    """The line without blanks at its end, which would continue on the next one; styles end."""
    if not line.endswith((" ", _PLAIN)):
        return line
    runs = list(_BLANKS.finditer(line))  # searching for the last run alone is quadratic
    if not runs or runs[-1].end() < len(line):
        return line
    end = runs[-1]
    return line[: end.start()] + (_PLAIN if "\x1b" in end[0] else "")


def bar(fraction: float) -> str:
    """A bar of ten steps."""
    return _BARS[min(_BAR, max(0, round(fraction * _BAR)))]


def given(text: str) -> Cell:
    """A pod's grants, or a note that it has no devices."""
    return text or Styled("no devices", "dim")


def print_waiting(
    console: Console, pods: Iterable[tuple[str, str, str]], title: str = "WAITING"
) -> None:
    """Print waiting pods (name, code and message), each reason on a line of its own, because people read these."""
    console.print(Text(title, style="bold"))
    for name, code, message in pods:
        head = Text(f"{name}  ").append(code, style="yellow")
        console.print(head, soft_wrap=True)
        if message:
            console.print(Padding(Text(message), (0, 0, 0, 4)))

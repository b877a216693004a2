"""Redraws a table on the whole screen every few seconds, until Ctrl-C or `q`; arrow keys move a longer one."""

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Final

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from partage.cli.early_signals import pressed
from partage.cli.tables import screen


def watched(every: float, show: Callable[[Console], None], *, wide: bool) -> None:
    """Show output repeatedly; ends with exit code 0 at Ctrl-C, `q` or SIGTERM.

    `show`: asks, and prints to the given console. `wide`: names stay whole. Raises `click.UsageError`: there is no
    terminal.
    """
    console = screen()
    if not console.is_terminal:
        raise click.UsageError("--watch needs a terminal; leave it out, or use -o json in a loop")

    if console.is_dumb_terminal:
        raise click.UsageError(
            "--watch needs a terminal that can be drawn on, and TERM says that this one is dumb; "
            "leave it out, or set TERM"
        )

    # Otherwise the terminal would stay on the other screen. SIGINT too, because the caller may have ignored it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pressed)
    first = 0
    try:
        with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                page = screen(wide=wide)  # not the live console, which would draw itself into it
                with page.capture() as captured:
                    show(page)
                lines = list(
                    Text.from_ansi(captured.get()).wrap(page, page.width, overflow="fold")
                )
                rows = len(lines) if len(lines) <= page.height else page.height - 1
                end = time.monotonic() + every
                typed: str | None = ""
                while typed is not None:
                    for one in _KEY.findall(typed):
                        if one == _QUIT:
                            return
                        first += _LINES.get(one, 0) + _SCREENS.get(one, 0) * rows
                        first = max(0, min(first, len(lines) - rows))
                    first = min(first, len(lines) - rows)
                    live.update(_part(lines, first, rows), refresh=True)
                    typed = key(end - time.monotonic())
    except KeyboardInterrupt:
        sys.exit(0)


_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
_QUIT: Final = "q"
_LINES: Final = {"\x1b[A": -1, "\x1bOA": -1, "k": -1, "\x1b[B": 1, "\x1bOB": 1, "j": 1}
_SCREENS: Final = {"\x1b[5~": -1, "b": -1, "\x1b[6~": 1, " ": 1} | {
    f"\x1b{one}": screens
    for names, screens in (("[H OH [1~", -10_000), ("[F OF [4~", 10_000))
    for one in names.split()
}
"""By keys, as in `less`: lines up or down, and screens; Home and End go to either end."""


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """What is typed within so many seconds, without Enter and echo; None for nothing, or without a terminal to type at."""
    source = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if source is None:
        yield lambda seconds: time.sleep(max(0.0, seconds))
        return

    def typed(seconds: float) -> str | None:
        ready, _, _ = select.select([source], [], [], max(0.0, seconds))
        found = os.read(source, 64).decode(errors="replace") if ready else None
        return None if found is None else found or _QUIT  # the terminal is closed

    before = termios.tcgetattr(source)
    tty.setcbreak(source)
    try:
        yield typed
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)


def _part(lines: list[Text], first: int, rows: int) -> Text:
    """So many lines from one on; below them the number of the others, if there are any."""
    found = Text("\n", no_wrap=True).join(lines[first : first + rows])
    if rows < len(lines):
        more = f"{len(lines) - rows - first} lines more"
        found.append(
            f"\n{more}; arrow keys move, q ends"
            if not first
            else f"\n{first} lines above, {more}",
            "dim",
        )
    return found

"""Redraws a table on the whole screen every few seconds, until Ctrl-C."""

import signal
import sys
import time
from collections.abc import Callable

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from partage.cli.early_signals import pressed
from partage.cli.tables import screen


def watched(every: float, show: Callable[[Console], None], *, wide: bool) -> None:
    """Show output repeatedly; ends with exit code 0 at Ctrl-C or SIGTERM.

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
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                page = screen(wide=wide)  # not the live console, which would draw itself into it
                with page.capture() as captured:
                    show(page)
                live.update(_cut(captured.get(), page), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        sys.exit(0)


def _cut(text: str, page: Console) -> Text:
    """As many lines as the screen has, long ones folded; the last one has the number of omitted lines."""
    lines = Text.from_ansi(text).wrap(page, page.width, overflow="fold")
    shown = lines if len(lines) <= page.height else lines[: page.height - 1]
    found = Text("\n", no_wrap=True).join(shown)
    if len(shown) < len(lines):
        found.append(f"\n{len(lines) - len(shown)} lines more", style="dim")
    return found

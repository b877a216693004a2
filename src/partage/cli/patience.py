"""Prints a line about a command's progress after two seconds.

It prints only on a terminal, because a reader of a pipe or a log does not wait for the command.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Final

import click

from partage.cli.visible import visible

_SILENCE: Final = 2.0
"""Seconds."""


@contextlib.contextmanager
def patience(doing: str, silence: float = _SILENCE) -> Iterator[None]:
    """Print the work inside this context on standard error if it takes longer than the silence."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(
        silence, click.echo, (visible(f"{doing}; Ctrl-C ends it"),), {"err": True}
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()

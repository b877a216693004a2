"""A line about what a command is doing, once that takes longer than two seconds.

On a terminal alone: in a pipe or a log no reader wonders whether the command still runs.
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
    """Say on standard error what is being done inside, where it takes longer than a silence in seconds."""
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

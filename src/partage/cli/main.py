"""The `partage` command: one group, one module a subcommand, imported when it is needed."""

import difflib
import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from partage import __version__
from partage.cli.ending import CANNOT
from partage.cli.signals import end_at_once

_COMMANDS: Final = {
    "agent": "partage.cli.agent",
    "completion": "partage.cli.completion",
    "discover": "partage.cli.discover",
    "doctor": "partage.cli.doctor",
    "explain": "partage.cli.explain",
    "inspect": "partage.cli.inspect",
    "replay": "partage.cli.replay",
    "schedule": "partage.cli.schedule",
    "scheduler": "partage.cli.scheduler",
    "simulate": "partage.cli.simulate",
    "snapshot": "partage.cli.snapshot",
    "top": "partage.cli.top",
    "up": "partage.cli.up",
    "webhook": "partage.cli.webhook",
    "withdraw": "partage.cli.withdraw",
}
"""Subcommand to the module that holds it under the same name."""
_SERVICES: Final = frozenset({"agent", "scheduler", "up", "webhook"})
"""Those that run until a signal ends them."""
_RARELY: Final = 1_000_000
"""New objects between two collections of garbage in the others, which mostly gather what stays until it is printed."""

_UNWRITTEN: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a full disk or a broken one says to who writes."""


class _Lazy(click.Group):
    """A group that imports a subcommand only when it is run or its help is asked for."""

    _program = False

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Run as a program, which owns its signals."""
        self._program = True
        end_at_once(service=False)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A terminal without our signs gets question marks.
                stream.reconfigure(errors="replace")
        try:
            return _written(super().__call__, *args, **given)
        except OSError as error:
            if error.errno not in _UNWRITTEN | {errno.EPIPE}:
                raise
            with Path(os.devnull).open("wb") as nowhere:  # what is left must not be tried again
                os.dup2(nowhere.fileno(), 1)
            if error.errno == errno.EPIPE:  # the reader has seen enough
                sys.exit(1)
            said = f"the output cannot be written: {error.strerror}; free some space, or write elsewhere"
            click.echo(f"partage: {said}", err=True)
            sys.exit(CANNOT)
        finally:
            # The interpreter looks at all objects once more at its end, seconds of it for a large cluster's.
            gc.freeze()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all subcommands."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand of that name, or None."""
        del ctx
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        if self._program and cmd_name in _SERVICES:
            end_at_once(service=True)
        elif self._program:
            gc.set_threshold(_RARELY)
        command = getattr(importlib.import_module(module), cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand that was typed; for one that there is not, the nearest is suggested."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=2)
            if near:
                said = f"{error.message} Did you mean {' or '.join(near)}?"
                raise click.UsageError(said, ctx) from error
            raise


def _written(command: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """What the command answers, once all that it printed is written."""
    try:
        return command(*args, **given)
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="partage")
def main() -> None:
    """Fractions of accelerators on Kubernetes: four protocols, one pool, one ledger."""


if __name__ == "__main__":
    main()

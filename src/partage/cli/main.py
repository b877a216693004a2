"""The `partage` command: one group, one module a subcommand, imported when it is needed."""

import contextlib
import difflib
import errno
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from partage import __version__
from partage.cli.early_signals import end_at_once, pressed
from partage.cli.ending import CANNOT

_COMMANDS: Final = {
    "Ask a cluster": {
        "top": "Show the use of devices, and which pods wait.",
        "explain": "Say why POD is where it is, or why it waits.",
        "inspect": "Show each card of NODE, or of all nodes, and the pods on it.",
        "doctor": "Find faults in the setup, each with its rule and its repair.",
    },
    "Without a cluster": {
        "up": "Start a whole cluster in this process, and end it with Ctrl-C.",
        "schedule": "Place the pods of manifests, without a cluster.",
        "simulate": "Replay a trace or change a cluster, and compare policies.",
        "replay": "Take the decisions of FILE again, without a cluster.",
    },
    "Programs of a cluster": {
        "scheduler": "Decide about pods with devices, and keep the ledger.",
        "webhook": "Complete and check pods that ask for devices.",
        "agent": "Find this node's devices, and give them to containers.",
    },
    "Others": {
        "completion": "Print the completion for SHELL: bash, zsh or fish.",
        "discover": "Look for accelerators and RDMA cards on this node, once.",
        "snapshot": "Write what a cluster's decisions depend on to one file.",
        "withdraw": "Take back what Partage wrote in the cluster.",
    },
}
"""Heading to subcommands, each with the first sentence of its help, so that a list loads none of them.

Each has the module of its name in this package."""
_NAMES: Final = {name: told for commands in _COMMANDS.values() for name, told in commands.items()}
_SERVICES: Final = frozenset({"agent", "scheduler", "up", "webhook"})
"""Subcommands that run until a signal ends them."""
_RARELY: Final = 1_000_000
"""New objects between two garbage collections while modules are loaded, and in the other subcommands to their end: such objects
mostly stay."""

_UNWRITTEN: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""Errors of a write to a full or broken disk, or to an output that the caller has closed."""


class _Closed(io.TextIOBase):
    """Standard output that the caller has closed: whatever is written to it would be lost without a word."""

    def write(self, _text: str, /) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class _Lazy(click.Group):
    """A group that imports a subcommand only for its run or its help."""

    _program = False

    def __call__(self, *args: Any, **given: Any) -> Any:
        """Run as a program, which handles its signals."""
        self._program = True
        end_at_once(service=False)
        if sys.stdout is None:
            sys.stdout = _Closed()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A terminal without our characters gets question marks.
                stream.reconfigure(errors="replace")
        try:
            return _written(super().__call__, *args, **given)
        except OSError as error:
            if error.errno not in _UNWRITTEN | {errno.EPIPE}:
                raise
            with Path(os.devnull).open("wb") as nowhere:  # do not write the rest again
                os.dup2(nowhere.fileno(), 1)
            if error.errno == errno.EPIPE:  # the reader closed the pipe
                sys.exit(1)
            space = "" if error.errno == errno.EBADF else "free some space, or "
            said = f"the output cannot be written: {error.strerror}; {space}write elsewhere"
            click.echo(f"partage: {said}", err=True)
            sys.exit(CANNOT)
        finally:
            # At its end the interpreter collects all objects once more, which takes seconds for a large cluster's.
            gc.freeze()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the typed arguments; none may be empty, because it would count as one that was left out."""
        for before, one in pairwise(["partage", *args]):
            option, given, value = one.partition("=")
            left = bool(given) and option.startswith("--") and not value.strip()
            if (left or not one.strip()) and not ctx.resilient_parsing:
                where = option + given if left else before
                said = f"the value after {where} is empty, as of a variable that is not set; write one"
                raise click.UsageError(said, ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. Ctrl-C ends the program by its signal, without a word, so that a shell's loop ends too."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if self._program:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                with contextlib.suppress(OSError):
                    sys.stdout.flush()
                signal.raise_signal(signal.SIGINT)
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all subcommands."""
        del ctx
        return sorted(_NAMES)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them under headings."""
        del ctx
        for title, commands in _COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Subcommands with this beginning, and the options."""
        found = [
            CompletionItem(name, help=told)
            for name, told in _NAMES.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand of that name, or None."""
        del ctx
        if cmd_name not in _NAMES:
            return None
        service, before = self._program and cmd_name in _SERVICES, gc.get_threshold()
        if service:
            end_at_once(service=True)
        if self._program:
            gc.set_threshold(_RARELY)
        command = getattr(importlib.import_module(f"partage.cli.{cmd_name}"), cmd_name)
        if service:
            gc.freeze()  # modules stay, so later collections seldom search them
            gc.set_threshold(*before)
        if self._program and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, pressed)  # what it does is put away
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The typed subcommand; the error for an unknown one suggests the nearest."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], _NAMES, n=2)
            if args[0] in {"help", "version"}:
                near = [f"partage --{args[0]}"]
            if near:
                said = f"{error.message} Did you mean {' or '.join(near)}?"
                raise click.UsageError(said, ctx) from error
            raise


def _written(command: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """The command's result, after all its output is written."""
    try:
        return command(*args, **given)
    finally:
        sys.stdout.flush()


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="partage")
def main() -> None:
    """Fractions of accelerators on Kubernetes: four protocols, one pool, one ledger.

    \b
    Examples:
      partage up      # a whole cluster to try
      partage schedule examples/mixed
      partage top
    """  # noqa: D301 # click wants the control character itself


if __name__ == "__main__":
    main()

"""The `partage` command: one group, one module a subcommand, imported when it is needed."""

import importlib
from typing import Final

import click

from partage import __version__

__all__ = ["main"]

_COMMANDS: Final = {
    "agent": "partage.cli.agent",
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


class _Lazy(click.Group):
    """A group that imports a subcommand only when it is run or its help is asked for."""

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
        command = getattr(importlib.import_module(module), cmd_name)
        return command if isinstance(command, click.Command) else None


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="partage")
def main() -> None:
    """Fractions of accelerators on Kubernetes: four protocols, one pool, one ledger."""


if __name__ == "__main__":
    main()

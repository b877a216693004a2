"""`partage withdraw`: removes Partage's writes from a cluster after it was uninstalled."""

import asyncio
import os
from typing import Any, Final

import click

from partage.cli.ending import end
from partage.cli.parameters import Real, cluster_options, flag, option
from partage.cli.patience import patience
from partage.daemon.withdrawing import Outcome
from partage.daemon.withdrawing import withdraw as take_back
from partage.kube.client import Client
from partage.kube.errors import ConfigError, Forbidden, KubeError
from partage.kube.loading import load_config

LEFT: Final = 3


@click.command()
@cluster_options
@option(
    "--wait",
    type=Real(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="Time for Partage's own pods to end.",
)
@flag(
    "--force",
    help="Go on even if Partage's pods run, and on nodes whose devices pods or claims hold.",
)
@flag("--dry-run", help="Say what would be done, and change nothing.")
def withdraw(**given: Any) -> None:
    """Take back what Partage wrote in the cluster.

    Node totals, labels and annotations that Partage wrote last, the Device objects of its agents, and
    their Leases. What others wrote stays, and so do records on pods. The chart does this when it is
    uninstalled; run it after plain manifests were deleted, or once nodes that were left are free.

    \b
    Examples:
      partage withdraw --dry-run
      partage withdraw --wait 60

    \b
    Exit status:
      0  nothing of Partage is left on nodes
      2  the cluster cannot be read or changed; one line says why and what to try
      3  something was left: Partage still runs, or pods or claims hold devices
    """  # noqa: D301 # click wants the control character itself
    try:
        with patience("asking the API server"):
            outcome = asyncio.run(_withdrawn(given))
    except ConfigError as error:
        end(error)
    except Forbidden as error:
        end(
            f"you may not do that: {error}. With --context, name a user that may list pods and resourceclaims, and "
            "patch nodes and their status, devices.scheduling.koordinator.sh and Leases"
        )
    except KubeError as error:
        end(f"the API server did not answer: {error}. Check the address, and run it again")
    if outcome.running:
        pods = ", ".join(outcome.running)
        end(
            f"Partage runs, and would write everything again: {pods}; uninstall it first, or add --force",
            LEFT,
        )
    for line in outcome.left:
        click.echo(f"left: {line}")
    if outcome.left:
        end(
            "what Partage wrote on these nodes stays while pods hold devices there: delete these pods and "
            "run it again, or add --force",
            LEFT,
        )
    if not outcome.done:
        click.echo("nothing of Partage is here")


async def _withdrawn(given: dict[str, Any]) -> Outcome:
    config = load_config(os.environ, kubeconfig=given["kubeconfig"], context=given["context"])
    would = "would: " if given["dry_run"] else ""
    async with Client(config, environ=os.environ) as client:
        return await take_back(
            client,
            lambda line: click.echo(f"{would}{line}"),
            wait=given["wait"],
            force=given["force"],
            dry_run=given["dry_run"],
        )

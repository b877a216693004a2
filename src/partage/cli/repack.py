"""`partage simulate repack`: the pods to restart so that pods that wait for instances get them."""

import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

import click
from rich.text import Text

from partage.cli.ending import end
from partage.cli.parameters import output_option, policy_option, strict_option
from partage.cli.patience import patience
from partage.cli.reading import batches, named
from partage.cli.structured import structured
from partage.cli.tables import paper
from partage.cli.visible import noted
from partage.model.allocation import Allocation
from partage.model.errors import InvalidDocument
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.sim.repacking import MOST, Proposal, propose
from partage.wire.cluster import assemble

SOME_WAIT: Final = 3


@click.command(name="repack")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--may-restart",
    "patterns",
    multiple=True,
    required=True,
    metavar="NAMESPACE/NAME",
    help="Pods that may be restarted, as a shell pattern such as 'batch/*'. May be repeated.",
)
@policy_option("%s, or NODE/CARD. Default: the cluster's own.")
@strict_option
@output_option("How to print the plans.")
def repack(
    files: tuple[str, ...],
    patterns: tuple[str, ...],
    policy: Policy | None,
    strict: bool,  # noqa: FBT001 # click passes every option by its name
    output: str,
) -> None:
    """Say which pods to restart for those that wait for an instance.

    FILE is what `partage schedule` reads. An instance cannot move while it exists, so its pod must
    be restarted. Each plan restarts as few pods as possible, and the engine tries it. Plans are
    independent: carry out one, then ask again. This command restarts nothing.

    \b
    Examples:
      partage simulate repack dump.yaml --may-restart 'batch/*'
      partage simulate repack dump.yaml --may-restart 'team/job-*' -o json

    \b
    Exit status:
      0  no pod waits for an instance, or each has a plan
      2  FILE is missing, or a document cannot be decoded as its kind
      3  some wait, and no plan was found for them
    """  # noqa: D301 # click wants the control character itself
    try:
        with patience(f"reading {named(files)}"):
            cluster = assemble(list(batches(files, strict=strict)))
    except InvalidDocument as error:
        end(error)
    noted(cluster.notes)

    def may_move(pod: Pod) -> bool:
        return any(fnmatchcase(pod.key, pattern) for pattern in patterns)

    with patience("looking for restarts"):
        found = propose(cluster, may_move, policy)
    if not structured(output, [_document(one) for one in found]):
        _print(found)
    sys.exit(SOME_WAIT if any(one.place is None for one in found) else 0)


def _print(found: tuple[Proposal, ...]) -> None:
    with paper() as console:
        if not found:
            console.print("no pod waits for a hardware instance")
        for line in (line for one in found for line in _lines(one)):
            console.print(Text(line), soft_wrap=True)


def _lines(one: Proposal) -> Iterator[str]:
    yield f"{one.pod.key} waits: {one.why}"
    if one.place is None:
        yield f"  no plan: restarting up to {MOST} of the pods named does not help"
        return
    for pod, held, then in one.restarts:
        yield f"  restart {pod.key}: {_where(held)} -> {_where(then)}"
    yield f"  then {one.pod.key} gets {_where(one.place)}"


def _document(one: Proposal) -> dict[str, Any]:
    return {
        "namespace": one.pod.namespace,
        "name": one.pod.name,
        "reason": one.why,
        "planned": one.place is not None,
        "restarts": [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "from": _instances(held),
                "to": _instances(then),
            }
            for pod, held, then in one.restarts
        ],
        "place": None if one.place is None else _instances(one.place),
    }


def _instances(one: Allocation) -> list[dict[str, Any]]:
    return [
        {
            "node": one.node,
            "uuid": grant.uuid,
            "minor": grant.minor,
            "profile": grant.mig.profile if grant.mig else None,
            "start": grant.mig.start if grant.mig else None,
        }
        for grant in one.grants
    ]


def _where(one: Allocation) -> str:
    return ", ".join(
        f"{grant.mig.profile} at {grant.mig.start} of card {grant.minor} of {one.node}"
        if grant.mig
        else f"card {grant.minor} of {one.node}"
        for grant in one.grants
    )

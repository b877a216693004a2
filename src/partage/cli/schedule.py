"""`partage schedule`: decides about the pods of manifests, without a cluster."""

import sys

import click

from partage.cli.ending import end
from partage.cli.parameters import output_option, policy_option, strict_option
from partage.cli.patience import patience
from partage.cli.reading import batches, named
from partage.cli.report import document, print_tables
from partage.cli.structured import structured
from partage.model.errors import InvalidDocument
from partage.model.policy import Policy
from partage.sim.offline import schedule as run
from partage.wire.cluster import assemble

ALL_PLACED = 0
SOME_WAIT = 3


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@policy_option(
    "Policy for pods that name none: %s, or NODE/CARD such as spread/binpack. Default: the one "
    "that a ConfigMap of FILE sets, else partage."
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="Permute the order among equally good nodes. Default: their order in FILE.",
)
@strict_option
@output_option("How to print the outcome.")
def schedule(
    files: tuple[str, ...],
    policy: Policy | None,
    seed: int | None,
    strict: bool,  # noqa: FBT001 # click passes every option by its name
    output: str,
) -> None:
    """Place the pods of manifests, without a cluster.

    FILE is YAML or JSON with any number of documents, a List, a folder, or - for standard input.
    Known kinds: Node, Device, Pod, Deployment, ReplicaSet, StatefulSet, Job, Namespace, ConfigMap,
    ResourceQuota, PriorityClass, ResourceClaim, ResourceClaimTemplate, DeviceClass, ResourceSlice;
    others are skipped with a note. Pods that have a node already and claims that are allocated are
    state; the other pods are scheduled by priority, then in the order of the files, and get the claims
    that they name as Kubernetes would allocate them.

    \b
    Examples:
      partage schedule examples/mixed
      kubectl get nodes,pods -A -o yaml | partage schedule - pod.yaml
      partage schedule cluster.yaml --policy spread -o json

    \b
    Exit status:
      0  every pod has a place
      2  FILE is missing or cannot be decoded, or --strict refuses it
      3  some pods wait; the output says why
    """  # noqa: D301 # click wants the control character itself
    try:
        with patience(f"reading {named(files)}"):
            known = assemble(list(batches(files, strict=strict)))
        with patience("deciding"):
            outcome = run(known, policy, seed)
    except InvalidDocument as error:
        end(error)
    if output == "table":
        print_tables(outcome)
    else:
        structured(output, document(outcome))
    sys.exit(SOME_WAIT if outcome.waiting else ALL_PLACED)

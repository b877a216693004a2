"""`partage replay`: repeats the decisions of a snapshot or a recording offline."""

import asyncio
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from partage.cli.ending import end
from partage.cli.parameters import output_option, policy_option
from partage.cli.patience import patience
from partage.cli.structured import structured
from partage.cli.tables import Cell, PlainTable, Styled, paper
from partage.model.errors import InvalidDocument, PartageError
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.scheduler.events import Placement
from partage.sim.predicted import predicted
from partage.sim.rerun import Compared, rerun
from partage.wire.documents import Batch, decode, read_file
from partage.wire.journal import LONGEST, read_lines
from partage.wire.snapshot import snapshot_header

DIFFERENT: Final = 3
_HEAD: Final = 2**12
_MOST: Final = 50
"""Most shown differences; all are counted."""

Decision = Placement | Refusal


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@policy_option(
    "What if: %s, or NODE/CARD such as spread/binpack, instead of the policy that was in force."
)
@output_option("How to print the outcome.")
def replay(file: Path, policy: Policy | None, output: str) -> None:
    """Take the decisions of FILE again, without a cluster. The engine is the real one.

    FILE is a file of partage snapshot, or of partage scheduler --record. For a snapshot: the place
    of each waiting pod, or why it waits, as the live service would report. For a recording: every
    decision again, compared to the last card, reason and number. With --policy either shows the
    differences under that policy. For sums under other policies, other nodes or shares give a
    snapshot to partage simulate cluster.

    \b
    Examples:
      partage replay snapshot.yaml
      partage replay snapshot.yaml --policy spread
      partage replay decisions.jsonl -o json

    \b
    Exit status:
      0  recording: every decision is the same; snapshot: every pod has a place
      2  FILE is missing or is neither
      3  recording: some decision differs; snapshot: some pod waits
    """  # noqa: D301 # click wants the control character itself
    try:
        with file.open("rb") as lines:
            first = lines.readline(_HEAD)
        with patience(f"taking the decisions of {file} again"):
            if first.lstrip().startswith(b'{"kind":"Record"'):
                found = _record(file, policy)
            else:
                found = _snapshot(file, policy)
    except OSError as error:
        end(f"{file}: {error.strerror}; name a file of partage snapshot or scheduler --record")
    except PartageError as error:
        end(str(error))
    if not structured(output, found):
        with paper() as console:
            (_print_record if found["kind"] == "Record" else _print_snapshot)(console, found)
    sys.exit(DIFFERENT if found["different"] or found.get("waiting") else 0)


def _record(file: Path, policy: Policy | None) -> dict[str, Any]:
    differences: list[dict[str, Any]] = []
    total = different = placed = 0
    with file.open("rb") as lines:
        for one in rerun(
            read_lines(str(file), iter(lambda: lines.readline(LONGEST), b"")), policy
        ):
            total += 1
            placed += isinstance(one.question.decision, Placement)
            if not one.same:
                different += 1
                if len(differences) < _MOST:
                    differences.append(_difference(one))
    return {
        "kind": "Record",
        "policy": str(policy) if policy else None,
        "decisions": total,
        "placed": placed,
        "refused": total - placed,
        "same": total - different,
        "different": different,
        "differences": differences,
    }


def _difference(one: Compared) -> dict[str, Any]:
    asked = one.question
    return {
        "id": one.id,
        "verb": asked.verb,
        "pod": asked.pod.key,
        "then": _told(asked.decision),
        "now": _told(one.now),
    }


def _told(decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Refusal):
        return {"node": None, "cards": [], "reason": _reason(decision)}
    grants = decision.allocation.grants
    cards = list(dict.fromkeys(f"{grant.type} {grant.minor}" for grant in grants))
    return {"node": decision.allocation.node, "cards": cards, "reason": None}


def _reason(refusal: Refusal) -> dict[str, Any]:
    nodes = {
        name: {"code": why.code.value, "message": why.message}
        for name, why in refusal.nodes.items()
    }
    return {"code": refusal.code.value, "message": refusal.message, "nodes": nodes}


def _said(told: dict[str, Any] | None) -> Cell:
    if told is None:
        return ""
    if told["reason"]:
        return Styled(f"{told['reason']['code']}: {told['reason']['message']}", "yellow")
    return f"{told['node']}: {', '.join(told['cards']) or 'no card'}"


def _print_record(console: Console, found: dict[str, Any]) -> None:
    under = f" under policy {found['policy']}" if found["policy"] else ""
    console.print(
        f"{found['decisions']} decisions taken again{under}: {found['same']} the same, "
        f"{found['different']} different"
    )
    if not found["differences"]:
        return
    console.print()
    table = PlainTable("DECISION", "VERB", "POD", "THEN", "NOW")
    for one in found["differences"]:
        table.add_row(one["id"], one["verb"], one["pod"], _said(one["then"]), _said(one["now"]))
    console.print(table)
    if found["different"] > len(found["differences"]):
        console.print(f"the first {len(found['differences'])} of {found['different']}")


def _snapshot(file: Path, policy: Policy | None) -> dict[str, Any]:
    data = read_file(file)
    head = snapshot_header(str(file), data)
    if head is None:
        raise InvalidDocument(
            f"{file}: is neither a snapshot nor a recording: write one with partage snapshot -o FILE "
            "or partage scheduler --record FILE; for plain manifests use partage schedule"
        )
    batch = decode(str(file), data)
    own = Policy.parse(head.policy)
    pods = list(_predictions(batch, own, policy))
    return {
        "kind": "Snapshot",
        "at": head.at,
        "policy": str(policy or own),
        "waiting": sum(one["now"]["reason"] is not None for one in pods),
        "different": sum(one["then"] is not None and one["then"] != one["now"] for one in pods),
        "pods": pods,
    }


def _predictions(batch: Batch, own: Policy, other: Policy | None) -> Iterator[dict[str, Any]]:
    """Predictions for every waiting pod; the file has nodes in the service's order of preference."""
    today = asyncio.run(predicted(batch.documents, own))
    changed = asyncio.run(predicted(batch.documents, other, force=True)) if other else []
    for (pod, one), two in zip_longest(today, changed):
        yield {
            "namespace": pod.namespace,
            "name": pod.name,
            "then": _told(one) if two else None,
            "now": _told(two[1] if two else one),
        }


def _print_snapshot(console: Console, found: dict[str, Any]) -> None:
    pods = found["pods"]
    console.print(
        f"{len(pods)} pods with devices wait; under policy {found['policy']} "
        f"{len(pods) - found['waiting']} would get a place now"
    )
    if not pods:
        return
    console.print()
    what_if = any(one["then"] for one in pods)
    table = PlainTable("POD", *(["TODAY", "THEN"] if what_if else ["NOW"]))
    for one in pods:
        row = [_said(one["then"]), _said(one["now"])] if what_if else [_said(one["now"])]
        table.add_row(f"{one['namespace']}/{one['name']}", *row)
    console.print(table)

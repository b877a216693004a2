"""Output of `partage schedule`: a document for programs, tables for people.

The document's shape is a stable interface. A release may add keys and never changes the meaning of one.
"""

from typing import Any

from rich.console import Console
from rich.text import Text

from partage.cli.tables import Cell, PlainTable, Styled, bar, given, paper, print_waiting
from partage.inventory.card import Card
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.model.quantity import brief
from partage.sim.offline import Outcome, PodOutcome
from partage.wire.outcomes import (
    cards_text,
    closed_code,
    device_document,
    given_text,
    grant_document,
    refusal_document,
    said,
)


def document(outcome: Outcome) -> dict[str, Any]:
    """The result as plain values, ready for JSON."""
    claims = {"claims": _claims(outcome)} if outcome.cluster.claims else {}
    return {
        "pods": [_pod(pod) for pod in outcome.pods],
        "nodes": [_node(outcome, node) for node in outcome.cluster.nodes],
        "policy": str(outcome.policy),
        "notes": list(outcome.notes),
        **claims,
    }


def _claims(outcome: Outcome) -> list[dict[str, Any]]:
    """ResourceClaims with their amounts of cards."""
    return [
        {
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
            "allocations": [
                grant_document(grant, node)
                for node, record in claim.records.items()
                for grant in record.grants
            ],
            "pods": list(claim.consumers),
            "problems": list(claim.problems),
        }
        for claim in outcome.cluster.claims
    ]


def _pod(outcome: PodOutcome) -> dict[str, Any]:
    pod, allocation = outcome.pod.pod, outcome.allocation
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "node": allocation.node if allocation else None,
        "allocations": (
            [grant_document(g, allocation.node) for g in allocation.grants] if allocation else []
        ),
        "annotations": dict(
            outcome.pod.view.annotations if outcome.bound else outcome.rendering.annotations
        ),
        "labels": dict(outcome.pod.view.labels if outcome.bound else outcome.rendering.labels),
        "env": {name: dict(env) for name, env in outcome.rendering.env.items()},
        "reason": refusal_document(outcome.refusal) if outcome.refusal else None,
        "uid": pod.uid,
        "notes": list(outcome.notes),
    }


def _node(outcome: Outcome, node: Node) -> dict[str, Any]:
    index = outcome.ledger.index[node.name]
    allocations = list(outcome.ledger.on_node(node.name))
    return {
        "name": node.name,
        "devices": [
            device_document(node, card, allocations)
            for type_ in DeviceType
            for card in outcome.ledger.cards(type_, index)
        ],
        "allocatable": dict(outcome.cluster.totals(node)),
    }


def print_tables(outcome: Outcome) -> None:
    """Print pods with their cards, waiting pods with the reason, nodes with the use of each card.

    Reasons have a line of their own, as wide as the terminal, because people read these.
    """
    with paper() as console:
        if any(pod.refusal is None for pod in outcome.pods) or outcome.cluster.claims:
            console.print(_pods_table(outcome))
        _print_waiting(console, outcome)
        if outcome.cluster.nodes:
            console.print()
            console.print(_nodes_table(outcome))
        placed = [pod for pod in outcome.pods if pod.allocation is not None]
        notes = [f"pod {pod.pod.pod.key}: {note}" for pod in placed for note in pod.notes]
        if notes or outcome.notes:
            console.print()
        for note in (*notes, *outcome.notes):
            console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)
        console.print()
        console.print(_summary(outcome))


def _summary(outcome: Outcome) -> Text:
    placed = sum(pod.allocation is not None for pod in outcome.pods)
    waiting = len(outcome.waiting)
    line = f"{placed} of {placed + waiting} pods placed under policy {outcome.policy}"
    return Text(f"{line}, {waiting} waiting" if waiting else line, style="bold")


def _pods_table(outcome: Outcome) -> PlainTable:
    table = PlainTable("POD", "NODE", "CARDS", "GIVEN")
    for pod in outcome.pods:
        name = pod.pod.pod.key
        if pod.allocation is not None:
            grants = pod.allocation.grants
            table.add_row(name, pod.allocation.node, cards_text(grants), given(given_text(grants)))
        elif pod.refusal is None:
            table.add_row(name, "-", "", Styled("finished", "dim"))
    for claim in outcome.cluster.claims:
        for node, record in claim.records.items():
            grants = record.grants
            table.add_row(
                f"claim {claim.key}", node, cards_text(grants), given(given_text(grants))
            )
    return table


def _print_waiting(console: Console, outcome: Outcome) -> None:
    if not outcome.waiting:
        return
    if len(outcome.waiting) < len(outcome.pods):
        console.print()
    print_waiting(
        console,
        (
            (pod.pod.pod.key, pod.refusal.code.value, "\n".join((pod.refusal.message, *pod.notes)))
            for pod in outcome.waiting
            if pod.refusal is not None
        ),
    )


def _nodes_table(outcome: Outcome) -> PlainTable:
    table = PlainTable("NODE", "CARD", "MODEL", "COMPUTE", "", "MEMORY", "SHARERS", "STATE")
    for node in outcome.cluster.nodes:
        index = outcome.ledger.index[node.name]
        name = node.name
        for type_ in DeviceType:
            for card in outcome.ledger.cards(type_, index):
                table.add_row(name, *_card_row(node, card))
                name = ""
        if name:
            table.add_row(name, "", Styled("no devices", "dim"))
    return table


def _card_row(node: Node, card: Card) -> tuple[Cell, ...]:
    device = card.device
    used = device.core_milli - card.core_free
    memory = device.memory_bytes - card.memory_free
    label = f"{device.type.value} {device.minor}"
    model = said(node, device, "model") or said(node, device, "vendor")
    fraction = used / device.core_milli if device.core_milli else 0.0
    compute = f"{used / 10:g}%" if device.core_milli else "-"
    amounts = f"{brief(memory)} of {brief(device.memory_bytes)}" if device.memory_bytes else "-"
    closed = closed_code(card)
    detail = f" ({card.closed_detail})" if closed and card.closed_detail else ""
    return (
        label,
        model,
        Styled(bar(fraction), "cyan"),
        compute,
        amounts,
        f"{card.tenants}",
        Styled(closed or "ok", "red" if closed else "green", detail),
    )

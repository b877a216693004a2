"""What `partage schedule` prints: a document for programs, tables for people.

The shape of the document is one of the interfaces that stay stable; keys may be added, none
changes its meaning.
"""

from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from partage.inventory.ledger import Card
from partage.model.allocation import Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.quantity import binary
from partage.model.reason import Refusal
from partage.sim.offline import Outcome, PodOutcome
from partage.wire.outcomes import (
    closed_code,
    device_document,
    grant_document,
    refusal_document,
    said,
)

__all__ = ["document", "print_tables"]

_WIDE: Final = 160
_BAR: Final = 10
_SHORT: Final = 6


def document(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain values, ready for JSON."""
    return {
        "pods": [_pod(pod) for pod in outcome.pods],
        "nodes": [_node(outcome, node) for node in outcome.cluster.nodes],
        "policy": str(outcome.policy),
        "notes": list(outcome.notes),
    }


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


# --- for people ------------------------------------------------------------------------------


def print_tables(outcome: Outcome, console: Console | None = None) -> None:
    """Pods with their cards or why they wait, then nodes with what is used of each card."""
    console = console or _console()
    console.print(_pods_table(outcome))
    console.print(_nodes_table(outcome))
    for note in outcome.notes:
        console.print(Text(f"note: {note}", style="dim"))
    placed = sum(pod.allocation is not None for pod in outcome.pods)
    waiting = len(outcome.waiting)
    line = f"{placed} of {placed + waiting} pods placed under policy {outcome.policy}"
    console.print(Text(f"{line}, {waiting} waiting" if waiting else line, style="bold"))


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    return console


def _plain_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _pods_table(outcome: Outcome) -> Table:
    table = _plain_table("POD", "NODE", "CARDS", "GIVEN, OR WHY IT WAITS")
    for pod in outcome.pods:
        name = Text(pod.pod.pod.key)
        if pod.refusal is not None:
            table.add_row(
                name, Text("waiting", style="yellow"), "", _why(pod.pod.pod, pod.refusal)
            )
        elif pod.allocation is not None:
            grants = pod.allocation.grants
            table.add_row(name, Text(pod.allocation.node), _cards(grants), _given(grants))
        else:
            table.add_row(name, Text("-"), "", Text("finished", style="dim"))
    return table


def _why(pod: Pod, refusal: Refusal) -> Text:
    del pod
    text = Text(refusal.code.value, style="yellow")
    return text.append(": " + refusal.message, style="default")


def _cards(grants: tuple[Grant, ...]) -> Text:
    found: dict[str, list[str]] = {}
    for grant in grants:
        minors = found.setdefault(grant.type.value, [])
        if str(grant.minor) not in minors:
            minors.append(str(grant.minor))
    return Text("  ".join(f"{type_} {','.join(minors)}" for type_, minors in found.items()))


def _given(grants: tuple[Grant, ...]) -> Text:
    if not grants:
        return Text("no devices", style="dim")
    by_container: dict[str, dict[str, int]] = {}
    for grant in grants:
        name = f"{grant.container} (init)" if grant.phase == "init" else grant.container
        counts = by_container.setdefault(name, {})
        amount = _amount(grant)
        counts[amount] = counts.get(amount, 0) + 1
    parts = []
    for name, counts in by_container.items():
        amounts = ", ".join(f"{n} x {a}" if n > 1 else a for a, n in counts.items())
        parts.append(amounts if len(by_container) == 1 else f"{name}: {amounts}")
    return Text("; ".join(parts))


def _amount(grant: Grant) -> str:
    if grant.mode is GrantMode.WHOLE:
        return f"whole card ({_short(grant.memory_bytes)})"
    percent = f"{grant.core_milli / 10:g}%"
    if grant.type is not DeviceType.GPU:
        suffix = f" VF {grant.function[1]}" if grant.function else ""
        return f"{grant.type.value} {percent}{suffix}"
    core = percent if grant.core_milli else "no core limit"
    template = f" {grant.template}" if grant.template else ""
    return f"{core} + {_short(grant.memory_bytes)}{template}"


def _short(value: int) -> str:
    """Bytes for people: the canonical text where it is short, else GiB with one decimal."""
    text = str(binary(value))
    return text if len(text) <= _SHORT else f"{value / 2**30:.1f}Gi"


def _nodes_table(outcome: Outcome) -> Table:
    table = _plain_table("NODE", "CARD", "MODEL", "COMPUTE", "", "MEMORY", "SHARERS", "STATE")
    for node in outcome.cluster.nodes:
        index = outcome.ledger.index[node.name]
        name = node.name
        for type_ in DeviceType:
            for card in outcome.ledger.cards(type_, index):
                table.add_row(Text(name), *_card_row(node, card))
                name = ""
        if name:
            table.add_row(Text(name), "", Text("no devices", style="dim"))
    return table


def _card_row(node: Node, card: Card) -> tuple[Text, ...]:
    device = card.device
    used = device.core_milli - card.core_free
    memory = device.memory_bytes - card.memory_free
    label = f"{device.type.value} {device.minor}"
    model = said(node, device, "model") or said(node, device, "vendor")
    fraction = used / device.core_milli if device.core_milli else 0.0
    compute = f"{used / 10:g}%" if device.core_milli else "-"
    amounts = f"{_short(memory)} of {_short(device.memory_bytes)}" if device.memory_bytes else "-"
    closed = closed_code(card)
    state = Text(closed or "ok", style="red" if closed else "green")
    if closed and card.closed_detail:
        state.append(f" ({card.closed_detail})", style="default")
    return (
        Text(label), Text(model), Text(_bar(fraction), style="cyan"), Text(compute), Text(amounts),
        Text(f"{card.tenants}"), state,
    )  # fmt: skip


def _bar(fraction: float) -> str:
    filled = min(_BAR, max(0, round(fraction * _BAR)))
    return "█" * filled + "░" * (_BAR - filled)

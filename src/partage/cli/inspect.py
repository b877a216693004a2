"""`partage inspect`: one node or all, card by card, with who is on each of them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from partage.cli.answering import Asked
from partage.cli.asked import (
    NOT_FOUND,
    answer_options,
    answered,
    told,
)
from partage.cli.completion import node_names
from partage.cli.ending import end
from partage.cli.parameters import Sectioned
from partage.cli.structured import structured
from partage.cli.tables import Cell, Line, PlainTable, Styled, bar, paper
from partage.cli.top import all_nodes, card_state
from partage.dashboard.queries import NodeQuery
from partage.model.allocation import CLAIM
from partage.model.quantity import brief
from partage.wire.outcomes import core_text, part_text

Document = dict[str, Any]


@click.command(cls=Sectioned, kinds=("no", "node", "nodes"))
@click.argument("node", required=False, default="", metavar="[NODE]", shell_complete=node_names)
@answer_options
def inspect(node: str, **given: Any) -> None:
    """Show each card of NODE, or of all nodes, and the pods on it.

    For each card what is used of compute and memory, and under it every pod with its part and
    every hardware instance with its place on the card. Without NODE the idle cards of a node are
    one line; -o wide has each.

    \b
    Examples:
      partage inspect gpu-node-1
      partage inspect -f cluster.yaml -o json

    \b
    Exit status:
      0  here it is
      2  there is no answer; one line says why and what to try
      4  there is no such node
    """  # noqa: D301 # click wants the control character itself
    every = bool(node) or given["output"] != "table"

    async def question(asked: Asked) -> tuple[Asked, list[Document]]:
        if not node:
            return asked, await all_nodes(asked, NodeQuery(cards="" if every else "used"))
        found = await asked.views.node(node.removeprefix("node/"))
        return asked, [found] if found else []

    asked, nodes = answered(given, question)
    if node and not nodes:
        end(f"there is no node {node}. partage top nodes lists those to choose from", NOT_FOUND)
    if structured(given["output"], nodes[0] if node else {"nodes": nodes}):
        return
    wide = given["output"] == "wide"
    with paper(wide=wide) as console:
        console.print(Group(*_nodes(nodes, wide=wide, every=every)))
    told(asked)


def _nodes(nodes: list[Document], *, wide: bool, every: bool) -> Iterator[RenderableType]:
    """The nodes, with an empty line around those of more than one line."""
    long = False
    for number, one in enumerate(nodes):
        parts = [*_node(one, wide=wide, every=every)]
        if number and (long or len(parts) > 1):
            yield Line()
        yield from parts
        long = len(parts) > 1


def _node(node: Document, *, wide: bool, every: bool) -> Iterator[RenderableType]:
    cards = [card for card in node["cards"] if every or _shown(card)]
    idle: Counter[str] = Counter(node["devices"])
    idle.subtract(card["type"] for card in cards)
    others = [f"{count} x {type_}" for type_, count in idle.items() if count > 0]
    kind = node["model"] or node["vendor"] or ("unknown model" if node["cards"] else "no devices")
    alone = () if cards or not others else ("  ", Styled(f"idle: {', '.join(others)}", "dim"))
    style = "bold green" if node["state"] == "ok" else "bold red"
    yield Line(Styled(node["name"], "bold"), f"  {kind}  ", Styled(node["state"], style), *alone)
    for taint in node.get("taints", ()) if wide else ():
        yield Text(f"taint {taint}", style="dim")
    for one in node.get("objections", ()):
        yield Text(f"{one['protocol']}: {one['code']}: {one['message']}", style="yellow")
    for note in node.get("notes", ()):
        yield Text(note, style="dim")
    if not cards:
        return
    table = PlainTable("CARD", "", "COMPUTE", "MEMORY", "POD", "HOW", *(("UUID",) if wide else ()))
    for card in cards:
        used = card["core_milli"]
        part = used["used"] / used["total"] if used["total"] else 0.0
        state = card_state(card) if card["closed"] else ""
        table.add_row(
            f"{card['type']} {card['minor']}",
            Styled(bar(part), "cyan"),
            part_text(used),
            part_text(card["memory_bytes"], memory=True),
            Styled("idle" if not card["tenants"] else "", "dim"),
            state,
            *([card["uuid"]] if wide else []),
        )
        for tenant in card["tenants"]:
            table.add_row(
                "",
                "",
                core_text(tenant["core_milli"]),
                brief(tenant["memory_bytes"]),
                _who(tenant),
                _how(tenant),
            )
        for one in card["foreign"]:
            table.add_row(
                "",
                "",
                "",
                "",
                Styled("not made by Partage", "dim"),
                f"{one['profile']} at {one['start']}",
            )
    for other in others:
        table.add_row(other, "", "", "", Styled("idle", "dim"))
    yield table


def _shown(card: Document) -> bool:
    """Whether there is more to say of a card than that it is idle."""
    return bool(card["tenants"] or card["foreign"] or card["closed"])


def _who(tenant: Document) -> Cell:
    if tenant["name"] is None:
        return Styled("a pod of another namespace", "dim")
    claim = "claim " if tenant["protocol"] == CLAIM else ""
    return f"{claim}{tenant['namespace']}/{tenant['name']}"


def _how(tenant: Document) -> str:
    kind = "whole" if tenant["whole"] else "share"
    if tenant["mig"]:
        kind = ", ".join(f"{one['profile']} at {one['start']}" for one in tenant["mig"])
    protocol = f" ({tenant['protocol']})" if tenant["protocol"] else ""
    state = "" if tenant["state"] == "bound" else f", {tenant['state']}"
    return f"{kind}{protocol}{state}"

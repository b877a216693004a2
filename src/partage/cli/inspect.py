"""`partage inspect`: one node or all nodes, card by card, with the tenants of each card."""

from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

import click
from rich.text import Text

from partage.cli.answering import Asked
from partage.cli.asked import NOT_FOUND, answer_options, answered, told
from partage.cli.completion import node_names
from partage.cli.ending import end
from partage.cli.parameters import Name, Sectioned
from partage.cli.structured import structured
from partage.cli.tables import Cell, Line, PlainTable, Styled, bar, paper
from partage.cli.top import all_nodes, card_state
from partage.dashboard.queries import NodeQuery
from partage.model.quantity import brief, core_text, part_text

_IDLE: Final = Styled("idle", "dim")
_ALIKE: Final = 4096
"""Most amounts with cached texts: a fleet has many cards, and few amounts."""

Document = dict[str, Any]


@click.command(cls=Sectioned)
@click.argument(
    "node",
    type=Name("no", "node", "nodes"),
    required=False,
    default="",
    metavar="[NODE]",
    shell_complete=node_names,
)
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
      0  there is an answer
      2  there is no answer; one line says why and what to try
      4  there is no such node
    """  # noqa: D301 # click wants the control character itself
    every = bool(node) or given["output"] != "table"

    async def question(asked: Asked) -> tuple[Asked, list[Document], list[str]]:
        if not node:
            return asked, await all_nodes(asked, NodeQuery(cards="" if every else "used")), []
        found = await asked.views.node(node)
        if found:
            return asked, [found], []
        known = [one["name"] for one in await all_nodes(asked, NodeQuery(cards="no"))]
        return asked, [], get_close_matches(node, known, n=1)

    asked, nodes, near = answered(given, question)
    if node and not nodes:
        hint = f"; there is {near[0]}" if near else ""
        told(asked)
        where = " with the same -f" if given["files"] else ""
        end(f"there is no node {node}{hint}. partage top nodes{where} lists them", NOT_FOUND)
    if structured(given["output"], nodes[0] if node else {"nodes": nodes}):
        return
    wide = given["output"] == "wide"
    with paper(wide=wide) as console:
        console.print(_table(nodes, wide=wide, every=every) if nodes else "no node there")
    told(asked)


def _table(nodes: list[Document], *, wide: bool, every: bool) -> PlainTable:
    """The nodes, with an empty line around those of more than one line; their cards are aligned with each other."""
    columns = ("CARD", "", "COMPUTE", "MEMORY", "POD", "HOW", *(("UUID",) if wide else ()))
    table = PlainTable(*columns, headed=False)
    long = False
    for number, node in enumerate(nodes):
        cards = [
            card
            for card in node["cards"]
            if every
            or card["tenants"]
            or card["foreign"]
            or card["closed"]  # it is more than idle
        ]
        idle: Counter[str] = Counter(node["devices"])
        idle.subtract(card["type"] for card in cards)
        others = [f"{count} x {type_}" for type_, count in idle.items() if count > 0]
        title, remarks = _title(node, [] if cards else others), [*_remarks(node, wide=wide)]
        before, long = long, bool(remarks or cards)
        if number and (before or long):
            table.add_line(Line())
        table.add_line(title)
        for line in remarks:
            table.add_line(line)
        if cards:
            table.add_line()
            _add_cards(table, cards, others, wide=wide)
    return table


def _title(node: Document, idle: list[str]) -> Line:
    """A node's identity, whether it takes pods, and its idle devices if it has no others."""
    kind = node["model"] or node["vendor"] or ("unknown model" if node["cards"] else "no devices")
    alone = ("  ", Styled(f"idle: {', '.join(idle)}", "dim")) if idle else ()
    style = "bold green" if node["state"] == "ok" else "bold red"
    return Line(Styled(node["name"], "bold"), f"  {kind}  ", Styled(node["state"], style), *alone)


def _remarks(node: Document, *, wide: bool) -> Iterator[Text]:
    for taint in node.get("taints", ()) if wide else ():
        yield Text(f"taint {taint}", style="dim")
    for one in node.get("objections", ()):
        yield Text(f"{one['protocol']}: {one['code']}: {one['message']}", style="yellow")
    for note in node.get("notes", ()):
        yield Text(note, style="dim")


def _add_cards(table: PlainTable, cards: list[Document], others: list[str], *, wide: bool) -> None:
    for card in cards:
        core, memory = card["core_milli"], card["memory_bytes"]
        table.add_row(
            f"{card['type']} {card['minor']}",
            *_used(core["used"], core["total"], memory["used"], memory["total"]),
            "" if card["tenants"] else _IDLE,
            card_state(card) if card["closed"] else "",
            *([card["uuid"]] if wide else []),
        )
        for tenant in card["tenants"]:
            amounts = _given(tenant["core_milli"], tenant["memory_bytes"])
            table.add_row("", "", *amounts, _who(tenant), _how(tenant))
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
        table.add_row(other, "", "", "", _IDLE)


@lru_cache(maxsize=_ALIKE)
def _used(core: int, cores: int, memory: int, memories: int) -> tuple[Cell, str, str]:
    """The cells for a card's used and total compute and memory."""
    return (
        Styled(bar(core / cores if cores else 0.0), "cyan"),
        part_text({"used": core, "total": cores}),
        part_text({"used": memory, "total": memories}, memory=True),
    )


@lru_cache(maxsize=_ALIKE)
def _given(core: int, memory: int) -> tuple[str, str]:
    return core_text(core) if core else "-", brief(memory)


def _who(tenant: Document) -> Cell:
    if tenant["name"] is None:
        return Styled("a pod of another namespace", "dim")
    claim = "claim " if "claim" in tenant["protocols"] else ""
    return f"{claim}{tenant['namespace']}/{tenant['name']}"


def _how(tenant: Document) -> str:
    kind = "whole" if tenant["whole"] else "share"
    if tenant["mig"]:
        kind = ", ".join(f"{one['profile']} at {one['start']}" for one in tenant["mig"])
    protocol = f" ({', '.join(tenant['protocols'])})" if tenant["protocols"] else ""
    state = "" if tenant["state"] == "bound" else f", {tenant['state']}"
    return f"{kind}{protocol}{state}"

"""`partage top`: use by node, card and pod, and the pods that wait."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from partage.cli.answering import Asked
from partage.cli.asked import answer_options, answered, told
from partage.cli.idle import idle_shares
from partage.cli.parameters import Real, Sectioned, flag, name_option, option
from partage.cli.structured import structured
from partage.cli.tables import Cell, PlainTable, Styled, bar, paper, print_waiting
from partage.cli.watching import watched
from partage.dashboard.queries import MOST_COUNTED, MOST_NODES, MOST_PODS, NodeQuery, PodQuery
from partage.model.quantity import brief, core_text, part_text

_WHAT: Final = ("nodes", "pods", "cards")
_FEW: Final = 20
_AHEAD: Final = 2
"""Pages requested at a time."""
_UNSAID: Final = (
    "kube-scheduler has given no reason: it has not tried the pod yet, or another scheduler has it"
)
_ALONE: Final = "each waiting pod of manifests is judged alone, beside running pods; partage schedule places them in turn"

Document = dict[str, Any]


@click.command(cls=Sectioned)
@click.argument(
    "what",
    required=False,
    default="",
    metavar="[nodes|pods|cards]",
    shell_complete=lambda _context, _option, typed: [n for n in _WHAT if n.startswith(typed)],
)
@name_option("-n", "--namespace", default="", help="Pods of this namespace only. Default: all.")
@flag("-A", "--all-namespaces", "everywhere", help="Pods of all namespaces: the default.")
@option(
    "--sort",
    type=click.Choice(["name", "used", "free"]),
    default="name",
    help="Order of nodes and cards: by name, or by what is used or free of compute or memory.",
)
@flag("-w", "--watch", help="Show it on the whole screen, again and again, until q or Ctrl-C.")
@option(
    "--interval",
    type=Real(0.5, 3600),
    default=2.0,
    metavar="SECONDS",
    help="Seconds between two looks of --watch.",
)
@flag(
    "--idle",
    help="With `pods`: containers that received less than 5 % of their card's time in the last hour.",
)
@click.option(
    "--prometheus",
    envvar="PARTAGE_PROMETHEUS",
    default="",
    metavar="URL",
    help="Prometheus that scrapes the agents, which --idle asks for the use. Environment: "
    "PARTAGE_PROMETHEUS.",
)
@answer_options
def top(
    what: str,
    namespace: str,
    sort: str,
    *,
    everywhere: bool,
    watch: bool,
    interval: float,
    idle: bool,
    prometheus: str,
    **given: Any,
) -> None:
    """Show the use of devices, and which pods wait.

    Without an argument the whole cluster in brief: sums, nodes, waiting pods. With `nodes`, `pods`
    or `cards`, each of them. Used means allocated to pods, not used by their programs.

    \b
    Examples:
      partage top
      partage top nodes --sort free
      partage top pods -n team -o wide
      partage top --watch

    \b
    Exit status:
      0  there is an answer
      2  there is no answer; one line says why and what to try
    """  # noqa: D301 # click wants the control character itself
    short = {"no": "nodes", "po": "pods", **{name[:-1]: name for name in _WHAT}}
    what = short.get(what, what)
    if what and what not in _WHAT:
        raise click.BadParameter(
            f"{what!r} is no list; name one of {', '.join(_WHAT)}", param_hint="WHAT"
        )
    _check_options(what, namespace, sort, everywhere=everywhere)
    if idle:
        if what != "pods" or watch or not prometheus:
            raise click.UsageError(
                "--idle is of `top pods` without --watch; give --prometheus URL, one that scrapes the agents"
            )
        rows = idle_shares(prometheus, namespace)
        if not structured(given["output"], {"idle": rows}):
            with paper() as console:
                _print_idle(console, rows)
        return

    async def question(asked: Asked) -> tuple[Asked, Document]:
        most = _FEW if given["output"] == "table" else None
        found = await _gathered(asked, what, namespace, sort, most)
        if given["files"] and given["output"] in ("table", "wide"):
            for one in found.get("waiting", ()):
                one["message"] = one["message"] or "there is room for it"
        return asked, found

    wide = given["output"] == "wide"
    if watch:
        if given["output"] not in ("table", "wide"):
            raise click.UsageError("--watch shows a table; leave -o json and -o yaml out")
        watched(
            interval,
            lambda console: _show(
                console, what, answered(given, question, silent=True)[1], wide=wide
            ),
            wide=wide,
        )
        return
    asked, found = answered(given, question)
    if structured(given["output"], found):
        return
    if given["files"] and found.get("waiting"):
        asked = replace(asked, notes=(*asked.notes, _ALONE))
    with paper(wide=wide) as console:
        _show(console, what, found, wide=wide)
    told(asked)


def _check_options(what: str, namespace: str, sort: str, *, everywhere: bool) -> None:
    if what == "pods" and sort != "name":
        raise click.UsageError("--sort orders nodes and cards; leave it out with pods")
    if what in ("nodes", "cards") and namespace:
        raise click.UsageError(f"-n chooses among pods; leave it out with {what}, or name pods")
    if everywhere and namespace:
        raise click.UsageError("-A and -n exclude each other; leave one out")


def _show(console: Console, what: str, found: Document, *, wide: bool) -> None:
    if what == "pods":
        _print_pods(console, found["pods"], wide=wide)
    elif what == "cards":
        _print_cards(console, found["nodes"], wide=wide)
    elif what == "nodes":
        _print_nodes(console, found["nodes"], wide=wide)
    else:
        _print_all(console, found, wide=wide)


async def _gathered(
    asked: Asked, what: str, namespace: str, sort: str, most: int | None
) -> Document:
    """The content to show.

    Args:
        what: `nodes`, `pods` or `cards`; empty for the cluster in brief.
        namespace: of pods; empty for all.
        most: number of nodes and waiting pods in the brief; None for all. `counts` has the totals.
    """
    query = NodeQuery(order=sort)
    if what == "pods":
        return {"pods": await _all_pods(asked, PodQuery(namespace=namespace))}
    if what == "nodes" and most is not None:
        return {"nodes": await all_nodes(asked, replace(query, cards="no"))}
    if what:
        return {"nodes": await all_nodes(asked, query)}
    waiting = PodQuery(state="waiting", namespace=namespace)
    if most is not None:
        nodes = await asked.views.nodes(replace(query, cards="no", limit=most))
        pods = await asked.views.pods(replace(waiting, limit=most))
        return {
            "overview": await asked.views.overview(),
            "nodes": nodes["nodes"],
            "waiting": pods["pods"],
            "counts": {"nodes": nodes["total"], "waiting": pods["total"]},
        }
    return {
        "overview": await asked.views.overview(),
        "nodes": await all_nodes(asked, query),
        "waiting": await _all_pods(asked, waiting),
    }


async def all_nodes(asked: Asked, query: NodeQuery) -> list[Document]:
    """Every node."""
    most = MOST_COUNTED if query.cards == "no" else MOST_NODES
    return await _all(lambda at: asked.views.nodes(replace(query, offset=at, limit=most)), "nodes")


async def _all_pods(asked: Asked, query: PodQuery) -> list[Document]:
    return await _all(
        lambda at: asked.views.pods(replace(query, offset=at, limit=MOST_PODS)), "pods"
    )


async def _all(ask: Callable[[int], Awaitable[Document]], what: str) -> list[Document]:
    """All items, page by page; the service makes one page while another is read."""
    first = await ask(0)
    found: list[Document] = first[what]
    gate = asyncio.Semaphore(_AHEAD)

    async def page(at: int) -> list[Document]:
        async with gate:
            there: list[Document] = (await ask(at))[what]
            return there

    places = range(len(found), first["total"], len(found)) if found else ()
    for more in await asyncio.gather(*map(page, places)):
        found += more
    return found


# --- for people ------------------------------------------------------------------------------


def _print_all(console: Console, found: Document, *, wide: bool) -> None:
    seen = found["overview"]
    cards, pods = seen["cards"], seen["pods"]
    parts = [
        f"{cards['idle']} idle",
        f"{cards['shared']} shared",
        f"{cards['whole']} whole",
        *([f"{cards['closed']} closed"] if cards["closed"] else []),
    ]
    table = PlainTable("", "", "", headed=False)
    table.add_row(Styled("cards", "bold"), "", f"{cards['total']}: {', '.join(parts)}")
    for title, key, memory in (("compute", "core_milli", False), ("memory", "memory_bytes", True)):
        amount = seen[key]
        part = amount["used"] / amount["total"] if amount["total"] else 0.0
        table.add_row(
            Styled(title, "bold"),
            Styled(bar(part), "cyan"),
            f"{part:.0%}: {part_text(amount, memory=memory, cards=not memory)}",
        )
    table.add_row(
        Styled("pods", "bold"), "", f"{pods['placed']} placed, {pods['waiting']} waiting"
    )
    table.add_row(Styled("policy", "bold"), "", seen["policy"])
    console.print(table)
    console.print()
    counts = found.get("counts") or {key: len(found[key]) for key in ("nodes", "waiting")}
    _print_nodes(console, found["nodes"], wide=wide)
    left = counts["nodes"] - len(found["nodes"])
    if left:
        console.print(Text(f"and {left} nodes more: partage top nodes", style="dim"))
    waiting = found["waiting"]
    if waiting:
        console.print()
        print_waiting(
            console,
            (
                (f"{pod['namespace']}/{pod['name']}", pod["code"] or "", _why(pod))
                for pod in waiting
            ),
        )
        if len(waiting) < counts["waiting"]:
            left = counts["waiting"] - len(waiting)
            console.print(Text(f"and {left} more: partage top pods", style="dim"))


def _why(pod: Document) -> str:
    """Why a pod waits, in the words of the one who keeps it."""
    said = pod.get("kube_scheduler")
    return pod["message"] or (f"kube-scheduler: {said}" if said else _UNSAID)


def _print_nodes(console: Console, nodes: Sequence[Document], *, wide: bool) -> None:
    more = ("SHARERS", "VENDOR") if wide else ()
    table = PlainTable("NODE", "CARDS", "", "COMPUTE", "", "MEMORY", "PODS", *more, "STATE")
    for node in nodes:
        cards = node["devices"].get("gpu", 0)
        others = sum(node["devices"].values()) - cards
        text = f"{cards} x {node['model'] or node['vendor'] or 'card'}" if cards else "none"
        if wide and others:
            text += f" + {others} other"
        slots = f"{node['slots']['used']} of {node['slots']['total']}"
        extra = (slots, node["vendor"]) if wide else ()
        table.add_row(
            node["name"],
            text,
            _bar(node["core_milli"]),
            part_text(node["core_milli"], cards=True),
            _bar(node["memory_bytes"]),
            part_text(node["memory_bytes"], memory=True),
            holders(node["pods"], node.get("claims", 0)),
            *extra,
            _state(node["state"]),
        )
    console.print(table if nodes else "no node there")


def holders(pods: int, claims: int) -> str:
    """Number of a node's pods; pods with devices by claims are known by their claims alone."""
    told = [str(pods)] if pods or not claims else []
    return ", ".join([*told, f"{claims} claim{'s' if claims > 1 else ''}"] if claims else told)


def _print_cards(console: Console, nodes: Sequence[Document], *, wide: bool) -> None:
    more = ("UUID",) if wide else ()
    table = PlainTable(
        "NODE",
        "CARD",
        "MODEL",
        "",
        "COMPUTE",
        "",
        "MEMORY",
        "SHARERS",
        "INSTANCES",
        "STATE",
        *more,
        spare={"SHARERS"},
    )
    for node in nodes:
        name = node["name"]
        for card in node["cards"]:
            table.add_row(
                name,
                f"{card['type']} {card['minor']}",
                card["model"] or card["vendor"],
                _bar(card["core_milli"]),
                core_text(card["core_milli"]["used"]) if card["core_milli"]["total"] else "-",
                _bar(card["memory_bytes"]),
                part_text(card["memory_bytes"], memory=True),
                str(card["slots"]["used"]),
                _instances(card),
                card_state(card) if wide or card["closed"] else _state("ok"),
                *([card["uuid"]] if wide else []),
            )
            name = ""
    console.print(table if nodes else "no node there")


def _instances(card: Document) -> str:
    """The card's instances; foreign ones are marked."""
    if not card["mig"] and not card["foreign"]:
        return ""
    told = [f"{one['profile']} at {one['start']}" for one in card["mig"]]
    told += [f"{one['profile']} at {one['start']} (foreign)" for one in card["foreign"]]
    return ", ".join(told)


def _print_pods(console: Console, pods: Sequence[Document], *, wide: bool) -> None:
    more = ("GIVEN", "PRIORITY") if wide else ()
    columns = ("POD", "NODE", "CARD", "COMPUTE", "MEMORY", "PROTOCOL", "STATE", *more)
    table = PlainTable(*columns, spare={"PROTOCOL"})
    if not pods:
        console.print("no pod with devices there")
        return
    for pod in pods:
        state = f"waiting: {pod['code']}" if pod["code"] else pod["state"]
        style = "yellow" if pod["node"] is None else "green"
        cards = _short_cards(pod["cards"])
        extra = (pod["given"], str(pod["priority"])) if wide else ()
        table.add_row(
            f"{pod['namespace']}/{pod['name']}",
            pod["node"] or "-",
            cards,
            core_text(pod["core_milli"]) if pod["core_milli"] else "-",
            brief(pod["memory_bytes"]) if pod["memory_bytes"] else "-",
            ", ".join(pod["protocols"]),
            Styled(state, style),
            *extra,
        )
    console.print(table)


def _short_cards(cards: Sequence[str]) -> str:
    """Cards as in `schedule`, `gpu 0,1`; only the number of more than four."""
    if len(cards) > 4:
        return f"{len(cards)} cards"
    found: dict[str, list[str]] = {}
    for card in cards:
        kind, _, minor = card.rpartition(" ")
        found.setdefault(kind, []).append(minor)
    return ", ".join(f"{kind} {','.join(minors)}" for kind, minors in found.items())


def _print_idle(console: Console, rows: Sequence[Document]) -> None:
    if not rows:
        console.print("no container whose use is measured was idle in the last hour")
        return
    table = PlainTable("POD", "CONTAINER", "NODE", "CARD", "COMPUTE", "USED", "MEMORY", "USED")
    for row in rows:
        memory = [
            "-" if row[name] is None else brief(int(row[name] * 2**20))
            for name in ("granted_mib", "used_mib")
        ]
        table.add_row(
            f"{row['namespace']}/{row['pod']}",
            row["container"],
            row["node"],
            row["card"],
            f"{row['granted_percent']:g}%",
            f"{row['used_percent']:.1f}%",
            *memory,
        )
    console.print(table)


def _bar(amount: dict[str, int]) -> Cell:
    return Styled(bar(amount["used"] / amount["total"]) if amount["total"] else "", "cyan")


def _state(state: str, more: str = "") -> Cell:
    return Styled(state, "green" if state == "ok" else "red", more)


def card_state(card: Document) -> Cell:
    """Whether a card takes pods, or the reason why not."""
    detail = card["closed_detail"]
    return _state(card["closed"] or "ok", f" ({detail})" if detail else "")

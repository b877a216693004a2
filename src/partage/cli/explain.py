"""`partage explain`: the reason for a pod's place, or the reason that it waits and possible remedies."""

import re
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from partage.cli.answering import Asked
from partage.cli.asked import NOT_FOUND, answer_options, answered, told
from partage.cli.completion import pod_names
from partage.cli.ending import end
from partage.cli.parameters import Name, Sectioned, name_option
from partage.cli.structured import structured
from partage.cli.tables import PlainTable, paper
from partage.model.quantity import brief, core_text, exact
from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.vendors.traits import ROWS
from partage.wire.advice import ROOM

HAS_A_PLACE: Final = 0
WAITS: Final = 3

_STATES: Final = {
    "waiting": "waits",
    "held": "waits for kube-scheduler; its place is reserved",
    "reserved": "its Binding is on its way",
    "unknown": "its Binding was sent and never answered; the cards stay reserved",
    "bound": "is bound",
    "placed": "gets a place",
    "finished": "has ended",
    "failed": "has failed",
}
_REPLACED: Final = "delete the pod, so that its controller's next one gets another device; have an operator look at the node"
_MODES: Final = {
    "whole": "whole card",
    "share": "share",
    "mig": "hardware instance",
    "vendor": "share, cut by the vendor's plugin",
}
_IN_FORCE: Final = {"True": ("yes", "green"), "False": ("no", "red")}
_OF_MANIFESTS: Final = "set by a ConfigMap of the manifests, or the default"
_MEANINGS: Final[Mapping[str, str]] = {
    names.ALLOCATION: "the record: what each container has; the ledger is rebuilt from it",
    names.PERMIT: "the part of its wishes that an operator's rule permits (precedence, policy)",
    names.ENFORCED: "the node's report: the amounts in force of adjusted shares",
    names.DEVICE_ALLOCATED: "Koordinator's record, read by its node agent and vendors' plugins",
    names.BIND_TIMESTAMP: "when it was bound; vendors' plugins take pods in this order",
    names.GPU_MINORS: "numbers of its cards, read by a vendor's plugin",
    names.HAMI_POD_NODE: "HAMi: the node it was placed on",
    names.HAMI_POD_TIME: "HAMi: when it was placed",
    names.HAMI_TO_ALLOCATE: "HAMi: what its plugin must still allocate",
    names.HAMI_ALLOCATED: "HAMi: what it has, container by container",
    names.HAMI_MIG_ALLOCATIONS: "HAMi: hardware instances that its plugin made for it",
    names.HAMI_BIND_PHASE: "HAMi: how far its plugin is: allocating, success or failed",
    names.HAMI_BIND_TIME: "HAMi: when it was bound",
    names.QGPU_ALLOCATED: "qGPU: it has been placed",
} | {key: text for row in ROWS for key, text in row.annotations.items()}
"""Meanings of the annotations that Partage, or a plugin that it serves, writes on a pod."""
_FEW: Final = 10
"""Most rows for nodes of a refusal in the table; wide shows all."""
_LONG: Final = 60
_CLOSE: Final = 0.85
"""Least similarity of a suggested name to the typed one."""
_MAKERS: Final = re.compile("deploy(ments?)?|jobs?|rs|replicasets?|sts|statefulsets?")
"""kubectl's names of workloads, whose pods the user may mean."""

Document = dict[str, Any]


@click.command(cls=Sectioned)
@click.argument(
    "pod",
    type=Name("po", "pod", "pods", form="NAMESPACE/NAME or NAME"),
    metavar="POD",
    shell_complete=pod_names,
)
@name_option(
    "-n",
    "--namespace",
    default="",
    help="Namespace of POD. Default: that of the kubeconfig's context, else default.",
)
@answer_options
def explain(pod: str, namespace: str, **given: Any) -> None:
    """Say why POD is where it is, or why it waits.

    POD is a name, or NAMESPACE/NAME. For a pod with a place: its node, cards and policy, the place
    that another pod like it would get, and the meaning of its annotations. For a pod that waits:
    the reason in one line, every node and card with asked and free amounts, and what to try.

    \b
    Examples:
      partage explain waiting/too-big-for-t4
      partage explain pod-of-mine -f cluster.yaml -f pod.yaml
      partage explain web -n team --scheduler http://127.0.0.1:10251

    \b
    Exit status:
      0  the pod has a place, or has ended
      2  there is no answer; one line says why and what to try
      3  the pod waits
      4  there is no such pod, or it asks for no device
    """  # noqa: D301 # click wants the control character itself
    own, _, name = pod.rpartition("/")
    if own and namespace and own != namespace:
        end(f"{pod} is not in namespace {namespace}; name one namespace")

    async def question(asked: Asked) -> tuple[Asked, str, Document | None]:
        where = own or namespace or asked.namespace
        return asked, where, await asked.views.explain(where, name)

    asked, where, found = answered(given, question, placing=True)
    key = f"{where}/{name}"
    if found is None:
        told(asked)
        end(_missing(asked, key), NOT_FOUND)
    said = (asked.conditions or {}).get(key) or found.get("kube_scheduler")
    found = found | {"kube_scheduler": said, "answered_by": asked.told}
    if key in (asked.placed or ()):
        found["state"] = "placed"
    if not structured(given["output"], found):
        wide = given["output"] == "wide"
        with paper(wide=wide) as console:
            in_force = "in force in the cluster" if asked.placed is None else _OF_MANIFESTS
            _print(console, found, in_force, wide=wide)
        told(asked)
    waits = found["state"] in ("waiting", "held")
    sys.exit(WAITS if waits else HAS_A_PLACE)


def _missing(asked: Asked, key: str) -> str:
    if asked.pods is not None and key in asked.pods:
        return "; ".join(
            (
                f"pod {key} asks for no device, so kube-scheduler alone places it",
                *asked.unread.get(key, ()),
                f"see kubectl describe pod -n {key.replace('/', ' ')}"
                if asked.placed is None
                else "see partage schedule with the same files",
            )
        )
    kind, _, name = key.partition("/")
    if _MAKERS.fullmatch(kind):
        lists = "kubectl get pods" if asked.placed is None else "partage schedule"
        return f"{kind} {name} is no pod; name one of those that it makes: {lists} lists them"
    known = asked.pods or ()
    other = sorted(pod for pod in known if pod.endswith("/" + key.partition("/")[2]))
    other = other or _nearly(key, known)
    hint = f"; there is {', '.join(other)}" if other else ""
    rule = "there is no pod" if asked.pods is not None else "there is no pod with devices"
    return f"{rule} {key}{hint}. Check the name, and the namespace with -n"


def _nearly(key: str, known: Iterable[str]) -> list[str]:
    """The pod with the most similar name of the namespace; equal namespaces alone make no names alike."""
    namespace, _, name = key.partition("/")
    there = [pod.partition("/")[2] for pod in known if pod.startswith(f"{namespace}/")]
    return [f"{namespace}/{one}" for one in get_close_matches(name, there, n=1, cutoff=_CLOSE)]


# --- for people ------------------------------------------------------------------------------


def _print_next(console: Console, text: str) -> None:
    console.print(Text("try: ", style="bold").append(text, style="not bold"))


def _print(console: Console, found: Document, in_force: str, *, wide: bool) -> None:
    head = Text(f"{found['namespace']}/{found['name']} ", style="bold")
    end = found.get("ended") or {}
    state = "failed" if end.get("phase") == "Failed" else found["state"]
    head.append(str(_STATES.get(state, state)), style="not bold")
    if found["node"]:
        head.append(f" on node {found['node']}")
    if found["state"] == "finished":
        head.append("; it holds nothing any more")
    console.print(head, soft_wrap=not console.is_terminal)
    if end.get("phase") not in (None, "Succeeded"):
        _print_end(console, end)
    if found["quarantine"]:
        console.print(Text(f"quarantine: {found['quarantine']}", style="red"), soft_wrap=True)
    for problem in found.get("device_problems") or ():
        console.print(Text(problem, style="red"), soft_wrap=True)
    if found.get("device_problems"):
        _print_next(console, _REPLACED)
    if found["reason"]:
        _print_refusal(console, found, wide=wide)
    elif found["fits_now_on"]:
        _print_possible(console, found)
    if found["request"] or found["notes"]:
        console.print()
        _print_request(console, found)
    if found["allocations"]:
        console.print()
        _print_cards(console, found, wide=wide)
        if found.get("limits"):
            _print_limits(console, found["limits"])
        if found.get("adjustment"):
            _print_adjustment(console, found["adjustment"])
    console.print()
    _print_policy(console, found, in_force)
    if found.get("annotations"):
        console.print()
        _print_annotations(console, found, wide=wide)


def _print_end(console: Console, ended: Document) -> None:
    """Print the kubelet's message about a failed pod, and each container's end."""
    said = ": ".join(one for one in (ended["reason"], ended["message"]) if one)
    if said:
        console.print(Text(said, style="red"))
    if not ended["containers"]:
        return
    console.print()
    table = PlainTable("CONTAINER", "EXIT CODE", "REASON", "MESSAGE")
    for one in ended["containers"]:
        name = f"{one['name']} (init)" if one["init"] else str(one["name"])
        code = "-" if one["exit_code"] is None else str(one["exit_code"])
        table.add_row(name, code, one["reason"] or "-", (one["message"] or "").strip())
    console.print(table)


def _print_refusal(console: Console, found: Document, *, wide: bool) -> None:
    reason = found["reason"]
    line = Text(f"{reason['code']}: ", style="yellow")
    console.print(line.append(str(reason["message"]), style="default"))
    if found.get("next"):
        _print_next(console, found["next"])
    said = found.get("kube_scheduler")
    if said and said != f"{reason['code']}: {reason['message']}":
        console.print(Text(f"kube-scheduler: {said}", style="dim"))
    nodes = reason["nodes"]
    if not nodes:
        return
    console.print()
    table = PlainTable("NODE", "CARD", "CODE", "ASKED", "FREE", "WHY")
    groups = _groups(nodes, wide=wide)
    shown = [name for alike, _why in groups for name in alike]
    for alike, why in groups:
        node = f"{alike[0]} and {len(alike) - 1} more" if len(alike) > 1 else alike[0]
        table.add_row(node, "", why["code"], "", "", why["message"])
        for minors, card in _alike(why["cards"]):
            table.add_row(
                "",
                ",".join(minors),
                card["code"],
                _amount(card["code"], card["asked"], up=True),
                _amount(card["code"], card["free"]),
                card["detail"],
            )
    console.print(table)
    counted = sum(reason["counts"].values())
    if counted > len(shown):
        more = (
            "all that have a reason with -o wide"
            if len(nodes) > len(shown)
            else "the nearest to fit"
        )
        console.print(Text(f"{len(shown)} of {counted} nodes; {more}", style="dim"))
    if found.get("claims"):
        console.print()
        _print_claims(console, [one for one in found["claims"] if one["node"] in set(shown)])


def _print_claims(console: Console, claims: list[Document]) -> None:
    """Print ResourceClaims' holdings of the cards that were too full."""
    table = PlainTable("NODE", "CARD", "CLAIM", "COMPUTE", "MEMORY", "HOW")
    for one in claims:
        whose = f"{one['namespace']}/{one['name']}" if one["name"] else "of another namespace"
        table.add_row(
            one["node"],
            f"gpu-{one['minor']}",
            f"claim {whose}",
            core_text(one["core_milli"]),
            brief(one["memory_bytes"]),
            _held(one),
        )
    console.print(table)


def _held(grant: Document) -> str:
    whole = grant["mode"] == "whole" and grant["type"] != "gpu"
    how = "whole device" if whole else str(_MODES.get(grant["mode"], grant["mode"]))
    return f"{how} {grant['mig']['profile']} at {grant['mig']['start']}" if grant["mig"] else how


def _groups(nodes: Document, *, wide: bool) -> list[tuple[list[str], Document]]:
    """Nodes by equal objections, their own and their cards', the nearest to fit first.

    `wide`: list all of them, each alone.
    """
    found: dict[tuple[str, ...], tuple[list[str], Document]] = {}
    for name, why in nodes.items():
        key = (name,) if wide else (why["code"], why["message"], repr(why["cards"]))
        found.setdefault(key, ([], why))[0].append(name)
    groups = sorted(found.values(), key=lambda one: _distance(one[1]))
    return groups if wide else groups[:_FEW]


def _distance(why: Document) -> tuple[int, float]:
    """Sort key: the objection (room or cards, the node itself, the pod's rules), then the best card's shortage."""
    parts = [
        one["free"] / one["asked"]
        for one in why["cards"]
        if one["asked"] and one["free"] is not None and one["free"] < one["asked"]
    ]
    close = why["cards"] or why["code"] in ROOM
    kind = 0 if close else 2 if why["code"] == ReasonCode.NODE_AFFINITY else 1
    return kind, -max(parts, default=-1.0)


def _alike(cards: list[Document]) -> list[tuple[list[str], Document]]:
    """Cards with equal refusals, once, with their numbers."""
    found: dict[tuple[Any, ...], tuple[list[str], Document]] = {}
    for card in cards:
        key = tuple(value for name, value in card.items() if name != "minor")
        found.setdefault(key, ([], card))[0].append(str(card["minor"]))
    return list(found.values())


def _amount(code: str, value: int | None, *, up: bool = False) -> str:
    """An amount as the line above the table has it."""
    if value is None:
        return ""
    if code == "InsufficientMemory":
        return exact(value, up=up)
    return core_text(value) if code == "InsufficientCore" else str(value)


def _print_possible(console: Console, found: Document) -> None:
    console.print(
        Text(
            f"its devices are free on node {found['fits_now_on']} now: its scheduler has not tried it "
            "yet, or lacks CPU, memory or something else there"
        )
    )
    if found.get("kube_scheduler"):
        console.print(Text(f"kube-scheduler: {found['kube_scheduler']}"))
    if found["nominated_node"]:
        console.print(Text(f"preemption makes room for it on node {found['nominated_node']}"))


def _print_request(console: Console, found: Document) -> None:
    table = PlainTable("ASKS FOR", "OF EACH", "PROTOCOL", "CONTAINERS")
    for group in found["request"]:
        count = "all" if group["count"] is None else group["count"]
        protocol = group["protocol"]
        if group["dialect"]:
            protocol += f" ({group['dialect']})"
        table.add_row(
            f"{count} x {group['type']}", _each(group), protocol, ", ".join(group["containers"])
        )
    if found["request"]:
        console.print(table)
    for note in found["notes"]:
        console.print(Text(note, style="dim"))


def _each(group: Document) -> str:
    if group["whole"]:
        return "whole"
    parts = []
    if group["core_milli"]:
        parts.append(core_text(group["core_milli"]))
    if group["memory_bytes"]:
        parts.append(brief(group["memory_bytes"]))
    elif group["memory_milli"]:
        parts.append(f"{core_text(group['memory_milli'])} of memory")
    return " + ".join(parts) or "-"


def _print_limits(console: Console, limits: Document) -> None:
    """Print the node agent's report on the pod's shares."""
    word, style = _IN_FORCE.get(limits["in_force"], ("not known", "yellow"))
    line = Text("limits in force: ", style="bold").append(word, style=f"not bold {style}")
    console.print(line.append(f"; {limits['message']}", style="default"), soft_wrap=True)


def _print_adjustment(console: Console, adjustment: Document) -> None:
    """Print the pod's adjustment of its shares, and its result."""
    word, style = {"True": ("done", "green"), "False": ("not done", "red")}.get(
        adjustment["done"] or "", ("not yet", "yellow")
    )
    line = Text(f"asked to be adjusted to {adjustment['asked']}: ", style="bold")
    line.append(word, style=f"not bold {style}")
    if adjustment["message"]:
        line.append(f"; {adjustment['reason']}: {adjustment['message']}", style="default")
    console.print(line, soft_wrap=True)


def _print_cards(console: Console, found: Document, *, wide: bool) -> None:
    columns = ("CARD", "CONTAINER", "COMPUTE", "MEMORY", "HOW")
    table = PlainTable(*columns, *(("UUID",) if wide else ()))
    for grant in found["allocations"]:
        how = _held(grant)
        if grant["vf"]:
            how += f", virtual function {grant['vf']['busID']}"
        container = grant["container"] + (" (init)" if grant["init"] else "")
        memory = brief(grant["memory_bytes"]) if grant["memory_bytes"] else "-"
        row = [
            f"{grant['type']} {grant['minor']}",
            container,
            core_text(grant["core_milli"]) if grant["core_milli"] else "-",
            memory,
            how,
        ]
        table.add_row(*row, *([grant["uuid"]] if wide else []))
    console.print(table)


def _print_policy(console: Console, found: Document, in_force: str) -> None:
    if found.get("policy"):
        line = _policy_text(found["policy"], in_force)
        console.print(Text("policy ", style="bold").append(line, style="not bold"))
    another = found.get("another")
    if another and another["node"]:
        same = " too" if another["node"] == found["node"] else ""
        console.print(
            Text(
                f"another pod like it would go to node {another['node']}{same}, the best of "
                f"{another['nodes']} with room for its devices"
            )
        )
    elif another:
        console.print(Text(f"another pod like it would wait: {another['message']}"))
    record = found["record"]
    if record:
        trusted = f"not trusted: {record['problem']}" if record["problem"] else "trusted"
        console.print(Text(f"record read: {record['source']}, {trusted}"))


def _policy_text(policy: Document, in_force: str) -> str:
    whose = {"pod": "the pod's own annotation", "cluster": in_force}
    between, cards = policy["node"], policy["card"]
    if (between, policy["node_from"]) == (cards, policy["card_from"]):
        return f"{between}, between nodes and cards ({whose[policy['node_from']]})"
    return (
        f"{between} between nodes ({whose[policy['node_from']]}), "
        f"{cards} between cards ({whose[policy['card_from']]})"
    )


def _print_annotations(console: Console, found: Document, *, wide: bool) -> None:
    table = PlainTable("ANNOTATION", "MEANING", *(("VALUE",) if wide else ()))
    for key, value in found["annotations"].items():
        short = value if len(value) <= _LONG else value[:_LONG] + "…"
        table.add_row(key, meaning(key), *([short] if wide else []))
    console.print(table)


def meaning(key: str) -> str:
    """The meaning of an annotation; empty for an unknown one."""
    if key.startswith(names.QGPU_CARDS):
        return f"qGPU: cards of container {key.removeprefix(names.QGPU_CARDS)}"
    return _MEANINGS.get(key, "")

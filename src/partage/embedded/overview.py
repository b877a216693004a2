"""The state of the embedded cluster at one moment, in words and numbers for people."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from partage.apiserver import ApiServer, Record
from partage.dashboard.catalogue import plain_model
from partage.embedded.claim_lives import CLAIMS, claims_of
from partage.embedded.watching import OVER, is_over
from partage.extender.books import Books
from partage.model.allocation import Grant
from partage.model.device import DeviceType
from partage.model.quantity import part_text
from partage.wire.outcomes import cards_text, closed_code, given_text, said


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node: its capacity, its use, and its problems."""

    name: str
    model: str
    cards: int
    compute: str
    memory: str
    pods: int
    state: str


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """One pod with a node."""

    name: str
    node: str
    phase: str
    cards: str
    given: str


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """One pod without a node; the reason is empty before the first attempt."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole cluster at one moment."""

    nodes: tuple[NodeLine, ...] = ()
    placed: tuple[PlacedLine, ...] = ()
    waiting: tuple[WaitingLine, ...] = ()


def overview(server: ApiServer, books: Books) -> Overview:
    """The present state by the API server and the books."""
    placed: list[PlacedLine] = []
    waiting: list[WaitingLine] = []
    for record in server.store.all("pods"):
        name = f"{record.namespace}/{record.name}"
        node = (record.value.get("spec") or {}).get("nodeName")
        phase = str((record.value.get("status") or {}).get("phase") or "Pending")
        if node:
            grants = [*_grants(server, books, record)]
            shown = "Terminating" if record.metadata.get("deletionTimestamp") else phase
            placed.append(PlacedLine(name, node, shown, cards_text(grants), given_text(grants)))
        elif not is_over(record):
            waiting.append(WaitingLine(name, waits_because(record)))
    running = Counter(one.node for one in placed if one.phase not in OVER)
    nodes = tuple(
        _node(books, record.name, running[record.name]) for record in server.store.all("nodes")
    )
    return Overview(nodes, tuple(placed), tuple(waiting))


def _grants(server: ApiServer, books: Books, pod: Record) -> Iterator[Grant]:
    """A pod's grants, by its record and by its ResourceClaims, which several pods may share."""
    named = () if is_over(pod) else claims_of(pod.value)
    claims = [server.store.get(CLAIMS, pod.namespace, name) for _, name in named]
    for uid in (pod.uid, *(one.uid for one in claims if one is not None)):
        held = books.engine.ledger.allocation(uid)
        yield from held.grants if held else ()


def waits_because(record: Record) -> str:
    """The reason why a pod has no node; empty if unknown."""
    for one in (record.value.get("status") or {}).get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "")
    return ""


def _node(books: Books, name: str, pods: int) -> NodeLine:
    ledger = books.engine.ledger
    index = ledger.index.get(name)
    if index is None:
        return NodeLine(name, "", 0, "-", "-", pods, "not in the ledger")
    node = ledger.node_at(index)
    cards = list(ledger.cards(DeviceType.GPU, index))
    models = Counter(
        plain_model(said(node, c.device, "model")) or said(node, c.device, "vendor") for c in cards
    )
    closed = Counter(code for card in cards if (code := closed_code(card)))
    return NodeLine(
        name=name,
        model=", ".join(models),
        cards=len(cards),
        compute=_used(
            (c.device.core_milli for c in cards), (c.core_free for c in cards), cards=True
        ),
        memory=_used(
            (c.device.memory_bytes for c in cards), (c.memory_free for c in cards), memory=True
        ),
        pods=pods,
        state=", ".join(f"{n} {code}" for code, n in closed.items())
        or ("cordoned" if node.unschedulable else "ok"),
    )


def _used(totals: Iterable[int], free: Iterable[int], **unit: bool) -> str:
    total = sum(totals)
    return part_text({"used": total - sum(free), "total": total}, **unit)

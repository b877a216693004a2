"""The file format of a journal: one JSON object a line.

    {"kind": "Record", "apiVersion": "partage.io/v1", "instance": …, "partage": …}   first line
    {"kind": "Time", "at": …}                                                     now and then
    {"kind": "State" | "<event>" | "Decision", "engine": "instance/1", …}

All values are the model's own, in base units, so that nothing is parsed twice and a replay cannot
read it differently. An error names the number of a line that cannot be decoded. The last line without
an end is left out, because the program stopped while it wrote that line.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, TypeVar, cast, get_args

import msgspec
import numpy as np

from partage.inventory.card import Suspicion
from partage.model.allocation import Allocation
from partage.model.errors import UNREADABLE, InvalidDocument
from partage.model.node import Node
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.placement.tables import Tables
from partage.scheduler.classes import RANKS
from partage.scheduler.events import Event, NodeSeen, Placement, Quotas
from partage.scheduler.journal import Decided, EngineState, Entry

FORMAT: Final = "partage.io/v1"
LONGEST: Final = 2**28
"""Most bytes of a line that is read."""
_T = TypeVar("_T")
_EVENTS: Final = {one.__name__: one for one in get_args(Event)}


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: the writer of the file, and its settings.

    `instance`: the scheduler's identity; the decisions' ids begin with it. `at`: the start of the file, RFC 3339.
    """

    instance: str = ""
    partage: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A decision as it was recorded.

    Attributes:
        number: of the engine's decisions; logs have it behind the engine's label.
        verb: `hold` or `place_on`.
        placement: the answer, or else `refusal`.
        among: names of the requested nodes; None for all.
        few: only little work was allowed.
        spent: units that earlier decisions of the same question had spent.
        alone: where no node took the whole pod, it was decided about by its devices alone.
    """

    number: int
    verb: str
    pod: Pod
    placement: Placement | None = None
    refusal: Refusal | None = None
    node: str = ""
    among: tuple[str, ...] | None = None
    few: bool = False
    spent: int = 0
    alone: bool = False

    @property
    def decision(self) -> Placement | Refusal:
        """The answer."""
        return self.placement or cast("Refusal", self.refusal)


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its engine and its contents; a new engine is made whenever its books are new."""

    engine: str
    entry: Event | EngineState | Question


_SAME: Final = ("number", "verb", "pod", "node", "few", "spent", "alone")
Links = tuple[tuple[str, str, int], ...]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=RANKS)]


@dataclass(frozen=True, slots=True)
class _Node:
    """A node; its links are a separate field, because JSON has no pairs as keys."""

    node: Node
    links: Links = ()
    rank: _Rank = 0

    @staticmethod
    def of(node: Node, rank: int = 0) -> "_Node":
        links = tuple((one, other, score) for (one, other), score in node.links.items())
        return _Node(replace(node, links={}) if links else node, links, rank)

    def whole(self) -> Node:
        links = {(one, other): score for one, other, score in self.links}
        return replace(self.node, links=links) if links else self.node


@dataclass(frozen=True, slots=True)
class _State:
    policy: Policy
    tables: Tables
    quotas: Quotas
    nodes: tuple[_Node, ...]
    next_rank: _Rank
    versions: Mapping[str, int]
    pods: tuple[Pod, ...]
    gone: tuple[str, ...]
    held: tuple[tuple[Allocation, str], ...]
    suspicions: Mapping[str, Suspicion]
    counted: Mapping[str, tuple[str, Mapping[str, int]]]

    def whole(self) -> EngineState:
        pairs = tuple((one.whole(), one.rank) for one in self.nodes)
        rest = {name: getattr(self, name) for name in _State.__slots__ if name != "nodes"}
        return EngineState(nodes=pairs, **rest)


class _Head(msgspec.Struct, frozen=True):
    kind: str
    engine: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")
    api: str = msgspec.field(default="", name="apiVersion")


def _plain(value: object) -> object:
    """A JSON value for types that JSON lacks."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(type(value).__name__)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain)


def header_line(header: Header) -> bytes:
    """The first line of a file."""
    told: dict[str, Any] = {"kind": "Record", "apiVersion": FORMAT}
    return _ENCODER.encode(told | {"value": header}) + b"\n"


def time_line(at: str) -> bytes:
    """The line with the time of the following lines, at most a moment after they happened; for people."""
    return _ENCODER.encode({"kind": "Time", "value": at}) + b"\n"


def encode_entry(engine: str, entry: Entry) -> bytes:
    """One line; `engine` is the label of the journal's engine."""
    kind, value = _written(entry)
    return _ENCODER.encode({"kind": kind, "engine": engine, "value": value}) + b"\n"


def _written(entry: Entry) -> tuple[str, object]:
    if isinstance(entry, Decided):
        said = entry.decision
        placed, refused = (said, None) if isinstance(said, Placement) else (None, said)
        same = {name: getattr(entry, name) for name in _SAME}
        return "Decision", Question(**same, placement=placed, refusal=refused, among=_asked(entry))
    if isinstance(entry, EngineState):
        rest = {name: getattr(entry, name) for name in _State.__slots__ if name != "nodes"}
        nodes = tuple(_Node.of(node, rank) for node, rank in entry.nodes)
        return "State", _State(nodes=nodes, **rest)
    return type(entry).__name__, _Node.of(entry.node) if isinstance(entry, NodeSeen) else entry


def _asked(entry: Decided) -> tuple[str, ...] | None:
    if entry.among is None:
        return None
    known = sum(1 for name in entry.labels if name)
    chosen = [entry.labels[index] for index in np.flatnonzero(entry.among).tolist()]
    return None if len(chosen) == known else tuple(chosen)


def _array(_type: type, value: object) -> object:
    return np.array(value, np.float64)


def _decoded(raw: bytes | msgspec.Raw, into: type[_T]) -> _T:
    return msgspec.json.decode(raw, type=into, dec_hook=_array)


def read_lines(source: str, lines: Iterable[bytes]) -> Iterator[Header | Line]:
    """The contents of a file, in order; every file starts with a header.

    `source`: the file's name in messages. `lines`: with their ends; of a longer one the first `LONGEST` bytes. Raises
    `InvalidDocument`: a line cannot be decoded, or is too long, or the file is no journal.
    """
    known = False
    for number, raw in enumerate(lines, 1):
        if not raw.endswith(b"\n"):
            if len(raw) < LONGEST:
                return
            raise InvalidDocument(
                f"{source}: line {number}: longer than the {LONGEST >> 20} MiB that are read; record with a smaller "
                "--record-size"
            )
        try:
            head = msgspec.json.decode(raw, type=_Head)
            if head.kind == "Record":
                yield _header(source, head)
                known = True
            elif not known:
                raise InvalidDocument(_foreign(source))
            elif head.kind != "Time":
                yield Line(head.engine, _entry(head))
        except (LookupError, *UNREADABLE) as error:
            if not known:
                raise InvalidDocument(_foreign(source)) from error
            raise InvalidDocument(
                f"{source}: line {number}: {error}; the file was changed, or is of another "
                "version of partage: replay it with the version that its first line names"
            ) from error


def _foreign(source: str) -> str:
    return (
        f"{source}: is no recording: its first line must be of kind Record; write one with "
        "partage scheduler --record FILE, or a snapshot with partage snapshot -o FILE"
    )


def _header(source: str, head: _Head) -> Header:
    if head.api != FORMAT:
        raise InvalidDocument(
            f"{source}: format {head.api or 'unnamed'}; this version reads {FORMAT}: replay the "
            "file with the version of partage that wrote it"
        )
    return _decoded(head.value, Header)


def _entry(head: _Head) -> Event | EngineState | Question:
    if head.kind == "State":
        return _decoded(head.value, _State).whole()
    if head.kind == "NodeSeen":
        return NodeSeen(_decoded(head.value, _Node).whole())
    if head.kind == "Decision":
        found = _decoded(head.value, Question)
        if found.placement is None and found.refusal is None:
            raise LookupError("a decision without an answer")
        return found
    if head.kind not in _EVENTS:
        raise LookupError(f"kind {head.kind} is not known")
    event: Event = _decoded(head.value, _EVENTS[head.kind])
    return event

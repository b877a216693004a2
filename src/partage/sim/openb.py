"""The openb traces: nodes and pods as CSV, arrival sequences as NPZ, and their meaning.

Source: the trace of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent"
(USENIX ATC 2023), columns as published. `gpu_milli` is per card; `gpu_spec` lists acceptable models, separated by `|`,
and is empty if any model is acceptable. Optional columns may be absent. Every fault in a file is an `InvalidDocument`
that names the file and the row.
"""

import csv
import random
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, Final

import numpy as np

from partage.model.device import MILLI
from partage.model.errors import InvalidDocument
from partage.placement.mix import Ask

TUNED: Final = 130
"""Load to which sequences are filled or cut, percent of the cluster's compute."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: CPU in milli, memory in MiB, number of cards, their model and memory in MiB.

    Card memory 0 is for traces without it; such cards have none, and no pod asks any.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str
    card_mib: int = 0


@dataclass(frozen=True, slots=True)
class PodRow:
    """One pod.

    Attributes:
        cards: cards asked; 0 for a pod without any.
        milli: compute asked of each card, 1000 for whole cards.
        models: acceptable models as written.
        created: time of arrival, seconds, or None if the trace has none.
        deleted: time of its end, seconds, or None.
        card_mib: memory asked of each card, MiB.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    milli: int
    models: str = ""
    created: float | None = None
    deleted: float | None = None
    card_mib: int = 0

    @property
    def demand(self) -> int:
        """Compute asked over all cards, milli."""
        return self.cards * self.milli

    @property
    def ask(self) -> Ask:
        """The pod's ask for prices."""
        if not self.cards:
            return Ask(self.cpu_milli, self.memory_mib)
        return Ask(self.cpu_milli, self.memory_mib, self.cards, self.milli, self.accepted)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The acceptable models, each once; empty for any."""
        return tuple(sorted({model for model in self.models.split("|") if model}))

    @property
    def kind(self) -> str:
        """The class of its request: `cpu-only`, `fraction`, `one-card` or `many-cards`."""
        if not self.cards:
            return "cpu-only"
        if self.cards > 1:
            return "many-cards"
        return "one-card" if self.milli >= MILLI else "fraction"


@dataclass(frozen=True, slots=True)
class Trace:
    """A cluster and the pods of one trace, in the order of their files."""

    name: str
    nodes: tuple[NodeRow, ...]
    pods: tuple[PodRow, ...]

    @property
    def capacity(self) -> int:
        """Compute of the whole cluster, milli."""
        return sum(node.cards for node in self.nodes) * MILLI


@dataclass(frozen=True, slots=True)
class Sequence:
    """One experiment: which pods arrive in which order, and which nodes are preferred.

    Attributes:
        pods: rows of the trace in order of arrival; a row may repeat.
        order: nodes (rows) from the most to the least preferred among equals.
        source: its origin, for people.
    """

    pods: tuple[int, ...]
    order: tuple[int, ...]
    source: str


# --- tables --------------------------------------------------------------------------------------


def read_trace(folder: Path, name: str) -> Trace:
    """The trace `name` of a folder: `nodes.csv`, `pods_<name>.csv`. Raises `InvalidDocument`: it names the row."""
    nodes = _nodes(folder / "nodes.csv")
    models = {node.model for node in nodes}
    path = folder / f"pods_{name}.csv"
    return Trace(name, nodes, read_pods(path, models))


def read_pods(path: Path, models: set[str] | None = None) -> tuple[PodRow, ...]:
    """The pods of a table. `models`: existing ones; None accepts any. Raises `InvalidDocument`: a bad file or row."""
    pods = tuple(_pod(row, models) for row in _rows(path, _POD_COLUMNS))
    if not pods:
        raise InvalidDocument(f"{path}: no pods")
    return pods


_NEEDED: Final = "name a folder with nodes.csv and pods_<trace>.csv, and sequences that are there"
_LINE: Final = 2**20
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of a table, with its place in the file."""

    path: Path
    number: int
    line: int
    values: Mapping[str, str]

    def fault(self, what: str) -> InvalidDocument:
        return InvalidDocument(f"{self.path}: row {self.number} (line {self.line}): {what}")

    def whole(self, column: str, most: int | None = None) -> int:
        text = self.values[column].strip()
        try:
            value = int(text)
        except ValueError:
            raise self.fault(f"{column} is {text!r}, not a whole number") from None
        if value < 0 or value >= 2**53:
            raise self.fault(f"{column} is {value}, which cannot be")
        if most is not None and value > most:
            raise self.fault(f"{column} is {value}, at most {most} can be")
        return value

    def time(self, column: str) -> float | None:
        text = (self.values.get(column) or "").strip()
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = nan
        if not abs(value) < 2**53:
            raise self.fault(f"{column} is {text!r}, not a time in seconds")
        return value


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[_Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(iter(lambda: file.readline(_LINE), ""))
            missing = [c for c in columns if c not in (reader.fieldnames or ())]
            if missing:
                raise InvalidDocument(f"{path}: line 1: no column {', '.join(missing)}")
            for number, values in enumerate(reader, 1):
                row = _Row(path, number, reader.line_num, values)
                if None in values:
                    raise row.fault(f"more than {len(reader.fieldnames or ())} fields")
                short = [c for c in values if values[c] is None]
                if short:
                    raise row.fault(f"no field for {', '.join(short)}")
                yield row
    except OSError as error:
        raise InvalidDocument(f"{path}: {error.strerror or error}; {_NEEDED}") from None
    except UnicodeDecodeError as error:
        raise InvalidDocument(f"{path}: not UTF-8 text (byte {error.start})") from None
    except csv.Error as error:
        raise InvalidDocument(f"{path}: not CSV: {error}") from None


def _nodes(path: Path) -> tuple[NodeRow, ...]:
    nodes: dict[str, NodeRow] = {}
    for row in _rows(path, _NODE_COLUMNS):
        node = _node(row)
        if node.name in nodes:
            raise row.fault(f"node {node.name!r} is there already")
        nodes[node.name] = node
    if not nodes:
        raise InvalidDocument(f"{path}: no nodes")
    return tuple(nodes.values())


def _node(row: _Row) -> NodeRow:
    model, cards = row.values["model"].strip(), row.whole("gpu", 1024)
    if not row.values["sn"].strip():
        raise row.fault("sn is empty")
    return NodeRow(
        row.values["sn"].strip(), row.whole("cpu_milli"), row.whole("memory_mib"), cards, model
    )


def _pod(row: _Row, models: set[str] | None) -> PodRow:
    cards = row.whole("num_gpu", 1024)
    spec = (row.values.get("gpu_spec") or "").strip()
    for model in spec.split("|") if spec else ():
        if model and models is not None and model not in models:
            raise row.fault(f"gpu_spec names model {model!r}, which no node of nodes.csv has")
    return PodRow(
        name=row.values["name"].strip(),
        cpu_milli=row.whole("cpu_milli"),
        memory_mib=row.whole("memory_mib"),
        cards=cards,
        milli=row.whole("gpu_milli", MILLI) if cards else 0,
        models=spec,
        created=row.time("creation_time"),
        deleted=row.time("deletion_time"),
    )


# --- sequences -----------------------------------------------------------------------------------


def read_sequence(path: Path, trace: Trace, seed: int) -> Sequence:
    """The sequence `pod_<trace>_<seed>` and `node_<trace>_<seed>` of an NPZ file.

    Raises `InvalidDocument`: the file, one of its arrays, or an entry does not match the trace.
    """
    pod_key, node_key = f"pod_{trace.name}_{seed}", f"node_{trace.name}_{seed}"
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InvalidDocument(f"{path}: not an NPZ file but a single array")
            arrays = {key: archive[key] for key in (pod_key, node_key) if key in archive.files}
    except OSError as error:
        raise InvalidDocument(f"{path}: {error.strerror or error}; {_NEEDED}") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidDocument(f"{path}: not an NPZ file: {error}") from None
    for key in (pod_key, node_key):
        if key not in arrays:
            raise InvalidDocument(f"{path}: no array {key} for trace {trace.name}, seed {seed}")
    pods = _indexes(path, pod_key, arrays[pod_key])
    for position, row in enumerate(pods):
        if not 0 <= row < len(trace.pods):
            raise InvalidDocument(
                f"{path}: {pod_key} entry {position} is row {row}, but pods_{trace.name}.csv has "
                f"rows 0 to {len(trace.pods) - 1}"
            )
    ranks = _indexes(path, node_key, arrays[node_key])
    if len(ranks) != len(trace.nodes):
        raise InvalidDocument(
            f"{path}: {node_key} ranks {len(ranks)} nodes, but nodes.csv has {len(trace.nodes)}"
        )
    if len(set(ranks)) != len(ranks):
        raise InvalidDocument(f"{path}: {node_key} gives two nodes the same rank")
    # The ranks are of the nodes sorted by name; the published table is sorted already.
    by_name = sorted(range(len(ranks)), key=lambda row: trace.nodes[row].name)
    ranked = sorted(range(len(ranks)), key=ranks.__getitem__)
    return Sequence(tuple(pods), tuple(by_name[i] for i in ranked), f"{path.name} seed {seed}")


def _indexes(path: Path, key: str, array: np.ndarray[Any, Any]) -> list[int]:
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InvalidDocument(f"{path}: {key} is no list of whole numbers")
    result: list[int] = array.tolist()
    return result


def drawn(trace: Trace, seed: int, load: int = TUNED) -> Sequence:
    """A sequence of our own: shuffled, then tuned to `load` percent of the cluster's compute.

    Follows the published construction with Python's generator instead of Go's: the same seed gives other numbers than
    the paper's. If demand is too low, clones are drawn with replacement until one would exceed the load (judged by its
    compute a card, as published). If it is too high, pods are dropped at random.
    """
    chance = random.Random(seed)  # noqa: S311 # a seeded draw is the point
    base = sorted(range(len(trace.pods)), key=lambda row: trace.pods[row].name)
    pods = base.copy()
    chance.shuffle(pods)
    target = trace.capacity * load // 100
    arrived = sum(row.demand for row in trace.pods)
    while arrived > target:
        position = chance.randrange(len(pods))
        arrived -= trace.pods[pods.pop(position)].demand
    if any(row.demand for row in trace.pods) and len(pods) == len(base):
        while True:
            row = base[chance.randrange(len(base))]
            if arrived + trace.pods[row].milli > target:
                break
            pods.append(row)
            arrived += trace.pods[row].demand
    order = list(range(len(trace.nodes)))
    chance.shuffle(order)
    return Sequence(tuple(pods), tuple(order), f"drawn with seed {seed}")

"""Recorded mixes of requests: read before a run so that prices are known from its first pod."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from partage.model.device import MILLI
from partage.model.errors import InvalidDocument
from partage.placement.mix import Ask
from partage.sim.learning import ask_of
from partage.sim.openb import read_pods

_FIELDS = ("cpu_milli", "memory_mib", "cards", "milli", "count")


def read_history(path: Path) -> dict[Ask, int]:
    """How often each ask came: a table of pods as in openb, or what `write_history` wrote.

    Raises:
        InvalidDocument: the file is missing or broken; the message says where.
    """
    if path.suffix != ".json":
        return dict(Counter(ask_of(row) for row in read_pods(path)))
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidDocument(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise InvalidDocument(f"{path}: not JSON: {error}") from None
    if not isinstance(entries, list):
        raise InvalidDocument(f"{path}: not a list of requests")
    result: Counter[Ask] = Counter()
    for number, entry in enumerate(entries, 1):
        ask, count = _entry(f"{path}: entry {number}", entry)
        result[ask] += count
    return dict(result)


def _entry(where: str, entry: object) -> tuple[Ask, int]:
    if not isinstance(entry, dict):
        raise InvalidDocument(f"{where}: not a request")
    numbers = []
    for field in _FIELDS:
        value = entry.get(field)
        if type(value) is not int or not 0 <= value < 2**53:
            raise InvalidDocument(f"{where}: {field} is {value!r}, not a whole number from 0")
        numbers.append(value)
    models = entry.get("models", [])
    if not isinstance(models, list) or not all(isinstance(m, str) for m in models):
        raise InvalidDocument(f"{where}: models is {models!r}, not a list of names")
    cpu, memory, cards, milli, count = numbers
    if milli > MILLI or cards > 1024:
        raise InvalidDocument(f"{where}: asks more cards, or more of each, than can be")
    return Ask(cpu, memory, cards, milli, tuple(sorted(set(models)))), count


def write_history(path: Path, counts: Mapping[Ask, int]) -> None:
    """Write a mix, in the order of the asks.

    Raises:
        InvalidDocument: the file cannot be written.
    """
    entries = [
        {
            "cpu_milli": ask.cpu_milli,
            "memory_mib": ask.memory_mib,
            "cards": ask.count,
            "milli": ask.milli,
            "models": list(ask.models),
            "count": count,
        }
        for ask, count in sorted(counts.items())
    ]
    try:
        path.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidDocument(f"{path}: {error.strerror or error}") from None

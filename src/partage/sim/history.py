"""Recorded mixes of requests, read before a run so that prices are known from its first pod."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from partage.model.device import MILLI
from partage.model.errors import UNREADABLE, InvalidDocument
from partage.placement.mix import Ask
from partage.sim.openb import read_pods
from partage.wire.documents import read_file

_Amount = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class _Entry(msgspec.Struct, frozen=True):
    """A request and its number of arrivals; a card is 1000 milli, and no node has more than 1024 cards."""

    cpu_milli: _Amount
    memory_mib: _Amount
    cards: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    milli: Annotated[int, msgspec.Meta(ge=0, le=MILLI)]
    count: _Amount
    models: frozenset[str] = frozenset()


def read_history(path: Path) -> dict[Ask, int]:
    """How often each ask arrived: a table of pods as in openb, or the output of `write_history`.

    Raises `InvalidDocument`: the file is missing or broken; the message names the place.
    """
    if path.suffix != ".json":
        return dict(Counter(row.ask for row in read_pods(path)))
    try:
        entries = msgspec.json.decode(read_file(path), type=list[_Entry])
    except OSError as error:
        raise InvalidDocument(f"{path}: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise InvalidDocument(f"{path}: not a list of requests: {error}") from None
    result: Counter[Ask] = Counter()
    for one in entries:
        models = tuple(sorted(one.models))
        result[Ask(one.cpu_milli, one.memory_mib, one.cards, one.milli, models)] += one.count
    return dict(result)


def write_history(path: Path, counts: Mapping[Ask, int]) -> None:
    """Write a mix, in the order of the asks. Raises `InvalidDocument`."""
    entries = [
        {
            "cpu_milli": ask.cpu_milli,
            "memory_mib": ask.memory_mib,
            "cards": ask.count,
            "milli": ask.milli,
            "models": ask.models,
            "count": count,
        }
        for ask, count in sorted(counts.items())
    ]
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")
    except OSError as error:
        raise InvalidDocument(f"{path}: {error.strerror or error}") from None

"""Stops two writers that disagree from an endless series of writes.

If a controller must write values to the same object that it wrote before, another program undid them, all or some at a
time. The first time the controller corrects it soon, as after a kubelet's restart. Each later correction waits twice as
long.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_FIRST: Final = 1.0
_LONGEST: Final = 300.0
_FORGOTTEN: Final = 1800.0
_FIGHT: Final = 4


@dataclass(slots=True)
class _Write:
    """The last write of a kind, with the last written value of each name."""

    values: dict[tuple[str, ...], Any]
    at: float
    repeats: int = 0

    def undone(self, change: Mapping[str, Any], now: float) -> bool:
        """Whether a change has only values that were written before."""
        if now - self.at > _FORGOTTEN:
            return False
        return all(self.values.get(name, self) == value for name, value in _values(change))


def _values(change: Mapping[str, Any], *place: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of a change by their place in it."""
    for name, value in change.items():
        if isinstance(value, Mapping):
            yield from _values(value, *place, name)
        else:
            yield (*place, name), value


class Contention:
    """The last write of each kind to each object; moments are monotonic seconds."""

    def __init__(self) -> None:
        self._writes: dict[Hashable, dict[str, _Write]] = {}

    def wait(self, key: Hashable, what: str, change: Mapping[str, Any], now: float) -> float:
        """Seconds until the change may be written; 0 for at once."""
        last = self._writes.get(key, {}).get(what)
        if last is None or not last.undone(change, now):
            return 0.0
        delay = min(_LONGEST, _FIRST * 2.0 ** min(last.repeats, 16))
        return max(0.0, last.at + delay - now)

    def written(self, key: Hashable, what: str, change: Mapping[str, Any], now: float) -> bool:
        """Record that the change was written; True, once, if this has become a fight."""
        last = self._writes.get(key, {}).get(what)
        repeats = last.repeats + 1 if last is not None and last.undone(change, now) else 0
        values = (last.values if last else {}) | dict(_values(change))
        self._writes.setdefault(key, {})[what] = _Write(values, now, repeats)
        return repeats == _FIGHT

    def forget(self, key: Hashable) -> None:
        """Forget a deleted object."""
        self._writes.pop(key, None)

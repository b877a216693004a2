"""Stops two writers that disagree from an endless series of writes.

If a controller must write a value to the same object that it wrote before, another program undid it. The first time the
controller corrects it soon, as after a kubelet's restart. Each later correction of the value waits twice as long.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_FIRST: Final = 1.0
_LONGEST: Final = 300.0
_FORGOTTEN: Final = 1800.0
_FIGHT: Final = 4


@dataclass(frozen=True, slots=True)
class _Written:
    value: Any
    at: float
    repeats: int = 0

    def undone(self, value: Any, now: float) -> bool:
        """Whether another program undid it, so that the same value must be written again."""
        return self.value == value and now - self.at <= _FORGOTTEN


def _values(change: Mapping[str, Any], *place: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of a change by their place in it."""
    for name, value in change.items():
        if isinstance(value, Mapping):
            yield from _values(value, *place, name)
        else:
            yield (*place, name), value


class Contention:
    """The last write of each value of each object; moments are monotonic seconds."""

    def __init__(self) -> None:
        self._writes: dict[Hashable, dict[tuple[str, ...], _Written]] = {}

    def wait(self, key: Hashable, what: str, change: Mapping[str, Any], now: float) -> float:
        """Seconds until the change may be written; 0 for at once.

        The value that waits least decides, so that a fight about one value does not delay the others.
        """
        known = self._writes.get(key, {})
        return min(
            (_left(known.get(name), one, now) for name, one in _values(change, what)), default=0.0
        )

    def written(self, key: Hashable, what: str, change: Mapping[str, Any], now: float) -> bool:
        """Record that the change was written; True, once, if this has become a fight."""
        known = self._writes.setdefault(key, {})
        before = _most(known, what)
        for name, value in _values(change, what):
            last = known.get(name)
            repeats = last.repeats + 1 if last is not None and last.undone(value, now) else 0
            known[name] = _Written(value, now, repeats)
        return before < _FIGHT <= _most(known, what)

    def forget(self, key: Hashable) -> None:
        """Forget a deleted object."""
        self._writes.pop(key, None)


def _left(last: _Written | None, value: Any, now: float) -> float:
    if last is None or not last.undone(value, now):
        return 0.0
    return max(0.0, last.at + min(_LONGEST, _FIRST * 2.0 ** min(last.repeats, 16)) - now)


def _most(known: Mapping[tuple[str, ...], _Written], what: str) -> int:
    """The most corrections of one value of a kind."""
    return max((one.repeats for (kind, *_), one in known.items() if kind == what), default=0)

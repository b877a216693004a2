"""Stops two writers that disagree from an endless series of writes.

If a controller must write the same change to the same object again, another program undid it. The first time
the controller corrects it soon, as after a kubelet's restart. Each later correction waits twice as long.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final

_FIRST: Final = 1.0
_LONGEST: Final = 300.0
_FORGOTTEN: Final = 1800.0
_FIGHT: Final = 4


@dataclass(slots=True)
class _Write:
    change: Any
    at: float
    repeats: int = 0


class Contention:
    """The last write of each kind to each object; moments are monotonic seconds."""

    def __init__(self) -> None:
        self._writes: dict[Hashable, dict[str, _Write]] = {}

    def wait(self, key: Hashable, what: str, change: Any, now: float) -> float:
        """Seconds until the change may be written; 0 for at once."""
        last = self._writes.get(key, {}).get(what)
        if last is None or last.change != change or now - last.at > _FORGOTTEN:
            return 0.0
        delay = min(_LONGEST, _FIRST * 2.0 ** min(last.repeats, 16))
        return max(0.0, last.at + delay - now)

    def written(self, key: Hashable, what: str, change: Any, now: float) -> bool:
        """Record that the change was written; True, once, if this has become a fight."""
        last = self._writes.get(key, {}).get(what)
        repeats = 0
        if last is not None and last.change == change and now - last.at <= _FORGOTTEN:
            repeats = last.repeats + 1
        self._writes.setdefault(key, {})[what] = _Write(change, now, repeats)
        return repeats == _FIGHT

    def forget(self, key: Hashable) -> None:
        """Forget a deleted object."""
        self._writes.pop(key, None)

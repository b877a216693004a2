"""Which pods changed, in order: how a keeper of something by pod learns what to look at again.

A reader remembers the length of the log when it last looked. The latest changes only are kept; a
reader that comes too late learns that, and looks at every pod.
"""

from collections.abc import Sequence
from typing import Final

_KEPT: Final = 2**15


class PodLog:
    """Uids in the order of their changes; a pod that changed twice is there twice.

    Attributes:
        count: how many changes there have ever been.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        """An empty log that has at least the `kept` latest changes."""
        self._kept = kept
        self._recent: list[str] = []
        self.count = 0

    def append(self, uid: str) -> None:
        """Write down that a pod came, changed or went."""
        self._recent.append(uid)
        self.count += 1
        if len(self._recent) > 2 * self._kept:
            del self._recent[: self._kept]

    def since(self, seen: int) -> Sequence[str] | None:
        """The pods that changed after the first `seen` changes; None when that is forgotten."""
        start = seen - self.count + len(self._recent)
        return self._recent[start:] if start >= 0 else None

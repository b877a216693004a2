"""Logs of changed nodes and pods, in order, so that readers update only changed parts.

A reader remembers the length of the log at its last look. A log keeps only the latest changes. A reader that comes too
late learns this, and looks at everything.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from partage.inventory.plane import Index

_KEPT: Final = 2**15


class ChangeLog:
    """Node indexes in the order of their changes, one entry a change; `count`: all changes so far."""

    def __init__(self, kept: int = _KEPT) -> None:
        """An empty log that keeps at least the `kept` latest changes."""
        self._kept = kept
        self._recent: Index = np.zeros(2 * kept, np.intp)
        self._used = 0
        self.count = 0

    def append(self, index: int) -> None:
        """Record that a node changed."""
        if self._used == self._recent.shape[0]:
            self._recent[: self._kept] = self._recent[self._kept :]
            self._used = self._kept
        self._recent[self._used] = index
        self._used += 1
        self.count += 1

    def since(self, seen: int) -> Index | None:
        """The nodes that changed after the first `seen` changes; None if the log no longer has them.

        The result is a view that is valid until the next change.
        """
        start = seen - self.count + self._used
        return self._recent[start : self._used] if start >= 0 else None


def distinct(nodes: Index) -> Index:
    """The same nodes, each once, in ascending order."""
    return np.array(sorted(set(nodes.tolist())), np.intp)


class PodLog:
    """Uids in the order of their changes, one entry a change; `count`: all changes so far."""

    def __init__(self, kept: int = _KEPT) -> None:
        """An empty log that keeps at least the `kept` latest changes."""
        self._kept = kept
        self._recent: list[str] = []
        self.count = 0

    def append(self, uid: str) -> None:
        """Record that a pod was created, changed or deleted."""
        self._recent.append(uid)
        self.count += 1
        if len(self._recent) > 2 * self._kept:
            del self._recent[: self._kept]

    def since(self, seen: int) -> Sequence[str] | None:
        """The pods that changed after the first `seen` changes; None if the log no longer has them."""
        start = seen - self.count + len(self._recent)
        return self._recent[start:] if start >= 0 else None

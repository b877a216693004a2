"""Which nodes changed, in order: how everything that is kept by node learns what to look at again.

A reader remembers the length of the log when it last looked. The log keeps the latest changes
only; a reader that comes too late learns that, and looks at every node.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]

_KEPT: Final = 2**15


class ChangeLog:
    """Node indexes in the order of their changes; a node that changed twice is there twice.

    Attributes:
        count: how many changes there have ever been.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        """An empty log that has at least the `kept` latest changes."""
        self._kept = kept
        self._recent: Index = np.zeros(2 * kept, np.intp)
        self._used = 0
        self.count = 0

    def append(self, index: int) -> None:
        """Write down that a node changed."""
        if self._used == self._recent.shape[0]:
            self._recent[: self._kept] = self._recent[self._kept :]
            self._used = self._kept
        self._recent[self._used] = index
        self._used += 1
        self.count += 1

    def since(self, seen: int) -> Index | None:
        """The nodes that changed after the first `seen` changes; None when that is forgotten.

        The result is a view that holds until the next change.
        """
        start = seen - self.count + self._used
        return self._recent[start : self._used] if start >= 0 else None


def distinct(nodes: Index) -> Index:
    """The same nodes, each once, in ascending order."""
    return np.array(sorted(set(nodes.tolist())), np.intp)

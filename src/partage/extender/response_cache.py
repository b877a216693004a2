"""Answers about thousands of nodes, put together from pieces that are kept from answer to answer.

Two calls for pods that are alike get nearly the same answer: between them a node or two has
changed. So an answer is kept in pieces of 64 nodes, and only pieces in which a node's answer
changed are made again, from prepared texts; the rest is copied as it is.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from partage.inventory.plane import Ints
from partage.wire.extender import encoded_name, score_entry

BEST: Final = 10
"""The highest score of an extender."""

_SIZE: Final = 64
_FEW: Final = 16
"""ResponseCache that are made one by one; more are made all at once."""
_KEPT: Final = 32
_NOBODY: Final = -1

Objects = NDArray[np.object_]


@dataclass(slots=True)
class _Made:
    """One answer in pieces.

    Attributes:
        of: what it answers; kept, so that its identity is not used again meanwhile.
        said: what is said of each place, by place.
        pieces: the texts.
    """

    of: tuple[object, ...]
    said: Ints
    pieces: list[bytes]


class _Named(Sequence[str]):
    """Names of nodes by index."""

    def __init__(self, names: Objects, indexes: Ints) -> None:
        self._names = names
        self._indexes = indexes

    def __len__(self) -> int:
        return self._indexes.size

    def __iter__(self) -> Iterator[str]:
        return iter(self._names[self._indexes].tolist())

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        found: str | Sequence[str] = self._names[self._indexes].tolist()[place]
        return found


class ResponseCache:
    """Texts of nodes, and answers in pieces.

    Attributes:
        names: of nodes by index; 0 where there is none.
    """

    def __init__(self) -> None:
        self.names: Objects = np.zeros(0, object)
        self._quoted: Objects = np.zeros(0, object)
        self._entries: Objects = np.zeros((0, 0), object)
        self._filled: set[int] = set()
        self._made: OrderedDict[Hashable, _Made] = OrderedDict()

    def know(self, index: Mapping[str, int], size: int) -> None:
        """Take in the nodes there are.

        Args:
            index: where each node is.
            size: places for nodes.
        """
        names = np.zeros(size, object)
        names[list(index.values())] = list(index)
        self._made.clear()
        if np.array_equal(names, self.names):
            return
        self.names = names
        self._quoted = np.array([encoded_name(name) if name else b"" for name in names], object)
        self._entries = np.zeros((BEST + 1, size + 1), object)
        self._filled.clear()

    def named(self, indexes: Ints) -> Sequence[str]:
        """The names of nodes, read when somebody looks at them."""
        return _Named(self.names, indexes)

    def scored(
        self, of: tuple[object, ...], listed: Sequence[str], indexes: Ints, scores: Ints
    ) -> bytes:
        """The entries of prioritize, joined by commas.

        Args:
            of: who asks about which list; equal questions are told by identity.
            listed: names of nodes as they came.
            indexes: where each is; -1 for one that is not known.
            scores: of each, from 0 to 10.
        """

        def texts(part: slice) -> list[bytes]:
            some, at = scores[part], indexes[part]
            self._fill(some)
            found: list[bytes] = self._entries[some, at].tolist()
            for unknown in np.flatnonzero(at == _NOBODY).tolist():
                found[unknown] = score_entry(listed[part][unknown], int(some[unknown]))
            return found

        def counts() -> Ints:
            full = np.full(-(-scores.size // _SIZE), _SIZE)
            full[-1:] -= full.sum() - scores.size
            return full

        key = ("scored", *map(id, of))
        return b",".join(self._renewed(key, (of, scores), texts, counts))

    def fitting(self, of: tuple[object, ...], fitting: Ints) -> bytes:
        """The names of nodes that fit, as JSON texts joined by commas.

        Args:
            of: who asks; equal questions are told by identity.
            fitting: their indexes.
        """
        said = np.zeros(self.names.size, np.int64)
        said[fitting] = 1

        def texts(part: slice) -> list[bytes]:
            found: list[bytes] = self._quoted[part][said[part] > 0].tolist()
            return found

        def counts() -> Ints:
            return np.add.reduceat(said, np.arange(0, said.size, _SIZE))

        key = ("fitting", *map(id, of))
        return b",".join(filter(None, self._renewed(key, (of, said), texts, counts)))

    def _fill(self, scores: Ints) -> None:
        """Have the entries with these scores ready."""
        if len(self._filled) > BEST:
            return
        for score in np.flatnonzero(np.bincount(scores, minlength=BEST + 1)).tolist():
            if score not in self._filled:
                self._filled.add(score)
                for index, name in enumerate(self.names.tolist()):
                    if name:
                        self._entries[score, index] = score_entry(name, score)

    def _renewed(
        self,
        key: Hashable,
        answer: tuple[tuple[object, ...], Ints],
        texts: Callable[[slice], list[bytes]],
        counts: Callable[[], Ints],
    ) -> list[bytes]:
        """The pieces of an answer, with those made again in which anything changed.

        Args:
            key: tells equal questions.
            answer: what it answers, and what is said of each place.
            texts: the texts of some places.
            counts: how many texts each piece has.
        """
        of, said = answer
        made = self._made.get(key)
        if made is not None:
            self._made.move_to_end(key)
            changed = set((np.flatnonzero(said != made.said) // _SIZE).tolist())
            if len(changed) <= _FEW:
                for piece in changed:
                    part = slice(piece * _SIZE, (piece + 1) * _SIZE)
                    made.pieces[piece] = b",".join(texts(part))
                made.said = said
                return made.pieces
        found, pieces, start = texts(slice(0, said.size)), [], 0
        for count in counts().tolist():
            pieces.append(b",".join(found[start : start + count]))
            start += count
        self._made[key] = _Made(of, said, pieces)
        if len(self._made) > _KEPT:
            self._made.popitem(last=False)
        return pieces

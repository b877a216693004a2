"""Manifests named on the command line, decoded: files, folders, and `-` for standard input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from partage.wire.documents import Batch, decode, read_paths

__all__ = ["batches"]


def batches(files: Iterable[str]) -> Iterator[Batch]:
    """Every document of every file, in the order given.

    Raises:
        InvalidDocument: a file is missing, or a document cannot be decoded as its kind.
    """
    for name in files:
        if name == "-":
            yield decode("standard input", sys.stdin.buffer.read())
        else:
            for source, data in read_paths([Path(name)]):
                yield decode(source, data)

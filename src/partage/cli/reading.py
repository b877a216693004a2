"""Manifests named on the command line, decoded: files, folders, and `-` for standard input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from partage.model.errors import InvalidDocument
from partage.wire.documents import Batch, decode, read_paths


def batches(files: Iterable[str]) -> Iterator[Batch]:
    """Every document of every file, in the order given.

    Raises:
        InvalidDocument: a file is missing, a document cannot be decoded as its kind, or there is none
            in any of the files.
    """
    names = list(files)
    held = 0
    for name in names:
        given = (
            [("standard input", sys.stdin.buffer.read())]
            if name == "-"
            else read_paths([Path(name)])
        )
        for source, data in given:
            batch = decode(source, data)
            held += len(batch.documents) + len(batch.notes)
            yield batch
    if not held:
        where = ", ".join("standard input" if name == "-" else name for name in names)
        raise InvalidDocument(f"{where}: no document there; give a file with Kubernetes manifests")

"""Reads and decodes manifests named on the command line: files, folders, and `-` for standard input."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from partage.model.errors import InvalidDocument
from partage.wire.documents import Batch, decode, read_paths, read_whole


def batches(files: Iterable[str], *, strict: bool = False) -> Iterator[Batch]:
    """Every document of every file, in the order given.

    `files`: names of files and folders, `-` for standard input. `strict`: reject fields that a kind does not have, and
    duplicate keys. Raises `InvalidDocument`: a file is missing, a document cannot be decoded as its kind, the files
    have none, or `strict` rejects one.
    """
    names = list(files)
    held = 0
    for name in names:
        if name.startswith(("http://", "https://")):
            raise InvalidDocument(
                f"{name}: no address is read; fetch it, and give it by - (curl -sSf ADDRESS | partage …)"
            )
        given = (
            [("standard input", _standard_input())] if name == "-" else read_paths([Path(name)])
        )
        for source, data in given:
            batch = decode(source, data, written=True)
            if strict and batch.doubtful:
                first, more = batch.doubtful[0], len(batch.doubtful) - 1
                others = f" (and {more} more such)" if more else ""
                raise InvalidDocument(f"{first}{others}; correct it, or leave out --strict")
            held += len(batch.documents) + len(batch.notes)
            yield batch
    if not held:
        raise empty(names)


def empty(files: Iterable[str]) -> InvalidDocument:
    """The error for files without any document."""
    return InvalidDocument(
        f"{named(files)}: no document there; give a file with Kubernetes manifests"
    )


def named(files: Iterable[str]) -> str:
    """The files, for people."""
    return ", ".join("standard input" if name == "-" else name for name in files)


def _standard_input() -> bytes:
    try:
        return read_whole(sys.stdin.buffer)
    except OSError as error:
        raise InvalidDocument(
            f"standard input: {error.strerror}; name a file or folder of manifests"
        ) from None

"""Reads and decodes manifests named on the command line: files, folders, and `-` for standard input."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from partage.kube.lenient import repaired
from partage.model.errors import InvalidDocument
from partage.wire.documents import (
    Batch,
    TooDeepDocument,
    decode,
    nothing_in,
    read_paths,
    read_whole,
)


def batches(files: Iterable[str], *, strict: bool = False) -> Iterator[Batch]:
    """Every document of every file, in the order given.

    `files`: names of files and folders, `-` for standard input. `strict`: reject fields that a kind does not have, and
    duplicate keys. Raises `InvalidDocument`: a file is missing, a document cannot be decoded as its kind, the files
    have none, or `strict` rejects one.
    """
    names = list(files)
    held = 0
    for source, data in sources(names):
        batch = _decoded(source, data)
        if strict:
            refuse(batch.doubtful)
        held += len(batch.documents) + len(batch.notes)
        yield batch if batch.documents or batch.notes else Batch(notes=(nothing_in(source),))
    if not held:
        raise empty(names)


def refuse(doubtful: Sequence[str]) -> None:
    """Raise `InvalidDocument` for what strict decoding refuses; an empty sequence passes."""
    if doubtful:
        first, more = doubtful[0], len(doubtful) - 1
        others = f" (and {more} more such)" if more else ""
        raise InvalidDocument(f"{first}{others}; correct it, or leave out --strict")


def sources(files: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every file, in the order given.

    `files`: names of files and folders, `-` for standard input. Raises `InvalidDocument`: one is missing, or cannot be
    read.
    """
    for name in files:
        if name.startswith(("http://", "https://")):
            raise InvalidDocument(
                f"{name}: no address is read; fetch it, and give it by - (curl -sSf ADDRESS | partage …)"
            )
        if name == "-":
            yield "standard input", _standard_input()
        else:
            yield from read_paths([Path(name)])


def _decoded(source: str, data: bytes) -> Batch:
    """A source's documents. The API server stores any depth in some fields, and one object must not hide all others."""
    try:
        return decode(source, data, written=True)
    except TooDeepDocument as error:
        batch = decode(source, repaired(data), written=True)
        return replace(batch, notes=(*batch.notes, f"{error}; read without what is so deep"))


def empty(files: Iterable[str]) -> InvalidDocument:
    """The error for files without any document."""
    return InvalidDocument(
        f"{named(files)}: no document there; give a file with Kubernetes manifests"
    )


def named(files: Iterable[str]) -> str:
    """The files, for people."""
    return ", ".join("standard input" if name == "-" else name for name in files)


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise InvalidDocument("standard input is closed; name a file or folder of manifests")
    try:
        return read_whole(sys.stdin.buffer)
    except OSError as error:
        raise InvalidDocument(
            f"standard input: {error.strerror}; name a file or folder of manifests"
        ) from None

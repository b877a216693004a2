"""What was given to which container on this node, kept across crashes of the agent.

One file of JSON lines, appended and flushed to the disk before the runtime is answered: whatever a container
holds is written down first. A line that a crash cut off is dropped; one that is damaged otherwise is left out
and told. Each look at what the runtime has (`keep`) writes the file anew, complete, under another name and
renames it.

The first line is the version of what follows. A journal of a later version is refused and left as it is: lines that
this agent would read as less than they say, and then write anew, would be lost for the agent that wrote them.
Whoever adds a field raises the version. A journal without one is of 0.1.0 before it was marked, and version 1.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from partage.model.errors import InvalidDocument

__all__ = ["Entry", "Journal"]

_NAME: Final = "containers.jsonl"
_MODE: Final = 0o600
_VERSION: Final = 1


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One container that was given something.

    Attributes:
        container: the runtime's identity of it.
        uid: of its pod.
        pod: `namespace/name`.
        name: of the container.
        record: the pod's record as it was then.
        limits: who keeps the container to its amounts.
        room: name of its room, where that is not its identity.
    """

    container: str
    uid: str
    pod: str
    name: str
    record: str
    limits: str = ""
    room: str = ""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    v: int | None = None
    given: Entry | None = None
    ended: str = ""


class _Marked(msgspec.Struct, frozen=True):
    """What of a line is read before anything else, whatever else is in it."""

    v: int


class Journal:
    """The journal of one node; for one process.

    Attributes:
        damaged: how many lines could not be read when it was opened.
    """

    def __init__(self, folder: Path) -> None:
        """Open the journal, making its folder.

        Raises:
            InvalidDocument: the folder or the file cannot be used, or is of a later version; the message
                says why. The file is not touched then.
        """
        self._path = folder / _NAME
        self._entries: dict[str, Entry] = {}
        self.damaged = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._read()
            self._rewrite()
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise InvalidDocument(
                f"journal {self._path}: {error.strerror}; --journal names another folder"
            ) from error

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Containers that hold something, by the runtime's identity, oldest first."""
        return self._entries

    def give(self, entry: Entry) -> None:
        """Write down what a container gets; on the disk when this returns.

        Raises:
            OSError: the disk does not take it; then nothing must be given.
        """
        self._append(_Line(given=entry))
        self._entries[entry.container] = entry

    def end(self, container: str) -> None:
        """A container has ended; nothing happens when it held nothing.

        Raises:
            OSError: the disk does not take it; it is forgotten all the same, and again after a restart.
        """
        if self._entries.pop(container, None) is not None:
            self._append(_Line(ended=container))

    def keep(self, containers: Collection[str]) -> list[Entry]:
        """Forget all other containers; which they were.

        Raises:
            OSError: the disk does not take it.
        """
        gone = [entry for key, entry in self._entries.items() if key not in containers]
        for entry in gone:
            del self._entries[entry.container]
        if gone:
            self._rewrite()
            os.close(self._file)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        return gone

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, line: _Line) -> None:
        data = msgspec.json.encode(line) + b"\n"
        size = os.fstat(self._file).st_size
        try:
            _put(self._file, data)
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, size)  # half a line would swallow the next one
            raise

    def _read(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        whole, _, torn = data.rpartition(b"\n")
        del torn  # it was never answered for
        self._check_version(whole)
        for text in whole.splitlines():
            try:
                line = msgspec.json.decode(text, type=_Line)
            except (msgspec.MsgspecError, ValueError):
                self.damaged += 1
                continue
            if line.given is not None:
                self._entries[line.given.container] = line.given
            self._entries.pop(line.ended, None)

    def _check_version(self, lines: bytes) -> None:
        for text in lines.splitlines():
            try:
                version = msgspec.json.decode(text, type=_Marked).v
            except (msgspec.MsgspecError, ValueError):
                continue
            if version != _VERSION:
                raise InvalidDocument(
                    f"journal {self._path} is of version {version}, which another release wrote; this one "
                    f"reads version {_VERSION}. Run the agent that wrote it, or drain the node of device "
                    "pods and move the file away"
                )

    def _rewrite(self) -> None:
        fresh = self._path.with_suffix(".new")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
        try:
            _put(handle, msgspec.json.encode(_Line(v=_VERSION)) + b"\n")
            for entry in self._entries.values():
                _put(handle, msgspec.json.encode(_Line(given=entry)) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _put(file: int, data: bytes) -> None:
    """Write all of it, or raise what keeps it from being written."""
    while data:
        data = data[os.write(file, data) :]

"""The journal: what the agent granted to each container on this node, kept across crashes of the agent.

One file of JSON lines, each with a check (`seal`). The agent appends a line and flushes it to disk before it answers
the runtime, so each grant is recorded first. A line that a crash cut off is dropped; a line with other damage
is skipped and reported. The agent replaces the file by a complete new one (written under another name and renamed) at
each comparison with the runtime (`keep`), and whenever most lines are about ended containers. One process
has a journal at a time: a second agent on the node reports this and does not start.

A failed file system accepts no more writes through an open file, and cannot be mounted again while one is open. After
a failed write the journal therefore closes all files and writes everything again by name, unless the disk is only full.

The amounts of a pod's shares may change while it runs. The journal keeps them as long as the pod exists, beside the
grants of its containers, because the runtime knows only the record that the pod was created with.

A pod may have 512 containers, and its record is about all of them. Where all records together are long, only one line of a
pod has its record, and the lines of its other containers name the container of that line.

The first line is the version of the content: 3 if lines name others, 2 if amounts were changed, else 1. An agent refuses
a journal of a later version and leaves it unchanged. It would not understand all of its lines, and a rewrite would lose them for the
agent that wrote them. A new field raises the version, unless its loss only makes a later agent refuse more
(`claimant`). A journal without a version is of 0.1.0 and counts as version 1.
"""

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from partage.agent.mig.journal import flush_folder
from partage.agent.seal import sealed, unsealed
from partage.model.errors import UNREADABLE, InvalidDocument

_NAME: Final = "containers.jsonl"
_LOCK: Final = "lock"
_MODE: Final = 0o600
_VERSION: Final = 1
_ADJUSTED: Final = 2
"""Version of a journal with changed amounts: an agent that does not know them would enforce others."""
_SHARED: Final = 3
"""Version of a journal in which the lines of a pod share its record."""
_CLOSED: Final = -1
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LONG_BYTES: Final = 1 << 20
"""Length of all records together, a pod's counted for each container, above which its lines share it."""
_SPARE_BYTES: Final = 1 << 20
"""Bytes about ended containers that cause a rewrite: months of a quiet node, a day of a busy one."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One container with grants.

    Attributes:
        container: the runtime's identity of it.
        uid: of its pod, or of the ResourceClaim that its grants are from.
        pod: `namespace/name`.
        record: the pod's record at that time.
        limits: what enforces the container's amounts.
        room: name of its room, if it differs from the identity.
        cut: a text for each wish of its pod that was not granted.
        claimant: the UID of its pod, if `uid` is a claim's; earlier agents wrote none.
    """

    container: str
    uid: str
    pod: str
    name: str
    record: str
    limits: str = ""
    room: str = ""
    cut: str = ""
    claimant: str = ""

    def __str__(self) -> str:
        """For people."""
        return f"pod {self.pod}, container {self.name}"

    @property
    def pod_uid(self) -> str:
        """The UID of its pod; a claim's if an earlier agent wrote the entry, so that it is no pod's."""
        return self.claimant or self.uid


class Adjusted(msgspec.Struct, frozen=True):
    """The changed shares of a pod; `record` has the enforced amounts."""

    uid: str
    record: str


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. If it names a container in `like`, that container's line has the record of `given`."""

    v: int | None = None
    given: Entry | None = None
    like: str = ""
    ended: str = ""
    adjusted: Adjusted | None = None


class _Marked(msgspec.Struct, frozen=True):
    """The part of a line that is read first, for any content of the rest."""

    v: int | None = None


class Journal:
    """The journal of one node, for one process.

    Attributes:
        entries: containers that hold something, by the runtime's identity, oldest first; of one moment, for any thread.
        adjusted: records of pods whose amounts were changed, by UID.
        damaged: lines that could not be read when it was opened.
    """

    def __init__(self, folder: Path, spare: int = _SPARE_BYTES) -> None:
        """Open the journal, and create its folder. `spare`: bytes about ended containers that cause a rewrite.

        Raises `InvalidDocument`: the folder or the file cannot be used, is of a later version, or another process uses
        it; the file stays unchanged then.
        """
        self._path = folder / _NAME
        self.entries: dict[str, Entry] = {}
        self.adjusted: dict[str, str] = {}
        self._spare = spare
        self._dead = 0
        self._shared = False
        self._told: dict[str, Entry] = {}  # by UID, the entry whose line has the record
        # Held for a whole change: grants, amounts and the end come from several threads.
        self._writing = threading.Lock()
        self._file = self._held = _CLOSED
        self._size = 0
        self._named = True
        self._over = False
        self.damaged = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = _locked(folder / _LOCK)
            self._read()
            self._rewrite(self.entries, self.adjusted)
        except InvalidDocument:
            self.close()
            raise
        except OSError as error:
            self.close()
            why = f"{error.strerror}; --journal names another folder"
            if isinstance(error, BlockingIOError):
                why = "another agent uses it; end that one, or name another folder with --journal"
            raise InvalidDocument(f"journal {self._path}: {why}") from error

    def adjust(self, uid: str, record: str) -> None:
        """Record other amounts of a pod's shares, for its present and future containers.

        Raises `OSError`: the disk refuses it, or may lose it again. `adjusted` equals the file's content, as before.
        """
        with self._writing:
            entries = {
                key: msgspec.structs.replace(one, record=record) if one.uid == uid else one
                for key, one in self.entries.items()
            }
            self._rewrite(entries, {**self.adjusted, uid: record})

    def pods(self, uids: Collection[str]) -> None:
        """Forget the changed amounts of all other pods. Raises `OSError`: as `end`, or an earlier write."""
        with self._writing:
            kept = {uid: record for uid, record in self.adjusted.items() if uid in uids}
            if len(kept) != len(self.adjusted):
                self.adjusted = kept
                self._rewrite(self.entries, kept)
            self._flush()

    def give(self, *given: Entry) -> None:
        """Record containers' grants, flushed to the disk. Raises `OSError`: the caller must not grant anything."""
        with self._writing:
            fresh = [self._pooled(one) for one in given]
            entries = self.entries | {one.container: one for one in fresh}
            try:
                if len(fresh) == 1 and (self._shared or not _are_long(entries)):
                    self._append(_line(fresh[0], self._told, shared=self._shared))
                    _tell(fresh[0], self._told)
                elif fresh:
                    self._rewrite(entries, self.adjusted)
            except OSError as error:
                self._write_anew(entries, error)
            self.entries = entries

    def end(self, container: str) -> None:
        """Forget an ended container; nothing happens if it held nothing.

        Raises `OSError`: the disk refuses it; it is forgotten nevertheless, and again after a restart.
        """
        with self._writing:
            entries = dict(self.entries)
            entry = entries.pop(container, None)
            if entry is None:
                return
            self.entries = entries
            try:
                written = self._append(_Line(ended=container))
            except OSError as error:
                self._write_anew(entries, error)
                return
            self._dead += written + len(_encoded(_line(entry, self._told, shared=self._shared)))
            if self._dead > self._spare:
                # The end is recorded; a file that is only too long is rewritten the next time.
                with contextlib.suppress(OSError):
                    self._rewrite(entries, self.adjusted)

    def keep(self, containers: Collection[str]) -> list[Entry]:
        """Forget all other containers, and return them. Raises `OSError`: as `end`."""
        with self._writing:
            gone = [entry for key, entry in self.entries.items() if key not in containers]
            if gone:
                kept = {key: one for key, one in self.entries.items() if key in containers}
                self.entries = kept
                self._rewrite(kept, self.adjusted)
        return gone

    def close(self) -> None:
        """Close the file; later writes are errors."""
        with self._writing:
            self._over = True
            self._let_go()

    def _let_go(self) -> None:
        """Close all files, the lock's too: one that stays open would keep a failed file system mounted."""
        self._file, self._held = _closed(self._file), _closed(self._held)

    def _append(self, line: _Line) -> int:
        """Write a line and return its length."""
        data = _encoded(line)
        self._cut()
        try:
            _put(self._file, data)
            os.fsync(self._file)
            self._flush()
        except OSError:
            with contextlib.suppress(OSError):  # otherwise before the next line
                self._cut()
            raise
        self._size += len(data)
        return len(data)

    def _cut(self) -> None:
        """Remove the rest of a line that was not fully written: the next line would be lost in it."""
        if os.fstat(self._file).st_size != self._size:
            os.ftruncate(self._file, self._size)

    def _write_anew(self, entries: dict[str, Entry], error: OSError) -> None:
        """Write all by name, after the open file has failed. Raises `OSError`: that fails as well."""
        if error.errno in _FULL:
            raise error
        try:
            os.fsync(self._file)
        except (OSError, ValueError):
            self._let_go()  # another agent may lock the next one first
        self._rewrite(entries, self.adjusted)

    def _read(self) -> None:
        records: dict[str, str] = {}  # by container, those of earlier lines
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            for text in file:
                if not text.endswith(b"\n"):
                    return  # a crash cut it off; it was never confirmed
                try:
                    document = unsealed(text[:-1])
                    version = msgspec.json.decode(document, type=_Marked).v
                    line = msgspec.json.decode(document, type=_Line) if version is None else None
                except (InvalidDocument, *UNREADABLE):
                    self.damaged += 1
                    continue
                if line is not None:
                    self._take(line, records)
                elif version not in (_VERSION, _ADJUSTED, _SHARED):
                    raise InvalidDocument(
                        f"journal {self._path} is of version {version}, which another release wrote; this one "
                        f"reads versions up to {_SHARED}. Run the agent that wrote it, or drain the node of "
                        "device pods and move the file away"
                    )

    def pooled(self, uid: str, record: str) -> str:
        """The text of a pod's record that is in memory already, if it is the same: a pod may have 512 containers."""
        told = self._told.get(uid)
        return record if told is None or told.record != record else told.record

    def _pooled(self, entry: Entry) -> Entry:
        return msgspec.structs.replace(entry, record=self.pooled(entry.uid, entry.record))

    def _take(self, line: _Line, records: dict[str, str]) -> None:
        if line.adjusted is not None:
            self.adjusted[line.adjusted.uid] = line.adjusted.record
        if (given := line.given) is not None:
            if line.like:  # without that line it has no record, and closes the node as any that cannot be read
                given = msgspec.structs.replace(given, record=records.get(line.like, ""))
            given = self.entries[given.container] = self._pooled(given)
            records[given.container] = given.record
            _tell(given, self._told)
        self.entries.pop(line.ended, None)

    def _rewrite(self, entries: dict[str, Entry], adjusted: dict[str, str]) -> None:
        """Write the file again; once it has the name it is the valid one, and the one to append to."""
        if self._held == _CLOSED:
            if self._over:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
            self._held = _locked(self._path.with_name(_LOCK))
        fresh = self._path.with_suffix(".new")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, _MODE)
        shared, told = _are_long(entries), dict[str, Entry]()
        version = _SHARED if shared else _ADJUSTED if adjusted else _VERSION
        try:
            _put(handle, _encoded(_Line(v=version)))
            for uid, record in adjusted.items():
                _put(handle, _encoded(_Line(adjusted=Adjusted(uid, record))))
            if adjusted:
                # A lost end of a line damages two lines: never those of one container.
                _put(handle, _encoded(_Line(v=version)))
            for entry in entries.values():
                _put(handle, _encoded(_line(entry, told, shared=shared)))
                _tell(entry, told)
            os.fsync(handle)
            size = os.fstat(handle).st_size
            fresh.replace(self._path)
        except (OSError, UnicodeError):
            os.close(handle)
            raise
        self.entries, self.adjusted, self._named = entries, adjusted, False
        self._shared, self._told = shared, told
        _closed(self._file)
        self._file, self._size, self._dead = handle, size, 0
        self._flush()

    def _flush(self) -> None:
        """Make the file's name survive a machine's stop; nothing happens if it already does."""
        if not self._named:
            flush_folder(self._path.parent)
            self._named = True


def _locked(path: Path) -> int:
    """Lock a file for this process until it ends in any way."""
    held = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _MODE)
    try:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def _closed(file: int) -> int:
    """Close a file, if it is open: it has no name any more, or all of it is on the disk."""
    if file != _CLOSED:
        with contextlib.suppress(OSError):
            os.close(file)
    return _CLOSED


def _are_long(entries: Mapping[str, Entry]) -> bool:
    return sum(len(entry.record) for entry in entries.values()) > _LONG_BYTES


def _tell(entry: Entry, told: dict[str, Entry]) -> None:
    """Note that the line of an entry has its record, if no line before it has the same."""
    if entry.uid not in told or told[entry.uid].record != entry.record:
        told[entry.uid] = entry


def _line(entry: Entry, told: Mapping[str, Entry], *, shared: bool) -> _Line:
    """The line of an entry; without its record if this is shared and another line has it."""
    other = told.get(entry.uid)
    if not shared or other is None or other is entry or other.record != entry.record:
        return _Line(given=entry)
    return _Line(given=msgspec.structs.replace(entry, record=""), like=other.container)


def _encoded(line: _Line) -> bytes:
    return sealed(msgspec.json.encode(line)) + b"\n"


def _put(file: int, data: bytes) -> None:
    """Write all of it, or raise the error."""
    while data:
        data = data[os.write(file, data) :]

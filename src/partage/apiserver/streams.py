"""Watches: the changes of a resource, as a stream of JSON lines.

A watch keeps only its position in the resource's history, which is its buffer. When the history no longer
reaches back to a slow client's position, the client gets an `Expired` event and must list again.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from partage.apiserver.calls import Call, Cluster
from partage.apiserver.listing import Selection
from partage.apiserver.negotiation import Form
from partage.apiserver.status import expired
from partage.apiserver.storage import Change, Compacted, History, Record
from partage.apiserver.tables import formed, partial, table

_BATCH: Final = 500
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Watch:
    """A client's request for a watch.

    Attributes:
        since: the first revision; None sends the present objects first.
        initial_end: whether a bookmark marks the end of the present objects.
        seconds: duration of the watch.
    """

    selection: Selection
    form: Form
    since: int | None = None
    initial_end: bool = False
    bookmarks: bool = False
    seconds: float = 1800.0
    beat: float = 60.0
    include: str = "Metadata"


async def watch(
    cluster: Cluster, call: Call, wanted: Watch, closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """The lines of a watch, several at a time. Raises `ApiError`: 410 if `since` is too old."""
    history = cluster.store.history(call.kind.resource)
    writer = _Writer(cluster, call, wanted)
    if wanted.since is None:
        position = history.end
        first = writer.now()
    else:
        first = b""
        try:
            position = history.position(wanted.since)
        except Compacted as gone:
            raise expired(f"too old resource version: {wanted.since} ({gone.oldest})") from gone
        if wanted.since > cluster.store.revision:
            raise expired(f"too large resource version: {wanted.since} ({cluster.store.revision})")
    yield first
    loop = asyncio.get_running_loop()
    end = loop.time() + wanted.seconds
    beat = loop.time() + wanted.beat
    while not closing.is_set():
        try:
            changes = history.after(position, _BATCH)
        except Compacted as gone:
            yield writer.error(gone)
            return
        position += len(changes)
        if changes:
            lines = writer.changes(changes)
            if lines:
                yield lines
            if len(changes) == _BATCH:
                await asyncio.sleep(0)
            continue
        now = loop.time()
        if now >= min(beat, end):
            beat = now + wanted.beat
            if wanted.bookmarks:
                yield writer.bookmark()
        if now >= end:
            return
        await next_change(history, min(end, beat) - now, closing)


async def next_change(history: History, seconds: float | None, closing: asyncio.Event) -> None:
    """Waits for the next change, at most `seconds` if any are given, or until the server closes."""
    if closing.is_set():
        return
    woken = asyncio.Event()
    history.once(woken.set)
    try:
        async with asyncio.timeout(None if seconds is None else max(seconds, 0)):
            await woken.wait()
    except TimeoutError:
        pass
    finally:
        history.forget(woken.set)


class _Writer:
    """Makes a watch's lines; all watches share plain ones."""

    def __init__(self, cluster: Cluster, call: Call, wanted: Watch) -> None:
        self._cluster = cluster
        self._call = call
        self._wanted = wanted
        self._headings = True

    def now(self) -> bytes:
        """The present objects, as additions, and the bookmark after them if requested."""
        call, store = self._call, self._cluster.store
        lines = [
            self._line("ADDED", record)
            for record in store.all(call.kind.resource, call.namespace)
            if self._wanted.selection.matches(record)
        ]
        if self._wanted.initial_end:
            lines.append(self.bookmark(end=True))
        return b"".join(lines)

    def changes(self, changes: list[Change]) -> bytes:
        """The lines of changes that concern this watch."""
        return b"".join(filter(None, (self._concerning(change) for change in changes)))

    def _concerning(self, change: Change) -> bytes:
        record, selection = change.record, self._wanted.selection
        if self._call.namespace and record.namespace != self._call.namespace:
            return b""
        if selection.everything:
            return self._line(change.kind, record)
        after = change.kind != "DELETED" and selection.matches(record)
        before = change.before is not None and selection.matches(change.before)
        if after:
            return self._line("MODIFIED" if before else "ADDED", record)
        if not before or change.before is None:
            return b""
        if change.kind == "DELETED":
            return self._line("DELETED", record)
        head = {**change.before.metadata, "resourceVersion": str(record.revision)}
        last = {**change.before.value, "metadata": head}
        return self._line(
            "DELETED",
            Record(record.resource, record.namespace, record.name, last, record.revision),
        )

    def _line(self, kind: str, record: Record) -> bytes:
        wanted, now = self._wanted, self._cluster.ambient.now()
        text = formed(
            self._call.kind, record, wanted.form, now, wanted.include, headings=self._headings
        )
        self._headings = False
        return b'{"type":"' + kind.encode() + b'","object":' + text + b"}\n"

    def bookmark(self, *, end: bool = False) -> bytes:
        """A line with only the watch's position."""
        of, form = self._call.kind, self._wanted.form
        head: dict[str, Any] = {"resourceVersion": str(self._cluster.store.revision)}
        if end:
            head["annotations"] = {"k8s.io/initial-events-end": "true"}
        found: dict[str, Any] = {"kind": of.kind, "apiVersion": of.api_version, "metadata": head}
        if form.shape != "object":
            found = partial(found, form.version)
        if form.shape == "table":
            row = {"cells": [], "object": found}
            found = table(of, [], 0.0, head=head, version=form.version, headings=self._headings)
            found["rows"] = [row]
        return _encode({"type": "BOOKMARK", "object": found}) + b"\n"

    def error(self, gone: Compacted) -> bytes:
        """The line that ends a watch that fell behind."""
        status = expired(f"too old resource version: the history begins at {gone.oldest}")
        return _encode({"type": "ERROR", "object": status.document()}) + b"\n"

"""Keeps the journal of a running scheduler in a file, within bounds.

A decision only puts one reference on a list. A thread does the rest (encoding, writing, turning files)
a few times a second. When a file has reached its limit, the recorder renames it to `FILE.1` and
replaces the one before. The next file begins with the engine's state, so that each can be replayed
alone. If the disk is too slow or a batch cannot be written, the recorder drops the entries and begins
again with a state, so memory is bounded too. It takes a half-written batch back, so the file stays readable. Nothing is
recorded for a while if the state alone is larger than a file.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final
from weakref import ref

from partage import __version__
from partage.kube.clock import Clock
from partage.model.errors import InvalidValue
from partage.model.policy import Policy
from partage.scheduler.journal import EngineState, Entry, JournalledEngine
from partage.wire.journal import Header, encode_entry, header_line, time_line

_LOG: Final = logging.getLogger("partage.daemon")
_PERIOD: Final = 0.5
_MOST: Final = 200_000
"""Entries that may wait for the disk."""
_BEYOND: Final = 16 * 2**20
"""Bytes by which the last batch may make a file larger than its limit."""
_LEAST: Final = 2**20
"""Bytes that the first batch of a file may have in any case."""
_REST: Final = 60.0
"""Seconds until the next try if the state alone is larger than a file; encoding it takes processor time."""


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The file and its size; after `limit` bytes the next file begins, and two files are kept."""

    path: Path
    limit: int = 256 * 2**20


class _TooLarge(OSError):
    """A batch makes the file too large."""


class Recorder:
    """Makes engines and keeps their journal; `run` writes it."""

    def __init__(self, settings: RecordSettings, instance: str, clock: Clock) -> None:
        """Begin the file, without entries. Raises `InvalidValue`: the file cannot be written."""
        self._settings, self._instance, self._clock = settings, instance, clock
        self._waiting: list[tuple[JournalledEngine, Entry]] = []
        self._engines: list[ref[JournalledEngine]] = []
        self._made = 0
        self._lost = False
        self._rest = 0.0  # its end
        self._writing: asyncio.Future[bool] | None = None
        try:
            self._file: IO[bytes] = self._begin()
        except OSError as error:
            raise InvalidValue(
                f"--record {settings.path}: {error.strerror}; name a file in a folder that the "
                "scheduler may write to"
            ) from error

    def engine(self, policy: Policy) -> JournalledEngine:
        """A new engine, for new books."""
        self._made += 1
        made = JournalledEngine(policy, self._write, f"{self._instance}/{self._made}")
        # The engine before may still decide until the new one is ready.
        self._engines = [*(one for one in self._engines if one() is not None), ref(made)]
        return made

    def _write(self, engine: JournalledEngine, entry: Entry) -> None:
        self._waiting.append((engine, entry))

    async def run(self) -> None:
        """Write until cancelled, and then write the waiting entries."""
        try:
            while True:
                await self._clock.sleep(_PERIOD)
                await self.flush()
        finally:
            await self._end()

    async def _end(self) -> None:
        """Finish the present write, then write the waiting entries: a replay needs their order."""
        try:
            if self._writing is not None:
                await asyncio.wait((self._writing,))
                if self._writing.exception() is not None:
                    self._lost = True
            self._store(self._taken())
            self._file.close()
        except Exception as error:  # noqa: BLE001 # the process ends all the same
            _LOG.warning("%s: the end is not recorded: %s", self._settings.path, error)

    async def _beside(self, work: Callable[[], bool]) -> bool:
        """Work in a thread, to its end even if the caller is cancelled."""
        self._writing = asyncio.ensure_future(asyncio.to_thread(work))
        return await asyncio.shield(self._writing)

    async def flush(self) -> None:
        """Write the waiting entries; turn the file if it is full."""
        try:
            if self._clock.monotonic() < self._rest:
                self._waiting, self._lost = [], bool(self._waiting) or self._lost
                return
            batch = self._taken()
            if not batch:
                return
            if await self._beside(partial(self._store, batch)):
                # There is no await here, so that no entry gets between the state and the entries after it.
                rest, self._waiting = self._waiting, []
                self._checkpoint()
                states, self._waiting = self._waiting, []
                await self._beside(partial(self._turn, rest, states))
        except Exception as error:  # noqa: BLE001 # without the recorder the entries would pile up
            self._lost = True
            ours = not isinstance(error, OSError)
            _LOG.warning(
                "%s: decisions are not recorded: %s", self._settings.path, error, exc_info=ours
            )

    def _taken(self) -> Sequence[tuple[JournalledEngine, Entry]]:
        if len(self._waiting) > _MOST:
            _LOG.warning("%s: the disk is too slow; a new recording begins", self._settings.path)
            self._lost = True
        if self._lost and self._waiting:
            self._lost = False
            self._waiting = []
            self._checkpoint()
        batch, self._waiting = self._waiting, []
        return batch

    def _checkpoint(self) -> None:
        for one in self._engines:
            engine = one()
            if engine is not None:
                engine.checkpoint()

    def _begin(self) -> IO[bytes]:
        self._settings.path.parent.mkdir(parents=True, exist_ok=True)
        if self._settings.path.exists():
            before = f"{self._settings.path.name}.1"
            self._settings.path.replace(self._settings.path.with_name(before))
        return self._settings.path.open("wb")

    def _store(self, batch: Sequence[tuple[JournalledEngine, Entry]]) -> bool:
        """Write a batch. Returns whether the file is full now."""
        if self._file.closed:  # the last turn failed
            self._file = self._begin()
        begin, now = self._file.tell(), self._clock.now().isoformat()
        most = (
            self._settings.limit + _BEYOND - begin if begin else max(self._settings.limit, _LEAST)
        )
        try:
            if not begin:
                self._file.write(header_line(Header(self._instance, __version__, now)))
            self._file.write(time_line(now))
            for engine, entry in batch:
                line = encode_entry(engine.label, entry)
                most -= len(line)
                if most < 0:
                    raise _TooLarge("they are larger than a file may be")  # noqa: TRY301 # seen here only
                self._file.write(line)
            self._file.flush()
        except Exception as error:
            with contextlib.suppress(OSError):
                self._file.close()  # drops the rest that it could not write
            os.truncate(self._settings.path, begin)
            if isinstance(error, _TooLarge) and begin:
                raise  # the next batch begins a file
            if isinstance(error, _TooLarge) and all(
                isinstance(one, EngineState) for _, one in batch
            ):
                self._rest = self._clock.monotonic() + _REST
            self._file = self._settings.path.open("ab")
            raise
        return self._file.tell() > self._settings.limit

    def _turn(
        self,
        rest: Sequence[tuple[JournalledEngine, Entry]],
        states: Sequence[tuple[JournalledEngine, Entry]],
    ) -> bool:
        self._store(rest)
        self._file.close()
        self._file = self._begin()
        return self._store(states)

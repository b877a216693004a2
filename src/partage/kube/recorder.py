"""Decides on events to write and their time: counting, merging and holding back; pure.

An event reports something about an object under a reason. Repetitions within a window become one
event with a count; a new message under the same reason replaces the old one. Each object has a
budget of writes that refills slowly, so that one object in trouble cannot flood the store. A held
event is written, in its newest form, when the budget allows it. If too many events wait, namespaces
have turns, and beyond a bound the oldest event of the namespace with most is dropped. So a namespace
with thousands of events delays only its own. Moments are monotonic seconds.
"""

import heapq
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Final, NamedTuple

_ROUNDING: Final = 1e-6
"""Part of a token by which many small refills may miss a whole one."""


class Regarding(NamedTuple):
    """The object of an event."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class Topic(NamedTuple):
    """The identity of an event: the object, Normal or Warning, and the reason."""

    regarding: Regarding
    type: str
    reason: str


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Times in seconds."""

    window: float = 600.0
    """Silence after which the same topic starts a new event."""
    quiet: float = 60.0
    """A repeated message is only counted, and written at most this often."""
    burst: int = 10
    """Writes an object may cause at once."""
    refill: float = 30.0
    """After each of these spans an object may cause one more write."""
    topics: int = 4096
    """Topics remembered; beyond this, the one with the longest silence is forgotten."""
    waiting: int = 1024
    """Topics that wait for a write; beyond this, one is dropped until its next occurrence."""
    lot: int = 16
    """Events that are returned for writing at a time."""
    longest_message: int = 1024
    """Characters; the API refuses more."""


@dataclass(slots=True)
class Record:
    """One event with its intended state in the store. `name` is empty until it is written."""

    topic: Topic
    message: str
    count: int
    first: datetime
    last: datetime
    name: str = ""
    heard_at: float = 0.0
    written_at: float = float("-inf")
    written_message: str = ""
    written_count: int = 0
    due: float | None = None


@dataclass(slots=True)
class _Budget:
    tokens: float
    at: float


class EventBook:
    """The recent events; `dropped` topics were not written because too many waited."""

    def __init__(self, settings: EventSettings) -> None:
        self._settings = settings
        self._records: dict[Topic, Record] = {}  # the longest silence first
        self._budgets: dict[Regarding, _Budget] = {}
        self._turns: dict[str, dict[Topic, Record]] = {}  # by namespace, the next turn first
        self._waiting = 0
        self._later: list[tuple[float, int, Record]] = []  # an outdated entry has another `due`
        self._order = count()
        self.dropped = 0

    def note(self, topic: Topic, message: str, now: float, moment: datetime) -> None:
        """Record an event at `now`; `moment` is the wall clock's."""
        longest = self._settings.longest_message
        text = message if len(message) <= longest else f"{message[: longest - 1]}…"
        record = self._records.pop(topic, None)
        if record is not None and now - record.heard_at > self._settings.window:
            self._forget(record)
            record = None
        if record is None:
            record = Record(topic, text, 0, moment, moment)
        record.message, record.last, record.heard_at = text, moment, now
        record.count += 1
        self._records[topic] = record
        self._plan(record, now)
        while len(self._records) > self._settings.topics:
            self._forget(self._records.pop(next(iter(self._records))))

    def due(self, now: float) -> tuple[list[Record], float | None]:
        """The events to write now, and the moment of the next look; None if nothing waits."""
        later = self._later
        if len(later) > 2 * self._settings.topics:
            later[:] = [one for one in later if one[2].due == one[0]]
            heapq.heapify(later)
        while later and (later[0][0] <= now or later[0][2].due != later[0][0]):
            at, _, record = heapq.heappop(later)
            if record.due == at:
                record.due = None
                self._plan(record, now)
        writes: list[Record] = []
        while self._turns and len(writes) < self._settings.lot:
            namespace, turn = next(iter(self._turns.items()))
            record = turn[next(iter(turn))]
            self._leave(record)
            if turn:  # the turn goes to the next namespace
                self._turns[namespace] = self._turns.pop(namespace)
            # Another topic of the object may have spent its budget since, or the record was just written.
            moment = self._when(record, now)
            if moment is not None and moment <= now:
                self._refilled(record.topic.regarding, now).tokens -= 1
                writes.append(record)
            else:
                self._plan(record, now)
        self._forget_budgets(now)
        if self._turns:
            return writes, now
        return writes, later[0][0] if later else None

    def _plan(self, record: Record, now: float) -> None:
        """Queue a record for the moment at which it may be written."""
        at, turn = self._when(record, now), self._turns.get(record.topic.regarding.namespace, {})
        if at is None or record.topic in turn or (record.due is not None and record.due <= at):
            return
        if at > now:
            record.due = at
            heapq.heappush(self._later, (at, next(self._order), record))
            return
        record.due = None
        turn[record.topic] = record
        self._turns[record.topic.regarding.namespace] = turn
        self._waiting += 1
        if self._waiting > self._settings.waiting:
            most = max(self._turns.values(), key=len)
            self._forget(self._records.pop(next(iter(most))))
            self.dropped += 1

    def _leave(self, record: Record) -> None:
        namespace = record.topic.regarding.namespace
        if self._turns.get(namespace, {}).pop(record.topic, None) is not None:
            self._waiting -= 1
            if not self._turns[namespace]:
                del self._turns[namespace]

    def _forget(self, record: Record) -> None:
        self._leave(record)
        record.due = None

    def written(self, record: Record, name: str, message: str, count: int, now: float) -> None:
        """The store has the record under this name, with this message and count."""
        record.name = name
        record.written_at, record.written_message, record.written_count = now, message, count

    def lost(self, record: Record) -> None:
        """The store no longer has the event, because events expire there. The next write creates it."""
        record.name = ""

    def _when(self, record: Record, now: float) -> float | None:
        """The earliest moment to write it; None if the store is up to date."""
        if record.count == record.written_count and record.message == record.written_message:
            return None
        wanted = record.heard_at
        if record.written_message == record.message:
            wanted = record.written_at + self._settings.quiet
        regarding, affordable = record.topic.regarding, now
        if regarding in self._budgets:
            tokens = self._refilled(regarding, now).tokens
            if tokens < 1 - _ROUNDING:
                affordable = now + (1 - tokens) * self._settings.refill
        return max(wanted, affordable)

    def _refilled(self, regarding: Regarding, now: float) -> _Budget:
        full = float(self._settings.burst)
        budget = self._budgets.setdefault(regarding, _Budget(full, now))
        gained = (now - budget.at) / self._settings.refill
        budget.tokens, budget.at = min(full, budget.tokens + gained), now
        return budget

    def _forget_budgets(self, now: float) -> None:
        """Drop budgets that are full again, because a new one is the same."""
        if len(self._budgets) > self._settings.topics:
            self._budgets = {
                regarding: budget
                for regarding, budget in self._budgets.items()
                if self._refilled(regarding, now).tokens < self._settings.burst
            }

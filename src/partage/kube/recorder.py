"""Which events to write and when: counting, merging and holding back; pure.

An event says something about an object under a reason. What repeats within a window is one event
with a count; a new message under the same reason replaces the old one. Each object has a budget of
writes that refills slowly, so that one object in trouble cannot flood the store; what is held back
is written, in its newest form, when the budget allows. Moments are monotonic seconds.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

__all__ = ["EventBook", "EventSettings", "Record", "Regarding", "Topic"]


_ROUNDING: Final = 1e-6
"""Of a token; what many small refills may fall short of one."""


class Regarding(NamedTuple):
    """The object an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class Topic(NamedTuple):
    """What makes two events one: the object, Normal or Warning, and the reason."""

    regarding: Regarding
    type: str
    reason: str


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Times in seconds."""

    window: float = 600.0
    """Silence after which the same topic begins a new event."""
    quiet: float = 60.0
    """The same message again is only counted, and written at most this often."""
    burst: int = 10
    """Writes an object may cause at once."""
    refill: float = 30.0
    """After each of these spans an object may cause one more write."""
    topics: int = 4096
    """Topics remembered; beyond, the one that was silent longest is forgotten."""
    longest_message: int = 1024
    """Characters; the API refuses more."""


@dataclass(slots=True)
class Record:
    """One event as it should stand in the store. `name` is empty until it is written."""

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


@dataclass(slots=True)
class _Budget:
    tokens: float
    at: float


class EventBook:
    """The events of the last while."""

    def __init__(self, settings: EventSettings) -> None:
        self._settings = settings
        self._records: dict[Topic, Record] = {}  # the one silent longest first
        self._budgets: dict[Regarding, _Budget] = {}

    def __len__(self) -> int:
        return len(self._records)

    def note(self, topic: Topic, message: str, now: float, moment: datetime) -> None:
        """Something happened at `now`; `moment` is the wall clock's."""
        longest = self._settings.longest_message
        text = message if len(message) <= longest else f"{message[: longest - 1]}…"
        record = self._records.pop(topic, None)
        if record is None or now - record.heard_at > self._settings.window:
            record = Record(topic, text, 0, moment, moment)
        record.message, record.last, record.heard_at = text, moment, now
        record.count += 1
        self._records[topic] = record
        while len(self._records) > self._settings.topics:
            del self._records[next(iter(self._records))]

    def due(self, now: float) -> tuple[list[Record], float | None]:
        """What to write now, and the moment of the next look; None if nothing waits."""
        writes: list[Record] = []
        following: float | None = None
        for record in self._records.values():
            at = self._when(record, now)
            if at is None:
                continue
            if at <= now:
                self._spend(record.topic.regarding, now)
                writes.append(record)
            else:
                following = at if following is None else min(following, at)
        self._forget_budgets(now)
        return writes, following

    def written(self, record: Record, name: str, message: str, count: int, now: float) -> None:
        """The record stands in the store under this name, with this message and count."""
        record.name = name
        record.written_at, record.written_message, record.written_count = now, message, count

    def lost(self, record: Record) -> None:
        """The event is no longer in the store: events expire there. The next write creates."""
        record.name = ""

    def _when(self, record: Record, now: float) -> float | None:
        """The earliest moment to write it; None if the store is up to date."""
        if record.count == record.written_count and record.message == record.written_message:
            return None
        wanted = record.heard_at
        if record.written_message == record.message:
            wanted = record.written_at + self._settings.quiet
        return max(wanted, self._affordable(record.topic.regarding, now))

    def _affordable(self, regarding: Regarding, now: float) -> float:
        budget = self._refilled(regarding, now)
        enough = 1 - _ROUNDING
        return (
            now if budget.tokens >= enough else now + (1 - budget.tokens) * self._settings.refill
        )

    def _spend(self, regarding: Regarding, now: float) -> None:
        self._refilled(regarding, now).tokens -= 1

    def _refilled(self, regarding: Regarding, now: float) -> _Budget:
        full = float(self._settings.burst)
        budget = self._budgets.setdefault(regarding, _Budget(full, now))
        gained = (now - budget.at) / self._settings.refill
        budget.tokens, budget.at = min(full, budget.tokens + gained), now
        return budget

    def _forget_budgets(self, now: float) -> None:
        """A budget that is full again is as good as none."""
        if len(self._budgets) > self._settings.topics:
            self._budgets = {
                regarding: budget
                for regarding, budget in self._budgets.items()
                if self._refilled(regarding, now).tokens < self._settings.burst
            }

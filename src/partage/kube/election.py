"""The rules of leader election, from one candidate's view; no I/O.

Clocks of two machines are never compared. A candidate counts from the moment when *it* last saw the
lease change. The leader counts from before it *sent* its last renewal, and stops before anyone may
take over. So there are never two leaders as long as clocks run at about the same speed, whatever
they show.

A paused virtual machine is the exception: its monotonic clock stood still. Its wall clock is corrected
sooner or later, and has then moved further than the monotonic one since the last renewal. From then
on the leader is unknown until a renewal has succeeded. A clock that is set forward has the same
effect, which costs no more than the wait for the next renewal.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from partage.kube.mirror import is_older
from partage.kube.objects import Annotated

SETTLED: Final = 1
"""Duration in a lease that was released with nothing of its holder's on its way, in seconds.

Kubernetes' own clients write it whenever they give a lease back, whatever of theirs is on its way;
so it counts only of who says besides that it sends nothing from that very moment on.
"""
_APART: Final = 1.0
"""Seconds that the wall clock may move on further than ours between two renewals.

A clock that is adjusted while it runs stays below: chrony's fastest, a twelfth, makes 0.8 of the
longest that a leader goes without one. What is less than this the fence has to spare.
"""
UNSETTLED: Final = 2
"""The same with something on its way."""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The lease as written; times are text in RFC 3339 with microseconds, only ever displayed."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """What is read of a lease."""

    metadata: Annotated
    spec: LeaseSpec = LeaseSpec()


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Times in seconds."""

    duration: int = 15
    """Others wait this long after the last renewal they saw."""
    deadline: float = 10.0
    """The leader stops this long after it sent the last renewal that succeeded."""
    retry: float = 2.0
    """Between tries to get or renew."""
    jitter: float = 0.2
    """The share of `retry` that chance may add while waiting."""

    def __post_init__(self) -> None:
        if not self.duration > self.deadline > self.retry * (1 + self.jitter) > 0:
            raise ValueError(
                f"duration {self.duration} s must exceed deadline {self.deadline:g} s, and that "
                f"a retry of {self.retry:g} s with jitter {self.jitter:g}"
            )


class Election:
    """The rules, from one candidate's view; moments are its own monotonic seconds."""

    def __init__(self, identity: str, settings: LeaseSettings) -> None:
        self._identity = identity
        self._settings = settings
        self._seen: LeaseSpec | None = None
        self._seen_version = ""
        self._seen_at = 0.0
        self._quiet_from: float | None = None
        self._given_back = False
        self._leads_until: float | None = None
        self._renewed: tuple[datetime, float] | None = None

    @property
    def holder(self) -> str:
        """Who held the lease when last seen; empty if it was free."""
        return (self._seen.holder_identity or "") if self._seen is not None else ""

    @property
    def term(self) -> int:
        """How often the lease changed hands when last seen."""
        return (self._seen.lease_transitions or 0) if self._seen is not None else 0

    @property
    def handed_over(self) -> bool:
        """Whether the lease, when last seen, was released with nothing on its way."""
        seen = self._seen
        return self._given_back and seen is not None and seen.lease_duration_seconds == SETTLED

    @property
    def quiet_from(self) -> float:
        """From when on, by our clock, the one who held the lease as last seen sends nothing more.

        Later than now where it may still believe that it leads.
        """
        return self._quiet_from if self._quiet_from is not None else 0.0

    @property
    def expires(self) -> float:
        """When the lease runs out unless it changes, by our clock."""
        duration = self._seen.lease_duration_seconds if self._seen is not None else None
        return self._seen_at + (duration or self._settings.duration)

    @property
    def leads_until(self) -> float | None:
        """The moment at which we stop to lead unless renewed; None if we do not."""
        return self._leads_until

    def leads(self, now: float) -> bool:
        """Whether we may act as the leader at this moment, by our clock."""
        return self._leads_until is not None and now < self._leads_until

    def stood_still(self, now: float, wall: datetime) -> float:
        """Seconds for which our clock may have stood still since the last renewal; 0 if it did not.

        Args:
            now: our clock's moment.
            wall: the wall clock's, looked at after it.
        """
        if self._renewed is None:
            return 0.0
        wall_then, then = self._renewed
        apart = (wall - wall_then).total_seconds() - (now - then)
        return apart if apart > _APART else 0.0

    def observe(
        self, spec: LeaseSpec | None, version: str, now: float, stops: float | None = None
    ) -> None:
        """The lease was read at `now`, with this resourceVersion; None if there is none.

        Any new version counts as a sign of life, so that even a holder whose wall clock stands
        still is not taken for dead.

        Args:
            now: when its answer was there.
            stops: seconds after this very renewal from which its holder says that it sends nothing
                more, nor does anybody before it; None where it does not say.
        """
        if self._quiet_from is None or spec != self._seen or version != self._seen_version:
            # The store was restored from a backup: its holder renewed the lease since, whether we saw it or
            # not, and an older holder's word says nothing of that.
            lost = self.went_back(version)
            self._given_back = not lost and _given_back(spec, stops)
            quiet_from = now
            if not self._given_back:
                # A lease that is empty, gone or by now ours (that answer was lost) says nothing of
                # when who held it before stops.
                seconds = self._sends_for(spec, None if lost else stops)
                seconds = max(seconds, float(self._settings.duration)) if lost else seconds
                quiet_from = max(self.quiet_from, now + seconds)
            self._quiet_from = quiet_from
            self._seen, self._seen_version, self._seen_at = spec, version, now
        if self.holder != self._identity:
            self._leads_until = None

    def went_back(self, version: str) -> bool:
        """Whether a lease with this resourceVersion is older than one that was seen."""
        return is_older(version, self._seen_version)

    def may_take(self, now: float) -> bool:
        """Whether to try to write our name: the lease is free, ours, or expired as we saw it."""
        return self.holder in {"", self._identity} or now >= self.expires

    def _sends_for(self, spec: LeaseSpec | None, stops: float | None) -> float:
        """Seconds for which a holder may go on sending after a lease like this was seen."""
        ours = float(self._settings.duration)
        if spec is None or spec.lease_duration_seconds is None:
            # Deleted or emptied under its holder, who has not noticed yet; that it was never held
            # looks the same.
            return ours
        if spec.holder_identity == self._identity:
            return 0.0
        duration = float(spec.lease_duration_seconds)
        if not spec.holder_identity:
            # Emptied by hand, or released by another program: it does not say of what it sent,
            # and the second that it writes is no time of its own.
            duration = max(duration, ours)
        return duration if stops is None else min(stops, duration)

    def stops(self, sent: float) -> float:
        """What to say of a renewal sent at that moment: in how many seconds none of us sends more.

        Us, and the holder before: who comes after us may never have seen that one.
        """
        return max(self._settings.deadline, self.quiet_from - sent)

    def claim(self, moment: datetime) -> LeaseSpec:
        """What to write to get or keep the lease; `moment` is the wall clock's, for readers."""
        text = micro_time(moment)
        if self.holder == self._identity and self._seen is not None:
            acquired, term = self._seen.acquire_time or text, self.term
        else:
            acquired, term = text, self.term + 1 if self._seen is not None else 0
        return LeaseSpec(self._identity, self._settings.duration, acquired, text, term)

    def won(
        self,
        spec: LeaseSpec,
        version: str,
        *,
        sent: float,
        now: float,
        wall: datetime | None = None,
    ) -> None:
        """Our claim, sent at `sent`, was stored as this version.

        Args:
            sent: before it was sent.
            now: when its answer was there.
            wall: what the wall clock showed just before `sent`.
        """
        self._seen, self._seen_version, self._seen_at = spec, version, now
        self._given_back = False
        self._leads_until = sent + self._settings.deadline
        self._renewed = None if wall is None else (wall, sent)

    def resign(self) -> None:
        """Stop to lead."""
        self._leads_until = None


def _given_back(spec: LeaseSpec | None, stops: float | None) -> bool:
    """Whether its last holder let go of it: it sends nothing more, nor does anybody before it.

    It says so itself, of the very change by which it did; a name that was taken out by hand leaves
    what the holder said of its last renewal, and that is never that it stops at once.
    """
    if spec is None or spec.holder_identity or stops != 0.0:
        return False
    return spec.lease_duration_seconds in {SETTLED, UNSETTLED}


def micro_time(moment: datetime) -> str:
    """A moment as leases show it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

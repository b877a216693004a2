"""The rules of leader election, from one candidate's view; no I/O.

Clocks of two machines are never compared. A candidate counts from the moment when *it* last saw the
lease change. The leader counts from before it *sent* its last renewal, and stops before another
candidate may take over. So there are never two leaders if the clocks run at about the same speed.
Their times may differ.

A paused virtual machine is the exception, because its monotonic clock stood still. Its wall clock is
corrected sooner or later. Since the last renewal it has then moved further than the monotonic clock.
From then on the leader is unknown until a renewal has succeeded. A clock that is set forward has the
same effect, which costs only the wait for the next renewal.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from partage.kube.mirror import is_older
from partage.kube.objects import Annotated

SETTLED: Final = 1
"""Duration in a released lease whose holder has no request on its way, in seconds.

Kubernetes' own clients write it whenever they release a lease, even with requests on their way. So it
counts only if the holder also reports that it sends nothing from that moment on.
"""
_APART: Final = 1.0
"""Seconds by which the wall clock may move further than ours between two renewals.

A gradual correction of the clock stays below: at chrony's fastest, a twelfth, it makes 0.8 during the
longest time of a leader without a renewal. The quiet period has this much to spare.
"""
LONGEST: Final = 600
"""Seconds that a lease may last without a renewal, whatever duration it names.

The longest duration in use is a few minutes. One wrong number in the lease would otherwise keep every candidate waiting
for years.
"""
UNSETTLED: Final = 2
"""The same with a request on its way."""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The lease as written; times are text in RFC 3339 with microseconds, for display only."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """The fields that a candidate reads of a lease."""

    metadata: Annotated
    spec: LeaseSpec = LeaseSpec()


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Times in seconds."""

    duration: int = 15
    """Other candidates wait this long after the last renewal that they saw."""
    deadline: float = 10.0
    """The leader stops this long after it sent its last successful renewal."""
    retry: float = 2.0
    """Between tries to get or renew."""
    jitter: float = 0.2
    """The share of `retry` that chance may add to a wait."""

    def __post_init__(self) -> None:
        if not self.duration > self.deadline > self.retry * (1 + self.jitter) > 0:
            raise ValueError(
                f"duration {self.duration} s must exceed deadline {self.deadline:g} s, and that "
                f"a retry of {self.retry:g} s with jitter {self.jitter:g}"
            )


class Election:
    """The rules, from one candidate's view; moments are its own monotonic seconds.

    `leads_until` is when we stop leading unless we renew; None if we do not lead.
    """

    def __init__(self, identity: str, settings: LeaseSettings) -> None:
        self._identity = identity
        self._settings = settings
        self._seen: LeaseSpec | None = None
        self._seen_version = ""
        self._seen_at = 0.0
        self._quiet_from: float | None = None
        self._given_back = False
        self.leads_until: float | None = None
        self._renewed: tuple[datetime, float] | None = None

    @property
    def holder(self) -> str:
        """The last observed holder of the lease; empty if it was free."""
        return (self._seen.holder_identity or "") if self._seen is not None else ""

    @property
    def term(self) -> int:
        """How often the lease had changed hands at the last look."""
        return (self._seen.lease_transitions or 0) if self._seen is not None else 0

    @property
    def handed_over(self) -> bool:
        """Whether the lease, when last seen, was released with nothing on its way."""
        seen = self._seen
        return self._given_back and seen is not None and seen.lease_duration_seconds == SETTLED

    @property
    def quiet_from(self) -> float:
        """The moment, by our clock, after which the last observed holder sends nothing more.

        It is in the future if that holder may still believe that it leads.
        """
        return self._quiet_from if self._quiet_from is not None else 0.0

    @property
    def expires(self) -> float:
        """The moment, by our clock, at which the lease expires unless it changes."""
        return self._seen_at + self._lasts(self._seen)

    def leads(self, now: float) -> bool:
        """Whether we may act as the leader at this moment, by our clock."""
        return self.leads_until is not None and now < self.leads_until

    def stood_still(self, now: float, wall: datetime) -> float:
        """Seconds for which our clock may have stood still since the last renewal; 0 if it did not.

        `now`: our clock's moment. `wall`: the wall clock's moment, read after it.
        """
        if self._renewed is None:
            return 0.0
        wall_then, then = self._renewed
        apart = (wall - wall_then).total_seconds() - (now - then)
        return apart if apart > _APART else 0.0

    def observe(
        self, spec: LeaseSpec | None, version: str, now: float, stops: float | None = None
    ) -> None:
        """Record a lease that was read at `now` with this resourceVersion; None if it does not exist.

        Any new version is a sign of life, so a holder whose wall clock stands still does not count as dead.

        Args:
            now: when the answer had arrived.
            stops: seconds after this renewal from which the holder and its predecessors send nothing more, as the
                holder reports; None if it reports nothing.
        """
        if self._quiet_from is None or spec != self._seen or version != self._seen_version:
            # The store was restored from a backup. The holder has renewed the lease since, perhaps unseen by us, and
            # the older lease does not show how long that holder sends.
            lost = self.went_back(version)
            self._given_back = not lost and _given_back(spec, stops)
            quiet_from = now
            if not self._given_back:
                # A lease that is empty, gone or by now ours (we lost that answer) does not show when its
                # previous holder stops.
                seconds = self._sends_for(spec, None if lost else stops)
                seconds = max(seconds, float(self._settings.duration)) if lost else seconds
                quiet_from = max(self.quiet_from, now + seconds)
            self._quiet_from = quiet_from
            self._seen, self._seen_version, self._seen_at = spec, version, now
        if self.holder != self._identity:
            self.leads_until = None

    def went_back(self, version: str) -> bool:
        """Whether a lease with this resourceVersion is older than one that was seen."""
        return is_older(version, self._seen_version)

    def may_take(self, now: float) -> bool:
        """Whether to try to write our name: the lease is free, ours, or expired by our observation."""
        return self.holder in {"", self._identity} or now >= self.expires

    def _lasts(self, spec: LeaseSpec | None) -> float:
        """Seconds for which a lease lasts without a renewal.

        Its duration may be wrong, because other programs and people write it too. Below ours, its holder could still
        be leading.
        """
        duration = (spec.lease_duration_seconds or 0) if spec is not None else 0
        ours = self._settings.duration
        return float(max(ours, min(duration, LONGEST)))

    def _sends_for(self, spec: LeaseSpec | None, stops: float | None) -> float:
        """Seconds for which a holder may go on sending after it wrote this lease."""
        ours = float(self._settings.duration)
        if spec is None or spec.lease_duration_seconds is None:
            # Another program deleted or emptied it, and the holder has not noticed yet. A lease that was never held
            # looks the same.
            return ours
        if spec.holder_identity == self._identity:
            return 0.0
        # If a person emptied it, or another program released it, it reports nothing about requests on their
        # way, and its duration of one second is no real time.
        duration = self._lasts(spec)
        return duration if stops is None else min(stops, duration)

    def stops(self, sent: float) -> float:
        """The seconds to report in a renewal sent at that moment: after them none of us sends more.

        "Us" includes the holder before us, because our successor may never have seen that one.
        """
        return max(self._settings.deadline, self.quiet_from - sent)

    def claim(self, moment: datetime) -> LeaseSpec:
        """The lease to write to get or keep it; `moment` is the wall clock's, for readers."""
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
        """Record that the server stored our claim as this version.

        Args:
            sent: the moment before it was sent.
            now: when the answer had arrived.
            wall: the wall clock just before `sent`.
        """
        self._seen, self._seen_version, self._seen_at = spec, version, now
        self._given_back = False
        self.leads_until = sent + self._settings.deadline
        self._renewed = None if wall is None else (wall, sent)

    def resign(self) -> None:
        """Stop leading."""
        self.leads_until = None


def _given_back(spec: LeaseSpec | None, stops: float | None) -> bool:
    """Whether the last holder released the lease, so that neither it nor a holder before it sends more.

    The holder reports this in the change that releases the lease. If a person removes the name by hand, the
    report of the last renewal stays, and that one never reports an immediate stop.
    """
    if spec is None or spec.holder_identity or stops != 0.0:
        return False
    return spec.lease_duration_seconds in {SETTLED, UNSETTLED}


def micro_time(moment: datetime) -> str:
    """A moment in the format of leases."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

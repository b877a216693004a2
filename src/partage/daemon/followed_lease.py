"""Follows the Lease of kube-scheduler, so that the engine beside the leading kube-scheduler leads.

kube-scheduler elects the leader by the Lease that it has always used. The engine beside it is elected
while kube-scheduler reports that it holds the Lease, and the Lease itself confirms that. Then it also
gets the service's own Lease (`kube.lease.Elected`), so that no service with the extender leads beside it:

    claimed by kube-scheduler ── seen in the Lease ── lead ── no renewal seen in time ── stop

A renewal was written after the last look that did not show it. From the start of that look,
kube-scheduler may rely on the Lease for its deadline, which is two thirds of the duration by its
defaults. So may we, because no other instance leads before the whole duration is over. An earlier
leader may have sent requests until the last moment at which it could rely on its own renewal.

A look does not wait for the answer to the one before. So an API server that takes seconds to answer
only delays the answers, and the lead is not lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from partage.kube.client import Client
from partage.kube.clock import end, sleep_until
from partage.kube.election import LONGEST, Lease, LeaseSpec
from partage.kube.errors import KubeError, NotFound
from partage.kube.mirror import is_newer, is_older
from partage.kube.resources import LEASES

_LOG: Final = logging.getLogger("partage.daemon")
_LOOK: Final = 1.0
"""Seconds between two looks at the Lease; kube-scheduler renews it every two."""
_LATEST: Final = 10.0
"""Seconds after which an answer is too old to use."""
_TOGETHER: Final = 8
"""Most looks without an answer at a time, if the API server is slow."""
_SHARE: Final = 2 / 3
"""Part of the Lease's duration after which a holder without a renewal stops."""
_DURATION: Final = 15
"""Seconds, if the Lease contains none; kube-scheduler's default."""
_MOST: Final = 16
"""Most holders in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """A look without an answer so far, with kube-scheduler's claim and the known version when it was sent."""

    sent: float
    claimed: bool
    known: str
    answer: "asyncio.Task[Lease]"


class FollowedLease:
    """Runs `lead` while the kube-scheduler beside us holds its Lease.

    Attributes:
        quiet_from: the time, by our clock, after which the leader before us sent nothing more.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        lead: Callable[[], Awaitable[None]],
        went_back: Callable[[], None],
    ) -> None:
        """Follow nothing yet.

        Args:
            namespace: of kube-scheduler's Lease.
            name: of kube-scheduler's Lease.
            lead: started when we lead, cancelled when we no longer do.
            went_back: called when the Lease is older than one seen before, as after a restore from a backup.
        """
        self._went_back = went_back
        self._client = client.insistent(_LOOK)
        self._clock = client.clock
        self._namespace = namespace
        self._name = name
        self._lead = lead
        self._claimed = False
        self._ours = self._claimant = ""
        self._seen: tuple[str, str] | None = None
        self._looked = self._first = self._renewed = 0.0
        self._relies: dict[str, float] = {}
        self._until = 0.0
        self._version = ""
        self.quiet_from = 0.0
        self._changed = asyncio.Event()
        self._looks: list[_Look] = []

    @property
    def leading(self) -> bool:
        """Whether we lead now."""
        return bool(self._ours) and self._clock.monotonic() < self._until

    def claim(self, leading: bool) -> None:  # noqa: FBT001 # a reported fact
        """Take in kube-scheduler's report whether it holds its Lease."""
        if leading != self._claimed:
            self._claimed = leading
            self._ours = self._claimant = ""
            self._changed.set()

    async def run(self) -> None:
        """Follow until cancelled, or until `lead` ends by itself."""
        try:
            while True:
                while not self.leading:
                    await self._look()
                    if not self.leading:
                        await self._pause()
                if await self._reign():
                    return
        finally:
            for one in self._looks:
                one.answer.cancel()

    async def _reign(self) -> bool:
        """Lead until we lose the lead (returns False) or `lead` ends (returns True)."""
        lead = asyncio.ensure_future(self._lead())
        try:
            while self.leading and not lead.done():
                await self._pause(lead)
                await self._look()
        finally:
            ended = lead.done()
            await end(lead)
        if ended:
            lead.result()
        return ended

    async def _pause(self, *others: "asyncio.Future[Any]") -> None:
        try:
            await sleep_until(self._clock, _LOOK, self._changed, *others)
        finally:
            self._changed.clear()

    async def _look(self) -> None:
        """Look at the Lease again, and take in answers. After an error the known state stays until it expires."""
        now = self._clock.monotonic()
        for one in self._looks:
            if now >= one.sent + _LATEST:
                one.answer.cancel()
        if len(self._looks) < _TOGETHER:
            asked = self._client.get(LEASES, self._name, namespace=self._namespace, into=Lease)
            answer = asyncio.create_task(asked)
            self._looks.append(_Look(now, self._claimed, self._version, answer))
        answers = [one.answer for one in self._looks]
        await sleep_until(self._clock, _LOOK, self._changed, *answers)
        for one in [look for look in self._looks if look.answer.done()]:
            self._looks.remove(one)
            self._answered(one)

    def _answered(self, look: _Look) -> None:
        """Take in one answer, unless the answer to a later look arrived before."""
        try:
            lease = look.answer.result()
            spec, version = lease.spec, lease.metadata.resource_version
        except asyncio.CancelledError:
            _LOG.warning("lease %s cannot be read: no answer in time", self._name)
            return
        except (KubeError, TimeoutError) as error:
            if not isinstance(error, NotFound):
                _LOG.warning("lease %s cannot be read: %s", self._name, error)
                return
            spec, version = LeaseSpec(""), ""
        if look.sent >= self._looked:
            # The Lease is ours only if kube-scheduler claimed it before the look and still claims it.
            # Looks may overtake each other: each shows at least the version that was known when it was sent.
            lost = is_older(version, look.known)
            if lost or is_newer(version, self._version):
                self._version = version
            self._take_in(spec, look.sent, lost=lost, mine=look.claimed and self._claimed)

    def _take_in(self, spec: LeaseSpec, sent: float, *, lost: bool, mine: bool) -> None:
        now = self._clock.monotonic()
        holder = spec.holder_identity or ""
        seen = holder, spec.renew_time or ""
        before, self._seen = self._seen, seen
        self._first = self._first or now  # earlier holders are unknown
        looked, self._looked = self._looked, sent
        if before is not None and not holder and before[0] in self._relies:
            # The holder has released the Lease, so it stopped now at the latest.
            self._relies[before[0]] = min(self._relies[before[0]], now)
        if seen != before and holder:
            # The renewal is between the look before and now: the earlier end is safe for us, the later end for others.
            # The duration may be wrong, because other programs and people write it too.
            duration = min(spec.lease_duration_seconds or _DURATION, LONGEST)
            self._renewed = looked + duration * _SHARE if before is not None else 0.0
            self._relies.pop(holder, None)
            self._relies[holder] = now + max(duration, _DURATION) * _SHARE
            while len(self._relies) > _MOST:
                del self._relies[next(iter(self._relies))]
        if lost:
            # The store was restored from a backup, so it may have lost later renewals.
            duration = min(spec.lease_duration_seconds or 0, LONGEST)
            until = now + max(duration, _DURATION) * _SHARE
            self._relies = dict.fromkeys(self._relies, until)
            self._went_back()
        # A kube-scheduler that stood still, and gets the Lease back before it notices the loss, reports nothing new.
        if not (mine and holder and holder == (self._claimant or holder)):
            self._ours = ""
            return
        if not self._ours:
            others = [until for name, until in self._relies.items() if name != holder]
            self.quiet_from = max([self._first, *others])
            self._ours = self._claimant = holder
        self._until = self._renewed

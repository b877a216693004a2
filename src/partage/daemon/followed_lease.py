"""Follows the Lease that kube-scheduler holds: the engine beside the one that schedules leads.

kube-scheduler elects the leader, by the Lease that it has always used. The engine beside it holds
no Lease of its own. It leads while kube-scheduler says that it holds the Lease, and while the
Lease itself says so too:

    claimed by kube-scheduler ── seen in the Lease ── lead ── no renewal seen in time ── stop

A renewal was written after the last look that did not show it yet. From the start of that look on,
kube-scheduler may rely on the Lease for its deadline (two thirds of the duration, as
kube-scheduler's defaults have it); so may we, and no other instance leads before the whole
duration is over. What an earlier leader may still have sent is counted from the last moment at
which it could still rely on its own renewal.

A look is not waited for before the next one: where the API server takes seconds to answer, what is seen is as late, and
the lead is not lost for that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from partage.kube.client import Client
from partage.kube.clock import sleep_until
from partage.kube.election import Lease, LeaseSpec
from partage.kube.errors import KubeError, NotFound
from partage.kube.mirror import is_newer, is_older
from partage.kube.resources import LEASES

_LOG: Final = logging.getLogger("partage.daemon")
_LOOK: Final = 1.0
"""Seconds between two looks at the Lease; kube-scheduler renews it every two."""
_LATEST: Final = 10.0
"""Seconds after which an answer tells nothing any more."""
_TOGETHER: Final = 8
"""Looks that are on their way at a time, where the API server is slow to answer."""
_SHARE: Final = 2 / 3
"""Of the Lease's duration, after which a holder that could not renew stops."""
_DURATION: Final = 15
"""Seconds, where the Lease does not say; kube-scheduler's default."""
_MOST: Final = 16
"""Holders that are remembered."""


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """A look that is on its way, whether kube-scheduler claimed the Lease when it was sent, and which version was known."""

    sent: float
    claimed: bool
    known: str
    answer: "asyncio.Task[Lease]"


class FollowedLease:
    """Runs `lead` while the kube-scheduler beside us holds its Lease."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        lead: Callable[[], Awaitable[None]],
        went_back: Callable[[], None],
    ) -> None:
        """Nothing is followed yet.

        Args:
            namespace: of kube-scheduler's Lease.
            name: of kube-scheduler's Lease.
            lead: started when we lead, cancelled when we no longer do.
            went_back: called when the Lease is older than one that was seen, as after a restore from a backup.
        """
        self._went_back = went_back
        self._client = client
        self._clock = client.clock
        self._namespace = namespace
        self._name = name
        self._lead = lead
        self._claimed = False
        self._ours = ""
        self._seen: tuple[str, str] | None = None
        self._looked = self._first = self._renewed = 0.0
        self._relies: dict[str, float] = {}
        self._until = 0.0
        self._version = ""
        self._quiet_from = 0.0
        self._changed = asyncio.Event()
        self._looks: list[_Look] = []
        self.term = 0

    @property
    def leading(self) -> bool:
        """Whether we lead at this very moment."""
        return bool(self._ours) and self._clock.monotonic() < self._until

    @property
    def handed_over(self) -> bool:
        """Never: kube-scheduler does not say what it still has on its way when it releases."""
        return False

    @property
    def quiet_from(self) -> float:
        """From when on, by our clock, the leader before us sent nothing more."""
        return self._quiet_from

    @property
    def holder(self) -> str:
        """The holder of the Lease, as last seen."""
        return self._seen[0] if self._seen is not None else ""

    def claim(self, leading: bool) -> None:  # noqa: FBT001 # a fact, told as it is
        """kube-scheduler says whether it holds its Lease."""
        if leading != self._claimed:
            self._claimed = leading
            self._ours = ""
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
        """Lead until we no longer do (False) or `lead` ends (True)."""
        lead = asyncio.ensure_future(self._lead())
        try:
            while self.leading and not lead.done():
                await self._pause(lead)
                await self._look()
        finally:
            ended = lead.done()
            lead.cancel()
            await asyncio.wait((lead,))
        if ended:
            lead.result()
        return ended

    async def _pause(self, *others: "asyncio.Future[Any]") -> None:
        """Wait for the next look, or for something that makes it due."""
        try:
            await sleep_until(self._clock, _LOOK, self._changed, *others)
        finally:
            self._changed.clear()

    async def _look(self) -> None:
        """Look at the Lease once more, and take in what is answered; an error leaves what is known, which runs out."""
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
        """Take in one answer, unless a later look was answered before."""
        try:
            lease = look.answer.result()
            spec, version = lease.spec, lease.metadata.resource_version
        except NotFound:
            spec, version = LeaseSpec(""), ""
        except asyncio.CancelledError:
            _LOG.warning("lease %s cannot be read: no answer in time", self._name)
            return
        except (KubeError, TimeoutError) as error:
            _LOG.warning("lease %s cannot be read: %s", self._name, error)
            return
        if look.sent >= self._looked:
            # Only what kube-scheduler claimed before the look, and still claims, can be its own.
            # Looks pass each other on the way: each shows at least what was known when it was sent.
            lost = is_older(version, look.known)
            if lost or is_newer(version, self._version):
                self._version = version
            self._take_in(spec, look.sent, lost=lost, mine=look.claimed and self._claimed)

    def _take_in(self, spec: LeaseSpec, sent: float, *, lost: bool, mine: bool) -> None:
        now = self._clock.monotonic()
        holder = spec.holder_identity or ""
        seen = holder, spec.renew_time or ""
        before, self._seen = self._seen, seen
        self._first = self._first or now  # who held it before that is not known
        looked, self._looked = self._looked, sent
        if before is not None and holder != before[0]:
            self.term += 1
            if not holder and before[0] in self._relies:
                # Released: that holder stopped at this moment at the latest.
                self._relies[before[0]] = min(self._relies[before[0]], now)
        if seen != before and holder:
            # Written after the look before. For a holder that is not ours the safe side is the other.
            deadline = (spec.lease_duration_seconds or _DURATION) * _SHARE
            self._renewed = looked + deadline if before is not None else 0.0
            self._relies.pop(holder, None)
            self._relies[holder] = now + deadline
            while len(self._relies) > _MOST:
                del self._relies[next(iter(self._relies))]
        if lost:
            # The store was restored from a backup: renewals may have been written that are not seen any more.
            until = now + max(spec.lease_duration_seconds or 0, _DURATION) * _SHARE
            self._relies = dict.fromkeys(self._relies, until)
            self._went_back()
        if self._ours and holder != self._ours:
            self._claimed = False  # the claim was about a Lease that is lost: a new one must come
        if not (mine and holder and self._claimed):
            self._ours = ""
            return
        if not self._ours:
            others = [until for name, until in self._relies.items() if name != holder]
            self._quiet_from = max([self._first, *others])
            self._ours = holder
        self._until = self._renewed

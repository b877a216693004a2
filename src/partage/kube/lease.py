"""Leader election over a Lease of coordination.k8s.io/v1: one leader at a time, or none.

`election` contains the rules; `LeaderElector` runs them. A candidate looks at the lease when a watch
reports a change, when the lease expires, and every few seconds. The watch only saves time. Without
it, the result is the same, a little later.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from partage.kube.client import Client
from partage.kube.clock import end, race
from partage.kube.election import (
    SETTLED,
    UNSETTLED,
    Election,
    Lease,
    LeaseSettings,
    LeaseSpec,
    micro_time,
)
from partage.kube.errors import (
    AlreadyExists,
    Conflict,
    KubeError,
    NamespaceNotFound,
    NotFound,
    UndecodableAnswer,
)
from partage.kube.resources import LEASES, Scope
from partage.kube.watch import follow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidacy:
    """The lease that one candidate wants, and its identity.

    Attributes:
        identity: ours; unique to this process, otherwise two processes would think that they lead.
        mark: the annotation with which a holder reports, for each renewal, how long after it it stops. So
            the next leader need not count from the lease's end (`quiet_from`). In a released lease it
            reports that the holder has stopped. Other programs that hold the lease do not write it. If
            empty, none is written or read, and no lease is handed over.
        elected: who else elects this candidate; None if this lease alone does.
    """

    namespace: str
    name: str
    identity: str
    settings: LeaseSettings = LeaseSettings()
    mark: str = ""
    elected: "Elected | None" = None


@dataclass(frozen=True, slots=True)
class Elected:
    """Another lease by which a candidate was elected before it tries to get this one.

    At most one candidate of each other lease campaigns at a time. So it takes this lease at once from a *fellow*, a
    candidate of the same other lease. From any other holder it takes it only when nothing of that holder can arrive
    any more. So a holder that was elected elsewhere never has an earlier one to wait for.

    Attributes:
        mark: the annotation with which each renewal names the other lease.
        lease: the other lease's name.
        patience: seconds from a holder's last request until nothing of it can arrive.
    """

    mark: str
    lease: str
    patience: float


class LeaderElector:
    """Gets the lease, runs `lead` while it holds it, and releases it at the end.

    Attributes:
        handed_over: the previous leader released the lease with no request of its own on its way.
        fellow: the last holder before us was elected by the same other lease.
        quiet_from: the moment, by our clock, from which the previous leader sent nothing more.
    """

    def __init__(
        self,
        client: Client,
        candidacy: Candidacy,
        lead: Callable[[], Awaitable[None]],
        *,
        failed: Callable[[KubeError], None] | None = None,
        settled: Callable[[], bool] = lambda: False,
        doubted: Callable[[float], None] = lambda _: None,
        went_back: Callable[[], None] = lambda: None,
    ) -> None:
        """An elector that is not yet running.

        Args:
            lead: started when the lease is got, cancelled when it is lost; it must end soon then,
                and check `leading` before each write that matters.
            failed: gets each error of a try; the next try is already arranged.
            settled: asked after `lead` has ended, before the lease is released: whether none of its requests
                can still arrive. The next leader reads the answer (`handed_over`).
            doubted: gets the seconds for which our clock may have stood still while we led.
            went_back: called when the lease is older than an earlier one, as after a restore from a backup.
        """
        self._went_back = went_back
        self._doubted = doubted
        self._settled = settled
        self._mark = candidacy.mark
        self._elected = candidacy.elected
        self.fellow = self._looked = False
        self._changed = asyncio.Event()
        self.handed_over = False
        self.quiet_from = 0.0
        self._interrupted = False
        self._client = client.insistent(candidacy.settings.retry)
        self._clock = client.clock
        self._namespace = candidacy.namespace
        self._name = candidacy.name
        self._lead = lead
        self._settings = candidacy.settings
        self._failed = failed
        self._election = Election(candidacy.identity, self._settings)
        self._version: str | None = None

    @property
    def leading(self) -> bool:
        """Whether we lead at this very moment; false as soon as the deadline has passed.

        It is also false if our clock may have stood still, until a renewal shows that no other took over.
        """
        now = self._clock.monotonic()
        return self._election.leads(now) and not self._election.stood_still(now, self._clock.now())

    @property
    def holder(self) -> str:
        """The last observed holder of the lease."""
        return self._election.holder

    async def run(self) -> None:
        """Campaign, lead, and campaign again; ends when `lead` returns, raises, or we are cancelled.

        The lease is released at the end, after `lead` has ended.
        """
        while True:
            await self._campaign()
            if await self._reign():
                return

    async def _campaign(self) -> None:
        listening = asyncio.create_task(self._listen(), name=f"lease:{self._name}:listen")
        try:
            while not self.leading:
                self._changed.clear()
                await self._attempt()
                if not self.leading:
                    await self._within(self._pause(), self._changed.wait())
        finally:
            await end(listening)

    async def _listen(self) -> None:
        """Look at the lease whenever a watch reports a change, if the server allows a watch."""
        scope = Scope(LEASES, self._namespace, fields=f"metadata.name={self._name}")
        async with contextlib.aclosing(follow(self._client, scope, into=Lease)) as changes:
            async for _ in changes:
                self._changed.set()

    async def _reign(self) -> bool:
        """Lead until the lease is lost (False) or `lead` ends (True)."""
        self._interrupted = False
        lead = asyncio.create_task(_run(self._lead), name=f"lease:{self._name}:lead")
        renew = asyncio.create_task(self._renew(), name=f"lease:{self._name}:renew")
        try:
            await asyncio.wait((lead, renew), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The order matters: first the work ends, then the lease is released.
            ended = lead.done()
            await end(lead)
            await end(renew)
            await self._release()
        if ended:
            lead.result()
        return ended

    async def _renew(self) -> None:
        """Renew until the deadline passes without success, or another holds the lease."""
        while (until := self._election.leads_until) is not None:
            left = until - self._clock.monotonic()
            if left <= 0:
                return
            if still := self._election.stood_still(self._clock.monotonic(), self._clock.now()):
                self._doubted(still)
            await self._within(left, self._attempt())
            left = (self._election.leads_until or 0.0) - self._clock.monotonic()
            await self._clock.sleep(max(0.0, min(self._settings.retry, left)))

    async def _attempt(self) -> None:
        """One try to get or renew the lease; errors are reported and change nothing."""
        try:
            await self._try()
        except KubeError as error:
            self._version = None
            faster = isinstance(error, Conflict | AlreadyExists | NotFound)
            if faster and not isinstance(error, NamespaceNotFound):
                return  # another candidate changed the lease: the next try reads
            if self._failed is not None:
                self._failed(error)

    async def _try(self) -> None:
        election, clock = self._election, self._clock
        exists = True
        if self._version is None or not election.leads(clock.monotonic()):
            exists = await self._read()
        if not election.may_take(clock.monotonic()) or not self._quiet():
            return
        # A pause of this process between the two makes our clock look slow, not the wall's.
        wall = clock.now()
        sent = clock.monotonic()
        claim = election.claim(wall)
        found = election.leads(sent), election.handed_over, election.quiet_from
        marked = self._marked(claim, election.stops(sent))
        stored = await (self._write(claim, marked) if exists else self._create(claim, marked))
        if (stored.spec.holder_identity, stored.spec.renew_time) != (
            claim.holder_identity,
            claim.renew_time,
        ):
            # The answer is not the server's: a proxy may answer 200 to anything.
            raise UndecodableAnswer(
                "PATCH", LEASES.path(self._namespace, self._name), "no lease of ours"
            )
        self._version = stored.metadata.resource_version
        election.won(claim, self._version, sent=sent, now=clock.monotonic(), wall=wall)
        renewed, handed_over, quiet_from = found
        if not renewed:
            self.handed_over, self.quiet_from = handed_over, quiet_from
            # If we led already, the lease was gone in between, and we got it back within our own time. No
            # other candidate that follows these rules led meanwhile. But `lead` has not waited for one since.
            self._interrupted = True

    async def _read(self) -> bool:
        """Look at the lease; False if it does not exist."""
        try:
            lease = await self._client.get(
                LEASES, self._name, namespace=self._namespace, into=Lease
            )
        except NotFound:
            self._version, self.fellow = None, False
            self._observe(None, "", None)
            return False
        self._version = lease.metadata.resource_version
        if self._election.went_back(self._version):
            self._went_back()
        spec, stops = lease.spec, self._stops(lease)
        if self._elected is not None and not self._election.leads(self._clock.monotonic()):
            renewed = (lease.metadata.annotations or {}).get(self._elected.mark, "")
            self.fellow = renewed == f"{spec.renew_time} {self._elected.lease}"
            if self.fellow:
                spec, stops = LeaseSpec("", SETTLED, renew_time=spec.renew_time), 0.0
        self._observe(spec, self._version, stops)
        return True

    def _observe(self, spec: LeaseSpec | None, version: str, stops: float | None) -> None:
        """Record what a read has shown.

        A holder that lives writes the lease again at once after it was emptied or deleted. So a candidate that was
        elected elsewhere does not wait a whole duration if it finds none, but for what a holder may have sent.
        """
        unheld = spec is None or not (spec.holder_identity or spec.renew_time)
        if self._elected is not None and not self._looked and unheld:
            spec, stops = LeaseSpec("", UNSETTLED), 0.0
        self._looked = True
        self._election.observe(spec, version, self._clock.monotonic(), stops)

    def _quiet(self) -> bool:
        """Whether we need not leave the lease to others because of a holder that may have requests on their way."""
        election, now = self._election, self._clock.monotonic()
        if self._elected is None or election.leads(now) or election.handed_over:
            return True
        return now >= election.quiet_from + self._elected.patience

    def _marked(self, spec: LeaseSpec, stops: float) -> dict[str, Any]:
        """Metadata that reports in how many seconds the writer of this renewal stops."""
        marks = {self._mark: f"{spec.renew_time} {stops:g}"} if self._mark else {}
        if self._elected is not None:
            marks[self._elected.mark] = f"{spec.renew_time} {self._elected.lease}"
        return {"annotations": marks} if marks else {}

    def _stops(self, lease: Lease) -> float | None:
        """The holder's report of this renewal, which is not valid for another one."""
        text = (lease.metadata.annotations or {}).get(self._mark, "") if self._mark else ""
        moment, _, seconds = text.partition(" ")
        if not moment or moment != lease.spec.renew_time:
            return None
        with contextlib.suppress(ValueError):
            return max(0.0, float(seconds)) if math.isfinite(float(seconds)) else None
        return None

    async def _create(self, spec: LeaseSpec, marked: Mapping[str, Any]) -> Lease:
        body = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace, **marked},
            "spec": spec,
        }
        return await self._client.create(LEASES, body, namespace=self._namespace, into=Lease)

    async def _write(self, spec: Any, metadata: Mapping[str, Any] | None = None) -> Lease:
        """Change the lease if it is still as we saw it; other programs' fields stay."""
        body = {"metadata": {"resourceVersion": self._version, **(metadata or {})}, "spec": spec}
        return await self._client.patch(
            LEASES, self._name, body, namespace=self._namespace, into=Lease
        )

    async def _release(self) -> None:
        """Let others take over at once, if the lease is still ours; if that fails, it expires.

        It is not released either while our predecessor may still send. The next holder counts from our
        last report, and would not know of that.
        """
        early = self._clock.monotonic() < self.quiet_from
        if not self.leading or self._version is None or early:
            self._election.resign()
            return
        self._election.resign()
        moment = micro_time(self._clock.now())
        settled = self._settled() and not self._interrupted
        free = LeaseSpec("", SETTLED if settled else UNSETTLED, renew_time=moment)
        with contextlib.suppress(KubeError):
            await self._within(
                self._settings.retry, self._write(free, self._marked(free, stops=0.0))
            )
        self._version = None

    async def _within(self, seconds: float, attempt: Coroutine[Any, Any, T]) -> None:
        """Let an attempt run for at most this long, by our clock."""
        task = asyncio.create_task(attempt, name=f"lease:{self._name}:attempt")
        timer = asyncio.create_task(self._clock.sleep(seconds), name=f"lease:{self._name}:timer")
        await race(task, timer)
        if not task.cancelled():
            task.result()

    def _pause(self) -> float:
        """Seconds until the next look at the lease, even without a reported change."""
        pause = self._settings.retry * (1 + self._settings.jitter * self._client.chance())
        left = self._election.expires - self._clock.monotonic()
        return min(pause, left) if left > 0 else pause


async def _run(lead: Callable[[], Awaitable[None]]) -> None:
    await lead()

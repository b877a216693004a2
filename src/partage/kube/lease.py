"""Leader election over a Lease of coordination.k8s.io/v1: one leader at a time, or none.

Clocks of two machines are never compared. Who waits counts from when *it* last saw the lease
change; who leads counts from before it *sent* its last renewal, and stops earlier than anyone may
take over. So there are never two leaders as long as clocks run at about the same speed, whatever
they show. `Election` holds these rules and does no I/O; `LeaderElector` runs them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from partage.kube.client import Client, PatchKind
from partage.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from partage.kube.objects import Meta
from partage.kube.resources import LEASES

__all__ = ["Election", "LeaderElector", "LeaseSettings", "LeaseSpec"]

T = TypeVar("T")

_SETTLED: Final = 1
"""Duration in a lease that was given back with nothing of its holder's on its way, in seconds.

Kubernetes' own clients write it whenever they give a lease back; nobody who takes a name out of a
lease by hand does.
"""
_UNSETTLED: Final = 2


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The lease as written; times are text in RFC 3339 with microseconds, only ever displayed."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, frozen=True):
    metadata: Meta
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
        self._leads_until: float | None = None

    @property
    def holder(self) -> str:
        """Who held the lease when last seen; empty if nobody did."""
        return (self._seen.holder_identity or "") if self._seen is not None else ""

    @property
    def term(self) -> int:
        """How often the lease changed hands when last seen."""
        return (self._seen.lease_transitions or 0) if self._seen is not None else 0

    @property
    def handed_over(self) -> bool:
        """Whether the lease, when last seen, was given back with nothing on its way."""
        seen = self._seen
        return (
            seen is not None
            and seen.holder_identity == ""
            and seen.lease_duration_seconds == _SETTLED
        )

    @property
    def leads_until(self) -> float | None:
        """The moment at which we stop to lead unless renewed; None if we do not."""
        return self._leads_until

    def leads(self, now: float) -> bool:
        """Whether we may act as the leader at this moment."""
        return self._leads_until is not None and now < self._leads_until

    def observe(self, spec: LeaseSpec | None, version: str, now: float) -> None:
        """The lease was read at `now`, with this resourceVersion; None if there is none.

        Any new version counts as a sign of life, so that even a holder whose wall clock stands
        still is not taken for dead.
        """
        if spec != self._seen or version != self._seen_version:
            self._seen, self._seen_version, self._seen_at = spec, version, now
        if self.holder != self._identity:
            self._leads_until = None

    def may_take(self, now: float) -> bool:
        """Whether to try to write our name: the lease is free, ours, or expired as we saw it."""
        if self.holder in {"", self._identity}:
            return True
        duration = self._seen.lease_duration_seconds if self._seen is not None else None
        return now >= self._seen_at + (duration or self._settings.duration)

    def claim(self, moment: datetime) -> LeaseSpec:
        """What to write to get or keep the lease; `moment` is the wall clock's, for readers."""
        text = _micro_time(moment)
        if self.holder == self._identity and self._seen is not None:
            acquired, term = self._seen.acquire_time or text, self.term
        else:
            acquired, term = text, self.term + 1 if self._seen is not None else 0
        return LeaseSpec(self._identity, self._settings.duration, acquired, text, term)

    def won(self, spec: LeaseSpec, version: str, *, sent: float, now: float) -> None:
        """Our claim, sent at `sent`, was stored as this version."""
        self._seen, self._seen_version, self._seen_at = spec, version, now
        self._leads_until = sent + self._settings.deadline

    def resign(self) -> None:
        """Stop to lead."""
        self._leads_until = None


class LeaderElector:
    """Gets the lease, has `lead` run while it is held, and gives it back at the end."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        lead: Callable[[], Awaitable[None]],
        settings: LeaseSettings = LeaseSettings(),
        failed: Callable[[KubeError], None] | None = None,
        settled: Callable[[], bool] = lambda: False,
    ) -> None:
        """An elector that is not yet running.

        Args:
            client: an open client.
            namespace: the lease's namespace.
            name: the lease's name.
            identity: ours; unique to this process, or two would think they lead.
            lead: started when the lease is got, cancelled when it is lost; it must end soon then,
                and check `leading` before each write that matters.
            settings: times.
            failed: told each error of a try; the next try is already arranged.
            settled: asked after `lead` has ended, before the lease is given back: whether nothing
                that it sent can still arrive. The next leader is told (`handed_over`).
        """
        self._settled = settled
        self._handed_over = False
        self._client = client
        self._clock = client.clock
        self._namespace = namespace
        self._name = name
        self._lead = lead
        self._settings = settings
        self._failed = failed
        self._election = Election(identity, settings)
        self._version: str | None = None

    @property
    def leading(self) -> bool:
        """Whether we lead at this very moment; false as soon as the deadline has passed."""
        return self._election.leads(self._clock.monotonic())

    @property
    def handed_over(self) -> bool:
        """Whether the leader before us gave us the lease with nothing of its own on its way."""
        return self._handed_over

    @property
    def holder(self) -> str:
        """Who holds the lease, as last seen."""
        return self._election.holder

    @property
    def term(self) -> int:
        """How often the lease has changed hands, as last seen."""
        return self._election.term

    async def run(self) -> None:
        """Campaign, lead, and campaign again; ends when `lead` returns, raises, or we are cancelled.

        The lease is given back at the end, after `lead` has ended.
        """
        while True:
            while not self.leading:
                await self._attempt()
                if not self.leading:
                    await self._clock.sleep(self._pause())
            if await self._reign():
                return

    async def _reign(self) -> bool:
        """Lead until the lease is lost (False) or `lead` ends (True)."""
        lead = asyncio.create_task(_run(self._lead), name=f"lease:{self._name}:lead")
        renew = asyncio.create_task(self._renew(), name=f"lease:{self._name}:renew")
        try:
            await asyncio.wait((lead, renew), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The order is what fences: first the work ends, then the lease is given back.
            ended = lead.done()
            await _stop(lead)
            await _stop(renew)
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
            await self._within(left, self._attempt())
            left = (self._election.leads_until or 0.0) - self._clock.monotonic()
            await self._clock.sleep(max(0.0, min(self._settings.retry, left)))

    async def _attempt(self) -> None:
        """One try to get or renew the lease; errors are told and leave things as they are."""
        try:
            await self._try()
        except (Conflict, AlreadyExists, NotFound):
            self._version = None  # somebody was faster: the next try reads
        except KubeError as error:
            self._version = None
            if self._failed is not None:
                self._failed(error)

    async def _try(self) -> None:
        election, clock = self._election, self._clock
        exists = True
        if self._version is None or not election.leads(clock.monotonic()):
            exists = await self._read()
        if not election.may_take(clock.monotonic()):
            return
        sent = clock.monotonic()
        claim = election.claim(clock.now())
        found = election.leads(sent), election.handed_over
        stored = await (self._write(claim) if exists else self._create(claim))
        self._version = stored.metadata.resource_version
        election.won(claim, self._version, sent=sent, now=clock.monotonic())
        renewed, handed_over = found
        if not renewed:
            self._handed_over = handed_over

    async def _read(self) -> bool:
        """Look at the lease; False if there is none."""
        try:
            lease = await self._client.get(
                LEASES, self._name, namespace=self._namespace, into=_Lease
            )
        except NotFound:
            self._version = None
            self._election.observe(None, "", self._clock.monotonic())
            return False
        self._version = lease.metadata.resource_version
        self._election.observe(lease.spec, self._version, self._clock.monotonic())
        return True

    async def _create(self, spec: LeaseSpec) -> _Lease:
        body = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        return await self._client.create(LEASES, body, namespace=self._namespace, into=_Lease)

    async def _write(self, spec: Any) -> _Lease:
        """Change the lease if it is still as we saw it; what others keep in it stays."""
        body = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        return await self._client.patch(
            LEASES,
            self._name,
            body,
            kind=PatchKind.MERGE,
            namespace=self._namespace,
            into=_Lease,
        )

    async def _release(self) -> None:
        """Let others take over at once, if the lease is still ours; if that fails, it expires."""
        if not self.leading or self._version is None:
            self._election.resign()
            return
        self._election.resign()
        free = {
            "holderIdentity": "",
            "leaseDurationSeconds": _SETTLED if self._settled() else _UNSETTLED,
            "renewTime": _micro_time(self._clock.now()),
        }
        with contextlib.suppress(KubeError):
            await self._within(self._settings.retry, self._write(free))
        self._version = None

    async def _within(self, seconds: float, attempt: Coroutine[Any, Any, T]) -> None:
        """Let an attempt run for at most so long, by our clock."""
        task = asyncio.create_task(attempt, name=f"lease:{self._name}:attempt")
        timer = asyncio.create_task(self._clock.sleep(seconds), name=f"lease:{self._name}:timer")
        try:
            await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            if not task.done():
                await _stop(task)
        if not task.cancelled():
            task.result()

    def _pause(self) -> float:
        return self._settings.retry * (1 + self._settings.jitter * self._client.chance())


async def _run(lead: Callable[[], Awaitable[None]]) -> None:
    await lead()


async def _stop(task: asyncio.Task[Any]) -> None:
    """Cancel and wait for the end; its exception stays in the task."""
    task.cancel()
    await asyncio.wait((task,))


def _micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

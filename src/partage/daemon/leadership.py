"""Elects one of several instances by a Lease, and labels the leader's own pod; a single instance leads alone.

The Lease decides. The label only selects the pod to which the Service sends requests. A crashed
leader may have left its label behind, so the next leader removes it from all other pods.

A leader notices by its Lease that its API server was away, or that the store was restored from a backup. A single
instance has no Lease, and its watches may return only half a minute after the API server. So it looks at the store's
version instead.

An API server that ran while its store was restored answers lists and watches from its memory, and reads single objects
from the store. The Lease changes every few seconds, so it shows this (`Memory`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from partage.daemon.followed_lease import FollowedLease
from partage.daemon.options import ElectionOptions
from partage.extender.bindings import BindLimits
from partage.kube.client import Client
from partage.kube.clock import end
from partage.kube.election import Lease, LeaseSettings
from partage.kube.errors import KubeError, NotFound
from partage.kube.lease import Candidacy, Elected, LeaderElector
from partage.kube.mirror import is_older
from partage.kube.objects import Meta
from partage.kube.resources import LEASES, PODS, Scope
from partage.vendors import names

_LOG: Final = logging.getLogger("partage.daemon")
_AGAIN: Final = 2.0
"""Seconds between two tries to write the label."""
_STILL: Final = 60.0
"""Seconds between two checks of the label: a write of an earlier leader may arrive late, and people remove labels."""
_PARTING: Final = 1.0
"""Most seconds for the removal of the label."""
_TIMES: Final = LeaseSettings()
_SLACK: Final = 1.2
"""Time-outs of a Binding for which a new leader waits."""
_TOLD: Final = 20.0
"""Seconds between two reports that another instance's Lease keeps this one waiting."""


class _Pod(msgspec.Struct, frozen=True):
    metadata: Meta


def quiet_period(send: float, options: ElectionOptions | None) -> float:
    """Seconds after which no request of an earlier leader can still arrive.

    It is the time-out of a Binding, by which its sender and the API server give up, and a share
    more: for clocks that differ a little, and for a write that the store had just begun.

    Args:
        send: that time-out.
        options: may give the period itself.
    """
    given = options.quiet_period if options is not None else None
    return send * _SLACK if given is None else given


class Leadership:
    """The lead of one instance: by the service's own Lease, and with the plugin by kube-scheduler's before."""

    def __init__(
        self,
        client: Client,
        identity: str,
        options: ElectionOptions,
        lead: Callable[[], Awaitable[None]],
        *,
        settled: Callable[[], bool],
        went_back: Callable[[], None],
        send: float,
        followed: str | None = None,
    ) -> None:
        """Not running yet.

        Args:
            identity: unique among all instances.
            lead: started when we get the Lease, cancelled when we lose it.
            settled: whether none of our requests can still arrive.
            went_back: called when a Lease shows an earlier state of the store.
            send: the time-out of a Binding of ours.
            followed: with the plugin, the Lease that kube-scheduler holds.
        """
        self._clock = client.clock
        self._name = options.name
        self._quiet_period = quiet_period(send, options)
        # Any program may have held kube-scheduler's Lease, and with the extender a Binding takes longer.
        self._longest = max(self._quiet_period, quiet_period(BindLimits().send, options))
        elected = self._followed = None
        if followed is not None:
            elected = Elected(names.LEASE_ELECTED, followed, self._longest)
            self._followed = FollowedLease(
                client, options.namespace, followed, self._campaign, went_back
            )
        self._own = LeaderElector(
            client,
            Candidacy(
                options.namespace,
                options.name,
                identity,
                options.times,
                names.LEASE_DEADLINE,
                elected,
            ),
            lead,
            settled=settled,
            went_back=went_back,
            failed=lambda error: _LOG.warning("lease %s: %s", options.name, error),
            doubted=lambda seconds: _LOG.warning(
                "the wall clock moved on %.1f s further than this process's own: the machine may have "
                "stood still, or its clock was set; this instance binds no pod until it has renewed lease %s",
                seconds,
                options.name,
            ),
        )

    @property
    def elected(self) -> bool:
        """Whether kube-scheduler beside us holds its Lease; true without the plugin."""
        return self._followed is None or self._followed.leading

    @property
    def leading(self) -> bool:
        """Whether we lead now."""
        return self._own.leading and self.elected

    @property
    def handed_over(self) -> bool:
        """Whether the leader before us has reported that nothing of it is on its way.

        With the plugin it cannot, because kube-scheduler does not report its open requests when it releases its Lease.
        """
        return self._followed is None and self._own.handed_over

    @property
    def sent_until(self) -> float:
        """The moment, by our clock, after which the leader before us sent nothing more; now if that is not known."""
        if self._followed is None:
            return self._clock.monotonic() if self.handed_over else self._own.quiet_from
        return self._followed.quiet_from if self._own.fellow else self._clock.monotonic()

    def claim(self, leading: bool) -> None:  # noqa: FBT001 # a reported fact
        """Take in kube-scheduler's report whether it holds its Lease."""
        if self._followed is not None:
            self._followed.claim(leading)

    async def run(self) -> None:
        """Campaign, lead, and campaign again, until cancelled."""
        await (self._followed or self._own).run()

    async def predecessor_over(self) -> None:
        """Wait until nothing of the leader before us can arrive any more.

        The elector knows the moment after which that one sends no Binding. A Binding that was sent just before may
        still arrive, as long as its sender waits for an answer. A leader that gave the Lease back has reported whether
        it had all its answers. With the plugin the elector has waited for the last holder of our own Lease already,
        and this waits for that of kube-scheduler's.
        """
        if self.handed_over:
            _LOG.info("got the lease from a leader whose Bindings have all arrived")
            return
        quiet, period = self._own.quiet_from, self._quiet_period
        if self._followed is not None:
            quiet = self._followed.quiet_from
            period = self._quiet_period if self._own.fellow else self._longest
        left = max(0.0, quiet + period - self._clock.monotonic())
        _LOG.info("got the lease; others' Bindings have %.1f s to arrive", left)
        await self._clock.sleep(left)

    async def _campaign(self) -> None:
        """Get our own Lease, because kube-scheduler beside us has its own, and lead."""
        telling = asyncio.create_task(self._tell_who_leads(), name="scheduler:waits")
        try:
            await self._own.run()
        finally:
            await end(telling)

    async def _tell_who_leads(self) -> None:
        while True:
            await self._clock.sleep(_TOLD)
            if not self._own.leading:
                holder = self._own.holder
                _LOG.warning(
                    "kube-scheduler beside this instance leads, but lease %s keeps this instance waiting: %s. It "
                    "leads once no Binding of an earlier leader can arrive. If a service with the extender still "
                    "runs, stop that one",
                    self._name,
                    f"{holder} holds it" if holder else "its last holder may have sent Bindings",
                )


class LeaderLabel:
    """The label of the leader's pod; does nothing if the pod is unknown."""

    def __init__(self, client: Client, pod: tuple[str, str] | None) -> None:
        """Write no label yet; `pod` is the namespace and name of our own pod, None for no label."""
        self._client = client.insistent(_AGAIN)
        self._pod = pod

    async def wear(self) -> None:
        """Keep the label on our pod and off all others, until cancelled."""
        if self._pod is None:
            return
        namespace, name = self._pod
        scope = Scope(PODS, namespace, labels=f"{names.LEADER}=true")
        while True:
            try:
                worn = {
                    one.metadata.name
                    for one in (await self._client.list_all(scope, into=_Pod)).items
                }
                for other in worn - {name}:
                    await self._write(namespace, other, None)
                if name not in worn:
                    await self._write(namespace, name, "true")
            except KubeError as error:
                _LOG.warning("the leader's label cannot be written: %s", error)
                await self._client.clock.sleep(_AGAIN)
            else:
                await self._client.clock.sleep(_STILL)

    async def take_off(self) -> None:
        """Remove the label from our pod, if that is quick; the next leader removes it as well."""
        if self._pod is None:
            return
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(_PARTING):
                await self._write(*self._pod, None)

    async def _write(self, namespace: str, name: str, value: str | None) -> None:
        body = {"metadata": {"labels": {names.LEADER: value}}}
        with contextlib.suppress(NotFound):
            await self._client.patch(PODS, name, body, namespace=namespace, into=msgspec.Raw)


class Memory:
    """Whether the API server lists what it remembers of a store that was restored from a backup meanwhile.

    Its lists lack pods that hold devices in the store. Its memory also reaches newer versions of the store after a
    while, and nothing shows the gap from then on. So an API server that was found out stays so until it was restarted.
    """

    def __init__(self, client: Client, election: ElectionOptions | None) -> None:
        """Nothing is known yet; without an election there is no Lease to look at."""
        self._client = client
        self._election = election
        self._remembered = ""

    async def answers(self) -> bool:
        """Whether lists that were just read come from a memory that the store contradicts.

        The list of the Lease is read before the Lease itself, and both show the same resource. So it is never newer.
        """
        if self._election is None:
            return False
        namespace, name = self._election.namespace, self._election.name
        scope = Scope(LEASES, namespace, fields=f"metadata.name={name}")
        try:
            listed = [
                one.metadata.resource_version
                for one in (await self._client.list_all(scope, into=Lease)).items
            ]
            stored = await self._client.get(LEASES, name, namespace=namespace, into=Lease)
        except KubeError as error:
            # Without the right to list it, or without the Lease, nothing is known that was not known before.
            _LOG.debug("the list of lease %s cannot be compared with it: %s", name, error)
            return bool(self._remembered)
        newer = [one for one in listed if is_older(stored.metadata.resource_version, one)]
        if newer:
            self._remembered = newer[0] or ""
        elif listed and is_older(listed[0], self._remembered):
            self._remembered = ""
        return bool(self._remembered)

    def forget(self) -> None:
        """Lists have shown the earlier state of the store."""
        self._remembered = ""


class Sole:
    """Leads as long as the API server answers."""

    def __init__(self, client: Client, went_back: Callable[[], None]) -> None:
        """Start without a look.

        `went_back`: called when the store has lost changes, or may have lost some because it was silent for long.
        """
        self._client = client
        self._clock = client.clock
        self._went_back = went_back
        self._heard: float | None = None
        self._newest = ""

    @property
    def leading(self) -> bool:
        """Whether the API server has answered recently; true until the first look."""
        return self._heard is None or self._clock.monotonic() < self._heard + _TIMES.deadline

    async def run(self) -> None:
        """Look until cancelled."""
        self._heard = self._clock.monotonic()
        while True:
            sent = self._clock.monotonic()
            try:
                version = await self._client.newest_version(Scope(PODS))
            except KubeError as error:
                _LOG.debug("the store's version cannot be read: %s", error)
            else:
                self._answered(version, sent - self._heard)
                self._newest, self._heard = version, sent
            await self._clock.sleep(_TIMES.retry)

    def _answered(self, version: str, silent: float) -> None:
        if is_older(version, self._newest):
            _LOG.error(
                "the API server's store went back to before version %s, as after a restore from a backup",
                self._newest,
            )
        elif silent >= _TIMES.deadline:
            _LOG.warning(
                "the API server gave no answer for %.0f s; everything is listed again", silent
            )
        else:
            return
        self._went_back()

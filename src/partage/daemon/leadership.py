"""Who of several instances serves: a Lease, and a label on the leader's own pod.

The Lease decides; the label only tells the Service where to send requests. A leader that crashed
may have left its label behind, so the next one takes it away from all others.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from partage.daemon.options import ElectionOptions
from partage.kube.client import Client, PatchKind
from partage.kube.errors import KubeError, NotFound
from partage.kube.lease import Candidacy, LeaderElector
from partage.kube.objects import Meta
from partage.kube.resources import PODS, Scope
from partage.vendors import names

_LOG: Final = logging.getLogger("partage.daemon")
_AGAIN: Final = 2.0
"""Seconds between two tries to write the label."""
_STILL: Final = 60.0
"""Seconds between two looks at where the label is: a write of the leader before may arrive late, and people take labels off."""
_PARTING: Final = 1.0
"""Seconds that taking it off may take."""


class _Pod(msgspec.Struct, frozen=True):
    metadata: Meta


def elector(
    client: Client,
    identity: str,
    options: ElectionOptions,
    lead: Callable[[], Awaitable[None]],
    settled: Callable[[], bool],
    went_back: Callable[[], None],
) -> LeaderElector:
    """The elector of one instance, not running yet.

    Args:
        identity: unique among all instances.
        lead: started when the Lease is got, cancelled when it is lost.
        settled: whether nothing that we sent can still arrive.
        went_back: called when the Lease shows that the store is an earlier one.
    """
    return LeaderElector(
        client,
        Candidacy(options.namespace, options.name, identity, options.times, names.LEASE_DEADLINE),
        lead,
        settled=settled,
        went_back=went_back,
        failed=lambda error: _LOG.warning("lease %s: %s", options.name, error),
        doubted=lambda seconds: _LOG.warning(
            "the wall clock moved on %.1f s further than this process's own: the machine may have "
            "stood still, or its clock was set; nothing is bound until lease %s is renewed",
            seconds,
            options.name,
        ),
    )


class LeaderLabel:
    """The label of the leader's pod; does nothing where the pod is not known."""

    def __init__(self, client: Client, pod: tuple[str, str] | None) -> None:
        """A label that is not written yet, of our own pod by namespace and name; None writes nothing."""
        self._client = client
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
        """Take the label off our pod, if that can be done soon; the next leader does it too."""
        if self._pod is None:
            return
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(_PARTING):
                await self._write(*self._pod, None)

    async def _write(self, namespace: str, name: str, value: str | None) -> None:
        body = {"metadata": {"labels": {names.LEADER: value}}}
        with contextlib.suppress(NotFound):
            await self._client.patch(
                PODS, name, body, kind=PatchKind.MERGE, namespace=namespace, into=msgspec.Raw
            )

"""The DRA driver of one node: slices for the allocator, claims for the kubelet, and devices of claims for containers.

devices of the node, less those that its pods hold ──> ResourceSlices ──> a scheduler allocates a claim
kubelet ──NodePrepareResources──> the claim as the API server has it ──> the last check ──> journal
container runtime ──keeper──> the claim's devices, in the same way as the devices of a pod's record
"""

import asyncio
import logging
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partage.agent.dra import messages as said
from partage.agent.dra.admission import ClaimAdmission, NotPrepared
from partage.agent.dra.allocated import parts_of
from partage.agent.dra.ordering import rooms
from partage.agent.dra.plugin import DriverFiles, DriverPlugin, Health
from partage.agent.dra.prepared import Claims, Prepared
from partage.agent.dra.publishing import CLAIMS, Publisher
from partage.agent.dra.withdrawn import BoundPods, Charges, left_for_claims, without_unknown
from partage.agent.injection import Place, Rule
from partage.agent.notes import Code
from partage.agent.trouble import Rounds
from partage.daemon.agent import AgentDaemon
from partage.daemon.node_pods import NodePods
from partage.daemon.watched import LiveClaim, as_document
from partage.kube.client import Client
from partage.kube.errors import KubeError, NotFound
from partage.model.device import DeviceType
from partage.model.errors import InvalidDocument
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.translation import Translation

_LOG: Final = logging.getLogger("partage.daemon")
_LOOK: Final = 0.25
"""Seconds between two checks whether instances exist."""


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """The driver's files and times.

    Attributes:
        files: in the folders that the kubelet watches.
        cdi: folder of CDI specifications that the runtime watches.
        patience: seconds that a claim's instances may take before the kubelet has to ask again; it waits 45 s.
        look: seconds between two searches for claims that have lost their allocation, or have another one, and have no
            container.
    """

    files: DriverFiles = DriverFiles()
    cdi: Path = Path("/var/run/cdi")
    journal: Path = Path("/var/lib/partage/agent")
    patience: float = 20.0
    look: float = 60.0


@dataclass(slots=True)
class _End:
    """How a call ended: `done`, `refused` by a rule, or `failed` because of the disk or because the kubelet gave up."""

    result: str = "failed"


class ResourceDriver:
    """The DRA driver of one node; `run` it."""

    name: Final = "claims"

    def __init__(
        self, client: Client, agent: AgentDaemon, node: str, options: DriverOptions
    ) -> None:
        """Count prepared claims from now on; `run` publishes and serves.

        `client`: an open client; its clock is used. `agent`: its keeper gives containers the devices of claims. Raises
        `InvalidDocument`: a folder cannot be used.
        """
        self._client, self._agent, self._options = client, agent, options
        try:
            self._claims = Claims(
                options.journal / "claims", options.cdi, node, lambda: secrets.token_hex(16)
            )
        except OSError as error:
            raise InvalidDocument(
                f"--dra: {error.filename}: {error.strerror or error}; --journal and --cdi-dir name other folders"
            ) from error
        self._damaged = ""
        self._say_damaged()
        self._place: Place | None = None
        self._translation = Translation(Context.of(Settings()))
        self._bound = BoundPods(self._translation)
        self._of_pods, self._of_all = Charges(), Charges()
        # Claims for which the kubelet has asked since the last search for lost ones.
        self._asked: set[str] = set()
        self._pods = NodePods(client, node, self._offer)
        keeper = agent.keeper
        self._admission = ClaimAdmission(
            self._claims, self._placed, lambda: keeper.books.all, keeper.books.closed_to
        )
        keeper.claims = self._admission
        instances = agent.instances
        if instances is not None:
            instances.claims(lambda: self._claims.allocations)
        self._publisher = Publisher(
            client,
            node,
            lambda: agent.found(),  # noqa: PLW0108 # `found` changes later
            agent.tallies,
            agent.notes,
            instances=instances is not None,
        )
        self._plugin = DriverPlugin(
            options.files, self._prepare, self._unprepare, self._publisher.look
        )
        agent.tallies.claims_prepared.set_function(lambda: len(self._claims.prepared))
        agent.follow(self._take)

    async def run(self) -> None:
        """Publish and serve until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._plugin.run(), name="agent:dra-plugin")
            tasks.create_task(self._publisher.run(), name="agent:resource-slices")
            tasks.create_task(self._pods.run(), name="agent:pods-beside-claims")
            tasks.create_task(self._release_lost(), name="agent:lost-claims")

    def _say_damaged(self) -> None:
        closed = self._claims.closed()
        told = f"{closed}; no card is given until its pod is deleted" if closed else ""
        if told and told != self._damaged:
            _LOG.warning("%s", told)
        self._damaged = told
        self._agent.notes.say(self.name, Code.JOURNAL_DAMAGED, (told,) if told else ())

    def _placed(self) -> Place:
        assert self._place is not None  # noqa: S101 # `follow` sets it at once
        return self._place

    def _take(self, place: Place) -> None:
        self._place = place
        registrar = {place.node.registrar} - {""}
        context = Context.of(place.settings, place.families, registrars=registrar)
        if context != self._translation.context:
            self._translation.reset(context)
        self._offer()
        ill = {
            one.minor: one.health_detail or "unhealthy"
            for one in place.node.devices
            if not one.healthy
        }
        self._plugin.tell(
            [
                Health(
                    place.node.name, one["name"], ill.get(one["attributes"]["index"]["int"], "")
                )
                for one in self._publisher.devices(place.node)
            ]
        )

    def _offer(self) -> None:
        """Offer the devices that pods leave, first the card with the least room; nothing before all pods are listed."""
        known = self._pods.objects
        if self._place is None or known is None:
            return
        node = self._place.node
        totals = {
            one.minor: one.memory_bytes for one in node.devices if one.type is DeviceType.GPU
        }
        found = self._bound.held((as_document("Pod", one) for one in known.values()), node)
        held = all_held = None
        if found is not None:
            held = found.allocations
            all_held = [*held, *self._claims.allocations]
            node = without_unknown(node, all_held, found.unknown)
        left = left_for_claims(node, all_held, self._of_all)
        self._publisher.take(left_for_claims(node, held, self._of_pods), rooms(node, left), totals)

    def _want(self) -> None:
        if self._agent.instances is not None:
            self._agent.instances.want()

    # --- the kubelet -------------------------------------------------------------------------

    async def _prepare(self, claim: said.Claim) -> Prepared:
        self._asked.add(claim.uid)
        with self._timed("prepare") as end:
            try:
                made = await self._written_down(claim)
                self._say_damaged()
                self._want()
                self._offer()
                await self._instances_of(made)
            except NotPrepared as error:
                end.result = "refused"
                self._agent.tallies.claim_failures.labels(error.rule).inc()
                raise
            except OSError:
                self._agent.tallies.claim_failures.labels(Rule.HOST).inc()
                raise
            end.result = "done"
            return made

    @contextmanager
    def _timed(self, call: str) -> Iterator["_End"]:
        start, end = self._client.clock.monotonic(), _End()
        try:
            yield end
        finally:
            spent = self._client.clock.monotonic() - start
            self._agent.tallies.claim_seconds.labels(call, end.result).observe(spent)

    async def _written_down(self, claim: said.Claim) -> Prepared:
        """Prepare a claim by its state in the API server now, which takes precedence over the journal.

        Without an answer of the API server a claim stays as it was prepared, because containers may have it.
        """
        who = f"ResourceClaim {claim.namespace}/{claim.name}"
        try:
            found = await self._read(claim.namespace, claim.name)
        except (KubeError, ValueError) as error:
            problem = f"{who} cannot be read: {error}"
        else:
            if found.metadata.uid == claim.uid:
                return await asyncio.to_thread(self._admission.prepare, found)
            problem = f"{who} is another one now, of uid {found.metadata.uid}"
        known = await asyncio.to_thread(self._admission.again, claim.uid)
        if known is None:
            raise NotPrepared(Rule.BAD_CLAIM, problem)
        return known

    async def _instances_of(self, made: Prepared) -> None:
        grants = [
            grant
            for allocation in self._claims.allocations
            if allocation.uid == made.uid
            for grant in allocation.grants
            if grant.mig is not None
        ]
        end = self._client.clock.monotonic() + self._options.patience
        for grant in grants:
            assert grant.mig is not None  # noqa: S101 # the list has no others
            while True:
                found = self._placed().host.instance(made.uid, grant.uuid, grant.mig)
                if found.uuid:
                    break
                if self._client.clock.monotonic() >= end or self._agent.instances is None:
                    why = f": {found.why}" if found.why else ""
                    raise NotPrepared(
                        Rule.NO_INSTANCE,
                        f"ResourceClaim {made.key}: instance {grant.mig.profile} at {grant.mig.start} of card "
                        f"{grant.uuid} is not made yet{why}",
                    )
                await self._client.clock.sleep(_LOOK)

    async def _unprepare(self, claim: said.Claim) -> None:
        with self._timed("unprepare") as end:
            await asyncio.to_thread(self._admission.unprepare, claim.uid)
            end.result = "done"
        self._say_damaged()
        self._want()
        self._offer()

    # --- claims that the kubelet has lost ----------------------------------------------------

    async def _release_lost(self) -> None:
        """Release claims that two looks find without their allocation and without a container.

        A kubelet that has lost its checkpoint never unprepares the claims that it prepared before. Without this search
        their cards would stay full forever.
        """
        before: set[str] = set()
        rounds = Rounds("lost claims cannot be searched for")
        while True:
            await self._client.clock.sleep(self._options.look)
            before, known = set[str](), before
            with rounds:
                before = await self._looked(known)

    async def _looked(self, before: Collection[str]) -> set[str]:
        """Release claims that this look and the one before found lost. Returns those of this look."""
        self._asked.clear()
        lost = {one.uid: one for one in self._admission.idle() if await self._lost(one)}
        for uid in set(before) & set(lost) - self._asked:
            try:
                released = await asyncio.to_thread(self._admission.release, lost[uid])
            except OSError as error:
                _LOG.warning("ResourceClaim %s: not released: %s", lost[uid].key, error)
                continue
            if released:
                _LOG.warning(
                    "ResourceClaim %s of uid %s: released, because it no longer has these devices and the kubelet did not ask",
                    lost[uid].key,
                    uid,
                )
                self._want()
                self._offer()
        return set(lost) - self._asked

    async def _lost(self, one: Prepared) -> bool:
        """Whether the API server reports that a claim has other devices, or none, or is gone; False without an answer."""
        try:
            found = await self._read(one.namespace, one.name)
        except NotFound:
            return True
        except (KubeError, ValueError):
            return False
        return found.metadata.uid != one.uid or parts_of(found) != one.parts

    async def _read(self, namespace: str, name: str) -> Document:
        """A claim without what its author may nest in it at any depth. Raises `KubeError`; `ValueError`: no such name."""
        found = await self._client.get(CLAIMS, name, namespace=namespace, into=LiveClaim)
        return as_document("ResourceClaim", found)

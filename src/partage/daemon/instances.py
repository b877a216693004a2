"""The hardware instances of one node: connects the API server's pods, the maker of instances, and injection.

    pods of the node ──informer──> want ──> agent.mig ──> driver
    container runtime ──keeper──> instance ──> ready instances, from memory

The agent watches pods and does not poll them, because an instance takes seconds to make and should
exist when its container starts. Before the first list the agent makes, removes and injects none.

`ForeignReport` keeps the facts of the maker of instances on the node's Device object: others' instances, and profiles.
This agent's own discovery or Koordinator's writes the object. The maker of instances keeps these annotations, because
no other program can tell which instances are Partage's. It writes them at once when a card has changed, and checks them
now and then, because the object may have been recreated.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from partage.agent.container_edits import Instance
from partage.agent.device_document import cards_of
from partage.agent.discovery.nvidia import load_library
from partage.agent.metrics import Tallies
from partage.agent.mig import runner
from partage.agent.mig.cdi import Specs, read_numbers
from partage.agent.mig.driver import NvidiaDriver, read_epoch
from partage.agent.mig.foreign import on_card, reported
from partage.agent.mig.journal import FileJournals
from partage.agent.mig.nvml import CardFacts, Failure, NvmlFailed
from partage.agent.mig.plan import Wanted, wanted_by
from partage.agent.mig.service import Instances
from partage.agent.notes import Code, Notes
from partage.agent.reporting import DEVICES
from partage.agent.stories import InstanceStories
from partage.agent.trouble import Rounds
from partage.daemon.node_pods import NodePods
from partage.kube.client import Client
from partage.kube.clock import sleep_until
from partage.kube.errors import KubeError, NotFound, NotServed
from partage.model.allocation import Allocation
from partage.model.errors import InvalidDocument, InvalidValue
from partage.model.mig import MigAxis, MigSlice
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.vendors import names
from partage.wire.foreign import encode_foreign
from partage.wire.mig_profiles import decode_axes, encode_axes

_LOG: Final = logging.getLogger("partage.daemon")
_LOOK: Final = 1.0
"""Seconds between two looks at the instances of containers."""
_LIST: Final = 30.0
"""Seconds between two listings of the driver's cards: one may come back."""
_LOOK_AT_OBJECT: Final = 30.0
"""Seconds between two looks at the object while no card changes."""

Body = dict[str, Any]


class ForeignReport:
    """The annotations of one node; `run` it, and call `changed` after a change."""

    def __init__(
        self,
        client: Client,
        node: str,
        told: Callable[[Mapping[str, str], Collection[str]], Mapping[str, str]],
    ) -> None:
        """A report that does not run yet.

        `client`: an open client; its clock is used. `told`: returns the wanted annotations, given the present ones and
        the object's cards.
        """
        self._client = client
        self._node = node
        self._told = told
        self._news = asyncio.Event()

    def changed(self) -> None:
        """Have `run` compare now, because a look at a card had another result than the one before."""
        self._news.set()

    async def run(self) -> None:
        """Keep the annotations until cancelled; try again after an error."""
        rounds = Rounds("others' instances cannot be reported", KubeError)
        while True:
            self._news.clear()
            with rounds:
                await self.once()
            await sleep_until(self._client.clock, _LOOK_AT_OBJECT, self._news)

    async def once(self) -> bool:
        """Compare, and write differences. Returns whether there were any. Raises `KubeError`."""
        try:
            device = await self._client.get(DEVICES, self._node, into=Body)
        except (NotFound, NotServed):
            return False  # there is no object yet that a scheduler could read
        metadata = device.get("metadata") or {}
        before = metadata.get("annotations") or {}
        wanted = self._told(before, cards_of(device))
        changes = {key: text for key, text in wanted.items() if before.get(key) != text}
        if not changes:
            return False
        # The uid prevents a write to an object that was created meanwhile.
        body = {"metadata": {"uid": metadata.get("uid"), "annotations": changes}}
        await self._client.patch(DEVICES, self._node, body, into=Body)
        return True


@dataclass(frozen=True, slots=True)
class InstanceOptions:
    """Folders of the maker of instances.

    Attributes:
        journal: of its journals; must outlive a reboot.
        libraries: are searched for the driver's library, before the loader's own folders.
    """

    journal: Path = Path("/var/lib/partage/mig")
    cdi: Path = Path("/var/run/cdi")
    libraries: tuple[Path, ...] = ()


def open_node(options: InstanceOptions) -> runner.Node:
    """The driver of this machine, with the maker's files.

    Raises `InvalidValue`: nvidia-ml-py is not installed, or the driver's library cannot be loaded; `NvmlFailed`: no
    driver is loaded.
    """
    problem = load_library(options.libraries)
    if problem:
        raise InvalidValue(problem)
    driver = NvidiaDriver.open()
    journals = FileJournals(options.journal)
    return runner.Node(driver, journals, Specs(options.cdi), read_epoch, read_numbers)


Held = tuple[tuple[str, Wanted], ...]
"""Instances by the UUID of their card."""


class NodeInstances:
    """The hardware instances of a node; `run` it, and ask `instance`."""

    name = "instances"

    def __init__(
        self,
        client: Client,
        name: str,
        node: runner.Node,
        specs: Specs,
        tallies: Tallies,
        tracer: Tracer = NO_TRACES,
        notes: Notes | None = None,
    ) -> None:
        """List the driver's cards; `run` makes instances. Raises `NvmlFailed`: the driver does not list its cards.

        Args:
            specs: reads the specifications of `node`.
            tracer: traces how long pods wait for their instances.
            notes: get the cards on which no instance can be made.
        """
        self._notes = notes or Notes()
        self._specs = specs
        self._tallies = tallies
        self._stories = InstanceStories(tracer, name)
        self._name = name
        self._node = node
        self._axes: dict[str, MigAxis] = {}
        self._listed_cards = self.cards = frozenset[str]()
        self._service = Instances({}, client.clock, self._changed)
        self._take(self._new_cards())
        self._report = ForeignReport(client, name, self.annotations)
        self._pods = NodePods(client, name, self.want)
        self._shown: dict[str, list[tuple[str, ...]]] = {}
        self._claimed: Callable[[], Iterable[Allocation]] = tuple
        self._running: Callable[[], Iterable[Allocation]] = tuple
        self._held: Held = ()
        self._clock = client.clock
        self._listed = False

    async def run(self) -> None:
        """Make and remove until cancelled."""
        _LOG.info("hardware instances are made on %d cards", len(self.cards))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._service.run(), name="agent:instances")
            tasks.create_task(self._pods.run(), name="agent:pods")
            tasks.create_task(self._report.run(), name="agent:foreign")
            tasks.create_task(self._follow_containers(), name="agent:instances-in-use")
            tasks.create_task(self._follow_cards(), name="agent:cards-with-instances")

    def _new_cards(self) -> dict[CardFacts, MigAxis | None]:
        """The driver's cards that were not listed before, and how they can be cut. Raises `NvmlFailed`."""
        nvml = self._node.nvml
        new = (card for card in nvml.cards() if card.uuid not in self._listed_cards)
        return {card: _axis_of(card, nvml) for card in new}

    def _take(self, cards: Mapping[CardFacts, MigAxis | None]) -> None:
        """Make instances on these cards too, if they can be cut."""
        for card, axis in cards.items():
            self._listed_cards |= {card.uuid}
            if axis is not None and axis.profiles:
                self._axes[card.uuid] = axis
            if axis is None or axis.profiles:
                self.cards |= {card.uuid}  # whole: other threads read it
                self._service.add(card.uuid, runner.Runner(card, self._node))

    async def _follow_cards(self) -> None:
        """List the driver's cards now and then: one that was lost as the agent started may be back."""
        rounds = Rounds("the driver's cards cannot be listed", NvmlFailed)
        while True:
            await self._clock.sleep(_LIST)
            with rounds:
                new = await asyncio.to_thread(self._new_cards)
                self._take(new)
                if new:
                    _LOG.info("the driver has %s now", ", ".join(card.uuid for card in new))
                    self._report.changed()

    def annotations(self, before: Mapping[str, str], cards: Collection[str]) -> dict[str, str]:
        """The annotations that the maker of instances keeps on the node's Device object.

        `before`: the present ones. `cards`: those of the object; one that the driver has not listed here counts as
        unknown.
        """
        covered, _problem = decode_axes(before.get(names.MIG_PROFILES, ""))
        outcomes = {
            card: outcome
            for card in self.cards
            if (outcome := self._service.outcome(card)) is not None
        }
        told = {card: outcome.axis for card, outcome in outcomes.items() if outcome.axis}
        unlisted = frozenset(cards) - self._listed_cards
        foreign = reported(
            self.cards, outcomes, before.get(names.FOREIGN_INSTANCES), covered, unlisted
        )
        return {
            names.FOREIGN_INSTANCES: encode_foreign(foreign),
            names.MIG_PROFILES: encode_axes(self._axes | told),
        }

    def instance(self, pod: str, card: str, place: MigSlice) -> Instance:
        """An instance of a pod, by the pod's UID; may run in any thread, and never asks the driver."""
        if card not in self.cards:
            return Instance(why="the driver has no such card that can be cut")
        if not self._listed:
            return Instance(why="the node's pods are not known yet")
        outcome = self._service.outcome(card)
        mine = self._service.ready(pod) or ()  # all of the pod's, on all cards, or none
        for one in outcome.ready if outcome is not None else ():
            if one not in mine or one.instance != place:
                continue
            try:
                nodes = self._specs.nodes(card, place.start, one.uuid)
            except InvalidDocument as error:
                return Instance(why=str(error))
            return Instance(one.uuid, nodes)
        told = [f"{one.obstacle}: {one.message}" for one in self._service.hindrances(pod)]
        if outcome is not None and outcome.fault:
            told.append(outcome.fault)
        return Instance(why="; ".join(dict.fromkeys(told)))

    def claims(self, prepared: Callable[[], Iterable[Allocation]]) -> None:
        """Also make the instances that ResourceClaims hold; call `want` after a change of claims."""
        self._claimed = prepared

    def keep(self, running: Callable[[], Iterable[Allocation]]) -> None:
        """Keep the instances of containers as long as the containers run.

        Their pods may be gone from the API server earlier: deleted by force, or missing in a restored backup.
        """
        self._running = running

    def want(self) -> None:
        """Want the instances that containers, pods and claims have now; nothing before all pods are listed."""
        known = self._pods.objects
        if known is not None:
            pods = known.values()
            bound = wanted_by(pods, self._name)
            self._stories.wanted(bound, pods)
            self._held = _instances_of(self._running())
            of_pods = ((card, one) for card, those in bound.items() for one in those)
            wanted: dict[str, list[Wanted]] = {}
            for card, one in (*self._held, *of_pods, *_instances_of(self._claimed())):
                wanted.setdefault(card, []).append(one)
            self._service.want(wanted)
            self._listed = True

    async def _follow_containers(self) -> None:
        """Want fewer instances after the end of a container whose pod is already gone."""
        while True:
            await self._clock.sleep(_LOOK)
            if _instances_of(self._running()) != self._held:
                self.want()

    def _changed(self, card: str) -> None:
        outcome = self._service.outcome(card)
        if outcome is None:
            return
        self._tallies.instances.labels(card, "ready").set(len(outcome.ready))
        self._tallies.instances.labels(card, "foreign").set(len(outcome.foreign))
        self._show(card, outcome)
        self._stories.seen(card, outcome)
        self._report.changed()
        told = "card %s: instance %s at %d is ready for pod %s: %s"
        for one in outcome.ready:
            place = one.instance
            _LOG.info(told, card, place.profile, place.start, one.owner, one.uuid)
        told = "card %s: an instance that is not Partage's has units %d to %d"
        for other in outcome.foreign:
            _LOG.warning(told, card, other.start, other.start + other.size - 1)
        told = "card %s: instance %s at %d of pod %s waits: %s: %s"
        for late in outcome.hindrances:
            place, why = late.instance, (late.obstacle, late.message)
            _LOG.warning(told, card, place.profile, place.start, late.owner, *why)
        faults = [f"card {card}: {outcome.fault}"] if outcome.fault else []
        for fault in faults:
            _LOG.warning("%s", fault)
        self._notes.say(f"instances of {card}", Code.INSTANCES, faults)

    def _show(self, card: str, outcome: runner.Outcome) -> None:
        """Keep one series for each existing instance, and none for former ones."""

        def row(place: MigSlice, *told: str) -> tuple[str, ...]:
            return card, place.profile, str(place.start), str(place.size), *told

        rows = [
            row(one.instance, one.uuid, _number(one.gpu), _number(one.compute), one.owner, "ready")
            for one in outcome.ready
        ]
        for other, named in zip(outcome.foreign, on_card(outcome).instances, strict=False):
            uuids, computes = ",".join(named.uuids), ",".join(str(c.id) for c in other.computes)
            rows.append(row(named.instance, uuids, str(other.id), computes, "", "foreign"))
        for labels in self._shown.get(card, ()):
            self._tallies.instance.remove(*labels)
        self._shown[card] = rows
        for labels in rows:
            self._tallies.instance.labels(*labels).set(1)


def _instances_of(allocations: Iterable[Allocation]) -> Held:
    """The instances of containers or claims, each once."""
    found = {
        (grant.uuid, Wanted(grant.mig, one.uid)): None
        for one in allocations
        for grant in one.grants
        if grant.mig is not None
    }
    return tuple(found)


def _axis_of(card: CardFacts, nvml: NvidiaDriver) -> MigAxis | None:
    """How a card can be cut; None: it is lost, and each look at it will say so. Raises `NvmlFailed`."""
    try:
        return nvml.axis(card.uuid)
    except NvmlFailed as error:
        if error.failure is not Failure.LOST:
            raise
        return None


def _number(number: int | None) -> str:
    return "" if number is None else str(number)

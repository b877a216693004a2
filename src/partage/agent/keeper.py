"""Keeps a node's containers to their records: decides, writes down, remembers, and compares.

What a container gets is on the disk before the runtime hears of it. After each connection the runtime's
own list is compared with the journal, and containers that run with a record that was not honoured are
reported.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from partage.agent.giving import Given
from partage.agent.host import Host
from partage.agent.injection import (
    Injected,
    Place,
    Refusal,
    Rule,
    environment,
    inject,
    recorded,
)
from partage.agent.isolation.images import judge_image
from partage.agent.isolation.processes import root_of
from partage.agent.isolation.providers import Bind
from partage.agent.isolation.rooms import INSIDE, PRELOAD, Room, Rooms
from partage.agent.journal import Entry, Journal
from partage.agent.nri.messages import Adjustment, Container, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.model.allocation import Allocation
from partage.model.errors import InvalidValue
from partage.vendors import names

__all__ = ["Isolation", "Keeper", "Tallies", "Unprotected", "binds_of"]

_LOG: Final = logging.getLogger("partage.agent")
_STOPPED: Final = 4
"""State of a container that has ended, in NRI's numbers."""
_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.5)


@dataclass(frozen=True, slots=True)
class Unprotected:
    """A container that was found running unserved.

    Attributes:
        namespace: of its pod.
        pod: name of its pod.
        uid: of its pod.
        container: its name.
        why: what makes it a worry.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    why: str

    def __str__(self) -> str:
        """`namespace/pod/container`."""
        return f"{self.namespace}/{self.pod}/{self.container}"


class Tallies:
    """What the agent counts, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.injected = Counter(
            "partage_agent_injected", "Containers that were given devices or kept from choosing them.",
            ["limits"], registry=self.registry,
        )  # fmt: skip
        self.refused = Counter(
            "partage_agent_refused", "Containers that were not made, by rule.",
            ["rule"], registry=self.registry,
        )  # fmt: skip
        self.holding = Gauge(
            "partage_agent_containers", "Containers on this node that hold devices.",
            registry=self.registry,
        )  # fmt: skip
        self.unprotected = Gauge(
            "partage_agent_unprotected_containers",
            "Containers that run with a record, or claim one, and were not served by this agent.",
            registry=self.registry,
        )  # fmt: skip
        self.evicted = Counter(
            "partage_agent_evicted", "Pods of unprotected containers that were evicted.",
            registry=self.registry,
        )  # fmt: skip
        self.units = Gauge(
            "partage_agent_kubelet_units", "Healthy units that the kubelet is told of.",
            ["resource"], registry=self.registry,
        )  # fmt: skip
        self.registered = Gauge(
            "partage_agent_kubelet_registered", "Whether the kubelet listens to what is told.",
            ["resource"], registry=self.registry,
        )  # fmt: skip
        self.unserved = Gauge(
            "partage_agent_kubelet_unserved",
            "Containers that hold units by the kubelet's word and that were given nothing.",
            registry=self.registry,
        )  # fmt: skip
        self.connected = Gauge(
            "partage_agent_connected", "Whether the runtime asks this agent about containers.",
            registry=self.registry,
        )  # fmt: skip
        self.instances = Gauge(
            "partage_agent_instances",
            "Hardware instances that are ready, and those that are not Partage's.",
            ["card", "state"], registry=self.registry,
        )  # fmt: skip
        self.instance = Gauge(
            "partage_agent_instance_info", "One for each hardware instance on the node's cards.",
            ["card", "profile", "start", "size", "mig_uuid", "gpu_instance", "compute_instance",
             "pod", "state"], registry=self.registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "partage_agent_decision_seconds", "Time to decide about a container and write it down.",
            buckets=_BUCKETS, registry=self.registry,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Isolation:
    """The node's own enforcement library.

    Attributes:
        rooms: of its containers.
        required: what cannot be held to its limits is not started.
        proc: procfs of the host.
    """

    rooms: Rooms
    required: bool = False
    proc: Path = Path("/proc")


def binds_of(room: Room) -> tuple[Bind, ...]:
    """The mounts of a room, outer ones first: read-only but for what tenants share."""
    shared = ("account", *(card.page for card in room.limits.cards))
    return (
        Bind(room.source, INSIDE),
        *(Bind(f"{room.source}/{name}", f"{INSIDE}/{name}", writable=True) for name in shared),
        Bind(f"{room.source}/preload", PRELOAD),
    )


class Keeper:
    """One node's keeper; see `partage.agent.nri.plugin.Decider` for who calls it.

    Attributes:
        unprotected: what was found running unserved, by the runtime's identity of the container.
        tallies: what is counted.
    """

    def __init__(
        self,
        place: Callable[[], Place],
        host: Host,
        journal: Journal,
        tallies: Tallies,
        isolation: Isolation | None = None,
    ) -> None:
        """A keeper that knows what its journal knows.

        Args:
            place: the node as it is now.
            host: its files.
            journal: opened.
            tallies: what is counted.
            isolation: rooms for the node's own enforcement library; None where another keeps shares.
        """
        self._place = place
        self._host = host
        self._journal = journal
        self.tallies = tallies
        self._isolation = isolation
        self._held: dict[str, Allocation] = {}
        self.unprotected: dict[str, Unprotected] = {}
        for entry in journal.entries.values():
            self._remember(entry)
        tallies.holding.set(len(self._held))

    def create(self, pod: PodSandbox, container: Container) -> Adjustment | None:
        """What a container gets, written down.

        Raises:
            Refused: it must not be made.
        """
        with self.tallies.seconds.time():
            found = inject(pod, container, self._place(), self._held.values())
            if found is None:
                return None
            if isinstance(found, Refusal):
                raise self._refused(found)
            try:
                given, adjustment = self._given(pod, container, found)
            except (InvalidValue, OSError) as error:
                self._forget(container.id)
                where = f"pod {pod.namespace}/{pod.name}, container {container.name}"
                raise self._refused(
                    Refusal(Rule.HOST, f"{where}: {error} ({Rule.HOST})")
                ) from error
        self.tallies.injected.labels(given.limits).inc()
        _LOG.info(
            "pod %s/%s, container %s: given %d variables, %d device files, %d mounts; limits: %s",
            pod.namespace, pod.name, container.name, len(given.env),
            len(given.files) + len(given.spare) + len(given.made), len(given.binds), given.limits,
        )  # fmt: skip
        return adjustment

    def _given(
        self, pod: PodSandbox, container: Container, found: Injected
    ) -> tuple[Given, Adjustment | None]:
        """Make and write down what a container gets.

        In this order, so that a crash leaves too much and never too little; the next comparison with the
        runtime clears it away.
        """
        given, allocation = found.given, found.allocation
        if allocation is None:
            return given, self._host.adjustment(given, found.removed, container)
        if given.quota is not None:
            if self._isolation is None:
                raise InvalidValue("this agent has no enforcement library")
            room = self._isolation.rooms.open(container.id, given.quota)
            given = replace(given, binds=(*given.binds, *binds_of(room)))
        adjustment = self._host.adjustment(
            given, found.removed, container, {names.SERVED: given.limits}
        )
        entry = Entry(
            container.id, pod.uid, f"{pod.namespace}/{pod.name}", container.name,
            pod.annotations[names.ALLOCATION], given.limits,
        )  # fmt: skip
        self._journal.give(entry)
        self._held[container.id] = allocation
        self.tallies.holding.set(len(self._held))
        return given, adjustment

    def start(self, pod: PodSandbox, container: Container) -> None:
        """Keep the library out of an image that cannot load it.

        Raises:
            Refused: there what cannot be held to its limits must not run.
        """
        isolation = self._isolation
        if isolation is None or container.id not in isolation.rooms.rooms:
            return
        where = f"pod {pod.namespace}/{pod.name}, container {container.name}"
        root = root_of(container.id, isolation.proc)
        if root is None:
            _LOG.warning("%s: its root cannot be looked at; the library stays", where)
            return
        verdict = judge_image(root, container.args, environment(container))
        if verdict.why:
            _LOG.warning("%s: %s", where, verdict.why)
        if verdict.loads:
            return
        if isolation.required:
            rule = Rule.NOT_ENFORCEABLE
            raise self._refused(Refusal(rule, f"{where}: {verdict.why} ({rule})"))
        isolation.rooms.spare(container.id, verdict.why)

    def rename(self, before: str, after: str) -> None:
        """A container has another identity now; nothing happens when the first is not known.

        Its room keeps the name under which it is mounted.
        """
        entry = self._journal.entries.get(before)
        if entry is None:
            return
        self._journal.give(
            msgspec.structs.replace(entry, container=after, room=entry.room or before)
        )
        self._journal.end(before)
        held = self._held.pop(before, None)
        if held is not None:
            self._held[after] = held

    def late(self, pod: PodSandbox, container: Container) -> None:
        """Count a decision that came too late."""
        self.tallies.refused.labels(Rule.LATE).inc()
        _LOG.warning(
            "pod %s/%s, container %s: refused, decided too late",
            pod.namespace, pod.name, container.name,
        )  # fmt: skip

    def remove(self, container: Container) -> None:
        """A container has ended: what it held may be held by others."""
        self.unprotected.pop(container.id, None)
        self._forget(container.id)
        self._count()

    def _forget(self, container: str) -> None:
        self._held.pop(container, None)
        room = self._room_of(container)
        self._journal.end(container)
        if self._isolation is not None:
            self._isolation.rooms.close(room)

    def _room_of(self, container: str) -> str:
        entry = self._journal.entries.get(container)
        return container if entry is None else entry.room or container

    @property
    def rooms(self) -> dict[str, Room]:
        """Rooms by the container that has them; a look from any thread."""
        if self._isolation is None:
            return {}
        rooms = dict(self._isolation.rooms.rooms)
        names_of = {one: self._room_of(one) for one in list(self._journal.entries)}
        return {one: rooms[name] for one, name in names_of.items() if name in rooms}

    def synchronize(self, pods: tuple[PodSandbox, ...], containers: tuple[Container, ...]) -> None:
        """Compare with all that the runtime has."""
        sandboxes = {pod.id: pod for pod in pods}
        running = {one.id: one for one in containers if one.state != _STOPPED}
        # Also those that the journal never knew, because they were started while the agent was away.
        for gone in [one for one in self._held if one not in running]:
            del self._held[gone]
        for entry in self._journal.keep(running):
            _LOG.info("pod %s, container %s: ended while nobody looked", entry.pod, entry.name)
        if self._isolation is not None:
            self._isolation.rooms.keep({self._room_of(one) for one in running})
        found: dict[str, Unprotected] = {}
        for container in running.values():
            pod = sandboxes.get(container.pod_sandbox_id)
            if pod is None:
                continue
            if container.id in self._journal.entries:
                # Written down is not yet given: the agent may have ended before its answer.
                served = names.SERVED in container.annotations
                why = "" if served else "it was started without what was decided for it"
            else:
                why = self._unserved(pod, container)
            if why:
                found[container.id] = Unprotected(
                    pod.namespace, pod.name, pod.uid, container.name, why
                )
                _LOG.warning(
                    "pod %s/%s, container %s runs unprotected: %s",
                    pod.namespace, pod.name, container.name, why,
                )  # fmt: skip
        self.unprotected = found  # at once: others read it
        self._count()

    def _unserved(self, pod: PodSandbox, container: Container) -> str:
        """Why a running container that the journal does not know is a worry; it counts as holding."""
        place = self._place()
        allocation = recorded(pod, place.node.name)
        if isinstance(allocation, Allocation):
            self._held[container.id] = allocation
            return "it was started while the agent was away"
        found = inject(pod, container, place, ())
        if isinstance(found, Refusal):
            return found.message
        return "" if found is None else "it chose its cards itself"

    def _refused(self, refusal: Refusal) -> Refused:
        self.tallies.refused.labels(refusal.rule).inc()
        _LOG.warning("%s", refusal.message)
        return Refused(refusal.message)

    def _remember(self, entry: Entry) -> None:
        namespace, _, name = entry.pod.partition("/")
        known = PodSandbox(
            uid=entry.uid, namespace=namespace, name=name,
            annotations={names.ALLOCATION: entry.record},
        )  # fmt: skip
        allocation = recorded(known, self._place().node.name)
        if isinstance(allocation, Allocation):
            self._held[entry.container] = allocation

    def _count(self) -> None:
        self.tallies.holding.set(len(self._held))
        self.tallies.unprotected.set(len(self.unprotected))

    @property
    def served(self) -> set[tuple[str, str]]:
        """`namespace/pod` and container of all that was given anything; a look from any thread."""
        return {(one.pod, one.name) for one in list(self._journal.entries.values())}

    @property
    def journal(self) -> Journal:
        """What was written down."""
        return self._journal

    @property
    def isolation(self) -> Isolation | None:
        """The node's own enforcement library."""
        return self._isolation

    @property
    def held(self) -> Mapping[str, Allocation]:
        """Allocations by container."""
        return self._held

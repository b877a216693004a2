"""Which containers hold devices on the node, and which containers the runtime has.

The next attempt of a crashed container may start before the runtime reports the end of the first one. The kubelet
starts it only after it has seen the first one end. Until the runtime reports the end, the older attempt keeps its
grants, and only the newest is shown (`latest`): one series a pod, container and card.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from partage.agent.injection import Records
from partage.agent.journal import Entry
from partage.agent.nri.messages import PodSandbox
from partage.model.allocation import Allocation
from partage.vendors import names

_LOG: Final = logging.getLogger("partage.agent")


@dataclass(frozen=True, slots=True)
class Holding:
    """A container that holds devices.

    Attributes:
        container: the runtime's identity of it.
        allocation: under the UID of its pod, or of the ResourceClaim that its devices are from.
        claimant: the UID of its pod, if the allocation is a claim's; empty if an earlier agent gave it.
    """

    container: str
    name: str
    allocation: Allocation
    claimant: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """A container that the runtime has and that has not ended.

    Attributes:
        container: the runtime's identity of it.
        uid: of its pod; empty if the runtime does not report the pod.
        record: the pod's record in the runtime; None without one.
        served: what enforces its limits, by the runtime's books; None if no adjustment of ours arrived.
    """

    container: str
    uid: str
    namespace: str
    pod: str
    name: str
    record: str | None = None
    served: str | None = None


@dataclass(frozen=True, slots=True)
class Unprotected:
    """A container that was found running unserved."""

    namespace: str
    pod: str
    uid: str
    container: str
    why: str

    def __str__(self) -> str:
        """`namespace/pod/container`."""
        return f"{self.namespace}/{self.pod}/{self.container}"


class Holdings:
    """The grants that a node's containers hold; changed by one thread, read by any.

    Attributes:
        held: the grants by container, including crashed containers whose end is not known.
        running: the runtime's containers by its identity; None until it has reported them.
        unknown: containers with an entry that cannot be read: no card is known to be free.
    """

    def __init__(self) -> None:
        self.held: dict[str, Holding] = {}
        self._shared: dict[str, Allocation] = {}
        """By UID: a pod may have 64 containers with devices, and each decision goes through all that is held."""
        self.running: dict[str, Running] | None = None
        self.unknown: dict[str, Entry] = {}

    def hold(self, one: Holding) -> None:
        """A container holds its pod's record."""
        uid = one.allocation.uid
        if self._shared.get(uid) != one.allocation:
            self._shared[uid] = one.allocation
        self.held[one.container] = replace(one, allocation=self._shared[uid])

    def remember(self, entry: Entry, records: Records) -> None:
        """A container holds its journal entry; nothing happens if it does already."""
        if entry.container in self.held or entry.container in self.unknown:
            return
        namespace, _, name = entry.pod.partition("/")
        record = {names.ALLOCATION: entry.record}
        pod = PodSandbox(uid=entry.uid, namespace=namespace, name=name, annotations=record)
        allocation = records.of(pod)
        if isinstance(allocation, Allocation):
            self.hold(Holding(entry.container, entry.name, allocation, entry.claimant))
            return
        self.unknown[entry.container] = entry
        _LOG.warning(
            "%s: its allocation cannot be read back, so other containers get no card while it runs",
            entry,
        )

    def runs(self, one: Running) -> None:
        """The runtime creates a container now."""
        if self.running is not None:
            self.running[one.container] = one

    def forget(self, container: str) -> None:
        """A container has ended."""
        gone = self.held.pop(container, None)
        if gone is not None and all(
            one.allocation.uid != gone.allocation.uid for one in self.held.values()
        ):
            self._shared.pop(gone.allocation.uid, None)
        self.unknown.pop(container, None)
        if self.running is not None:
            self.running.pop(container, None)

    def rename(self, before: str, after: str) -> None:
        """Change a container's identity; a concurrent reader sees one of the two, or both."""
        if (held := self.held.get(before)) is not None:
            self.held[after] = replace(held, container=after)
        if (lost := self.unknown.get(before)) is not None:
            self.unknown[after] = lost
        if self.running is not None and (seen := self.running.get(before)) is not None:
            self.running[after] = replace(seen, container=after)
        self.forget(before)

    def only(self, those: Iterable[Running]) -> None:
        """The runtime has these and no others."""
        there = {one.container: one for one in those}
        for gone in [one for one in self.held if one not in there]:
            del self.held[gone]
        self._shared = {one.allocation.uid: one.allocation for one in self.held.values()}
        self.unknown = {key: one for key, one in self.unknown.items() if key in there}
        self.running = there

    def closed_to(self, uid: str, namespace: str) -> str:
        """A container of another pod than this UID's that holds unknown devices; usually empty.

        `uid`: of the pod, or of its claim. `namespace`: of the pod, whose owner reads the text: pods of other
        namespaces stay unnamed.
        """
        other = next((one for one in self.unknown.values() if one.uid != uid), None)
        if other is None:
            return ""
        if other.pod.partition("/")[0] != namespace:
            return "a pod of another namespace"
        return str(other)

    @property
    def all(self) -> list[Holding]:
        """All grants held, oldest first."""
        return list(self.held.values())

    def of(self, uid: str) -> list[Holding]:
        """The grants of one pod or claim, oldest first."""
        return [one for one in self.all if one.allocation.uid == uid]

    @property
    def allocations(self) -> list[Allocation]:
        """The same, without containers."""
        return [one.allocation for one in self.all]

    @property
    def latest(self) -> list[Holding]:
        """The grants held, one container name of a pod once, by its last attempt."""
        return list({(one.allocation.uid, one.name): one for one in self.all}.values())

"""Admits a node's containers by their records: decides, writes the journal, and compares it with the runtime.

The agent writes a container's grants to disk before it answers the runtime. After each connection it compares
the runtime's own list with the journal, and reports containers that run although their record was not honoured.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from partage.agent.adjustment import as_asked
from partage.agent.container_edits import Given
from partage.agent.dra.admission import ClaimAdmission
from partage.agent.held_allocations import Holding, Holdings, Running, Unprotected
from partage.agent.host import Host
from partage.agent.injection import (
    Injected,
    Place,
    Records,
    Refusal,
    Rule,
    conflict,
    environment,
    inject,
    refusal,
)
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.folders import Folders
from partage.agent.isolation.images import Verdict, judge_image
from partage.agent.isolation.lookers import Lookers, Occupied
from partage.agent.isolation.processes import root_of
from partage.agent.isolation.providers import Isolation, binds_of
from partage.agent.isolation.reading import TooMuch
from partage.agent.journal import Entry, Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Adjustment, Container, PodSandbox, named
from partage.agent.nri.plugin import Refused
from partage.agent.stories import SILENT, Stories
from partage.model.adjustment import Grants, adjustable, alike
from partage.model.allocation import Allocation
from partage.model.errors import InvalidValue
from partage.vendors import names
from partage.wire.record import encode

_LOG: Final = logging.getLogger("partage.agent")
_PATIENCE: Final = 0.5
"""Seconds for a look at an image, which usually takes milliseconds; other containers wait meanwhile."""
_CREDIT: Final = 4.0
"""Seconds for the containers of one namespace together."""
_STOPPED: Final = 4
"""State of an ended container, in NRI's numbers."""


def _soon(look: Future[Any]) -> bool:
    return bool(wait((look,), _PATIENCE).done)


class Keeper:
    """Admits the containers of one node; see `partage.agent.nri.plugin.Decider` for its callers.

    Attributes:
        unprotected: containers found running unserved, by the runtime's identity.
        suspected: containers with devices and without a record, by the kubelet; `partage.daemon.reconciling` sets it.
        orphaned: UIDs of pods that the watch of pods lacks and whose containers run; the same sets it.
        isolation: the node's own enforcement library; None if another provider enforces shares.
        claims: the devices of ResourceClaims here; None if this agent prepares none.
    """

    def __init__(
        self,
        place: Callable[[], Place],
        host: Host,
        journal: Journal,
        tallies: Tallies,
        isolation: Isolation | None = None,
        folders: Folders | None = None,
        stories: Stories = SILENT,
    ) -> None:
        """Start with the journal's content; HAMi's library keeps the state of shares in `folders`."""
        self._place = place
        self._host = host
        self.journal = journal
        self.tallies = tallies
        self.isolation = isolation
        self.stories = stories
        self.claims: ClaimAdmission | None = None
        self._alone = threading.Lock()
        self._folders = folders
        self._lookers: Lookers[Verdict | None] = Lookers(_soon, _CREDIT)
        self.books = Holdings()
        self._rooms_before: dict[str, str] = {}  # by containers that the journal does not know
        self.unprotected: dict[str, Unprotected] = {}
        self.suspected: tuple[Unprotected, ...] = ()
        self.orphaned: frozenset[str] = frozenset()
        records = Records(place().node.name)
        for entry in journal.entries.values():
            self.books.remember(entry, records)
        self._count()

    def create(self, pod: PodSandbox, container: Container) -> Adjustment | None:
        """Decide a container's edits and write them to the journal. Raises `Refused`."""
        start = self.stories.now()
        real = pod
        with self.tallies.seconds.time(), self._deciding:
            stood = None if self.claims is None else self.claims.stand_in(pod, container)
            if isinstance(stood, Refusal):
                raise self._refused_at(start, pod, container, stood)
            place = self._place()
            records = Records(place.node.name)
            pod = self._as_adjusted(stood or pod, records)
            held = self._held(pod.uid, claimed=stood is not None)
            unknown = self.books.closed_to(pod.uid, pod.namespace)
            if not unknown and self.claims is not None:
                unknown = self.claims.claims.closed()
            found = inject(pod, container, place, held, unknown, records)
            if found is None:
                self._runs(real, container)
                return None
            if isinstance(found, Refusal):
                raise self._refused_at(start, pod, container, found)
            try:
                claimant = "" if stood is None else real.uid
                given, adjustment = self._given(pod, container, found, claimant)
            except (InvalidValue, OSError, UnicodeError) as error:
                self._tried("what was begun", partial(self._forget, container.id))
                why = refusal(pod, container, Rule.HOST, str(error))
                raise self._refused_at(start, pod, container, why) from error
        if found.allocation is None and not found.chose:
            self._runs(real, container)
            return adjustment  # closed to cards that it did not ask for, as every container is
        if found.allocation is not None:
            self.stories.injected(pod, container, start, given.limits)
        self._runs(real, container, given.limits)
        self.tallies.injected.labels(given.limits).inc()
        _LOG.info(
            "%s: given %d variables, %d device files, %d mounts; limits: %s",
            named(pod, container),
            len(given.env),
            len(given.files) + len(given.spare) + len(given.made),
            len(given.binds),
            given.limits,
            extra={"trace": self.stories.trace_id(pod)},
        )
        return adjustment

    def _runs(self, pod: PodSandbox, container: Container, served: str | None = None) -> None:
        one = _running(pod, container, served)
        text = one.record and self.journal.pooled(one.uid, one.record)
        self.books.runs(replace(one, record=text))

    def _as_adjusted(self, pod: PodSandbox, records: Records) -> PodSandbox:
        """The pod with the current amounts of its shares; a runtime keeps those that its sandbox was created with.

        A pod that a restored backup has unbound may return with other devices.
        """
        record = self.journal.adjusted.get(pod.uid)
        if record is None or names.ALLOCATION not in pod.annotations:
            return pod
        adjusted = replace(pod, annotations={**pod.annotations, names.ALLOCATION: record})
        before, now = records.of(pod), records.of(adjusted)
        if isinstance(before, Allocation) and isinstance(now, Allocation):
            return adjusted if alike(before.grants, now.grants) else pod
        return adjusted

    # --- amounts that change -----------------------------------------------------------------

    def amounts(self, uid: str) -> Grants | None:
        """The grants of a pod's containers with their current amounts; None if it has none here."""
        held = self.books.of(uid)
        return held[0].allocation.grants if held else None

    def beside(self, uid: str, grants: Grants) -> str:
        """Why the other grants here leave too little for these amounts of a pod; empty if they leave enough.

        The writer of a larger record has reserved it, but the record may be from a restored backup.
        """
        held = self.books.of(uid)
        if not held:
            return ""
        others = [one for one in self._held(uid, claimed=True) if one.uid != uid]
        mine = msgspec.structs.replace(held[0].allocation, grants=grants)
        found = conflict(mine, self._place(), others)
        return "" if found is None else found.message

    def rooms_of(self, uid: str) -> dict[str, Room]:
        """Rooms of a pod's containers, by the runtime's identity."""
        whose = {key for key, one in self.journal.entries.items() if one.uid == uid}
        return {key: room for key, room in self.rooms.items() if key in whose}

    def fixed(self, uid: str) -> str:
        """Why the limits of a pod's containers cannot change while they run; empty if they can."""
        rooms = self.rooms_of(uid)
        changing = {one.container for one in self.amounts(uid) or () if adjustable(one)}
        for held in self.books.of(uid):
            if held.container not in self.journal.entries:
                return f"container {held.name} was started while the agent was away"
        for key, one in self.journal.entries.items():
            if one.uid != uid or one.name not in changing:
                continue
            if key not in rooms:
                return f"container {one.name} has limits enforced by {one.limits or 'none'}, which reads them once"
            if rooms[key].spared or not rooms[key].amounts:
                return f"container {one.name} runs without a library that follows them; they change with its next start"
        return ""

    def enforce(self, uid: str, grants: Grants) -> None:
        """Put amounts in force in a pod's running containers. Raises `InvalidValue`: one out of range; `OSError`."""
        if self.isolation is None:
            return
        with self._deciding:
            for key, room in self.rooms_of(uid).items():
                cards = as_asked(room.cards, self.journal.entries[key].name, grants)
                self.isolation.rooms.adjust(self._room_of(key), cards)

    def write_down(self, uid: str, grants: Grants) -> None:
        """Record the amounts of a pod for its present and future containers.

        Raises `OSError`: the disk refuses it, or may lose it again: the journal's amounts are valid.
        """
        with self._deciding:
            held = self.books.of(uid)
            if not held:
                return
            allocation = msgspec.structs.replace(held[0].allocation, grants=grants)
            record = encode(allocation)
            try:
                self.journal.adjust(uid, record)
            finally:
                if self.journal.adjusted.get(uid) == record:
                    for one in held:
                        self.books.hold(replace(one, allocation=allocation))

    @property
    def _deciding(self) -> threading.Lock:
        """Held for each change: other threads prepare claims, and change the amounts of pods."""
        return self._alone if self.claims is None else self.claims.lock

    def _held(self, uid: str, *, claimed: bool) -> list[Allocation]:
        """The allocations held on the node; for a container of a claim, without the claim itself."""
        if self.claims is None:
            return self.books.allocations
        return self.claims.held(uid if claimed else "")

    def _given(
        self, pod: PodSandbox, container: Container, found: Injected, claimant: str
    ) -> tuple[Given, Adjustment | None]:
        """Prepare a container's edits and write them to the journal.

        In this order a crash leaves too much and never too little; the next comparison with the runtime removes that.
        """
        given, allocation = found.given, found.allocation
        if allocation is None:
            return given, self._host.adjustment(given, found.removed, container)
        if given.quota is not None:
            if self.isolation is None:
                raise InvalidValue("this agent has no enforcement library")
            room = self.isolation.rooms.open(container.id, given.quota)
            given = replace(given, binds=(*given.binds, *binds_of(room)))
        cut = "; ".join(given.cut)
        self.journal.give(_entry(pod, container, given.limits, cut=cut, claimant=claimant))
        self.books.hold(Holding(container.id, container.name, allocation, claimant))
        self._count()
        served = {names.SERVED: given.limits}
        return given, self._host.adjustment(given, found.removed, container, served)

    def start(
        self, pod: PodSandbox, container: Container, layers: Sequence[Path] = (), why: str = ""
    ) -> None:
        """Keep the library out of an image that cannot load it. Raises `Refused`: its limits cannot be enforced.

        `layers`: of its root, topmost first, if it has no process yet. `why`: why there are no layers.
        """
        isolation, name = self.isolation, self._room_of(container.id)
        if isolation is None or name not in isolation.rooms.rooms:
            return
        entry = self.journal.entries.get(container.id)
        who = entry.pod if entry else f"{pod.namespace}/{pod.name}"
        where = f"pod {who}, container {entry.name if entry else container.name}"
        why, verdict = why or "it has no process", None

        def judge() -> Verdict | None:
            found = None if layers else root_of(container.id, isolation.proc, container.pid)
            root = layers or ((found,) if found else ())
            return judge_image(root, container.args, environment(container)) if root else None

        try:
            # Its volumes are mounted already, and one may be of a server that does not answer.
            verdict = self._lookers.look(container.id, judge, who.partition("/")[0])
        except TooMuch as error:
            why = f"it has {error}"
        except Occupied as error:
            why = str(error)
        except OSError as error:
            why = f"the agent lacks a resource: {error.strerror or error}"
        if verdict is None:
            told = f"its image cannot be looked at before it starts: {why}"
            if isolation.required:
                raise self._refused(Refusal(Rule.NOT_ENFORCEABLE, f"{where}: {told}"))
            _LOG.warning("%s: %s; the library stays", where, told)
            return
        if verdict.why:
            _LOG.warning("%s: %s", where, verdict.why)
        if verdict.loads:
            return
        if isolation.required:
            told = f"{where}: {verdict.why} ({Rule.NOT_ENFORCEABLE})"
            raise self._refused(Refusal(Rule.NOT_ENFORCEABLE, told))
        with self._deciding:
            isolation.rooms.spare(name, verdict.why)

    def has_room(self, container: str) -> bool:
        """Whether a container is to load the node's own library; callable from any thread."""
        isolation = self.isolation
        return isolation is not None and self._room_of(container) in isolation.rooms.rooms

    def rename(self, before: str, after: str) -> None:
        """Change a container's identity, if it is known; its room keeps the name under which it is mounted.

        Raises `OSError`: the disk refuses it; the container is still known by the first identity, or by both.
        """
        with self._deciding:
            entry = self.journal.entries.get(before)
            if entry is None:
                if self.isolation is not None and before in self.isolation.rooms.rooms:
                    self._rooms_before[after] = before
                return
            room = entry.room or before
            self.journal.give(msgspec.structs.replace(entry, container=after, room=room))
            self.books.rename(before, after)
            self.journal.end(before)

    def late(self, pod: PodSandbox, container: Container) -> None:
        """Count a decision that was too late."""
        self.tallies.refused.labels(Rule.LATE).inc()
        self.stories.refused(pod, container, self.stories.now(), Rule.LATE, "decided too late")
        _LOG.warning("%s: refused, decided too late", named(pod, container))

    def large(self, why: str) -> Refused:
        """Count a container whose description is too long."""
        return self._refused(Refusal(Rule.TOO_LONG, f"{why} ({Rule.TOO_LONG})"))

    def remove(self, container: Container) -> None:
        """Release an ended container's grants, also if it raises `OSError`: the disk refuses it."""
        self.unprotected.pop(container.id, None)
        with self._deciding:
            try:
                self._forget(container.id)
            finally:
                self._count()

    def _forget(self, container: str) -> None:
        self.books.forget(container)
        self._leave({container})
        room = self._room_of(container)
        try:
            self.journal.end(container)
        finally:
            if self.isolation is not None:
                self.isolation.rooms.close(room)

    def _leave(self, gone: Collection[str]) -> None:
        """Abandon folders of ended containers, unless their next attempt uses them.

        This precedes the removal from the journal, which alone knows the owner of a young folder.
        """
        if self._folders is None:
            return
        known = self.journal.entries
        kept = {(one.uid, one.name) for key, one in known.items() if key not in gone}
        left = {(known[key].uid, known[key].name) for key in gone if key in known}
        for uid, name in left - kept:
            self._folders.retire(uid, name)

    def _room_of(self, container: str) -> str:
        entry = self.journal.entries.get(container)
        return container if entry is None else entry.room or container

    @property
    def rooms(self) -> dict[str, Room]:
        """Rooms by container; callable from any thread."""
        if self.isolation is None:
            return {}
        rooms = dict(self.isolation.rooms.rooms)
        names_of = {one: self._room_of(one) for one in list(self.journal.entries)}
        return {one: rooms[name] for one, name in names_of.items() if name in rooms}

    def synchronize(self, pods: tuple[PodSandbox, ...], containers: tuple[Container, ...]) -> None:
        """Compare with the runtime's list of containers.

        Logs failed writes and retries them: if the agent ended here, containers would start unchecked.
        """
        sandboxes = {pod.id: pod for pod in pods}
        there = {one.id: one for one in containers if one.state != _STOPPED}
        # It covers containers unknown to the journal, which were started while the agent was away.
        whose = {key: sandboxes.get(one.pod_sandbox_id) for key, one in there.items()}
        with self._deciding:
            self.books.only(
                _running(whose[key], one, _served(whose[key], one)) for key, one in there.items()
            )
            ended = {key: one for key, one in self.journal.entries.items() if key not in there}
            for entry in ended.values():
                _LOG.info("%s: ended between two looks", entry)
            self._leave(ended.keys())
            self._tried("the journal", lambda: self.journal.keep(there))
            place = self._place()
            records = Records(place.node.name)
            self._restore(whose, there, records)
            if (isolation := self.isolation) is not None:
                kept = {self._room_of(one) for one in there} | {*self._rooms_before.values()}
                self._tried("rooms", lambda: isolation.rooms.keep(kept))
            self._rooms_before.clear()
            if (folders := self._folders) is not None:
                mine = {(one.uid, one.name) for one in self.journal.entries.values()}
                uids = {pod.uid for pod in pods}
                self._tried("folders", lambda: folders.forsake(uids, mine))
            self.unprotected = {  # in one assignment: other threads read it
                one.id: found
                for one in there.values()
                if (found := self._worry(whose[one.id], one, place, records)) is not None
            }
            self._count()

    @staticmethod
    def _tried(what: str, do: Callable[[], object]) -> None:
        try:
            do()
        except (OSError, UnicodeError) as error:  # names may contain any bytes
            _LOG.warning("%s cannot be brought up to date: %s", what, error)

    def _restore(
        self,
        whose: Mapping[str, PodSandbox | None],
        there: Mapping[str, Container],
        records: Records,
    ) -> None:
        """Hold containers' grants by their entries, and restore entries that the journal has lost.

        The runtime's own books prove that a container got its decision; its pod's record contains the grants. All are
        written at once: the journal may have lost those of thousands of containers.
        """
        lost = [
            found
            for key, one in there.items()
            if key not in self.journal.entries
            and (found := self._lost(whose[key], one, records)) is not None
        ]
        try:
            self.journal.give(*lost)
        except (OSError, UnicodeError) as error:
            _LOG.warning("the journal cannot be brought up to date: %s", error)
            # One container's name may contain any bytes; a disk refuses all.
            for entry in lost if isinstance(error, UnicodeError) else ():
                self._tried("the journal", partial(self.journal.give, entry))
        self.tallies.repaired.inc(len(lost))
        for entry in lost:
            _LOG.warning(
                "%s: was not in the journal, though the runtime has it as served; the agent recorded it again",
                entry,
            )
        known = {one.container: one for one in lost} | self.journal.entries
        for key in there:
            if key in known:
                self.books.remember(known[key], records)

    def _lost(
        self, pod: PodSandbox | None, container: Container, records: Records
    ) -> Entry | None:
        """The entry of a served container that the journal does not have."""
        served = _served(pod, container)
        if pod is None or served is None:
            return None
        pod = self._as_adjusted(pod, records)
        if not isinstance(records.of(pod), Allocation):
            return None
        room = self._rooms_before.get(container.id, "")
        return _entry(pod, container, served, room=room)

    def _worry(
        self, pod: PodSandbox | None, container: Container, place: Place, records: Records
    ) -> Unprotected | None:
        """Why a running container is a problem; one that the journal does not know counts as holding."""
        served = _served(pod, container) is not None
        entry = self.journal.entries.get(container.id)
        if entry is not None:
            # A journal entry is not yet a grant: the agent may have ended before its answer.
            why = "" if served else "it was started without its grant"
            namespace, _, name = entry.pod.partition("/")
            uid = entry.pod_uid
        elif pod is not None:
            known = served and container.id in self.books.held
            why = "" if known else self._unserved(pod, container, place, records)
            namespace, name, uid = pod.namespace, pod.name, pod.uid
        else:
            return None
        if not why:
            return None
        found = Unprotected(namespace, name, uid, container.name, why)
        if container.id not in self.unprotected:
            where = f"pod {namespace}/{name}, container {found.container}"
            _LOG.warning("%s runs unprotected: %s", where, why)
        return found

    def _unserved(
        self, pod: PodSandbox, container: Container, place: Place, records: Records
    ) -> str:
        """Why a running container unknown to the journal is a problem; it counts as holding."""
        pod = self._as_adjusted(pod, records)
        allocation = records.of(pod)
        if isinstance(allocation, Allocation):
            self.books.hold(Holding(container.id, container.name, allocation))
            return "it was started while the agent was away"
        found = inject(pod, container, place, (), records=records)
        if isinstance(found, Refusal):
            return found.message
        chose = found.chose if found is not None else ()
        return f"it chose its cards itself, by variable {chose[0]}" if chose else ""

    def _refused_at(
        self, start: int, pod: PodSandbox, container: Container, why: Refusal
    ) -> Refused:
        self.stories.refused(pod, container, start, why.rule, why.message)
        return self._refused(why)

    def _refused(self, why: Refusal) -> Refused:
        self.tallies.refused.labels(why.rule).inc()
        _LOG.warning("%s", why.message)
        return Refused(why.message)

    def _count(self) -> None:
        self.tallies.holding.set(len(self.books.latest))
        self.tallies.unprotected.set(len(self.unprotected))

    @property
    def served(self) -> set[tuple[str, str]]:
        """`namespace/pod` and container of all grants; callable from any thread."""
        return {(one.pod, one.name) for one in list(self.journal.entries.values())}

    @property
    def entries(self) -> dict[str, Entry]:
        """The entries by the runtime's identity, one container name of a pod once; callable from any thread."""
        known = {(one.uid, one.name): one for one in list(self.journal.entries.values())}
        return {one.container: one for one in known.values()}


def _served(pod: PodSandbox | None, container: Container) -> str | None:
    """The provider of a container's limits, by the runtime's books; None if no adjustment of ours arrived.

    None also if the pod has the annotation itself, because some runtimes copy a pod's annotations to its containers.
    """
    if pod is not None and names.SERVED in pod.annotations:
        return None
    return container.annotations.get(names.SERVED)


def _entry(pod: PodSandbox, container: Container, limits: str, **more: str) -> Entry:
    """The entry of a container with its pod's record."""
    who, record = f"{pod.namespace}/{pod.name}", pod.annotations[names.ALLOCATION]
    return Entry(container.id, pod.uid, who, container.name, record, limits, **more)


def _running(pod: PodSandbox | None, container: Container, served: str | None) -> Running:
    if pod is None:
        return Running(container.id, "", "", "", container.name, None, served)
    record = pod.annotations.get(names.ALLOCATION)
    return Running(container.id, pod.uid, pod.namespace, pod.name, container.name, record, served)

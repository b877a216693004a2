"""Plans the next steps on one card by comparing the wanted instances, the journal and the card itself.

Pure. Every step is safe to repeat, and each is planned from the state of the card, never from the answer of a
call. So the plan also covers a driver that reports success and created nothing, or failed and created it.

These instances are ours and may be removed:
* a GPU instance of this run of the driver, with number and place as in the journal. If it has a
  compute instance and the journal has a UUID, both UUIDs are equal;
* at stage `intent`: an instance at exactly the place, without a compute instance. The place was free
  when the intent was written, and an intent is withdrawn when the driver refuses it. So no other tool
  can have made it, unless another program was halfway through the same place during a crash of ours.
All other instances are foreign: they count as occupied and are left alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from partage.agent.mig.cdi import Spec
from partage.agent.mig.journal import CardJournal, Entry, Stage
from partage.agent.mig.nvml import ComputeInstance, GpuInstance, Mode
from partage.model.allocation import GrantMode
from partage.model.mig import MigAxis, MigProfile, MigSlice
from partage.vendors.mig import find_profile
from partage.wire import record, shapes


@dataclass(frozen=True, slots=True)
class Wanted:
    """An instance that a pod's record has on the card; `owner` is the pod's UID."""

    instance: MigSlice
    owner: str


def wanted_by(pods: Iterable[shapes.Pod], node: str) -> dict[str, list[Wanted]]:
    """Instances that a node's pods have by their records, by the UUID of their card; the earliest pods first.

    A pod keeps its instances until its containers have ended permanently (`wire.pod_phase`), however long its deletion
    takes. Pods of other nodes, without a record, or with one that cannot be trusted want nothing: the
    agent refuses to start the last kind, and the scheduler closes their cards.
    """
    found: dict[str, list[Wanted]] = {}
    for uid, _, read in record.on_node(pods, node):
        for grant in read.grants:
            if grant.mode is GrantMode.MIG and grant.mig is not None:
                one = Wanted(grant.mig, uid)
                there = found.setdefault(grant.uuid, [])
                if one not in there:
                    there.append(one)
    return found


@dataclass(frozen=True, slots=True)
class Observed:
    """A card in its current state.

    Attributes:
        epoch: this run of the driver: it changes with every boot and reload.
        keeps_mode: see `nvml.CardFacts`.
        instances: all existing ones, also foreign ones.
    """

    epoch: str
    mode: Mode
    keeps_mode: bool
    axis: MigAxis
    instances: tuple[GpuInstance, ...] = ()
    specs: tuple[Spec, ...] = ()


class Act(StrEnum):
    """The kinds of steps."""

    NOTE = "note"  # write the entry into the journal
    FORGET = "forget"  # take the entry out of it
    NOTE_MODE = "note mode"  # record that we turn the mode on
    MODE_ON = "mode on"
    MODE_OFF = "mode off"
    MAKE_GPU = "make gpu instance"
    MAKE_COMPUTE = "make compute instance"
    END_COMPUTE = "end compute instance"
    END_GPU = "end gpu instance"
    WRITE_SPEC = "write spec"
    REMOVE_SPEC = "remove spec"


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `entry`: None for the mode and a specification without one. `profile`: its number for `MAKE_GPU`."""

    act: Act
    entry: Entry | None = None
    profile: int = 0
    start: int = 0


class Obstacle(StrEnum):
    """Why an instance cannot be created or removed now."""

    FOREIGN = "Foreign"  # a foreign instance is there
    CONFLICT = "Conflict"  # another pod's record has the place, or its instance is still there
    PROFILE = "Profile"  # the card has no such profile or place
    MODE = "Mode"  # MIG mode must be changed by an operator
    SHARED = "Shared"  # a foreign compute instance is inside ours
    DRIVER = "Driver"  # the driver refuses; see the message


@dataclass(frozen=True, slots=True)
class Hindrance:
    """The hindrance of one instance."""

    owner: str
    instance: MigSlice
    obstacle: Obstacle
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps that may be taken now, in order, the hindrances of the rest, and foreign instances."""

    steps: tuple[Step, ...]
    hindrances: tuple[Hindrance, ...]
    foreign: tuple[GpuInstance, ...]


def plan(wanted: Sequence[Wanted], journal: CardJournal, seen: Observed) -> Plan:
    """The next steps: first removals, then continued instances, then new ones, then the mode.

    Of two `wanted` that overlap the earlier one counts, unless the later one is in the journal already.
    """
    return _Planner(tuple(dict.fromkeys(wanted)), journal, seen).plan()


def uncuttable(seen: Observed) -> str:
    """Why no instance can be created until an operator has changed the card's MIG mode; else empty.

    A card that does not keep its mode is switched on with its first instance.
    """
    mode = seen.mode
    if (mode.current and mode.pending) or not (seen.keeps_mode or mode.current):
        return ""
    why = "is switched off at the next reset" if mode.current else "is off"
    hint = "" if not mode.pending else "; it is switched on at the next reset"
    return f"MIG mode {why}{hint}: an operator changes it while the card is idle"


class _Planner:
    """One look at one card."""

    def __init__(self, wanted: tuple[Wanted, ...], journal: CardJournal, seen: Observed) -> None:
        self._wanted = wanted
        self._journal = journal
        self._seen = seen
        self._own = {
            (entry.instance, entry.owner): own
            for entry in journal.entries
            if (own := _own(entry, seen)) is not None
        }
        ours = {one.id for one in self._own.values()}
        self._foreign = tuple(one for one in seen.instances if one.id not in ours)
        self._hindrances: list[Hindrance] = []

    def plan(self) -> Plan:
        """All steps that are possible now."""
        wanted = {(one.instance, one.owner) for one in self._wanted}
        entries = self._journal.entries
        gone = [entry for entry in entries if (entry.instance, entry.owner) not in wanted]
        kept = [entry for entry in entries if (entry.instance, entry.owner) in wanted]
        found = [step for entry in gone if (step := self._remove(entry)) is not None]
        found += [step for entry in kept if (step := self._advance(entry)) is not None]
        found += self._begin(kept)
        found += self._orphans()
        found += self._mode_off()
        return Plan(tuple(dict.fromkeys(found)), tuple(self._hindrances), self._foreign)

    # --- removing -----------------------------------------------------------------------------

    def _remove(self, entry: Entry) -> Step | None:
        """The next step back: specification, compute instance, GPU instance, journal."""
        if self._spec(entry) is not None:
            return Step(Act.REMOVE_SPEC, entry, start=entry.instance.start)
        own = self._own.get((entry.instance, entry.owner))
        if own is None:
            return Step(Act.FORGET, entry)
        if (ours := _ours(entry, own)) is not None:
            return Step(Act.END_COMPUTE, replace(entry, gpu=own.id, compute=ours.id))
        if own.computes:
            self._hinder(entry, Obstacle.SHARED, f"GPU instance {own.id} holds {_names(own)}")
            return None
        return Step(Act.END_GPU, replace(entry, gpu=own.id))

    # --- making -------------------------------------------------------------------------------

    def _advance(self, entry: Entry) -> Step | None:
        """The next step of a wanted instance that has begun."""
        own = self._own.get((entry.instance, entry.owner))
        if own is None:
            return self._make(entry)
        ours = _ours(entry, own)
        if entry.gpu is None:
            return Step(Act.NOTE, replace(entry, stage=Stage.GPU_INSTANCE, gpu=own.id))
        if ours is None:
            if own.computes:
                self._hinder(entry, Obstacle.SHARED, f"GPU instance {own.id} holds {_names(own)}")
                return None
            return self._back(entry, Stage.GPU_INSTANCE) or Step(Act.MAKE_COMPUTE, entry)
        if not entry.uuid:
            known = replace(entry, compute=ours.id, uuid=ours.uuid)
            return Step(Act.NOTE, replace(known, stage=Stage.COMPUTE_INSTANCE))
        spec = self._spec(entry)
        if spec is None or spec.uuid != entry.uuid:
            return Step(Act.WRITE_SPEC, entry)
        following = {Stage.COMPUTE_INSTANCE: Stage.CDI, Stage.CDI: Stage.READY}.get(entry.stage)
        return None if following is None else Step(Act.NOTE, replace(entry, stage=following))

    def _make(self, entry: Entry) -> Step | None:
        """The next step of one that has begun, but is not on the card (any more)."""
        if (back := self._back(entry, Stage.INTENT)) is not None:
            return back
        profile = self._possible(entry)
        if profile is None:
            return Step(Act.FORGET, entry)
        on, step = self._mode_on(entry)
        return Step(Act.MAKE_GPU, entry, profile=profile.id) if on else step

    def _back(self, entry: Entry, stage: Stage) -> Step | None:
        """Note that the card has less than the journal; the specification is removed first."""
        gpu = entry.gpu if stage is Stage.GPU_INSTANCE else None
        true = Entry(entry.instance, entry.owner, stage, self._seen.epoch, gpu)
        if true == entry:
            return None
        if self._spec(entry) is not None:
            return Step(Act.REMOVE_SPEC, entry, start=entry.instance.start)
        return Step(Act.NOTE, true)

    def _begin(self, kept: Sequence[Entry]) -> Iterator[Step]:
        """Intents for wanted instances that have not begun. It waits for places that are being freed."""
        begun = {(entry.instance, entry.owner) for entry in self._journal.entries}
        promised: list[Wanted | Entry] = list(kept)
        for one in self._wanted:
            if (one.instance, one.owner) in begun:
                continue
            rival = next(
                (other for other in promised if _overlap(one.instance, other.instance)), None
            )
            if rival is not None:
                message = f"pod {rival.owner} has {_place(rival.instance)}"
                self._hinder(one, Obstacle.CONFLICT, message)
                continue
            promised.append(one)
            before = next(
                (e for e in self._journal.entries if _overlap(one.instance, e.instance)), None
            )
            if before is not None:
                message = f"pod {before.owner} still has {_place(before.instance)}, which is being removed"
                self._hinder(one, Obstacle.CONFLICT, message)
                continue
            if self._possible(one) is not None:
                on, step = self._mode_on(one)
                if on:
                    intent = Entry(one.instance, one.owner, Stage.INTENT, self._seen.epoch)
                    step = Step(Act.NOTE, intent)
                if step is not None:
                    yield step

    def _possible(self, one: Wanted | Entry) -> MigProfile | None:
        """The card's profile for it; None, with the hindrance, if it cannot be created."""
        instance, axis = one.instance, self._seen.axis
        profile = find_profile(axis, instance.profile)
        obstacle, message = Obstacle.PROFILE, ""
        if profile is None:
            known = ", ".join(p.name for p in axis.profiles) or "none"
            message = f"{axis.model} has no profile {instance.profile}; it has {known}"
        elif instance.start not in profile.starts or instance.size != profile.size:
            message = f"{profile.name} cannot take {instance.size} units from {instance.start}"
        else:
            blocker = next((f for f in self._foreign if _overlap(f, instance)), None)
            if blocker is not None:
                obstacle = Obstacle.FOREIGN
                message = f"an instance that Partage did not make starts at {blocker.start}"
        if message:
            self._hinder(one, obstacle, message)
            return None
        return profile

    # --- mode ---------------------------------------------------------------------------------

    def _mode_on(self, one: Wanted | Entry) -> tuple[bool, Step | None]:
        """Whether the mode is on, and the step that turns it on; none if an operator must."""
        mode = self._seen.mode
        if mode.current and mode.pending:
            return True, None
        if message := uncuttable(self._seen):
            self._hinder(one, Obstacle.MODE, message)
            return False, None
        noted = self._journal.mode == self._seen.epoch
        return False, Step(Act.MODE_ON if noted else Act.NOTE_MODE)

    def _mode_off(self) -> Iterator[Step]:
        """If we turned it on, turn it off with the last instance: the whole card is free."""
        idle = not (self._wanted or self._journal.entries or self._seen.instances)
        ours = bool(self._journal.mode) and self._journal.mode == self._seen.epoch
        if idle and ours and self._seen.mode.current and not self._seen.keeps_mode:
            yield Step(Act.MODE_OFF)

    # --- specifications -----------------------------------------------------------------------

    def _spec(self, entry: Entry) -> Spec | None:
        start = entry.instance.start
        return next((spec for spec in self._seen.specs if spec.start == start), None)

    def _orphans(self) -> Iterator[Step]:
        starts = {entry.instance.start for entry in self._journal.entries}
        for spec in self._seen.specs:
            if spec.start not in starts:
                yield Step(Act.REMOVE_SPEC, start=spec.start)

    def _hinder(self, one: Wanted | Entry, obstacle: Obstacle, message: str) -> None:
        self._hindrances.append(Hindrance(one.owner, one.instance, obstacle, message))


def _own(entry: Entry, seen: Observed) -> GpuInstance | None:
    """The GPU instance of the entry, if it exists; see the module."""
    if entry.epoch != seen.epoch:
        return None
    profile = find_profile(seen.axis, entry.instance.profile)
    place = (None if profile is None else profile.id, entry.instance.start, entry.instance.size)
    for one in seen.instances:
        if (one.profile, one.start, one.size) != place:
            continue
        if entry.gpu is None:
            return None if one.computes else one
        if one.id == entry.gpu and (
            not one.computes or not entry.uuid or _ours(entry, one) is not None
        ):
            return one
    return None


def _ours(entry: Entry, own: GpuInstance) -> ComputeInstance | None:
    """The compute instance of the entry; before its UUID is known, the only one there."""
    if entry.uuid:
        return next((one for one in own.computes if one.uuid == entry.uuid), None)
    return own.computes[0] if len(own.computes) == 1 else None


def _overlap(one: MigSlice | GpuInstance, other: MigSlice) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size


def _place(one: MigSlice) -> str:
    return f"{one.profile} at {one.start}"


def _names(one: GpuInstance) -> str:
    return ", ".join(compute.uuid for compute in one.computes)

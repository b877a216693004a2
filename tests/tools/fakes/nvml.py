"""A driver of cards that can be cut, for tests: positions and refusals as NVML has them.

Built from the table of models. An occupied place answers `INSUFFICIENT`, as NVML does, not "exists".
Numbers of instances are used again, UUIDs never. A GPU instance with a compute instance is `IN_USE`.

Sources: NVML's documentation and reports of its behaviour (docs/sources/mig.md 2).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

from partage.agent.mig.nvml import (
    CardFacts,
    ComputeInstance,
    Failure,
    GpuInstance,
    Mode,
    NvmlFailed,
)
from partage.model.errors import InvalidValue
from partage.model.mig import MigAxis, MigSlice
from partage.vendors.mig import MIG_CARDS

__all__ = ["FakeCard", "FakeNvml", "Trouble"]


class Trouble(StrEnum):
    """What a changing call may do instead of its work."""

    IN_USE = "in use"
    INSUFFICIENT = "insufficient"
    NOT_FOUND = "not found"
    LOST = "lost"
    NOTHING = "success, and nothing is done"
    DONE = "an error, and it is done"


_FAILURES: Mapping[Trouble, Failure] = {
    Trouble.IN_USE: Failure.IN_USE,
    Trouble.INSUFFICIENT: Failure.INSUFFICIENT,
    Trouble.NOT_FOUND: Failure.NOT_FOUND,
    Trouble.LOST: Failure.LOST,
    Trouble.DONE: Failure.OTHER,
}


@dataclass(slots=True)
class FakeCard:
    """One card and what is on it.

    Attributes:
        facts: what it is.
        axis: what it can be cut into.
        on, pending: MIG mode.
        clients: programs that hold the whole card: changes answer `IN_USE` while there are any.
        instances: by number.
        busy: numbers of GPU instances with a program inside.
    """

    facts: CardFacts
    axis: MigAxis
    on: bool = True
    pending: bool = True
    clients: int = 0
    instances: dict[int, GpuInstance] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)


class FakeNvml:
    """Cards of one model; it stands for `agent.mig.driver.NvidiaDriver`.

    Attributes:
        made: how many UUIDs have been used.
        before: called with the name of every changing call before it does anything; what it
            returns happens instead.
    """

    def __init__(self, model: str = "A100-80GB", cards: int = 1, *, on: bool = True) -> None:
        table = MIG_CARDS[model]
        ampere = model.startswith(("A30", "A100", "PG506"))
        pci = table.pci[0] if table.pci else ""
        self._cards = {
            f"GPU-{i}": FakeCard(
                CardFacts(f"GPU-{i}", i, table.aliases[0], pci, ampere), table.axis, on, on
            )
            for i in range(cards)
        }
        self.made = 0
        self.epoch = 1
        self.before: Callable[[str], Trouble | None] = lambda _call: None

    def card(self, uuid: str = "GPU-0") -> FakeCard:
        """A card, to look at or to disturb."""
        return self._cards[uuid]

    def foreign(
        self, profile: str, start: int, *, card: str = "GPU-0", computes: int = 1
    ) -> GpuInstance:
        """An instance that another program makes, without trouble."""
        own = self.card(card).axis.profile(profile)
        number = self._make(self.card(card), own.at(start), own.id)
        for _ in range(computes):
            self._compute(self.card(card), number)
        return self.card(card).instances[number]

    def restart(self) -> None:
        """A reboot or a reload of the driver: instances are gone, and so is a mode that is not kept."""
        self.epoch += 1
        for card in self._cards.values():
            card.instances.clear()
            card.busy.clear()
            card.on = card.pending = card.pending and card.facts.keeps_mode

    # --- the driver -------------------------------------------------------------------------

    def cards(self) -> tuple[CardFacts, ...]:
        """Every card, by index."""
        return tuple(card.facts for card in self._cards.values())

    def mode(self, card: str) -> Mode:
        """MIG mode of a card."""
        return Mode(self._find(card).on, self._find(card).pending)

    def axis(self, card: str) -> MigAxis:
        """What the table says of the model."""
        return self._find(card).axis

    def instances(self, card: str) -> tuple[GpuInstance, ...]:
        """What is on the card."""
        found = self._find(card).instances.values()
        return tuple(sorted(found, key=lambda one: one.start))

    def set_mode(self, card: str, *, on: bool) -> None:
        """At once where the mode is not kept; else at the next reset."""
        with self._changing("nvmlDeviceSetMigMode", card) as there:
            if there is None:
                return
            if there.clients or there.instances:
                raise NvmlFailed("nvmlDeviceSetMigMode", Failure.IN_USE)
            there.pending = on
            if there.facts.keeps_mode and there.on != on:
                raise NvmlFailed("nvmlDeviceSetMigMode", Failure.RESET_REQUIRED)
            there.on = on

    def make_gpu_instance(self, card: str, profile: int, start: int, size: int) -> None:
        """Make a GPU instance; every obstacle gives the same answer."""
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        with self._changing(call, card) as there:
            if there is None:
                return
            if not there.on:
                raise NvmlFailed(call, Failure.NOT_SUPPORTED)
            if there.clients:
                raise NvmlFailed(call, Failure.IN_USE)
            own = next((p for p in there.axis.profiles if p.id == profile), None)
            if own is None or start not in own.starts or size != own.size:
                raise NvmlFailed(call, Failure.NOT_SUPPORTED)
            if not there.axis.valid((*_slices(there), own.at(start))):
                raise NvmlFailed(call, Failure.INSUFFICIENT)
            self._make(there, own.at(start), profile)

    def make_compute_instance(self, card: str, gpu_instance: int) -> None:
        """Make the compute instance of a GPU instance."""
        call = "nvmlGpuInstanceCreateComputeInstance"
        with self._changing(call, card) as there:
            if there is None:
                return
            if self._instance(call, there, gpu_instance).computes:
                raise NvmlFailed(call, Failure.INSUFFICIENT)
            self._compute(there, gpu_instance)

    def end_compute_instance(self, card: str, gpu_instance: int, compute_instance: int) -> None:
        """Remove a compute instance, unless a program is in it."""
        call = "nvmlComputeInstanceDestroy"
        with self._changing(call, card) as there:
            if there is None:
                return
            one = self._instance(call, there, gpu_instance)
            if compute_instance not in {compute.id for compute in one.computes}:
                raise NvmlFailed(call, Failure.NOT_FOUND)
            if gpu_instance in there.busy:
                raise NvmlFailed(call, Failure.IN_USE)
            left = tuple(c for c in one.computes if c.id != compute_instance)
            there.instances[gpu_instance] = replace(one, computes=left)

    def end_gpu_instance(self, card: str, gpu_instance: int) -> None:
        """Remove a GPU instance that is empty."""
        call = "nvmlGpuInstanceDestroy"
        with self._changing(call, card) as there:
            if there is None:
                return
            if self._instance(call, there, gpu_instance).computes or there.clients:
                raise NvmlFailed(call, Failure.IN_USE)
            del there.instances[gpu_instance]

    # --- inside -----------------------------------------------------------------------------

    def _find(self, card: str) -> FakeCard:
        found = self._cards.get(card)
        if found is None:
            raise NvmlFailed("nvmlDeviceGetHandleByUUID", Failure.NOT_FOUND)
        return found

    @contextmanager
    def _changing(self, call: str, card: str) -> Iterator[FakeCard | None]:
        """The card, or None where the call pretends; trouble comes before or after the work."""
        trouble = self.before(call)
        if trouble is Trouble.NOTHING:
            yield None
            return
        if trouble is not None and trouble is not Trouble.DONE:
            raise NvmlFailed(call, _FAILURES[trouble])
        yield self._find(card)
        if trouble is Trouble.DONE:
            raise NvmlFailed(call, Failure.OTHER)

    def _instance(self, call: str, card: FakeCard, number: int) -> GpuInstance:
        found = card.instances.get(number)
        if found is None:
            raise NvmlFailed(call, Failure.NOT_FOUND)
        return found

    def _make(self, card: FakeCard, place: MigSlice, profile: int) -> int:
        fault = card.axis.fault((*_slices(card), place))
        if fault:
            raise InvalidValue(fault)
        number = next(i for i in range(1, 99) if i not in card.instances)
        card.instances[number] = GpuInstance(number, profile, place.start, place.size)
        return number

    def _compute(self, card: FakeCard, number: int) -> None:
        one = card.instances[number]
        self.made += 1
        compute = ComputeInstance(len(one.computes), f"MIG-{self.made}")
        card.instances[number] = replace(one, computes=(*one.computes, compute))


def _slices(card: FakeCard) -> tuple[MigSlice, ...]:
    names = {profile.id: profile.name for profile in card.axis.profiles}
    return tuple(
        MigSlice(names[one.profile], one.start, one.size) for one in card.instances.values()
    )

"""Takes the planned steps on one card, one at a time, and reads the card again after each.

A step that the driver refuses is retried after waits that double, up to a minute. A pod therefore waits about twice as
long as the trouble lasted. The hindrance contains the driver's answer. `IN_USE` ends when a program ends: the step is
retried often for longer. `INSUFFICIENT` withdraws the intent at once: the next look shows
whether the place is taken, by whom, or only an engine is short.

Nothing here sleeps or reads a clock: `settle` does the steps that are possible now and returns the time of the next try.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from partage.agent.mig.cdi import Numbers, Specs, render
from partage.agent.mig.driver import NvidiaDriver
from partage.agent.mig.journal import CardJournal, Entry, FileJournals, Stage
from partage.agent.mig.nvml import CardFacts, Failure, GpuInstance, NvmlFailed
from partage.agent.mig.plan import (
    Act,
    Hindrance,
    Observed,
    Obstacle,
    Plan,
    Step,
    Wanted,
    plan,
    uncuttable,
)
from partage.model.errors import InvalidDocument, InvalidRecord
from partage.model.mig import MigAxis, MigSlice

_MOST_STEPS: Final = 1000
"""Far more than any card needs; only a driver that contradicts itself reaches it."""
_FIRST: Final = 0.25
REST: Final = 60.0
"""Seconds; the wait doubles from the first to the second."""
_DOUBLINGS: Final = 8
LONGEST: Final = 8.0
_IN_USE: Final = 10
"""Seconds, and the number of tries with at most this wait for a card in use."""
_DEVICE: Final = frozenset(
    {Act.MODE_ON, Act.MODE_OFF, Act.MAKE_GPU, Act.MAKE_COMPUTE, Act.END_COMPUTE, Act.END_GPU}
)


@dataclass(frozen=True, slots=True)
class Node:
    """The common parts of a node's runners; `epoch` as `driver.read_epoch`; `numbers` read for each specification."""

    nvml: NvidiaDriver
    journals: FileJournals
    specs: Specs
    epoch: Callable[[], str]
    numbers: Callable[[], Numbers]


def wait(tries: int, failure: Failure | None) -> float:
    """The wait after so many tries of a refused step, at least 1, in seconds."""
    longest = LONGEST if failure is Failure.IN_USE and tries < _IN_USE else REST
    return min(longest, _FIRST * 2.0 ** min(tries - 1, _DOUBLINGS))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A card after `settle`.

    Attributes:
        ready: the wanted instances that exist, by the last look.
        hindrances: of the others.
        foreign: instances whose place no pod can have.
        fault: why no step at all was possible; usually empty.
        again: the time of the next try, on the clock of `now`; None: after a change.
        axis: None if the card was not asked.
        uncuttable: why an operator must act before any instance can be created; usually empty.
    """

    ready: tuple[Entry, ...] = ()
    hindrances: tuple[Hindrance, ...] = ()
    foreign: tuple[GpuInstance, ...] = ()
    fault: str = ""
    again: float | None = None
    axis: MigAxis | None = None
    uncuttable: str = ""


@dataclass(frozen=True, slots=True)
class _Held:
    """A step that was tried."""

    tries: int
    until: float
    message: str


_Key = tuple[Act, MigSlice | None, str]


class Runner:
    """The runner of one card. Not for two threads at once: the service serialises its calls."""

    def __init__(self, card: CardFacts, node: Node) -> None:
        self._card = card
        self._node = node
        self._held: dict[_Key, _Held] = {}
        self._lost: _Held | None = None

    def settle(self, wanted: Sequence[Wanted], now: float) -> Outcome:
        """Take all steps towards the wanted instances that are possible `now`, by a clock that never goes back.

        `wanted`: by the node's pods on this card, in order of precedence; empty removes all of ours.
        """
        for _ in range(_MOST_STEPS):
            try:
                journal = self._node.journals.load(self._card.uuid)
                seen = self._look()
            except (InvalidRecord, InvalidDocument) as error:
                return Outcome(fault=str(error), again=now + REST)
            except (OSError, NvmlFailed) as error:
                return self._unseen(error, now)
            self._lost = None
            planned = plan(wanted, journal, seen)
            keys = [_key(one) for one in planned.steps]
            self._held = {key: held for key, held in self._held.items() if key in keys}
            step = next((one for one in planned.steps if self._may(one, now)), None)
            if step is None:
                outcome = self._outcome(wanted, journal, planned, now)
                return replace(outcome, axis=seen.axis, uncuttable=uncuttable(seen))
            self._take(step, journal, now)
        return Outcome(fault="the driver contradicts itself", again=now + REST)

    def _look(self) -> Observed:
        nvml, card = self._node.nvml, self._card
        return Observed(
            epoch=self._node.epoch(),
            mode=nvml.mode(card.uuid),
            keeps_mode=card.keeps_mode,
            axis=nvml.axis(card.uuid),
            instances=nvml.instances(card.uuid),
            specs=self._node.specs.present(card.uuid),
        )

    def _unseen(self, error: NvmlFailed | OSError, now: float) -> Outcome:
        tries = 1 if self._lost is None else self._lost.tries + 1
        failure = error.failure if isinstance(error, NvmlFailed) else Failure.OTHER
        self._lost = _Held(tries, now + wait(tries, failure), str(error))
        return Outcome(fault=str(error), again=self._lost.until)

    # --- steps --------------------------------------------------------------------------------

    def _take(self, step: Step, journal: CardJournal, now: float) -> None:
        """Take one step. A driver's answer only decides the time of the next try, never the state."""
        failure, message = None, "the driver reported success, and nothing changed"
        try:
            if step.act in _DEVICE:
                self._ask_driver(step)
            else:
                self._write(step, journal)
        except NvmlFailed as error:
            failure, message = error.failure, str(error)
            if step.act is Act.MAKE_GPU and failure is Failure.INSUFFICIENT and step.entry:
                with contextlib.suppress(OSError):  # the intent stays: the next look withdraws it
                    self._node.journals.save(journal.without(step.entry))
        except (InvalidDocument, OSError) as error:
            failure, message = Failure.OTHER, str(error)
        if step.act in _DEVICE or failure is not None:
            key = _key(step)
            tries = 1 + (self._held[key].tries if key in self._held else 0)
            until = now + wait(tries, failure)
            self._held[key] = _Held(tries, until, message)

    def _ask_driver(self, step: Step) -> None:
        nvml, card, entry = self._node.nvml, self._card.uuid, step.entry
        if step.act in (Act.MODE_ON, Act.MODE_OFF):
            nvml.set_mode(card, on=step.act is Act.MODE_ON)
        elif entry is None:
            raise InvalidDocument(f"step {step.act} without an entry")
        elif step.act is Act.MAKE_GPU:
            place = entry.instance
            nvml.make_gpu_instance(card, step.profile, place.start, place.size)
        elif entry.gpu is None:
            raise InvalidDocument(f"step {step.act} without a GPU instance")
        elif step.act is Act.MAKE_COMPUTE:
            nvml.make_compute_instance(card, entry.gpu)
        elif step.act is Act.END_GPU:
            nvml.end_gpu_instance(card, entry.gpu)
        elif entry.compute is not None:
            nvml.end_compute_instance(card, entry.gpu, entry.compute)

    def _write(self, step: Step, journal: CardJournal) -> None:
        node, card, entry = self._node, self._card, step.entry
        if step.act is Act.NOTE_MODE:
            node.journals.save(replace(journal, mode=node.epoch()))
        elif step.act is Act.REMOVE_SPEC:
            node.specs.remove(card.uuid, step.start)
        elif entry is None:
            raise InvalidDocument(f"step {step.act} without an entry")
        elif step.act is Act.NOTE:
            node.journals.save(journal.with_entry(entry))
        elif step.act is Act.FORGET:
            node.journals.save(journal.without(entry))
        elif entry.gpu is not None and entry.compute is not None:
            place = (card.minor, entry.gpu, entry.compute)
            content = render(entry.uuid, place, node.numbers())
            node.specs.write(card.uuid, entry.instance.start, content)

    # --- trying again -------------------------------------------------------------------------

    def _may(self, step: Step, now: float) -> bool:
        held = self._held.get(_key(step))
        return held is None or held.until <= now

    def _outcome(
        self, wanted: Sequence[Wanted], journal: CardJournal, planned: Plan, now: float
    ) -> Outcome:
        asked = {(one.instance, one.owner) for one in wanted}
        stuck = {(h.instance, h.owner) for h in planned.hindrances}
        waiting = [self._held[_key(step)] for step in planned.steps]
        refused = tuple(
            Hindrance(step.entry.owner, step.entry.instance, Obstacle.DRIVER, held.message)
            for step, held in zip(planned.steps, waiting, strict=True)
            if step.entry is not None
        )
        busy = {(h.instance, h.owner) for h in refused}
        ready = tuple(
            entry
            for entry in journal.entries
            if entry.stage is Stage.READY and (entry.instance, entry.owner) in asked - stuck - busy
        )
        hindrances = (*planned.hindrances, *refused)
        again = [held.until for held in waiting]
        if hindrances and not again:
            again = [now + REST]
        return Outcome(ready, hindrances, planned.foreign, again=min(again, default=None))


def _key(step: Step) -> _Key:
    """The identity of a step over its retries; an intent is part of the creation."""
    entry = step.entry
    if entry is None:
        return step.act, None, str(step.start)
    intent = step.act is Act.NOTE and entry.stage is Stage.INTENT
    return Act.MAKE_GPU if intent else step.act, entry.instance, entry.owner

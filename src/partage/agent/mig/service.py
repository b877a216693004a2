"""Keeps every card of a node in the state that its pods need, with one task a card.

A watch of the node's pods sets the wanted instances (`want`) the moment a pod is bound. The code that starts a
container asks for the ready ones (`ready`), which reads memory only and works from any thread. Calls to the driver run
in threads, and never while a container runtime waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partage.agent.mig.journal import Entry
from partage.agent.mig.plan import Hindrance, Wanted
from partage.agent.mig.runner import Outcome, Runner
from partage.kube.clock import Clock, sleep_until

_LOOK: Final = 60.0
"""Seconds after which a quiet card is read again: another program may have changed it."""

InThread = Callable[[Callable[[], Outcome]], Awaitable[Outcome]]


@dataclass(eq=False)
class Instances:
    """The instances of a node. `runners`: one a card, by its UUID.

    Nothing is changed before the first `want`: an agent that has not listed its pods yet must not treat them as gone.
    `changed` is called with a card's UUID at each change of its outcome: to report foreign instances, to write
    events, to let a waiting pod start. `in_thread` makes a blocking call.
    """

    runners: dict[str, Runner]
    clock: Clock
    changed: Callable[[str], None] = lambda _card: None
    in_thread: InThread = asyncio.to_thread
    _wanted: dict[str, tuple[Wanted, ...]] | None = None
    _outcomes: dict[str, Outcome] = field(default_factory=dict)
    _calls: dict[str, asyncio.Event] = field(init=False)
    _tasks: asyncio.TaskGroup | None = None

    def __post_init__(self) -> None:
        self._calls = {card: asyncio.Event() for card in self.runners}

    def add(self, card: str, runner: Runner) -> None:
        """Serve one more card, which the driver has found (again); `run` looks at it at once if pods are listed."""
        self.runners[card], self._calls[card] = runner, asyncio.Event()
        if self._wanted is not None:
            self._calls[card].set()
        if self._tasks is not None:
            self._tasks.create_task(self._serve(card), name=f"instances of {card}")

    def want(self, wanted: Mapping[str, Sequence[Wanted]]) -> None:
        """Set all instances of the node's pods, by card (`plan.wanted_by`)."""
        before = self._wanted
        self._wanted = {card: tuple(those) for card, those in wanted.items()}
        for card, call in self._calls.items():
            if before is None or before.get(card, ()) != self._wanted.get(card, ()):
                call.set()

    def ready(self, owner: str) -> tuple[Entry, ...] | None:
        """Instances of a pod, once all of them are usable; None until then."""
        asked = {
            (card, one.instance)
            for card, those in (self._wanted or {}).items()
            for one in those
            if one.owner == owner
        }
        found = {
            (card, one.instance): one
            for card, outcome in self._outcomes.items()
            for one in outcome.ready
            if one.owner == owner
        }
        return tuple(found[key] for key in found if key in asked) if asked <= set(found) else None

    def hindrances(self, owner: str) -> tuple[Hindrance, ...]:
        """The hindrances of a pod's instances, except cards that the node lacks."""
        return tuple(
            one
            for outcome in self._outcomes.values()
            for one in outcome.hindrances
            if one.owner == owner
        )

    def outcome(self, card: str) -> Outcome | None:
        """The last look at a card: faults, and foreign instances."""
        return self._outcomes.get(card)

    async def run(self) -> None:
        """Serve all cards until cancelled. A running call is completed in its thread."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for card in self.runners:
                tasks.create_task(self._serve(card), name=f"instances of {card}")

    async def _serve(self, card: str) -> None:
        call, runner = self._calls[card], self.runners[card]
        while True:
            await self._next(call, self._outcomes.get(card))
            call.clear()
            wanted = (self._wanted or {}).get(card, ())
            now = self.clock.monotonic()
            outcome = await self.in_thread(lambda w=wanted, n=now: runner.settle(w, n))  # type: ignore[misc]
            known = self._outcomes.get(card)
            self._outcomes = {**self._outcomes, card: outcome}  # whole: other threads read it
            if known is None or _told(known) != _told(outcome):
                self.changed(card)

    async def _next(self, call: asyncio.Event, outcome: Outcome | None) -> None:
        """Wait for a change of the wanted instances, or for the time of the next look."""
        if outcome is None:
            await call.wait()
            return
        now = self.clock.monotonic()
        until = now + _LOOK if outcome.again is None else min(outcome.again, now + _LOOK)
        await sleep_until(self.clock, until - now, call)


def _told(outcome: Outcome) -> tuple[object, ...]:
    told = outcome.ready, outcome.hindrances, outcome.foreign
    return *told, outcome.fault, outcome.uncuttable

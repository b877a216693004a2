"""A world whose kube-scheduler has the plugin."""

from typing import Any

from world import DONE, World, unlisted

from partage.extender.attempts import Attempts
from partage.extender.ports import Answered, Outcome
from partage.scheduler.engine import State
from partage.wire import plugin as wire


class Plugged(World):
    """A world whose kube-scheduler has the plugin."""

    def __init__(self, *, preempts: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.leads = True
        self.attempts = Attempts(self.service, lambda: self.leads, preempts=preempts)
        self.number = 0
        self.allowed: list[wire.Answer] = []

    def propose(self, name: str, **more: Any) -> wire.Answer:
        """A new attempt."""
        self.number += 1
        return self.attempts.propose(wire.Propose(1, f"uid-{name}", self.number, **more))

    def reserve(self, name: str, where: str = "n1", **more: Any) -> wire.Answer:
        """Reserve in the newest attempt, or another."""
        number = more.pop("attempt", self.number)
        return self.attempts.reserve(wire.Reserve(1, f"uid-{name}", number, where, **more))

    def unreserve(self, name: str, attempt: int | None = None) -> None:
        """Release."""
        number = self.number if attempt is None else attempt
        self.attempts.unreserve(wire.Unreserve(1, f"uid-{name}", number))

    async def bind_by(
        self, name: str, answer: Answered = DONE, where: str = "n1", attempt: int | None = None
    ) -> tuple[wire.Answer | None, wire.Answer | None]:
        """Bind as the plugin does: what allowed it and what refused it."""
        number = self.number if attempt is None else attempt
        allowed: list[wire.Answer] = []

        def reply(given: wire.Answer) -> None:
            allowed.append(given)
            if answer.outcome is Outcome.DONE:
                manifest = self.api.pods[name]
                manifest["spec"]["nodeName"] = where
                manifest["metadata"]["annotations"] = dict(given.annotations)
            outcome = wire.CONFLICT if answer.ended else answer.outcome.value
            self.attempts.bound(wire.Bound(2, f"uid-{name}", number, outcome, answer.message))

        refused = await self.attempts.bind(wire.Bind(1, f"uid-{name}", number, where), reply)
        return next(iter(allowed), None), refused

    @property
    def states(self) -> dict[str, State]:
        """Of all pods that hold something."""
        return self.service.books.engine.states

    def check(self) -> None:
        """The laws of the ledger hold, and lists of pods by node are complete."""
        self.service.books.engine.ledger.validate()
        assert not unlisted(self.service.books)

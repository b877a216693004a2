"""Requests for instances against a number of cards: fixed sequences, and streams with departures.

A stream is a Poisson process; lifetimes are exponential with mean 1, which is the unit of time. All random numbers are
drawn before the policy sees a request, so every policy gets the same requests.
"""

import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from partage.model.errors import InvalidValue
from partage.model.mig import MigAxis
from partage.sim.kernel import Kernel
from partage.sim.migcards import Place, Pool, pools


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests that arrive and end.

    Attributes:
        mix: profile name to its share of the requests; shares need not add up to 1.
        load: mean memory units asked for, as part of all units.
        arrivals: number of requests.
        warmup: number of first requests that are not counted.
        waits: a request without a place waits, and is tried again in order of arrival whenever an instance ends; later
            ones may go first if earlier ones do not fit.
    """

    axis: MigAxis
    cards: int
    mix: Mapping[str, float]
    load: float
    seed: int = 42
    arrivals: int = 20_000
    warmup: int = 2_000
    waits: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.load) and self.load > 0):
            raise InvalidValue(f"offered load {self.load} must be a number above 0, such as 0.8")
        if self.cards < 1:
            raise InvalidValue(f"{self.cards} cards; at least 1 is needed")
        if not 0 <= self.warmup < self.arrivals:
            raise InvalidValue(
                f"warm-up of {self.warmup} must leave some of the {self.arrivals} arrivals"
            )
        if not 0 < sum(self.mix.values()) < inf or min(self.mix.values()) < 0:
            raise InvalidValue("shares of a mix must be 0 or more, and one of them above 0")

    def drawn(self) -> list[tuple[float, str, float]]:
        """Every request: its time of arrival, its profile, its lifetime."""
        total = sum(self.mix.values())
        sizes = {name: self.axis.profile(name).size for name in self.mix}
        mean = sum(weight / total * sizes[name] for name, weight in self.mix.items())
        rate = self.load * self.cards * self.axis.length / mean
        chance = random.Random(self.seed)  # noqa: S311 # not for secrets
        names, weights = list(self.mix), list(self.mix.values())
        asked = chance.choices(names, weights, k=self.arrivals)
        now, requests = 0.0, []
        for name in asked:
            now += chance.expovariate(rate)
            requests.append((now, name, chance.expovariate(1.0)))
        return requests


@dataclass(slots=True)
class Outcome:
    """The results of the requests after the warm-up.

    Attributes:
        offered, accepted: requests.
        offered_units, accepted_units: the same in memory units.
        at_once: accepted without waiting.
        waited: sum of waiting, in mean lifetimes.
        seconds: processor time of the whole run.
    """

    offered: int = 0
    accepted: int = 0
    offered_units: int = 0
    accepted_units: int = 0
    at_once: int = 0
    waited: float = 0.0
    seconds: float = 0.0

    @property
    def acceptance(self) -> float:
        """Part of the requests that were accepted."""
        return self.accepted / self.offered if self.offered else 0.0

    @property
    def volume_acceptance(self) -> float:
        """The same by memory units."""
        return self.accepted_units / self.offered_units if self.offered_units else 0.0

    @property
    def mean_wait(self) -> float:
        """Mean wait of those accepted, in mean lifetimes."""
        return self.waited / self.accepted if self.accepted else 0.0


class _Run:
    """One stream under one policy."""

    def __init__(self, stream: Stream, pool: Pool) -> None:
        self.stream = stream
        self.pool = pool
        self.requests = stream.drawn()
        self.sizes = {name: stream.axis.profile(name).size for name in stream.mix}
        self.waiting: dict[str, deque[int]] = {name: deque() for name in stream.mix}
        self.kernel: Kernel[int | Place] = Kernel()
        self.outcome = Outcome()

    def play(self) -> Outcome:
        """Run all events."""
        began = time.process_time()
        self.kernel.at(self.requests[0][0], 0, 1)
        for event in self.kernel.run():
            if isinstance(
                event, int
            ):  # the number of a request that arrives; else a place that is left
                self._arrive(event)
            else:
                self.pool.remove(event)
                if self.stream.waits:
                    self._retry()
        self.outcome.seconds = time.process_time() - began
        return self.outcome

    def _arrive(self, number: int) -> None:
        if number + 1 < len(self.requests):
            self.kernel.at(self.requests[number + 1][0], number + 1, 1)
        name = self.requests[number][1]
        if number >= self.stream.warmup:
            self.outcome.offered += 1
            self.outcome.offered_units += self.sizes[name]
        # Waiting requests for the same profile were refused in the same state of the cards.
        if not self.waiting[name] and self._start(number):
            self.outcome.at_once += number >= self.stream.warmup
        elif self.stream.waits:
            self.waiting[name].append(number)

    def _retry(self) -> None:
        """Try waiting requests again, in order of arrival; one refusal counts for all of its profile."""
        heads = [queue for queue in self.waiting.values() if queue]
        while heads:
            queue = min(heads, key=lambda queue: queue[0])
            if not self._start(queue[0]):
                heads.remove(queue)
                continue
            queue.popleft()
            if not queue:
                heads.remove(queue)

    def _start(self, number: int) -> bool:
        came, name, stays = self.requests[number]
        place = self.pool.place(name)
        if place is None:
            return False
        self.kernel.at(self.kernel.now + stays, place)
        if number >= self.stream.warmup:
            self.outcome.accepted += 1
            self.outcome.accepted_units += self.sizes[name]
            self.outcome.waited += self.kernel.now - came
        return True


def run(stream: Stream, policy: str) -> Outcome:
    """The stream under a policy of `sim.migcards`. Raises `InvalidValue`: no such policy, or no such profile."""
    names = [name for name, weight in stream.mix.items() if weight]
    total = sum(stream.mix.values())
    weights = {name: stream.mix[name] / total for name in names}
    return _Run(stream, pools(policy, stream.axis, names, weights)(stream.cards)).play()


@dataclass(frozen=True, slots=True)
class Admitted:
    """The results of fixed sequences, each offered to idle cards.

    Attributes:
        in_full: sequences whose instances all found a place.
        refused: number of the first entry without a place, for each sequence; -1 for none.
        seconds: processor time of the whole run.
    """

    offered: int
    in_full: int
    refused: tuple[int, ...]
    seconds: float


def offer(sequences: Sequence[Sequence[str]], axis: MigAxis, cards: int, policy: str) -> Admitted:
    """Offer each sequence in order to idle cards, up to its first refusal. Raises `InvalidValue`: as `run`."""
    if cards < 1:
        raise InvalidValue(f"{cards} cards; at least 1 is needed")
    began = time.process_time()
    made = pools(policy, axis, sorted({name for sequence in sequences for name in sequence}))
    refused = []
    for sequence in sequences:
        pool = made(cards)
        refused.append(
            next((i for i, name in enumerate(sequence) if pool.place(name) is None), -1)
        )
    return Admitted(len(sequences), refused.count(-1), tuple(refused), time.process_time() - began)

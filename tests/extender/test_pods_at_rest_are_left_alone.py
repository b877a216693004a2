"""Where nothing happens any more, no pod is woken any more, whatever pods and groups wait.

Groups whose pods hold their places while they wait for each other go on, each pod every ten seconds at most.
kube-scheduler is a model that tries each woken pod at once. It tries the pods of its own groups one by one and reverts
them. Pods of coscheduling's groups hold their places while they wait for each other.
"""

import asyncio
import random

from plugin_world import Plugged
from world import card, device, half, node, pod, whole

SEEDS = 16
MINUTES = 10
_PERMIT = 60.0


class Rest:
    """Pods beside groups with places for all, some or none of their pods."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 # reproducible on purpose
        self.world = Plugged()
        self.group: dict[str, list[str]] = {}
        self.waits: dict[str, tuple[int, str, float]] = {}
        self.queue: list[str] = []
        self.woken: list[float] = []

    async def run(self) -> None:
        """All of it, and some minutes."""
        cards = [card(0), card(1)]
        names = ("n1", "n2", "n3")
        await self.world.start(*(one for n in names for one in (node(n), device(n, *cards))))
        for number in range(self.chance.randint(3, 7)):
            asks = self.chance.choice((half(), whole(), whole(2)))
            size = self.chance.choice((1, 1, 2, 3, 5))
            mine = [f"g{number}-{one}" for one in range(size)]
            for name in mine:
                self.world.create(pod(name, asks, priority=self.chance.choice((0, 0, 10))))
                self.group[name] = mine
            self.queue += mine
        for _ in range(MINUTES * 60):
            await self.second()
        late = self.world.clock.monotonic() - MINUTES * 60 / 2
        waiting = [name for name in self.group if not self.placed(name)]
        holding = any(len(self.group[name]) > 1 and not int(name[1]) % 2 for name in waiting)
        most = holding * len(waiting) * MINUTES * 60 / 2 / 10
        assert len([one for one in self.woken if one > late]) <= most

    async def second(self) -> None:
        """What is queued is tried, and the others are woken."""
        for name in dict.fromkeys(self.queue):
            self.queue.remove(name)
            if name not in self.waits and not self.placed(name):
                await self.tried(name)
        for name, (number, where, since) in list(self.waits.items()):
            mine = self.group[name]
            if all(one in self.waits or self.placed(one) for one in mine):
                del self.waits[name]
                await self.world.bind_by(name, where=where, attempt=number)
                self.world.seen(name)
            elif self.world.clock.monotonic() > since + _PERMIT:
                self.fails(mine)
        self.world.clock.pass_time(1)
        await self.world.service.tick()
        self.hear()
        self.world.check()

    def placed(self, name: str) -> bool:
        """Whether a pod is bound."""
        return bool(self.world.api.pods[name]["spec"].get("nodeName"))

    def hear(self) -> None:
        """Woken pods are queued."""
        for uid in self.world.woken:
            self.woken.append(self.world.clock.monotonic())
            self.queue.append(uid.removeprefix("uid-"))
        self.world.woken.clear()

    def fails(self, mine: list[str]) -> None:
        """The pods of a group give their places back."""
        for one in mine:
            if one in self.waits:
                self.world.unreserve(one, self.waits.pop(one)[0])
        self.hear()

    async def tried(self, name: str) -> None:
        """A pod, or its group as a whole."""
        mine = self.group[name]
        if int(name[1]) % 2:  # kube-scheduler's own
            todo = [one for one in mine if not self.placed(one) and one not in self.waits]
            places = {one: place for one in todo if (place := self.reserved(one, simulated=True))}
            for one, (number, _) in reversed(places.items()):
                self.world.unreserve(one, number)
            self.hear()
            if len(places) < len(todo):
                return
            for one, (number, where) in places.items():
                if not self.world.reserve(one, where, attempt=number).code:
                    self.waits[one] = number, where, self.world.clock.monotonic()
        elif (place := self.reserved(name, simulated=False)) is not None:
            self.waits[name] = *place, self.world.clock.monotonic()
            self.queue += [one for one in mine if one not in self.waits]
        else:
            self.fails(mine)

    def reserved(self, name: str, *, simulated: bool) -> tuple[int, str] | None:
        """The attempt and the node of a pod with a place."""
        nodes = self.world.propose(name, simulated=simulated).nodes
        self.hear()
        if not nodes:
            return None
        where = self.chance.choice(nodes)
        refused = self.world.reserve(name, where, simulated=simulated).code
        self.hear()
        return None if refused else (self.world.number, where)


def test_nothing_is_woken_where_nothing_happens() -> None:
    """A failed seed is named."""
    for seed in range(SEEDS):
        try:
            asyncio.run(Rest(seed).run())
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error

"""Two deciders on the same cards: the service allocates shares to pods, Kubernetes' scheduler allocates claims.

Both decide by late news. The store accepts each write, and asks the leader before it stores a claim's allocation, as an
API server does. An admitted write arrives at any time, under any later leader, or never. A step is a name and three
small numbers, so that each part of a sequence is a sequence too.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from world import UNKNOWN, FakeApi, Manifest, device, document, node, pod

from claim_documents import claim, result, share
from fakes.clock import InstantClock
from partage.extender.claim_arbiter import WAIT
from partage.extender.service import SchedulerService
from partage.vendors import names
from partage.wire.documents import Document

Step = tuple[str, int, int, int]

GIB = 2**30
NODES = ("n1", "n2")
SHARES = ((30, 4), (50, 8), (70, 2), (100, 16), (10, 10))
"""Percent and GiB of a card of 16 GiB that one may ask for."""
WEIGHTS = {
    "pod": 8,
    "allocate": 12,
    "land": 10,
    "lose": 2,
    "withdraw": 3,
    "hear": 16,
    "scheduler_hears": 8,
    "share_claim": 2,
    "deallocate": 5,
    "delete_claim": 2,
    "end_pod": 4,
    "time": 3,
    "fail_over": 1,
    "remake": 1,
    "dry_run": 1,
}


def sequence(seed: int, most: int = 45) -> list[Step]:
    """The steps of a seed."""
    chance = random.Random(seed)  # noqa: S311 # reproducible on purpose
    kinds = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=chance.randint(8, most))
    return [
        (kind, chance.randrange(64), chance.randrange(64), chance.randrange(64)) for kind in kinds
    ]


class Races:
    """A store, two instances of the service, and a scheduler of claims.

    Attributes:
        claims: as the store has them, by name.
        writes: allocations that were admitted and have not arrived: claim's name, its version then, results, and the
            question that was asked.
        refused: allocations that the leader has refused.
    """

    def __init__(self) -> None:
        self.clock = InstantClock()
        self.api = FakeApi(self.clock)
        self.claims: dict[str, Manifest] = {}
        self.writes: list[tuple[str, str, list[Manifest], str]] = []
        self.refused = self.stored = 0
        self._version = 100
        self._count = 0
        self._heard: dict[str, list[Callable[[SchedulerService], None]]] = {"0": [], "1": []}
        self._scheduler: dict[str, list[Manifest]] = {}
        self._news: list[tuple[str, list[Manifest]]] = []
        self.services = [
            SchedulerService(self.api, self.clock, outdate=self._outdate) for _ in range(2)
        ]
        self._between = False
        self._leader = 0

    @property
    def leader(self) -> SchedulerService:
        """The instance that gets the questions."""
        return self.services[self._leader]

    async def start(self) -> None:
        """Two nodes of two cards, and a leader."""
        for one in self.services:
            await self._list(one)
        self.leader.lead()

    async def _list(self, service: SchedulerService) -> None:
        self._heard[str(self.services.index(service))].clear()
        await service.rebuild(
            [
                document(one)
                for one in (
                    *map(node, NODES),
                    *map(device, NODES),
                    *self.api.pods.values(),
                    *self.claims.values(),
                )
            ]
        )

    async def _outdate(self, _namespace: str, name: str) -> Document | None:
        """A leader writes a claim; what was on its way may come just before."""
        if self._between:
            await self._land(0, 0, 0)
        found = self.claims.get(name)
        if found is None:
            return None
        if not found["status"].get("allocation"):
            found["metadata"].pop("finalizers", None)
        self._write(found)
        return document(found)

    async def step(self, step: Step) -> None:
        """Do one thing, and look at what the store has."""
        kind, one, two, three = step
        await getattr(self, f"_{kind}")(one, two, three)
        self.check()

    # --- pods ----------------------------------------------------------------------------------

    async def _pod(self, one: int, two: int, three: int) -> None:
        """A pod comes and is scheduled; its Binding may end in any way."""
        self._count += 1
        name = f"pod-{self._count}"
        core, memory = SHARES[one % len(SHARES)]
        manifest = pod(
            name,
            {
                "nvidia.com/gpu": "1",
                "nvidia.com/gpucores": str(core),
                "nvidia.com/gpumem": str(memory * 1024),
            },
        )
        self.api.pods[name] = manifest
        self._tell_pod(name)
        if two % 4 == 0:
            self.api.answers, self.api.takes = [UNKNOWN], [bool(three % 2)]
        body = {"Pod": manifest, "Nodes": None, "NodeNames": list(NODES)}
        answer = json.loads(self.leader.filter(json.dumps(body).encode()))
        if answer.get("NodeNames"):
            bound = {
                "PodName": name,
                "PodNamespace": "team",
                "PodUID": f"uid-{name}",
                "Node": answer["NodeNames"][three % len(answer["NodeNames"])],
            }
            await self.leader.bind(json.dumps(bound).encode())
            self._tell_pod(name)
        self.api.answers, self.api.takes = [], []

    def _tell_pod(self, name: str) -> None:
        self._version += 1
        self.api.pods[name]["metadata"]["resourceVersion"] = str(self._version)
        text = json.dumps(self.api.pods[name])
        self._tell(lambda service: service.changed(document(json.loads(text))))

    async def _end_pod(self, one: int, _two: int, _three: int) -> None:
        if self.api.pods:
            name = list(self.api.pods)[one % len(self.api.pods)]
            del self.api.pods[name]
            self._tell(lambda service: service.pod_gone(f"uid-{name}"))

    # --- claims --------------------------------------------------------------------------------

    async def _allocate(self, one: int, two: int, three: int) -> None:
        """Kubernetes' scheduler takes the first card that fits by what it has heard, and the leader is asked."""
        name = f"claim-{one % 5}"
        if name not in self.claims:
            self._count += 1
            self._write(_free(name, f"{name}-{self._count}"))
        stored = self.claims[name]
        if stored["status"].get("allocation"):
            return
        if "finalizers" not in stored["metadata"]:
            stored["metadata"]["finalizers"] = [names.CLAIM_FINALIZER]
            self._write(stored)
        results = self._first_fit(*SHARES[two % len(SHARES)], whole=three % 7 == 0)
        if not results:
            return
        if three % 5 == 0:
            results *= 2  # as Kubernetes' scheduler has doubled devices
        wanted = {**stored, "status": {"allocation": {"devices": {"results": results}}}}
        self._count += 1
        question = f"question-{self._count}"
        if self.leader.review_claim(document(wanted), question=question):
            self.refused += 1
            return
        self.writes.append((name, stored["metadata"]["resourceVersion"], results, question))

    async def _dry_run(self, one: int, two: int, _three: int) -> None:
        results = self._first_fit(*SHARES[two % len(SHARES)], whole=False)
        stored = self.claims.get(f"claim-{one % 5}")
        if (
            results
            and stored
            and not stored["status"].get("allocation")
            and not self._pending(stored)
        ):
            wanted = {**stored, "status": {"allocation": {"devices": {"results": results}}}}
            self.leader.review_claim(document(wanted), dry_run=True)

    def _pending(self, stored: Manifest) -> bool:
        return any(name == stored["metadata"]["name"] for name, *_ in self.writes)

    def _first_fit(self, core: int, memory: int, *, whole: bool) -> list[Manifest]:
        """By the claims that it has heard of alone: it does not look at pods."""
        used: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for results in self._scheduler.values():
            for one in results:
                amounts = one.get("consumedCapacity", {"cores": "100", "memory": "16Gi"})
                card = used[one["pool"], one["device"]]
                card[0] += int(amounts["cores"])
                card[1] += int(amounts["memory"].removesuffix("Gi"))
        for pool in NODES:
            for name in ("gpu-0", "gpu-1"):
                taken = used[pool, name]
                if whole and not any(taken):
                    return [result(name, pool=pool)]
                if not whole and taken[0] + core <= 100 and taken[1] + memory <= 16:
                    self._count += 1
                    identity = f"s{self._count}"
                    return [share(name, str(core), f"{memory}Gi", pool=pool, shareID=identity)]
        return []

    def _write(self, manifest: Manifest) -> None:
        """Store a claim and report it."""
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)
        self.claims[manifest["metadata"]["name"]] = manifest
        text = json.dumps(manifest)
        self._tell(lambda service: service.changed(document(json.loads(text))))
        self._news.append((manifest["metadata"]["uid"], _results(manifest)))

    async def _land(self, one: int, _two: int, _three: int) -> None:
        """An allocation arrives, unless the claim has changed meanwhile."""
        if not self.writes:
            return
        name, version, results, _ = self.writes.pop(one % len(self.writes))
        stored = self.claims.get(name)
        if stored is None or stored["metadata"]["resourceVersion"] != version:
            return
        self.stored += 1
        self._write(claim(*results, name=name, uid=stored["metadata"]["uid"]))

    async def _lose(self, one: int, _two: int, _three: int) -> None:
        if self.writes:
            self.writes.pop(one % len(self.writes))

    async def _withdraw(self, one: int, _two: int, _three: int) -> None:
        """The API server had no answer in time, and the webhook says so."""
        if self.writes:
            *_, question = self.writes.pop(one % len(self.writes))
            self.leader.withdraw_review(question)

    async def _share_claim(self, one: int, two: int, _three: int) -> None:
        """One more pod, or one less, uses an allocated claim; the leader gets no question."""
        stored = self.claims.get(f"claim-{one % 5}")
        if stored is not None and stored["status"].get("allocation"):
            pods = [{"resource": "pods", "name": f"p{n}"} for n in range(two % 4)]
            self._write(
                claim(
                    *_results(stored),
                    name=stored["metadata"]["name"],
                    uid=stored["metadata"]["uid"],
                    reservedFor=pods,
                )
            )

    async def _deallocate(self, one: int, _two: int, _three: int) -> None:
        stored = self.claims.get(f"claim-{one % 5}")
        if stored is not None and stored["status"].get("allocation"):
            self._write(_free(stored["metadata"]["name"], stored["metadata"]["uid"]))

    async def _delete_claim(self, one: int, _two: int, _three: int) -> None:
        stored = self.claims.pop(f"claim-{one % 5}", None)
        if stored is not None:
            self._tell(lambda service: service.gone(document(stored)))
            self._news.append((stored["metadata"]["uid"], []))

    # --- time, news and leaders ----------------------------------------------------------------

    def _tell(self, fact: Callable[[SchedulerService], None]) -> None:
        for queue in self._heard.values():
            queue.append(fact)

    async def _hear(self, one: int, two: int, _three: int) -> None:
        """An instance hears the next few facts of the store."""
        which = one % 3 % 2
        queue = self._heard[str(which)]
        for _ in range(1 + two % 4):
            if queue:
                queue.pop(0)(self.services[which])

    async def _scheduler_hears(self, one: int, _two: int, _three: int) -> None:
        for _ in range(1 + one % 3):
            if self._news:
                uid, results = self._news.pop(0)
                self._scheduler[uid] = results

    async def _time(self, one: int, _two: int, _three: int) -> None:
        """Time passes."""
        await self.clock.sleep((1.0, 20.0, WAIT + 1)[one % 3])
        await self.leader.tick()

    async def _fail_over(self, one: int, two: int, three: int) -> None:
        """Another instance leads, which may know nothing: what the one before admitted arrives at any time, or never."""
        self.leader.follow()
        self._leader = 1 - self._leader
        if one % 2:
            self.services[self._leader] = SchedulerService(
                self.api, self.clock, outdate=self._outdate
            )
        await self._list(self.leader)
        listed = [document(one) for one in self.claims.values()]
        if two % 2:
            await self._land(three, 0, 0)
        self._between = bool(three % 2)
        await self.leader.outdate_claims(listed, self.clock.monotonic())
        self._between = False
        self.leader.lead()

    async def _remake(self, _one: int, _two: int, _three: int) -> None:
        """The books of the leader are rebuilt while allocations are on their way."""
        await self._list(self.leader)

    # --- the laws ------------------------------------------------------------------------------

    def check(self) -> None:
        """No card of the store is allocated beyond its amounts, by pods and claims together.

        Raises:
            AssertionError: with the card and what is on it.
        """
        used: dict[tuple[str, str], list[tuple[str, int, int]]] = defaultdict(list)
        for name, manifest in self.api.pods.items():
            text = manifest["metadata"].get("annotations", {}).get(names.ALLOCATION)
            place = manifest["spec"].get("nodeName")
            for container in json.loads(text)["containers"] if text and place else ():
                for one in container["devices"]:
                    used[place, f"gpu-{one['minor']}"].append((name, one["milli"], one["bytes"]))
        for name, manifest in self.claims.items():
            for one in _results(manifest):
                amounts = one.get("consumedCapacity", {"cores": "100", "memory": "16Gi"})
                memory = int(amounts["memory"].removesuffix("Gi")) * GIB
                used[one["pool"], one["device"]].append((name, int(amounts["cores"]) * 10, memory))
        for card, held in used.items():
            assert sum(core for _, core, _ in held) <= 1000, (card, held)
            assert sum(memory for *_, memory in held) <= 16 * GIB, (card, held)

    async def settle(self) -> None:
        """Every fact has arrived and every reservation has ended: the books are those of the store.

        Raises:
            AssertionError: something leaked, or is missing.
        """
        while self.writes:
            await self._land(0, 0, 0)
        for number, service in enumerate(self.services):
            queue = self._heard[str(number)]
            while queue:
                queue.pop(0)(service)
        for _ in range(3):
            await self.clock.sleep(WAIT + 1)
            for service in self.services:
                await service.tick()
        self.check()
        wanted = {
            manifest["metadata"]["uid"]
            for manifest in (*self.api.pods.values(), *self.claims.values())
            if manifest.get("spec", {}).get("nodeName") or _results(manifest)
        }
        books = self.leader.books
        held = {one.uid for one in books.engine.ledger.allocations()}
        assert held == wanted, (held - wanted, wanted - held)
        assert not self.leader.claims.reserved
        for service in self.services:
            service.books.engine.ledger.validate()
        assert self.leader.audit().clean
        assert not self.leader.books.engine.ledger.suspicions()


def _free(name: str, uid: str) -> Manifest:
    """A claim that no scheduler has begun to allocate."""
    made = claim(name=name, uid=uid)
    del made["metadata"]["finalizers"]
    return made


def _results(manifest: Manifest) -> list[Manifest]:
    allocation: dict[str, Any] = manifest.get("status", {}).get("allocation") or {}
    return list(allocation.get("devices", {}).get("results", []))


async def played(steps: list[Step]) -> Races:
    """A sequence, to its end."""
    races = Races()
    await races.start()
    for step in steps:
        await races.step(step)
    await races.settle()
    return races

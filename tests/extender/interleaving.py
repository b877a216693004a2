"""Random interleavings of all events around a scheduler service.

A sequence is a list of steps. Each step is a name and three small numbers, whose meaning depends on
the state at that moment. So every part of a sequence is a sequence too, and a sequence that breaks a law
becomes shorter without some of its steps.
"""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from interleaved_api import LATE, Fact, Manifest, ModelApi, Stored
from world import unlisted

from fakes.clock import InstantClock
from partage.extender.explain import explain
from partage.extender.ports import Hooks
from partage.extender.service import Meters, SchedulerService
from partage.model.errors import LedgerError
from partage.scheduler.engine import State
from partage.scheduler.events import HoldEnded

Step = tuple[str, int, int, int]

ASKS: tuple[dict[str, str], ...] = (
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    {"koordinator.sh/gpu": "100"},
    {"koordinator.sh/gpu": "200"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6000", "nvidia.com/gpucores": "40"},
    {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "5"},
    {"kubernetes.io/gpu-core": "70", "kubernetes.io/gpu-memory-ratio": "70"},
    {"koordinator.sh/gpu": "150"},  # against the rules: it never fits
    {"cpu": "1"},
)
NODES = ("n1", "n2", "n3")
FATES = ("done",) * 6 + ("slow", "slow", "refused", "lost", "unanswered", "late", "late")
WEIGHTS = {
    "create": 10,
    "schedule": 14,
    "filter": 5,
    "prioritize": 1,
    "bind": 4,
    "deliver": 10,
    "delete": 4,
    "finish": 2,
    "mark": 1,
    "replace": 1,
    "answer": 4,
    "arrive": 2,
    "repeat": 2,
    "reorder": 2,
    "gap": 2,
    "time": 5,
    "silence": 1,
    "restart": 1,
    "mend": 1,
    "flip": 2,
    "node": 1,
    "devices": 1,
    "nominate": 1,
    "audit": 1,
}

_MOST_ROUNDS = 60


class Broken(AssertionError):
    """A law does not hold."""


def sequence(
    seed: int, least: int = 6, most: int = 24, weights: Mapping[str, int] = WEIGHTS
) -> list[Step]:
    """The steps of a seed; `weights` says how often each kind comes."""
    chance = random.Random(seed)  # noqa: S311 # reproducible on purpose
    length = chance.randint(least, most)
    kinds = chance.choices(list(weights), list(weights.values()), k=length)
    return [
        (kind, chance.randrange(64), chance.randrange(64), chance.randrange(64)) for kind in kinds
    ]


class Interleaving:
    """One cluster, one scheduler service after another, and kube-scheduler."""

    def __init__(self, meters: Meters, api: type[ModelApi] = ModelApi) -> None:
        self.clock = InstantClock()
        self.api = api(self.clock)
        self._meters = meters
        self.known: dict[tuple[str, str], Fact] = {}
        self.reasons: dict[str, tuple[str, str]] = {}
        self.woken: set[str] = set()
        self.service = self._made()
        self.binds: list[asyncio.Task[bytes]] = []
        self.ever: list[Stored] = []
        self.answers: dict[str, list[str]] = {}
        self.lossy = False
        self._validated: list[object] = []

    def _made(self) -> SchedulerService:
        hooks = Hooks(
            wake=self.woken.update,
            refused=lambda entry, refusal: self.reasons.update(
                {entry.pod.uid: (refusal.code.value, refusal.message)}
            ),
        )
        return SchedulerService(self.api, self.clock, hooks, meters=self._meters)

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Two nodes of two cards, and a leader."""
        for name in NODES[:2]:
            self.api.put("Node", name, _node(name))
            self.api.put("Device", name, _device(name))
        await self._lead()

    async def close(self) -> None:
        """Everything that was begun ends."""
        for task in self.binds:
            task.cancel()
        await asyncio.gather(*self.binds, return_exceptions=True)

    async def _lead(self) -> None:
        """List again, rebuild and serve; nothing older than the list arrives any more."""
        self.api.facts.clear()
        self.api.told.clear()
        kinds = {kind: self.api.listed(kind) for kind in ("Node", "Device", "Pod")}
        self.known = {
            (kind, _key(kind, one)): Fact(kind, _key(kind, one), one)
            for kind, found in kinds.items()
            for one in found
        }
        await self.service.rebuild([one for found in kinds.values() for one in found])
        self.service.lead()

    async def step(self, step: Step) -> None:
        """Do one thing, and look at the laws that always hold."""
        kind, one, two, three = step
        await getattr(self, f"_{kind}")(one, two, three)
        await self._others()
        self.check()

    async def _others(self) -> None:
        if not self.binds:
            return
        for _ in range(6):
            await asyncio.sleep(0)

    # --- people and kubelets -----------------------------------------------------------------

    async def _create(self, one: int, two: int, three: int) -> None:
        self._new(f"pod-{len(self.ever)}", one, two, three)

    def _new(self, name: str, one: int, two: int, three: int) -> None:
        limits = ASKS[one % len(ASKS)]
        spec: Manifest = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
        if not two % 3:
            spec["topologySpreadConstraints"] = [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        pod = Stored(f"uid-{len(self.ever)}", name, spec | {"priority": three % 3})
        self.ever.append(pod)
        self.api.changed(pod)

    async def _delete(self, one: int, _two: int, _three: int) -> None:
        if self.api.pods:
            self.api.delete(list(self.api.pods)[one % len(self.api.pods)])

    async def _replace(self, one: int, two: int, three: int) -> None:
        """A StatefulSet's pod: gone, and back under its name with another uid."""
        if self.api.pods:
            uid = list(self.api.pods)[one % len(self.api.pods)]
            name = self.api.pods[uid].name
            self.api.delete(uid)
            self._new(name, two, three, 0)

    async def _finish(self, one: int, _two: int, _three: int) -> None:
        running = [pod for pod in self.api.pods.values() if pod.node]
        if running:
            pod = running[one % len(running)]
            pod.phase = "Succeeded"
            self.api.changed(pod)

    async def _mark(self, one: int, _two: int, _three: int) -> None:
        """A pod is being deleted."""
        if self.api.pods:
            pod = list(self.api.pods.values())[one % len(self.api.pods)]
            pod.deleting = True
            self.api.changed(pod)

    async def _nominate(self, one: int, two: int, _three: int) -> None:
        pending = [pod for pod in self.api.pods.values() if not pod.node]
        if pending:
            pod = pending[one % len(pending)]
            pod.nominated = ("", *NODES)[two % 4]
            self.api.changed(pod)

    async def _flip(self, one: int, two: int, three: int) -> None:
        """A card fails, or is well again."""
        name = NODES[one % 2]
        if ("Device", name) in self.api.others:
            self.api.put("Device", name, _device(name, sick=two % 4 if three % 2 else None))

    async def _node(self, one: int, two: int, _three: int) -> None:
        """The third node comes or goes; now and then another goes that has pods."""
        name = NODES[2] if two % 4 else NODES[one % 2]
        if ("Node", name) in self.api.others:
            self.api.drop("Node", name)
        else:
            self.api.put("Node", name, _node(name))
            if ("Device", name) not in self.api.others:
                self.api.put("Device", name, _device(name))

    async def _devices(self, one: int, _two: int, _three: int) -> None:
        """A Device object goes, or is back."""
        name = NODES[one % 2]
        if ("Device", name) in self.api.others:
            self.api.drop("Device", name)
        else:
            self.api.put("Device", name, _device(name))

    # --- kube-scheduler ----------------------------------------------------------------------

    def _pod(self, one: int, two: int) -> Stored | None:
        """A pod that waits; now and then any there ever was, as a stale cache would name."""
        waiting = [pod for pod in self.api.pods.values() if not pod.node]
        if two % 8 and waiting:
            return waiting[one % len(waiting)]
        return self.ever[one % len(self.ever)] if self.ever else None

    def ask(self, pod: Stored, names: Sequence[str], verb: str = "filter") -> Any:
        """Filter or prioritize."""
        body = json.dumps({"Pod": pod.manifest(), "NodeNames": list(names)}).encode()
        if self.service.closed:
            return {}
        before = self.service.books.engine.ledger.picture() if verb == "prioritize" else None
        answer = json.loads(getattr(self.service, verb)(body))
        if before is not None and before != self.service.books.engine.ledger.picture():
            raise Broken("prioritize changed the books")
        if verb == "filter":
            self.woken.discard(pod.uid)
            if answer["Error"]:
                self.answers.pop(pod.uid, None)  # kube-scheduler tries again by itself
                return answer
            found = self.answers[pod.uid] = list(answer["NodeNames"])
            if not found and len(names) < len(NODES):
                # Its own rules left nodes out: it tries again when those would pass.
                del self.answers[pod.uid]
            asks = pod.spec["containers"][0]["resources"]["limits"] != ASKS[-1]
            if found and asks and self.service.books.engine.states.get(pod.uid) is not State.HELD:
                raise Broken(f"{pod.uid} passed and nothing is held for it")
        return answer

    def turn(self, pod: Stored) -> list[str]:
        """Filter as kube-scheduler does: the node that a pod is nominated for, and then all."""
        if pod.nominated:
            self.ask(pod, [pod.nominated])
            if self.answers.get(pod.uid):
                return self.answers[pod.uid]
        self.ask(pod, NODES)
        return self.answers.get(pod.uid, [])

    async def _filter(self, one: int, two: int, three: int) -> None:
        pod = self._pod(one, two)
        if pod is not None:
            self.ask(pod, NODES if three % 4 else NODES[: 1 + three % 2])

    async def _prioritize(self, one: int, two: int, _three: int) -> None:
        pod = self._pod(one, two)
        if pod is not None:
            self.ask(pod, NODES, "prioritize")

    async def _schedule(self, one: int, two: int, three: int) -> None:
        """Filter and bind, as kube-scheduler does one after the other."""
        pod = self._pod(one, two)
        if pod is not None:
            found = self.turn(pod)
            if found:
                await self.bind(pod, found[three % len(found)], FATES[three % len(FATES)])

    async def _bind(self, one: int, two: int, three: int) -> None:
        """Bind anywhere, filtered or not; a retry too, and now and then a wrong uid."""
        pod = self._pod(one, two)
        if pod is not None:
            uid = "uid-of-nobody" if not three % 9 else pod.uid
            await self.bind(pod, NODES[two % 3], FATES[three % len(FATES)], uid)

    async def bind(self, pod: Stored, node: str, fate: str, uid: str = "") -> None:
        """Send bind, and do not wait for what is slow."""
        if self.service.closed:
            return
        self.api.fates = [fate]
        body = {
            "PodName": pod.name,
            "PodNamespace": "team",
            "PodUID": uid or pod.uid,
            "Node": node,
        }
        task = asyncio.get_running_loop().create_task(self.service.bind(json.dumps(body).encode()))
        self.binds.append(task)
        await self._others()
        self.api.fates = []
        self._collect()

    def _collect(self) -> None:
        for task in self.binds:
            if task.done():
                task.result()
        self.binds = [task for task in self.binds if not task.done()]

    # --- the network -------------------------------------------------------------------------

    async def _answer(self, one: int, two: int, _three: int) -> None:
        """A slow Binding is answered at last."""
        if self.api.waiting:
            _, told = self.api.waiting.pop(one % len(self.api.waiting))
            fates = [fate for fate in FATES if fate != "slow"]
            told.set_result(fates[two % len(fates)])
            await self._others()
            self._collect()

    async def _arrive(self, one: int, _two: int, _three: int) -> None:
        self.api.arrive(drop=not one % 3)

    async def _silence(self, one: int, _two: int, _three: int) -> None:
        self.api.silent = one % 5

    async def _deliver(self, one: int, _two: int, _three: int) -> None:
        count = 1 + one % 6
        facts, self.api.facts = self.api.facts[:count], self.api.facts[count:]
        for fact in facts:
            self.tell(fact)

    async def _repeat(self, one: int, _two: int, _three: int) -> None:
        """An earlier event is sent again."""
        if self.api.told:
            self.tell(self.api.told[one % len(self.api.told)], again=True)

    async def _reorder(self, one: int, two: int, _three: int) -> None:
        """A later event of a pod comes before earlier ones."""
        pods = [fact for fact in self.api.facts if fact.kind == "Pod"]
        if pods:
            fact = pods[one % len(pods)]
            self.api.facts.remove(fact)
            self.tell(fact)
            if two % 2:
                self.api.facts.append(fact)

    async def _gap(self, _one: int, _two: int, _three: int) -> None:
        """The watch loses everything that it had to tell, and the informer lists afresh."""
        self.lossy = True
        self.api.facts.clear()
        fresh = {
            (kind, _key(kind, one)): Fact(kind, _key(kind, one), one)
            for kind in ("Node", "Device", "Pod")
            for one in self.api.listed(kind)
        }
        for place, fact in list(self.known.items()):
            if place not in fresh:
                self.tell(Fact(fact.kind, fact.key, fact.document, gone=True))
        for fact in fresh.values():
            self.tell(fact)

    def tell(self, fact: Fact, *, again: bool = False) -> None:
        """Hand one event to the service, as the daemon does."""
        if not again:
            self.api.told.append(fact)
            if fact.gone:
                self.known.pop((fact.kind, fact.key), None)
            else:
                self.known[fact.kind, fact.key] = fact
        elif fact.kind != "Pod":
            return  # an informer tells nodes in order; pods are what must bear anything
        service = self.service
        if not fact.gone:
            service.changed(fact.document)
            return
        service.gone(fact.document)
        if fact.kind == "Pod":
            self.reasons.pop(fact.key, None)

    # --- time and restarts -------------------------------------------------------------------

    async def _time(self, one: int, two: int, _three: int) -> None:
        """Time passes; a Binding that is late arrives before its time is over, or never."""
        seconds = (0.5, 1.0, 6.0, 11.0, 31.0)[one % 5]
        if self.api.late and seconds > 1.0:
            self.api.arrive(drop=bool(two % 2))
        self.clock.pass_time(seconds)
        self.api.expire()
        await self.service.tick()
        self.api.expire()
        now = self.clock.monotonic()
        ended = [uid for uid, end in self.service.books.cycle.holds.items() if end <= now]
        if ended and self.service.rebuilt:
            raise Broken(f"holds of {ended} outlived their time")

    async def _audit(self, _one: int, _two: int, _three: int) -> None:
        """The daemon's look; in the middle of things it may find what is on its way, no more."""
        broken = self.service.audit().broken
        if broken:
            raise Broken(broken)

    async def _restart(self, one: int, _two: int, _three: int) -> None:
        """The process dies; the next waits out the quiet period, in which its Bindings arrive or not."""
        self.service.follow()
        for task in self.binds:
            task.cancel()
        for end in self.service.bindings.busy.values():
            end.cancel()
        await asyncio.gather(
            *self.binds, *self.service.bindings.busy.values(), return_exceptions=True
        )
        for number, (binding, _told) in enumerate(self.api.waiting):
            if (one >> number) % 2:
                self.api.carry_out(binding)
        self.api.waiting, self.binds = [], []
        self.api.arrive(drop=bool(one % 2))
        self.reasons.clear()
        self.service = self._made()
        await self._lead()
        # The new leader does not know which pods the old one refused: it wakes every waiting pod.
        self.woken.update(pod.uid for pod in self.api.pods.values() if not pod.node)

    async def _mend(self, one: int, two: int, three: int) -> None:
        """The running service rebuilds its books, as after an audit that found something."""
        self.service.follow()
        while self.api.waiting:
            await self._answer(one, two, three)
        await self.service.bindings.drain()
        self.api.arrive(drop=bool(one % 2))
        await self._lead()

    # --- laws --------------------------------------------------------------------------------

    def check(self) -> None:
        """What holds at every moment.

        Raises:
            Broken: with the law and what breaks it.
        """
        if self.api.broken:
            raise Broken(self.api.broken[0])
        books = self.service.books
        engine = books.engine
        held = [*engine.ledger.allocations()]
        now: list[object] = [engine.ledger, engine.ledger.node_changes.count, *held]
        if now != self._validated:
            self._validated = now
            try:
                engine.ledger.validate()
            except LedgerError as error:
                raise Broken(str(error)) from error
        wrong = unlisted(books)
        if wrong:
            raise Broken(wrong)
        owners: dict[State, Callable[[str], bool]] = {
            State.HELD: lambda uid: self._held(uid) and uid not in books.cluster_cache.deleted,
            State.RESERVED: self._reserved,
            State.UNKNOWN: lambda uid: uid in books.unread,
            State.BOUND: lambda uid: uid not in books.cycle.holds,
        }
        for uid, state in engine.states.items():
            if not owners[state](uid):
                raise Broken(f"{uid} is {state} without an owner")
        for one in held:
            if one.uid not in engine.states:
                raise Broken(f"{one.uid} holds devices and has no state")
        for waiting in books.waiting.values():
            uid, refusal = waiting.entry.pod.uid, waiting.refusal
            if engine.states.get(uid) is State.BOUND:
                raise Broken(f"{uid} is bound and waits")
            if uid in books.cluster_cache.deleted:
                raise Broken(f"{uid} is gone and waits")
            told = self._told(uid)
            if told is not None and told != (refusal.code.value, refusal.message):
                raise Broken(f"{uid} waits for {refusal.message}, and was reported as {told}")

    def _told(self, uid: str) -> tuple[str, str] | None:
        """The reason that was reported for a pod's waiting."""
        return self.reasons.get(uid)

    def _held(self, uid: str) -> bool:
        """Whether a place that is kept for a pod ends by itself."""
        return uid in self.service.books.cycle.holds

    def _reserved(self, uid: str) -> bool:
        """Whether a Binding of the pod, or its release, is in progress."""
        return uid in self.service.bindings.busy

    async def settle(self) -> None:
        """Faults end, all events arrive, kube-scheduler tries the woken pods; then the laws.

        Raises:
            Broken: with the law and what breaks it.
        """
        self.api.silent = 0
        while self.api.waiting:
            await self._answer(0, 0, 0)
        self.api.arrive()
        await self._rest()
        if self.lossy and not self.service.audit(self.api.listed("Pod")).clean:
            # What came and went within a gap, only the audit can see.
            await self._mend(0, 0, 0)
            await self._rest()
        await self._settled()

    async def _rest(self) -> None:
        """Send all events, and let kube-scheduler try until it has no pod left to try."""
        self._hear()
        rounds, tried = 0, 2
        while tried:
            tried -= 1
            rounds += 1
            if rounds > _MOST_ROUNDS:
                raise Broken("kube-scheduler never comes to rest")
            self.clock.pass_time(LATE + 1)
            await self.service.tick()
            for pod in list(self.api.pods.values()):
                # A refused pod is tried again only when woken; others come back by themselves.
                refused = self.answers.get(pod.uid) == [] and pod.uid not in self.woken
                if not pod.node and not pod.deleting and not refused:
                    tried = 2
                    found = self.turn(pod)
                    if found:
                        await self.bind(pod, found[0], "done")
            self._hear()
            self.check()
        await self._holds_end()

    async def _holds_end(self) -> None:
        """Kept rooms end, and their ends are reported."""
        for _ in range(3):
            self.clock.pass_time(61.0)
            await self.service.tick()
            self._hear()

    def _hear(self) -> None:
        while self.api.facts:
            self.tell(self.api.facts.pop(0))

    async def _settled(self) -> None:
        self.check()
        books = self.service.books
        books.engine.audit()
        found = self.service.audit(self.api.listed("Pod"))
        if not found.clean:
            raise Broken(f"the audit finds {found}")
        self._reasons()
        fresh = self._made()
        kinds = ("Node", "Device", "Pod")
        await fresh.rebuild([one for kind in kinds for one in self.api.listed(kind)])
        for uid in [u for u, state in books.engine.states.items() if state is State.HELD]:
            pod = self.api.pods.get(uid)
            if pod is None or not pod.nominated:
                raise Broken(f"{uid} is held for ever")
        for engine in (books.engine, fresh.books.engine):
            for uid in [u for u, state in engine.states.items() if state is State.HELD]:
                engine.handle(HoldEnded(uid))
        mine, theirs = books.engine.ledger.picture(), fresh.books.engine.ledger.picture()
        if mine != theirs:
            wrong = next(n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n))
            raise Broken(f"node {wrong} is {mine.get(wrong)}, rebuilt {theirs.get(wrong)}")

    def _reasons(self) -> None:
        """Every pod that waits has a reason, the one that a fresh look gives; no other pod has one."""
        books = self.service.books
        waiting = {one.entry.pod.uid: one for one in books.waiting.values()}
        for pod in self.api.pods.values():
            entry = books.cluster_cache.pods.get(pod.uid)
            if entry is None:
                continue  # without devices
            if entry.pod.node != (pod.node or None):
                raise Broken(f"{pod.uid} is on {pod.node}, and known on {entry.pod.node}")
            if pod.node or pod.deleting or pod.uid in books.cycle.holds:
                continue  # what is held at last is for the nominated pod
            if pod.uid not in waiting or pod.uid not in self.reasons:
                raise Broken(f"{pod.uid} waits without a known reason")
            told = explain(books, "team", pod.name)
            if told is None or told["reason"] is None:
                raise Broken(f"{pod.uid} waits, although it fits: {told}")
        stale = (waiting.keys() | books.cluster_cache.pods.keys()) - self.api.pods.keys()
        if stale:
            raise Broken(f"{stale} are long gone and still known")


def _key(kind: str, document: Any) -> str:
    key = document.metadata.uid if kind == "Pod" else document.metadata.name
    return str(key)


def _node(name: str) -> Manifest:
    return {
        "kind": "Node",
        "metadata": {"uid": f"uid-{name}"},
        "status": {"allocatable": {"cpu": "32", "memory": "64Gi", "pods": "110"}},
    }


def _device(name: str, sick: int | None = None) -> Manifest:
    amounts = {"gpu-core": "100", "gpu-memory": "16Gi", "gpu-memory-ratio": "100"}
    cards = [
        {
            "type": "gpu",
            "id": f"GPU-{name}-{minor}",
            "minor": minor,
            "health": minor != sick,
            "resources": {f"koordinator.sh/{key}": value for key, value in amounts.items()},
        }
        for minor in range(2)
    ]
    return {"kind": "Device", "metadata": {}, "spec": {"devices": cards}}


def failure(
    steps: Sequence[Step],
    meters: Meters,
    runner: Callable[..., Any],
    made: Callable[[Meters], Interleaving] = Interleaving,
) -> str:
    """Play the steps; what broke, with the number of the step, or empty."""

    async def play() -> str:
        world = made(meters)
        await world.start()
        at = 0
        try:
            for at, step in enumerate(steps):  # noqa: B007 # told below
                await world.step(step)
            at += 1
            await world.settle()
        except Exception as error:  # noqa: BLE001 # a traceback of the product is a failure too
            return f"step {at}: {type(error).__name__}: {error}"
        finally:
            await world.close()
        return ""

    played: Coroutine[Any, Any, str] = play()
    found: str = runner(played)
    return found


def shortest(steps: Sequence[Step], fails: Callable[[Sequence[Step]], str]) -> list[Step]:
    """The steps without those that the failure does not need."""
    kept = list(steps)
    for size in (8, 4, 2, 1):
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if fails(fewer):
                kept = fewer
            else:
                start += size
    return kept

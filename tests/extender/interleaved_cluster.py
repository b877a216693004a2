"""Random interleavings of the plugin, the service, the API server, and two nodes with their agents.

The steps, and how sequences become shorter, are those of `interleaving`. kube-scheduler has the plugin: it reserves
before it binds, and sends each Binding itself. A node reports its cards late, ill, or as they were before, and its
agent admits each container by the record that its kubelet knows.

Some things go beyond what the service can know: a Binding that arrives after every limit, a restored backup, a pod that
another writer bound, a forced deletion. Then the agents alone keep a card from being used twice.
"""

import asyncio
import copy
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
from interleaved_api import LATE, ModelApi, Stored
from interleaved_nodes import CARDS, Life, Machine, granted
from interleaving import FATES, Broken, Interleaving, _node

from fakes.clock import InstantClock
from partage.extender.attempts import Attempts
from partage.extender.ports import Answered, Binding, Outcome
from partage.extender.service import Meters
from partage.vendors import names
from partage.wire import plugin as wire

NODES = ("n1", "n2")
WEIGHTS = {
    "create": 14,
    "place": 24,
    "cycle": 8,
    "bind": 8,
    "unreserve": 1,
    "answer": 6,
    "arrive": 2,
    "disconnect": 1,
    "fence": 1,
    "deliver": 10,
    "gap": 1,
    "time": 3,
    "silence": 1,
    "restart": 1,
    "crash": 1,
    "mend": 1,
    "kubelet": 10,
    "run": 14,
    "end": 4,
    "tell": 3,
    "mark": 2,
    "delete": 4,
    "replace": 1,
    "finish": 1,
    "look": 2,
    "report": 2,
    "before": 1,
    "card": 5,
    "agent": 3,
    "stray": 2,
    "backup": 1,
    "restored": 1,
    "hand": 1,
    "tamper": 1,
}
_MOST_ROUNDS = 40


class LoggedApi(ModelApi):
    """Knows what each pod was ever bound with, and keeps the Bindings that no limit held back.

    Attributes:
        records: by uid, the node and the record of each Binding that was carried out.
        strays: Bindings of an earlier leader that may arrive at any time.
    """

    def __init__(self, clock: InstantClock) -> None:
        super().__init__(clock)
        self.records: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.strays: list[Binding] = []

    def carry_out(self, binding: Binding) -> Answered:
        """Act as the genuine server, and remember the Binding."""
        answer = super().carry_out(binding)
        if answer.outcome is Outcome.DONE:
            record = binding.annotations.get(names.ALLOCATION, "")
            self.records[binding.uid].append((binding.node, record))
        return answer

    @property
    def written(self) -> list[str]:
        """Every record that a Binding wrote."""
        return [record for known in self.records.values() for _, record in known]


class Cluster(Interleaving):
    """One cluster, whose kube-scheduler has the plugin and whose nodes have agents.

    Attributes:
        reserved: pods between Reserve and Bind, with the attempt and the node.
        beyond: something happened that the service cannot know.
    """

    api: LoggedApi

    def __init__(self, meters: Meters, folder: Path) -> None:
        super().__init__(meters, LoggedApi)
        self._folder = folder
        self.leads = True
        self.number = 1000  # kube-scheduler has run for a while; the next one begins with 1
        self.reserved: dict[str, tuple[int, str]] = {}
        self.binding: set[str] = set()
        self.attempts = self._plugged()
        self.beyond = False
        self.stored: dict[str, Stored] = {}
        self.machines: dict[str, Machine] = {}

    def _plugged(self) -> Attempts:
        return Attempts(self.service, lambda: self.leads, preempts=False)

    async def start(self) -> None:
        """Two nodes whose agents have reported two cards each, and a leader."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for name in NODES:
            self.api.put("Node", name, _node(name))
            self.machines[name] = machine = Machine(name, self._folder, self.api)
            machine.report()
        await self._lead()

    async def close(self) -> None:
        """End the agents too."""
        await super().close()
        for machine in self.machines.values():
            machine.end()

    # --- kube-scheduler ----------------------------------------------------------------------

    def _free(self, pod: Stored) -> bool:
        """Whether a pod is in kube-scheduler's queue."""
        return pod.uid not in self.reserved and pod.uid not in self.binding

    async def _cycle(self, one: int, two: int, three: int) -> None:
        """PreFilter, and Reserve unless its own filters reject the pod."""
        pod = self._pod(one, two)
        if pod is not None and self._free(pod):
            self.try_one(pod, three, rejected=not two % 5)

    def try_one(self, pod: Stored, choice: int, *, rejected: bool = False) -> bool:
        """A cycle of one pod; whether it has a place now."""
        self.number += 1
        about: dict[str, Any] = {"version": str(pod.version), "nominated": pod.nominated}
        answer = self.attempts.propose(wire.Propose(1, pod.uid, self.number, **about))
        if answer.unseen:
            about["pod"] = msgspec.Raw(json.dumps(pod.manifest()).encode())
            answer = self.attempts.propose(wire.Propose(1, pod.uid, self.number, **about))
        self.woken.discard(pod.uid)
        self.answers.pop(pod.uid, None)
        if answer.code and answer.code not in (wire.STALE, wire.CHANGED, wire.CLOSED):
            self.answers[pod.uid] = []
        if rejected and answer.nodes:
            self.attempts.another(wire.Another(1, pod.uid, self.number, answer.nodes))
        if rejected or not answer.nodes:
            return False
        where = answer.nodes[choice % len(answer.nodes)]
        if self.attempts.reserve(wire.Reserve(1, pod.uid, self.number, where)).code:
            return False
        self.reserved[pod.uid] = self.number, where
        return True

    async def _place(self, one: int, two: int, three: int) -> None:
        """All that usually happens to a pod, one step after the other."""
        pod = self._pod(one, 1)
        if pod is None or not self._free(pod) or not self.try_one(pod, two):
            return
        _, where = self.reserved[pod.uid]
        await self.send(pod.uid, FATES[three % len(FATES)])
        machine = self.machines[where]
        machine.listen()
        if pod.uid in machine.pods and pod.uid not in machine.leaving:
            self.begun(machine, machine.start(pod.uid))

    async def _unreserve(self, one: int, _two: int, _three: int) -> None:
        if self.reserved:
            uid = list(self.reserved)[one % len(self.reserved)]
            number, _ = self.reserved.pop(uid)
            self.attempts.unreserve(wire.Unreserve(1, uid, number))

    async def _bind(self, one: int, _two: int, three: int) -> None:
        if self.reserved:
            uid = list(self.reserved)[one % len(self.reserved)]
            await self.send(uid, FATES[three % len(FATES)])

    async def send(self, uid: str, fate: str) -> None:
        """Bind, and do not wait for what is slow."""
        self.binding.add(uid)
        self._begin(self._bound(uid, *self.reserved.pop(uid), fate))
        await self._others()
        self._collect()

    def _begin(self, work: Any) -> None:
        self.binds.append(asyncio.get_running_loop().create_task(work))

    async def _bound(self, uid: str, number: int, node: str, fate: str) -> bytes:
        """Bind as the plugin does: ask, send, tell."""
        asked = self.attempts
        name = next(pod.name for pod in self.ever if pod.uid == uid)
        allowed: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        question = wire.Bind(1, uid, number, node)
        engine = asyncio.ensure_future(asked.bind(question, allowed.set_result))
        try:
            await asyncio.wait((engine, allowed), return_when=asyncio.FIRST_COMPLETED)
            if not allowed.done():
                engine.result()
                self.attempts.unreserve(wire.Unreserve(1, uid, number))
                return b""
            given = allowed.result()
            binding = Binding("team", name, uid, node, given.annotations, given.labels)
            self.api.fates = [fate]
            try:
                answer = await self.api.bind(binding)
            except OSError:
                answer = Answered(Outcome.UNKNOWN, "no answer")
            said = wire.Bound(2, uid, number, answer.outcome.value, answer.message)
            self.attempts.bound(said)
            if self.attempts is asked:
                await engine
            if answer.outcome is not Outcome.DONE:
                self.attempts.unreserve(wire.Unreserve(1, uid, number))
        finally:
            self.binding.discard(uid)
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
        return b""

    async def _disconnect(self, _one: int, _two: int, _three: int) -> None:
        """The connection breaks, and kube-scheduler goes on with what it had."""
        self.attempts.disconnected()
        await self._others()

    async def _fence(self, one: int, _two: int, _three: int) -> None:
        """The Lease cannot be renewed, or is again."""
        self.leads = bool(one % 3)

    async def _crash(self, one: int, _two: int, _three: int) -> None:
        """kube-scheduler dies; Bindings that it has sent may still arrive."""
        self.attempts.forget()
        await self._drop(one)
        self.number = 0

    async def _drop(self, one: int) -> None:
        """No sender waits for Bindings on the wire any more; one may be held up beyond every limit."""
        end = self.clock.monotonic() + LATE
        for number, (binding, _told) in enumerate(self.api.waiting):
            if (one >> number) % 3:
                self.api.late.append((end, binding))
            elif (one >> number) % 2:
                self.api.strays.append(binding)
        self.api.waiting = []
        for task in self.binds:
            task.cancel()
        await asyncio.gather(*self.binds, return_exceptions=True)
        self.binds = []
        self.reserved.clear()
        self.binding.clear()

    async def _restart(self, one: int, two: int, three: int) -> None:
        """Another leader, with its own kube-scheduler."""
        await self._drop(two)
        await super()._restart(one, two, three)
        self.leads, self.number = True, 0
        self.attempts = self._plugged()

    async def _mend(self, one: int, two: int, three: int) -> None:
        await super()._mend(one, two, three)
        self.attempts.rebuilt()

    async def _arrive(self, one: int, two: int, three: int) -> None:
        self.api.expire()
        await super()._arrive(one, two, three)

    # --- what the service cannot know --------------------------------------------------------

    async def _stray(self, one: int, _two: int, _three: int) -> None:
        """A Binding of an earlier leader arrives after all."""
        if self.api.strays:
            binding = self.api.strays.pop(one % len(self.api.strays))
            if self.api.carry_out(binding).outcome is Outcome.DONE:
                self.api.odd.add(binding.uid)
                self.beyond = True

    async def _backup(self, _one: int, _two: int, _three: int) -> None:
        """The API server's store is copied."""
        self.stored = copy.deepcopy(self.api.pods)

    async def _restored(self, one: int, _two: int, _three: int) -> None:
        """The store is the copy again; the service sees that it went back, and lists afresh."""
        if not self.stored:
            return
        self.beyond = True
        self.service.follow()
        while self.api.waiting:
            await self._answer(one, 0, 0)
        await self.service.bindings.drain()
        self.api.arrive(drop=bool(one % 2))
        self.api.pods, self.stored = self.stored, {}
        await self._lead()
        self.attempts.rebuilt()

    async def _hand(self, one: int, two: int, three: int) -> None:
        """A user names the node in a pod, perhaps with the record of another one."""
        copied = self.api.written
        self._new(f"pod-{len(self.ever)}", one, 1, three)
        pod = self.ever[-1]
        pod.node = NODES[two % 2]
        if copied and two % 3:
            pod.annotations = {names.ALLOCATION: copied[three % len(copied)]}
        self.api.odd.add(pod.uid)
        self.api.changed(pod)

    async def _tamper(self, one: int, two: int, three: int) -> None:
        """A bound pod's record is lost, is nonsense, or is another pod's."""
        bound = [pod for pod in self.api.pods.values() if pod.node]
        if bound:
            pod = bound[one % len(bound)]
            others = self.api.written
            text = ("", "{", others[three % len(others)] if others else "")[two % 3]
            pod.annotations = {names.ALLOCATION: text} if text else {}
            self.api.odd.add(pod.uid)
            self.api.changed(pod)

    # --- nodes -------------------------------------------------------------------------------

    def _machine(self, one: int) -> Machine:
        return self.machines[NODES[one % len(NODES)]]

    async def _kubelet(self, one: int, _two: int, _three: int) -> None:
        machine = self._machine(one)
        machine.listen()
        machine.leave()

    async def _run(self, one: int, two: int, three: int) -> None:
        """A container is made, or made again after it ended."""
        machine = self._machine(one)
        known = [uid for uid in machine.pods if uid not in machine.leaving]
        if known:
            dies = three % 16 if three % 16 < 3 else 0
            self.begun(machine, machine.start(known[two % len(known)], dies=dies))

    async def _end(self, one: int, two: int, _three: int) -> None:
        machine = self._machine(one)
        lives = [life for life in machine.lives.values() if not life.ended]
        if lives:
            machine.stop(lives[two % len(lives)])

    async def _tell(self, one: int, two: int, _three: int) -> None:
        machine = self._machine(one)
        lives = [life for life in machine.lives.values() if life.ended]
        if lives:
            machine.tell(lives[two % len(lives)])

    async def _finish(self, one: int, two: int, _three: int) -> None:
        """A pod's container has done its work."""
        machine = self._machine(one)
        lives = [life for life in machine.lives.values() if not life.ended]
        if lives:
            life = lives[two % len(lives)]
            machine.stop(life)
            machine.pods.pop(life.sandbox.uid, None)
            pod = self.api.pods.get(life.sandbox.uid)
            if pod is not None and pod.node == machine.name:
                pod.phase = "Succeeded"
                self.api.changed(pod)

    async def _look(self, one: int, _two: int, _three: int) -> None:
        machine = self._machine(one)
        if machine.keeper is not None:
            machine.look()

    async def _report(self, one: int, _two: int, _three: int) -> None:
        self._machine(one).report()

    async def _before(self, one: int, two: int, _three: int) -> None:
        """An earlier report arrives once more, as of an agent that is being replaced."""
        self._machine(one).report(two)

    async def _card(self, one: int, two: int, three: int) -> None:
        """A card is ill or well, falls off its bus or is back, or is another one."""
        machine, card = self._machine(one), two % CARDS
        match three % 4:
            case 0:
                machine.ill.symmetric_difference_update({card})
            case 1 | 2:
                machine.gone.symmetric_difference_update({card})
            case 3:
                machine.swaps += 1
                machine.identities[card] = f"GPU-{machine.name}-{card}-{machine.swaps}"
        if machine.keeper is not None and two % 3:
            machine.look()
            machine.report()

    async def _agent(self, one: int, _two: int, _three: int) -> None:
        """The agent dies, or one starts."""
        machine = self._machine(one)
        if machine.keeper is None:
            machine.begin()
        else:
            machine.end()

    # --- laws --------------------------------------------------------------------------------

    def begun(self, machine: Machine, life: Life | None) -> None:
        """A container that got cards got those of a record that a Binding wrote for its pod and this node.

        Raises:
            Broken: it did not.
        """
        if life is None or not life.cards:
            return
        known = self.api.records[life.sandbox.uid]
        if (machine.name, life.record) not in known:
            raise Broken(f"{life.id} runs by a record that no Binding wrote: {life.record}")
        if life.cards != granted(life.record).keys():
            raise Broken(f"{life.id} has {sorted(life.cards)} open, its record is {life.record}")
        there = {str(one["id"]) for one in machine.shown()}
        if not life.cards <= there:
            raise Broken(f"{life.id} has {sorted(life.cards)} open, and there are {sorted(there)}")

    def check(self) -> None:
        """See `Interleaving`; and no card is used twice, and what is used is neither free nor forgotten."""
        if self.beyond:
            self.api.broken.clear()
        super().check()
        for machine in self.machines.values():
            wrong = machine.wrong() or machine.forgotten()
            if wrong:
                raise Broken(wrong)
            if not self.service.closed:
                for life in machine.using:
                    self._kept(machine, life)

    def _kept(self, machine: Machine, life: Life) -> None:
        """The books have what a container uses, as long as its pod is there."""
        uid, ledger = life.sandbox.uid, self.service.books.engine.ledger
        pod = self.api.pods.get(uid)
        if pod is None or pod.node != machine.name or uid in self.api.odd:
            return
        if pod.annotations.get(names.ALLOCATION) != life.record:
            return  # a restored pod that was bound again
        if ledger.suspicion(uid) is not None:
            return  # its card was swapped, so that none on its node is free
        held = ledger.allocation(uid)
        known = {grant.uuid for grant in held.grants} if held is not None else set()
        if held is None or held.node != machine.name or known != life.cards:
            raise Broken(f"{life.id} uses {sorted(life.cards)}, the books have {sorted(known)}")

    def _told(self, uid: str) -> tuple[str, str] | None:
        """None: kube-scheduler reports its own rejections, after which a pod may wait for other devices."""

    def _held(self, uid: str) -> bool:
        return super()._held(uid) or self.attempts._proposed == uid

    def _reserved(self, uid: str) -> bool:
        attempt = self.attempts._attempts.get(uid)
        return super()._reserved(uid) or (attempt is not None and attempt.reserved)

    # --- the end -----------------------------------------------------------------------------

    async def settle(self) -> None:
        """See `Interleaving`; then every pod goes, and each card is there for one that asks for all of it.

        Raises:
            Broken: with the law and what breaks it.
        """
        self.leads = True
        for uid in list(self.reserved):
            number, _ = self.reserved.pop(uid)
            self.attempts.unreserve(wire.Unreserve(1, uid, number))
        for machine in self.machines.values():
            machine.ill.clear()
            machine.gone.clear()
            machine.begin()
            machine.report()
        await super().settle()
        await self._all_go()
        last = [self._last(number) for number in range(len(NODES) * CARDS)]
        await self._rest()
        used = [card for machine in self.machines.values() for card in self._used(machine)]
        if len(used) != len(last) or len(set(used)) != len(last):
            raise Broken(f"all is free, and pods have {used}")

    def _last(self, number: int) -> Stored:
        self._new(f"last-{number}", 1, 1, 0)
        return self.ever[-1]

    @staticmethod
    def _used(machine: Machine) -> list[str]:
        return [card for life in machine.using for card in life.cards]

    async def _all_go(self) -> None:
        for pod in list(self.api.pods.values()):
            pod.deleting = True
            self.api.changed(pod)
        await self._rest()
        left = [one.uid for one in self.service.books.engine.ledger.allocations()]
        suspects = [uid for uid in self.api.odd if self.service.books.engine.ledger.suspicion(uid)]
        if left or suspects:
            raise Broken(f"every pod is gone, and the books have {left}, {suspects}")
        for machine in self.machines.values():
            assert machine.keeper is not None
            if machine.keeper.books.held or machine.keeper.journal.entries:
                raise Broken(f"every pod is gone, and the agent holds {machine.keeper.books.held}")

    async def _rest(self) -> None:
        """Tell everything, and let every part do its work until none has any left."""
        quiet = rounds = 0
        while quiet < 2:
            rounds += 1
            if rounds > _MOST_ROUNDS:
                raise Broken("the cluster never comes to rest")
            quiet = 0 if await self._round() else quiet + 1
        await self._holds_end()

    async def _round(self) -> bool:
        """Whether anything happened."""
        self._hear()
        self.clock.pass_time(LATE + 1)
        await self.service.tick()
        busy = False
        for machine in self.machines.values():
            machine.listen()
            for life in list(machine.lives.values()):
                if life.sandbox.uid in machine.leaving and not life.ended:
                    machine.stop(life)
                    busy = True
                machine.tell(life)
            machine.leave()
        for pod in list(self.api.pods.values()):
            if (pod.node and pod.phase == "Pending") or not self._free(pod):
                continue
            if pod.deleting:
                self.api.delete(pod.uid)
                busy = True
            elif not pod.node and self._tried(pod) and self.try_one(pod, 0):
                await self.send(pod.uid, "done")
                busy = True
        for machine in self.machines.values():
            for uid in [uid for uid in machine.pods if uid not in machine.leaving]:
                begun = machine.start(uid)
                self.begun(machine, begun)
                busy = busy or begun is not None
        self._hear()
        self.check()
        return busy

    def _tried(self, pod: Stored) -> bool:
        """Whether kube-scheduler tries a pod now: one that was refused only when it is woken."""
        return self.answers.get(pod.uid) != [] or pod.uid in self.woken

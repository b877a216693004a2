"""kube-scheduler played, by both seams: the extender's HTTP, and a seat with the plugin beside each instance.

A seat is the kube-scheduler of one instance's pod: it elects by the Lease, speaks at the instance's
socket, and sends Bindings; Lease and Bindings go through the wire, where they may fail. What the
loop decides itself is that of `partage up`, and it is one for all: it asks the seat
that leads. Where an instance does not serve while another would, its seat gives up the Lease.
"""

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from partage.apiserver import ApiError, ApiServer, DeleteOptions, Record
from partage.daemon.binding import ApiPods
from partage.embedded.scheduling import Choice, KubeScheduler, Ports
from partage.extender.ports import Binding, Outcome
from partage.kube.client import Client
from partage.kube.election import LeaseSettings
from partage.kube.lease import Candidacy, LeaderElector
from partage.wire import plugin as wire

__all__ = ["LEASE", "ExtenderSeam", "PluggedKubeScheduler", "Seat"]

LEASE = "partage-kube-scheduler"
"""By which the seats elect."""

_ANSWER = 10.0
_AGAIN = 0.05
_PING = 0.3
_ELECTS_AFTER = 5.0
"""Seconds, as the plugin's own: a candidate without an engine comes to the election later."""
_STARTS_WITHIN = 60.0
"""Seconds for an engine that has not served yet and answers: it builds its books."""
_NOBODY = 0.1
_ENCODER = msgspec.json.Encoder()


class _Elector(LeaderElector):
    """One that may crash: then it releases nothing."""

    crashed = False

    async def _release(self) -> None:
        if not self.crashed:
            await super()._release()


class Seat:
    """The kube-scheduler of one instance.

    Attributes:
        name: of the instance, and the holder in the Lease.
        ready: the engine answers questions about pods.
        alive: it answered when it was asked last, whether it leads or stands by.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        client: Client,
        times: LeaseSettings,
        patience: float,
        *,
        lives: Callable[[], bool] = lambda: True,
    ) -> None:
        """A seat that no kube-scheduler has taken yet.

        Args:
            name: of the instance.
            path: of its socket.
            client: goes through the wire.
            times: of the Lease.
            patience: seconds without its engine after which a leader gives up the Lease.
            lives: whether the pod is there: its containers are killed together.
        """
        self.name = name
        self.ready = self.alive = False
        self.pushed: Callable[[wire.Push], None] = lambda _: None
        self.others_alive: Callable[[], bool] = lambda: False
        self._path, self._client, self._times = path, client, times
        self._patience, self._lives = patience, lives
        self._binder = ApiPods(client, lambda: True)
        self._ids = itertools.count(2)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._elector: _Elector | None = None
        self._holds = False
        self._greeted = asyncio.Event()

    @property
    def leading(self) -> bool:
        """Whether it holds the Lease at this very moment."""
        return self._elector is not None and self._elector.leading

    async def run(self) -> None:
        """Live, die and come back with the instance, until cancelled."""
        while True:
            while not self._lives():  # noqa: ASYNC110 # a process sends no event that it lives
                await asyncio.sleep(_AGAIN)
            self._elector = _Elector(
                self._client,
                Candidacy("default", LEASE, self.name, self._times),
                self._lead,
            )
            self._greeted.clear()
            work = [
                asyncio.create_task(one)
                for one in (
                    self._elect(self._elector),
                    self._talk(str(uuid.uuid4())),
                    self._watch(),
                )
            ]
            try:
                await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                self._elector.crashed = not self._lives()
            finally:
                for task in work:
                    task.cancel()
                ended = await asyncio.gather(*work, return_exceptions=True)
            for one in ended:
                if isinstance(one, Exception):
                    raise one

    async def _elect(self, elector: _Elector) -> None:
        """Stand for election; without an engine, after another one has had its turn."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ELECTS_AFTER):
                await self._greeted.wait()
        await elector.run()

    async def _lead(self) -> None:
        self._holds = True
        self._tell(wire.Leading(0, leading=True))
        try:
            await asyncio.Event().wait()
        finally:
            self._holds = False
            self._tell(wire.Leading(0, leading=False))

    async def _watch(self) -> None:
        """End when the pod is killed, or when the Lease must be left to another."""
        since, has_served = time.monotonic(), False
        while self._lives():
            serves = alive = False
            with contextlib.suppress(OSError, TimeoutError):
                serves = bool((await self.ask(wire.Ping(0), self._patience)).ready)
                alive = True
            self.alive = alive
            if serves or not self._holds:
                since, has_served = time.monotonic(), serves
            builds = alive and not has_served
            patience = _STARTS_WITHIN if builds else self._patience
            if time.monotonic() > since + patience and self.others_alive():
                return
            await asyncio.sleep(_PING)

    # --- the socket --------------------------------------------------------------------------

    async def _talk(self, incarnation: str) -> None:
        """Connect, and connect again."""
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_unix_connection(self._path)
                try:
                    self._writer = writer
                    self._send(wire.Hello(1, wire.PROTOCOL, incarnation))
                    await self._listen(reader)
                finally:
                    self.ready = self.alive = False
                    self._writer = None
                    writer.close()
                    for waiting in self._waiting.values():
                        if not waiting.done():
                            waiting.set_exception(ConnectionError("the engine is gone"))
                    self._waiting.clear()
            await asyncio.sleep(_AGAIN)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            frame = await reader.readexactly(size)
            number = msgspec.json.decode(frame, type=_Numbered).id
            if number == 1:
                self._greeted.set()
                self.ready = msgspec.json.decode(frame, type=wire.Answer).ready
                self._tell(wire.Leading(0, leading=self._holds))
            elif number:
                waiting = self._waiting.pop(number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(frame)
            else:
                push = msgspec.json.decode(frame, type=wire.Push)
                self.ready = self.ready if push.ready is None else push.ready
                self.pushed(push)

    def _send(self, question: msgspec.Struct) -> None:
        if self._writer is None:
            raise ConnectionError("no engine is there")
        frame = _ENCODER.encode(question)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)

    def _tell(self, question: wire.Question) -> None:
        with contextlib.suppress(ConnectionError):
            self._send(question)

    async def ask(self, question: Any, within: float = _ANSWER) -> wire.Answer:
        """The engine's answer.

        Raises:
            OSError: the engine is not connected, or does not answer.
        """
        number = next(self._ids)
        self._send(msgspec.structs.replace(question, id=number))
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(within):
                return msgspec.json.decode(await waiting, type=wire.Answer)
        finally:
            self._waiting.pop(number, None)

    async def bind(self, record: Record, node: str, attempt: int) -> str:
        """Bind a pod as the plugin does; empty when it is bound, else why it is not."""
        about = (record.uid, attempt)
        if not attempt:  # without devices
            plain = Binding(record.namespace, record.name, record.uid, node)
            answered = await self._binder.bind(plain)
            return "" if answered.outcome is Outcome.DONE else answered.message or "not bound"
        allowed = await self.ask(wire.Bind(0, *about, node))
        if allowed.code:
            return f"{allowed.code}: {allowed.message}"
        binding = Binding(
            record.namespace, record.name, record.uid, node, allowed.annotations, allowed.labels
        )
        try:
            async with asyncio.timeout(allowed.within):
                answered = await self._binder.bind(binding)
            outcome, message = answered.outcome, answered.message
        except TimeoutError:
            outcome, message = Outcome.UNKNOWN, "no answer in time"
        if outcome is Outcome.DONE:
            self._tell(wire.Bound(0, *about, outcome.value))
            return ""
        ended = await self.ask(wire.Bound(0, *about, outcome.value, message), 3 * _ANSWER)
        return "" if ended.bound else message

    def unreserve(self, uid: str, attempt: int) -> None:
        """Release what a cycle that failed had reserved."""
        self._tell(wire.Unreserve(0, uid, attempt))


class _Numbered(msgspec.Struct):
    id: int = 0


class ExtenderSeam:
    """The extender's verbs over HTTP, as kube-scheduler sends them; see `embedded.scheduling.Seam`."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._http = http

    async def choose(self, record: Record, fitting: Sequence[str], *, all_fit: bool) -> Choice:
        """Filter and prioritize; the nominated node is asked about first."""
        del all_fit
        wish = (record.value.get("status") or {}).get("nominatedNodeName") or ""
        answer: dict[str, Any] = {}
        asked: list[Sequence[str]] = [[wish], fitting] if wish in fitting else [fitting]
        for names in asked:
            answer = await self._ask("filter", _arguments(record, names))
            left = answer.get("NodeNames") or []
            if len(left) > 1:
                scores = await self._ask("prioritize", _arguments(record, left))
                points = {one["Host"]: one["Score"] for one in scores}
                left = [max(left, key=lambda name: points.get(name, 0))]
            if left:
                return Choice(left[0], 1)
        if answer.get("Error"):
            return Choice(code=wire.CLOSED, message=answer["Error"])
        return Choice(code="Refused", message=str(answer.get("FailedNodes") or ""))

    async def bind(self, record: Record, choice: Choice) -> str:
        """Have the service send the Binding."""
        body = {
            "PodName": record.name,
            "PodNamespace": record.namespace,
            "PodUID": record.uid,
            "Node": choice.node,
        }
        try:
            answer = await self._ask("bind", msgspec.json.encode(body))
        except OSError as error:
            return str(error) or type(error).__name__
        return str(answer.get("Error") or "")

    def forget(self, record: Record, choice: Choice) -> None:
        """Nothing: what the extender keeps for a pod runs out."""

    async def _ask(self, verb: str, body: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        within = aiohttp.ClientTimeout(total=_ANSWER)
        try:
            async with self._http.post(
                f"{self._url}/scheduler/{verb}", data=body, headers=headers, timeout=within
            ) as response:
                answer = await response.read()
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error)) from error
        if response.status != 200:
            raise ConnectionError(f"{verb} answered {response.status}: {answer[:200]!r}")
        return msgspec.json.decode(answer)


def _arguments(record: Record, names: Sequence[str]) -> bytes:
    listed = msgspec.json.encode(names)
    return b'{"Pod":' + record.text() + b',"Nodes":null,"NodeNames":' + listed + b"}"


class PluggedKubeScheduler(KubeScheduler):
    """The loop, which asks the seat that leads; it is its own seam."""

    def __init__(self, server: ApiServer, ports: Ports) -> None:
        super().__init__(server, ports, self)
        self.seats: dict[str, Seat] = {}
        self._tried: dict[str, Seat] = {}
        self._attempts = itertools.count(1)

    def sit(self, seat: Seat) -> None:
        """One kube-scheduler more."""
        self.seats[seat.name] = seat
        seat.pushed = self._pushed
        seat.others_alive = lambda: any(
            one.alive and one is not seat for one in self.seats.values()
        )

    def _pushed(self, push: wire.Push) -> None:
        if push.ready:
            self._again(self._pending.values())
        self.activate(push.activate)

    async def choose(self, record: Record, fitting: Sequence[str], *, all_fit: bool) -> Choice:
        """Propose, and reserve or try again; kube-scheduler's own filters come in between."""
        del all_fit
        seat = next((one for one in self.seats.values() if one.leading and one.ready), None)
        if seat is None:
            await asyncio.sleep(_NOBODY)  # all who wait would be tried again and again at once
            raise ConnectionError("no engine that leads is ready")
        attempt = next(self._attempts)
        about = (record.uid, attempt)
        nominated = (record.value.get("status") or {}).get("nominatedNodeName") or ""
        asked = wire.Propose(
            0, *about, str(record.metadata.get("resourceVersion", "")), nominated=nominated
        )
        answer = await seat.ask(asked)
        if answer.unseen:
            asked = msgspec.structs.replace(asked, pod=msgspec.Raw(record.text()))
            answer = await seat.ask(asked)
        self._tried[record.uid] = seat
        if answer.skip:
            return Choice()
        if answer.code:
            if answer.preempt:
                await self._preempted(seat, record, fitting, attempt)
            return Choice(code=answer.code, message=answer.message)
        nodes = [name for name in answer.nodes if name in fitting]
        if not nodes:
            if (await seat.ask(wire.Another(0, *about, answer.nodes))).again:
                self.activate([record.uid])
            return Choice(
                code="Rejected", message="kube-scheduler's own filters rejected the nodes"
            )
        reserved = await seat.ask(wire.Reserve(0, *about, nodes[0]))
        if reserved.code:
            return Choice(code=wire.PLACE_LOST, message=f"{reserved.code}: {reserved.message}")
        return Choice(nodes[0], attempt)

    async def bind(self, record: Record, choice: Choice) -> str:
        """Have the seat see the Binding through."""
        seat = self._tried.pop(record.uid)
        try:
            problem = await seat.bind(record, choice.node, choice.attempt)
        except OSError as error:
            problem = str(error) or type(error).__name__
        if problem:
            seat.unreserve(record.uid, choice.attempt)
        return problem

    def forget(self, record: Record, choice: Choice) -> None:
        """Let the seat release the reservation."""
        if choice.attempt:
            self._tried.pop(record.uid).unreserve(record.uid, choice.attempt)

    async def _preempted(
        self, seat: Seat, record: Record, fitting: Sequence[str], attempt: int
    ) -> None:
        """Evict the victims on the first node offered, and nominate the pod."""
        store = self._server.store
        budgets = [msgspec.Raw(one.text()) for one in store.all("poddisruptionbudgets.policy")]
        offer = await seat.ask(wire.Preempt(0, record.uid, attempt, budgets))
        offers = dict(zip(offer.nodes, offer.victims, strict=True))
        node = next((name for name in offers if name in fitting), "")
        if offer.again:
            self.activate([record.uid])
        if not node:
            return
        with contextlib.suppress(ApiError):
            for victim in [one for one in store.all("pods") if one.uid in offers[node]]:
                await self._server.delete(
                    "pods", victim.namespace, victim.name, DeleteOptions(uid=victim.uid)
                )
            await self._server.patch(
                "pods",
                record.namespace,
                record.name,
                {"metadata": {"uid": record.uid}, "status": {"nominatedNodeName": node}},
                sub="status",
            )

"""The stand-in for every node's kubelet: starts and runs bound pods, ends them, and removes deleted ones.

It executes nothing. A pod's containers run for the time of `lifetimes`, end with its exit codes, and start
again by `restartPolicy` (`turns`). The kubelet rejects a pod that asks for devices without a record of Partage.
`kubectl logs` shows what its containers would have got.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from partage.agent.nri.messages import Container, PodSandbox
from partage.agent.stories import Stories
from partage.apiserver import ApiError, ApiServer, Change, DeleteOptions, LogRequest, Record, User
from partage.embedded.claim_lives import CLAIMS, claims_of
from partage.embedded.definitions import DEVICES
from partage.embedded.injection import Injection, injection
from partage.embedded.lifetimes import FOREVER, Course, course, lifetime
from partage.embedded.pod_status import Life, back_off, failed, overdue, started
from partage.embedded.turns import Turn, followed, length, turn_of
from partage.embedded.watching import follow_all, is_over, node_user, now, tell, write_status
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.vendors import names
from partage.vendors.locks import LOCKS
from partage.wire.context import Context

_STOPPING: Final = 0.1
"""Seconds that simulated containers take to stop; never more than their grace period."""
_LOOK: Final = 0.2
_PLUGIN: Final = User("system:serviceaccount:partage-system:partage-agent")


@dataclass(slots=True)
class _Run:
    """One pod under the kubelet's care."""

    deleting: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Kubelet:
    """All nodes' kubelets."""

    def __init__(
        self, server: ApiServer, context: Callable[[], Context], tracer: Tracer = NO_TRACES
    ) -> None:
        """A kubelet that has not started. `context`: for reading pods; `tracer`: receives an agent's spans."""
        self._server = server
        self._context = context
        self._tracer = tracer
        self._tell = partial(tell, server, user=User("system:kubelet"))
        self._runs: dict[str, _Run] = {}

    async def run(self) -> None:
        """Follow pods until cancelled."""
        try:
            await follow_all(self._server, {"pods": self._pod, "nodes": self._node})
        finally:
            tasks = [run.task for run in self._runs.values() if run.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _node(self, change: Change) -> None:
        """Start the pods of a new node; delete those of a deleted node, as the garbage collector does."""
        if change.kind == "MODIFIED":
            return
        for pod in list(self._server.store.all("pods")):
            if (pod.value.get("spec") or {}).get("nodeName") == change.record.name:
                if change.kind == "ADDED":
                    await self._pod(Change("ADDED", pod, None))
                else:
                    await self._collect(pod)

    async def _collect(self, pod: Record) -> None:
        with suppress(ApiError):
            options = DeleteOptions(grace=0, uid=pod.uid)
            await self._server.delete("pods", pod.namespace, pod.name, options)

    async def _pod(self, change: Change) -> None:
        record = change.record
        uid, run = record.uid, self._runs.get(record.uid)
        if change.kind == "DELETED":
            if run is not None:
                run.deleting.set()
                self._runs.pop(uid)
            return
        node = (record.value.get("spec") or {}).get("nodeName")
        if not node:
            return
        if self._server.store.get("nodes", "", node) is None:
            if record.metadata.get("deletionTimestamp"):
                await self._collect(record)
            return  # the node has no kubelet to start it
        if run is None:
            run = self._runs[uid] = _Run()
            run.task = asyncio.create_task(self._live(record, run), name=f"pod {record.name}")
        if record.metadata.get("deletionTimestamp"):
            run.deleting.set()

    # --- one pod -----------------------------------------------------------------------------

    async def _live(self, record: Record, run: _Run) -> None:
        with suppress(ApiError):  # the pod is gone, or another took its name
            await self._to_its_end(record, run)

    async def _to_its_end(self, record: Record, run: _Run) -> None:
        phase = (record.value.get("status") or {}).get("phase")
        if not is_over(record) and not run.deleting.is_set():
            start = self._tracer.now()
            found = self._given(record.value)
            problem = found.problem
            if problem:
                message = f"Pod was rejected: {problem}"
                status = failed("UnexpectedAdmissionError", message, now(self._server))
                await self._write(record, status)
                await self._tell(record, "UnexpectedAdmissionError", message, warning=True)
            else:
                if phase != "Running":
                    self._trace(record, found, start)
                await self._run(record, run)
        await run.deleting.wait()
        await self._remove(record)

    def _trace(self, record: Record, found: Injection, start: int) -> None:
        """Send the span of a pod's injection."""
        stories = Stories(self._tracer, record.value["spec"]["nodeName"], str)
        known = record.metadata.get("annotations") or {}
        pod = PodSandbox("", record.name, record.uid, record.namespace, annotations=known)
        for name in found.cards:
            stories.injected(pod, Container(name=name), start, "simulated")

    async def _run(self, record: Record, run: _Run) -> None:
        """Start the containers, and restart them by the pod's policy, until they end for good."""
        pod = record.value
        spec = pod.get("spec") or {}
        own = lifetime(pod)
        policy = spec.get("restartPolicy", "Always") if own is None else "Never"
        ways = [
            course(one) if own is None else Course(own) for one in spec.get("containers") or ()
        ]
        clock = asyncio.get_running_loop().time
        life, passed = self._life(pod, len(ways))
        if passed is None:
            await self._served(record, spec["nodeName"])
            await self._write(record, started(pod, life, now(self._server)))
            await self._tell(record, "Started", "Started simulated containers")
        ends = [
            clock() + length(turn, way, policy) - gone
            for turn, way, gone in zip(life.turns, ways, passed or [0.0] * len(ways), strict=True)
        ]
        limit = float(spec.get("activeDeadlineSeconds", FOREVER))
        last = clock() + limit - self._since(life.first)
        while not await _happens(run.deleting, max(min(*ends, last) - clock(), 0.0)):
            moment, turns = now(self._server), list(life.turns)
            if last <= min(ends):
                status = overdue(pod, life, moment)
                await self._write(record, status)
                await self._tell(record, status["reason"], status["message"], warning=True)
                return
            due = [number for number, end in enumerate(ends) if end <= max(min(ends), clock())]
            for number in due:
                turns[number] = followed(turns[number], ways[number], policy, moment)
                ends[number] = clock() + length(turns[number], ways[number], policy)
            life = replace(life, turns=tuple(turns))
            await self._write(record, started(pod, life, moment))
            if life.over:
                return
            for number in due:
                if turns[number].waits:
                    told = back_off(pod, spec["containers"][number], turns[number])
                    await self._tell(record, "BackOff", f"B{told[1:]}", warning=True)

    def _life(self, pod: Mapping[str, Any], count: int) -> tuple[Life, list[float] | None]:
        """The known facts of a pod's run, and the seconds that each container's turn has lasted.

        A pod that ran when the cluster's state was saved continues; a pod that starts now has no
        seconds.
        """
        status = pod.get("status") or {}
        moment, address = now(self._server), self._address(pod["spec"]["nodeName"])
        told = [turn_of(one) for one in status.get("containerStatuses") or ()]
        turns = tuple(turn for turn in told if turn is not None)
        if status.get("phase") != "Running" or len(turns) != count:
            return Life(moment, address, (Turn(moment),) * count), None
        since = [
            turn.last.ended if turn.waits and turn.last is not None else turn.started
            for turn in turns
        ]
        life = Life(status.get("startTime") or turns[0].started, address, turns)
        return life, [self._since(one) for one in since]

    def _since(self, moment: str) -> float:
        """Seconds since a moment in Kubernetes' format."""
        passed = datetime.fromisoformat(now(self._server)) - datetime.fromisoformat(moment)
        return max(passed.total_seconds(), 0.0)

    async def _served(self, record: Record, name: str) -> None:
        """Act as node plugins do after they have served a pod.

        HAMi's marks the pod; others remove the scheduler's lock from its node.
        """
        head = {"uid": record.uid, "annotations": {names.HAMI_BIND_PHASE: "success"}}
        if (record.metadata.get("annotations") or {}).get(names.HAMI_BIND_PHASE) == "allocating":
            await self._server.patch(
                "pods", record.namespace, record.name, {"metadata": head}, user=_PLUGIN
            )
        node = self._server.store.get("nodes", "", name)
        held = (node.metadata.get("annotations") or {}) if node is not None else {}
        mine = f",{record.namespace},{record.name}"
        done = {key: None for key in LOCKS if str(held.get(key, "")).endswith(mine)}
        if done:
            body = {"metadata": {"annotations": done}}
            await self._server.patch("nodes", "", name, body, user=_user(record))

    async def _remove(self, record: Record) -> None:
        """Stop the containers, then remove the pod."""
        current = self._server.store.get("pods", record.namespace, record.name)
        if current is None or current.uid != record.uid:
            return
        grace = current.metadata.get("deletionGracePeriodSeconds") or 0
        await asyncio.sleep(min(_STOPPING, float(grace)))
        options = DeleteOptions(grace=0, uid=record.uid)
        user = _user(record)
        await self._server.delete("pods", record.namespace, record.name, options, user)

    async def _write(self, record: Record, status: Mapping[str, Any]) -> None:
        await write_status(self._server, record, status, _user(record))

    def _address(self, name: str) -> str:
        node = self._server.store.get("nodes", "", name)
        addresses = (node.value.get("status") or {}).get("addresses") if node is not None else ()
        return next((a["address"] for a in addresses or () if a["type"] == "InternalIP"), "")

    def _given(self, pod: Mapping[str, Any]) -> Injection:
        name = pod["spec"]["nodeName"]
        node = self._server.store.get("nodes", "", name)
        device = self._server.store.get(DEVICES, "", name)
        return injection(
            pod,
            None if node is None else node.value,
            None if device is None else device.value,
            self._context(),
            {
                own: claim.value
                for own, name in claims_of(pod)
                if (claim := self._server.store.get(CLAIMS, pod["metadata"]["namespace"], name))
            },
        )

    # --- logs --------------------------------------------------------------------------------

    async def logs(self, request: LogRequest) -> AsyncIterator[bytes]:
        """A simulated container's log: its place, and its edits."""
        pod = request.pod
        lines = list(self._lines(pod, request.container))
        if request.tail is not None:
            lines = lines[len(lines) - request.tail :] if request.tail else []
        moment = ((pod.get("status") or {}).get("startTime") or now(self._server)).rstrip("Z")
        stamp = f"{moment}.000000000Z " if request.timestamps else ""
        yield "".join(f"{stamp}{line}\n" for line in lines).encode()
        head = pod["metadata"]
        while request.follow and self._runs_still(head):  # noqa: ASYNC110 # ends in many ways
            await asyncio.sleep(_LOOK)

    def _runs_still(self, head: Mapping[str, Any]) -> bool:
        found = self._server.store.get("pods", head["namespace"], head["name"])
        return found is not None and found.uid == head.get("uid") and not is_over(found)

    def _lines(self, pod: Mapping[str, Any], name: str) -> Iterator[str]:
        spec, head = pod.get("spec") or {}, pod["metadata"]
        node = spec.get("nodeName")
        if not node:
            yield f"pod {head['namespace']}/{head['name']} waits: no container has started"
            return
        listed = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        container: Mapping[str, Any] = next((c for c in listed if c.get("name") == name), {})
        given = self._given(pod)
        yield (
            f"container {name} of pod {head['namespace']}/{head['name']} on node {node} "
            f"(simulated: image {container.get('image', '')} is not run)"
        )
        if given.problem:
            yield f"not started: {given.problem}"
            return
        cards = given.cards.get(name, ())
        for line in cards:
            yield f"device {line}"
        if not cards:
            yield "no devices"
        for key, value in sorted(given.env.get(name, {}).items()):
            yield f"env {key}={value}"
        for path in given.files.get(name, ()):
            yield f"file {path}"


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within so many seconds."""
    if seconds == FOREVER:
        return await event.wait()
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _user(record: Record) -> User:
    return node_user(record.value["spec"].get("nodeName", ""))

"""Stand-ins for controllers of common workloads: Deployments, ReplicaSets, StatefulSets, Jobs.

Each change of a workload, or of its objects, puts the workload on a list. One at a time is compared with its
intended objects, and the difference is created or deleted. Other workloads are stored, and an event reports that
nothing acts on them.
"""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from partage.apiserver import ApiError, ApiServer, Change, DeleteOptions, Record, User
from partage.embedded.adoption import claim, controller, owned, selector, selects
from partage.embedded.lifetimes import FOREVER
from partage.embedded.replicas import (
    AT_ONCE,
    Rollout,
    active,
    deployment_status,
    job_left,
    job_status,
    pod_of,
    ready,
    replica_set_of,
    rollout,
    surplus,
    template_hash,
)
from partage.embedded.sets import ordinal, set_pod, set_status, turn
from partage.embedded.watching import follow_all, now, owner, tell

_LOG: Final = logging.getLogger("partage.embedded")
_DEPLOYMENTS: Final = "deployments.apps"
_REPLICA_SETS: Final = "replicasets.apps"
_STATEFUL_SETS: Final = "statefulsets.apps"
_JOBS: Final = "jobs.batch"
_KINDS: Final = {
    "Deployment": _DEPLOYMENTS,
    "ReplicaSet": _REPLICA_SETS,
    "StatefulSet": _STATEFUL_SETS,
    "Job": _JOBS,
}
_ABOVE: Final = {"pods": (_REPLICA_SETS, _STATEFUL_SETS), _REPLICA_SETS: (_DEPLOYMENTS,)}
"""Kinds whose selectors may match an object without a controller."""
_MAKES: Final = {
    resource: (kind, "apps/v1") for kind, resource in _KINDS.items() if resource != _JOBS
}
_USER: Final = User("system:serviceaccount:kube-system:workload-controller")
_TELLERS: Final = {
    resource: User(f"system:serviceaccount:kube-system:{kind.lower()}-controller")
    for kind, resource in _KINDS.items()
}
"""Sources of events of a workload's steps, as `kubectl describe` names them."""
_JOB_STEPS: Final = {
    "CompletionsReached": ("Completed", "Job completed"),
    "JobSuspended": ("Suspended", "Job suspended"),
    "JobResumed": ("Resumed", "Job resumed"),
}
"""Events of a Job by its condition's reason; a failure has the same reason and text in both."""
_TOLD: Final = 10
"""Most pods of one step with an event of their own; a genuine cluster combines the others."""
_AGAIN: Final = 5.0
"""Seconds after which a refused write is tried again."""
_OTHERS: Final = ("daemonsets.apps", "cronjobs.batch")
_SHOWN: Final = "deployment.kubernetes.io/revision"
_REVISION: Final = re.compile(r"[0-9]{1,18}")
_NOT_COPIED: Final = frozenset({_SHOWN, "kubectl.kubernetes.io/last-applied-configuration"})

_Key = tuple[str, str, str]


class Workloads:
    """All controllers of workloads."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._dirty: OrderedDict[_Key, None] = OrderedDict()
        self._changed = asyncio.Event()
        self._alarms: dict[_Key, asyncio.TimerHandle] = {}
        self._work: Mapping[str, Callable[[Record], Awaitable[None]]] = {
            _DEPLOYMENTS: self._deployment,
            _REPLICA_SETS: self._replica_set,
            _STATEFUL_SETS: self._stateful_set,
            _JOBS: self._job,
        }

    async def run(self) -> None:
        """Keep workloads in their intended state, until cancelled."""
        handlers = dict.fromkeys((*self._work, "pods"), self._saw)
        handlers |= dict.fromkeys(_OTHERS, self._saw_other)
        await follow_all(self._server, handlers, self._reconcile())

    async def _saw(self, change: Change) -> None:
        record = change.record
        if record.resource in self._work and change.kind != "DELETED":
            self._look((record.resource, record.namespace, record.name))
        elif record.resource == _JOBS:
            self._alarm(record, FOREVER)
        by = controller(record)
        if by is not None and (resource := _KINDS.get(by.get("kind", ""))):
            self._look((resource, record.namespace, by["name"]))
        elif by is None:
            for above in _ABOVE.get(record.resource, ()):
                for one in self._server.store.all(above, record.namespace):
                    if selects(selector(one), record):
                        self._look((above, one.namespace, one.name))

    async def _saw_other(self, change: Change) -> None:
        """Report that nothing acts on a workload, because its author would wait for pods."""
        if change.kind == "ADDED":
            message = "it is stored, and partage up makes no pods of it; try a Deployment or a Job"
            about = change.record
            await tell(self._server, about, "NotActedUpon", message, user=_USER, warning=True)

    def _look(self, key: _Key) -> None:
        self._dirty[key] = None
        self._changed.set()

    async def _reconcile(self) -> None:
        while True:
            while not self._dirty:
                self._changed.clear()
                await self._changed.wait()
            key, _ = self._dirty.popitem(last=False)
            record = self._server.store.get(*key)
            if record is None or record.metadata.get("deletionTimestamp"):
                continue
            try:
                await self._work[key[0]](record)
            except ApiError as error:
                _LOG.debug("%s: %s", key, error.message)
                if error.code != 409:
                    message = error.message
                    await tell(
                        self._server, record, "FailedCreate", message, user=_USER, warning=True
                    )
                asyncio.get_running_loop().call_later(_AGAIN, self._look, key)
            except Exception:  # noqa: BLE001 # the next one must still be looked at
                _LOG.exception("%s", key)
            await asyncio.sleep(0)

    # --- what each kind does -----------------------------------------------------------------

    async def _create(self, made: dict[str, Any], by: Record, number: int) -> None:
        """Create a pod, unless its workload is gone; other tasks run after each pod."""
        if self._server.store.get(by.resource, by.namespace, by.name) is not None:
            pod = await self._server.create("pods", made, by.namespace, _USER)
            if number < _TOLD:
                await self._tell(by, "SuccessfulCreate", _step(by, "Created", pod))
        await asyncio.sleep(0)

    async def _tell(
        self, about: Record, reason: str, message: str, *, warning: bool = False
    ) -> None:
        """Write an event of its own for each message."""
        teller = _TELLERS[about.resource]
        await tell(self._server, about, reason, message, user=teller, warning=warning, each=True)

    async def _replica_set(self, record: Record) -> None:
        pods = active(await self._own("pods", record))
        wanted = int(record.value["spec"].get("replicas", 1))
        try:
            for number in range(min(wanted - len(pods), AT_ONCE)):
                made = pod_of(record.value, "ReplicaSet", "apps/v1")
                await self._create(made, record, number)
            gone = surplus(pods, min(max(0, len(pods) - wanted), AT_ONCE))
            for number, pod in enumerate(gone):
                await self._delete(pod)
                if number < _TOLD:
                    await self._tell(record, "SuccessfulDelete", _step(record, "Deleted", pod))
        finally:  # report present pods even if no more may be created
            await self._tell_replicas(record)

    async def _stateful_set(self, record: Record) -> None:
        pods = {
            number: pod
            for pod in await self._own("pods", record)
            if (number := ordinal(record, pod)) is not None
        }
        revision = f"{record.name}-{template_hash(record.value['spec']['template'])}"
        step = turn(record.value["spec"], pods, revision)
        try:
            for number in step.made:
                await self._create(set_pod(record.value, number, revision), record, number)
            for pod in step.gone:
                if pod.metadata.get("deletionTimestamp"):
                    continue  # it is in deletion
                await self._delete(pod)
                await self._tell(record, "SuccessfulDelete", _step(record, "Deleted", pod))
        finally:
            status = set_status(record.value, active(self._pods(record)), revision)
            await self._tell_status(record, status)

    async def _tell_replicas(self, record: Record) -> None:
        pods = active(self._pods(record))
        serving = sum(map(ready, pods))
        status = {
            "observedGeneration": record.metadata.get("generation", 1),
            **dict.fromkeys(("replicas", "fullyLabeledReplicas"), len(pods)),
            **dict.fromkeys(("readyReplicas", "availableReplicas"), serving),
        }
        await self._tell_status(record, status)

    async def _deployment(self, record: Record) -> None:
        spec = record.value["spec"]
        digest = template_hash(spec["template"])
        sets = await self._own(_REPLICA_SETS, record)
        name = f"{record.name}-{digest}"
        new = next((one for one in sets if one.name == name), None)
        old = [one for one in sets if one.name != name]
        pods = {one.name: active(self._pods(one)) for one in sets}
        counts = {one.name: int(one.value["spec"].get("replicas", 1)) for one in sets}
        serving = {key: sum(map(ready, found)) for key, found in pods.items()}
        step = rollout(
            spec,
            counts.get(name, 0),
            serving.get(name, 0),
            sum(counts[one.name] for one in old),
            sum(serving[one.name] for one in old),
        )
        if spec.get("paused"):
            step = Rollout(counts.get(name, 0), sum(counts[one.name] for one in old))
        said = self._said(record, new, old)
        if new is None:
            made = replica_set_of(record.value, digest, step.new)
            made["metadata"]["annotations"] = said
            await self._server.create(_REPLICA_SETS, made, record.namespace, _USER)
            if step.new:
                await self._tell_scaled(record, name, 0, step.new)
        else:
            if counts[name] != step.new:
                await self._scale(new, step.new)
                await self._tell_scaled(record, name, counts[name], step.new)
            await self._annotate(new, said)
        await self._annotate(record, {_SHOWN: said[_SHOWN]})
        left = step.old
        for one in sorted(old, key=lambda one: -one.revision):
            keep = min(counts[one.name], left)
            left -= keep
            if counts[one.name] != keep:
                await self._scale(one, keep)
                await self._tell_scaled(record, one.name, counts[one.name], keep)
        idle = [one for one in old if not (counts[one.name] or pods[one.name])]
        kept = int(spec.get("revisionHistoryLimit", 10))
        for one in sorted(idle, key=_shown)[: max(0, len(idle) - kept)]:
            await self._server.delete(one.resource, one.namespace, one.name, user=_USER)
        present = [pod for one in sets if one.name == name for pod in pods[one.name]]
        earlier = [pod for one in old for pod in pods[one.name]]
        await self._tell_status(
            record, deployment_status(record.value, present, earlier, now(self._server))
        )

    async def _tell_scaled(self, record: Record, name: str, before: int, after: int) -> None:
        way = "up" if after > before else "down"
        message = f"Scaled {way} replica set {name} from {before} to {after}"
        await self._tell(record, "ScalingReplicaSet", message)

    def _said(self, record: Record, new: Record | None, old: Sequence[Record]) -> dict[str, str]:
        """The present ReplicaSet's facts for its Deployment: the highest revision, and the cause of the change."""
        annotations = record.metadata.get("annotations") or {}
        revision = max((_shown(one) for one in old), default=0) + 1
        return {
            **{key: text for key, text in annotations.items() if key not in _NOT_COPIED},
            _SHOWN: str(max(revision, 0 if new is None else _shown(new))),
        }

    async def _job(self, record: Record) -> None:
        pods = self._pods(record)
        status, lacking = job_status(record.value, pods, now(self._server))
        self._alarm(record, job_left(record.value, now(self._server)))
        try:
            for number in range(min(lacking, AT_ONCE)):
                made = pod_of(record.value, "Job", "batch/v1")
                await self._create(made, record, number)
            for pod in surplus(active(pods), max(0, -lacking)):
                await self._delete(pod)
        finally:
            await self._tell_status(record, status)
            known = (record.value.get("status") or {}).get("conditions") or ()
            for one in status.get("conditions") or ():
                if one not in known:
                    reason, message = _JOB_STEPS.get(
                        one["reason"], (one["reason"], one["message"])
                    )
                    await self._tell(record, reason, message, warning=one["type"] == "Failed")

    def _alarm(self, record: Record, seconds: float) -> None:
        """Look at a Job again at its deadline, if that is to come."""
        key = (record.resource, record.namespace, record.name)
        if (known := self._alarms.pop(key, None)) is not None:
            known.cancel()
        if 0 < seconds < FOREVER:
            loop = asyncio.get_running_loop()
            self._alarms[key] = loop.call_later(seconds, self._look, key)

    # --- reading and writing -----------------------------------------------------------------

    def _pods(self, record: Record) -> list[Record]:
        return owned(self._server.store.all("pods", record.namespace), record.uid)

    async def _own(self, resource: str, record: Record) -> list[Record]:
        """A workload's objects of a kind, after it has adopted and released objects."""
        there = self._server.store.all(resource, record.namespace)
        if record.resource == _STATEFUL_SETS:
            there = [one for one in there if ordinal(record, one) is not None]
        taken, let_go = claim(record, there)
        mine = owner(record.value, *_MAKES[record.resource])
        for one in taken:
            others = one.metadata.get("ownerReferences") or ()
            await self._own_by(one, [*others, mine])
        for one in let_go:
            others = [by for by in one.metadata["ownerReferences"] if by.get("uid") != record.uid]
            await self._own_by(one, others)
        return owned(self._server.store.all(resource, record.namespace), record.uid)

    async def _own_by(self, record: Record, owners: Sequence[Any]) -> None:
        await self._patch(record, {"metadata": {"uid": record.uid, "ownerReferences": owners}})

    async def _delete(self, pod: Record) -> None:
        """Delete a pod that is not in deletion yet; other tasks run after each pod."""
        await asyncio.sleep(0)
        found = self._server.store.get("pods", pod.namespace, pod.name)
        if found is not None and not found.metadata.get("deletionTimestamp"):
            await self._server.delete(
                "pods", pod.namespace, pod.name, DeleteOptions(uid=pod.uid), _USER
            )

    async def _scale(self, record: Record, count: int) -> None:
        await self._patch(record, {"spec": {"replicas": count}})

    async def _annotate(self, record: Record, said: Mapping[str, str]) -> None:
        known = record.metadata.get("annotations") or {}
        if any(known.get(key) != text for key, text in said.items()):
            await self._patch(record, {"metadata": {"annotations": dict(said)}})

    async def _patch(self, record: Record, body: Mapping[str, Any], sub: str = "") -> None:
        where = (record.resource, record.namespace, record.name)
        await self._server.patch(*where, body, sub=sub, user=_USER)

    async def _tell_status(self, record: Record, status: Mapping[str, Any]) -> None:
        current = record.value.get("status") or {}
        if any(current.get(key) != value for key, value in status.items()):
            await self._patch(record, {"status": dict(status)}, sub="status")


def _step(by: Record, done: str, pod: Record) -> str:
    """A step on a pod, in the words of that kind's controller."""
    if by.resource == _STATEFUL_SETS:
        return f"{done.lower()[:-1]} Pod {pod.name} in StatefulSet {by.name} successful"
    return f"{done} pod: {pod.name}"


def _shown(record: Record) -> int:
    """The revision in an object's annotation; any user may write another text there."""
    text = str((record.metadata.get("annotations") or {}).get(_SHOWN, "0"))
    return int(text) if _REVISION.fullmatch(text) else 0

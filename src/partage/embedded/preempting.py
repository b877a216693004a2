"""Preemption as kube-scheduler does it: less important pods make room for a more important one.

Which pods would have to go on a node is the extender's answer (its `preempt` verb knows the cards);
which node is taken is decided here, by kube-scheduler's order: fewest broken disruption budgets,
then the least important victims, then the fewest. Unlike kube-scheduler, room is only made on
cards: a pod that lacks CPU or memory waits.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from partage.apiserver import ApiError, ApiServer, DeleteOptions, Record, User
from partage.embedded.watching import tell

__all__ = ["Preempted", "Preemption"]


class _Victim(msgspec.Struct, rename={"uid": "UID"}):
    uid: str = ""


class _Victims(msgspec.Struct, rename="pascal"):
    pods: list[_Victim] = []


class Preempted(msgspec.Struct):
    """What preempt answers."""

    nodes: dict[str, _Victims] = msgspec.field(default_factory=dict, name="NodeNameToMetaVictims")


@dataclass(frozen=True, slots=True)
class _Placed:
    namespace: str
    name: str
    priority: int


class Preemption:
    """Pods that have a node, and what it takes to send some away."""

    def __init__(self, server: ApiServer, user: User) -> None:
        self._server = server
        self._user = user
        self._placed: dict[str, _Placed] = {}
        self._waited_for: dict[str, tuple[str, ...]] = {}

    def placed(self, record: Record) -> None:
        """A pod has a node."""
        priority = (record.value.get("spec") or {}).get("priority") or 0
        self._placed[record.uid] = _Placed(record.namespace, record.name, priority)
        self._waited_for.pop(record.uid, None)

    def gone(self, uid: str) -> None:
        """A pod holds its node no more, or waits for none any more."""
        self._placed.pop(uid, None)
        self._waited_for.pop(uid, None)

    def worthwhile(self, record: Record) -> bool:
        """Whether a pod may send others away, and has not just done so."""
        spec = record.value.get("spec") or {}
        if spec.get("preemptionPolicy") == "Never":
            return False
        if any(uid in self._placed for uid in self._waited_for.get(record.uid, ())):
            return False
        priority = spec.get("priority") or 0
        return any(one.priority < priority for one in self._placed.values())

    @staticmethod
    def body(record: Record, nodes: Iterable[str]) -> bytes:
        """The extender's arguments: nobody has to go for kube-scheduler's own reasons."""
        victims = msgspec.json.encode(
            {node: {"Pods": [], "NumPDBViolations": 0} for node in nodes}
        )
        return b'{"Pod":' + record.text() + b',"NodeNameToMetaVictims":' + victims + b"}"

    async def follow(self, record: Record, answer: Preempted) -> str:
        """Sends the victims of the best node away; a few words on it, empty when nobody goes.

        The pod is nominated first, so that the room is kept for it.
        """
        choices = {
            node: [one.uid for one in victims.pods if one.uid in self._placed]
            for node, victims in answer.nodes.items()
            if victims.pods
        }
        choices = {node: uids for node, uids in choices.items() if uids}
        if not choices:
            return ""
        node = min(choices, key=lambda name: self._cost(choices[name]))
        uids = choices[node]
        self._waited_for[record.uid] = tuple(uids)
        status = {"metadata": {"uid": record.uid}, "status": {"nominatedNodeName": node}}
        await self._server.patch(
            "pods", record.namespace, record.name, status, sub="status", user=self._user
        )
        for uid in uids:
            await self._evict(self._placed[uid], uid, f"{record.namespace}/{record.name}", node)
        return f"preempting {len(uids)} less important pods on {node}"

    def _cost(self, uids: list[str]) -> tuple[int, int, int, int]:
        victims = [self._placed[uid] for uid in uids]
        disruption = self._server.cluster.plugins.disruption
        broken = sum(disruption(one.namespace, self._labels(one)) is not None for one in victims)
        priorities = [one.priority for one in victims]
        return broken, max(priorities), sum(priorities), len(victims)

    def _labels(self, pod: _Placed) -> Mapping[str, str]:
        record = self._server.store.get("pods", pod.namespace, pod.name)
        return {} if record is None else record.labels

    async def _evict(self, pod: _Placed, uid: str, by: str, node: str) -> None:
        record = self._server.store.get("pods", pod.namespace, pod.name)
        if record is None or record.uid != uid:
            return
        about = {**record.value, "kind": "Pod", "apiVersion": "v1"}
        message = f"Preempted by pod {by} on node {node}"
        await tell(self._server, about, "Preempted", message, user=self._user, warning=True)
        with suppress(ApiError):
            options = DeleteOptions(uid=uid)
            await self._server.delete("pods", pod.namespace, pod.name, options, self._user)

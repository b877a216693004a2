"""Reports to the API server which devices the node has, and that its agent is alive.

The agent compares a search of the node with the state that it last read from or wrote to the API server, and sends
nothing if both are equal. It notices changes by others because it reads again every few rounds, and because
its writes then conflict: every write of a Device object carries the version that it was made for. Without changes it
writes only the lease. A state that changes all the time, such as a card that fails and recovers, is
written a few times at once, and then a few times a minute in its current form.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final

from partage.agent.device_document import OWNED_LABELS, cards_of, device_document
from partage.agent.discovery.found import Inventory
from partage.agent.registration import hami_annotations, node_labels
from partage.agent.trouble import Rounds
from partage.kube.client import Client
from partage.kube.clock import time_text
from partage.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from partage.kube.resources import LEASES, NODES, Resource
from partage.kube.retry import RateLimit
from partage.vendors import names
from partage.vendors.settings import HamiSettings
from partage.wire.silence import LEASE_NAMESPACE, LEASE_PREFIX

DEVICES: Final = Resource("scheduling.koordinator.sh", "v1alpha1", "devices", namespaced=False)
"""Koordinator's Device objects."""

_BETWEEN_NOTES: Final = 60.0
"""Seconds between two writes of notes, so that a note that appears and disappears is not written each time."""

_UNTIL_WHOLE: Final = 3600.0
"""Seconds until fields that the API server dropped are written again: it may have a newer definition by then."""

_AT_ONCE: Final = 10
_BETWEEN_WRITES: Final = 15.0
"""Rounds that write at once, and average seconds between later ones: 67 writes a second of a thousand nodes."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportingSettings:
    """The settings of reporting.

    Attributes:
        period: seconds between two searches of the node.
        lease_period: seconds between two renewals of the lease.
        lease_seconds: seconds without renewal after which the agent counts as gone.
        jitter: part of a period that is added at random, so that nodes do not act in step.
        resync: rounds after which the objects are read again.
        hami, qgpu: whether HAMi's registration and qGPU's label are written to the node.
        isolation: labels of the provider that enforces shares of NVIDIA cards.
    """

    period: float = 3.0
    lease_period: float = 10.0
    lease_seconds: int = 40
    jitter: float = 0.2
    resync: int = 20
    namespace: str = LEASE_NAMESPACE
    hami: bool = False
    qgpu: bool = False
    isolation: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Seen:
    """Objects as last read or written; None means unknown, an empty device means absent."""

    node: Body | None = None
    device: Body | None = None
    rounds: int = field(default=0)


@dataclass(frozen=True, slots=True)
class _Written:
    """Devices as the Device object was last written, and as the API server then had them.

    They differ if the object's definition is older than the agent: the API server drops fields that it lacks.
    """

    sent: object
    kept: object
    at: float


@dataclass(frozen=True, slots=True)
class ReportingHooks:
    """The calls that reporting makes.

    Attributes:
        hami: returns HAMi's settings in force.
        told: receives the problems, once for each change.
        restore: receives the Device object, None without one, before the first report; a search follows.
        annotated: returns the annotations of a Device object that gets new cards, given its present annotations and
            all its cards. They are written together with these cards; reporting does not change them otherwise.
        heard: receives the Node, the Device object and the found devices, after each search; None for an
            object that the API server has never reported.
        notes: returns the notes for operators, as the Node's annotation holds them.
        dropped: receives, after each write of the Device object, the dropped fields of its devices.
    """

    hami: Callable[[], HamiSettings] = HamiSettings
    told: Callable[[str], None] = lambda _: None
    restore: Callable[[Body | None], None] = lambda _: None
    annotated: Callable[[Mapping[str, str], Collection[str]], Mapping[str, str]] = lambda *_: {}
    heard: Callable[[Body | None, Body | None, Inventory], None] = lambda *_: None
    notes: Callable[[], str] = str
    dropped: Callable[[Sequence[str]], None] = lambda _: None


class AgentReporting:
    """The reports of one node's agent."""

    def __init__(
        self,
        client: Client,
        node: str,
        search: Callable[[], Inventory],
        settings: ReportingSettings = ReportingSettings(),
        hooks: ReportingHooks = ReportingHooks(),
    ) -> None:
        """No report has begun. `client` gives clock and chance too; `search` runs in a thread of its own."""
        self._client = client.insistent(settings.period)
        self._node = node
        self._search = search
        self._settings = settings
        self._hooks = hooks
        self._restored = False
        self._found = Inventory()
        self._searching = asyncio.Lock()
        self._news = asyncio.Event()
        self._noted = -_BETWEEN_NOTES
        self._writes = RateLimit(1 / _BETWEEN_WRITES, _AT_ONCE, client.clock)
        self._seen = _Seen()
        self._written: _Written | None = None
        self._said: tuple[str, ...] = ()

    async def device(self) -> Body | None:
        """The Device object in the API server; None if there is none. Raises `KubeError`."""
        try:
            return await self._client.get(DEVICES, self._node, into=Body)
        except NotFound:
            return None

    async def look(self) -> None:
        """Search the node, and pass the result on; nothing here asks the API server.

        So a card that fails while the API server is away for minutes is not granted by this node's agent either.
        """
        async with self._searching:
            self._found = await asyncio.to_thread(self._search)
        self._say(self._found.problems)
        self._hooks.heard(self._seen.node, None, self._found)
        self._news.set()

    async def report(self) -> tuple[str, ...]:
        """Write where the last search and the objects differ; return what: `device`, `node`. Raises `KubeError`."""
        self._seen.rounds += 1
        unknown = self._seen.node is None or self._seen.device is None
        if unknown or self._seen.rounds >= self._settings.resync:
            node = await self._client.get(NODES, self._node, into=Body)
            self._seen = _Seen(node, await self.device() or {})
        if not self._restored:
            async with self._searching:  # a search changes what is restored, in its thread
                self._hooks.restore(self._seen.device or None)
                self._restored = True
            await self.look()  # an earlier search did not know of it
        try:
            return await self._write(self._seen, self._found)
        except (AlreadyExists, Conflict, NotFound):
            self._seen = _Seen()  # another client wrote first: the next round reads
            raise

    async def run(self, stop: asyncio.Event) -> None:
        """Search, report and renew until `stop`; none of these waits for another. `told` gets each error once."""
        settings = self._settings
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._every(period, act), name=f"agent:{name}")
                for name, period, act in (
                    ("search", settings.period, self.look),
                    ("report", 0.0, self._report_news),
                    ("lease", settings.lease_period, self.renew),
                )
            ]
            await stop.wait()
            for task in tasks:
                task.cancel()

    async def renew(self) -> None:
        """Renew the lease that shows that the agent is alive, or create it. Raises `KubeError`."""
        uid = ((self._seen.node or {}).get("metadata") or {}).get("uid")
        await renew_lease(self._client, self._node, self._settings, str(uid or ""))

    async def _report_news(self) -> None:
        """Report the next search; those during a report are reported as one."""
        await self._news.wait()
        self._news.clear()
        await self.report()

    # --- writing -----------------------------------------------------------------------------

    async def _write(self, seen: _Seen, inventory: Inventory) -> tuple[str, ...]:
        node, before = seen.node or {}, self._as_sent(seen.device or {})
        metadata = node.get("metadata") or {}
        now, uid = time_text(self._client.clock.now()), str(metadata.get("uid") or "")
        wanted = device_document(self._node, inventory, before or None, now, uid)
        self._hooks.heard(node, wanted, inventory)  # even if it cannot be written
        if not self._writes.ready():
            return ()
        wrote = []
        cards = cards_of(wanted)
        annotations: dict[str, str] = {}
        if cards - cards_of(before):
            known = (before.get("metadata") or {}).get("annotations") or {}
            annotations = dict(self._hooks.annotated(known, cards))
        if before:
            changes = _changes(before, wanted)
            if annotations:
                changes.setdefault("metadata", {})["annotations"] = annotations
            if changes:
                seen.device = await self._client.patch(DEVICES, self._node, changes, into=Body)
                wrote.append("device")
        elif wanted["spec"]["devices"]:
            if annotations:
                wanted["metadata"]["annotations"] = annotations
            seen.device = await self._client.create(DEVICES, wanted, into=Body)
            wrote.append("device")
        changes = self._node_changes(metadata, inventory)
        if changes:
            body = {"metadata": {"uid": metadata.get("uid"), **changes}}
            seen.node = await self._client.patch(NODES, self._node, body, into=Body)
            wrote.append("node")
        if wrote:
            self._writes.reserve()
        if "device" in wrote:
            self._compare(wanted["spec"]["devices"], _devices(seen.device or {}))
        return tuple(wrote)

    def _as_sent(self, device: Body) -> Body:
        """The Device object without the fields that the API server dropped, which must not be written again."""
        written, now = self._written, self._client.clock.monotonic()
        if written is None or now - written.at >= _UNTIL_WHOLE or _devices(device) != written.kept:
            return device
        return {**device, "spec": {**device["spec"], "devices": written.sent}}

    def _compare(self, sent: Sequence[Body], kept: object) -> None:
        """Remember and report the fields of devices that the API server dropped."""
        self._written, lost = None, set[str]()
        if sent != kept and isinstance(kept, list) and len(kept) == len(sent):
            self._written = _Written(sent, kept, self._client.clock.monotonic())
            for one, other in zip(sent, kept, strict=True):
                lost |= {key for key, value in one.items() if other.get(key) != value}
        self._hooks.dropped(sorted(lost))

    def _node_changes(self, metadata: Mapping[str, Any], inventory: Inventory) -> Body:
        """Labels and annotations of the Node that differ from the wanted ones."""
        settings, there = self._settings, metadata.get("labels") or {}
        labels = node_labels(inventory, there, qgpu=settings.qgpu, isolation=settings.isolation)
        known, wanted = metadata.get("annotations") or {}, dict[str, str]()
        if settings.hami:
            wanted = hami_annotations(inventory, self._hooks.hami(), self._node, known)
        annotations: dict[str, str | None] = {
            key: text for key, text in wanted.items() if known.get(key) != text
        }
        notes, now = self._hooks.notes(), self._client.clock.monotonic()
        if known.get(names.AGENT_NOTES, "") != notes and now - self._noted >= _BETWEEN_NOTES:
            self._noted = now
            annotations[names.AGENT_NOTES] = notes or None
        both = {"labels": labels, "annotations": annotations}
        return {key: value for key, value in both.items() if value}

    # --- time --------------------------------------------------------------------------------

    async def _every(self, period: float, act: Callable[[], Awaitable[object]]) -> None:
        rounds = Rounds("the node cannot be reported")
        problem = ""
        while True:
            try:
                with rounds:
                    await act()
                    problem = ""
            except KubeError as error:
                if str(error) != problem:
                    self._hooks.told(str(error))
                problem = str(error)
            seconds = period * (1 + self._settings.jitter * self._client.chance())
            await self._client.clock.sleep(seconds)

    def _say(self, problems: tuple[str, ...]) -> None:
        if problems != self._said:
            self._said = problems
            for problem in problems:
                self._hooks.told(problem)


async def renew_lease(
    client: Client, node: str, settings: ReportingSettings, uid: str = ""
) -> None:
    """Renew the lease that shows that a node's agent is alive, or create it. Raises `KubeError`.

    Its label distinguishes it from the kubelets' in the same namespace. The scheduler closes a node whose agent has a
    lease and does not renew it. It is deleted with its Node, as the kubelet's is; `uid`: of the Node, if it is known.
    """
    name, space = f"{LEASE_PREFIX}{node}", settings.namespace
    spec = {
        "holderIdentity": node,
        "leaseDurationSeconds": settings.lease_seconds,
        "renewTime": f"{client.clock.now().astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
    }
    metadata: Body = {"labels": {names.AGENT: ""}}
    if uid:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
        metadata["ownerReferences"] = [owner]
    body = {"metadata": metadata, "spec": spec}
    try:
        await client.patch(LEASES, name, body, namespace=space, into=Body)
    except NotFound:
        made = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {**metadata, "name": name, "namespace": space},
            "spec": spec,
        }
        await client.create(LEASES, made, namespace=space, into=Body)


def _changes(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> Body:
    """The patch that makes the object as wanted; empty if it is. Others' keys stay."""
    head, aim = before.get("metadata") or {}, wanted["metadata"]
    labels = head.get("labels") or {}
    changed: Body = {
        key: aim["labels"].get(key)
        for key in OWNED_LABELS
        if labels.get(key) != aim["labels"].get(key)
    }
    metadata: Body = {"labels": changed} if changed else {}
    owners = aim.get("ownerReferences")
    if owners and head.get("ownerReferences") != owners:
        metadata["ownerReferences"] = owners
    body: Body = {}
    if _devices(before) != wanted["spec"]["devices"]:
        body["spec"] = {"devices": wanted["spec"]["devices"]}
    if not metadata and not body:
        return {}
    version = {"resourceVersion": head["resourceVersion"]} if "resourceVersion" in head else {}
    return {**body, "metadata": {**metadata, **version}}


def _devices(device: Mapping[str, Any]) -> object:
    """Devices of an object that any client may have written."""
    return (device.get("spec") or {}).get("devices")

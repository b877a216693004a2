"""The five invariants, checked from outside: the API, the service's own pages, the annotations.

    I1  no card is over its capacity in any dimension
    I2  the service's books say what the pods' records say, and its audit finds nothing
    I3  no pod runs on a device that its record does not name
    I4  nothing is reserved for nobody
    I5  every pod that waits has a reason that holds now

Nothing of Partage is imported here: what is checked and what checks share no line.
"""

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

__all__ = ["Findings", "Watchman", "amount", "findings", "live", "look", "over_capacity", "record"]

Document = Mapping[str, Any]
Cards = Mapping[tuple[str, str], Counter[str]]
"""What each device has, by node and uuid."""

RECORD = "partage.io/allocation"
SUMMARIES = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
_DOMAINS = (
    "koordinator.sh/", "kubernetes.io/", "nvidia.com/", "tke.cloud.tencent.com/", "metax-tech.com/",
)  # fmt: skip
_ORDINARY = ("cpu", "memory", "ephemeral-storage", "pods")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip


def amount(text: str) -> int:
    """A Kubernetes quantity, rounded down."""
    found = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    assert found is not None, text
    return int(float(found[1]) * _UNITS[found[2]])


def live(pod: Document) -> bool:
    """Whether the pod has a place: bound, and its containers have not all ended."""
    over = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
    return bool(pod["spec"].get("nodeName")) and not over


def record(pod: Document) -> Document | None:
    """The pod's record, if it has one that can be read; one that cannot names no device."""
    text = (pod["metadata"].get("annotations") or {}).get(RECORD)
    try:
        found = None if text is None else json.loads(text)
    except ValueError:
        return None
    whole = isinstance(found, dict) and isinstance(found.get("containers"), list)
    return found if whole else None


def taken(pod: Document, found: Document) -> dict[str, Counter[str]]:
    """What a pod's record takes, by uuid: `milli` and `bytes`, as Kubernetes counts.

    An init container runs beside the sidecars that were started before it, and ends before the
    others start; sidecars run on beside these.
    """
    given: dict[tuple[bool, str], list[tuple[str, Counter[str]]]] = {}
    for container in found["containers"]:
        for device in container["devices"]:
            amounts = Counter(milli=device["milli"], bytes=device["bytes"])
            key = container.get("phase", "main") != "main", container["name"]
            given.setdefault(key, []).append((device["uuid"], amounts))
    staying: dict[str, Counter[str]] = {}
    most: dict[str, Counter[str]] = {}
    for one in pod["spec"].get("initContainers") or ():
        stays = one.get("restartPolicy") == "Always"
        for uuid, amounts in given.pop((True, one["name"]), ()):
            beside = staying.setdefault(uuid, Counter())
            if stays:
                beside.update(amounts)
            held = most.setdefault(uuid, Counter())
            held |= beside if stays else beside + amounts
    for rows in given.values():  # what the pod has no container for counts as running
        for uuid, amounts in rows:
            staying.setdefault(uuid, Counter()).update(amounts)
    for uuid, amounts in staying.items():
        held = most.setdefault(uuid, Counter())
        held |= amounts
    return most


def capacities(devices: Iterable[Document]) -> Cards:
    """What each device has, by node and uuid."""
    found = {}
    for document in devices:
        for one in document["spec"].get("devices") or ():
            has = one.get("resources") or {}
            parts = {name.rpartition("/")[2]: text for name, text in has.items()}
            core = amount(parts.get("gpu-core", parts.get("rdma", parts.get("fpga", "100"))))
            size = amount(parts.get("gpu-memory", "0"))
            found[document["metadata"]["name"], one["id"]] = Counter(milli=core * 10, bytes=size)
    return found


def over_capacity(pods: Iterable[Document], cards: Cards) -> list[str]:
    """I1: cards on which records add up to more than there is; instances that overlap."""
    used: dict[tuple[str, str], Counter[str]] = {}
    slots: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for pod in pods:
        found = record(pod)
        if found is None or not live(pod) or found.get("uid") != pod["metadata"]["uid"]:
            continue  # a record of another pod gives nothing; I3 tells of it
        where = pod["spec"]["nodeName"]
        for uuid, amounts in taken(pod, found).items():
            used.setdefault((where, uuid), Counter()).update(amounts)
        for container in found["containers"]:
            for device in container["devices"]:
                mig = device.get("mig")
                if mig:
                    end = mig["start"] + mig["size"]
                    slots.setdefault((where, device["uuid"]), []).append(
                        (mig["start"], end, pod["metadata"]["name"])
                    )
    wrong = []
    for card, has in cards.items():
        for dimension, total in has.items():
            held = used.get(card, Counter())[dimension]
            if held > total:
                wrong.append(f"I1: {card[1]} on {card[0]} gives {held} of {total} {dimension}")
    for card, places in slots.items():
        places.sort()
        for one, other in itertools.pairwise(places):
            if other[0] < one[1]:
                wrong.append(f"I1: instances overlap on {card}: {one} {other}")
    return wrong


def misplaced(pods: Iterable[Document], cards: Cards) -> list[str]:
    """I3: pods whose record is another's, of another node, or names what is not there."""
    wrong = []
    for pod in pods:
        found = record(pod)
        if found is None or not live(pod):
            continue
        name, where = pod["metadata"]["name"], pod["spec"]["nodeName"]
        if found.get("uid") != pod["metadata"]["uid"]:
            wrong.append(f"I3: pod {name} has the record of {found['uid']}")
        if found.get("node") != where:
            wrong.append(f"I3: pod {name} is on {where}, its record is of {found.get('node')}")
        wrong += [
            f"I3: pod {name} has {uuid}, which {where} does not have"
            for uuid in taken(pod, found)
            if (where, uuid) not in cards
        ]
    return wrong


def asks(pod: Document) -> bool:
    """Whether the pod asks for a device."""
    containers = [*pod["spec"].get("containers", ()), *pod["spec"].get("initContainers", ())]
    return any(
        name.startswith(_DOMAINS)
        for one in containers
        for part in ("limits", "requests")
        for name in ((one.get("resources") or {}).get(part) or {})
        if name not in _ORDINARY
    )


@dataclass(slots=True)
class Findings:
    """What was seen at one moment, and what is wrong with it."""

    pods: list[Document] = field(default_factory=list)
    devices: list[Document] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    summaries: dict[str, Any] = field(default_factory=dict)
    explained: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


async def look(http: aiohttp.ClientSession, api: str, service: str) -> Findings:
    """Read everything there is to know from outside.

    Args:
        http: a session.
        api: URL of the API server.
        service: URL of the instance that leads.

    Raises:
        aiohttp.ClientError: one of them does not answer, or does not lead.
    """

    async def items(path: str) -> list[Document]:
        async with http.get(api + path) as answer:
            answer.raise_for_status()
            return list((await answer.json())["items"])

    found = Findings(await items(PODS), await items(DEVICES))
    found.nodes = [one["metadata"]["name"] for one in await items(NODES)]
    async with http.get(f"{service}/metrics") as answer:
        answer.raise_for_status()
        found.metrics = _parsed(await answer.text())
    async with http.get(service + SUMMARIES) as answer:
        answer.raise_for_status()
        found.summaries = await answer.json()
    for pod in found.pods:
        if not pod["spec"].get("nodeName") and asks(pod):
            head = pod["metadata"]
            path = f"/api/explain/{head['namespace']}/{head['name']}"
            async with http.get(service + path) as answer:
                if answer.status == 200:
                    found.explained[head["uid"]] = await answer.json()
    return found


def findings(found: Findings, *, foreign: bool = False) -> list[str]:
    """Every invariant that does not hold.

    Args:
        found: what was read.
        foreign: records may name devices that are not there; for scenarios that take them away.
    """
    cards = capacities(found.devices)
    wrong = over_capacity(found.pods, cards)
    if not foreign:
        wrong += misplaced(found.pods, cards)
    return [*wrong, *_books(found, foreign=foreign), *_nobodys(found), *_reasons(found)]


def _books(found: Findings, *, foreign: bool) -> list[str]:
    """I2."""
    wrong = []
    value = found.metrics
    if value.get("partage_audit_clean") != 1:
        wrong.append("I2: the audit is not clean")
    for kind in ("leaked", "missing"):
        units = sum(v for k, v in value.items() if k.startswith(f"partage_audit_{kind}_units"))
        if units:
            wrong.append(f"I2: the audit finds {units} units {kind}")
    there = capacities(found.devices)
    minors = {
        (document["metadata"]["name"], one["id"]): str(one["minor"])
        for document in found.devices
        for one in document["spec"].get("devices") or ()
    }
    expected: dict[tuple[str, str, str], tuple[int, int]] = {}
    for pod in found.pods:
        said = record(pod)
        where = pod["spec"].get("nodeName")
        if said is None or not live(pod) or where not in found.nodes:
            continue
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for uuid, amounts in taken(pod, said).items():
            if (where, uuid) in there:
                key = (where, name, minors[where, uuid])
                expected[key] = (amounts["milli"] // 10, amounts["bytes"])
    booked: dict[tuple[str, str, str], tuple[int, int]] = {}
    for where, summary in found.summaries.items():
        for name, cards in (summary.get("allocateSet") or {}).get("gpu", {}).items():
            for minor, texts in cards.items():
                parts = {k.rpartition("/")[2]: amount(v) for k, v in texts.items()}
                booked[where, name, minor] = (parts["gpu-core"], parts.get("gpu-memory", 0))
    if foreign:
        booked = {key: held for key, held in booked.items() if key in expected}
    if booked != expected:
        extra = {k: v for k, v in booked.items() if expected.get(k) != v}
        lacking = {k: v for k, v in expected.items() if booked.get(k) != v}
        wrong.append(f"I2: the books say {extra}, the records say {lacking}")
    return wrong


def _nobodys(found: Findings) -> list[str]:
    """I4."""
    series = ("partage_holds", "partage_bindings_in_flight", "partage_bindings_unknown")
    wrong = [
        f"I4: {name} is {found.metrics.get(name)}" for name in series if found.metrics.get(name)
    ]
    owners = {
        f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in found.pods if live(p)
    }
    for where, summary in found.summaries.items():
        wrong += [
            f"I4: {where} keeps devices for {name}, which holds none"
            for name in (summary.get("allocateSet") or {}).get("gpu", {})
            if name not in owners
        ]
    return wrong


def _reasons(found: Findings) -> list[str]:
    """I5."""
    wrong = []
    for pod in found.pods:
        head = pod["metadata"]
        gated = pod["spec"].get("schedulingGates") or head.get("deletionTimestamp")
        over = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
        if pod["spec"].get("nodeName") or gated or over or not asks(pod):
            continue
        said = found.explained.get(head["uid"]) or found.explained.get(head["name"]) or {}
        reason = said.get("reason")
        if not reason or not reason.get("code"):
            wrong.append(f"I5: pod {head['name']} waits and nobody says why: {said or 'unknown'}")
        conditions = (pod.get("status") or {}).get("conditions") or ()
        if not any(c["type"] == "PodScheduled" and c.get("message") for c in conditions):
            wrong.append(f"I5: pod {head['name']} waits and its condition does not say why")
    return wrong


def _parsed(text: str) -> dict[str, float]:
    """Series of Prometheus' text format, by name with labels."""
    found = {}
    for row in text.splitlines():
        if row and not row.startswith("#"):
            name, _, value = row.rpartition(" ")
            found[name] = float(value)
    return found


class Watchman:
    """Follows all pods and devices, and looks at I1 and I3 at every single change.

    Attributes:
        wrong: what was ever wrong, in the order of time.
        seen: changes that were looked at.
        bound: pods that were bound, by uid, to when that was seen, on the loop's clock.
        listeners: told every change of a pod.
    """

    def __init__(self, http: aiohttp.ClientSession, api: str, *, foreign: bool = False) -> None:
        self._http = http
        self._api = api
        self._foreign = foreign
        self._pods: dict[str, Document] = {}
        self._cards: dict[str, Cards] = {}
        self._on: dict[str, dict[str, Document]] = {}
        self.wrong: list[str] = []
        self.seen = 0
        self.bound: dict[str, float] = {}
        self.listeners: list[Callable[[str, Document], None]] = []

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(DEVICES, self._device))
            group.create_task(self._follow(PODS, self._pod))

    async def _follow(self, path: str, tell: Any) -> None:
        async with self._http.get(self._api + path) as answer:
            listed = await answer.json()
        for item in listed["items"]:
            tell("ADDED", item)
        version = listed["metadata"]["resourceVersion"]
        while True:
            query = f"?watch=true&resourceVersion={version}"
            async with self._http.get(
                self._api + path + query, timeout=aiohttp.ClientTimeout(None)
            ) as answer:
                rest = b""
                async for piece in answer.content.iter_any():
                    *rows, rest = (rest + piece).split(b"\n")
                    for row in rows:
                        event = json.loads(row)
                        assert event["type"] != "ERROR", event
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            tell(event["type"], event["object"])

    def _device(self, kind: str, item: Document) -> None:
        name = item["metadata"]["name"]
        self._cards.pop(name, None)
        if kind != "DELETED":
            self._cards[name] = capacities([item])

    def _pod(self, kind: str, item: Document) -> None:
        self.seen += 1
        if item["spec"].get("nodeName"):
            self._placed(kind, item)
        for listener in self.listeners:
            listener(kind, item)

    def _placed(self, kind: str, item: Document) -> None:
        uid, where = item["metadata"]["uid"], item["spec"]["nodeName"]
        self.bound.setdefault(uid, asyncio.get_running_loop().time())
        mates = self._on.setdefault(where, {})
        mates.pop(uid, None)
        if kind == "DELETED" or not live(item):
            return
        mates[uid] = item
        cards = self._cards.get(where, {})
        self.wrong += over_capacity(mates.values(), cards)
        if not self._foreign and cards:
            self.wrong += misplaced([item], cards)

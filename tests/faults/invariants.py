"""The five invariants, checked from outside: the API, the service's own pages, the annotations.

    I1  no card is over its capacity in any dimension
    I2  the service's books say what the pods' records say, and its audit finds nothing
    I3  no pod runs on a device that its record does not name: its record is its own, of its node and
        of cards that are there, and its containers were handed exactly these
    I4  every reservation has an owner
    I5  every pod that waits has a reason that holds now, as far as an outsider can see: it
        names nodes, cards and a quota that are there, and states no want, illness or closed node
        where the records and the inventory show none

A look takes a moment in which things change, and what was decided is still under way: the caller
looks again until all holds, with a patience of its own.

How records are read is in `seen`, I5 in detail in `waiting`. Nothing of Partage is imported there
or here: what is checked and what checks share no line.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable

import aiohttp
from seen import (
    Cards,
    Document,
    Findings,
    Handed,
    amount,
    asks,
    capacities,
    live,
    record,
    taken,
)
from waiting import Room, absent, untrue

__all__ = [
    "DEVICES",
    "NODES",
    "PODS",
    "SUMMARIES",
    "Cards",
    "Document",
    "Findings",
    "Handed",
    "amount",
    "asks",
    "capacities",
    "findings",
    "live",
    "look",
    "misplaced",
    "over_capacity",
    "record",
    "series",
    "unlike",
]

SUMMARIES = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
QUOTAS = "/api/v1/resourcequotas"


def over_capacity(pods: Iterable[Document], cards: Cards) -> list[str]:
    """I1: cards on which records add up to more than there is; instances that overlap."""
    used: dict[tuple[str, str], Counter[str]] = {}
    slots: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for pod in pods:
        found = record(pod)
        if found is None or not live(pod) or found.get("uid") != pod["metadata"]["uid"]:
            continue  # a record of another pod gives nothing; I3 reports it
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


def unlike(pods: Iterable[Document], handed: Handed) -> list[str]:
    """I3: pods whose containers were handed something else than their record names."""
    wrong = []
    for pod in pods:
        given = handed.get(pod["metadata"]["uid"])
        if given is None or not live(pod):
            continue  # not started yet, or over
        said: dict[str, set[str]] = {}
        for container in (record(pod) or {}).get("containers", ()):
            uuids = {one["uuid"] for one in container["devices"] if one["type"] == "gpu"}
            said.setdefault(container["name"], set()).update(uuids)
        for name in given.keys() | said.keys():
            got, named = given.get(name, frozenset()), said.get(name, set())
            if got != named:
                wrong.append(
                    f"I3: container {name} of pod {pod['metadata']['name']} was handed "
                    f"{sorted(got)}, its record names {sorted(named)}"
                )
    return wrong


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
    found.standing = {one["metadata"]["name"]: one for one in await items(NODES)}
    found.nodes = list(found.standing)
    found.quotas = await items(QUOTAS)
    async with http.get(f"{service}/metrics") as answer:
        answer.raise_for_status()
        found.metrics = series(await answer.text())
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


def findings(
    found: Findings, handed: Handed | None = None, foreign: Collection[str] = ()
) -> list[str]:
    """Every invariant that does not hold.

    Args:
        found: what was read.
        handed: what containers were handed, where that is known.
        foreign: names of pods whose record is forged, or whose card was taken away.
    """
    cards = capacities(found.devices)
    own = [pod for pod in found.pods if pod["metadata"]["name"] not in foreign]
    wrong = over_capacity(found.pods, cards)
    wrong += misplaced(own, cards) + unlike(own, handed or {})
    return [*wrong, *_books(found, foreign), *_nobodys(found), *_reasons(found, foreign)]


def _books(found: Findings, foreign: Collection[str]) -> list[str]:
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
    booked = {
        key: held
        for key, held in booked.items()
        if key in expected or key[1].rpartition("/")[2] not in foreign
    }
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


def _reasons(found: Findings, foreign: Collection[str]) -> list[str]:
    """I5."""
    wrong = []
    room = Room(found, foreign)
    for pod in found.pods:
        head = pod["metadata"]
        gated = pod["spec"].get("schedulingGates") or head.get("deletionTimestamp")
        over = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
        if pod["spec"].get("nodeName") or gated or over or not asks(pod):
            continue
        said = found.explained.get(head["uid"]) or found.explained.get(head["name"]) or {}
        reason = said.get("reason")
        if not reason or not reason.get("code"):
            wrong.append(f"I5: pod {head['name']} waits without a reason: {said or 'unknown'}")
        else:
            told = [*absent(pod, reason, found), *untrue(pod, reason, room)]
            wrong += [f"I5: pod {head['name']} waits: {one}" for one in told]
        conditions = (pod.get("status") or {}).get("conditions") or ()
        if not any(c["type"] == "PodScheduled" and c.get("message") for c in conditions):
            wrong.append(f"I5: pod {head['name']} waits and its condition does not say why")
    return wrong


def series(text: str) -> dict[str, float]:
    """Series of Prometheus' text format, by name with labels."""
    found = {}
    for row in text.splitlines():
        if row and not row.startswith("#"):
            name, _, value = row.rpartition(" ")
            found[name] = float(value)
    return found

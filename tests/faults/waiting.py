"""I5 in detail: whether the reason of a waiting pod holds, as far as an outsider can see.

A reason must name nodes, cards and a quota that are there. What it says of a node is judged where
records and inventory alone decide: pods of one container that ask by Koordinator's names, on nodes
without taints, other registrations, or records that cannot be read. Elsewhere nothing is judged.

Nothing of Partage is imported here, least of all what decides.
"""

import re
from collections import Counter
from collections.abc import Collection

from seen import (
    RECORD,
    Document,
    Findings,
    amount,
    asks,
    capacities,
    live,
    record,
    taken,
)

__all__ = ["Room", "absent", "untrue"]

Wish = tuple[int, int]
"""How many cards a pod asks, and how many percent of each."""
_WANT = {
    "InsufficientCards",
    "InsufficientCore",
    "InsufficientMemory",
    "InsufficientSlots",
    "CardNotIdle",
}
"""Codes by which a pod waits since others have what it asks."""
_NARROWING = (
    "affinity",
    "initContainers",
    "nodeSelector",
    "overhead",
    "resourceClaims",
    "resources",
    "topologySpreadConstraints",
)
"""Fields of a pod with which more than its cards decides where it may go."""
_OWN = (
    RECORD,
    "partage.io/woken",
    "scheduling.koordinator.sh/bind-timestamp",
    "scheduling.koordinator.sh/device-allocated",
    "scheduling.koordinator.sh/gpu-minors",
)
"""Fields that are written on a pod later, and not by its author."""
_MOST_FREE = re.compile(r"(?:most free|at most) \S+ on (\S+?)(?: card ([0-9]+))?\)")


def absent(pod: Document, reason: Document, found: Findings) -> list[str]:
    """Nodes, cards and quotas that a reason names and that are not there."""
    wrong = []
    space = pod["metadata"].get("namespace")
    limits = [one for one in found.quotas or () if one["metadata"].get("namespace") == space]
    if reason["code"] == "QuotaExceeded" and found.quotas is not None and not limits:
        wrong.append(f"it names a quota, and {space} has none")
    if not found.standing:
        return wrong
    line = str(reason.get("message") or "")
    count = re.match(r"0/([0-9]+) nodes", line)
    if count is not None and int(count[1]) > len(found.standing):
        wrong.append(f"it names {count[1]} nodes, there are {len(found.standing)}")
    named: dict[str, set[int]] = {
        name: {card["minor"] for card in one.get("cards") or ()}
        for name, one in (reason.get("nodes") or {}).items()
    }
    most = _MOST_FREE.search(line)
    if most is not None:
        named.setdefault(most[1], set()).update(int(one) for one in most.groups()[1:] if one)
    minors = {
        one["metadata"]["name"]: {device["minor"] for device in one["spec"].get("devices") or ()}
        for one in found.devices
    }
    for name, told in named.items():
        if name not in found.standing:
            wrong.append(f"it names node {name}, which is not there")
        elif name in minors and not told <= minors[name]:
            wrong.append(f"cards {sorted(told - minors[name])} of {name} are not there")
    return wrong


def untrue(pod: Document, reason: Document, room: "Room") -> list[str]:
    """What a reason says of single nodes that the records and the inventory do not show."""
    wrong = []
    wish = _wish(pod)
    for name, one in (reason.get("nodes") or {}).items():
        node, code = room.found.standing.get(name), one.get("code")
        if node is None:
            continue
        if code == "NodeUnschedulable" and not (node.get("spec") or {}).get("unschedulable"):
            wrong.append(f"{name} is reported as closed, and it is not")
        if code == "Taint" and not (node.get("spec") or {}).get("taints"):
            wrong.append(f"{name} is reported with a taint, and it has none")
        if code == "Unhealthy" and room.plain(name) and all(room.well(name).values()):
            wrong.append(f"cards of {name} are reported as ill, and all are well")
        if code in _WANT and wish is not None and room.plain(name):
            closed = {
                card["minor"] for card in one.get("cards") or () if card["code"] not in _WANT
            }
            fits = [minor for minor in room.fitting(name, wish[1]) if minor not in closed]
            if len(fits) >= wish[0]:
                wrong.append(f"{code} is reported of {name}, whose cards {fits} have room")
    return wrong


def _wish(pod: Document) -> Wish | None:
    """What a pod of one container asks by Koordinator's names; None where more than that decides."""
    spec, head = pod["spec"], pod["metadata"]
    marks = [*(head.get("annotations") or ()), *(head.get("labels") or ())]
    marked = any("/" in key and key not in _OWN for key in marks)
    if (
        marked
        or len(spec.get("containers") or ()) != 1
        or any(spec.get(one) for one in _NARROWING)
    ):
        return None
    amounts = spec["containers"][0].get("resources") or {}
    asked = amounts.get("limits") or {}
    limits = {name.removeprefix("koordinator.sh/"): text for name, text in asked.items()}
    if amounts.get("requests", asked) != asked:
        return None
    if limits.keys() == {"gpu"}:
        share = amount(limits["gpu"])
    elif limits.keys() == {"gpu-core", "gpu-memory-ratio"} and len(set(limits.values())) == 1:
        share = amount(limits["gpu-core"])
    else:
        return None
    if 0 < share <= 100:
        return 1, share
    return (share // 100, 100) if share > 0 and share % 100 == 0 else None


class Room:
    """What cards have left by the records, where nothing else decides whether a pod may have it.

    Attributes:
        found: what was read.
    """

    def __init__(self, found: Findings, foreign: Collection[str]) -> None:
        self.found = found
        self._cards = capacities(found.devices)
        self._devices = {one["metadata"]["name"]: one for one in found.devices}
        self._unclear: set[str] = set()
        self._used: dict[tuple[str, str], Counter[str]] = {}
        self._odd: set[tuple[str, str]] = set()
        # Room that was made for a pod is not free, though no record says so yet.
        self._promised = any(
            (pod.get("status") or {}).get("nominatedNodeName") and not pod["spec"].get("nodeName")
            for pod in found.pods
        )
        for pod in found.pods:
            if live(pod) and (asks(pod) or record(pod) is not None):
                self._count(pod, pod["metadata"]["name"] in foreign)

    def _count(self, pod: Document, excused: bool) -> None:  # noqa: FBT001 # one of two, at once
        where, said = pod["spec"]["nodeName"], record(pod)
        own = said is not None and said.get("uid") == pod["metadata"]["uid"]
        if said is None or not own or excused or said.get("node") != where:
            self._unclear.add(where)
            return
        for uuid, amounts in taken(pod, said).items():
            if (where, uuid) not in self._cards:
                self._unclear.add(where)
            self._used.setdefault((where, uuid), Counter()).update(amounts)
            if _wish(pod) is None:
                self._odd.add((where, uuid))

    def plain(self, name: str) -> bool:
        """Whether records and inventory alone tell what this node's cards have left."""
        node = self.found.standing[name]
        others = any(
            key.startswith("hami.io/") for key in node["metadata"].get("annotations") or ()
        )
        closed = (
            (node.get("spec") or {}).get("unschedulable")
            or (node.get("spec") or {}).get("taints")
            or others
        )
        known = name in self._devices and name not in self._unclear
        most = ((node.get("status") or {}).get("allocatable") or {}).get("pods")
        there = sum(pod["spec"].get("nodeName") == name and live(pod) for pod in self.found.pods)
        full = most is not None and there >= amount(most)
        return known and not closed and not full and not self._promised

    def well(self, name: str) -> dict[int, bool]:
        """By the Device object, which cards are well, by number."""
        rows = self._devices[name]["spec"].get("devices") or ()
        return {one["minor"]: one.get("health") is True for one in rows if one["type"] == "gpu"}

    def fitting(self, name: str, percent: int) -> list[int]:
        """Cards that have so many percent left for sure, by number."""
        found = []
        for one in self._devices[name]["spec"].get("devices") or ():
            card, has = (name, one["id"]), self._cards[name, one["id"]]
            used = self._used.get(card, Counter())
            if one["type"] != "gpu" or not one.get("health") or (card in self._odd and used):
                continue
            # Shares are rounded against the pod: a byte too few is no room.
            if all(used[key] + -(-total * percent // 100) <= total for key, total in has.items()):
                found.append(one["minor"])
        return found

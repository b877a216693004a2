"""Checks I1 and I3 at every single change of a pod."""

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Any

import aiohttp
from invariants import (
    DEVICES,
    PODS,
    Cards,
    Document,
    Handed,
    capacities,
    live,
    misplaced,
    over_capacity,
    unlike,
)

__all__ = ["Watchman"]


class Watchman:
    """Follows all pods and devices, and looks at I1 and I3 at every single change.

    Args:
        http: a session.
        api: URL of the API server.
        handed: what containers were handed, kept by what starts them.
        foreign: names of pods whose record is forged, or whose card was taken away.

    Attributes:
        wrong: what was ever wrong, in the order of time.
        seen: changes that were looked at.
        bound: pods that were bound, by uid, to when that was seen, on the loop's clock.
        listeners: called for every change of a pod.
    """

    def __init__(
        self, http: aiohttp.ClientSession, api: str, handed: Handed, foreign: Collection[str] = ()
    ) -> None:
        self._http = http
        self._api = api
        self._handed = handed
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
        if item["metadata"]["name"] not in self._foreign:
            self.wrong += unlike([item], self._handed)
            self.wrong += misplaced([item], cards) if cards else []

"""Use and waiting pods over time: an hour by half minutes and a day by ten minutes.

The module keeps these in memory since the service started, for the page's line. A monitoring system keeps
anything that must outlive the service.
"""

import asyncio
from collections import deque
from datetime import datetime
from typing import Any, Final

from partage.extender.books import Books
from partage.extender.cycle import asks
from partage.model.device import DeviceType

_SPANS: Final = {"hour": (30, 120), "day": (600, 144)}
"""Seconds between two points, and the number of kept points."""
_PIECE: Final = 1024
"""Pods counted before other tasks run."""

_Point = tuple[int, int, int, int]


class Trend:
    """Allocated compute and memory, idle cards and waiting pods, by time."""

    def __init__(self) -> None:
        self._points: dict[str, deque[_Point]] = {
            name: deque(maxlen=kept) for name, (_step, kept) in _SPANS.items()
        }
        self._last: dict[str, datetime] = {}

    async def look(self, books: Books, now: datetime) -> None:
        """Take a point if one is due."""
        due = [
            name
            for name, (step, _kept) in _SPANS.items()
            if name not in self._last or abs((now - self._last[name]).total_seconds()) >= step
        ]
        if not due:
            return
        waiting = 0
        for number, entry in enumerate(list(books.cluster_cache.pods.values()), 1):
            pod = entry.pod
            waiting += pod.node is None and not pod.finished and asks(pod)
            if not number % _PIECE:
                await asyncio.sleep(0)
        plane = books.engine.ledger.planes[DeviceType.GPU]
        point = (
            int((plane.core_total - plane.core_free).sum()),
            int((plane.memory_total - plane.memory_free).sum()),
            int((plane.open & (plane.tenants == 0) & (plane.kind > 0)).sum()),
            waiting,
        )
        for name in due:
            self._points[name].append(point)
            self._last[name] = now

    def document(self) -> dict[str, Any]:
        """By span: seconds between two points, the time of the last one, and the points."""
        found = {}
        for name, (step, kept) in _SPANS.items():
            points = self._points[name]
            last = self._last.get(name)
            found[name] = {
                "step": step,
                "kept": kept,
                "until": last.isoformat(timespec="seconds").replace("+00:00", "Z")
                if last
                else None,
                **{
                    key: [point[place] for point in points]
                    for place, key in enumerate(("core_milli", "memory_bytes", "idle", "waiting"))
                },
            }
        return found

"""Writing events, which `kubectl describe` shows under an object.

Events are written through core v1. The newer events.k8s.io/v1 forbids changing the message of an
event, and a waiting pod's reason changes; both show in the same place.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from partage.kube.client import Client
from partage.kube.clock import sleep_until, time_text
from partage.kube.errors import AlreadyExists, KubeError, NotFound
from partage.kube.recorder import EventBook, EventSettings, Record, Regarding, Topic
from partage.kube.resources import EVENTS

_SELDOM: Final = 60.0
"""Seconds between two reports of dropped events."""


class EventRecorder:
    """Takes events without ever making its caller wait, and writes them in the background."""

    def __init__(
        self,
        client: Client,
        *,
        component: str,
        instance: str,
        settings: EventSettings = EventSettings(),  # noqa: B008 - a frozen value
        failed: Callable[[KubeError], None] | None = None,
        speaks: Callable[[], bool] = lambda: True,
        crowded: Callable[[int], None] = lambda _: None,
    ) -> None:
        """A recorder that is not yet running.

        Args:
            component: the reporter, as shown under "From".
            instance: the process of the component.
            failed: gets each error; the event is tried again at its next occurrence.
            speaks: asked just before each write; if it returns false, the event is dropped.
            crowded: gets, at most once a minute, the number of events dropped since the last call, because more
                events waited than can be written.
        """
        self._speaks = speaks
        self._client = client
        self._component = component
        self._instance = instance
        self._failed, self._crowded = failed, crowded
        self._dropped, self._said = 0, float("-inf")
        self._book = EventBook(settings)
        self._changed = asyncio.Event()
        self._sequence = 0

    def normal(self, regarding: Regarding, reason: str, message: str) -> None:
        """Something ordinary happened to an object."""
        self._note(Topic(regarding, "Normal", reason), message)

    def warning(self, regarding: Regarding, reason: str, message: str) -> None:
        """Something is wrong with an object, or it has to wait."""
        self._note(Topic(regarding, "Warning", reason), message)

    async def run(self) -> None:
        """Write until cancelled; events that are due by then are left to `flush`."""
        while True:
            self._changed.clear()
            following, clock = await self.flush(), self._client.clock
            left = None if following is None else following - clock.monotonic()
            await sleep_until(clock, left, self._changed)

    async def flush(self) -> float | None:
        """Write all due events; returns the moment of the next look, None if nothing waits."""
        while True:
            records, following = self._book.due(self._client.clock.monotonic())
            for record in records:
                await self._write(record)
            self._tell_dropped()
            if not records:
                return following

    def _tell_dropped(self) -> None:
        now, dropped = self._client.clock.monotonic(), self._book.dropped - self._dropped
        if dropped and now >= self._said + _SELDOM:
            self._said, self._dropped = now, self._book.dropped
            self._crowded(dropped)

    def _note(self, topic: Topic, message: str) -> None:
        clock = self._client.clock
        self._book.note(topic, message, clock.monotonic(), clock.now())
        self._changed.set()

    async def _write(self, record: Record) -> None:
        message, count = record.message, record.count
        now = self._client.clock.monotonic()
        if not self._speaks():
            self._book.written(record, record.name, message, count, now)
            return
        try:
            if record.name:
                try:
                    await self._patch(record)
                except NotFound:
                    self._book.lost(record)
            name = record.name or await self._create(record)
        except KubeError as error:
            # It counts as written, because an event is not worth many tries against a failing server.
            self._book.written(record, record.name, message, count, now)
            if self._failed is not None:
                self._failed(error)
            return
        self._book.written(record, name, message, count, now)

    async def _patch(self, record: Record) -> None:
        body = {
            "message": record.message,
            "count": record.count,
            "lastTimestamp": time_text(record.last),
        }
        await self._client.patch(
            EVENTS, record.name, body, namespace=_namespace(record), into=msgspec.Raw
        )

    async def _create(self, record: Record) -> str:
        try:
            return await self._create_once(record)
        except AlreadyExists:
            # Another process used the same moment for the same object. The next name is free.
            return await self._create_once(record)

    async def _create_once(self, record: Record) -> str:
        name = self._name(record)
        body, space = self._body(record, name), _namespace(record)
        await self._client.create(EVENTS, body, namespace=space, into=msgspec.Raw)
        return name

    def _name(self, record: Record) -> str:
        """The object's name and a moment in hexadecimal, as other components name events."""
        self._sequence += 1
        moment = int(self._client.clock.now().timestamp() * 1_000_000) * 1000 + self._sequence
        return f"{record.topic.regarding.name[:200].rstrip('-.')}.{moment:x}"

    def _body(self, record: Record, name: str) -> dict[str, Any]:
        regarding, kind, reason = record.topic
        involved = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "name": regarding.name,
            "namespace": regarding.namespace,
            "uid": regarding.uid,
        }
        return {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {"name": name, "namespace": _namespace(record)},
            "involvedObject": {key: value for key, value in involved.items() if value},
            "type": kind,
            "reason": reason,
            "message": record.message,
            "count": record.count,
            "firstTimestamp": time_text(record.first),
            "lastTimestamp": time_text(record.last),
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


def _namespace(record: Record) -> str:
    """Events about objects without a namespace live in `default`, as the API demands."""
    return record.topic.regarding.namespace or "default"

"""Follows the watched kinds of a cluster, as one stream of facts and one picture of all objects.

Each kind has an informer of its own, and its changes arrive in the order of its stream. `refresh`
lists everything again, because a new leader needs a picture no older than the call.

A process with one node's credentials may change its Node and Device endlessly, and a user his pods, and each change is
read whole. So the feed passes on an object that changes all the time only now and then, in its newest state. Objects of
other nodes and namespaces do not wait, nor do new objects and what `Watched.paced` excepts.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final, Protocol

from partage.daemon.watched import Watched, as_document
from partage.kube.client import Client
from partage.kube.clock import Clock, race, sleep_until
from partage.kube.errors import KubeError, NotFound, NotServed
from partage.kube.informer import Informer
from partage.kube.mirror import Change, Gone, Interrupted, Odd, Seen, Synced, WentBack
from partage.kube.objects import HasMeta, Key, key_of
from partage.kube.retry import RateLimit
from partage.kube.watch import WatchSettings
from partage.wire.documents import Document

_LOG: Final = logging.getLogger("partage.daemon")
_AT_ONCE: Final = 10
_A_SECOND: Final = 2.0
"""Changes of one Node or Device, or of one namespace's largest pods, passed on at once, and then each second. The largest
takes some 40 ms to read."""
_KNOWN: Final = 4096
"""Nodes and namespaces whose changes are counted, before those at rest are forgotten; and objects named in the log."""
_STALE: Final = 64
"""Entries of a queue that it may have for objects that are no longer late."""


class Facts(Protocol):
    """Takes in changes from the API server, synchronously and in the order of each watch."""

    def changed(self, document: Document) -> object:
        """Take in a new or changed object."""

    def gone(self, document: Document) -> None:
        """Take in a deleted object, in its last known state."""


class _Pace:
    """Decides which changes of an object are passed on at once, and when the others are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: dict[str, RateLimit] = {}
        self._late: dict[Key, float] = {}
        self._queue: list[tuple[float, Key]] = []
        """A heap of the same, and of some that are no longer late."""
        self._news = asyncio.Event()

    def at_once(self, key: Key, part: float) -> bool:
        """Whether a change is passed on now; if not, `due` returns the object's key later.

        `part`: how much of a large change it is; 0 for one that must not wait.
        """
        if part == 0:
            self._late.pop(key, None)
            return True
        if key in self._late:
            return False
        seconds = self._limit(key.namespace or key.name).reserve(part)
        if seconds > 0:
            self._late[key] = at = self._clock.monotonic() + seconds
            if len(self._queue) > 2 * len(self._late) + _STALE:
                self._queue = sorted((at, key) for key, at in self._late.items())
            else:
                heappush(self._queue, (at, key))
            if self._queue[0] == (at, key):
                self._news.set()
        return seconds <= 0

    def _limit(self, whose: str) -> RateLimit:
        if len(self._limits) >= _KNOWN and whose not in self._limits:
            self._limits = {name: one for name, one in self._limits.items() if not one.full}
        return self._limits.setdefault(whose, RateLimit(_A_SECOND, _AT_ONCE, self._clock))

    def forget(self, key: Key) -> None:
        """Forget a deleted object; what its namespace or node has changed still counts."""
        self._late.pop(key, None)

    async def due(self) -> list[Key]:
        """Wait for delayed objects that are due."""
        while True:
            now = self._clock.monotonic()
            found = []
            while self._queue and (self._queue[0][0] <= now or not self._is_late(*self._queue[0])):
                at, key = heappop(self._queue)
                if self._is_late(at, key):
                    del self._late[key]
                    found.append(key)
            if found:
                return found
            self._news.clear()
            left = self._queue[0][0] - now if self._queue else None
            await sleep_until(self._clock, left, self._news)

    def _is_late(self, at: float, key: Key) -> bool:
        return self._late.get(key) == at


class _Followed:
    def __init__(
        self,
        client: Client,
        watched: Watched,
        facts: Facts,
        settings: WatchSettings,
        went_back: Callable[[], None],
    ) -> None:
        self._went_back = went_back
        self._client = client
        self.watched = watched
        self.settled = asyncio.Event()
        self._doubted = asyncio.Event()
        self._absent = False  # whether the last answer was a 404
        self._odd: set[Key] = set()
        """Objects that could not be read; the log names each once."""
        self._facts = facts
        self._pace = _Pace(client.clock) if watched.paced else None
        self.informer: Informer[HasMeta] = Informer(
            client, watched.scope, into=watched.into, observer=self._observe, settings=settings
        )

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.informer.run(), name=f"feed:{self.watched.kind}")
            if self.watched.optional:
                group.create_task(self._ask(), name=f"served:{self.watched.kind}")
            if self._pace is not None:
                group.create_task(self._tell_late(self._pace), name=f"late:{self.watched.kind}")

    async def _tell_late(self, pace: _Pace) -> None:
        while True:
            for key in await pace.due():
                item = self.informer.objects.get(key)
                if item is not None:
                    self._facts.changed(as_document(self.watched.kind, item))

    async def _ask(self) -> None:
        """After a 404, ask whether the server has the kind; a proxy's 404 must not read as a kind without objects."""
        resource = self.watched.scope.resource
        while True:
            await self._doubted.wait()
            self._doubted.clear()
            try:
                served = await self._client.serves(resource)
            except KubeError as error:
                _LOG.warning(
                    "it is not known whether the API server has %s, so those known stay: %s",
                    resource.plural,
                    error,
                )
                continue
            if not served and self._absent:
                if self.watched.gives:
                    self.informer.forget()
                self.settled.set()

    async def refresh(self) -> None:
        """List again; a kind that the server does not have, by its own list of kinds, counts as empty."""
        self.settled.clear()
        listed = asyncio.create_task(self.informer.refresh(), name=f"refresh:{self.watched.kind}")
        settled = asyncio.create_task(self.settled.wait(), name=f"settle:{self.watched.kind}")
        await race(listed, settled)

    def _passed_on(self, item: HasMeta, before: HasMeta | None) -> bool:
        if self._pace is None or self.watched.paced is None:
            return True
        part = 0.0 if before is None else self.watched.paced(item, before)
        return self._pace.at_once(key_of(item.metadata), part)

    def _observe(self, change: Change[HasMeta]) -> None:
        kind = self.watched.kind
        match change:
            case Seen(item, before):
                self._odd.discard(key_of(item.metadata))
                if self._passed_on(item, before):
                    self._facts.changed(as_document(kind, item))
            case Gone(item):
                self._odd.discard(key_of(item.metadata))
                if self._pace is not None:
                    self._pace.forget(key_of(item.metadata))
                self._facts.gone(as_document(kind, item))
            case Odd(key, problem) if key not in self._odd:
                if len(self._odd) >= _KNOWN:
                    self._odd.clear()
                self._odd.add(key)
                _LOG.error(
                    "%s %s/%s cannot be read, so its last known state counts: %s",
                    kind,
                    key.namespace,
                    key.name,
                    problem.problem,
                )
            case Interrupted(error, delay):
                absent = self.watched.optional and isinstance(error, NotFound | NotServed)
                level = logging.DEBUG if absent and not self.informer.objects else logging.WARNING
                self._absent = absent
                if absent and self.watched.gives and not self.informer.objects:
                    self.settled.set()  # there is nothing to give, also if a proxy answered
                elif absent:
                    self._doubted.set()
                _LOG.log(
                    level, "watch of %s interrupted, next try in %.1f s: %s", kind, delay, error
                )
            case WentBack(version):
                _LOG.error(
                    "the API server's store went back to before version %s of %ss, as after a restore from a backup",
                    version,
                    kind,
                )
                self._went_back()
            case Synced():
                self._absent = False


class Feed:
    """The informers of all watched kinds."""

    def __init__(
        self,
        client: Client,
        kinds: Iterable[Watched],
        facts: Facts,
        settings: WatchSettings = WatchSettings(),  # noqa: B008 - a frozen value
        went_back: Callable[[], None] = lambda: None,
    ) -> None:
        """A feed that is not yet running.

        `facts`: takes in every change at once, and must not raise or block. `went_back`: called before the changes of a
        list from an earlier state of the store.
        """
        self._followed = [_Followed(client, kind, facts, settings, went_back) for kind in kinds]

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as group:
            for followed in self._followed:
                group.create_task(followed.run(), name=f"follow:{followed.watched.kind}")

    async def refresh(self) -> None:
        """Get a picture of everything that is no older than this call; `run` must run meanwhile."""
        async with asyncio.TaskGroup() as group:
            for followed in self._followed:
                group.create_task(followed.refresh(), name=f"refresh:{followed.watched.kind}")

    def document(self, kind: str, namespace: str, name: str) -> Document | None:
        """One object in its last known state; None if it is unknown."""
        for followed in self._followed:
            found = followed.informer.objects.get(Key(namespace, name))
            if followed.watched.kind == kind and found is not None:
                return as_document(kind, found)
        return None

    def documents(self, *kinds: str) -> list[Document]:
        """All objects of these kinds, or of all kinds, in their last known state."""
        return [
            as_document(followed.watched.kind, item)
            for followed in self._followed
            if not kinds or followed.watched.kind in kinds
            for item in followed.informer.objects.values()
        ]

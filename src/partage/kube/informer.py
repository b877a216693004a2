"""A scope followed for ever, kept in memory, and handed out object by object.

Two ways to be told, which may be combined:

* an *observer* is called at once, in the order of the stream, for every change and marker: for
  who keeps books over all objects and must be exact and fast; it must not block;
* a *handler* is a coroutine; its calls are in order for each object and concurrent between
  objects, with a bound on what is pending.

The mirror is always changed first, so both find the newest state in `objects`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from partage.kube.client import Client
from partage.kube.dispatch import Dispatcher
from partage.kube.mirror import Change, Gone, Interrupted, Mirror, Odd, Seen, Synced
from partage.kube.objects import HasMeta, Key, key_of
from partage.kube.resources import Scope
from partage.kube.watch import WatchSettings, follow

T = TypeVar("T", bound=HasMeta)


@dataclass(frozen=True, slots=True)
class InformerSettings:
    """Bounds and times."""

    watch: WatchSettings = WatchSettings()
    pending: int = 1024
    """Changes waiting for handlers or in hand, all objects together."""
    pending_per_object: int = 64
    """The same for one object."""
    resync: float | None = None
    """Seconds after which handlers are told every object again; None means never."""


class Informer(Generic[T]):
    """One scope, mirrored.

    Attributes:
        synced: set once the mirror has held a whole list; handlers may still be at work on it.
    """

    def __init__(
        self,
        client: Client,
        scope: Scope,
        *,
        into: type[T],
        observer: Callable[[Change[T]], None] | None = None,
        handler: Callable[[Seen[T] | Gone[T]], Awaitable[None]] | None = None,
        failed: Callable[[Seen[T] | Gone[T], Exception], None] | None = None,
        settings: InformerSettings = InformerSettings(),
    ) -> None:
        """An informer that is not yet running.

        Args:
            client: an open client.
            scope: what to follow.
            into: the type of an object.
            observer: called for every change and marker; an exception ends `run`.
            handler: called for every object's changes.
            failed: told each exception of the handler; without it, one ends `run`.
            settings: bounds and times.
        """
        self.synced = asyncio.Event()
        self._client = client
        self._scope = scope
        self._into = into
        self._observer = observer
        self._handler = handler
        self._failed = failed
        self._settings = settings
        self._mirror: Mirror[T] = Mirror()
        self._interruption: Interrupted | None = None
        self._stopping = asyncio.Event()
        self._refreshing = asyncio.Event()
        self._begun = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        # Both the stream and the resync hand over objects, and neither may overtake the other. The
        # stream asks for the lock in the same step in which the mirror changed, and the lock is
        # given in turn; so what the resync reads under it has been handed over already.
        self._handing_over = asyncio.Lock()

    @property
    def objects(self) -> Mapping[Key, T]:
        """All objects by key: a read-only view of the moment."""
        return self._mirror.objects

    @property
    def resource_version(self) -> str:
        """The version that `objects` are at; empty before the first list and while relisting."""
        return self._mirror.resource_version

    @property
    def interruption(self) -> Interrupted | None:
        """Why nothing is heard at the moment, or None while all is well."""
        return self._interruption

    def stop(self) -> None:
        """Have `run` return once what was handed over has been handled."""
        self._stopping.set()

    async def refresh(self) -> None:
        """List afresh while `run` runs, and wait for it; what differs is told as any change is.

        The list is read after this call, so it holds all that was written before.
        """
        self._begun.clear()
        self._refreshing.set()
        await self._begun.wait()
        await self.synced.wait()

    async def run(self) -> None:
        """Follow until stopped or cancelled; cancelling also cancels handlers at work."""
        name = f"informer:{self._scope.resource.plural}"
        async with asyncio.TaskGroup() as group:
            dispatcher = self._dispatcher(group, name)
            tasks = [group.create_task(self._listen(dispatcher), name=f"{name}:listen")]
            if dispatcher is not None and self._settings.resync is not None:
                resync = self._resync(dispatcher, self._settings.resync)
                tasks.append(group.create_task(resync, name=f"{name}:resync"))
            await self._stopping.wait()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if dispatcher is not None:
                await dispatcher.drain()

    def _dispatcher(
        self, group: asyncio.TaskGroup, name: str
    ) -> Dispatcher[Key, Seen[T] | Gone[T]] | None:
        if self._handler is None:
            return None
        return Dispatcher(
            self._handler,
            group=group,
            name=name,
            failed=self._failed or _raise,
            limit=self._settings.pending,
            limit_per_key=self._settings.pending_per_object,
        )

    async def _listen(self, dispatcher: Dispatcher[Key, Seen[T] | Gone[T]] | None) -> None:
        """Follow, and begin again with a list whenever `refresh` asks for it."""
        name = f"informer:{self._scope.resource.plural}:follow"
        while True:
            # What came in by now may have been read before `refresh` was called.
            self._mirror.expire()
            self.synced.clear()
            self._refreshing.clear()
            self._begun.set()
            following = asyncio.create_task(self._follow(dispatcher), name=name)
            asked = asyncio.create_task(self._refreshing.wait(), name=f"{name}:refresh")
            try:
                await asyncio.wait((following, asked), return_when=asyncio.FIRST_COMPLETED)
                while not self._idle.is_set() and not following.done():
                    # What the mirror has taken in must be handed over, or handlers miss it.
                    idle = asyncio.create_task(self._idle.wait(), name=f"{name}:idle")
                    await asyncio.wait((following, idle), return_when=asyncio.FIRST_COMPLETED)
                    idle.cancel()
            finally:
                for task in (following, asked):
                    task.cancel()
                await asyncio.wait((following, asked))
            if not following.cancelled():
                following.result()

    async def _follow(self, dispatcher: Dispatcher[Key, Seen[T] | Gone[T]] | None) -> None:
        batches = follow(
            self._client,
            self._scope,
            into=self._into,
            mirror=self._mirror,
            settings=self._settings.watch,
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                self._idle.clear()
                for change in batch:
                    self._note(change)
                    if self._observer is not None:
                        self._observer(change)
                if dispatcher is not None:
                    await self._hand_over(dispatcher, batch)
                self._idle.set()

    async def _hand_over(
        self, dispatcher: Dispatcher[Key, Seen[T] | Gone[T]], batch: list[Change[T]]
    ) -> None:
        async with self._handing_over:
            for change in batch:
                if isinstance(change, Seen | Gone):
                    await dispatcher.put(key_of(change.object.metadata), change)

    def _note(self, change: Change[T]) -> None:
        if isinstance(change, Interrupted):
            self._interruption = change
            return
        if not isinstance(change, Odd):
            self._interruption = None
        if isinstance(change, Synced):
            self.synced.set()

    async def _resync(
        self, dispatcher: Dispatcher[Key, Seen[T] | Gone[T]], seconds: float
    ) -> None:
        while True:
            await self._client.clock.sleep(seconds)
            for key in tuple(self._mirror.objects):
                async with self._handing_over:
                    item = self._mirror.objects.get(key)
                    if item is not None:
                        await dispatcher.put(key, Seen(item, item))


def _raise(_change: object, error: Exception) -> None:
    raise error

"""A scope that is followed without an end and kept in memory.

An *observer* is called at once, in the order of the stream, for every change and marker; it must not block. The mirror
is always changed first, so it finds the newest state in `objects`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from partage.kube.client import Client
from partage.kube.clock import race
from partage.kube.mirror import Change, Mirror, Synced
from partage.kube.objects import HasMeta, Key, Listing
from partage.kube.resources import Scope
from partage.kube.watch import WatchSettings, follow

T = TypeVar("T", bound=HasMeta)


class Informer(Generic[T]):
    """One scope, mirrored; `synced` is set once the mirror has held a whole list."""

    def __init__(
        self,
        client: Client,
        scope: Scope,
        *,
        into: type[T],
        observer: Callable[[Change[T]], None],
        settings: WatchSettings = WatchSettings(),  # noqa: B008 - a frozen value
    ) -> None:
        """An informer that is not yet running; an exception of its `observer` ends `run`."""
        self.synced = asyncio.Event()
        self._client = client
        self._scope = scope
        self._into = into
        self._observer = observer
        self._settings = settings
        self._mirror: Mirror[T] = Mirror()
        self._refreshing = asyncio.Event()
        self._begun = asyncio.Event()

    @property
    def objects(self) -> Mapping[Key, T]:
        """All objects by key: a read-only view of the moment."""
        return self._mirror.objects

    async def refresh(self) -> None:
        """List afresh while `run` runs, and wait for the end; differences are reported as other changes are.

        The list is read after this call, so it contains all earlier writes.
        """
        self._begun.clear()
        self._refreshing.set()
        await self._begun.wait()
        await self.synced.wait()

    def forget(self) -> None:
        """Drop all objects because the server does not have the kind; each is reported gone."""
        for change in self._mirror.replace(Listing((), "")):
            if not isinstance(change, Synced):
                self._observer(change)

    async def run(self) -> None:
        """Follow until cancelled, and list again whenever `refresh` asks for it."""
        name = f"informer:{self._scope.resource.plural}:follow"
        while True:
            # Data that has arrived by now may have been read before `refresh` was called.
            self._mirror.expire()
            self.synced.clear()
            self._refreshing.clear()
            self._begun.set()
            following = asyncio.create_task(self._follow(), name=name)
            asked = asyncio.create_task(self._refreshing.wait(), name=f"{name}:refresh")
            await race(following, asked)
            if not following.cancelled():
                following.result()

    async def _follow(self) -> None:
        batches = follow(
            self._client,
            self._scope,
            into=self._into,
            mirror=self._mirror,
            settings=self._settings,
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                for change in batch:
                    if isinstance(change, Synced):
                        self.synced.set()
                    self._observer(change)

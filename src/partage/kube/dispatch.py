"""Changes to handlers: in order for each object, many objects at a time, and never without bound.

A worker is a task that lives as long as its object has changes waiting; so there are as many as
objects that just changed, not as objects. Who puts waits while too much is pending: the socket is
then left unread and the server slows down, in place of our memory growing.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Dispatcher(Generic[K, V]):
    """Calls a handler for each value, one at a time for each key.

    A handler that raises is reported and does not stop the others; its value counts as handled.
    """

    def __init__(
        self,
        handle: Callable[[V], Awaitable[None]],
        *,
        group: asyncio.TaskGroup,
        name: str,
        failed: Callable[[V, Exception], None],
        limit: int = 1024,
        limit_per_key: int = 64,
    ) -> None:
        """A dispatcher whose workers belong to `group`.

        Args:
            handle: called with each value.
            group: where the workers live; its end is theirs.
            name: begins the names of the tasks.
            failed: told each exception that `handle` raises.
            limit: values pending or in hand, all keys together.
            limit_per_key: the same for one key.
        """
        self._handle = handle
        self._group = group
        self._name = name
        self._failed = failed
        self._limit = limit
        self._limit_per_key = limit_per_key
        self._waiting: dict[K, deque[V]] = {}
        self._pending = 0
        self._handled = asyncio.Event()

    @property
    def pending(self) -> int:
        """Values put and not yet handled."""
        return self._pending

    @property
    def workers(self) -> int:
        """Keys that have a worker now."""
        return len(self._waiting)

    async def put(self, key: K, value: V) -> None:
        """Hand over a value, waiting for room."""
        while self._pending >= self._limit or self._full(key):
            await self._wait()
        self._pending += 1
        queue = self._waiting.get(key)
        if queue is not None:
            queue.append(value)
            return
        self._waiting[key] = queue = deque((value,))
        self._group.create_task(self._work(key, queue), name=f"{self._name}:{key}")

    async def drain(self) -> None:
        """Wait until everything put has been handled."""
        while self._pending:
            await self._wait()

    def _full(self, key: K) -> bool:
        queue = self._waiting.get(key)
        return queue is not None and len(queue) >= self._limit_per_key

    async def _wait(self) -> None:
        self._handled.clear()
        await self._handled.wait()

    async def _work(self, key: K, queue: deque[V]) -> None:
        while queue:
            value = queue[0]
            try:
                await self._handle(value)
            except Exception as error:  # noqa: BLE001 - one object's fault is not another's
                self._failed(value, error)
            # Only now, so that the limits count what is in hand too.
            queue.popleft()
            self._pending -= 1
            self._handled.set()
        # Nothing awaits between the last look at the queue and this line.
        del self._waiting[key]

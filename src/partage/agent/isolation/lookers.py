"""Looks at containers that are given up where a file system does not answer.

A tenant can mount file systems that it serves itself, and a server on the network may go away: a thread that opens a file there
waits, and cannot be interrupted. So a thread looks, and another goes on with the next container where it does not come
back in time. A container whose look has not come back is not looked at until it has.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

from partage.agent.isolation.reading import TooMuch

T = TypeVar("T")
LATE: Final = "files that do not answer"
_PATIENCE: Final = 5.0
"""Seconds for the look at one container, which takes milliseconds."""
_MOST: Final = 128
"""Threads that may be waiting for files."""


class _Look(Generic[T]):
    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._outcome: T | BaseException | None = None
        self.done = threading.Event()

    def work(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:  # noqa: BLE001 # raised again where it is waited for
            self._outcome = error
        self.done.set()

    @property
    def outcome(self) -> T:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome  # type: ignore[return-value] # it is done


def _in_time(done: threading.Event) -> bool:
    return done.wait(_PATIENCE)


class Lookers(Generic[T]):
    """Looks at one container after the other; for one caller at a time."""

    def __init__(self, waits: Callable[[threading.Event], bool] = _in_time) -> None:
        """No look is under way; `waits` waits for the end of one, and is false where it stops waiting."""
        self._waits = waits
        self._asked: SimpleQueue[_Look[T] | None] | None = None
        self._late: dict[str, _Look[T]] = {}

    def look(self, container: str, call: Callable[[], T]) -> T:
        """What a look at a container comes to, and whatever it raises.

        Raises:
            TooMuch: it does not come back.
            RuntimeError: no thread can be started.
        """
        self._late = {name: one for name, one in self._late.items() if not one.done.is_set()}
        if container in self._late or len(self._late) >= _MOST:
            raise TooMuch(LATE)
        if self._asked is None:
            asked: SimpleQueue[_Look[T] | None] = SimpleQueue()
            threading.Thread(target=_work, args=(asked,), daemon=True, name="looks").start()
            self._asked = asked  # only now: there may be no thread left
        one = _Look(call)
        self._asked.put(one)
        if self._waits(one.done):
            return one.outcome
        self._late[container] = one
        self._asked.put(None)
        self._asked = None  # the next look has a thread of its own
        raise TooMuch(LATE)


def _work(asked: "SimpleQueue[_Look[T] | None]") -> None:
    """Look until there is nothing more to look at: another thread does it then."""
    while (one := asked.get()) is not None:
        one.work()

"""Looks at containers in threads, and abandons a look when a file system does not answer.

A tenant can mount file systems that it serves itself, and a server on the network may disappear. A thread that opens a
file there waits and cannot be interrupted. If a thread does not return in time, another thread continues with the next
container. A container whose look has not returned is not looked at again until it has.

Each attempt of a container is a new container, and so is each pod of a controller. So all containers of a tenant share
a bound on looks that have not returned, and, while others wait, on the time that its looks take.
"""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from partage.agent.isolation.reading import TooMuch

T = TypeVar("T")
LATE: Final = "files that do not answer"
_PATIENCE: Final = 5.0
"""Seconds for a look at one container; it usually takes milliseconds."""
_MOST: Final = 512
_MOST_OF_ONE: Final = 32
"""Threads that may wait for files at a time: for all tenants, and for one."""
_REFUND: Final = 1 / 12
"""Seconds of credit for each second that passes."""


class Occupied(Exception):
    """All threads wait for files of others: nothing is known of this container."""


def _in_time(look: Future[Any]) -> bool:
    return bool(wait((look,), _PATIENCE).done)


class Lookers(Generic[T]):
    """Looks at one container after the other; for one caller at a time."""

    def __init__(
        self,
        waits: Callable[[Future[Any]], bool] = _in_time,
        credit: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """No look is under way. `waits`: waits for the end of a look; false if it stops waiting.

        `credit`: seconds that looks of one tenant may take together; time refunds them.
        """
        self._waits, self._credit, self._clock = waits, credit, clock
        self._asked: SimpleQueue[tuple[Future[T], Callable[[], T]] | None] | None = None
        self._late: dict[str, tuple[str, Future[T]]] = {}
        self._spent: dict[str, float] = {}
        self._reckoned = clock()

    def look(self, container: str, call: Callable[[], T], whose: str = "") -> T:
        """Return the result of a look at a container, whose tenant is named, or raise its error.

        Raises `TooMuch`: it does not return, or the tenant's took too long; `Occupied`: too many looks of others do not
        return; `RuntimeError`: no thread can be started.
        """
        self._late = {name: one for name, one in self._late.items() if not one[1].done()}
        theirs = sum(owner == whose for owner, _ in self._late.values())
        if container in self._late or theirs >= _MOST_OF_ONE:
            raise TooMuch(LATE)
        if len(self._late) >= _MOST:
            raise Occupied("all looks wait for files of other containers that do not answer")
        began = self._clock()
        refund, self._reckoned = (began - self._reckoned) * _REFUND, began
        self._spent = {owner: s - refund for owner, s in self._spent.items() if s > refund}
        if self._spent.get(whose, 0.0) >= self._credit:
            raise TooMuch(LATE)
        try:
            return self._looked(container, call, whose)
        finally:
            self._spent[whose] = self._spent.get(whose, 0.0) + self._clock() - began

    def _looked(self, container: str, call: Callable[[], T], whose: str) -> T:
        if self._asked is None:
            asked: SimpleQueue[tuple[Future[T], Callable[[], T]] | None] = SimpleQueue()
            threading.Thread(target=_work, args=(asked,), daemon=True, name="looks").start()
            self._asked = asked  # only now: no thread may be left
        one: Future[T] = Future()
        self._asked.put((one, call))
        if self._waits(one):
            return one.result()
        self._late[container] = whose, one
        self._asked.put(None)
        self._asked = None  # the next look gets a thread of its own
        raise TooMuch(LATE)


def _work(asked: "SimpleQueue[tuple[Future[T], Callable[[], T]] | None]") -> None:
    """Look until there is no more work: another thread does it then."""
    while (one := asked.get()) is not None:
        look, call = one
        try:
            look.set_result(call())
        except BaseException as error:  # noqa: BLE001 # raised again where it is waited for
            look.set_exception(error)

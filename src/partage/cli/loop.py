"""The services' event loop: uvloop where it is installed, else asyncio's own.

The loop changes no decision, only the cost of a request. A pod passes through about six sockets of the scheduler
service, and each hop is the loop's work.

Python searches for cycles after every 700 new objects. A pod leaves about a hundred objects that stay, so every
few pods paid for a search that found nothing. We search less often, which changes no decision either.

A search of all objects stops the service: 0.6 s for the million objects of a cluster of 40 nodes with 1,000 pods
in one process. We exclude the objects that survive it from later searches. Some of them become cycles later, as
requests do whose clients go away. So all objects are searched again when the excluded ones are a quarter more.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from partage.cli.signals import Ending

_YOUNG: Final = 10_000
"""New objects between two garbage collections; a collection of so many takes well under a millisecond."""
_ALL: Final = 2
"""The generation of a collection of all objects."""
_FEW: Final = 100_000
"""Objects that take some 20 MiB, and 60 ms of a search."""

Service = Callable[[asyncio.Event], Coroutine[Any, Any, None]]


def run(main: Service, factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    """Run a service until it, SIGTERM or SIGINT ends it. `factory`: makes the loop; None for asyncio's own."""
    with old_set_aside(), Ending() as ending, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(ending.run(main))


class _Aside:
    """After each collection of all objects, excludes those that survived it; sometimes includes all again."""

    def __init__(self, few: int) -> None:
        self._few = few
        self._added = 0
        self._before: int | None = None
        """The excluded objects when all were last searched; None while all are included."""

    def __call__(self, phase: str, found: Mapping[str, int]) -> None:
        """One of `gc.callbacks`."""
        if phase != "stop" or found["generation"] != _ALL:
            return
        if self._before is not None:
            self._added += len(gc.get_objects(_ALL))
        gc.freeze()
        if self._before is None:
            self._before = gc.get_freeze_count()
        elif self._added >= self._few:
            self._added = 0
            if gc.get_freeze_count() > self._before + max(self._few, self._before // 4):
                self._before = None
                gc.unfreeze()


@contextmanager
def old_set_aside(few: int = _FEW) -> Iterator[None]:
    """Inside this context, later collections skip objects that survived one of all objects.

    `few`: new ones for which not all are searched again.
    """
    aside = _Aside(few)
    gc.callbacks.append(aside)
    try:
        yield
    finally:
        gc.callbacks.remove(aside)
        gc.unfreeze()


def run_fast(main: Service) -> None:
    """As `run`, on the fastest available loop."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _YOUNG), *before[1:])
    try:
        run(main, _factory())
    finally:
        gc.set_threshold(*before)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The maker of a loop; None for asyncio's own."""
    try:
        made: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return made

"""Bindings that leave together while pods queue up, because many at once cost half as much each.

One Binding after another has the API server, etcd and everybody who watches pods wake up for each;
of a hundred at once their log, their connections and their caches make one piece of work. By
itself kube-scheduler has hundreds on their way, since it does not wait for them. So while others
queue up behind, a Binding waits for them:

    more queue up, and turns come fast ── waits ── enough wait, the first has waited long enough,
      │                                            or no other came for a moment ── all leave
      └── no: leaves at once, and all that wait with it

Who waits loses nothing: the places are reserved, and the queue takes longer than the wait. A pod
that comes alone never waits.
"""

import asyncio
from dataclasses import dataclass

from partage.extender.ports import Clock

__all__ = ["Departures", "Together"]


@dataclass(frozen=True, slots=True)
class Together:
    """When Bindings leave together; times in seconds.

    Attributes:
        most: that leave together; with 1 or less each leaves by itself.
        behind: pods that must queue up behind one that waits.
        longest: that one waits.
        pause: without another one, after which those that wait leave; and that may lie between two
            turns for the later one to wait at all.
    """

    most: int = 128
    behind: int = 64
    longest: float = 1.0
    pause: float = 0.1


class _Group:
    """Bindings that wait for each other."""

    def __init__(self, since: float) -> None:
        self.since = self.last = since
        self.count = 0
        self.gone = asyncio.Event()


class Departures:
    """Who waits for whom."""

    def __init__(self, clock: Clock, settings: Together = Together()) -> None:
        self._clock = clock
        self._settings = settings
        self._group: _Group | None = None
        self._last = float("-inf")
        self._watch: asyncio.Task[None] | None = None

    async def turn(self, behind: int) -> None:
        """Wait until a Binding may leave.

        Args:
            behind: pods whose turn is still to come.
        """
        settings, now = self._settings, self._clock.monotonic()
        fast, self._last = now - self._last <= settings.pause, now
        if settings.most <= 1 or behind < settings.behind or not fast:
            self._leave()
            return
        group = self._group
        if group is None:
            group = self._group = _Group(now)
            self._watch = asyncio.create_task(self._see_off(group), name="Bindings that wait")
        group.count += 1
        group.last = now
        if group.count >= settings.most:
            self._leave()
        await group.gone.wait()

    def _leave(self) -> None:
        """Let go who waits."""
        group, self._group = self._group, None
        if group is not None:
            group.gone.set()
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    async def _see_off(self, group: _Group) -> None:
        """Let a group go when it has waited long enough, or nobody joins it any more."""
        settings = self._settings
        try:
            while True:
                now = self._clock.monotonic()
                end = min(group.since + settings.longest, group.last + settings.pause)
                if now >= end:
                    break
                await self._clock.sleep(end - now)
        finally:
            # Whatever ends this must not leave anybody behind.
            if self._group is group:
                self._group, self._watch = None, None
            group.gone.set()

"""Evicts the pods of containers that run unprotected, if the operator has chosen that.

Such a container started while the runtime did not ask the agent. It has no limits, and its cards may be allocated to
others. The pod's controller creates the pod again, and the agent then serves it. Evictions respect disruption budgets.
They name a pod by its UID, so that they never hit its successor.
"""

import logging
from collections.abc import Collection
from typing import Final

from partage.agent.container_admission import Keeper
from partage.agent.held_allocations import Unprotected
from partage.kube.client import Client
from partage.kube.errors import Conflict, KubeError, NotFound
from partage.kube.retry import Backoff

_LOG: Final = logging.getLogger("partage.daemon")
_LONGEST: Final = 60.0


class Pauses:
    """Pauses between requests of one kind, by pod: ever longer ones, as its tenant may cause requests without end."""

    def __init__(self, client: Client, period: float) -> None:
        """No pod yet; the first pause is about a `period`, in seconds, and the longest a minute."""
        self._client = client
        self._backoff = Backoff(base=period, cap=max(period, _LONGEST))
        self._tried: dict[str, tuple[int, float]] = {}

    def waits(self, uid: str) -> bool:
        """Whether it is too early to try a pod again."""
        return uid in self._tried and self._client.clock.monotonic() < self._tried[uid][1]

    def add(self, uid: str) -> None:
        """Record a request, after which the pause begins."""
        tries = self._tried[uid][0] if uid in self._tried else 0
        pause = self._backoff.delay(tries, self._client.chance())
        self._tried[uid] = tries + 1, self._client.clock.monotonic() + pause

    def keep(self, uids: Collection[str]) -> None:
        """Forget all other pods."""
        self._tried = {uid: one for uid, one in self._tried.items() if uid in uids}


class Evictions:
    """The evictions of one node; `run` it."""

    name: Final = "evictions"

    def __init__(self, client: Client, keeper: Keeper, period: float = 5.0) -> None:
        """Evict no pod yet. Chance lengthens the `period`, in seconds, by up to a fifth."""
        self._client = client
        self._keeper = keeper
        self._period = period
        self._done: set[str] = set()
        self._pauses = Pauses(client, period)
        self._problems: dict[str, str] = {}

    async def run(self) -> None:
        """Look and evict until cancelled."""
        while True:
            worries = [*list(self._keeper.unprotected.values()), *self._keeper.suspected]
            found = {one.uid: one for one in worries if one.uid}
            self._done &= found.keys()
            self._problems = {k: v for k, v in self._problems.items() if k in found}
            self._pauses.keep(found.keys())
            for uid in sorted(found.keys() - self._done):
                if not self._pauses.waits(uid):
                    self._pauses.add(uid)
                    await self._evict(found[uid])
            pause = self._period * (1 + self._client.chance() / 5)
            await self._client.clock.sleep(pause)

    async def _evict(self, one: Unprotected) -> None:
        try:
            await self._client.evict(one.namespace, one.pod, uid=one.uid)
        except (Conflict, NotFound):
            self._done.add(one.uid)  # it is gone, and another pod may have its name
        except KubeError as error:
            if self._problems.get(one.uid) != str(error):
                _LOG.warning("pod %s/%s cannot be evicted: %s", one.namespace, one.pod, error)
            self._problems[one.uid] = str(error)
        else:
            self._done.add(one.uid)
            self._keeper.tallies.evicted.inc()
            _LOG.warning(
                "pod %s/%s is evicted: container %s runs unprotected: %s",
                one.namespace,
                one.pod,
                one.container,
                one.why,
            )

"""Learns prices for the default policy, and the mix for FGD, while the scheduler runs, beside its decisions.

The service counts pods as they arrive. After enough pods a separate process of low priority chooses
prices, and the books get them as an event. A decision never waits for them. Old counts fade slowly,
so that prices follow a changing mix. New books get the prices that were in force.

The service counts pods that name devices, and pods for whose claims it compared nodes. Of all others it knows only
the sum of their amounts on nodes, and only if the plugin reports it. They count as their average.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from multiprocessing import active_children
from typing import Final

from partage.daemon.learning_process import process
from partage.extender.books import Books
from partage.kube.clock import Clock
from partage.model.pod import Pod
from partage.model.policy import Strategy
from partage.placement.learning import Arrivals, Due, asks_of, learns, tables_due
from partage.placement.mix import Ask, Standing, Stock
from partage.placement.tables import Tables
from partage.scheduler.events import TablesChanged

_LOG: Final = logging.getLogger("partage.daemon")
_PIECE: Final = 4
"""Pods whose asks are computed before other tasks run: each may have hundreds of conditions on nodes, as no other has."""


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """How the running scheduler learns.

    Attributes:
        period: seconds between two looks at the pods.
        window: most counted pods; when there are more, all counts are halved.
    """

    period: float = 10.0
    window: int = 20_000


class Learning:
    """Counts the pods of the books, and gives the books new tables.

    Attributes:
        arrivals: the counted pods.
        tables: those that the books should have; None before the first ones.
    """

    def __init__(
        self,
        books: Callable[[], Books],
        clock: Clock,
        settings: LearningSettings | None = None,
        worker: Callable[[], Executor] = process,
    ) -> None:
        self._books, self._clock = books, clock
        self._settings = settings or LearningSettings()
        self._worker = worker
        self._seen: set[str] = set()
        self.arrivals = Arrivals(window=self._settings.window)
        self.tables: Tables | None = None

    async def run(self) -> None:
        """Look and learn until cancelled."""
        while True:
            try:
                await self.step()
            except Exception:  # noqa: BLE001 # logged; decisions go on without new prices
                _LOG.exception("no new prices could be made")
            await self._clock.sleep(self._settings.period)

    async def step(self) -> None:
        """Look at the pods once, and make the tables that are due."""
        books = self._books()
        policy = books.engine.policy
        if not learns(policy, (entry.pod for entry in books.cluster_cache.pods.values())):
            return
        if self.tables is not None and books.engine.tables.version < self.tables.version:
            self._tell(self.tables)
        if not await self._count(books) and self.arrivals.begun:
            return
        nodes = [node for node in books.engine.ledger.nodes if node is not None]
        stock = Stock.of(nodes)
        what, tables = self.arrivals.due(int(stock.cards.sum())), books.engine.tables
        if what is Due.PRICES and Strategy.PARTAGE not in (policy.node, policy.card):
            what = Due.RESERVES  # no rehearsals for a single pod's wish, and none for FGD
        if what is Due.PRICES:
            running = await self._running(books)
            nodes = [node for node in books.engine.ledger.nodes if node is not None]
            stock, names = Stock.of(nodes), [node.name for node in nodes]
            standing = Standing.of(books.engine.ledger, names, running)
            found = await self._prices(books, tables, stock, standing)
        elif what is Due.NOTHING:
            return
        else:
            counts, trend = self.arrivals.counts + _others(books), self.arrivals.trend
            found = tables_due(what, tables, counts, stock, trend=trend)
        if found is not None:
            self.tables = found
            self._tell(found)

    async def _prices(
        self, books: Books, tables: Tables, stock: Stock, standing: Standing
    ) -> Tables | None:
        started = self._clock.monotonic()
        others = set(active_children())
        worker = self._worker()
        try:
            loop = asyncio.get_running_loop()
            counts = self.arrivals.counts + _others(books)
            found = await loop.run_in_executor(
                worker, tables_due, Due.PRICES, tables, counts, stock, standing
            )
        except asyncio.CancelledError:
            for child in set(active_children()) - others:
                child.terminate()  # its answer is no longer wanted, and it may take a minute
            raise
        finally:
            worker.shutdown(wait=False, cancel_futures=True)
        _LOG.info(
            "chose %s after %d pods in %.1f s",
            found.chosen if found else "nothing",
            self.arrivals.total,
            self._clock.monotonic() - started,
        )
        return found

    async def _count(self, books: Books) -> int:
        """Count the pods that are new since the last look. Returns their number."""
        cache = books.cluster_cache
        pods = cache.pods
        there = pods.keys() | cache.compared.keys()
        fresh = [uid for uid in (*pods, *cache.compared) if uid not in self._seen]
        asking = [books.asking(pods[uid]) if uid in pods else cache.compared[uid] for uid in fresh]
        self.arrivals.add(await _asks_of(asking, books))
        self._seen = there
        return len(fresh)

    async def _running(self, books: Books) -> Counter[Ask]:
        """The asks of pods that have a place.

        Pods of a forgotten kind keep their devices, but the rehearsal has no pods of that kind.
        """
        cache, ledger = books.cluster_cache, books.engine.ledger
        pods = cache.pods
        placed = [books.asking(pods[uid]) for uid in pods if uid in ledger]
        return Counter(await _asks_of(placed, books))

    def _tell(self, tables: Tables) -> None:
        self._books().take([TablesChanged(tables)], self._clock.monotonic())


async def _asks_of(pods: Sequence[Pod], books: Books) -> list[Ask]:
    """The asks of many pods; other tasks run meanwhile."""
    found: list[Ask] = []
    for ask in asks_of(pods, books.engine.ledger, books.engine.accepting):
        found.append(ask)
        if not len(found) % _PIECE:
            await asyncio.sleep(0)
    return found


def _others(books: Books) -> Counter[Ask]:
    """Pods that are not counted one by one; each counts as their average."""
    taken = books.cluster_cache.taken_by_others()
    pods = taken.get("pods", 0)
    if pods <= 0:
        return Counter()
    cpu, memory = (max(0, taken.get(name, 0)) // pods for name in ("cpu", "memory"))
    return Counter({Ask(cpu, memory // 2**20, elsewhere=True): pods})

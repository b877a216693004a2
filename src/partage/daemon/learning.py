"""Learns prices for the default policy while the scheduler runs, beside its decisions.

Pods are counted as they come; when enough have come, prices are chosen in a process of their own,
with the lowest priority, and the books get them as an event. A decision never waits for them. What
is counted is forgotten slowly, so that prices follow a mix that changes. Books that are made anew
get the prices that were in force.

Only pods that name devices are counted: the service sees no others.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from typing import Final

from partage.extender.books import Books
from partage.kube.clock import Clock
from partage.model.policy import Strategy
from partage.placement.learning import Due, asks_of, due_since, refreshed
from partage.placement.mix import Ask, Standing, Stock
from partage.placement.tables import Tables
from partage.scheduler.events import TablesChanged

_LOG: Final = logging.getLogger("partage.daemon")
_NICE: Final = 10


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """How the running scheduler learns.

    Attributes:
        period: seconds between two looks at the pods.
        window: pods that are remembered; beyond, all counts are halved.
    """

    period: float = 10.0
    window: int = 20_000


def process() -> Executor:
    """One process, apart from ours and less urgent than anything else."""
    return ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=os.nice, initargs=(_NICE,)
    )


def _learned(
    tables: Tables, seen: Mapping[Ask, int], stock: Stock, standing: Standing
) -> Tables | None:
    """What the worker does; the loops it needs are imported there, not in the service."""
    from partage.placement.selection import learned  # noqa: PLC0415

    return learned(tables, seen, stock, standing)


class Learning:
    """Counts the pods of the books, and hands the books new tables.

    Attributes:
        counts: how often each ask came.
        arrived: pods seen so far.
        tables: those that the books should have; None until some were made.
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
        self.counts: Counter[Ask] = Counter()
        self.arrived = 0
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
        """Look at the pods once, and make what is due."""
        books, before = self._books(), self.arrived
        if Strategy.PARTAGE not in (books.engine.policy.node, books.engine.policy.card):
            return
        if self.tables is not None and books.engine.tables.version < self.tables.version:
            self._tell(self.tables)
        self._count(books)
        if before == self.arrived:
            return
        nodes = [node for node in books.engine.ledger.nodes if node is not None]
        stock = Stock.of(nodes)
        what = due_since(before, self.arrived, int(stock.cards.sum()))
        if what is Due.NOTHING:
            return
        tables, seen = books.engine.tables, dict(self.counts)
        if what is Due.RESERVES:
            found = refreshed(tables, seen, stock)
        else:
            standing = self._standing(books, [node.name for node in nodes])
            found = await self._made(tables, seen, stock, standing)
        if found is not None:
            self.tables = found
            self._tell(found)

    async def _made(
        self, tables: Tables, seen: Mapping[Ask, int], stock: Stock, standing: Standing
    ) -> Tables | None:
        started = self._clock.monotonic()
        others = set(active_children())
        worker = self._worker()
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(worker, _learned, tables, seen, stock, standing)
        except asyncio.CancelledError:
            for child in set(active_children()) - others:
                child.terminate()  # its answer is no longer wanted, and it may take a minute
            raise
        finally:
            worker.shutdown(wait=False, cancel_futures=True)
        chosen = "nothing" if found is None else "prices" if found.prices else found.stand_in
        _LOG.info(
            "chose %s after %d pods in %.1f s",
            chosen,
            self.arrived,
            self._clock.monotonic() - started,
        )
        return found

    def _count(self, books: Books) -> None:
        pods, ledger = books.cluster_cache.pods(), books.engine.ledger
        fresh = [uid for uid in pods if uid not in self._seen]
        self.counts.update(asks_of((pods[uid].pod for uid in fresh), ledger))
        self.arrived += len(fresh)
        self._seen = set(pods)
        if self.counts.total() > self._settings.window:
            self.counts = Counter({ask: n // 2 for ask, n in self.counts.items() if n > 1})

    def _standing(self, books: Books, names: list[str]) -> Standing:
        """The books as they stand, for those of the counted pods that have a place.

        A forgotten kind of pod holds what it holds, but none like it is rehearsed.
        """
        pods, ledger = books.cluster_cache.pods(), books.engine.ledger
        return Standing.of(
            ledger, names, Counter(asks_of((pods[u].pod for u in pods if u in ledger), ledger))
        )

    def _tell(self, tables: Tables) -> None:
        self._books().take([TablesChanged(tables)], self._clock.monotonic())

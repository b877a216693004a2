"""What the dashboard shows beyond the moment: cards' histories, fragmentation, other policies."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from up_world import PODS, World, eventually, node, pod, run, running

from partage.dashboard.comparison import comparison_document
from partage.dashboard.fragments import Fragments, shapes_of
from partage.dashboard.history import History
from partage.dashboard.trend import Trend
from partage.extender.books import Books
from partage.model.device import DeviceType
from partage.model.policy import Policy, Strategy
from partage.placement.baselines import left_of
from partage.placement.fragmentation import Lens, Workload, fragmentation
from partage.scheduler.events import PolicyChanged

BEGUN = datetime(2026, 11, 22, tzinfo=UTC)


def share(percent: int) -> dict[str, int]:
    """A share in Koordinator's words."""
    return {"koordinator.sh/gpu-core": percent, "koordinator.sh/gpu-memory-ratio": percent}


def books_of(world: World) -> Books:
    """The books of the world's service."""
    daemon = world.cluster._daemon
    assert daemon is not None
    return daemon.service.books


async def placed(world: World, *shares: int) -> None:
    """Pods p0, p1 and on, one after the other."""
    for number, percent in enumerate(shares):
        await world.create(PODS, pod(f"p{number}", share(percent)))
        await world.phase(f"p{number}", "Running")


def told(document: dict[str, Any], card: str = "gpu 0") -> list[tuple[str, str | None, str]]:
    """What happened on a card, the oldest first."""
    rows = document["cards"].get(card, [])
    return [(row["what"], row["name"], row["code"]) for row in reversed(rows)]


def test_a_card_remembers_who_came_and_went() -> None:
    """A pod that comes, one that goes, and a fault; over HTTP, with dates."""

    async def story() -> None:
        async with running([node(cards=1)]) as world:
            await placed(world, 50)
            sick = {"metadata": {"annotations": {"simulate.partage.io/unhealthy": "0=Xid 79"}}}

            async def history() -> dict[str, Any]:
                return dict((await world.get("/api/node/n0", scheduler=True))["history"])

            await eventually(history, lambda seen: len(told(seen)) >= 1)
            await world.send("DELETE", f"{PODS}/p0?gracePeriodSeconds=0", {})
            await eventually(history, lambda seen: len(told(seen)) >= 2)
            await world.patch("/api/v1/nodes/n0", sick)
            seen = await eventually(history, lambda seen: len(told(seen)) >= 3)
            assert told(seen) == [
                ("given", "p0", ""),
                ("given back", "p0", ""),
                ("closed", None, "Unhealthy"),
            ]
            assert seen["cards"]["gpu 0"][0]["detail"] == "Xid 79"
            first = seen["cards"]["gpu 0"][-1]
            assert (first["namespace"], first["core_milli"], first["protocol"]) == (
                "default",
                500,
                "koordinator",
            )
            assert datetime.fromisoformat(seen["since"]) <= datetime.fromisoformat(first["at"])

    run(story())


def test_what_is_there_at_first_is_no_change_and_old_changes_are_forgotten() -> None:
    """A bounded number is kept; rebuilt books are compared as a whole."""

    async def story() -> None:
        moments = iter(BEGUN + timedelta(seconds=n) for n in range(10_000))
        async with running([node(cards=2)]) as world:
            await placed(world, 50)
            history = History(lambda: next(moments), kept=2)
            assert history.of("n0") == {"since": None, "cards": {}}
            await history.look(books_of(world))
            assert told(history.of("n0")) == []
            await world.create(PODS, pod("later", share(30)))
            await world.phase("later", "Running")
            await history.look(books_of(world))
            assert told(history.of("n0")) == [("given", "later", "")]
            hidden = history.of("n0", names=False)
            assert told(hidden) == [("given", None, "")]

            await history.look(Books(books_of(world).cluster_cache, books_of(world).hooks))
            gone = history.of("n0")
            assert [row["what"] for rows in gone["cards"].values() for row in rows] == (
                ["given back", "given back"]
            )

    run(story())


def test_sums_over_time_are_kept_by_half_minutes_and_by_ten_minutes() -> None:
    """A point where one is due, however often one looks, and no more than an hour of them."""

    async def story() -> None:
        async with running([node(cards=2)]) as world:
            await placed(world, 50)
            books, trend = books_of(world), Trend()
            for second in range(0, 4000, 10):
                await trend.look(books, BEGUN + timedelta(seconds=second))
            seen = trend.document()
            assert [len(seen[span]["core_milli"]) for span in ("hour", "day")] == [120, 7]
            assert seen["hour"]["until"] == "2026-11-22T01:06:30Z"
            assert (seen["hour"]["core_milli"][-1], seen["hour"]["idle"][-1]) == (500, 1)
            assert seen["hour"]["waiting"][-1] == 0

    run(story())


def test_a_clock_that_is_set_back_stops_no_line() -> None:
    """It goes on at once, and not when the clock has come so far again."""

    async def story() -> None:
        async with running([node(cards=2)]) as world:
            books, trend = books_of(world), Trend()
            for moment in (BEGUN, BEGUN - timedelta(days=365), BEGUN - timedelta(days=364)):
                await trend.look(books, moment)

            assert len(trend.document()["hour"]["core_milli"]) == 3

    run(story())


def test_following_survives_a_fault_and_waits_for_whole_books() -> None:
    """The service must not end because a picture of the past cannot be made."""

    class Broken:
        """Books that cannot be looked at."""

        @property
        def engine(self) -> Any:
            """Nothing."""
            raise LookupError("no engine")

    async def story() -> None:
        answers: list[Any] = [None, Broken(), None]
        history = History(lambda: BEGUN)
        turns = 0

        async def sleep(_seconds: float) -> None:
            nonlocal turns
            turns += 1
            if turns == 3:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await history.follow(lambda: answers.pop(0), sleep)
        assert answers == []

    asyncio.run(story())


def test_fragmentation_is_the_published_measure() -> None:
    """The kept-up gauge says what the formula says of the same ledger, before and after pods."""

    async def story() -> None:
        async with running([node(cards=2), node("n1", cards=2)]) as world:
            fragments = Fragments()
            assert await fragments.of(books_of(world).engine.ledger, {}) == {
                "free_milli": 4000,
                "unusable_milli": 0,
                "asks": 0,
            }
            for shares in ((70,), (70, 60), (70, 60, 70)):
                await world.create(PODS, pod(f"p{len(shares)}", share(shares[-1])))
                await world.phase(f"p{len(shares)}", "Running")
            books = books_of(world)
            mix = Counter(
                shape for e in books.cluster_cache.pods.values() for shape in shapes_of(e.pod)
            )
            found = await Fragments().of(books.engine.ledger, mix)

            ledger = books.engine.ledger
            nodes = np.array(list(ledger.index.values()))
            plane = ledger.planes[DeviceType.GPU]
            lens = Lens.of(Workload.counted(mix), ledger.models)
            expected = fragmentation(
                lens, ledger.host_free["cpu"][nodes], left_of(plane, nodes), plane.kind[0, nodes]
            )
            assert found["free_milli"] == 2000
            assert found["unusable_milli"] == round(float(expected.sum())) > 0
            assert found["asks"] == 2

    run(story())


def test_policies_are_compared_by_the_engine_that_decides_live() -> None:
    """Spreading shares over cards keeps whole-card pods out; nothing of the books changes."""

    async def story() -> None:
        async with running([node(cards=2)]) as world:
            # Koordinator's own shares keep off idle switches whatever the policy; HAMi's do not.
            third = {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30, "nvidia.com/gpumem": 8000}
            for name in ("p0", "p1"):
                await world.create(PODS, pod(name, third))
                await world.phase(name, "Running")
            await world.create(PODS, pod("whole", {"koordinator.sh/gpu": 100}))
            await world.phase("whole", "Running")
            books = books_of(world)
            before = list(books.engine.ledger.allocations())

            found = await world.get("/api/comparison", scheduler=True)
            rows = {(row["policy"], row["now"]): row for row in found["rows"]}
            assert rows["partage", True]["placed"] == 3
            assert rows["binpack", False]["placed"] == 3
            spread = rows["spread", False]
            assert (spread["placed"], spread["waiting"]) == (2, 1)
            assert spread["waiting_by_code"] == [{"code": "CardNotIdle", "pods": 1}]
            assert spread["cards"]["shared"] == 2
            assert list(books.engine.ledger.allocations()) == before
            few = await comparison_document(books, most=2)
            assert [row["now"] for row in few["rows"]] == [True]

    run(story())


def test_the_policy_in_force_is_compared_first() -> None:
    """It is compared only once."""

    async def story() -> None:
        async with running([node(cards=1)]) as world:
            books = books_of(world)
            mixed = replace(Policy(), node=Strategy.SPREAD, card=Strategy.BINPACK)
            books.engine.handle(PolicyChanged(mixed))
            found = await comparison_document(books)
            assert [row["policy"] for row in found["rows"]] == [
                "spread/binpack",
                "spread/binpack",
                "partage",
                "binpack",
                "spread",
                "fgd",
            ]

    run(story())

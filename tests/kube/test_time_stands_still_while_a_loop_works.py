"""Loops of tests (`tests/tools/steady.py`): what a busy machine adds to a round of work is no time of theirs."""

import asyncio
import time
from datetime import timedelta

from partage.kube.clock import SystemClock


async def test_work_passes_next_to_no_time() -> None:
    """However long the processor is away, neither the loop nor a program's clock has noticed."""
    loop, clock = asyncio.get_running_loop(), SystemClock()
    began, shown, wall = loop.time(), clock.monotonic(), clock.now()

    time.sleep(0.5)  # noqa: ASYNC251 # as a machine that has others to run
    await asyncio.sleep(0)

    assert loop.time() - began < 0.1
    assert clock.monotonic() - shown < 0.1
    assert clock.now() - wall < timedelta(seconds=0.1)


async def test_a_wait_passes_what_it_was_made_for() -> None:
    """The wait takes its own time and no more, however late the loop is woken."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    asyncio.get_running_loop().call_later(0.1, time.sleep, 0.5)

    await asyncio.sleep(0.2)

    assert 0.2 <= loop.time() - began < 0.3


def test_loops_that_tests_make_themselves_are_the_same() -> None:
    """`asyncio.run` makes them; what they return comes back."""

    async def story() -> float:
        began = asyncio.get_running_loop().time()
        time.sleep(0.5)  # noqa: ASYNC251 # as above
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(story()) < 0.1


async def test_who_spins_until_a_time_gets_there() -> None:
    """Rounds without a wait pass some of it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.02

    while loop.time() < end:  # noqa: ASYNC110 # that is asked here
        await asyncio.sleep(0)

"""Scenarios 1 and 15 in seconds: an agent that was killed is back, a driver that refuses is waited for."""

import time
from pathlib import Path

import pytest
from bed import told
from lone_agent import node

from partage.agent.mig.nvml import Failure
from partage.agent.mig.runner import REST, wait
from partage.agent.nri.messages import CreateContainerResponse, Status


async def test_an_agent_that_was_killed_gives_on_where_it_was(tmp_path: Path) -> None:
    """What it gave stays given: a request for more than is left is refused, the others are served."""
    async with node(tmp_path) as one:
        assert isinstance(await one.create("before"), CreateContainerResponse)
        await one.kill()

        started = time.monotonic()
        await one.start()
        served = await one.create("after")

        told("1: agent killed: from its start to the next container", time.monotonic() - started)
        assert isinstance(served, CreateContainerResponse)
        assert one.series("partage_agent_containers") == 2
        assert isinstance(await one.create("too-much", 600), Status)


@pytest.mark.parametrize(
    ("failure", "seconds"),
    [(Failure.IN_USE, 39.75), (Failure.OTHER, 63.75)],
    ids=["busy", "other"],
)
def test_a_driver_is_asked_for_so_long_and_then_left_alone(
    failure: Failure, seconds: float
) -> None:
    """After that it is asked once a minute, as docs/reliability.md says."""
    waits: list[float] = []

    while (pause := wait(len(waits) + 1, failure)) < REST:
        waits.append(pause)

    told(f"15: driver refuses, {failure}: tried for", sum(waits))
    assert sum(waits) == seconds
    assert REST == 60.0

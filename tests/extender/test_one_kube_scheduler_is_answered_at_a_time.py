"""Two kube-schedulers at one socket: the newer one is served, and the older one neither keeps nor changes anything."""

import asyncio

import pytest
from plugin_caller import calling, listening
from world import World, device, node, pod, run, whole

from partage.scheduler.engine import State


@run
async def test_a_newer_kube_scheduler_takes_the_place_of_one_that_still_runs() -> None:
    """What the older one had reserved is free, its connection is over, and its end is not the newer one's."""
    world = await World().start(node(), device())
    world.create(pod("old", whole(2)))
    world.create(pod("new", whole(2)))
    async with listening(world) as (path, claims), calling(path, "one") as older:
        assert (await older.ask("propose", uid="uid-old", attempt=70))["nodes"] == ["n1"]
        assert "code" not in await older.ask("reserve", uid="uid-old", attempt=70, node="n1")
        async with calling(path, "two") as newer:
            assert (await newer.ask("propose", uid="uid-new", attempt=1))["nodes"] == ["n1"]
            assert "code" not in await newer.ask("reserve", uid="uid-new", attempt=1, node="n1")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await older.ask("unreserve", uid="uid-new", attempt=1)
            assert claims == [True, False, True]
            # Its numbers start again, also for a pod that the older one had asked about.
            told = await newer.ask("propose", uid="uid-old", attempt=2)
            assert told["code"] == "InsufficientCards"
            assert world.service.books.engine.states == {"uid-new": State.RESERVED}
            allowed = await newer.ask("bind", uid="uid-new", attempt=1, node="n1")
            assert allowed["annotations"]

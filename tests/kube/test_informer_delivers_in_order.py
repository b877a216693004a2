"""What an observer receives, in which order, and what becomes of its faults and of a list that is asked for again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kube_builders import (
    PODS_PATH,
    QUICK,
    Pod,
    client_of,
    eventually,
    put,
    remove,
    started,
    stopped,
)

from fakes.clock import SteppedClock
from fakes.kube_server import KubeServer
from partage.kube.informer import Informer
from partage.kube.mirror import Change, Gone, Odd, Seen, Synced
from partage.kube.objects import Key
from partage.kube.resources import PODS, Scope

ALL = Scope(PODS)


@contextlib.asynccontextmanager
async def informed(
    server: KubeServer, *, clock: SteppedClock | None = None, **options: Any
) -> AsyncIterator[Informer[Pod]]:
    """A running informer that has synced."""
    options = {"settings": QUICK, "observer": lambda _: None, **options}
    async with client_of(server, clock=clock) as client:
        informer = Informer(client, ALL, into=Pod, **options)
        task = started(informer.run())
        try:
            await asyncio.wait_for(informer.synced.wait(), 240)
            await eventually(lambda: server.watches)
            yield informer
        finally:
            await stopped(task)


async def test_it_mirrors_the_scope() -> None:
    """Objects by key, at the newest version heard of."""
    async with KubeServer() as server:
        put(server, "a")
        async with informed(server) as informer:
            put(server, "b")
            remove(server, "a")
            await eventually(lambda: Key("default", "a") not in informer.objects)

            assert list(informer.objects) == [Key("default", "b")]


async def test_an_observer_hears_everything_in_the_order_of_the_stream() -> None:
    """Markers and odd objects are included, and the observer finds the mirror already changed."""
    heard: list[Change[Pod]] = []
    async with KubeServer() as server:
        put(server, "a")
        async with informed(server, observer=heard.append):
            put(server, "b")
            server.store.create(
                PODS_PATH, "default", {"metadata": {"name": "odd"}, "spec": {"priority": []}}
            )
            remove(server, "a")
            await eventually(lambda: any(isinstance(change, Gone) for change in heard))

    assert [type(change) for change in heard] == [Seen, Synced, Seen, Odd, Gone]


async def test_an_observer_that_fails_ends_it() -> None:
    """Books that may be wrong are worse than none."""

    def observe(_change: Change[Pod]) -> None:
        raise LookupError("boom")

    async with KubeServer() as server, client_of(server) as client:
        informer = Informer(client, ALL, into=Pod, observer=observe, settings=QUICK)

        with pytest.raises(LookupError, match="boom"):
            await informer.run()


async def test_a_refresh_brings_a_list_no_older_than_the_call() -> None:
    """What was written before and not heard of, because the watch hangs, is known afterwards."""
    told: list[str] = []

    def observe(change: Change[Pod]) -> None:
        if isinstance(change, Seen | Gone):
            told.append(f"{type(change).__name__} {change.object.metadata.name}")

    async with KubeServer() as server:
        put(server, "a")
        async with informed(server, observer=observe) as informer:
            remove(server, "a")
            put(server, "b")
            await informer.refresh()

            assert [key.name for key in informer.objects] == ["b"]
            assert sorted(told) == ["Gone a", "Seen a", "Seen b"]

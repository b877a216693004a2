"""What the stand-ins of `partage up` learn of objects, also after they fell behind, and the events that they write."""

import asyncio

import pytest

from partage.apiserver import ApiServer, Change, Record, Settings, User
from partage.embedded.watching import follow, tell

CONFIGS = "configmaps"


async def created(server: ApiServer, name: str) -> None:
    """A ConfigMap of this name."""
    await server.create(CONFIGS, {"metadata": {"name": name}}, "default")


def test_an_end_that_fell_into_a_gap_is_told() -> None:
    """A deleted object, and one that was created again under the same name."""

    async def story() -> list[tuple[str, str]]:
        server = ApiServer(Settings(history=5))
        await server.furnish()
        told: list[Change] = []
        busy, free = asyncio.Event(), asyncio.Event()

        async def handle(change: Change) -> None:
            told.append(change)
            if change.record.name == "slow":
                busy.set()
                await free.wait()

        for name in ("gone", "anew", "slow"):
            await created(server, name)
        following = asyncio.create_task(follow(server, CONFIGS, handle))
        await busy.wait()
        for name in ("gone", "anew"):
            await server.delete(CONFIGS, "default", name)
        for name in ("anew", *"abcdef"):
            await created(server, name)
        before = {one.record.name: one.record.uid for one in told}
        told.clear()
        free.set()
        while not told or told[-1].record.name != "f":  # noqa: ASYNC110 # a few rounds
            await asyncio.sleep(0)
        await server.delete(CONFIGS, "default", "f")
        while told[-1].kind != "DELETED":  # noqa: ASYNC110 # a few rounds
            await asyncio.sleep(0)
        following.cancel()
        ended = [one for one in told if one.kind == "DELETED"]
        assert ended[1].record.uid == before["anew"] != told[-1].record.uid
        return [(one.kind, one.record.name) for one in told]

    assert asyncio.run(story()) == [
        ("DELETED", "gone"),
        ("DELETED", "anew"),
        ("ADDED", "slow"),
        ("ADDED", "anew"),
        *(("ADDED", name) for name in "abcdef"),
        ("DELETED", "f"),
    ]


@pytest.mark.parametrize("name", ["a" * 253, f"{'a' * 199}.{'b' * 53}", f"{'a' * 199}-{'b' * 53}"])
def test_an_object_with_a_long_name_has_events(name: str) -> None:
    """The event's name is one that the API server takes."""

    async def story() -> int:
        server = ApiServer(Settings())
        await server.furnish()
        about = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
        }
        record = Record("pods", "default", name, about, 1)
        await tell(server, record, "Said", "something", user=User("system:kubelet"))
        return len(server.store.all("events"))

    assert asyncio.run(story()) == 1

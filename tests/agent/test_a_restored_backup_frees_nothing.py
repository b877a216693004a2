"""The API server's data are of an earlier day: what runs keeps what it has, and what is back gets it afterwards."""

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("grpc")

from claims_world import CLAIMS, GIB, record, share, until, world_of
from test_the_journal_is_trusted_and_mended import SHARE, container_of, pod_of
from test_the_journal_is_trusted_and_mended import World as SharesWorld

from partage.agent.isolation.providers import NoIsolation
from partage.model.allocation import Allocation
from partage.vendors import names
from partage.wire.record import encode


async def test_claims_that_the_backup_does_not_know_are_held_by_their_containers(
    folder: Path,
) -> None:
    """A claim that is back is prepared once those have ended; an instance is not removed under a program."""
    async with world_of(folder) as world:
        world.look = 0.01
        written = world.folder / "journal/claims"
        ended = world.claim("ended", {"device": "gpu-1-mig-1g-10gb-3"})
        said = {names.ALLOCATION: record(600, GIB)}
        async with world.agent():
            backup = world.server.store.backup()
            world.server.store.delete(CLAIMS, "team", ended.name)
            half = world.claim("half", share(0, 60, "20Gi"))
            part = world.claim("part", {"device": "gpu-1-mig-1g-10gb-3"})
            idle = world.claim("idle", share(0, 10, "1Gi"))
            await world.prepared(idle)
            await world.given(world.env(await world.prepared(half)), pod="half")
            given = await world.given(world.env(await world.prepared(part)), pod="part")

            world.server.store.restored(backup)

            await until(lambda: not (written / "uid-idle.json").exists())
            (made,) = world.nvml.instances("GPU-1")
            assert given["NVIDIA_VISIBLE_DEVICES"] == made.computes[0].uuid
            assert "CardFull" in await world.refused(ended)
            assert "CardFull" in str(await world.create((), pod="old", annotations=said))
            for name in ("half", "part"):
                await world.runtime.removed(world.container(pod=name))
            await until(lambda: not list(written.glob("*.json")))
            await world.prepared(ended)
            assert "CardFull" not in str(await world.create((), pod="old", annotations=said))


def test_a_pod_that_is_placed_anew_has_its_new_devices(tmp_path: Path) -> None:
    """Its amounts were changed before, and the backup had it unbound: they were those of other devices."""
    world = SharesWorld(tmp_path, NoIsolation())
    keeper = world.agent()
    keeper.create(pod_of("a"), container_of("a"))
    less = msgspec.structs.replace(SHARE, core_milli=100)
    keeper.journal.adjust("uid-a", encode(Allocation("uid-a", "team", "a", "n1", (less,))))
    keeper.remove(container_of("a"))
    other = msgspec.structs.replace(SHARE, minor=1, uuid="GPU-1")

    keeper.create(pod_of("a", other), container_of("a"))

    assert [one.uuid for one in keeper.books.held["c-a"].allocation.grants] == ["GPU-1"]

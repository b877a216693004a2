"""An agent that dies between any two changes of a disk or a card, while it prepares or unprepares a claim.

Whatever the step, and whether the machine or only the agent restarts: a second call ends where the first would have
ended, unprepare leaves nothing, and no other claim gets what a dead agent had begun to prepare.
"""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from claims_world import CLAIMS, World, share, until, world_of

from fakes.nvml import Trouble
from partage.agent.dra import messages as said
from partage.agent.dra import prepared
from partage.agent.mig import cdi, journal

Story = Callable[[World, said.Claim], Awaitable[object]]


class DiedError(BaseException):
    """The process has ended: it changes nothing any more."""


class Steps:
    """Counts what changes disk or card, and ends the agent at one of it: nothing is changed from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left = -1
        self.dead = False
        real, flush, unlink = journal.replace_file, journal.flush_folder, Path.unlink

        def replace(path: Path, content: bytes, *more: Any, **named: Any) -> None:
            with suppress(FileNotFoundError):
                self.step(lambda: path.with_name(f".{path.name}.new").write_bytes(content[:9]))
            real(path, content, *more, **named)

        def flushed(path: Path) -> None:
            self.step()
            flush(path)

        def remove(path: Path, *, missing_ok: bool = False) -> None:
            if path.suffix == ".json" and path.exists():
                self.step()
            unlink(path, missing_ok=missing_ok)

        for module in (prepared, journal, cdi):
            monkeypatch.setattr(module, "replace_file", replace)
        monkeypatch.setattr(prepared, "flush_folder", flushed)
        monkeypatch.setattr(Path, "unlink", remove)

    def step(self, torn: Callable[[], object] = lambda: None) -> None:
        """A change is about to be made."""
        if self.dead:
            raise DiedError
        self._left -= 1
        if self._left == 0:
            self.dead = True
            torn()
            raise DiedError

    def called(self, _call: str) -> Trouble | None:
        """The card's driver is about to change something."""
        self.step()
        return None

    async def killed(self, at: int, world: World, act: Callable[[], Awaitable[object]]) -> bool:
        """Whether an agent that does something was ended at one of its steps."""
        with suppress(DiedError, BaseExceptionGroup):
            async with world.agent():
                self._left = at
                task = asyncio.ensure_future(act())
                await until(lambda: self.dead or task.done())
                task.cancel()
                await asyncio.wait((task,))
                if not self.dead:
                    await task
        died, self.dead, self._left = self.dead, False, -1
        return died


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """None is counted yet."""
    return Steps(monkeypatch)


def folders() -> Iterator[Path]:
    """A machine each; sockets need short paths."""
    while True:
        with tempfile.TemporaryDirectory(prefix="dra") as made:
            yield Path(made)


def run(folder: Path, story: Callable[[World], Awaitable[None]]) -> None:
    """Run a story in a loop of its own, and end with the loop what a dead agent left there."""

    async def main() -> None:
        async with world_of(folder) as world:
            await story(world)

    asyncio.run(main())


def left(world: World) -> list[str]:
    """Everything that is still there of any claim: files, torn ones too, and instances.

    A torn file of a card is overwritten by the next one: there is one for each place, and no more.
    """
    found = [path.name for path in (world.folder / "journal/claims").iterdir()]
    found += [one.name for one in world.cdi.iterdir() if "claim" in one.name or one.name[0] != "."]
    found += [f"instance at {one.start}" for one in world.nvml.instances("GPU-0")]
    for path in (world.folder / "mig").glob("*.json"):
        found += map(str, json.loads(path.read_bytes())["journal"]["entries"])
    return found


async def ready(world: World, claim: said.Claim) -> None:
    """Asked again, as a kubelet does, the claim is prepared, and its container has what it holds."""
    devices = await world.prepared(claim)
    assert [one.device_name for one in devices] == ["gpu-0-mig-1g-10gb-3", "gpu-1"]
    (made,) = world.nvml.instances("GPU-0")
    assert made.start == 3
    given = await world.given(world.env(devices, "r0"))
    assert given["NVIDIA_VISIBLE_DEVICES"] == made.computes[0].uuid
    assert (await world.given(world.env(devices, "r1"), "other"))[
        "NVIDIA_VISIBLE_DEVICES"
    ] == "GPU-1"
    for name in ("main", "other"):
        await world.runtime.removed(world.container(name))


async def gone(world: World, claim: said.Claim) -> None:
    """Undone, any number of times, nothing is left, and another claim gets the place and the card."""
    assert await world.unprepare(claim) == [""]
    assert await world.unprepare(claim) == [""]
    await until(lambda: not left(world))
    other = world.claim("other", {"device": "gpu-0-mig-7g-80gb-0"}, share(1, 100, "80Gi"))
    await world.prepared(other)
    assert await world.unprepare(other) == [""]
    await until(lambda: not left(world))


async def nothing(_world: World, _claim: said.Claim) -> None:
    """Its pod is gone before the kubelet asks again."""


@pytest.mark.parametrize("reboots", [False, True], ids=["the agent", "the machine"])
@pytest.mark.parametrize("again", [ready, nothing], ids=["asked again", "given up"])
@pytest.mark.parametrize("undone", [False, True], ids=["prepare", "unprepare"])
def test_a_claim_ends_where_it_would_have_ended(
    steps: Steps, *, undone: bool, again: Story, reboots: bool
) -> None:
    """A share and an instance by one claim, ended before each change: of its files, the card's journal and the card."""
    tried = 0

    async def story(world: World) -> None:
        nonlocal tried
        world.nvml.before = steps.called
        claim = world.claim("both", {"device": "gpu-0-mig-1g-10gb-3"}, share(1, 50, "20Gi"))

        async def undo() -> None:
            await world.unprepare(claim)
            await until(lambda: not left(world))

        if undone:
            async with world.agent():
                await world.prepared(claim)
        act = undo if undone else lambda: world.prepared(claim)
        if not await steps.killed(tried + 1, world, act):
            return
        tried += 1
        if reboots:
            world.nvml.restart()
            for path in world.cdi.iterdir():
                path.unlink()
        async with world.agent():
            await again(world, claim)
            await gone(world, claim)

    for number, folder in zip(count(), folders(), strict=False):
        run(folder, story)
        if tried == number:
            break
    # Claim: written down, named. Instance: intent, made, noted, its inside made, noted, specified, noted twice.
    # And back: unnamed, forgotten, flushed; no specification, no inside, no instance, no entry.
    assert tried == (7 if undone else 10)


def test_a_claim_that_was_allocated_anew_has_no_devices_of_before(steps: Steps) -> None:
    """Ended between the release of the old devices and the entry of the new ones: the next agent gives the new ones only."""
    tried = 0

    async def story(world: World) -> None:
        nonlocal tried
        claim = world.claim("moved", share(0, 100, "80Gi"))
        async with world.agent():
            await world.prepared(claim)
        body = deepcopy(world.server.store.get(CLAIMS, "team", "moved"))
        (result,) = body["status"]["allocation"]["devices"]["results"]
        result |= share(1, 50, "9Gi")
        world.server.store.update(CLAIMS, "team", "moved", body)
        if not await steps.killed(tried + 1, world, lambda: world.prepared(claim)):
            return
        tried += 1
        async with world.agent():
            (device,) = await world.prepared(claim)
            assert device.device_name == "gpu-1"
            assert (await world.given(world.env((device,))))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
            await world.prepared(world.claim("other", share(0, 100, "80Gi")))

    for number, folder in zip(count(), folders(), strict=False):
        run(folder, story)
        if tried == number:
            break
    assert tried == 5  # unnamed, forgotten, flushed; written down, named

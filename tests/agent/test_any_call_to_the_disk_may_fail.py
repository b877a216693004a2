"""Each call of the agent to the disk may fail, once or for long: it says so, gives nothing twice, and mends itself."""

import builtins
import contextlib
import errno
import io
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import steps_world as world

from partage.agent.container_admission import Keeper
from partage.agent.nri.plugin import Refused
from partage.model.errors import InvalidDocument

_WRITES = (
    *("write", "pwrite", "fsync", "ftruncate", "posix_fallocate", "chmod", "fchmod"),
    *("link", "unlink", "remove", "rename", "replace", "mkdir", "rmdir"),
)
_READS = ("open", "scandir", "listdir", "pread")
_TRIES = 60
_FOR_GOOD = 10**6


@dataclass
class Disk:
    """A disk whose calls fail from a number on, for so many; it counts them while it is `watched`."""

    number: int
    first: int = _FOR_GOOD
    failures: int = 0
    calls: int = 0
    watched: bool = False

    def call(self, writes: bool) -> None:  # noqa: FBT001 # of a call
        """One is made."""
        if not self.watched or (self.number == errno.EROFS and not writes):
            return
        self.calls += 1
        if self.first < self.calls <= self.first + self.failures:
            raise OSError(self.number, os.strerror(self.number))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Disk]]:
    """Every call goes by the disk that is in the list."""
    disks = [Disk(errno.EIO)]

    def by(genuine: Callable[..., Any], writing: Callable[..., bool]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            disks[0].call(writing(*given, **named))
            return genuine(*given, **named)

        return call

    for name in _WRITES:
        monkeypatch.setattr(os, name, by(getattr(os, name), lambda *_, **__: True))
    for name in _READS:
        monkeypatch.setattr(os, name, by(getattr(os, name), _writes_by_flags))
    opened = by(io.open, lambda _path, mode="r", *_, **__: any(one in mode for one in "wax+"))
    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(sys, "argv", ["steps_world"])
    logging.disable(logging.CRITICAL)
    yield disks
    logging.disable(logging.NOTSET)


def _writes_by_flags(_path: object = None, flags: object = 0, *_: object, **__: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _started(folder: Path, disk: Disk) -> Keeper:
    """An agent that is started again until it runs; a start that fails ends with a message."""
    for _ in range(3):
        with contextlib.suppress(InvalidDocument):
            return world.keeper_of(folder)
    disk.watched = False
    keeper = world.keeper_of(folder)
    disk.watched = True
    return keeper


def _told(folder: Path, disk: Disk) -> tuple[world.Runtime, Keeper]:
    """The whole story, on such a disk; what runs is held at each moment."""
    runtime, keeper = world.Runtime(), None
    for what, name in world.STORY:
        if what == "open":
            if keeper is not None:
                keeper.journal.close()
            keeper = _started(folder, disk)
            keeper.synchronize(*runtime.told())
        assert keeper is not None
        if what == "create":
            with contextlib.suppress(Refused):
                keeper.create(world.pod_of(name), world.container_of(name))
                runtime.running[name] = True
        elif what == "remove" and runtime.running.pop(name, None):
            with contextlib.suppress(OSError):
                keeper.remove(world.container_of(name))
        assert keeper.isolation is not None
        keeper.isolation.rooms.mend()
        assert {f"container-{one}" for one in runtime.running} <= set(keeper.books.held)
    assert keeper is not None
    return runtime, keeper


def _mended(keeper: Keeper, runtime: world.Runtime) -> None:
    """The same agent, once the disk works again and the runtime has sent what it has."""
    keeper.synchronize(*runtime.told())
    running = {f"container-{name}" for name in runtime.running}
    assert set(keeper.books.held) == set(keeper.rooms) == running
    more = [f"more{number}" for number in range(3 - len(running))]
    for name in more:
        keeper.create(world.pod_of(name), world.container_of(name))
    assert keeper.isolation is not None
    slots = [room.limits.cards[0].slot for room in keeper.isolation.rooms.rooms.values()]
    assert len(set(slots)) == len(slots) == 3
    with pytest.raises(Refused, match="CardFull"):
        keeper.create(world.pod_of("late"), world.container_of("late"))
    for name in more:
        keeper.remove(world.container_of(name))


@pytest.mark.long(30)
@pytest.mark.parametrize(
    "number",
    [errno.EIO, errno.EROFS, errno.ENOSPC, errno.EMFILE, errno.ENOMEM, errno.ESTALE],
    ids=errno.errorcode.get,
)
def test_any_call_to_the_disk_may_fail(tmp_path: Path, disk: list[Disk], number: int) -> None:
    """What runs is held, whatever fails; what is free is given once when the disk is back, by this agent and the next."""
    folder = tmp_path / "node"
    disk[0] = whole = Disk(number, watched=True)
    world.fresh(folder)
    _, keeper = _told(folder, whole)
    keeper.journal.close()
    chance = random.Random(number)  # noqa: S311 # of tests
    for _ in range(_TRIES):
        disk[0] = Disk(number)
        world.fresh(folder)
        first, failures = chance.randrange(whole.calls), chance.choice((1, 2, 25, _FOR_GOOD))
        disk[0] = failing = Disk(number, first, failures, watched=True)
        runtime, keeper = _told(folder, failing)

        disk[0] = Disk(number)
        _mended(keeper, runtime)
        keeper.journal.close()
        assert world.wrong(folder, runtime) == [], (first, failures)

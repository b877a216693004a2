"""An agent that is killed before, in and after each change of a file knows afterwards what was given."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import msgspec
import pytest

from partage.agent.dra import prepared
from partage.agent.dra.allocated import Allocated, Part
from partage.agent.dra.prepared import Claims
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType

UIDS = ("1f-a", "b")


class KilledError(BaseException):
    """The process ends here."""


class FullError(OSError):
    """The disk does not take it."""


def claim(uid: str) -> Allocated:
    """A share of a card."""
    grant = Grant("0", DeviceType.GPU, 0, "GPU-0", 100, 2**30, GrantMode.SHARE, protocol="claim")
    return Allocated(
        (Part("card", "n", "gpu-0", "s"),), Allocation(uid, "team", f"c-{uid}", "n", (grant,))
    )


class Disk:
    """Two folders, and an agent that is killed at one of its steps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._journal, self._cdi = folder / "claims", folder / "cdi"
        self._patch = monkeypatch
        self._left = -1
        self.names = (f"token-{number}" for number in count())

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise self._error

    def killed(
        self, at: int, act: Callable[[Claims], object], *first: Callable[[Claims], object]
    ) -> bool:
        """Whether an agent came so far as to be killed at a step of `act`, after what came first."""
        return self._stopped(KilledError(), at, act, first) is not None

    def refused(
        self, at: int, act: Callable[[Claims], object], *first: Callable[[Claims], object]
    ) -> Claims | None:
        """An agent whose disk refused a step of `act`, after the first steps; None where `act` ended before it."""
        return self._stopped(FullError(), at, act, first)

    def _stopped(
        self,
        error: BaseException,
        at: int,
        act: Callable[[Claims], object],
        first: Sequence[Callable[[Claims], object]],
    ) -> Claims | None:
        self._error = error
        real, flush, unlink = prepared.replace_file, prepared.flush_folder, Path.unlink

        def replace(path: Path, content: bytes, *, mode: int) -> None:
            self._step()
            path.with_name(f".{path.name}.new").write_bytes(content[: len(content) // 2])
            self._step()
            real(path, content, mode=mode)
            self._step()

        def remove(path: Path, *, missing_ok: bool = False) -> None:
            self._step()
            unlink(path, missing_ok=missing_ok)
            if not isinstance(error, OSError):  # who says that it could not has not
                self._step()

        def flushed(path: Path) -> None:
            flush(path)
            self._step()

        one = self.born()
        for step in first:
            step(one)
        self._left = at
        with self._patch.context() as patched:
            patched.setattr(prepared, "replace_file", replace)
            patched.setattr(prepared, "flush_folder", flushed)
            patched.setattr(Path, "unlink", remove)
            try:
                act(one)
            except (KilledError, FullError):
                return one
            finally:
                self._left = -1
        return None

    def born(self) -> Claims:
        """An agent that starts."""
        return Claims(self._journal, self._cdi, "n", lambda: next(self.names))

    def named(self) -> dict[str, str]:
        """Marks by the names that the runtime can resolve."""
        found = {}
        for path in self._cdi.glob("*.json"):
            spec = msgspec.json.decode(path.read_bytes())
            for one in spec["devices"]:
                (mark,) = one["containerEdits"]["env"]
                found[f"{spec['kind']}={one['name']}"] = mark.partition("=")[2]
        return found


def agrees(disk: Disk, agent: Claims) -> None:
    """What is held is named, nothing else is, and nothing is damaged."""
    assert not agent.damaged
    assert disk.named() == {one.cdi(0): one.token for one in agent.prepared.values()}
    assert {one.uid for one in agent.allocations} == set(agent.prepared)


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """Fresh ones, without end."""
    return (Disk(tmp_path / str(number), monkeypatch) for number in count())


def test_at_every_step_of_prepare(disks: Iterator[Disk]) -> None:
    """The claim is held or not; prepared again it is the same, with the name that the kubelet may have."""
    steps = 0
    for at, disk in zip(count(1), disks, strict=False):
        if not disk.killed(
            at, lambda one: one.put(claim(UIDS[0])), lambda one: one.put(claim(UIDS[1]))
        ):
            break
        steps += 1
        agent = disk.born()
        agrees(disk, agent)
        assert UIDS[1] in agent.prepared
        before = agent.prepared.get(UIDS[0])
        after = agent.put(claim(UIDS[0]))
        assert before in (None, after)
        agrees(disk, agent)
        assert set(agent.prepared) == set(UIDS)
    assert steps == 6


def test_a_disk_that_refuses_a_step_is_asked_again(disks: Iterator[Disk]) -> None:
    """The same agent prepares, or unprepares, once the disk takes it; until then the claim is held or gone."""
    steps = 0
    for at, disk in zip(count(1), disks, strict=False):
        agent = disk.refused(at, lambda one: one.put(claim(UIDS[0])))
        if agent is None:
            break
        steps += 1
        made = agent.put(claim(UIDS[0]))
        assert agent.again(UIDS[0]) == made
        agrees(disk, agent)
        agrees(disk, disk.born())
    assert steps == 6
    for at, disk in zip(count(1), disks, strict=False):
        agent = disk.refused(
            at, lambda one: one.drop(UIDS[0]), lambda one: one.put(claim(UIDS[0]))
        )
        if agent is None:
            break
        steps += 1
        again = agent.again(UIDS[0])  # the pod was not deleted after all
        agrees(disk, agent)
        assert set(disk.born().prepared) == set(agent.prepared) == ({UIDS[0]} if again else set())
        agent.drop(UIDS[0])
        agrees(disk, agent)
        assert not disk.born().prepared
    assert steps == 6 + 3


def test_at_every_step_of_unprepare(disks: Iterator[Disk]) -> None:
    """It is held still, or gone; unprepared again it is gone, and the other one stays."""
    steps = 0
    for at, disk in zip(count(1), disks, strict=False):
        first = [lambda one, uid=uid: one.put(claim(uid)) for uid in UIDS]
        if not disk.killed(at, lambda one: one.drop(UIDS[0]), *first):
            break
        steps += 1
        agent = disk.born()
        agrees(disk, agent)
        agent.drop(UIDS[0])
        agent.drop(UIDS[0])
        agrees(disk, agent)
        assert set(agent.prepared) == {UIDS[1]}
    assert steps == 5


def test_at_every_step_of_a_start_after_a_boot(disks: Iterator[Disk]) -> None:
    """The runtime's folder is empty then; the next agent names what is held."""
    steps = 0
    for at, disk in zip(count(1), disks, strict=False):
        for uid in UIDS:
            disk.born().put(claim(uid))
        tokens = disk.named()
        for path in disk._cdi.glob("*"):
            path.unlink()
        (disk._cdi / "partage.io-claim_gone.json").write_text("{}")
        if not disk.killed(at, lambda _one, disk=disk: disk.born()):
            break
        steps += 1
        agent = disk.born()
        agrees(disk, agent)
        assert disk.named() == tokens
    assert steps >= 6

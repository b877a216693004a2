"""NVIDIA's MPS keeps shares: what a container gets for it, and the daemon that the agent starts and asks."""

import asyncio
import dataclasses
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client import generate_latest

import mps
from partage.agent.isolation.node_scan import Sight
from partage.agent.isolation.providers import Bind, Mps, Shares
from partage.agent.isolation.statements import Answer, survey
from partage.agent.journal import Entry
from partage.agent.metrics import Tallies
from partage.agent.notes import Notes
from partage.daemon.mps import MpsDaemon
from partage.model.allocation import Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.vendors import names

GIB = 2**30
SHARE = Grant("main", DeviceType.GPU, 3, "GPU-3", 300, 4 * GIB, GrantMode.SHARE, protocol="qgpu")
OTHER = structs.replace(SHARE, minor=1, uuid="GPU-1", core_milli=505, memory_bytes=GIB)
SHARES = Shares("u", "main", {}, {}, {"A": "b", "LD_PRELOAD": "x"}, "", (SHARE,))


def _held(shares: Shares) -> dict[str, str]:
    env = Mps("/m").keep(shares).env
    return {key.removeprefix("CUDA_MPS_"): text for key, text in env.items() if "MPS" in key}


def test_the_driver_is_told_memory_and_threads() -> None:
    """It gets them by the number of each card in the container; variables that disturb it are not passed on."""
    kept = Mps("/m").keep(SHARES)

    assert kept.env == {
        "A": "b",
        "CUDA_MPS_PIPE_DIRECTORY": "/m/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    assert kept.binds == (
        Bind("/m/pipe", "/m/pipe", writable=True),
        Bind("/m/shm", "/dev/shm", writable=True),  # noqa: S108
    )
    both = _held(dataclasses.replace(SHARES, grants=(SHARE, OTHER)))
    assert both["PINNED_DEVICE_MEM_LIMIT"] == "0=1024M,1=4096M"
    assert both["ACTIVE_THREAD_PERCENTAGE"] == "30"  # of all its cards: no quota is passed


@pytest.mark.parametrize(
    ("share", "annotations", "percent"),
    [
        (SHARE, {names.COMPUTE_POLICY: "fixed-share"}, "30"),
        (SHARE, {names.COMPUTE_POLICY: "best-effort"}, None),
        (SHARE, {names.COMPUTE_POLICY: "burst-share"}, None),
        (structs.replace(SHARE, core_milli=0), {}, None),
        (structs.replace(SHARE, core_milli=5), {}, "1"),
    ],
)
def test_only_a_fixed_quota_can_be_had(
    share: Grant, annotations: dict[str, str], percent: str | None
) -> None:
    """A percentage of threads is never more than it says, also alone; so it is none of the other policies."""
    held = _held(dataclasses.replace(SHARES, annotations=annotations, grants=(share,)))

    assert held.get("ACTIVE_THREAD_PERCENTAGE") == percent


def test_a_whole_card_beside_a_share_is_refused() -> None:
    """It would be held to the share's percentage."""
    whole = structs.replace(OTHER, mode=GrantMode.WHOLE)

    with pytest.raises(InvalidValue, match=r"card 1 \(GPU-1\) beside a share"):
        Mps("/m").keep(dataclasses.replace(SHARES, grants=(SHARE, whole)))


def test_nothing_starts_while_the_daemon_is_away() -> None:
    """It would run beside the daemon, held to nothing."""
    with pytest.raises(InvalidValue, match="it does not answer"):
        Mps("/m", lambda: "it does not answer").keep(SHARES)


async def test_a_daemon_is_started_once_and_again_when_it_is_gone(tmp_path: Path) -> None:
    """The agent uses a daemon that answers, whatever started it."""
    tallies, notes = Tallies(), Notes()
    daemon = MpsDaemon(tmp_path / "mps", str(mps.install(tmp_path)))
    daemon.tell(tallies, notes)
    assert daemon.problem

    for _ in range(3):
        daemon._take(await daemon.look())
    assert daemon.problem == ""
    assert _metric(tallies, "partage_agent_mps_starts_total") == 1
    (tmp_path / "mps/pipe/control").unlink()  # it ended
    daemon._take(await daemon.look())
    assert daemon.problem == ""
    assert _metric(tallies, "partage_agent_mps_starts_total") == 2
    assert _metric(tallies, "partage_agent_mps_up") == 1
    assert stat.S_IMODE((tmp_path / "mps/shm").stat().st_mode) == 0o1777
    assert not notes.said


def _metric(tallies: Tallies, name: str) -> float:
    lines = generate_latest(tallies.registry).decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "cannot be run: No such file or directory; it comes with NVIDIA's driver"),
        ("#!/bin/sh\necho no device; exit 1\n", "does not answer: no device"),
        ("#!/bin/sh\nexit 0\n", "does not answer: status 0"),
        ("#!/bin/sh\nprintf 'no\\033[2Jdevice'; exit 1\n", "does not answer: no?[2Jdevice"),
        ("#!/bin/sh\nexec yes\n", "answers with more than 4096 bytes"),
        ("#!/bin/sh\nsleep 5 & exec yes\n", "answers with more than 4096 bytes"),
    ],
)
def test_a_daemon_that_cannot_be_is_told(tmp_path: Path, script: str | None, why: str) -> None:
    """The agent reports it in words, as a note and as a metric, and containers wait for it."""
    control = tmp_path / mps.CONTROL
    if script is not None:
        control.write_text(script)
        control.chmod(0o755)
    tallies, notes = Tallies(), Notes()
    daemon = MpsDaemon(tmp_path / "mps", str(control))
    daemon.tell(tallies, notes)

    daemon._take(asyncio.run(daemon.look()))

    assert daemon.problem.endswith(why)
    assert [note.code for note in notes.said] == ["Mps"]
    assert _metric(tallies, "partage_agent_mps_up") == 0


def _link(at: Path) -> None:
    at.symlink_to(at.parent.parent.parent / "journal")


def _disk(at: Path) -> None:
    try:
        os.mknod(at, stat.S_IFBLK | 0o600, os.makedev(7, 200))
    except PermissionError:
        pytest.skip("no right to make device files")


def _maze(at: Path) -> None:
    """Folders, deeper than a program may nest its calls."""
    at.mkdir()
    (at / "0").touch()
    here = os.open(at, os.O_DIRECTORY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("1", dir_fd=here)
        below = os.open("1", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.parametrize("left", [_link, os.mkfifo, _disk, _maze])
async def test_a_daemon_meets_nothing_that_a_tenant_left(
    tmp_path: Path, left: Callable[[Path], None], request: pytest.FixtureRequest
) -> None:
    """Containers have its folder of sockets. Their root can put there a link, a disk, a pipe or a folder, where the daemon writes at its start."""
    pipe = tmp_path / "mps/pipe"
    pipe.mkdir(parents=True)
    # pytest could not remove what is nested so deeply.
    request.addfinalizer(partial(subprocess.run, ["rm", "-rf", str(pipe.parent)], check=True))
    left(pipe / "control")
    (pipe / "log").write_text("its own")

    async with asyncio.timeout(30):
        assert await MpsDaemon(tmp_path / "mps", str(mps.install(tmp_path))).look() == ""

    assert stat.S_ISREG((pipe / "control").lstat().st_mode)
    assert {one.name for one in pipe.iterdir()} == {"control", "log"}
    assert {one.name for one in pipe.parent.iterdir()} == {"pipe", "log", "shm"}
    assert not (tmp_path / "journal").exists()


async def test_no_number_of_folders_keeps_the_daemon_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may make them faster than they are removed. What is beyond the bound stays where the daemon does not look."""
    monkeypatch.setattr("partage.daemon.mps._MOST_REMOVED", 50)
    for number in range(200):
        (tmp_path / f"mps/pipe/control/{number}").mkdir(parents=True)

    assert await MpsDaemon(tmp_path / "mps", str(mps.install(tmp_path))).look() == ""

    assert (tmp_path / "mps/pipe/control").is_file()
    (left,) = (tmp_path / "mps").glob(".gone-*")
    assert sum(1 for _ in left.iterdir()) < 60


def test_who_is_held_by_whom_says_what_is_not_held() -> None:
    """A condition with nothing but a provider's name would promise what the provider does not enforce."""

    def said(provider: str, away: str = "") -> tuple[Answer, str, str]:
        entry = Entry("c", "u", "team/p", "main", "", provider)
        (one,) = survey({"c": entry}, {}, Sight(), away=away)
        return one.answer, one.cause, one.message

    assert said("mps")[:2] == (Answer.UNKNOWN, "KeptByOthers")
    assert "not the container" in said("mps")[2]
    assert "ends all on its cards" in said("mps")[2]
    assert said("mps", "it is away") == (Answer.NO, "MpsAway", "it is away")
    assert "empty environment" in said("hami-core")[2]
    assert "neither memory nor compute is limited" in said("none")[2]
    assert said("hami-core", "it is away")[0] is Answer.UNKNOWN

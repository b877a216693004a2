"""Extra: the node is in trouble for a while, and its agent stays: what it cannot do it says, and does afterwards."""

import asyncio
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lone_agent import Node, node

from fakes.kubelet import FakeKubelet, fake_kubelet
from partage.agent.nri.messages import CreateContainerResponse, Status

pytest.importorskip("grpc")
_TROUBLE = 6.0
"""Seconds: each of the agent's loops has had a round or more."""


def _whole(folder: Path) -> tuple[str | Path, ...]:
    """Options for everything that an agent does without hardware."""
    (folder / "built.so").write_bytes(b"the library")
    (folder / "dev").mkdir()
    for minor in range(2):
        (folder / f"dev/nvidia{minor}").symlink_to("/dev/null")
    isolation = ("--isolation", "partage", "--isolation-library", folder / "built.so")
    kubelet = ("--kubelet-dir", folder, "--dra", "--dra-kubelet-dir", folder)
    return (
        *isolation,
        "--isolation-dir",
        "/state",
        *kubelet,
        "--cdi-dir",
        folder / "cdi",
        "--evict-unprotected",
    )


@contextmanager
def _without_files(one: Node) -> Iterator[None]:
    """The agent may open no file more."""
    assert one.process is not None
    pid, what = one.process.pid, resource.RLIMIT_NOFILE
    usual = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (3, usual[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, usual)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="agent-") as made:
        yield Path(made)


@pytest.mark.long(30)
async def test_an_agent_that_can_open_no_file_waits_until_it_can(folder: Path) -> None:
    """None of its loops ends: it refuses what it cannot write down, and goes on."""
    options = _whole(folder)
    (folder / "device-plugins").mkdir()
    (folder / "pod-resources").mkdir()
    async with fake_kubelet(folder) as kubelet, node(folder, options) as one:
        assert isinstance(await one.create("before"), CreateContainerResponse)
        await kubelet.registered(1)
        assert one.process is not None
        socket = folder / "plugins/gpu.partage.io/dra.sock"
        await one.until(socket.exists)
        opened = _opened(one.process.pid)
        with _without_files(one):
            await _restarted(kubelet, one)
            socket.unlink()
            refused = await one.create("meanwhile")
            assert isinstance(refused, Status)
            assert "Too many open files" in refused.message
            await asyncio.sleep(2 * _TROUBLE)
            assert one.process.returncode is None, one.said

        assert isinstance(await one.create("after"), CreateContainerResponse)
        assert isinstance(await one.create("too-much", 600), Status)
        await one.until(socket.exists)
        await one.until(lambda: one.series("partage_agent_connected") == 1)
        await one.until(lambda: one.reported() == [True, True])
        await one.until(lambda: kubelet.plugins)
        assert one.series("partage_agent_containers") == 2
        assert one.series("partage_agent_limits_not_in_force") == 0
        await one.until(lambda: _opened(one.process.pid) <= opened + 4)  # type: ignore[union-attr] # it runs
        assert not [line for line in one.said if "Traceback" in line]


async def _restarted(kubelet: FakeKubelet, one: Node) -> None:
    """The runtime and the kubelet are restarted meanwhile."""
    del one
    await kubelet.stop()
    await kubelet.start()


def _opened(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 # of a process

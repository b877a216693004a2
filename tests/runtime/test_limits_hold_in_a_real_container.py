"""Partage's enforcement library in containers of a genuine containerd, with the stand-in driver.

The container's own program asks the driver for memory until it is refused. No card is needed: the modelled card is
a process of the host, which containers reach by its socket.
"""

import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import containerd
import cri
import pytest
from agent_process import Agent

from native_build import ROOT, built
from partage.agent.isolation.account import read_account
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.limits import read
from partage.agent.isolation.node_scan import see
from partage.agent.isolation.overhead import SLACK, Overheads
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.vendors import names
from partage.wire.record import encode

NATIVE = ROOT / "build/native"
MIB, GIB = 2**20, 2**30
CARD = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00"
GLIBC, OLD = "localhost/glibc:test", "localhost/old:test"
SHARE = Grant("main", DeviceType.GPU, 0, CARD, 300, GIB, GrantMode.SHARE, protocol="qgpu")
NODE: dict[str, Any] = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "Device",
    "metadata": {"name": "n1", "labels": {"node.koordinator.sh/gpu-vendor": "nvidia"}},
    "spec": {
        "devices": [
            {
                "type": "gpu",
                "health": True,
                "id": CARD,
                "minor": 0,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": "16Gi",
                    "koordinator.sh/gpu-memory-ratio": "100",
                },
            }
        ]
    },
}


@dataclass
class Node:
    """A runtime, a client, an agent, a modelled card."""

    runtime: containerd.Containerd
    cri: cri.Cri
    agent: Agent
    folder: Path

    def run(
        self, uid: str, image: str = GLIBC, annotations: dict[str, str] | None = None, **env: str
    ) -> str:
        """A container that idles, of a pod with a share."""
        record = encode(Allocation(uid, "team", uid, "n1", (SHARE,)))
        pod = self.cri.run_pod(uid, uid, {names.ALLOCATION: record, **(annotations or {})})
        given = {"FAKE_GPU_SOCKET": "/gpu/card", "LD_LIBRARY_PATH": "/fake", **env}
        mounts = {"/gpu": str(self.folder / "gpu")}
        return self.cri.start(self.cri.create(pod, "main", given, image=image, mounts=mounts))


def _files() -> dict[str, Path | bytes]:
    """The C library of this machine, the stand-in driver and the programs of the tests."""
    programs = [NATIVE / name for name in ("load", "memory")]
    files: dict[str, Path | bytes] = {f"bin/{one.name}": one for one in programs}
    files |= {f"fake/{one.name}": one for one in (NATIVE / "fake").iterdir() if one.is_file()}
    found = subprocess.run(
        [shutil.which("ldd") or "ldd", programs[0], NATIVE / "fake/libcuda.so.1"],
        capture_output=True,
        text=True,
        check=True,
    )
    for word in found.stdout.split():
        if word.startswith("/") and ".so" in word and not word.endswith(":"):
            files[word.lstrip("/")] = Path(word)
    return files


@pytest.fixture(scope="module", params=containerd.GENERATIONS)
def machine(request: pytest.FixtureRequest) -> Iterator[Node]:
    """One containerd for all tests of a generation. Its sockets need a short path."""
    built()
    folder = Path(tempfile.mkdtemp(prefix="partage-"))
    (folder / "gpu").mkdir()
    card = subprocess.Popen(
        [NATIVE / "fake-card", folder / "gpu/card", "1", str(16 * GIB)], stdout=subprocess.PIPE
    )
    try:
        assert card.stdout is not None
        assert card.stdout.readline() == b"ready\n"
        with containerd.running(request.param, folder) as (runtime, client):
            old = {"lib64/libc.so.6": b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.12\0"}
            for name, files in ((GLIBC, _files()), (OLD, old)):
                containerd.write_image(folder / "more.tar", files, name)
                done = runtime.ctr("image", "import", str(folder / "more.tar"))
                assert done.returncode == 0, done.stderr
            options = (
                "--isolation",
                "partage",
                "--isolation-compute",
                "--isolation-library",
                NATIVE / "libpartage-isolation.so",
                "--isolation-dir",
                folder / "isolation",
                "--isolation-policy",
                "fixed-share",
            )
            agent = Agent(runtime, folder / "agent", NODE, options)
            agent.folder.mkdir()
            yield Node(runtime, client, agent, folder)
    finally:
        card.kill()
        card.communicate()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node(machine: Node) -> Iterator[Node]:
    """With an agent that serves, and no pods left behind."""
    machine.agent.start()
    try:
        yield machine
    finally:
        machine.cri.remove_all()
        machine.agent.stop()
        shutil.rmtree(machine.agent.folder / "journal", ignore_errors=True)


def _total(output: str) -> int:
    return int(next(line for line in output.splitlines() if line.startswith("total")).split()[1])


@pytest.mark.parametrize("path", ["plain", "pool", "handle"])
def test_a_containers_program_is_refused_beyond_its_memory(node: Node, path: str) -> None:
    """One GiB of sixteen: the driver's own error, and the cap is what the program is shown."""
    main = node.run("u1")

    output = node.cri.says(main, "/bin/memory", path, str(32 * MIB))

    assert "refused 2" in output  # CUDA_ERROR_OUT_OF_MEMORY
    assert GIB - 32 * MIB <= _total(output) <= GIB
    assert f"info {GIB} " in output


def test_a_shell_with_another_environment_is_held_too(node: Node) -> None:
    """Limits are not in the environment: an empty one changes nothing."""
    main = node.run("u1")

    output = node.cri.says(
        main,
        "sh",
        "-c",
        "env -i FAKE_GPU_SOCKET=/gpu/card LD_LIBRARY_PATH=/fake /bin/memory plain 33554432",
    )

    assert _total(output) <= GIB


def test_two_containers_of_a_card_have_a_cap_each(node: Node) -> None:
    """The card's page holds a seat for both."""
    first, second = node.run("u1"), node.run("u2")

    totals = [
        _total(node.cri.says(one, "/bin/memory", "plain", str(32 * MIB)))
        for one in (first, second)
    ]

    assert all(GIB - 32 * MIB <= total <= GIB for total in totals)
    rooms = node.folder / "isolation/containers"
    slots = {(rooms / one / "limits").read_text().split("slot ")[1][0] for one in (first, second)}
    assert slots == {"0", "1"}


def test_the_next_container_of_a_seat_has_another_file(node: Node) -> None:
    """Running containers see it in their mounts, and it is mounted for the seat's present container."""
    first, second = node.run("u1"), node.run("u2")

    def seat(container: str) -> str:
        inside = "/usr/local/partage/isolation/card-0/seat-1"
        return node.cri.says(container, "ls", "-i", inside).split()[0]

    before = seat(first)
    assert seat(second) == before
    node.cri.remove_container(second)
    node.agent.until("partage_agent_containers", 1)
    third = node.run("u3")

    assert seat(third) == seat(first) != before
    assert _total(node.cri.says(third, "/bin/memory", "plain", str(32 * MIB))) <= GIB


def test_a_tenant_cannot_change_its_limits(node: Node) -> None:
    """The room is read-only in the container; the page and the account are all it may write."""
    main = node.run("u1")
    inside = "/usr/local/partage/isolation"

    for act in (
        f"echo > {inside}/limits",
        f"rm {inside}/limits",
        "echo > /etc/ld.so.preload",
        "rm /etc/ld.so.preload",
        f"touch {inside}/x",
    ):
        said = node.cri.says(main, "sh", "-c", f"{act} 2>&1; echo status $?")
        assert "status 0" not in said, act
    assert _total(node.cri.says(main, "/bin/memory", "plain", str(32 * MIB))) <= GIB


def test_an_old_image_runs_without_the_library(node: Node) -> None:
    """Its C library is too old: the loader's list is empty, and the room says why."""
    main = node.run("u1", OLD)

    assert node.cri.says(main, "cat", "/etc/ld.so.preload") == ""
    spared = node.folder / "isolation/containers" / main / "spared"
    assert "2.12; 2.17 or newer is needed" in spared.read_text()


def test_rooms_go_with_their_containers(node: Node) -> None:
    """This includes containers that ended while the agent was away."""
    first = node.run("u1")
    node.agent.stop()
    node.cri.remove_all()
    node.agent.start()

    second = node.run("u2")

    rooms = [path.name for path in (node.folder / "isolation/containers").iterdir()]
    assert rooms == [second]
    assert first != second


def test_what_was_decided_is_in_the_runtimes_books(node: Node) -> None:
    """A restarted agent thereby distinguishes granted devices from those that it only wrote down."""
    main = node.run("u1")
    node.agent.stop()
    node.agent.start()

    assert node.runtime.spec(main)["annotations"][names.SERVED] == "partage"
    node.agent.until("partage_agent_containers", 1)
    assert node.agent.metric("partage_agent_unprotected_containers") == 0


def test_the_agent_says_whether_limits_hold(node: Node) -> None:
    """The container's processes show it: one held by the library, then one that left it out."""
    main = node.run("u1")
    series = 'partage_agent_limits_in_force{container="main",namespace="team",pod="u1",provider="partage"}'
    node.agent.until(series, 1)

    # Another object before ours: a process sets the loader's variable itself. The agent cannot read that object.
    node.cri.says(
        main,
        "sh",
        "-c",
        "LD_PRELOAD=/etc/ld.so.preload /bin/load --seconds 600 > /dev/null 2>&1 & sleep 1",
    )

    node.agent.until(series, 0)
    log = (node.agent.folder / "agent.log").read_text()
    assert "loads by LD_PRELOAD /etc/ld.so.preload, which cannot be read" in log


class Driver:
    """The modelled card, asked in the name of a process of a container."""

    HELLO, TAKE, INFO = 1, 2, 4  # native/fake/wire.h

    def __init__(self, path: Path, name: int) -> None:
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.connect(str(path))
        self._name = name
        self._ask(self.HELLO, name)

    def _ask(self, kind: int, argument: int = 0) -> int:
        self._link.send(struct.pack("<IIQQQQ", kind, 0, 0, 0, argument, self._name))
        result, _, _, used = struct.unpack("<iIQQ", self._link.recv(24))
        assert result == 0
        return int(used)

    def takes(self, size: int) -> None:
        """Memory of the process that the library does not see."""
        self._ask(self.TAKE, size)

    def used(self) -> int:
        """Bytes of the card in use: the process is alone there."""
        return self._ask(self.INFO)

    def close(self) -> None:
        """Go."""
        self._link.close()


def test_contexts_that_grow_are_charged_and_what_passes_by_is_found(node: Node) -> None:
    """The driver's word on the host's process counts, written where the container's library reads it."""
    main = node.run("u1")
    node.cri.says(
        main,
        "sh",
        "-c",
        f"{{ sleep 600 | /bin/memory plain {32 * MIB} dlsym hold; }} > /dev/null 2>&1 & sleep 1",
    )
    home = node.folder / "isolation"
    account = home / "private" / main / "account"
    limits = read((home / "containers" / main / "limits").read_text(), "limits")
    room = Room(home / "containers" / main, "", "", limits, home / "seats", account)
    deadline = time.monotonic() + 240
    while not any(one.cards[0].counted == GIB for one in read_account(account)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (mine,) = read_account(account)
    seen = see({main: room}).processes[main]
    (pid,) = (one.pid for one in seen if one.numbers and one.numbers.inner == mine.pid)
    driver, overheads = Driver(node.folder / "gpu/card", mine.pid), Overheads()

    def looks() -> None:
        for _ in range(3):
            overheads.look({main: room}, {CARD: {pid: driver.used()}}, see({main: room}))

    try:
        looks()
        context = driver.used() - GIB
        assert context > 100 * MIB
        assert not overheads.above
        assert main in overheads.grown
        assert read_account(account)[0].cards[0].overhead == context
        # Another of the container's programs gets nothing, not even a context.
        assert "total" not in node.cri.says(main, "/bin/memory", "plain", str(32 * MIB))

        driver.takes(SLACK - context + 4 * MIB)
        looks()
        assert main in overheads.above
    finally:
        driver.close()

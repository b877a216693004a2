"""A test for all providers of isolation: what a container of a genuine containerd finds, and what is said of its limits.

No card is needed: files, variables, mounts and limits are looked at from inside, and the provider's own word beside
them.
"""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import containerd
import grpc
import pytest
from agent_process import Agent
from msgspec import structs
from records import GIB, NODE, SHARE, Node, record

import mps
from partage.model.allocation import Grant
from partage.vendors import names

ROOM = "/usr/local/partage/isolation"
QGPU = structs.replace(SHARE, protocol="qgpu")
SECOND = structs.replace(QGPU, minor=1, uuid="GPU-b", core_milli=500, memory_bytes=6 * GIB)
VARIABLES = ("CUDA_", "LD_PRELOAD", "GPU_CORE")
FIXED = {names.COMPUTE_POLICY: "fixed-share"}


@dataclass(frozen=True)
class Found:
    """What is in a container with shares of one card or two whose pod chose fixed-share; {at} is the machine's folder.

    Attributes:
        options: of the agent.
        env: variables of a provider, all of them.
        mounts: where something of a provider's is mounted, all of them; and whether it may be written.
        limits: of the room's file, card by card; none without a room.
        said: of the limits, by the agent's series; None where it is unknown.
        refused: by what words; none where the container starts.
    """

    options: tuple[str, ...] = ()
    env: frozenset[str] = frozenset()
    mounts: tuple[tuple[str, bool], ...] = ()
    limits: tuple[str, ...] = ()
    said: int | None = None
    refused: str = ""


# 30 % and 4 GiB of one card.
_ROOM_MOUNTS = (
    ("/etc/ld.so.preload", False),
    (ROOM, False),
    (f"{ROOM}/account", True),
    (f"{ROOM}/card-0", False),
    (f"{ROOM}/card-0/seat-0", True),
)
PROVIDERS = {
    "none": Found(said=0),
    "vendor": Found(),
    "mig": Found(refused="only hardware instances have enforced limits"),
    "hami-core": Found(
        ("--isolation-library", "{at}/vgpu/libvgpu.so"),
        frozenset(
            (
                "CUDA_DEVICE_MEMORY_LIMIT_0=4096m",
                "CUDA_DEVICE_SM_LIMIT=30",
                "GPU_CORE_UTILIZATION_POLICY=force",
                "LD_PRELOAD={at}/vgpu/libvgpu.so",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE={at}/vgpu/main.cache",
            )
        ),
        (("/tmp/vgpulock", True), ("{at}/vgpu", True), ("{at}/vgpu/libvgpu.so", False)),  # noqa: S108
    ),
    "mps": Found(
        ("--mps-dir", "{at}/mps"),
        frozenset(
            (
                "CUDA_MPS_PIPE_DIRECTORY={at}/mps/pipe",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
            )
        ),
        (("/dev/shm", True), ("{at}/mps/pipe", True)),  # noqa: S108
    ),
    # The image's C library cannot load it, which is what is said; the room is there all the same.
    "partage": Found(
        (
            "--isolation-library",
            "{at}/libpartage-isolation.so",
            "--isolation-dir",
            "{at}/isolation",
        ),
        mounts=_ROOM_MOUNTS[:3],  # who takes no turns has no seat
        limits=("memory 4294967296", "core 300", "policy none"),
        said=0,
    ),
    "partage, compute too": Found(
        (
            "--isolation-library",
            "{at}/libpartage-isolation.so",
            "--isolation-dir",
            "{at}/isolation",
            "--isolation-compute",
        ),
        mounts=_ROOM_MOUNTS,
        limits=("memory 4294967296", "core 300", "policy fixed-share"),
        said=0,
    ),
}

# 50 % and 6 GiB of a second card beside it.
ON_TWO = {
    **PROVIDERS,
    "hami-core": dataclasses.replace(
        PROVIDERS["hami-core"],
        # The one compute limit that older ones read is the lower; newer ones read each card's own.
        env=PROVIDERS["hami-core"].env
        | {
            "CUDA_DEVICE_MEMORY_LIMIT_1=6144m",
            "CUDA_DEVICE_SM_LIMIT_0=30",
            "CUDA_DEVICE_SM_LIMIT_1=50",
        },
    ),
    "mps": dataclasses.replace(
        PROVIDERS["mps"],
        # A process has one percentage for all its cards: the lower.
        env=PROVIDERS["mps"].env - {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M"}
        | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M,1=6144M"},
    ),
    "partage": dataclasses.replace(
        PROVIDERS["partage"],
        limits=(
            *PROVIDERS["partage"].limits,
            "memory 6442450944",
            "core 500",
            "policy none",
        ),
    ),
    "partage, compute too": dataclasses.replace(
        PROVIDERS["partage, compute too"],
        mounts=(
            *_ROOM_MOUNTS,
            (f"{ROOM}/card-1", False),
            (f"{ROOM}/card-1/seat-0", True),
        ),
        limits=(
            *PROVIDERS["partage, compute too"].limits,
            "memory 6442450944",
            "core 500",
            "policy fixed-share",
        ),
    ),
}


@pytest.fixture(scope="module", params=containerd.GENERATIONS)
def machine(request: pytest.FixtureRequest) -> Iterator[Node]:
    """One containerd for all providers of a generation. Its sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="partage-"))
    try:
        with containerd.running(request.param, folder) as (runtime, client):
            (folder / "vgpu").mkdir()
            (folder / "vgpu/libvgpu.so").write_text("the library\n")
            (folder / "libpartage-isolation.so").write_bytes(b"\x7fELF")
            mps.install(folder)
            yield Node(runtime, client, Agent(runtime, folder / "agent", NODE))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("shares", [(QGPU,), (QGPU, SECOND)], ids=["one card", "two cards"])
@pytest.mark.parametrize("name", PROVIDERS)
def test_a_container_finds_what_its_provider_says_and_nothing_else(
    machine: Node, name: str, shares: tuple[Grant, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment, its mounts, its limits, the runtime's own note, and whether limits are in force."""
    at = str(machine.agent.folder.parent)
    found = (PROVIDERS if len(shares) == 1 else ON_TWO)[name]
    provider = name.partition(",")[0]
    monkeypatch.setenv("PATH", f"{at}:{os.environ['PATH']}")
    options = tuple(text.replace("{at}", at) for text in found.options)
    agent = dataclasses.replace(machine.agent, options=("--isolation", provider, *options))
    agent.folder.mkdir(exist_ok=True)
    agent.start()
    try:
        if provider == "mps":
            agent.until("partage_agent_mps_up", 1)
        pod = machine.cri.run_pod("u1", "u1", {**record("u1", *shares), **FIXED})
        if found.refused:
            with pytest.raises(grpc.RpcError) as caught:
                machine.cri.create(pod)
            assert found.refused in caught.value.details()
            return
        main = machine.cri.start(machine.cri.create(pod))

        env = machine.cri.says(main, "env").splitlines()
        given = {one for one in env if one.startswith(VARIABLES)} - {"CUDA_DISABLE_CONTROL=false"}
        assert given == {one.replace("{at}", at) for one in found.env}
        assert _mounts(machine, main, at) == sorted(
            (path.replace("{at}", at), writable) for path, writable in found.mounts
        )
        if found.limits:
            lines = machine.cri.says(main, "cat", f"{ROOM}/limits").splitlines()
            amounts = [line for line in lines if line.startswith(("memory ", "core ", "policy "))]
            assert amounts == list(found.limits)
        assert machine.runtime.spec(main)["annotations"][names.SERVED] == provider
        series = f'partage_agent_limits_in_force{{container="main",namespace="team",pod="u1",provider="{provider}"}}'
        if found.said is None:
            agent.until("partage_agent_limits_not_in_force", 0)
            assert series not in agent.get("/metrics")
        else:
            agent.until(series, found.said)
    finally:
        machine.cri.remove_all()
        agent.stop()
        shutil.rmtree(agent.folder / "journal", ignore_errors=True)


def _mounts(machine: Node, main: str, at: str) -> list[tuple[str, bool]]:
    """Where something is mounted that a provider gave, and whether it may be written, as the container sees it."""
    found = {}
    for line in machine.cri.says(main, "cat", "/proc/mounts").splitlines():
        _, path, _, options = line.split()[:4]
        if path.startswith((at, "/usr/local", "/etc/ld", "/tmp")):  # noqa: S108
            found[path] = "rw" in options.split(",")
    # Every container has memory of its own there; it counts where it is the daemon's.
    if (
        machine.cri.says(main, "sh", "-c", "touch /dev/shm/mine") == ""
        and Path(at, "mps/shm/mine").exists()
    ):
        found["/dev/shm"] = True  # noqa: S108
        Path(at, "mps/shm/mine").unlink()
    return sorted(found.items())

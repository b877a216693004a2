"""Cross-compiled for aarch64 and run by an emulator against the modelled card of this machine.

The emulator runs the code, not the memory model: it does not reorder what a processor may. A process does not see its
own start time as others see it, so processes of one container take each other for dead: each container has one here.
"""

import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from native_world import MIB, WAIT, Tenant, World

from native_build import built
from partage.vendors.wishes import Policy

COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
CAP = 512 * MIB

pytestmark = pytest.mark.skipif(
    not COMPILER or not EMULATOR,
    reason="aarch64-linux-gnu-gcc or qemu-aarch64 is missing: the library is not tried for aarch64",
)


@pytest.fixture(scope="module")
def aarch64() -> Path:
    """The build folder of that machine."""
    return built("native-aarch64", compiler="aarch64-linux-gnu-gcc")


def emulated(build: Path, *command: str) -> list[str]:
    """A program of that machine as a command of this one."""
    return [str(EMULATOR), "-L", "/usr/aarch64-linux-gnu", str(build / command[0]), *command[1:]]


def started(world: World, tenant: Tenant, *command: str) -> subprocess.Popen[str]:
    """A test program of that machine under the library; what concerns its loader reaches it alone."""
    build = tenant.programs
    emulator, *rest = emulated(build, *command)
    names = (f"LD_LIBRARY_PATH={build / 'fake'}", f"LD_PRELOAD={tenant.library}")
    return subprocess.Popen(
        [emulator, *(word for name in names for word in ("-E", name)), *rest],
        env=world.plain_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_needs_nothing_newer_than_the_first_c_library_of_that_machine(aarch64: Path) -> None:
    """That library is glibc 2.17; pages of 64 KiB suit it."""
    library = aarch64 / "libpartage-isolation.so"
    table = subprocess.check_output(["aarch64-linux-gnu-objdump", "-T", library], text=True)
    parts = subprocess.check_output(["aarch64-linux-gnu-objdump", "-p", library], text=True)

    assert set(re.findall(r"GLIBC_[0-9.]+", table)) == {"GLIBC_2.17"}
    assert re.findall(r"NEEDED +(\S+)", parts) == ["libc.so.6"]
    assert set(re.findall(r"LOAD .* align (\S+)", parts)) == {"2**16"}


@pytest.mark.parametrize("way", ["dlsym", "proc", "linked"])
def test_memory_is_capped_there(world: World, aarch64: Path, way: str) -> None:
    """The cap holds to the granule, by every way to the driver."""
    tenant = world.tenant(
        memory=CAP, library=aarch64 / "libpartage-isolation.so", programs=aarch64
    )

    out, error = started(world, tenant, "memory", "plain", str(32 * MIB), way).communicate(
        timeout=WAIT
    )

    assert f"refused 2\ntotal {CAP}\n" in out, error


def test_a_share_is_kept_there_and_kills_leave_nothing(world: World, aarch64: Path) -> None:
    """A quota of 20 % of an idle card; after kills at random points it is there again, and so is the cap."""
    tenant = world.tenant(
        memory=CAP,
        core=200,
        policy=Policy.FIXED_SHARE,
        library=aarch64 / "libpartage-isolation.so",
        programs=aarch64,
    )
    work = ("load", "--seconds", "600", "--depth", "2", "--size", "1000000")
    chance = random.Random(5)
    for _ in range(6):
        process = started(
            world, tenant, *chance.choice([work, ("memory", "pool", "4194304", "dlsym", "hold")])
        )
        time.sleep(chance.random() * 0.2)
        process.kill()
        process.communicate()

    process = started(world, tenant, *work)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    world.meter.held(0.2, process)
    process.kill()
    process.communicate()
    out, error = started(world, tenant, "memory", "plain", str(32 * MIB)).communicate(timeout=WAIT)

    assert f"total {CAP}" in out, error


@pytest.mark.parametrize(
    "scene",
    [
        ("shares", "hostile", "1", "2"),
        ("comes-and-goes", "measured", "1", "0"),
        ("legacy-marks", "hostile", "1"),
    ],
    ids=lambda scene: scene[0],
)
def test_the_gate_decides_the_same_there(
    build: Path, aarch64: Path, scene: tuple[str, ...]
) -> None:
    """Both print the same in virtual time: shares, turns that come and go, marks beside the legacy stream."""
    here, there = (
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT).stdout
        for command in ([str(build / "replay"), *scene], emulated(aarch64, "replay", *scene))
    )

    assert here == there
    assert here


def test_corrupt_memory_is_read_there_too(aarch64: Path) -> None:
    """`char` has no sign there."""
    done = subprocess.run(
        emulated(aarch64, "corrupt", "1", "200"),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )

    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr

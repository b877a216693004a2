"""Memory counts until its program has ended, whatever a process can still open, and no longer."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from native_world import MIB, WAIT, Tenant, World, attempts

from partage.agent.adjustment import beyond
from partage.agent.isolation.account import PLACES_AT
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.limits import read

CAP = 8 * MIB
PROGRAM = """
import ctypes, os, resource, sys
cuda, context, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()

def start():
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0

def filled():
    address, count = ctypes.c_uint64(), 0
    while cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(2**21)) == 0 and count < 16:
        count += 1
    return count

start()
print(filled(), flush=True)
"""


def started(
    tenant: Tenant, program: str, *within: str, head: str = PROGRAM
) -> subprocess.Popen[str]:
    """A program that has taken what it can, 2 MiB at a time, and goes on."""
    return subprocess.Popen(
        [*within, sys.executable, "-c", head + program],
        env=tenant.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> list[str]:
    """What it says to its end."""
    out, error = process.communicate(timeout=WAIT)
    assert process.returncode == 0, error
    return out.split()


def test_a_program_that_starts_itself_anew_has_the_whole_cap(world: World) -> None:
    """Again and again: its number and start stay, its memory does not."""
    program = """
if len(sys.argv) < 12:
    text = open("/proc/self/cmdline", "rb").read().split(b"\\0")[2].decode()
    os.execv(sys.executable, [sys.executable, "-c", text, *sys.argv[1:], "again"])
"""
    assert told(started(world.tenant(memory=CAP), program)) == ["4"] * 12


def test_a_program_that_became_another_leaves_its_memory_to_others(world: World) -> None:
    """The other program need not know of any card."""
    tenant = world.tenant(memory=CAP)
    first = started(tenant, 'os.execv("/bin/sh", ["sh", "-c", "echo shell; read line"])')
    assert first.stdout is not None
    assert [first.stdout.readline() for _ in range(2)] == ["4\n", "shell\n"]

    assert told(started(tenant, "")) == ["4"]
    first.communicate(timeout=WAIT)


@pytest.mark.parametrize(
    "odd",
    [
        "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
        pytest.param(
            "os.chroot('/dev')",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root"),
        ),
    ],
    ids=["no-descriptor-left", "no-procfs"],
)
def test_memory_of_a_process_that_cannot_be_looked_up_counts(world: World, odd: str) -> None:
    """A program that can open no file of its neighbours takes no more for it."""
    tenant = world.tenant(memory=CAP)
    first = started(tenant, "input()")
    assert first.stdout is not None
    assert first.stdout.readline() == "4\n"

    assert told(started(tenant, f"{odd}\nprint(filled())")) == ["0", "0"]
    first.communicate("\n", timeout=WAIT)
    assert told(started(tenant, "")) == ["4"]


def beat(account: Path, before: int | None = None) -> int:
    """When the process of the first place was last seen by itself; with `before` after that was written there."""
    with account.open("r+b", buffering=0) as file:
        file.seek(PLACES_AT + 16)
        if before is not None:
            file.write(before.to_bytes(8, "little"))
            return before
        return int.from_bytes(file.read(8), "little")


def test_memory_of_a_silent_sandbox_counts(world: World) -> None:
    """A process with numbers of its own cannot be looked up by others: it says by itself that it lives."""
    sandbox = ("unshare", "--pid", "--fork", "--mount-proc")
    if subprocess.run([*sandbox, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace may be made here")
    tenant = world.tenant(memory=CAP)
    first = started(tenant, "input()", *sandbox)
    assert first.stdout is not None
    assert first.stdout.readline() == "4\n"

    long_ago = time.monotonic_ns() - 61 * 10**9
    beat(tenant.folder / "account", long_ago)
    for _ in attempts():
        if beat(tenant.folder / "account") != long_ago:
            break
        time.sleep(0.1)

    assert told(started(tenant, "")) == ["0"]
    first.communicate("\n", timeout=WAIT)
    assert told(started(tenant, "")) == ["4"]


def test_a_sandbox_that_sees_others_numbers_is_one_like_any_other(world: World) -> None:
    """Its processes have numbers of their own, and procfs is still that of before: what it says there is of others."""
    sandbox = ("unshare", "--pid", "--fork")
    if subprocess.run([*sandbox, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace may be made here")
    tenant = world.tenant(memory=CAP)
    both = """
import subprocess
number = 0
while os.path.exists(f"/proc/{number + 1}"):
    with subprocess.Popen("true") as one:
        number = one.pid
program = open("/proc/self/cmdline", "rb").read().split(b"\\0")[2].decode().partition("import subprocess")[0]
other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
print(other.stdout + other.stderr)
"""
    assert told(started(tenant, both, *sandbox)) == ["4", "0"]
    assert told(started(tenant, "")) == ["4"]


def test_memory_counts_while_a_forked_child_of_its_dead_program_lives(world: World) -> None:
    """The child has the driver's files open, so the card keeps the memory: workers often outlive a program that crashed."""
    tenant = world.tenant(memory=CAP)
    first = started(
        tenant,
        """
child = os.fork()
if child == 0:
    for one in range(3):
        os.close(one)
else:
    print(child, flush=True)
import signal
signal.pause()
""",
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "4\n"
    child = int(first.stdout.readline())
    first.kill()
    first.communicate(timeout=WAIT)

    assert told(started(tenant, "")) == ["0"]
    os.kill(child, 9)
    for _ in attempts():
        if told(started(tenant, "")) == ["4"]:
            break


def test_no_share_is_lowered_below_memory_of_a_dead_program_whose_child_lives(
    world: World, tmp_path: Path
) -> None:
    """The scheduler would allocate what the card still has for it to others."""
    tenant = world.tenant(memory=CAP)
    first = started(
        tenant,
        """
child = os.fork()
if child == 0:
    for one in range(3):
        os.close(one)
else:
    print(child, flush=True)
import signal
signal.pause()
""",
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "4\n"
    child = int(first.stdout.readline())
    container = "9f86d081884c7d65"
    (tmp_path / str(child)).mkdir()
    (tmp_path / str(child) / "cgroup").write_text(f"0::/kubepods/{container}\n")
    for name in ("stat", "status"):
        (tmp_path / str(child) / name).symlink_to(f"/proc/{child}/{name}")
    limits = read((tenant.folder / "limits").read_text())
    lower = (replace(limits.cards[0], memory_bytes=CAP // 2),)
    room = Room(
        tenant.folder,
        str(tenant.folder),
        tenant.library.name,
        limits,
        tenant.folder,
        tenant.folder / "account",
        amounts=lower,
    )
    first.kill()
    first.communicate(timeout=WAIT)

    assert "more than 4 MiB" in beyond({container: room}, {}, tmp_path)
    os.kill(child, 9)
    for _ in attempts():
        if not beyond({container: room}, {}, tmp_path):
            break


def test_children_of_a_bare_system_call_have_one_cap_together(world: World) -> None:
    """Such a fork runs no handler of the C library, and the parent had asked the driver before."""
    tenant = world.tenant(memory=CAP)
    program = f"""
nvml, memory = ctypes.CDLL("libnvidia-ml.so.1"), (ctypes.c_uint64 * 3)()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(context))
assert nvml.nvmlDeviceGetMemoryInfo(context, memory) == 0
fork, children = {"ctypes.CDLL(None).syscall(57)" if os.uname().machine == "x86_64" else "ctypes.CDLL(None)._Fork()"!r}, []
for _ in range(3):
    read, write = os.pipe()
    child = eval(fork)
    if child == 0:
        start()
        os.write(write, b"%d" % filled())
        import signal
        signal.pause()
    print(os.read(read, 1).decode(), flush=True)
    children.append(child)
for one in children:
    os.kill(one, 9)
os._exit(0)
"""
    with started(tenant, program, head=PROGRAM.rpartition("start()")[0]) as parent:
        assert told(parent) == ["4", "0", "0"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a time namespace needs root")
def test_memory_of_a_process_with_another_boot_counts(world: World) -> None:
    """In a time namespace of its own a process started at another time than its neighbours see."""
    tenant = world.tenant(memory=CAP)
    first = started(tenant, "input()", "unshare", "--time", "--boottime", "100000", "--fork")
    assert first.stdout is not None
    assert first.stdout.readline() == "4\n"

    assert told(started(tenant, "")) == ["0"]
    first.communicate("\n", timeout=WAIT)
    assert told(started(tenant, "")) == ["4"]


def test_a_program_may_have_a_file_of_its_own_under_the_number_of_the_account(
    world: World,
) -> None:
    """The library leaves it as it is, and the program's memory counts as long as it runs."""
    tenant = world.tenant(memory=CAP)
    file = world.folder / "own"
    file.write_text("its own")
    first = started(
        tenant,
        f"""
(number,) = (n for n in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{{n}}").endswith("/account"))
os.dup2(os.open({str(file)!r}, os.O_RDWR), int(number))
print(filled(), flush=True)
input()
""",
    )
    assert first.stdout is not None
    assert [first.stdout.readline() for _ in range(2)] == ["4\n", "0\n"]

    assert told(started(tenant, "")) == ["0"]
    first.kill()
    first.communicate(timeout=WAIT)
    assert told(started(tenant, "")) == ["4"]
    assert file.read_text() == "its own"

"""The library: old C libraries, programs that know no card, static programs, immutable names."""

import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from native_world import MIB, WAIT, World

from partage.agent.isolation.elf import OLDEST_LIBC, Reach, newest_symbol, reach
from partage.agent.isolation.library import install, is_genuine


def test_no_symbol_is_newer_than_glibc_2_17(build: Path) -> None:
    """It loads in every image since CentOS 7, and needs the C library alone."""
    if not shutil.which("objdump"):
        pytest.skip("objdump is missing")
    library = build / "libpartage-isolation.so"

    table = subprocess.check_output(["objdump", "-T", library], text=True)
    dynamic = subprocess.check_output(["objdump", "-p", library], text=True)

    versions = {
        tuple(int(part) for part in version.split("."))
        for version in re.findall(r"GLIBC_([0-9.]+)", table)
    }
    assert versions
    assert max(version[:2] for version in versions) <= OLDEST_LIBC
    assert re.findall(r"NEEDED +(\S+)", dynamic) == ["libc.so.6"]


def test_only_the_stand_ins_are_exported(build: Path) -> None:
    """No name of ours can meet a program's own."""
    if not shutil.which("objdump"):
        pytest.skip("objdump is missing")
    table = subprocess.check_output(
        ["objdump", "-T", build / "libpartage-isolation.so"], text=True
    )

    names = [line.split()[-1] for line in table.splitlines() if " g " in line]

    assert names
    assert all(re.fullmatch(r"cu[A-Z]\w+|nvml\w+|dlopen|dlv?sym", name) for name in names)


def test_no_thread_is_cancelled_in_it(build: Path) -> None:
    """It would take locks and counts with it: nothing of the C library is called where POSIX lets a thread end."""
    if not shutil.which("objdump"):
        pytest.skip("objdump is missing")
    table = subprocess.check_output(
        ["objdump", "-T", build / "libpartage-isolation.so"], text=True
    )

    points = r"(open|openat|close|p?read|p?write|nanosleep|usleep|fcntl|fsync|poll|select|pause|printf|puts|perror)(64)?"
    names = {line.split()[-1] for line in table.splitlines() if "*UND*" in line}

    assert "syscall" in names
    assert not {name for name in names if re.fullmatch(points, name)}


@pytest.mark.parametrize(
    "script",
    [
        "import ctypes; print(ctypes.CDLL(None).getpid() > 0)",
        "import ctypes; print(hasattr(ctypes.CDLL('libm.so.6'), 'cos'))",
        "import ctypes; print(not hasattr(ctypes.CDLL('libm.so.6'), 'cuMemAlloc_v2x'))",
        "import subprocess; print(subprocess.run(['true']).returncode == 0)",
    ],
    ids=["global", "handle", "absent", "child"],
)
def test_programs_that_know_no_card_are_untouched(world: World, script: str) -> None:
    """Dlsym answers as before, and nothing is opened or said."""
    tenant = world.tenant()
    shutil.rmtree(tenant.folder / "account", ignore_errors=True)

    done = subprocess.run(
        [sys.executable, "-c", script],
        env=tenant.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_a_complaint_is_cut_where_it_is_too_long(world: World, tmp_path: Path) -> None:
    """Nothing else of the program's memory is written after it."""
    tenant = world.tenant()
    folder = tmp_path / ("a" * 200) / ("b" * 200) / ("c" * 200)
    folder.mkdir(parents=True)
    tenant.environment["LD_PRELOAD"] = shutil.copy(tenant.library, folder)

    done = subprocess.run(
        [tenant.programs / "memory", "show"],
        env=tenant.environment,
        capture_output=True,
        check=False,
    )

    assert done.returncode != 0
    assert done.stderr.startswith(f"partage: {folder}/limits"[:511].encode())
    assert b"\0" not in done.stderr
    assert len(done.stderr) < 600


def test_children_and_shells_are_covered(world: World) -> None:
    """A shell in between that knows nothing of limits changes nothing."""
    tenant = world.tenant(memory=2**30)

    done = subprocess.run(
        ["sh", "-c", f"sh -c '{tenant.programs}/memory show; true'"],
        env=tenant.environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert f"info {2**30} {2**30} {2**30}" in done.stdout


def test_a_library_is_never_written_over(build: Path, tmp_path: Path) -> None:
    """The same content keeps its file; a file that was changed is replaced by a new one."""
    built = build / "libpartage-isolation.so"
    first = install(built, tmp_path)
    inode = first.stat().st_ino

    again = install(built, tmp_path)
    assert (again, again.stat().st_ino) == (first, inode)
    assert is_genuine(first)

    first.chmod(0o755)
    first.write_bytes(b"else")
    assert not is_genuine(first)
    assert install(built, tmp_path).stat().st_ino != inode
    assert is_genuine(first)


def test_static_programs_are_told_apart(build: Path, tmp_path: Path) -> None:
    """A program without a loader is reported as not enforceable."""
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 0; }\n")
    program = tmp_path / "static"
    done = subprocess.run(
        ["gcc", "-static", source, "-o", program], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("the static C library is missing")

    assert reach(program.read_bytes()) is Reach.STATIC
    assert reach((build / "load").read_bytes()) is Reach.REACHED


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", Reach.NOT_ELF),
        (b"#!/bin/sh\n" + b"x" * 100, Reach.NOT_ELF),
        (b"\x7fELF\x01\x01" + bytes(100), Reach.MACHINE),
        (b"\x7fELF" + b"\xff" * 200, Reach.MACHINE),
    ],
    ids=["empty", "script", "32 bit", "garbage"],
)
def test_anything_can_be_judged(content: bytes, expected: Reach) -> None:
    """No file is a traceback."""
    assert reach(content) is expected


def test_musl_is_told_by_its_loader(build: Path) -> None:
    """Its loader reads no preload file."""
    content = (build / "load").read_bytes()

    musl = content.replace(
        b"/lib64/ld-linux-x86-64.so.2\0", b"/lib/ld-musl-x86_64.so.1\0\0\0\0", 1
    )

    assert reach(musl) is Reach.MUSL


def test_the_image_s_libc_tells_its_version(tmp_path: Path) -> None:
    """The newest symbol version counts, whatever order they are in."""
    libc = tmp_path / "libc.so.6"
    libc.write_bytes(b"\0GLIBC_2.4\0GLIBC_2.17\0GLIBC_2.2.5\0GLIBC_PRIVATE\0")
    other = tmp_path / "libc.musl"
    other.write_bytes(b"musl libc")

    assert newest_symbol(libc.read_bytes()) == (2, 17)
    assert newest_symbol(other.read_bytes()) is None


def test_a_process_without_a_thread_to_spare_goes_on(world: World) -> None:
    """The card stays open without the library's thread, and the message claims nothing else."""
    tenant = world.tenant(memory=256 * MIB)
    before, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if hard != resource.RLIM_INFINITY:
        pytest.skip("the hard limit of stacks is lower than any address space")

    # Not `preexec_fn`: it forks with all handlers of forks, and gRPC's may end the child of a worker that used it.
    most = 1 << 47  # the stack of a thread, which no memory holds
    resource.setrlimit(resource.RLIMIT_STACK, (most, hard))
    try:
        process = tenant.start("memory", "plain", str(32 * MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (before, hard))
    out, error = process.communicate(timeout=WAIT)

    assert process.returncode == 0
    assert f"total {256 * MIB}\n" in out
    assert "partage: watch: the library cannot start a thread" in error
    assert "closed" not in error

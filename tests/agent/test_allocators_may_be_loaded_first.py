"""What a tenant loads by LD_PRELOAD or as auditor is reported only where it takes the library's place."""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from one_look import look
from partage.agent.isolation.elf import OF_DRIVER, auditors, defined
from partage.agent.isolation.reading import Work
from partage.model.errors import InvalidDocument

OURS = "/usr/local/partage/isolation/libpartage-isolation-0.so"
DRIVER = "/usr/lib/libcuda.so.1"
CODE = "7f02-7f03 r-xp 0 00:00 2 "
ALLOCATOR = """
#include <stddef.h>
void *dlsym(void *handle, const char *name);
void *malloc(size_t size) { return dlsym((void *)-1l, size ? "malloc" : "calloc"); }
int cublasCreate_v2(void) { return 0; }
int curl_easy_init(void) { return 0; }
int cuFileRead(void) { return 0; }
static int __attribute__((used)) cuInit(int flags) { return flags; }
"""


def compiled(folder: Path, source: str, *flags: str) -> Path:
    """A shared object."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is missing")
    out = folder / "libmade.so"
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", *flags, "-x", "c", "-", "-o", str(out)]
    subprocess.run(command, input=source, text=True, check=True)
    return out


STAND_IN = partial(defined, OF_DRIVER)


def asked(path: Path, what: Callable[[int, Work], str] = STAND_IN) -> str:
    """What the object defines of ours, or names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return what(descriptor, Work())
    finally:
        os.close(descriptor)


class Container:
    """The files of a container and one process of it, as procfs shows them."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.home = self.proc / "7"
        self.root = self.home / "root"
        for name in ("etc", "usr/lib", "opt"):
            (self.root / name).mkdir(parents=True)
        (self.home / "fd").mkdir()
        (self.home / "exe").write_bytes(b"")
        (self.home / "cmdline").write_bytes(b"/opt/program\0")
        (self.root / "etc/ld.so.preload").write_text(f"{OURS}\n")

    def first(self, preload: str, *lines: str, more: str = "") -> str:
        """What is said of a process that was started with such a list."""
        (self.home / "maps").write_text(
            "".join(f"{CODE}{line}\n" for line in (OURS, DRIVER, *lines))
        )
        (self.home / "environ").write_text(f"A=b\0LD_PRELOAD={preload}\0{more}")
        seen = look(7, OURS, proc=self.proc)
        assert seen is not None
        return seen.taken_first.removeprefix("by LD_PRELOAD ")


@pytest.fixture
def container(tmp_path: Path) -> Container:
    """A container without anything loaded first."""
    return Container(tmp_path)


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_an_allocator_is_let_be(container: Container, tmp_path: Path, style: str) -> None:
    """It calls dlsym and has names that begin alike, but it replaces no function of the library."""
    made = compiled(tmp_path, ALLOCATOR, f"-Wl,--hash-style={style}")
    made.rename(container.root / "usr/lib/libjemalloc.so.2")

    assert container.first("/usr/lib/libjemalloc.so.2") == ""
    assert container.first("libjemalloc.so.2") == ""
    assert container.first(f"libjemalloc.so.2:{OURS}") == ""
    assert container.first("/usr/lib/libmissing.so") == ""


@pytest.mark.parametrize("style", ["gnu", "sysv"])
@pytest.mark.parametrize("name", ["dlsym", "dlvsym", "cuMemAlloc_v2", "nvmlInit_v2"])
def test_an_object_in_the_librarys_place_is_named(
    container: Container, tmp_path: Path, name: str, style: str
) -> None:
    """The file and the function, however it was named: alone, by a link, by a folder of its own, as second."""
    source = f"void *{name}(void) {{ return 0; }}\nint other(void) {{ return 1; }}"
    made = compiled(tmp_path, source, f"-Wl,--hash-style={style}")
    made.rename(container.root / "opt/libx.so.1")
    (container.root / "opt/libx.so").symlink_to("/opt/libx.so.1")

    for file in ("/opt/libx.so.1", "/opt/libx.so"):
        for preload in (file, f"/usr/lib/none.so {file}"):
            assert container.first(preload) == f"{file}, which defines {name}"
    assert container.first("libx.so", more="LD_LIBRARY_PATH=/usr/none:/opt\0").endswith(name)
    assert container.first("./libx.so.1", "/opt/libx.so.1").endswith(name)


@pytest.mark.parametrize(
    "name", ["la_symbind64", "la_symbind32", "la_x86_64_gnu_pltenter", "la_aarch64_gnu_pltenter"]
)
def test_an_auditor_that_may_rebind_is_named(
    container: Container, tmp_path: Path, name: str
) -> None:
    """This holds wherever it is found, as second too; a profiler's watching auditor and a preload's are allowed."""
    source = "int la_version(void) { return 1; } int la_objopen(void) { return 0; }\n"
    compiled(tmp_path, source).rename(container.root / "opt/watch.so")
    source += (
        f"void *{name}(void) {{ return 0; }} void *la_x86_64_gnu_pltexit(void) {{ return 0; }}"
    )
    compiled(tmp_path, source).rename(container.root / "opt/bind.so")

    said = f"as auditor /opt/bind.so, which defines {name}"
    assert container.first("", more="LD_AUDIT=/opt/watch.so:/usr/lib/none.so\0") == ""
    assert container.first("", more="LD_AUDIT=/opt/watch.so:/opt/bind.so\0") == said
    found = container.first("", more="LD_AUDIT=bind.so\0LD_LIBRARY_PATH=/opt\0")
    assert found == said.replace("/opt/", "")
    assert container.first("/opt/bind.so") == ""
    (container.root / "opt/bind.so").write_text("text")
    assert "bind.so, which cannot be read" in container.first("", more="LD_AUDIT=/opt/bind.so\0")


def test_auditors_that_a_program_names_are_found(container: Container, tmp_path: Path) -> None:
    """The linker writes them into it, for itself and for what it needs."""
    source = "unsigned long la_symbind64(void) { return 0; }"
    compiled(tmp_path, source).rename(container.root / "opt/bind.so")
    for flags in (("-Wl,--audit=/opt/bind.so",), ("-Wl,--depaudit=/opt/none.so:/opt/bind.so",)):
        compiled(tmp_path, "int main(void) { return 0; }", *flags).rename(container.home / "exe")

        assert container.first("") == "as auditor /opt/bind.so, which defines la_symbind64"


def test_what_cannot_be_read_is_not_trusted(container: Container) -> None:
    """It may be no shared object, a pipe without a writer, a circle of links, a removed file, or too many."""
    opt = container.root / "opt"
    (opt / "text.so").write_text("text")
    os.mkfifo(opt / "pipe.so")
    (opt / "circle.so").symlink_to("circle.so")

    assert "text.so, which cannot be read" in container.first("/opt/text.so")
    assert "pipe.so, which cannot be read" in container.first("/opt/pipe.so")
    assert "circle.so, which cannot be read" in container.first("/opt/circle.so")
    assert "cannot be found" in container.first("/opt/gone.so", "/opt/gone.so (deleted)")
    assert "cannot be found" in container.first("/proc/self/fd/3")
    assert "too many" in container.first(":".join(["/opt/none.so"] * 17))


def test_a_pipe_in_place_of_the_list_stops_nobody(container: Container) -> None:
    """A tenant with a mount namespace of its own may put any file there."""
    listed = container.root / "etc/ld.so.preload"
    listed.unlink()
    os.mkfifo(listed)

    assert container.first("") == ""


def test_links_of_a_container_lead_nowhere_else(container: Container, tmp_path: Path) -> None:
    """An absolute link is followed from the container's root, not from the agent's."""
    made = compiled(tmp_path, "int dlsym(void) { return 0; }")
    (container.root / "opt/libx.so").symlink_to(made)

    assert container.first("/opt/libx.so") == ""


def test_whatever_is_in_a_file_there_is_an_answer(tmp_path: Path) -> None:
    """Cut off anywhere, and with every byte of its beginning and of its tables turned over."""
    flags = ("-Wl,-z,noseparate-code", "-Wl,--audit=/opt/a.so")
    content = compiled(tmp_path, ALLOCATOR, *flags).read_bytes()
    odd = tmp_path / "odd.so"
    answers = set()

    for at in range(min(len(content), 3000)):
        for changed in (
            content[:at],
            content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :],
        ):
            odd.write_bytes(changed)
            for what in (STAND_IN, auditors):
                try:
                    answers.add(asked(odd, what))
                except InvalidDocument:
                    answers.add("unreadable")

    assert {"", "/opt/a.so", "unreadable"} <= answers


def test_the_c_library_itself_is_recognised() -> None:
    """A large object from another compiler: the loader's functions are found in it, or they are undefined."""
    folder = Path(f"/lib/{platform.machine()}-linux-gnu")
    found = [one for one in (folder / "libc.so.6", folder / "libdl.so.2") if one.exists()]
    if not found:
        pytest.skip("no GNU C library where Debian has it")

    assert any(asked(one) in {"dlsym", "dlvsym"} for one in found)

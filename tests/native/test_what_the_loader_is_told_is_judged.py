"""Auditors of the loader, a `dlopen` of one's own, another driver by LD_LIBRARY_PATH: what breaks limits is named.

Each is a real process beside the modelled card, and what happens to its limits is looked at, not supposed.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from native_world import MIB, Tenant, World, uuid

from one_look import look
from partage.agent.isolation.account import read_account
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.library import as_mapped
from partage.agent.isolation.limits import CardLimits, ContainerLimits
from partage.agent.isolation.node_scan import ProcessView, read_room
from partage.agent.isolation.seats import read_seat
from partage.agent.isolation.statements import Cause, judge
from partage.vendors.wishes import Policy

NATIVE = Path(__file__).parents[2] / "native"
HEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <string.h>
"""
WATCHER = """
unsigned la_version(unsigned version) { return version; }
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) { return 0; }
void la_activity(uintptr_t *cookie, unsigned flag) {}
"""
REBINDER = """
static struct link_map *driver;
static void *(*library)(void *, const char *);
unsigned la_version(unsigned version) { return version; }
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie)
{
    if (strstr(map->l_name, "libcuda.so")) driver = map;
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
static void *answer(void *handle, const char *name)
{
    return strcmp(name, "cuLaunchKernel") == 0 ? dlsym(driver, name) : library(handle, name);
}
uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned number, uintptr_t *from, uintptr_t *to, unsigned *flags,
                       const char *name)
{
    if (strcmp(name, "dlsym") != 0) return symbol->st_value;
    library = (void *(*)(void *, const char *))symbol->st_value;
    return (uintptr_t)answer;
}
"""
OPENER = """
void *dlopen(const char *name, int flags)
{
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(name && strcmp(name, "libcuda.so.1") == 0 ? OTHER : name, flags);
}
"""


def compiled(folder: Path, name: str, source: str, *flags: str) -> Path:
    """A shared object of this source."""
    out = folder / name
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-Wno-unused",
        *flags,
        "-x",
        "c",
        "-",
        "-o",
        str(out),
        "-ldl",
    ]
    subprocess.run(command, input=HEAD + source, text=True, check=True)
    return out


def programs(world: World, name: str, *flags: str) -> Path:
    """A folder with one of the test programs, which was not linked with the driver."""
    folder = world.folder / "programs"
    folder.mkdir()
    source = next(
        path for path in (NATIVE / "tools", NATIVE / "tests") if (path / f"{name}.c").exists()
    )
    subprocess.run(
        [
            "gcc",
            "-std=gnu11",
            "-O1",
            "-Iinclude",
            "-Isrc",
            "-o",
            folder / name,
            source / f"{name}.c",
            "tools/driver.c",
            "-lpthread",
            "-ldl",
            *flags,
        ],
        cwd=NATIVE,
        check=True,
    )
    return folder


def seen(tenant: Tenant, pid: int) -> ProcessView:
    """What the agent sees of a process."""
    view = look(pid, str(tenant.library), as_mapped(tenant.library))
    assert view is not None
    return view


def causes(world: World, tenant: Tenant, view: ProcessView) -> list[Cause]:
    """Why its limits are not in force, the preload file apart, which is this machine's own here."""
    limits = ContainerLimits(1, (CardLimits(uuid(0), "card-0", 0, 0, 200, Policy.FIXED_SHARE),))
    room = Room(
        tenant.folder, "", tenant.library.name, limits, world.folder, tenant.folder / "account"
    )
    found = judge(room, read_room(room), (view,))
    return [one.cause for one in found if one.cause is Cause.OUTSIDE]


@contextmanager
def computing(tenant: Tenant) -> Iterator[int]:
    """A program as it launches kernels; its number."""
    with tenant.start(
        "load", "--way", "dlsym", "--size", "2000000", "--seconds", "600"
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        try:
            yield running.pid
        finally:
            running.kill()


def charged_for(world: World, tenant: Tenant, pid: int) -> int:
    """Device ns that the library charged by the time that the card itself gave it 50 ms."""

    class Running:
        def __init__(self) -> None:
            self.pid = pid

    while world.meter.served(Running())[0] < 50_000_000:  # type: ignore[arg-type]
        time.sleep(0.01)
    seat = read_seat(tenant.folder / "card-0", 0)
    return 0 if seat is None else seat.served_ns


@pytest.mark.parametrize("how", ["variable", "program"])
def test_an_auditor_that_rebinds_is_named(world: World, how: str) -> None:
    """Kernels go past the gate while everything else is in order: nothing but the auditor's file tells."""
    tenant = world.tenant(core=200, policy=Policy.FIXED_SHARE)
    auditor = compiled(world.folder, "rebind.so", REBINDER)
    if how == "variable":
        tenant.environment["LD_AUDIT"] = str(auditor)
    else:
        tenant.programs = programs(world, "load", f"-Wl,--audit={auditor}")

    with computing(tenant) as pid:
        charged = charged_for(world, tenant, pid)
        view = seen(tenant, pid)

    assert charged == 0
    assert view.has_library
    assert view.taken_first == f"as auditor {auditor}, which defines la_symbind64"
    assert causes(world, tenant, view) == [Cause.OUTSIDE]


def test_an_auditor_that_only_watches_is_let_be(world: World) -> None:
    """It has no function to rebind with, and the gate charges what the card gives."""
    tenant = world.tenant(core=200, policy=Policy.FIXED_SHARE)
    tenant.environment["LD_AUDIT"] = str(compiled(world.folder, "watch.so", WATCHER))

    with computing(tenant) as pid:
        charged = charged_for(world, tenant, pid)
        view = seen(tenant, pid)

    assert charged > 0
    assert view.taken_first == ""
    assert causes(world, tenant, view) == []


def opening(world: World, tenant: Tenant, *, expected: bool) -> tuple[ProcessView, bool]:
    """A program that takes memory beyond its cap, if it can: what is seen of it, and whether it is in the account."""
    with tenant.start("memory", "plain", str(64 * MIB), "dlsym", "hold") as running:
        assert running.stdout is not None
        total = ""
        while not total.startswith("total"):
            total = running.stdout.readline()
            assert total, running.stderr and running.stderr.read()
        view = seen(tenant, running.pid)
        listed = any(one.pid == running.pid for one in read_account(tenant.folder / "account"))
        running.communicate(timeout=240)
    assert (int(total.split()[1]) <= 256 * MIB) is expected
    return view, listed


LOADER = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}


@pytest.mark.parametrize("how", ["--preload", "--audit", "program"])
def test_what_a_loader_that_was_started_loads_first_is_named(world: World, how: str) -> None:
    """Its options are no variables, and the kernel has the loader itself as the process's program."""
    tenant = world.tenant(core=200, policy=Policy.FIXED_SHARE)
    rebind, answer = world.folder / "rebind.so", world.folder / "answer.so"
    loader = [LOADER[os.uname().machine], "--argv0", "load"]
    if how == "--preload":
        compiled(world.folder, answer.name, "int cuMemAlloc_v2(void) { return 0; }")
        loader += [how, str(answer)]
        said = f"by LD_PRELOAD {answer}, which defines cuMemAlloc_v2"
    else:
        compiled(world.folder, rebind.name, REBINDER)
        loader += [how, str(rebind)] if how == "--audit" else []
        said = f"as auditor {rebind}, which defines la_symbind64"
    flags = (f"-Wl,--audit={rebind}",) if how == "program" else ()
    program = programs(world, "load", *flags) / "load"

    views = []
    for first in (loader[:3], loader):
        tenant.programs = Path("/")
        with tenant.start(
            *first, str(program), "--way", "dlsym", "--size", "2000000", "--seconds", "600"
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline()
            views.append(seen(tenant, running.pid))
            running.kill()

    plain, found = views
    assert found.has_library
    assert found.taken_first == said
    assert causes(world, tenant, found) == [Cause.OUTSIDE]
    assert how == "program" or (plain.has_library and plain.taken_first == "")


@pytest.mark.parametrize("name", ["libcuda.so.1", "libother.so"])
def test_a_dlopen_of_ones_own_is_judged_by_what_it_opens(world: World, name: str) -> None:
    """The driver from another folder is held to the limits; under another name it has no place in the account.

    Profilers and sanitizers have a `dlopen` of their own, so having one says nothing. A process that computes without a
    place is found by the device that it has open.
    """
    tenant = world.tenant(memory=256 * MIB)
    other = world.folder / "other" / name
    other.parent.mkdir()
    shutil.copyfile(world.build / "fake/libcuda.so.1", other)
    if name != "libcuda.so.1":
        renamed(other, name)
    tenant.programs = programs(world, "memory")
    opener = compiled(world.folder, "opener.so", OPENER, f'-DOTHER="{other}"')
    tenant.environment["LD_PRELOAD"] = f"{opener} {tenant.library}"

    held = name == "libcuda.so.1"
    view, listed = opening(world, tenant, expected=held)

    assert (listed, view.taken_first) == (held, "")


def renamed(library: Path, name: str) -> None:
    """Another name within the file, of the same length at most."""
    content = library.read_bytes()
    assert b"libcuda.so.1\0" in content
    library.write_bytes(content.replace(b"libcuda.so.1\0", name.encode().ljust(13, b"\0")))


def test_another_driver_by_its_folder_is_the_driver(world: World) -> None:
    """Images with NVIDIA's compatibility package have it so: the library takes the one that the program has."""
    tenant = world.tenant(memory=256 * MIB)
    other = world.folder / "compat"
    other.mkdir()
    shutil.copyfile(world.build / "fake/libcuda.so.1", other / "libcuda.so.1")
    tenant.environment["LD_LIBRARY_PATH"] = f"{other}:{tenant.environment['LD_LIBRARY_PATH']}"

    view, listed = opening(world, tenant, expected=True)

    assert (listed, view.taken_first) == (True, "")
    assert view.uses_card


ALLOCATES = """
int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemAlloc_v2(unsigned long long *, unsigned long);
int cuDeviceGet(int *, int);
static int many(int (*init)(unsigned), int (*make)(void **, unsigned, int), int (*take)(unsigned long long *, unsigned long))
{
    unsigned long long pointer;
    void *context;
    int count = 0;
    if (init(0) || make(&context, 0, 0)) return -1;
    while (count < 64 && take(&pointer, 64ul << 20) == 0) count++;
    return count;
}
int direct(void) { return many(cuInit, cuCtxCreate_v2, cuMemAlloc_v2); }
int asked(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return many(dlsym(driver, "cuInit"), dlsym(driver, "cuCtxCreate_v2"), dlsym(driver, "cuMemAlloc_v2"));
}
typedef void *look(void *, const char *);
typedef void *look_version(void *, const char *, const char *);
static int by(look *find)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return find ? many(find(driver, "cuInit"), find(driver, "cuCtxCreate_v2"), find(driver, "cuMemAlloc_v2")) : -2;
}
static void *libc(void) { return dlopen("libc.so.6", RTLD_NOW); }
int of_libc(void) { return by((look *)dlsym(libc(), "dlsym")); }
int of_next(void) { return by((look *)dlsym(RTLD_NEXT, "dlsym")); }
int of_all(void) { return by((look *)dlsym(dlopen(NULL, RTLD_NOW), "dlsym")); }
int of_version(void) { return by((look *)dlvsym(libc(), "dlsym", "GLIBC_2.34")); }
int of_itself(void) { return by((look *)((look *)dlsym(libc(), "dlsym"))(libc(), "dlsym")); }
int by_version(void)
{
    look_version *find = (look_version *)dlsym(libc(), "dlvsym");
    return by((look *)find(libc(), "dlsym", "GLIBC_2.34"));
}
int opened(const char *plugin)
{
    void *(*open)(const char *, int) = (void *(*)(const char *, int))dlsym(libc(), "dlopen");
    void *copy = open(plugin, RTLD_NOW | RTLD_DEEPBIND);
    return ((int (*)(void))dlsym(copy, "asked"))();
}
"""


def prints_eight(tenant: Tenant, script: str) -> None:
    """Run a script as the tenant: a program that is limited gets as many allocations as its cap holds."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=tenant.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "8\n", done.stderr


@pytest.mark.parametrize("way", ["direct", "asked"])
def test_a_library_that_is_bound_to_its_own_dependencies_first_is_limited(
    world: World, way: str
) -> None:
    """RTLD_DEEPBIND would have it find the C library's `dlsym` and the driver before anything that was preloaded."""
    tenant = world.tenant(memory=512 * MIB)
    driver = world.build / "fake"
    plugin = compiled(
        world.folder,
        "plugin.so",
        ALLOCATES,
        "-Wl,--no-as-needed",
        f"-L{driver}",
        "-l:libcuda.so.1",
    )
    script = f"import ctypes\nprint(ctypes.CDLL({str(plugin)!r}, mode=2 | 8).{way}())"

    prints_eight(tenant, script)


@pytest.mark.parametrize(
    "way",
    ["of_libc", "of_next", "of_all", "of_version", "of_itself", "by_version", "opened"],
)
def test_a_program_that_asks_the_c_library_for_its_lookup_is_limited(
    world: World, way: str
) -> None:
    """A handle of the C library gives its own `dlsym`, which would find the driver's functions themselves."""
    tenant = world.tenant(memory=512 * MIB)
    driver = ("-Wl,--no-as-needed", f"-L{world.build / 'fake'}", "-l:libcuda.so.1")
    plugin, other = (
        compiled(world.folder, name, ALLOCATES, *driver) for name in ("plugin.so", "other.so")
    )
    argument = f"{str(other)!r}.encode()" if way == "opened" else ""
    script = f"import ctypes\nprint(ctypes.CDLL({str(plugin)!r}).{way}({argument}))"

    prints_eight(tenant, script)

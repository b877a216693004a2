"""Our table against NVIDIA's own: the names it exports, what `cuGetProcAddress` gives, and what is not replaced."""

import re
import subprocess
from pathlib import Path

import pytest
from genuine_driver import CUDA, NVML, Driver, drivers
from genuine_probe import exports
from genuine_reasons import HOOKS, NOT_HOOKED, VARIANTS, base_of, expected
from native_world import World

pytestmark = pytest.mark.parametrize("driver", drivers())

TELLS_MEMORY = re.compile(r"nvml\w*(Mem(ory)?(Info|Usage)|Fb(Usage|Reservation)|Memory\w*Usage)")
NOT_CAPPED = {
    "nvmlDeviceGetBAR1MemoryInfo": "the window to the host, not memory of the card",
    "nvmlDeviceGetConfComputeMemSizeInfo": "how memory is divided for confidential computing",
    "nvmlDeviceGetConfComputeProtectedMemoryUsage": "what of it is protected",
    "nvmlVgpuInstanceGetFbUsage": "of vGPU hosts",
    "nvmlVgpuTypeGetFbReservation": "of vGPU hosts",
}
"""Functions of NVML that report memory and are not the container's view, and why not."""


def test_every_row_is_a_function_of_the_driver(driver: Driver) -> None:
    """A name with a slip in it would stand in for nothing; so would one that comes later than we say."""
    cuda, nvml = exports(driver.path(CUDA)), exports(driver.path(NVML))

    missing = [
        hook.name
        for hook in HOOKS.values()
        if hook.since <= driver.version
        and hook.name not in (cuda if hook.library == "CUDA" else nvml)
    ]

    assert missing == []


def test_the_driver_gives_what_the_table_says(driver: Driver) -> None:
    """First version and per-thread form of each row are those of NVIDIA's own table, and so is the function asked for."""
    wrong = []
    seen = set()
    for way, part in driver.ask(None, "table", driver.path()).items():
        for base in {hook.base for hook in HOOKS.values()} & set(part):
            for version, answer in part[base].items():
                name = answer.split()[-1] if "theirs" in answer else ""
                row = expected(base, int(version), int(way.split()[1]), driver.version)
                refused = not name and int(version) > driver.version
                if name not in VARIANTS and not refused and name != (row.name if row else ""):
                    wrong.append((way, base, version, name, row))
                seen.add(name)

    assert wrong == []
    assert not driver.version > 11030 or len(seen) >= 100


def test_every_way_to_a_name_leads_to_our_function_and_to_no_other(
    driver: Driver, world: World
) -> None:
    """The driver's handle, the process and `cuGetProcAddress` do so; all other names lead to the driver."""
    tenant = world.tenant(memory=2**30)
    plain = driver.ask(None, "table", driver.path())
    ours = driver.ask(tenant, "table", driver.path())

    for library in (CUDA, NVML):
        for found in driver.ask(tenant, "symbols", driver.path(library)).values():
            assert found == {
                name: f"{'ours' if name in HOOKS else 'theirs'} {name}" for name in found
            }
    assert ours.keys() == plain.keys()
    for way, part in plain.items():
        for base, answers in part.items():
            for version, answer in answers.items():
                name = answer.split()[-1]
                wanted = answer.replace("theirs", "ours") if name in HOOKS else answer
                assert ours[way][base][version] == wanted, (way, base, version)


def test_a_linked_program_calls_ours(driver: Driver, world: World, tmp_path: Path) -> None:
    """What a program was linked with is the same as what it asks for."""
    names = {
        library: [name for name in exports(driver.path(library)) if name in HOOKS]
        for library in (CUDA, NVML)
    }
    source = tmp_path / "linked.c"
    every = [name for some in names.values() for name in some]
    declared = "".join(f"extern void {name}(void);\n" for name in every)
    table = ", ".join(f'{{"{name}", {name}}}' for name in every)
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n"
        + declared
        + "int main(void)\n{\n"
        f"    struct {{ const char *name; void (*at)(void); }} all[] = {{{table}}};\n    Dl_info home;\n"
        "    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)\n"
        '        if (dladdr((void *)all[i].at, &home)) printf("%s %s\\n", all[i].name, home.dli_fname);\n'
        "    return 0;\n}\n"
    )
    made = tmp_path / "linked"
    libraries = [f"-l:{library}" for library in names]
    command = [
        "gcc",
        "-fPIC",
        "-fno-builtin",
        source,
        "-o",
        made,
        f"-L{driver.folder}",
        *libraries,
    ]
    subprocess.run([*command, "-ldl", "-Wl,--allow-shlib-undefined"], check=True)
    tenant = world.tenant(memory=2**30)

    told = subprocess.check_output([made], env=driver.environment(tenant), text=True)

    assert [line.split() for line in told.splitlines()] == [
        [name, str(tenant.library)] for name in every
    ]


def test_nothing_takes_memory_or_launches_that_nobody_thought_of(driver: Driver) -> None:
    """A new driver's new function is named here until it is hooked, or a reason says why it need not be."""
    reasons = [re.compile(one) for some in NOT_HOOKED.values() for one in some]
    known = {hook.base for hook in HOOKS.values()}

    names = [name for name in exports(driver.path()) if name not in HOOKS]
    new = {
        name
        for name in names
        if name not in VARIANTS
        and (base_of(name) in known or not any(one.fullmatch(base_of(name)) for one in reasons))
    }

    assert new == set()
    assert VARIANTS.keys() & HOOKS.keys() == set()
    assert [one for one in known for reason in reasons if one and reason.fullmatch(one)] == []


def test_what_nvml_tells_of_memory_is_the_container_s_or_there_is_a_reason(driver: Driver) -> None:
    """A later form of `nvmlDeviceGetMemoryInfo` would show the whole card."""
    told = {name for name in exports(driver.path(NVML)) if TELLS_MEMORY.fullmatch(base_of(name))}

    assert "nvmlDeviceGetMemoryInfo" in told
    assert told - HOOKS.keys() - NOT_CAPPED.keys() == set()

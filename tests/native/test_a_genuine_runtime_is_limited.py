"""NVIDIA's own runtime, through which nearly all programs reach the driver: limits hold for what it makes of their calls.

From CUDA 11 on the runtime has the driver prove that it is NVIDIA's before it does anything. The stand-in does not
pretend to be, so of those runtimes only what they ask the driver for is looked at.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from genuine_reasons import HOOKS, NOT_HOOKED, VARIANTS, expected
from genuine_runtime import runtimes
from native_world import MIB, WAIT, Tenant, World

from partage.vendors.wishes import Policy

PROGRAM = Path(__file__).with_name("genuine_program.py")
NEWEST = 10**6
whole = pytest.mark.parametrize(
    "runtime",
    runtimes(10, 11, "of version 10, such as libcudart10.1 of Ubuntu 20.04's multiverse"),
)
asking = pytest.mark.parametrize(
    "runtime", runtimes(11, 99, "from the Python package nvidia-cuda-runtime (-cu12, -cu11)")
)


def start(tenant: Tenant, runtime: Path, what: str, *more: str) -> subprocess.Popen[str]:
    """A program of that runtime, under the library."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), what, str(runtime), *more],
        env=tenant.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(program: subprocess.Popen[str]) -> dict[str, Any]:
    """What it says at its end."""
    out, error = program.communicate(timeout=WAIT)
    assert program.returncode == 0, error
    found: dict[str, Any] = json.loads(out)
    return found


@whole
def test_memory_is_capped_to_the_granule(world: World, runtime: Path) -> None:
    """Plain, managed, pitched and arrays: the cap and no more, with the runtime's own error, and free is what is left."""
    found = told(start(world.tenant(memory=64 * MIB), runtime, "memory"))

    out_of_memory = 2
    assert (found.pop("free"), found.pop("total"), found.pop("after")) == (64 * MIB,) * 3
    assert len(found) == 4
    assert set(map(tuple, found.values())) == {(64, out_of_memory, 0)}


@whole
def test_the_context_counts(world: World, runtime: Path) -> None:
    """The runtime retains the primary context by name, so it is counted."""
    found = told(start(world.tenant(memory=64 * MIB, context=20 * MIB), runtime, "memory"))

    assert found["cudaMalloc"][0] == 44


@whole
@pytest.mark.parametrize("how", ["kernels", "graph"])
def test_a_quota_holds(world: World, runtime: Path, how: str) -> None:
    """Kernels that a compiler would have registered, and a captured graph of them, are held to their fixed share."""
    tenant = world.tenant(core=300, policy=Policy.FIXED_SHARE)
    program = start(tenant, runtime, "share", "300", how)
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    world.meter.held(0.3, program)

    program.kill()
    program.communicate()


@asking
def test_all_that_a_runtime_asks_for_is_ours_or_need_not_be(
    world: World, runtime: Path, tmp_path: Path
) -> None:
    """Each function, in the version and form that it asks for: a row of the table, or a reason."""
    tenant = world.tenant(memory=64 * MIB)
    asked = tmp_path / "asked"
    tenant.environment["FAKE_ASKED"] = str(asked)
    known = {hook.base for hook in HOOKS.values()}
    reasons = [re.compile(one) for some in NOT_HOOKED.values() for one in some]

    told(start(tenant, runtime, "begin"))

    questions = {line for line in asked.read_text().splitlines() if not line.startswith(" ")}
    without = set()
    for base, version, flags in (line.split() for line in questions):
        if base in known:
            reason = expected(base, int(version), int(flags), NEWEST) is not None
        else:
            reason = any(one.fullmatch(base) for one in reasons)
        if not reason:
            without.add((base, version, flags))
    assert len(questions) > 300
    assert without == set()


@asking
def test_the_table_says_what_the_header_beside_it_says(runtime: Path) -> None:
    """NVIDIA's header names each function with its first version and form; it knows more than any driver that is at hand."""
    header = runtime.parents[1] / "include/cudaTypedefs.h"
    if not header.exists():
        pytest.skip(
            "no cudaTypedefs.h beside the genuine libcudart: that of the Python package has one"
        )
    form = re.compile(r"PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)")
    named = {
        (base, int(since), bool(own)) for base, since, own in form.findall(header.read_text())
    }
    ours = {(hook.base, hook.since, hook.per_thread) for hook in HOOKS.values()}
    known = {hook.base for hook in HOOKS.values()}
    reasons = [re.compile(one) for some in NOT_HOOKED.values() for one in some]
    newest = max(since for _, since, _ in named)

    rows = {row for row in named if row[0] in known}
    new = {base for base, _, _ in named - rows if not any(one.fullmatch(base) for one in reasons)}

    assert len(named) > 400
    assert new == set()
    assert {base for base, _, _ in rows - ours} <= VARIANTS.keys()
    bases = {base for base, _, _ in named}
    assert {row for row in ours - rows if row[0] in bases and row[1] <= newest} == set()

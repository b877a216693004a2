"""The library under the address, undefined-behaviour and thread sanitizers, on the modelled card."""

import os
import subprocess
from collections.abc import Iterator

import pytest
from native_world import MIB, SANITIZERS, Tenant, World, sanitized

from native_build import built
from partage.vendors.wishes import Policy

COMMANDS = [
    ["memory", "plain", str(64 * MIB), "linked"],
    ["memory", "small", "65536", "linked"],
    ["memory", "handle", str(64 * MIB), "linked"],
    ["memory", "pool", str(64 * MIB), "linked"],
    ["memory", "node", str(64 * MIB), "linked"],
    ["memory", "capture", str(64 * MIB), "linked"],
    ["contexts", "again"],
    ["contexts", "attach"],
    ["contexts", "reset"],
    ["contexts", "stack"],
    ["contexts", "green"],
    ["arrays", "sparse"],
    ["odd", "names"],
    ["odd", "mixed"],
    ["odd", "pools"],
    ["odd", "ordered"],
    ["odd", "freed-often"],
    ["odd", "kept"],
    ["odd", "twice", "together"],
    ["odd", "twice", "apart"],
    ["odd", "imported", "many"],
    ["memory", "newpool", str(32 * 2**20), "linked"],
    [
        "graphs",
        "linked",
        "a=K200",
        "b=K200",
        "d=K200",
        "i:a",
        "i:b",
        "i:d",
        "T:abd",
        "s",
        "d:a",
        "m",
    ],
    ["load", "--way", "linked", "--seconds", "0.4", "--threads", "3", "--size", "50000"],
    ["load", "--way", "linked", "--seconds", "0.4", "--threads", "2", "--how", "graph"],
]


@pytest.fixture(scope="module", params=SANITIZERS)
def tenants(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tenant, Tenant]]:
    """Two tenants of one card, all built with a sanitizer."""
    kind: str = request.param
    build = built(f"native-{kind}", SANITIZERS[kind])
    world = World(tmp_path_factory.mktemp("s"), build)
    first, second = (
        world.tenant(slot, memory=2**29, core=400, policy=Policy.FIXED_SHARE) for slot in range(2)
    )
    for tenant in (first, second):
        sanitized(tenant, kind)
    yield first, second
    world.close()


@pytest.mark.long(70)
def test_nothing_is_found(tenants: tuple[Tenant, Tenant]) -> None:
    """Memory of each kind, many threads and graphs, beside a busy neighbour."""
    first, second = tenants
    neighbour = second.start("load", "--way", "linked", "--seconds", "2", "--threads", "2")

    done = [first.run(*command) for command in COMMANDS]
    _, error = neighbour.communicate(timeout=240)

    errors = "".join([error, *(one.stderr for one in done)])
    if "unexpected memory mapping" in errors:
        pytest.skip("the thread sanitizer cannot place its memory on this kernel")
    assert "Sanitizer" not in errors, errors
    assert "runtime error" not in errors, errors
    assert {one.returncode for one in done} == {0}, errors
    kept = done[COMMANDS.index(["odd", "kept"])]
    assert kept.stdout.split()[1::2] == [str(2**28), str(2**28), "0"]  # the library was in the way
    assert neighbour.returncode == 0, errors


@pytest.mark.parametrize("model", ["optimistic", "measured", "hostile"])
def test_nothing_is_found_in_interleavings(model: str) -> None:
    """The whole library in virtual time, with tenants that run what frameworks ask of the driver."""
    build = built("native-asan", SANITIZERS["asan"])
    command = [str(build / "replay"), "interleavings", model, "1", "10"]
    done = subprocess.run(
        command,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert "ERROR: AddressSanitizer" not in done.stderr, done.stderr
    assert "runtime error" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr

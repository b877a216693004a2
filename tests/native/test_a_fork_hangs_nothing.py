"""Forks of programs with many threads: a child finds no lock held by a thread that it does not have."""

import os

import pytest
from native_world import World

from partage.vendors.wishes import Policy

CAP = 2**30
FORKS = int(os.environ.get("PARTAGE_FORKS", "200"))


@pytest.mark.parametrize(
    ("what", "policy", "forks"),
    [
        ("all", Policy.NONE, FORKS),
        ("all", Policy.BURST_SHARE, FORKS // 20),
        ("lookup", Policy.NONE, FORKS),
    ],
    ids=["ungated", "gated", "lookup"],
)
def test_a_child_goes_on_wherever_its_parent_s_threads_were(
    world: World, what: str, policy: Policy, forks: int
) -> None:
    """Pools, handles, graphs, contexts, launches, lookups and NVML, all in use at each fork."""
    done = world.tenant(memory=CAP, policy=policy).run("forks", what, str(forks))

    assert (done.stdout, done.returncode) == (f"forked {forks} hung 0 failed 0\n", 0), done.stderr


def test_a_child_goes_on_where_a_thread_was_opening_the_library(world: World) -> None:
    """It reads its limits for itself."""
    tenant = world.tenant(memory=CAP)
    limits, real = tenant.folder / "limits", tenant.folder / "real"
    limits.rename(real)
    os.mkfifo(limits)

    done = tenant.run("forks", "first", str(limits), str(real))

    assert (done.stdout, done.returncode) == ("forked 1 hung 0 failed 0\n", 0), done.stderr

"""Memory with several cards: counted on the card that it lies on, for any card of the thread's context."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from native_world import MIB, Tenant, World, uuid

from partage.agent.isolation.limits import CardLimits
from partage.vendors.wishes import Policy, Priority

CAP = 1024 * MIB
UNLIKE = 256 * MIB
"""The cap of the other card: what is counted there is refused too early."""
WAYS = [
    *("stream", "contextless", "own", "made", "bare", "told"),
    *("handle", "domain", "import", "ipc", "pointer", "graph"),
]


@pytest.fixture
def tenant(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    """A container of two cards, the first with the smaller cap."""
    world = World(tmp_path_factory.mktemp("w"), build, cards=2)
    first, second = (
        CardLimits(
            uuid(card), f"card-{card}", 0, cap, 500, Policy.BEST_EFFORT, Priority.ORDINARY, 0, 0
        )
        for card, cap in enumerate((UNLIKE, CAP))
    )
    yield world.tenant_of(0, first, second)
    world.close()


def numbers(text: str, word: str) -> list[list[int]]:
    """The numbers of each line that begins with `word`."""
    return [
        [int(part) for part in line.split()[1:]]
        for line in text.splitlines()
        if line.startswith(word)
    ]


@pytest.mark.parametrize("newer", [{}, {"FAKE_GPU_NEWER": "1"}], ids=["older", "newer"])
@pytest.mark.parametrize("way", WAYS)
def test_memory_counts_where_it_lies(tenant: Tenant, way: str, newer: dict[str, str]) -> None:
    """It fills the second card's cap, leaves the first's alone, and releases all, whatever the driver says of pools."""
    tenant.environment.update(newer)

    done = tenant.run("cards", way)

    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout, "refused") == [[2, CAP // (128 * MIB)]]
    assert numbers(done.stdout, "used") == [[0, CAP], [0, 0]]


@pytest.mark.parametrize("way", ["host", "told-host"])
def test_memory_of_the_host_counts_on_no_card(tenant: Tenant, way: str) -> None:
    """A pool of the host's memory, made by the program or the host's own."""
    tenant.environment["FAKE_GPU_NEWER"] = "1"

    done = tenant.run("cards", way)

    assert numbers(done.stdout, "refused") == [[0, 32]], done.stderr
    assert numbers(done.stdout, "used") == [[0, 0], [0, 0]]

"""What random worlds found, one small case each: some is now as in the original, the rest is a row of the page.

Where Partage keeps its own way, the case shows what both do. A case that both decide alike one day fails here: then its row
goes.
"""

from pathlib import Path

import decisions
import hami_rules as hami
import hami_worlds
import koordinator_rules as koordinator
import koordinator_worlds
import pytest

PAGES = Path(__file__).parents[2] / "docs" / "compatibility"
ROWS = (
    hami.EQUAL_CARDS,
    hami.ONE_AFTER_ANOTHER,
    koordinator.Q5,
    koordinator.Q6,
    koordinator.Q15,
    koordinator.FAR,
    koordinator.SCORES,
    koordinator.SWITCHES,
    koordinator.NODE_SCOPE,
    koordinator.DEVICE_SCOPE,
    koordinator.SHARED_SCOPE,
    koordinator.UNSEEN,
)


@pytest.mark.parametrize("row", ROWS)
def test_what_the_rules_keep_otherwise_is_a_row_of_the_page(row: str) -> None:
    """Each difference that the rules allow for has its row on a page."""
    assert any(f"| {row} |" in page.read_text("utf-8") for page in PAGES.glob("*.md"))


def _hami_cards(*numas: int) -> hami.Node:
    cards = [
        hami.Card(f"n-{index}", index, numa, "NVIDIA A100-SXM4-40GB", 10, 40000, True, False)
        for index, numa in enumerate(numas)
    ]
    return hami.Node("n", cards)


def _hami(node: hami.Node, *pods: hami_worlds.Pod) -> list[set[str]]:
    found = decisions.decided(hami_worlds.World([node], list(pods)).documents(), "binpack/spread")
    return [{uuid for _, _, _, uuid, _ in decision.devices} for decision in found]


def test_numa_after_an_order_breaks_its_ties() -> None:
    """gpu_policy.go, lessByChain: cards that binpack finds equal go by NUMA node."""
    pod = hami_worlds.Pod(
        "p", ({"nvidia.com/gpu": "1"},), {"hami.io/gpu-scheduler-policy": "binpack,numa"}
    )

    assert _hami(_hami_cards(1, 0), pod) == [{"n-1"}]


def test_idle_cards_are_equal_to_binpack_whatever_their_memory() -> None:
    """gpu_policy.go, Less: nothing is used of either, so that their numbers decide."""
    node = _hami_cards(0, 0, 0)
    node.cards[1].memory = 16000
    pod = hami_worlds.Pod(
        "p", ({"nvidia.com/gpu": "1"},), {"hami.io/gpu-scheduler-policy": "binpack"}
    )

    assert _hami(node, pod) == [{"n-0"}]


def test_a_later_container_moves_an_earlier_one() -> None:
    """score.go, allocateAppContainers: each takes its best cards, and none is reconsidered (ONE_AFTER_ANOTHER)."""
    small = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    first = hami_worlds.Pod("first", (small,), {"nvidia.com/use-gpuuuid": "n-0"})
    second = hami_worlds.Pod("second", (small, {"nvidia.com/gpu": "1"}), {})
    node = _hami_cards(0, 0)
    for pod in (first, second):
        for asked in map(hami.request, pod.containers):
            theirs = hami.choices(node, asked, pod.annotations)
            hami.charge(node, *theirs or [frozenset()], asked)

    assert theirs == []
    assert _hami(_hami_cards(0, 0), first, second) == [{"n-0"}, {"n-0", "n-1"}]


def _cards(*places: tuple[int, str | None], **more: object) -> koordinator.Node:
    cards = [koordinator.Device(n, True, numa, pcie) for n, (numa, pcie) in enumerate(places)]
    return koordinator.Node("n", cards, **more)  # type: ignore[arg-type]


def _koordinator(
    node: koordinator.Node, ask: koordinator.Ask, limits: dict[str, str]
) -> tuple[list[int] | None, list[int]]:
    """The cards that Koordinator gives, None where it refuses, and those that the product gives."""
    pod = koordinator_worlds.Pod(
        "p", ({f"koordinator.sh/{name}": amount for name, amount in limits.items()},), ask
    )
    found = decisions.decided(koordinator_worlds.World([node], [pod]).documents(), "spread")
    return koordinator.gpus(node, ask, ours=False), found[0].minors("gpu")


HALF, WHOLE = {"core": 50, "ratio": 50}, {"core": 100, "ratio": 100}


def test_of_equal_switches_the_one_with_the_lowest_minor_is_taken() -> None:
    """allocator_gpu_helper.go, GetGPUTopologyScope: scopes are sorted by NUMA node, then by the switch's name (SWITCHES)."""
    theirs, mine = _koordinator(
        _cards((0, "b"), (0, "a")), koordinator.Ask(gpu=HALF), {"gpu": "50"}
    )

    assert (theirs, mine) == ([1], [0])


def test_cards_whose_place_is_not_known_are_on_their_node() -> None:
    """allocator_gpu.go, allocateByDeviceTopology: any required scope needs the tree (NODE_SCOPE)."""
    theirs, mine = _koordinator(
        _cards((0, None)), koordinator.Ask(gpu=HALF, scope="Node"), {"gpu": "50"}
    )

    assert (theirs, mine) == (None, [0])


@pytest.mark.parametrize(
    ("gpu", "gpus", "given"), [("50", 1, [0]), ("100", 1, [0]), ("200", 2, [])]
)
def test_one_card_is_within_the_scope_of_a_device(gpu: str, gpus: int, given: list[int]) -> None:
    """allocator_gpu.go, allocateFromScope: the closest scope that answers is the switch (DEVICE_SCOPE)."""
    asked = koordinator.Ask(gpu=HALF if gpu == "50" else WHOLE, gpus=gpus, scope="Device")
    theirs, mine = _koordinator(_cards((0, "a"), (0, "a")), asked, {"gpu": gpu})

    assert (theirs, mine) == (None, given)


@pytest.mark.parametrize(("switches", "given"), [("aa", [0, 1]), ("ab", []), ("abb", [1, 2])])
def test_shares_of_several_cards_are_kept_within_the_scope(
    switches: str, given: list[int]
) -> None:
    """allocator_gpu.go, allocateByDeviceTopology: `Unsupported Multi-Shared GPU` (SHARED_SCOPE)."""
    theirs, mine = _koordinator(
        _cards(*((0, switch) for switch in switches)),
        koordinator.Ask(gpu=HALF, gpus=2, scope="PCIe"),
        {"gpu.shared": "2", "gpu-core": "100", "gpu-memory-ratio": "100"},
    )

    assert (theirs, mine) == (None, given)


def test_a_partition_may_be_wider_than_the_scope() -> None:
    """allocator_gpu.go, Allocate: where a partition serves, the scope is not looked at."""
    pair = {2: [koordinator.Partition((0, 1), 1)]}
    theirs, mine = _koordinator(
        _cards((0, "a"), (0, "b"), partitions=pair),
        koordinator.Ask(gpu=WHOLE, gpus=2, scope="PCIe"),
        {"gpu": "200"},
    )

    assert mine == theirs


def _joint(
    node: koordinator.Node, ask: koordinator.Ask, limits: dict[str, str]
) -> tuple[list[int], list[int]]:
    """The network cards that Koordinator gives, and those that the product gives."""
    pod = koordinator_worlds.Pod(
        "p", ({f"koordinator.sh/{name}": amount for name, amount in limits.items()},), ask
    )
    found = decisions.decided(koordinator_worlds.World([node], [pod]).documents(), "spread")
    primary = koordinator.gpus(node, ask) if koordinator.jointly(ask) else None
    theirs = koordinator.nics(node, ask, primary) or []
    return [minor for minor, _ in theirs], found[0].minors("rdma")


def test_each_switch_counts_for_a_network_card_wherever_it_is() -> None:
    """device_allocator.go, allocateDevices: as many as the primary has switches, from the whole node."""
    nics = [koordinator.Device(n, True, 1, "z") for n in (1, 2)]
    theirs, mine = _joint(
        _cards((0, "a"), (0, "b"), nics=nics),
        koordinator.Ask(gpu=WHOLE, gpus=2, rdma=10, joint=True),
        {"gpu": "200", "rdma": "10"},
    )

    assert mine == theirs


def test_whole_network_cards_for_all_are_not_joint() -> None:
    """utils.go: a type with ApplyForAll leaves the joint allocation, though a multiple of 100 decides how many."""
    nics = [koordinator.Device(1, True, 1, "z"), koordinator.Device(2, True, 0, "a")]
    theirs, mine = _joint(
        _cards((0, "a"), nics=[*nics, koordinator.Device(3, True, 0, "a")]),
        koordinator.Ask(gpu=HALF, rdma=200, joint=True, strategy="ApplyForAll"),
        {"gpu": "50", "rdma": "200"},
    )

    assert mine == theirs


def test_switches_that_are_not_known_are_not_the_same() -> None:
    """device_allocator.go, validateJointAllocation: devices without a topology are on no switch, and so on equal ones (UNSEEN)."""
    node = _cards((0, None), nics=[koordinator.Device(1, True, 0, None)])
    ask = koordinator.Ask(gpu=HALF, rdma=10, joint=True, same=True)
    _, mine = _joint(node, ask, {"gpu": "50", "rdma": "10"})

    assert koordinator.nics(node, ask, [0], ours=False) == [(1, "")]
    assert mine == []

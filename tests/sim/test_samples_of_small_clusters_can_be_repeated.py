"""The samples of `bench/small_clusters.py` follow from their numbers alone, and hold what they say."""

import sys
from pathlib import Path

import pytest

from partage.model.policy import Policy
from partage.sim.openb import NodeRow, PodRow, Sequence, Trace
from partage.sim.replay import replay

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from small_samples import CLASSES, LOAD, for_tuning, sample, size_of


@pytest.mark.parametrize("number", range(1, 40, 6))
def test_a_sample_follows_from_its_number(number: int) -> None:
    """Twice the same; of the size it should have; enough arrives, and nothing that never fits."""
    once, again = sample(number, None), sample(number, None)

    assert once == again
    low, high = CLASSES[once.size]
    assert low <= len(once.trace.nodes) <= high
    asked = [size_of(once.trace, once.trace.pods[row]) for row in once.sequence.pods]
    assert sum(asked) >= LOAD * once.trace.capacity / 1000
    largest = max(node.cards for node in once.trace.nodes)
    assert all(pod.cards <= largest for pod in once.trace.pods)
    starts = [life.start for life in once.lives]
    assert starts == sorted(starts)


def test_each_half_has_every_size_and_both_sources() -> None:
    """Constants are then chosen on clusters like those that are reported."""
    for half in (True, False):
        numbers = [n for n in range(24) if for_tuning(n) is half]
        assert {(sample(n, None).size, n % 2) for n in numbers} == {
            (size, source) for size in range(3) for source in range(2)
        }


def test_memory_of_cards_binds_in_a_replay() -> None:
    """Compute alone would let all three share the card; memory lets two."""
    node = NodeRow("n0", 64_000, 65_536, 1, "A100", 40_960)
    pods = (PodRow("p", 1000, 1024, 1, 200, card_mib=20_480),)
    trace = Trace("memory", (node,), pods)

    run = replay(trace, Sequence((0, 0, 0), (0,), ""), Policy.parse("first-fit"), accelerate=False)

    assert run.node.tolist() == [0, 0, -1]

"""In any interleaving no card is allocated twice, and every waiting pod has a reason.

`PARTAGE_SEQUENCES` sets the number of sequences (2,000 unless set; `make soak-laws` tries more),
`PARTAGE_SEED` the first seed.
"""

import asyncio
import os

import pytest
from interleaving import Step, failure, sequence, shortest

from partage.extender.service import Meters

COUNT = int(os.environ.get("PARTAGE_SEQUENCES", "2000"))
FIRST = int(os.environ.get("PARTAGE_SEED", "0"))
PARTS = 4


FOUND: dict[str, list[Step]] = {
    "a pod that is gone is bound": [
        ("create", 18, 39, 22),
        ("schedule", 57, 38, 38),
        ("delete", 15, 12, 30),
        ("bind", 29, 11, 35),
    ],
    "a pod that was replaced is bound": [
        ("create", 11, 15, 1),
        ("schedule", 45, 15, 37),
        ("devices", 32, 7, 53),
        ("gap", 61, 46, 33),
        ("replace", 57, 63, 59),
        ("bind", 30, 48, 8),
    ],
}


@pytest.mark.parametrize("steps", FOUND.values(), ids=FOUND)
def test_interleavings_that_once_broke_a_law(steps: list[Step]) -> None:
    """The shortest sequences that earlier faults needed."""
    with asyncio.Runner() as runner:
        assert not failure(steps, Meters(), runner.run)


@pytest.mark.long(20)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_interleavings(part: int) -> None:
    """Creates, deletes, verbs, restarts, lost and late answers, gaps, repeated and late events."""
    meters = Meters()
    with asyncio.Runner() as runner:
        for seed in range(FIRST + part, FIRST + COUNT, PARTS):
            steps = sequence(seed)
            found = failure(steps, meters, runner.run)
            if found:
                short = shortest(steps, lambda s: failure(s, meters, runner.run))
                told = failure(short, meters, runner.run)
                listed = "\n".join(f"    {step}," for step in short)
                pytest.fail(f"seed {seed}: {found}\nshortest: {told}\n{listed}")

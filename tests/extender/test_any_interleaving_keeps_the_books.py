"""In any interleaving no card is allocated twice, and every waiting pod has a reason.

`PARTAGE_SEQUENCES` sets the number of sequences (10,000 unless set; `make soak-laws` tries more),
`PARTAGE_SEED` the first seed.
"""

import asyncio
import os

import pytest
from interleaving import failure, sequence, shortest

from partage.extender.meters import Meters

COUNT = int(os.environ.get("PARTAGE_SEQUENCES", "10000"))
FIRST = int(os.environ.get("PARTAGE_SEED", "0"))
PARTS = 8


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

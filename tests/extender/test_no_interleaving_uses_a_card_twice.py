"""In any interleaving of plugin, service, API server and agents no card is used twice, and none is lost.

`PARTAGE_SEQUENCES` sets the number of sequences (400 unless set; `make soak-laws` tries more),
`PARTAGE_SEED` the first seed.
"""

import asyncio
import os
from pathlib import Path

import pytest
from interleaved_cluster import WEIGHTS, Cluster
from interleaving import Step, failure, sequence, shortest

from partage.extender.service import Meters

COUNT = int(os.environ.get("PARTAGE_SEQUENCES", "400"))
FIRST = int(os.environ.get("PARTAGE_SEED", "0"))
PARTS = 4


@pytest.mark.long(20)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_interleaving_uses_a_card_twice(tmp_path: Path, part: int) -> None:
    """Late, lost and stray Bindings; cards that fail and reports of before; agents that die; forced deletions."""
    meters = Meters()
    with asyncio.Runner() as runner:

        def failed(steps: list[Step]) -> str:
            return failure(steps, meters, runner.run, lambda m: Cluster(m, tmp_path / "nodes"))

        for seed in range(FIRST + part, FIRST + COUNT, PARTS):
            steps = sequence(seed, 10, 40, WEIGHTS)
            found = failed(steps)
            if found:
                short = shortest(steps, lambda some: failed(list(some)))
                listed = "\n".join(f"    {step}," for step in short)
                pytest.fail(f"seed {seed}: {found}\nshortest: {failed(short)}\n{listed}")

"""In any interleaving of plugin, service, API server and agents no card is used twice, and none is lost.

`PARTAGE_SEQUENCES` sets the number of sequences (400 unless set; `make soak-laws` tries more),
`PARTAGE_SEED` the first seed.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from interleaved_cluster import WEIGHTS, Cluster
from interleaving import Step, failure, sequence, shortest

from partage.extender.service import Meters

COUNT = int(os.environ.get("PARTAGE_SEQUENCES", "400"))
FIRST = int(os.environ.get("PARTAGE_SEED", "0"))
PARTS = 4


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder that flushes fast, where the machine has one."""
    shared = Path("/dev/shm")  # noqa: S108 # a folder of its own is made in it
    folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long(20)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_interleaving_uses_a_card_twice(memory: Path, part: int) -> None:
    """Late, lost and stray Bindings; cards that fail and reports of before; agents that die; forced deletions."""
    meters = Meters()
    with asyncio.Runner() as runner:

        def failed(steps: list[Step]) -> str:
            return failure(steps, meters, runner.run, lambda m: Cluster(m, memory / "nodes"))

        for seed in range(FIRST + part, FIRST + COUNT, PARTS):
            steps = sequence(seed, 10, 40, WEIGHTS)
            found = failed(steps)
            if found:
                short = shortest(steps, lambda some: failed(list(some)))
                listed = "\n".join(f"    {step}," for step in short)
                pytest.fail(f"seed {seed}: {found}\nshortest: {failed(short)}\n{listed}")

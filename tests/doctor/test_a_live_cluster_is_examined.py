"""`partage doctor` on the embedded cluster: what it lacks by design is no finding."""

import asyncio
import json
import sys
from pathlib import Path

from click.testing import CliRunner

from partage.cli.main import main

sys.path.append(str(Path(__file__).parents[1] / "embedded"))

from up_world import PODS, node, pod, running


async def test_a_new_reader_is_told_of_no_fault_that_is_none() -> None:
    """Scheduler and admission are in the process, and a note says so; a second writer is found."""
    async with running([node(cards=1)]) as world:
        await world.create(PODS, pod("fits", {"koordinator.sh/gpu": 100}))
        await world.phase("fits", "Running")
        given = ["doctor", "--kubeconfig", world.cluster.addresses.kubeconfig, "-o", "json"]
        done = await asyncio.to_thread(CliRunner().invoke, main, given)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["findings"] == []
        assert "partage up" in done.stderr
        await world.create(PODS, pod("mixed", runtimeClassName="no-such"))
        table = await asyncio.to_thread(CliRunner().invoke, main, given[:-2])
        assert table.exit_code == 3, table.output
        assert "fix: " in table.stdout
        assert table.stdout.endswith("\n1 error, 0 warnings\n")

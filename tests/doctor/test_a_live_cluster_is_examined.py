"""`partage doctor` on the embedded cluster: told are the things it lacks by design."""

import asyncio
import json
import sys
from pathlib import Path

from click.testing import CliRunner

from partage.cli.main import main

sys.path.append(str(Path(__file__).parents[1] / "embedded"))

from up_world import PODS, node, pod, run, running


def test_the_embedded_cluster_has_no_kube_scheduler() -> None:
    """No extender and no webhook are configured there; its nodes, totals and pods are sound."""

    async def story() -> None:
        async with running([node(cards=1)]) as world:
            await world.create(PODS, pod("fits", {"koordinator.sh/gpu": 100}))
            await world.phase("fits", "Running")
            given = ["doctor", "--kubeconfig", world.cluster.addresses.kubeconfig, "-o", "json"]
            done = await asyncio.to_thread(CliRunner().invoke, main, given)
            assert done.exit_code == 3, done.output
            found = {one["check"] for one in json.loads(done.stdout)["findings"]}
            assert found == {"extender-not-configured", "webhook-missing"}
            table = await asyncio.to_thread(CliRunner().invoke, main, given[:-2])
            assert "fix: " in table.stdout

    run(story())

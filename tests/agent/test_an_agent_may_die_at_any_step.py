"""Killed at every line that touches what it keeps, and at every write to the API server: all agrees afterwards."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_rounds import once
from partage.agent.discovery.models import MODELS
from partage.agent.discovery.simulated import SimulatedHardware, simulate
from partage.agent.reporting import AgentReporting, ReportingSettings
from partage.apiserver import ApiServer, Change, serve
from partage.embedded.definitions import DEFINITIONS
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config

HERE = Path(__file__).parent
HARDWARE = SimulatedHardware("n1", "Tesla-T4", MODELS["Tesla-T4"], 2)


@pytest.mark.long(30)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("library", "places", "steps"),
    [("partage", 150, {0, 1, 2, 3, 5}), ("hami-core", 80, {0, 1, 3, 5})],
)
def test_a_kill_between_any_two_steps_leaves_nothing_behind(
    tmp_path: Path, library: str, places: int, steps: set[int]
) -> None:
    """Journal, rooms, folders, seats and what is held agree with the runtime, in both ways that it went on."""
    done = subprocess.run(
        [sys.executable, HERE / "steps_world.py", tmp_path, library],
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    tried = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({one["where"] for one in tried}) > places
    assert {one["step"] for one in tried} >= steps
    assert [one for one in tried if one["wrong"]] == []


async def _report(server: ApiServer, url: str, kill_at: int) -> list[str]:
    """Report until the given write was stored, and end there; what was written, in order."""
    written: list[str] = []
    ended = asyncio.Event()

    def saw(change: Change) -> None:
        written.append(f"{change.kind} {change.record.resource.partition('.')[0]}")
        if len(written) == kill_at:
            ended.set()

    server.store.observers.append(saw)
    async with Client(Config(ClusterConfig(url)), environ={}) as client:
        settings = ReportingSettings(hami=True, qgpu=True)
        reporting = AgentReporting(client, "n1", lambda: simulate(HARDWARE), settings)

        async def all_of_it() -> None:
            await reporting.renew()
            await once(reporting)

        task = asyncio.create_task(all_of_it())
        stop = asyncio.create_task(ended.wait())
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        killed = not task.done()
        task.cancel()
        stop.cancel()
        await asyncio.wait((task, stop))
        if not killed and not task.cancelled():
            task.result()
    server.store.observers.remove(saw)
    return written


def _said(server: ApiServer) -> dict[str, Any]:
    """What the API server has of the node, without what no two runs have alike."""
    found = {}
    for resource, space, name in (
        ("nodes", "", "n1"),
        ("devices.scheduling.koordinator.sh", "", "n1"),
        ("leases.coordination.k8s.io", "kube-node-lease", "partage-agent-n1"),
    ):
        record = server.store.get(resource, space, name)
        assert record is not None, resource
        text = json.dumps(record.value)
        value = json.loads(text)
        for key in ("resourceVersion", "uid", "creationTimestamp", "managedFields", "generation"):
            value["metadata"].pop(key, None)
        value["metadata"].pop("ownerReferences", None)
        value.get("spec", {}).pop("renewTime", None)
        for device in value.get("spec", {}).get("devices", ()):
            for condition in device["conditions"]:
                condition.pop("lastTransitionTime")
        found[resource] = value
    return found


def test_a_kill_after_any_write_is_made_good_by_the_next_agent() -> None:
    """The API server stored it and no answer arrived: the next agent writes what is missing, once."""

    async def story(kill_at: int) -> tuple[list[str], list[str], dict[str, Any]]:
        server = ApiServer()
        for definition in DEFINITIONS:
            await server.create("customresourcedefinitions.apiextensions.k8s.io", definition)
        await server.create("nodes", {"metadata": {"name": "n1"}})
        async with serve(server) as url:
            first = await _report(server, url, kill_at)
            second = await _report(server, url, 99)
        return first, second, _said(server)

    async def all_stories() -> None:
        whole, nothing, wanted = await story(99)
        renewals = [one for one in nothing if "leases" not in one]
        assert len(whole) >= 3
        assert renewals == []
        for kill_at in range(1, len(whole)):
            first, second, found = await story(kill_at)
            assert first[:kill_at] == whole[:kill_at]
            assert found == wanted, kill_at
            again = [one for one in second if "leases" not in one]
            assert first + again == whole, (first, second)

    asyncio.run(asyncio.wait_for(all_stories(), 240))

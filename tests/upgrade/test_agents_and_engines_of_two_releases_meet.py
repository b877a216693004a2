"""An agent and an engine of two releases, as while a chart's parts are replaced: what passes between them both ways.

From agent to engine: the Device object, labels and HAMi's registration of the node. What the agent of 0.1.0 reported is
frozen in `0.1.0/agent/reported.json`. From engine to agent: the record, whose format is frozen in `record-v1.json`.
"""

import json
from pathlib import Path
from typing import Any

import agent_files
from freeze import read
from test_the_previous_release_is_read_and_can_read_us import refused

from partage.model.device import DeviceType
from partage.sim.offline import Outcome, schedule
from partage.vendors import names
from partage.wire.cluster import assemble

FROZEN = json.loads((Path(__file__).parent / "0.1.0/agent/reported.json").read_text())
LIMITS = (
    {"koordinator.sh/gpu": "100", "koordinator.sh/rdma": "1"},
    {"tke.cloud.tencent.com/qgpu-core": "20", "tke.cloud.tencent.com/qgpu-memory": "5"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"},
    {"koordinator.sh/gpu": "300"},
)
"""Of one pod each; three cards are healthy, so that the last waits."""


def placed(report: dict[str, Any]) -> Outcome:
    """What becomes of four pods on the node that an agent reports."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "node-1",
            "uid": "uid-node-1",
            "labels": report["labels"],
            "annotations": report["annotations"],
        },
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}},
    }
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"pod-{number}", "uid": f"uid-{number}"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        for number, limits in enumerate(LIMITS)
    ]
    return schedule(assemble([read([node, report["device"], *pods])]))


def test_an_engine_takes_what_the_agent_before_it_reports() -> None:
    """The places are those by today's report, and the older agent can read the records."""
    before, now = placed(FROZEN), placed(agent_files.reported())

    assert [one.allocation for one in before.pods] == [one.allocation for one in now.pods]
    assert [one.pod.pod.name for one in before.waiting] == ["pod-3"]
    assert {card.device.healthy for card in before.ledger.cards(DeviceType.GPU, 0)} == {
        True,
        False,
    }
    records = [
        one.rendering.annotations[names.ALLOCATION] for one in before.pods if one.allocation
    ]
    assert {refused(record) for record in records} == {""}


def contradicted(older: object, newer: object, at: str = "") -> list[str]:
    """Where the newer value lacks or changes what the older one has; more is no contradiction."""
    if isinstance(older, dict) and isinstance(newer, dict):
        return [
            place
            for key, value in older.items()
            for place in contradicted(value, newer.get(key), f"{at}.{key}")
        ]
    if isinstance(older, list) and isinstance(newer, list) and len(older) == len(newer):
        return [
            place
            for index, (one, other) in enumerate(zip(older, newer, strict=True))
            for place in contradicted(one, other, f"{at}[{index}]")
        ]
    return [] if older == newer else [at]


def test_an_agent_reports_all_that_the_engine_before_it_reads() -> None:
    """The same fields with the same values; new ones are passed over by every reader."""
    assert contradicted(FROZEN, agent_files.reported()) == []
    more = json.loads(json.dumps(FROZEN))
    for one in more["device"]["spec"]["devices"]:
        one["later"] = {"field": 1}
    assert [one.allocation for one in placed(more).pods] == [
        one.allocation for one in placed(FROZEN).pods
    ]

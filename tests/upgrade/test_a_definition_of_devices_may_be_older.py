"""An engine and agents newer than the cluster's definition of Devices: what that does not name the API server drops.

The chart brings a definition that keeps every field, and changes it with the programs. Where Koordinator has installed its own
(`crds.devices=false`) that one stays: the oldest knew no topology, virtual functions, labels or conditions.
"""

import json
from pathlib import Path
from typing import Any

from freeze import EXAMPLES, books, read

from partage.model.reason import ReasonCode
from partage.sim.offline import Outcome, schedule
from partage.wire.cluster import assemble
from partage.wire.yaml_values import yaml_values

KEPT = {"type", "id", "minor", "health", "resources"}
FROZEN = Path(__file__).parent / "0.1.0"


def scheduled(values: list[dict[str, Any]]) -> Outcome:
    """What becomes of the pods where Devices have only what the oldest definition keeps."""
    objects = [value for value in values if value["kind"] == "Device"]
    assert objects
    for one in objects:
        entries = one["spec"]["devices"]
        one["spec"]["devices"] = [{k: v for k, v in e.items() if k in KEPT} for e in entries]
    return schedule(assemble([read(values)]))


def frozen(name: str) -> dict[str, Any]:
    """A cluster as 0.1.0 left it."""
    found: dict[str, Any] = json.loads((FROZEN / f"{name}.json").read_text())
    return found


def test_only_pods_wait_that_ask_for_what_it_does_not_keep() -> None:
    """They say so; shares and whole cards are placed as before."""
    texts = [path.read_bytes() for path in sorted((EXAMPLES / "koordinator").glob("*.yaml"))]

    outcome = scheduled([value for text in texts for value in yaml_values(text) if value])

    waiting = {one.pod.pod.name: one.refusal.code for one in outcome.waiting if one.refusal}
    assert waiting == {
        "gpu-with-rdma": ReasonCode.JOINT_ALLOCATION,
        "two-cards": ReasonCode.TOPOLOGY_SCOPE,
    }
    assert len(outcome.pods) > 2 * len(waiting)


def test_running_pods_count_as_before() -> None:
    """Their records name cards, which every definition keeps."""
    for name in ("metax", "mixed"):
        stored = frozen(name)
        outcome = scheduled(stored["documents"])
        assert not outcome.ledger.suspicions()
        assert books(outcome) == stored["books"]


def test_a_record_of_a_virtual_function_that_is_not_told_any_more_closes_its_cards() -> None:
    """Every record that cannot be checked does so: the definition must not go back under such pods."""
    outcome = scheduled(frozen("koordinator")["documents"])

    (suspicion,) = outcome.ledger.suspicions().values()
    assert suspicion.node == "host05"
    assert "no virtual function" in suspicion.message

"""An annotation of the node closes it to new pods with devices, and says so with numbers."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from manifests import Manifest, card, cluster, container, device, node, pod

from partage.model.node import Node
from partage.model.reason import ReasonCode
from partage.scheduler.events import NodeSeen
from partage.sim.offline import schedule
from partage.vendors import names
from partage.wire.journal import Header, Line, encode_entry, header_line, read_lines
from partage.wire.silence import silence, silence_text

MORNING = datetime(2026, 11, 22, 8, 0, tzinfo=UTC)
SILENT = {names.AGENT_SILENT: silence_text(MORNING, 60)}


def _node(annotations: dict[str, str]) -> Manifest:
    made = node()
    made["metadata"]["annotations"] = annotations
    return made


def _read(annotations: dict[str, str]) -> Node:
    (found,) = cluster(device("n1", card(0)), _node(annotations)).nodes
    return found


def test_a_node_is_open_until_it_says_otherwise() -> None:
    """Other annotations do not matter, nor does the same one on a Device object."""
    assert silence({}) is None
    assert not _read({"example.com/agent-silent": "yes"}).shut

    (found,) = cluster(device("n1", card(0), meta={"annotations": SILENT}), node()).nodes

    assert not found.shut


def test_the_moment_and_the_limit_are_told() -> None:
    """The sentence stays the same while the agent stays away."""
    (verdict,) = _read(SILENT).verdicts

    assert _read(SILENT).shut
    assert verdict.code is ReasonCode.AGENT_SILENT
    assert verdict.message == (
        "the node's agent has not renewed its Lease since 2026-11-22T08:00:00Z; the limit is 60 s"
    )


def test_the_moment_is_written_in_one_zone() -> None:
    """The writer may be in any time zone."""
    moment = MORNING.astimezone(timezone(timedelta(hours=8)))

    assert silence_text(moment, 90.5) == "2026-11-22T08:00:00Z 90.5"


def test_a_record_keeps_it() -> None:
    """A replay decides in the same way."""
    seen = NodeSeen(_read(SILENT))
    lines = [header_line(Header("one")), encode_entry("one/1", seen)]

    _, line = read_lines("r.jsonl", lines)

    assert isinstance(line, Line)
    assert line.entry == seen


@pytest.mark.parametrize("text", ["", "yes", "2026-11-22T08:00:00Z", "today 60", "60 60 60"])
def test_what_cannot_be_read_closes_the_node_too(text: str) -> None:
    """It is shown as it is."""
    (verdict,) = _read({names.AGENT_SILENT: text}).verdicts

    assert verdict.code is ReasonCode.AGENT_SILENT
    assert repr(text) in verdict.message


def test_pods_with_devices_wait_and_others_do_not() -> None:
    """The offline run shows it, which has the engine of the live one."""
    asks = container("main", {"koordinator.sh/gpu": "100"})
    found = schedule(
        cluster(device("n1", card(0)), _node(SILENT), pod("gpu", asks), pod("cpu", container("m")))
    )
    gpu, cpu = found.pods

    assert cpu.refusal is None
    assert gpu.refusal is not None
    assert gpu.refusal.code is ReasonCode.AGENT_SILENT
    assert gpu.refusal.nodes["n1"].message in gpu.refusal.message

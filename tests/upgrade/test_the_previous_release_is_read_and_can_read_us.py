"""Upgrades, roll-backs, and both releases side by side: records on pods are all they share.

What a release wrote is frozen in a folder of its name (`freeze.py`): whole clusters with their
records and books. What a release reads of our record is frozen in `record-v1.json`: field by
field, and nothing else, for its reader refuses what it does not know.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from freeze import books, frozen, read
from hypothesis import given
from hypothesis import strategies as st

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.mig import MigSlice
from partage.model.request import Phase, Scope
from partage.sim.offline import schedule
from partage.vendors import names
from partage.wire.cluster import assemble
from partage.wire.record import VERSION, decode, encode

HERE = Path(__file__).parent
RELEASES = sorted(path for path in HERE.iterdir() if path.is_dir() and path.name[0].isdigit())
CLUSTERS = [path for release in RELEASES for path in sorted(release.glob("*.json"))]
FORMAT = json.loads((HERE / "record-v1.json").read_text())
EXAMPLES = HERE.parents[1] / "examples"
IDS = [f"{path.parent.name}-{path.stem}" for path in CLUSTERS]

NATURAL = st.integers(0, 2**50)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
GRANTS = st.builds(
    Grant,
    container=st.sampled_from(["a", "b"]),
    type=st.sampled_from(DeviceType),
    minor=st.integers(0, 63),
    uuid=TEXT,
    core_milli=NATURAL,
    memory_bytes=NATURAL,
    mode=st.sampled_from(GrantMode),
    phase=st.sampled_from(Phase),
    protocol=TEXT,
    extras=st.dictionaries(TEXT, NATURAL, max_size=3).map(lambda d: tuple(sorted(d.items()))),
    exclusive=st.booleans(),
    sharers=st.none() | NATURAL,
    mig=st.none() | st.builds(MigSlice, TEXT, st.integers(0, 8), st.integers(1, 8)),
    function=st.none() | st.tuples(st.integers(0, 64), TEXT),
    template=TEXT,
    fence=st.none() | st.sampled_from(Scope),
    slots=st.integers(0, 100),
)


def is_of(kind: Any, value: Any) -> bool:
    """Whether a value is what the frozen format says."""
    match kind:
        case "natural":
            return type(value) is int and value >= 0
        case "integer":
            return type(value) is int
        case "text":
            return isinstance(value, str)
        case "flag":
            return isinstance(value, bool)
        case "list":
            return isinstance(value, list)
        case "naturals":
            return isinstance(value, dict) and all(is_of("natural", v) for v in value.values())
        case list():
            return value in kind
        case _:
            return (
                isinstance(value, dict)
                and set(value) == set(kind)
                and all(is_of(one, value[key]) for key, one in kind.items())
            )


def refused(text: str) -> str:
    """Why a reader of the frozen format refuses a record; empty when it takes it."""
    record = json.loads(text)
    if not is_of(FORMAT["document"], record) or record["v"] != 1:
        return "document"
    for container in record["containers"]:
        if not is_of(FORMAT["container"], container):
            return "container"
        for device in container["devices"]:
            needed, more = FORMAT["device"], FORMAT["optional"]
            if not is_of(needed, {key: device[key] for key in device if key in needed}):
                return "device"
            for key in set(device) - set(needed):
                if key not in more or not is_of(more[key], device[key]):
                    return key
    return ""


def test_there_is_a_release_to_compare_with() -> None:
    """The tests below look at something: every folder of examples, of one release at least."""
    assert RELEASES
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert {path.stem for path in CLUSTERS} <= folders
    assert len(CLUSTERS) >= 5


@pytest.mark.parametrize("path", CLUSTERS, ids=IDS)
def test_a_cluster_of_the_release_is_taken_over_to_the_last_byte(path: Path) -> None:
    """The books are those that the release itself had; nothing is in doubt, nothing waits."""
    stored = json.loads(path.read_text())

    outcome = schedule(assemble([read(stored["documents"])]))

    assert not outcome.waiting
    assert not outcome.ledger.suspicions()
    assert books(outcome) == stored["books"]
    ours = [one for one in outcome.pods if one.pod.pod.record is not None]
    assert any(one.pod.pod.record.source == "partage" for one in ours if one.pod.pod.record)


@pytest.mark.parametrize("path", CLUSTERS, ids=IDS)
def test_what_is_written_now_can_be_read_by_the_release(path: Path) -> None:
    """Each new record of the same pods, by the reader as it was frozen."""
    made = frozen(EXAMPLES / path.stem)

    records = [
        text
        for one in made["documents"]
        if (text := one["metadata"].get("annotations", {}).get(names.ALLOCATION))
    ]

    assert records
    assert {refused(text) for text in records} == {""}


@given(st.lists(GRANTS, max_size=5))
def test_any_record_keeps_the_frozen_format(grants: list[Grant]) -> None:
    """For any grant no field is new, none is missing, none means something else."""
    text = encode(Allocation("uid", "ns", "pod", "node", tuple(grants)))

    assert VERSION == 1
    assert refused(text) == ""


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"colour": "red"}, "colour"),
        ({"milli": -1}, "device"),
        ({"mode": "other"}, "device"),
        ({"slots": "1"}, "slots"),
    ],
)
def test_the_frozen_reader_is_as_strict_as_the_release(change: dict[str, Any], where: str) -> None:
    """What it refuses the real one refuses too, so that it stands for it."""
    grant = Grant("main", DeviceType.GPU, 0, "GPU-0", 500, 2**30, GrantMode.SHARE)
    record = json.loads(encode(Allocation("uid", "ns", "pod", "node", (grant,))))
    record["containers"][0]["devices"][0].update(change)
    text = json.dumps(record)

    assert refused(text) == where
    assert decode(text, "uid", "node").problem

"""Partage's record says exactly what was granted, or says why it cannot be trusted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.allocation import Allocation, Grant, GrantMode, charges_of
from partage.model.device import DeviceType
from partage.model.mig import MigSlice
from partage.model.request import Phase, Scope
from partage.wire.record import decode, encode

NATURAL = st.integers(0, 2**50)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
GRANTS = st.builds(
    Grant,
    container=st.sampled_from(["a", "b", "c"]),
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
ALLOCATIONS = st.lists(GRANTS, max_size=6).map(
    lambda grants: Allocation("uid", "ns", "pod", "node", tuple(grants))
)
GRANT = Grant("main", DeviceType.GPU, 0, "GPU-0", 500, 2**30, GrantMode.SHARE, protocol="hami")
RECORD = json.loads(encode(Allocation("uid", "ns", "pod", "node", (GRANT,))))


@given(ALLOCATIONS)
def test_every_grant_comes_back(allocation: Allocation) -> None:
    """Grants return complete, a container's together; a second round changes nothing."""
    record = decode(encode(allocation), "uid", "node")

    assert record.problem == ""
    assert record.source == "partage"
    assert sorted(record.grants, key=repr) == sorted(allocation.grants, key=repr)
    again = Allocation("uid", "ns", "pod", "node", record.grants)
    assert encode(again) == encode(allocation)
    assert decode(encode(again), "uid", "node") == record


@given(ALLOCATIONS)
def test_charges_follow_from_the_record(allocation: Allocation) -> None:
    """The books can be rebuilt from the record alone."""
    record = decode(encode(allocation), "uid", "node")
    amounts = [
        (c.type, c.minor, c.uuid, c.core_milli, c.memory_bytes, c.slots, c.extras)
        for c in allocation.charges
    ]

    rebuilt = charges_of(record.grants)

    assert [
        (c.type, c.minor, c.uuid, c.core_milli, c.memory_bytes, c.slots, c.extras) for c in rebuilt
    ] == amounts


def test_the_record_is_compact() -> None:
    """What has its usual value is left out; this text is what other readers rely on."""
    assert encode(Allocation("u", "ns", "p", "n", (GRANT,))) == (
        '{"v":1,"uid":"u","node":"n","containers":[{"name":"main","phase":"main","devices":['
        '{"type":"gpu","minor":0,"uuid":"GPU-0","milli":500,"bytes":1073741824,"mode":"share",'
        '"protocol":"hami"}]}]}'
    )


def _device(**changes: object) -> str:
    document = json.loads(json.dumps(RECORD))
    document["containers"][0]["devices"][0].update(changes)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "cannot be read", id="empty"),
        pytest.param("[]", "cannot be read: expected object", id="array"),
        pytest.param("{}", "missing required field v", id="no version"),
        pytest.param(
            '{"v":2,"what":1}', "is of version 2, this program reads up to 1", id="newer"
        ),
        pytest.param('{"v":0}', "is of version 0", id="older"),
        pytest.param('{"v":1}', "missing required field uid", id="cut off"),
        pytest.param(
            json.dumps({**RECORD, "uid": "x"}), "was written for pod 'x', not 'uid'", id="uid"
        ),
        pytest.param(
            json.dumps({**RECORD, "node": "x"}), "was written for node 'x', not 'node'", id="node"
        ),
        pytest.param(json.dumps({**RECORD, "more": 1}), "unknown field more", id="unknown field"),
        pytest.param(_device(milli=-1), "field containers[0].devices[0].milli", id="negative"),
        pytest.param(_device(bytes=2**63), "field containers[0].devices[0].bytes", id="huge"),
        pytest.param(_device(minor=1.5), "minor", id="fraction"),
        pytest.param(_device(type="npu"), "type", id="type"),
        pytest.param(_device(mode="half"), "mode", id="mode"),
        pytest.param(_device(fence=9), "fence", id="fence"),
        pytest.param('{"x":' + "[" * 100_000, "unknown field x", id="deep"),
    ],
)
def test_an_untrusted_record_says_why(text: str, problem: str) -> None:
    """The problem names the annotation; no grant is believed."""
    record = decode(text, "uid", "node")

    assert record.problem.startswith("annotation partage.io/allocation ")
    assert problem in record.problem
    assert record.grants == ()


@given(
    st.text()
    | st.binary().map(lambda b: b.decode("latin-1"))
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["v", "uid", "node", "containers", "devices", "name"]), inner
            )
        ),
    ).map(json.dumps)
)
def test_no_text_is_an_error(text: str) -> None:
    """Whatever an annotation holds, a record comes out."""
    record = decode(text, "uid", "node")

    assert record.problem or record.grants == ()

"""The watch decoder alone: bytes in, events out. No socket, no task."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import Pod

from partage.kube.errors import ProtocolError
from partage.kube.frames import (
    Added,
    Bookmark,
    Deleted,
    Failed,
    Frame,
    LineSplitter,
    Malformed,
    Modified,
    WatchDecoder,
)


def line(kind: str, name: str = "a", version: str = "1", **extra: Any) -> bytes:
    """One line of a watch."""
    item = {"metadata": {"name": name, "resourceVersion": version}, **extra}
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def test_each_kind_of_event_is_told_apart() -> None:
    """Five kinds, in order, objects in the caller's type."""
    status = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    stream = (
        line("ADDED")
        + line("MODIFIED", version="2")
        + line("DELETED", version="3")
        + line("BOOKMARK", version="9")
        + json.dumps(status).encode()
        + b"\n"
    )

    added, modified, deleted, bookmark, failed = WatchDecoder(Pod).feed(stream)

    assert isinstance(added, Added)
    assert added.object.metadata.name == "a"
    assert isinstance(modified, Modified)
    assert isinstance(deleted, Deleted)
    assert isinstance(bookmark, Bookmark)
    assert bookmark.resource_version == "9"
    assert isinstance(failed, Failed)
    assert failed.object.code == 410


def test_the_order_of_the_fields_does_not_matter() -> None:
    """Some servers write the object before the type."""
    data = b'{"object": {"metadata": {"name": "x"}}, "type": "ADDED"}\n'

    (frame,) = WatchDecoder(Pod).feed(data)

    assert isinstance(frame, Added)


def test_an_object_of_another_type_is_set_aside() -> None:
    """The stream goes on; the object's name is known."""
    decoder = WatchDecoder(Pod)

    odd, gone, good = decoder.feed(
        line("MODIFIED", "odd", "5", spec={"priority": "high"})
        + line("DELETED", "odd", "6", spec=7)
        + line("ADDED", "good")
    )

    assert isinstance(odd, Malformed)
    assert (odd.object.meta.name, odd.object.meta.resource_version) == ("odd", "5")
    assert "$.object.spec.priority" in odd.object.problem
    assert not odd.deleted
    assert isinstance(gone, Malformed)
    assert gone.deleted
    assert isinstance(good, Added)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"not json\n", id="not-json"),
        pytest.param(b"\xff\xfe\n", id="not-text"),
        pytest.param(b"[]\n", id="not-an-object"),
        pytest.param(b'{"type": "ADDED"}\n', id="no-object"),
        pytest.param(line("RENAMED"), id="unknown-kind"),
        pytest.param(b'{"type": "ADDED", "object": {}}\n', id="no-metadata"),
        pytest.param(b'{"type": "BOOKMARK", "object": {}}\n', id="empty-bookmark"),
        pytest.param(b'{"type":"ADDED","object":' + b"[" * 50_000 + b"\n", id="too-deep"),
        pytest.param(line("ADDED")[:-1] + line("ADDED"), id="two-on-a-line"),
    ],
)
def test_what_is_no_event_breaks_the_protocol(data: bytes) -> None:
    """Nothing after it can be trusted."""
    with pytest.raises(ProtocolError, match="not a watch event"):
        WatchDecoder(Pod).feed(data)


@pytest.mark.parametrize(
    "pieces", [[b"x" * 11], [b"x" * 6, b"x" * 6], [b"x" * 11 + b"\n"]], ids=str
)
def test_a_line_without_end_is_refused(pieces: list[bytes]) -> None:
    """A server gone mad must not fill our memory."""
    decoder = WatchDecoder(Pod, longest_line=10)

    for piece in pieces[:-1]:
        decoder.feed(piece)

    with pytest.raises(ProtocolError, match="longer than 10 bytes"):
        decoder.feed(pieces[-1])


def test_blank_lines_are_nothing() -> None:
    """Keep-alives of some gateways."""
    assert WatchDecoder(Pod).feed(b"\n \r\n\n") == []


def test_half_a_line_is_held() -> None:
    """How much is waiting can be seen."""
    lines = LineSplitter()

    assert lines.feed(b"abc") == []
    assert lines._held == 3
    assert lines.feed(b"d\ne") == [b"abcd"]
    assert lines._held == 1


@given(data=st.binary(max_size=200), cuts=st.lists(st.integers(0, 200), max_size=8))
def test_lines_do_not_depend_on_how_the_network_cuts(data: bytes, cuts: list[int]) -> None:
    """Any cutting gives the lines of the whole."""
    expected = [part for part in data.split(b"\n")[:-1] if part and not part.isspace()]
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    splitter = LineSplitter()

    found = [
        part for start, end in itertools.pairwise(edges) for part in splitter.feed(data[start:end])
    ]

    assert found == expected
    assert splitter._held == len(data.rpartition(b"\n")[2])


KINDS = st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK"])
EVENTS = st.lists(
    st.tuples(KINDS, st.text("ab\né\x00", max_size=3), st.integers(0, 99)), max_size=6
)


@given(events=EVENTS, size=st.integers(1, 64))
def test_events_survive_any_cutting(events: list[tuple[str, str, int]], size: int) -> None:
    """Text with line ends and multi-byte characters included."""
    stream = b"".join(line(kind, name, str(version)) for kind, name, version in events)
    decoder = WatchDecoder(Pod)

    found: list[Frame[Pod]] = []
    for start in range(0, len(stream), size):
        found += decoder.feed(stream[start : start + size])

    assert found == WatchDecoder(Pod).feed(stream)
    assert len(found) == len(events)


@given(data=st.binary(max_size=300))
def test_noise_is_refused_or_ignored(data: bytes) -> None:
    """Whatever comes, only a ProtocolError may leave."""
    try:
        frames = WatchDecoder(Pod).feed(data)
    except ProtocolError:
        return
    assert frames == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "object", "metadata", "name", "spec"]), inner)
    ),
    max_leaves=12,
)


@given(value=JSON, kind=st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]))
def test_any_document_is_an_event_or_a_broken_protocol(value: Any, kind: str) -> None:
    """Structured noise under a known kind."""
    data = json.dumps({"type": kind, "object": value}).encode() + b"\n"
    try:
        (frame,) = WatchDecoder(Pod).feed(data)
    except ProtocolError:
        return
    assert isinstance(frame, Added | Modified | Deleted | Bookmark | Failed | Malformed)

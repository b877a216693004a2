"""Frames, ttrpc messages and protocol buffers: any split, any garbage, and the runtime's own limit."""

import contextlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.nri_runtime import SynchronizeRequest
from partage.agent.nri import messages
from partage.agent.nri.messages import (
    Adjustment,
    Container,
    ContainerRequest,
    CreateContainerResponse,
    Device,
    Hook,
    Hooks,
    LinuxAdjustment,
    Mount,
    PodSandbox,
    Request,
    StateChange,
    Variable,
    Wrapped,
)
from partage.agent.nri.session import (
    Answered,
    Called,
    FrameReader,
    Kind,
    Session,
    TtrpcMessage,
    TtrpcReader,
    framed,
)
from partage.agent.protobuf import text_of
from partage.wire.protobuf import Malformed

WORDS = st.text(max_size=20)
MAPS = st.dictionaries(WORDS, WORDS, max_size=4)
SIGNED = st.integers(-(2**63), 2**63 - 1)
MOUNTS = st.builds(Mount, WORDS, WORDS, WORDS, st.lists(WORDS, max_size=3).map(tuple))
WRAPPED = st.none() | st.builds(Wrapped, st.integers(0, 2**64 - 1))
DEVICES = st.builds(Device, WORDS, WORDS, SIGNED, SIGNED, WRAPPED, WRAPPED)
LISTED = st.lists(WORDS, max_size=3).map(tuple)
HOOKS = st.lists(st.builds(Hook, WORDS, LISTED, LISTED, WRAPPED), max_size=2).map(tuple)
ADJUSTMENTS = st.builds(
    Adjustment,
    MAPS,
    st.lists(MOUNTS, max_size=3).map(tuple),
    st.lists(st.builds(Variable, WORDS, WORDS), max_size=3).map(tuple),
    st.none() | st.builds(Hooks, HOOKS, HOOKS, HOOKS, HOOKS, HOOKS, HOOKS),
    st.none() | st.builds(LinuxAdjustment, st.lists(DEVICES, max_size=3).map(tuple)),
)
READ = (
    Container,
    ContainerRequest,
    messages.ConfigureRequest,
    messages.Response,
    PodSandbox,
    Request,
    StateChange,
    SynchronizeRequest,
)


@given(ADJUSTMENTS)
def test_what_is_written_is_read_again(adjustment: Adjustment) -> None:
    """Encoding and decoding give the same message."""
    response = CreateContainerResponse(adjustment)

    assert CreateContainerResponse.decode(response.encode()) == response


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(Variable("A", "b"), b"\x0a\x01A\x12\x01b", id="texts"),
        pytest.param(Variable(), b"", id="defaults are left out"),
        pytest.param(Device(major=195), b"\x18\xc3\x01", id="varint of two bytes"),
        pytest.param(Device(minor=-1), b"\x20" + b"\xff" * 9 + b"\x01", id="negative"),
        pytest.param(Device(file_mode=Wrapped()), b"\x2a\x00", id="an empty message is there"),
        pytest.param(
            PodSandbox(labels={"hami.io/vgpu-node": "b"}),
            b"\x2a\x16\x0a\x11hami.io/vgpu-node\x12\x01b",
            id="map",
        ),
        pytest.param(SynchronizeRequest(more=True), b"\x18\x01", id="bool"),
    ],
)
def test_bytes_are_those_of_protocol_buffers(message: object, expected: bytes) -> None:
    """Known messages give the published encoding."""
    assert message.encode() == expected  # type: ignore[attr-defined]
    assert type(message).decode(expected) == message  # type: ignore[attr-defined]


def test_fields_that_are_not_known_are_skipped() -> None:
    """A newer runtime may say more: all wire types in use are passed over."""
    more = b"\xa8\x1f\x05" + b"\xa9\x1f" + b"\0" * 8 + b"\xaa\x1f\x02hi" + b"\xad\x1f" + b"\0" * 4

    assert Variable.decode(more + b"\x0a\x01A") == Variable("A")


def test_text_that_is_not_utf8_comes_back_as_it_was() -> None:
    """An environment may hold any bytes; they stop nothing and are not changed."""
    data = b"\x42\x05X=\xff\xfe!"

    assert Container.decode(data).encode() == data


def test_an_identity_that_is_read_alone_is_that_of_the_whole_message() -> None:
    """A container is held by the one and forgotten by the other."""
    data = Container("id\udcff").encode()

    assert text_of(data, 1) == Container.decode(data).id


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"\x0a\x05ab", "has 2 of 5 bytes", id="cut off"),
        pytest.param(b"\x08", "cut off", id="no value"),
        pytest.param(
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "ten bytes", id="endless"
        ),
        pytest.param(b"\x08\x01", "wire type 0, not 2", id="another wire type"),
        pytest.param(b"\x0b", "wire type 3", id="groups"),
        pytest.param(b"\x02\x00", "no number", id="field 0"),
    ],
)
def test_a_broken_message_says_what_is_wrong(data: bytes, why: str) -> None:
    """The error names the message and the rule."""
    with pytest.raises(Malformed, match=rf"PodSandbox: .*{why}"):
        PodSandbox.decode(data)


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.__name__)
@given(data=st.binary(max_size=200))
def test_garbage_is_an_error_and_never_a_crash(kind: type[PodSandbox], data: bytes) -> None:
    """Any bytes are a message or `Malformed`."""
    with contextlib.suppress(Malformed):
        assert isinstance(kind.decode(data), kind)


def _split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=9000)), max_size=4),
    st.lists(st.integers(0, 40_000), max_size=6),
)
def test_frames_and_messages_survive_any_split(
    sent: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    """However bytes arrive, the same messages come out, and no frame is larger than 4096 bytes."""
    told = [
        (connection, TtrpcMessage(2 * number + 1, Kind.REQUEST, payload))
        for number, (connection, payload) in enumerate(sent)
    ]
    data = b"".join(framed(connection, message.encode()) for connection, message in told)
    frames, readers = FrameReader(), {1: TtrpcReader(), 2: TtrpcReader()}
    found: list[tuple[int, TtrpcMessage]] = []

    for piece in _split(data, cuts):
        for connection, payload in frames.feed(piece):
            assert len(payload) <= 4096
            found += [(connection, one) for one in readers[connection].feed(payload)]

    assert found == told


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_a_session_takes_any_bytes(pieces: list[bytes]) -> None:
    """Garbage on the socket is `Malformed`, or nothing yet."""
    session = Session()
    with contextlib.suppress(Malformed):
        for piece in pieces:
            assert list(session.receive(piece)) == []


@given(st.binary(max_size=64), st.sampled_from([1, 2]), st.integers(0, 5))
def test_a_session_takes_any_message(payload: bytes, connection: int, kind: int) -> None:
    """A well-framed message with any contents is a call, an answer or `Malformed`."""
    session = Session()
    session.call("RegisterPlugin", Variable())
    head = struct.pack(">IIBB", len(payload), 1, kind, 0)
    try:
        events = list(session.receive(framed(connection, head + payload)))
    except Malformed:
        return
    assert all(isinstance(event, (Called, Answered)) for event in events)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(struct.pack(">II", 3, 1) + b"x", "connection 3", id="a third connection"),
        pytest.param(struct.pack(">II", 1, 1 << 31), "frame of", id="huge frame"),
        pytest.param(framed(1, struct.pack(">IIBB", 1 << 30, 1, 2, 0)), "message of", id="huge"),
        pytest.param(framed(1, struct.pack(">IIBB", 0, 1, 9, 0)), "kind 9", id="kind"),
        pytest.param(
            framed(1, struct.pack(">IIBB", 0, 1, 2, 0)), "calls", id="answer without a call"
        ),
        pytest.param(framed(2, struct.pack(">IIBB", 0, 7, 2, 0)), "stream 7", id="not asked"),
    ],
)
def test_a_broken_connection_says_what_is_wrong(data: bytes, why: str) -> None:
    """The error names the rule."""
    with pytest.raises(Malformed, match=why):
        list(Session().receive(data))

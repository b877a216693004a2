"""A pod's trace follows from its annotation or its UID, in the same way for every program."""

import random
import uuid

import pytest

from partage.tracing.context import TraceContext, read_traceparent, trace_of
from partage.vendors import names

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True)]
)
def test_a_traceparent_is_read(flags: str, sampled: bool) -> None:  # noqa: FBT001 # a case
    """Ids and the one flag that version 00 knows."""
    assert read_traceparent(f"00-{TRACE}-{SPAN}-{flags}") == TraceContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "0 characters", id="empty"),
        pytest.param(f"00-{TRACE}-{SPAN}-01 ", "56 characters", id="space"),
        pytest.param("x" * 10**6, "1000000 characters", id="long"),
        pytest.param(f"01-{TRACE}-{SPAN}-01", "00-<32 digits>", id="version"),
        pytest.param(f"ff-{TRACE}-{SPAN}-01", "00-<32 digits>", id="forbidden version"),
        pytest.param(f"00-{TRACE.upper()}-{SPAN}-01", "lower case", id="upper case"),
        pytest.param(f"00_{TRACE}-{SPAN}-01", "00-<32 digits>", id="dashes"),
        pytest.param(f"00-{TRACE[:-1]}\n-{SPAN}-01", "hexadecimal", id="line"),
        pytest.param(f"00-{TRACE[:-1]}\u0661-{SPAN}-01", "hexadecimal", id="other digits"),
        pytest.param(f"00-{'0' * 32}-{SPAN}-01", "all 0", id="no trace"),
        pytest.param(f"00-{TRACE}-{'0' * 16}-01", "all 0", id="no span"),
    ],
)
def test_a_broken_traceparent_says_why(text: str, why: str) -> None:
    """It names nothing, and the pod's trace is that of its UID."""
    found = read_traceparent(text)
    assert isinstance(found, str)
    assert why in found

    trace = trace_of("u1", {names.TRACEPARENT: text})

    assert (trace.trace, trace.parent) == (trace_of("u1", {}).trace, None)
    assert trace.problem == found


def test_a_traceparent_is_written_as_it_is_read() -> None:
    """There and back."""
    for sampled in (False, True):
        one = TraceContext(TRACE, SPAN, sampled)

        assert read_traceparent(str(one)) == one


def test_pods_of_one_trace_are_scheduled_apart() -> None:
    """An author's trace may have many pods; each has a span of its own for its scheduling."""
    shared = {names.TRACEPARENT: f"00-{TRACE}-{SPAN}-01"}
    one, other = trace_of("u1", shared), trace_of("u2", shared)

    assert one.trace == other.trace == TRACE
    assert one.above == other.above == SPAN
    assert one.scheduling != other.scheduling
    assert trace_of("u1", dict(shared)) == one


def test_a_trace_by_uid_is_a_valid_one() -> None:
    """It can be written as a traceparent; scheduling stands at its top."""
    trace = trace_of("294cf56b-ed85-4ea4-bcb8-691f8801b653", {})

    assert isinstance(read_traceparent(f"00-{trace.trace}-{trace.scheduling}-01"), TraceContext)
    assert trace.above == trace.scheduling


def test_a_trace_by_uid_is_sampled_like_one_by_chance() -> None:
    """The lower half of a UUID has fixed bits; that of the id has none, or ratios would be wrong."""
    chance = random.Random(1)  # noqa: S311 # seeded
    uids = [str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(4000)]
    lower = [int(trace_of(uid, {}).trace[16:], 16) for uid in uids]

    for ratio in (0.1, 0.5, 0.9):
        share = sum(one < ratio * 2**64 for one in lower) / len(lower)
        assert abs(share - ratio) < 0.04

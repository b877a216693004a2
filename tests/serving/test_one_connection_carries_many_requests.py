"""HTTP/2: what is answered, what is refused, and when a connection ends.

The other end is the library's client; genuine callers are those of tests/cluster (kube-scheduler)
and, below, curl. Not covered: the library's own reading of frames, but that nothing it raises gets out.
"""

import asyncio
import logging
import shutil
import socket
import ssl
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("h2", reason="HTTP/2 needs the extra fast")

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from peer import Peer, routes
from test_a_service_is_guarded import Certificates

from partage.serving.access import Access
from partage.serving.exchange import request_head
from partage.serving.limits import Limits, read_body
from partage.serving.site import Site
from partage.serving.tls import HTTP2, protocols

CALM = int(ErrorCodes.ENHANCE_YOUR_CALM)
REFUSED = int(ErrorCodes.REFUSED_STREAM)


def _echo(body: bytes) -> tuple[int, bytes]:
    return 200, body or b"{}"


def _away(_body: bytes) -> tuple[int, bytes]:
    return 503, b"{}"


class Held:
    """A hot route whose answers wait to be let go."""

    def __init__(self) -> None:
        self.began = 0
        self.go = asyncio.Event()

    async def __call__(self, body: bytes) -> tuple[int, bytes]:
        """Answer with what was asked, once that may be."""
        self.began += 1
        await self.go.wait()
        return 200, body


async def _settled(peer: Peer, turns: int = 5) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
        peer.exchange()


# --- what is answered -----------------------------------------------------------------------


async def test_requests_are_answered_as_they_come_to_their_end() -> None:
    """A slow one holds up nobody who shares the connection."""
    held = Held()
    async with routes({b"/slow": held, b"/echo": _echo}) as hot:
        peer = Peer(hot)
        slow, quick = peer.ask("/slow", b"one"), peer.ask("/echo", b"two")

        answer = await peer.answer(quick)
        assert (answer.status, bytes(answer.body)) == (200, b"two")
        assert answer.headers == {b"content-type": b"application/json", b"content-length": b"3"}
        assert not peer.answers[slow].ended
        held.go.set()
        assert bytes((await peer.answer(slow)).body) == b"one"
        peer.gone()


@pytest.mark.parametrize("size", [0, 1, 2**17, 3 * 2**20, 2**20 * 10])
async def test_bodies_up_to_the_limit_come_without_waiting(size: int) -> None:
    """Again and again: what was read is given back to the windows."""
    async with routes({b"/count": lambda body: (200, b"%d" % len(body))}) as hot:
        peer = Peer(hot)
        for _ in range(5):
            answer = await peer.answer(peer.ask("/count", b"x" * size))
            assert bytes(answer.body) == b"%d" % size
        peer.gone()


async def test_an_answer_waits_for_a_caller_that_reads_slowly() -> None:
    """Nothing is sent beyond the windows, and all of it in the end."""
    big = bytes(range(256)) * 4096
    async with routes({b"/big": lambda _: (200, big)}) as hot:
        peer = Peer(hot, takes=False)
        number = peer.ask("/big")
        await _settled(peer)
        got = len(peer.answers[number].body)
        assert 0 < got < len(big)
        while not peer.answers[number].ended:
            peer.http.increment_flow_control_window(50_000)
            peer.http.increment_flow_control_window(50_000, number)
            await _settled(peer)
        assert bytes(peer.answers[number].body) == big
        peer.gone()


async def test_nothing_is_written_while_the_transport_is_full() -> None:
    """Answers wait until it has room again."""
    async with routes({b"/echo": _echo}) as hot:
        peer = Peer(hot)
        peer.frames.pause_writing()
        number = peer.ask("/echo", b"data")
        await _settled(peer)
        assert not peer.answers[number].body
        peer.frames.resume_writing()
        assert bytes((await peer.answer(number)).body) == b"data"
        peer.gone()


async def _page(request: web.Request) -> web.Response:
    body = await read_body(request, Limits())
    said = f"{request.method} {request.path_qs} {request.headers.get('X-One')} {len(body)}"
    said += f" {request.host} {request.cookies.get('a')}{request.cookies.get('b')}"
    return web.Response(text=said, headers={"X-Two": "2"})


async def _pieces(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for number in range(300):
        await answer.write(b"%04d" % number * 4096)
    return answer


async def _broken(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write(b"begun")
    raise ConnectionAbortedError("of this test")


async def test_every_other_route_is_served_by_the_application() -> None:
    """With its headers, its length or none, its errors, and no header of a connection."""
    pages = (web.route("*", "/page", _page), web.get("/pieces", _pieces))
    async with routes({b"/hot": _echo}, *pages) as hot:
        peer = Peer(hot)
        cookies = [(b"x-one", b"1"), (b"cookie", b"a=1"), (b"cookie", b"b=2")]
        page = peer.ask("/page?x=%20y", b"12345", headers=cookies, method="PUT")
        head = peer.ask("/page", method="HEAD")
        none = peer.ask("/none", method="GET")
        other = peer.ask("/hot", method="GET")
        pieces = peer.ask("/pieces", method="GET")

        answer = await peer.answer(page)
        assert answer.body == b"PUT /page?x=%20y 1 5 localhost 12"
        assert answer.headers[b"x-two"] == b"2"
        assert b"connection" not in answer.headers
        answer = await peer.answer(head)
        assert (answer.status, answer.body) == (200, b"")
        assert (await peer.answer(none)).status == (await peer.answer(other)).status == 404
        answer = await peer.answer(pieces)
        assert bytes(answer.body) == b"".join(b"%04d" % number * 4096 for number in range(300))
        assert b"transfer-encoding" not in answer.headers
        assert hot.tally.requests == 0
        peer.gone()


async def test_an_application_does_not_run_ahead_of_its_caller() -> None:
    """What is not taken is not kept without bound."""
    made = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal made
        answer = web.StreamResponse()
        await answer.prepare(request)
        while made < 2**24:
            await answer.write(b"x" * 2**16)
            made += 2**16
        return answer

    async with routes({}, web.get("/endless", endless)) as hot:
        peer = Peer(hot, takes=False)
        number = peer.ask("/endless", method="GET")
        for _ in range(200):
            await _settled(peer)
        assert made < 2**20
        peer.http.reset_stream(number)
        peer.exchange()
        assert hot.tally.requests == 0
        peer.gone()


async def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    """As by HTTP/1.1, whose connection would close before the last chunk."""
    async with routes({}, web.get("/broken", _broken)) as hot:
        peer = Peer(hot)
        answer = await peer.answer(peer.ask("/broken", method="GET"))
        assert (bytes(answer.body), answer.ended) == (b"begun", False)
        assert answer.reset == int(ErrorCodes.INTERNAL_ERROR)
        peer.gone()


@pytest.mark.parametrize("path", ["/hot", "/page"])
async def test_who_waits_to_be_told_to_go_on_is_told(path: str) -> None:
    """`Expect: 100-continue`, and no more than that before the body is there."""
    async with routes({b"/hot": _echo}, web.post("/page", _page)) as hot:
        peer = Peer(hot)
        number = peer.ask(path, headers=[(b"expect", b"100-continue")], ends=False)
        assert peer.answers[number].told == [100]
        assert peer.answers[number].status == 0
        peer.body(number, b"x")
        assert (await peer.answer(number)).status == 200
        plain = peer.ask(path, b"x")
        assert (await peer.answer(plain)).told == []
        peer.gone()


async def test_a_body_that_is_packed_goes_to_the_application() -> None:
    """Hot routes take plain bodies only, as by HTTP/1.1."""

    async def unpacked(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async with routes({b"/hot": _echo}, web.post("/hot", unpacked)) as hot:
        peer = Peer(hot)
        packed = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcbH\xcd\xc9\xc9\x07\x00\x86\xa6\x106\x05\x00\x00\x00"
        number = peer.ask("/hot", packed, headers=[(b"content-encoding", b"gzip")])
        assert (await peer.answer(number)).body == b"hello"
        peer.gone()


@pytest.mark.parametrize("kind", ["now", "later"])
async def test_what_a_handler_does_not_catch_is_logged_and_answered(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller learns nothing of the inside, and the connection lives on."""

    def now(_body: bytes) -> tuple[int, bytes]:
        raise ValueError("secret")

    async def later(_body: bytes) -> tuple[int, bytes]:
        raise ValueError("secret")

    async with routes({b"/hot": now if kind == "now" else later, b"/echo": _echo}) as hot:
        peer = Peer(hot)
        answer = await peer.answer(peer.ask("/hot"))
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert (await peer.answer(peer.ask("/echo"))).status == 200
        peer.gone()
    assert "ValueError: secret" in caplog.text
    assert "POST /hot failed" in caplog.text


# --- what is refused ------------------------------------------------------------------------


async def test_hot_routes_need_what_the_others_need() -> None:
    """A certificate of the caller opens them for all requests of its connection."""
    async with routes({b"/hot": _echo}, access=Access(certificates=True)) as hot:
        with_one, without = Peer(hot, {"subject": ()}), Peer(hot)
        assert (await with_one.answer(with_one.ask("/hot", b"x"))).status == 200
        answer = await without.answer(without.ask("/hot", b"x"))
        assert (answer.status, answer.reset) == (401, None)
        # The answer is there before the body, which is borne with and forgotten.
        early = without.ask("/hot", b"x", ends=False)
        assert (await without.answer(early)).status == 401
        without.body(early, b"y" * 3000)
        assert (await without.answer(without.ask("/hot"))).status == 401
        assert without.answers[early].reset is None
        for peer in (with_one, without):
            peer.gone()


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("path", ["/hot", "/page"])
async def test_too_large_a_body_is_refused(path: str, *, announced: bool) -> None:
    """At once where it says so, else with the first byte too many; others are not touched."""
    limits = Limits(body=1000)
    async with routes({b"/hot": _echo}, web.post("/page", _page), limits=limits) as hot:
        peer = Peer(hot)
        told = [(b"content-length", b"1001")] if announced else []
        number = peer.ask(path, headers=told, ends=False)
        if not announced:
            peer.body(number, b"x" * 1000, ends=False)
            await _settled(peer)
            assert peer.answers[number].status == 0
            peer.body(number, b"x", ends=False)
        assert (await peer.answer(number)).status == 413
        # Who goes on sending all the same is stopped.
        peer.http.send_data(number, b"x" * (1000 if announced else 0))
        peer.exchange()
        assert (await peer.answer(peer.ask(path, b"x" * 1000))).status == 200
        peer.gone()


async def test_who_sends_on_after_the_answer_is_stopped() -> None:
    """An answered request may not be sent for ever."""
    limits = Limits(body=1000, patience=0.2)
    async with routes({b"/hot": _echo}, limits=limits, access=Access(certificates=True)) as hot:
        peer = Peer(hot)
        for late in (True, False):
            number = peer.ask("/hot", ends=False)
            assert (await peer.answer(number)).status == 401
            if late:
                await asyncio.sleep(0.5)
            else:
                peer.body(number, b"x" * 1001, ends=False)
            peer.exchange()
            assert peer.answers[number].reset == int(ErrorCodes.NO_ERROR)
        peer.gone()


async def test_bodies_that_are_not_whole_share_the_room_of_a_few() -> None:
    """However many requests a connection carries at a time."""
    async with routes({b"/hot": _echo}, limits=Limits(body=2**20)) as hot:
        peer = Peer(hot)
        for _ in range(4):
            peer.ask("/hot", b"x" * 2**19, ends=False)
        with pytest.raises(BlockingIOError):
            peer.ask("/hot", b"x" * 2**19, ends=False)
        peer.gone()


@pytest.mark.parametrize("path", ["/hot", "/page"])
async def test_connections_together_hold_no_more_than_their_port_may(path: str) -> None:
    """Who holds most of it loses it; a caller with little is served meanwhile."""
    limits = Limits(body=2**18, held=2**20)
    async with routes({b"/hot": _echo}, web.post("/page", _page), limits=limits) as hot:
        small = Peer(hot)
        waiting = small.ask("/hot", b"x" * 2**15, ends=False)
        many = [Peer(hot) for _ in range(20)]
        for peer in many:
            peer.ask(path, b"x" * 2**17, ends=False)
            await _settled(peer)

        closed = [peer for peer in many if peer.wire.closed]
        assert 12 <= len(closed) <= 14
        assert not small.wire.closed
        small.body(waiting, b"y")
        assert (await small.answer(waiting)).status == 200
        for peer in (small, *(one for one in many if one not in closed)):
            peer.gone()
        later = [Peer(hot) for _ in range(6)]
        for peer in later:
            peer.ask(path, b"x" * 2**17, ends=False)
            await _settled(peer)
            assert not peer.wire.closed
        for peer in later:
            peer.gone()


@pytest.mark.parametrize("cut", [1, 3, 8, 9, 4096])
async def test_a_frame_that_is_longer_than_allowed_is_not_waited_for(cut: int) -> None:
    """Its length is enough to close the connection, whatever pieces it comes in, also after other frames."""
    async with routes({b"/hot": _echo}) as hot:
        peer = Peer(hot)
        assert (await peer.answer(peer.ask("/hot", b"x" * 100_000))).status == 200
        frame = (2**17 + 1).to_bytes(3, "big") + bytes([0, 0, 0, 0, 0, 3]) + bytes(5000)
        sent = 0
        while sent < len(frame) and not peer.wire.closed:
            peer.frames.data_received(frame[sent : sent + cut])
            sent += cut
        assert peer.wire.closed
        assert sent < 9 + cut


@pytest.mark.parametrize(
    "path", ["/hot\r\nX: y", "/a b", "/a\x00b", "/\x7f"], ids=["lines", "blank", "nul", "delete"]
)
async def test_a_request_cannot_hide_another(path: str) -> None:
    """What the application reads as lines must be one request."""
    seen = []

    async def page(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response()

    async with routes({}, web.get("/{path:.*}", page)) as hot:
        peer = Peer(hot)
        peer.http.config.validate_outbound_headers = False
        number = peer.ask(path, method="GET")
        await _settled(peer)
        assert peer.answers[number].status == 400 or peer.goodbye is not None
        assert seen == []
        peer.gone()


@pytest.mark.parametrize(
    ("method", "path", "value"),
    [
        (b"GET /x HTTP/1.1\r\nX: y\r\n\r\nGET", b"/", b""),
        (b"", b"/", b""),
        (b"GET", b"", b""),
        (b"GET", b"/ HTTP/1.1", b""),
        (b"GET", b"/\x01", b""),
        (b"GET", b"/", b"a\r\nX: y"),
        (b"GET", b"/", b"a\x00"),
    ],
)
def test_what_would_be_read_as_more_is_not_passed_on(
    method: bytes, path: bytes, value: bytes
) -> None:
    """Even if the library let it through."""
    with pytest.raises(ValueError, match=r"line|method"):
        request_head(method, path, b"x", [(b"x", value)])
    assert request_head(b"GET", b"/", b"x", [(b"x", b"y")]) == b"GET / HTTP/1.1\r\nHost: x\r\nx: y"


async def test_a_request_must_come_in_time() -> None:
    """408 where it was begun; the connection goes where nothing was."""
    limits = Limits(patience=0.2, idle=0.4)
    async with routes({b"/hot": _echo}, limits=limits) as hot:
        slow, half, silent = Peer(hot), Peer(hot), Peer(hot)
        number = slow.ask("/hot", b"x", ends=False)
        half.frames.data_received(half.http.data_to_send() + b"\x00\x00\x05\x01")
        assert (await slow.answer(number)).status == 408
        await asyncio.sleep(0.5)
        assert half.wire.closed
        assert silent.wire.closed
        for peer in (slow, half, silent):
            peer.gone()


async def test_a_part_of_a_frame_is_waited_for_as_a_request_is() -> None:
    """Not for as long as a connection may be idle."""
    limits = Limits(patience=0.2, idle=30.0)
    async with routes({b"/hot": _echo}, limits=limits) as hot:
        part, idle = Peer(hot), Peer(hot)
        for peer in (part, idle):
            assert (await peer.answer(peer.ask("/hot"))).status == 200
        part.frames.data_received(b"\x00\x00\x05\x01")
        await asyncio.sleep(0.6)
        assert part.wire.closed
        assert not idle.wire.closed
        for peer in (part, idle):
            peer.gone()


async def test_an_idle_connection_is_told_and_closed() -> None:
    """Pings do not keep it."""
    limits = Limits(patience=0.2, idle=0.2)
    async with routes({b"/hot": _echo}, limits=limits) as hot:
        peer = Peer(hot)
        await peer.answer(peer.ask("/hot"))
        async with asyncio.timeout(240):
            while not peer.wire.closed:
                peer.http.ping(b"12345678")
                peer.exchange()
                await asyncio.sleep(0.02)
        peer.exchange()
        assert peer.goodbye == (0, 1)
        peer.gone()


async def test_a_caller_that_stops_reading_is_given_up() -> None:
    """An answer that nobody takes is not kept for ever."""
    limits = Limits(patience=0.1, idle=0.2)
    async with routes({b"/big": lambda _: (200, b"x" * 2**20)}, limits=limits) as hot:
        peer = Peer(hot, takes=False)
        answer = await peer.answer(peer.ask("/big"))
        assert answer.reset == int(ErrorCodes.CANCEL)
        assert hot.tally.requests == 0
        peer.gone()


async def test_an_application_may_take_its_time_between_two_parts() -> None:
    """Whoever streams is not hurried: what is waited for is not the caller."""

    async def slow(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for part in (b"one ", b"two ", b"three"):
            await asyncio.sleep(0.3)
            await answer.write(part)
        return answer

    limits = Limits(patience=0.1, idle=0.1)
    async with routes({}, web.get("/slow", slow), limits=limits) as hot:
        peer = Peer(hot)
        answer = await peer.answer(peer.ask("/slow", method="GET"))
        assert (answer.body, answer.ended) == (b"one two three", True)
        peer.gone()


async def test_no_more_connections_and_requests_than_allowed() -> None:
    """Of all connections together; what ends makes room."""
    held = Held()
    async with routes({b"/hot": held}, limits=Limits(connections=3)) as hot:
        first, second, third = (Peer(hot) for _ in range(3))
        asked = [(peer, peer.ask("/hot")) for peer in (first, second, third)]
        for peer, _ in asked:
            peer.exchange()
        late = Peer(hot)
        assert late.wire.aborted
        late.frames.data_received(late.http.data_to_send())  # what was on its way changes nothing
        number = second.ask("/hot")
        assert (await second.answer(number)).reset == REFUSED
        held.go.set()
        for peer, one in asked:
            assert (await peer.answer(one)).status == 200
        assert (await second.answer(second.ask("/hot"))).status == 200
        for peer in (first, second, third):
            peer.gone()
        assert [*hot.open] == []


# --- floods ---------------------------------------------------------------------------------


async def test_work_that_was_taken_back_counts_until_it_is_over() -> None:
    """Opening and resetting does not start more than a connection may have under way."""
    held = Held()
    async with routes({b"/hot": held}) as hot:
        peer = Peer(hot)
        for _ in range(300):
            number = peer.ask("/hot")
            await asyncio.sleep(0)
            if peer.answers[number].reset is None:
                peer.http.reset_stream(number)
                peer.exchange()
        assert held.began == 256
        held.go.set()
        await _settled(peer)
        assert (await peer.answer(peer.ask("/hot"))).status == 200
        peer.gone()


async def test_what_is_taken_back_at_once_is_not_begun() -> None:
    """In one read: request and reset."""
    held = Held()
    async with routes({b"/hot": held}) as hot:
        peer = Peer(hot)
        peer.exchange()
        number = peer.http.get_next_available_stream_id()
        head = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", b"x"),
            (b":path", b"/hot"),
        ]
        peer.http.send_headers(number, head, end_stream=True)
        peer.http.reset_stream(number)
        peer.exchange()
        await _settled(peer)
        assert held.began == 0
        assert not peer.wire.closed
        peer.gone()


async def test_resets_without_end_close_the_connection() -> None:
    """Answers make up for them."""
    async with routes({b"/hot": _echo}) as hot:
        peer = Peer(hot)
        for _ in range(1200):
            peer.http.reset_stream(peer.ask("/hot", b"x", ends=False))
            peer.exchange()
            await peer.answer(peer.ask("/hot"))
        for _ in range(600):
            if peer.wire.closed:
                break
            peer.http.reset_stream(peer.ask("/hot", b"x", ends=False))
            peer.exchange()
        assert peer.goodbye is not None
        assert peer.goodbye[0] == CALM
        peer.gone()


FLOODS: dict[str, Callable[[], Frame]] = {
    "pings": lambda: PingFrame(0, b"12345678"),
    "settings": lambda: SettingsFrame(0, {SettingCodes.INITIAL_WINDOW_SIZE: 70000}),
    "windows": lambda: WindowUpdateFrame(0, 1),
    "priorities": lambda: PriorityFrame(5, depends_on=3, stream_weight=7),
    "empty data": lambda: DataFrame(1, b""),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_frames_without_a_request_are_borne_with_up_to_a_bound(kind: str) -> None:
    """Each costs little; a thousand on end are no caller's need."""
    async with routes({b"/hot": _echo}) as hot:
        peer = Peer(hot)
        first = peer.ask("/hot", ends=False)
        assert first == 1
        sent = 0
        while not peer.wire.closed and sent < 3000:
            peer.frames.data_received(FLOODS[kind]().serialize() * 10)
            sent += 10
        assert 500 < sent < 2000
        peer._take(peer.http.receive_data(bytes(peer.wire.written)))
        assert peer.goodbye is not None
        assert peer.goodbye[0] == CALM
        peer.gone()


async def test_frames_between_requests_are_no_flood() -> None:
    """kube-scheduler looks after its connection all day."""
    async with routes({b"/hot": _echo}) as hot:
        peer = Peer(hot)
        for _ in range(30):
            for _ in range(100):
                peer.http.ping(b"12345678")
                peer.exchange()
            assert (await peer.answer(peer.ask("/hot"))).status == 200
        peer.gone()


async def test_a_head_has_a_limit() -> None:
    """Of its parts together, packed or not, and of the frames it comes in."""
    async with routes({b"/hot": _echo}, limits=Limits(head=4096)) as hot:
        large, packed, endless = Peer(hot), Peer(hot), Peer(hot)
        large.ask("/hot", headers=[(b"x", b"y" * 5000)])
        packed.ask("/hot", headers=[(b"x-%d" % n, b"") for n in range(200)])
        endless.exchange()
        endless.frames.data_received(HeadersFrame(1, b"").serialize())
        for _ in range(100):
            if not endless.wire.closed:
                endless.frames.data_received(ContinuationFrame(1, b"").serialize())
        for peer in (large, packed, endless):
            assert peer.wire.closed
            assert peer.goodbye is None or peer.goodbye[0] != 0
            peer.gone()
        good = Peer(hot)
        assert (await good.answer(good.ask("/hot", headers=[(b"x", b"y" * 3000)]))).status == 200
        good.gone()


# --- when a connection ends -----------------------------------------------------------------


async def test_who_does_not_serve_does_not_keep_its_callers() -> None:
    """503 is followed by GOAWAY: what is under way is answered, the next connection is elsewhere."""
    held = Held()
    async with routes({b"/slow": held, b"/away": _away}) as hot:
        peer = Peer(hot)
        peer.ask("/slow", b"x")
        away = peer.ask("/away")
        assert (await peer.answer(away)).status == 503
        assert peer.goodbye == (0, away)
        assert not peer.wire.closed
        # The library's client would not ask any more; one that does is refused, and asks elsewhere.
        late = HeadersFrame(
            away + 2, b"\x83\x87\x84\x41\x01x", flags=["END_HEADERS", "END_STREAM"]
        )
        peer.frames.data_received(late.serialize())
        assert RstStreamFrame(away + 2, int(ErrorCodes.REFUSED_STREAM)).serialize() in bytes(
            peer.wire.written
        )
        held.go.set()
        await asyncio.sleep(0.01)
        assert peer.wire.closed
        assert b"x" in bytes(peer.wire.written)
        peer.gone()


async def test_an_application_may_close_a_connection_too() -> None:
    """Where HTTP/1.1 would: its routes say so by themselves."""

    async def closing(_request: web.Request) -> web.Response:
        answer = web.Response(status=503, text="elsewhere")
        answer.force_close()
        return answer

    async def waiting(_request: web.Request) -> web.Response:
        return web.Response(status=503, text="not yet")

    async with routes({}, web.get("/closing", closing), web.get("/waiting", waiting)) as hot:
        peer = Peer(hot)
        assert (await peer.answer(peer.ask("/waiting", method="GET"))).status == 503
        assert peer.goodbye is None
        number = peer.ask("/closing", method="GET")
        assert (await peer.answer(number)).body == b"elsewhere"
        await _settled(peer)
        assert peer.goodbye == (0, number)
        assert peer.wire.closed
        peer.gone()


async def test_a_stopping_service_ends_what_it_began() -> None:
    """Requests that came get their answers; idle connections are closed at once."""
    held = Held()
    async with routes({b"/slow": held}) as hot:
        busy, idle = Peer(hot), Peer(hot)
        idle.exchange()
        number = busy.ask("/slow", b"done")
        busy.frames.finish()
        idle.frames.finish()
        assert idle.wire.closed
        assert not busy.wire.closed
        held.go.set()
        await asyncio.sleep(0.01)
        assert busy.wire.closed
        assert b"done" in bytes(busy.wire.written)
        assert number == 1
        for peer in (busy, idle):
            peer.gone()
            await peer.frames.closed


async def test_a_caller_that_leaves_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Its requests come to their end without it."""
    held = Held()
    async with routes({b"/slow": held}, web.get("/pieces", _pieces)) as hot:
        for leaves in (True, False):
            peer = Peer(hot, takes=False)
            peer.ask("/slow", b"x")
            peer.ask("/pieces", method="GET")
            await _settled(peer)
            if leaves:
                peer.frames.data_received(GoAwayFrame(0, 0).serialize())
                assert peer.wire.closed
            peer.gone()
        held.go.set()
        await asyncio.sleep(0.05)
        assert hot.tally.requests == 0
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


# --- nonsense -------------------------------------------------------------------------------


def _frames() -> st.SearchStrategy[bytes]:
    """Frames that may be anything, and some that make sense."""
    body = st.binary(max_size=40)
    any_frame = st.builds(
        lambda kind, flags, number, data: (
            len(data).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + data
        ),
        st.integers(0, 12), st.integers(0, 255), st.integers(0, 9) | st.integers(0, 2**32 - 1), body,
    )  # fmt: skip
    good = [
        HeadersFrame(1, b"\x83\x87\x44\x04/hot\x41\x01x", flags=["END_HEADERS"]),
        HeadersFrame(3, b"\x82\x87\x84\x41\x01x", flags=["END_HEADERS", "END_STREAM"]),
        DataFrame(1, b"{}", flags=["END_STREAM"]), RstStreamFrame(1, 8), RstStreamFrame(3, 8),
        PingFrame(0, b"12345678"), SettingsFrame(0, {4: 1}), SettingsFrame(0, {4: 2**31 - 1}),
        WindowUpdateFrame(0, 2**30), WindowUpdateFrame(3, 9), GoAwayFrame(0, 0),
    ]  # fmt: skip
    return any_frame | st.sampled_from([frame.serialize() for frame in good])


def _session() -> bytes:
    """What a caller sends that asks for several things, each in its own way."""
    http = H2Connection()
    http.initiate_connection()
    for number, (path, body) in enumerate([("/hot", b"{}" * 50), ("/", b""), ("/hot", b"x")]):
        stream = 2 * number + 1
        head = [(":method", "POST" if body else "GET"), (":scheme", "https"), (":path", path)]
        head += [(":authority", "localhost"), ("authorization", "Bearer a"), ("x-many", "y" * 20)]
        http.send_headers(stream, head, end_stream=not body)
        if body:
            http.send_data(stream, body, pad_length=3)
            http.end_stream(stream)
    http.ping(b"12345678")
    http.reset_stream(5)
    return http.data_to_send()


async def _endured(parts: list[bytes]) -> list[str]:
    """What of ours failed over what came in; nothing is held afterwards."""
    faults: list[str] = []

    class Faults(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            faults.append(record.getMessage())

    handler, log = Faults(logging.WARNING), logging.getLogger("partage.serving")
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: faults.append(str(context))
    )
    log.addHandler(handler)
    try:
        async with routes({b"/hot": _echo}, web.get("/", _page)) as hot:
            peer = Peer(hot)
            for part in parts:
                if not peer.wire.closed:
                    peer.frames.data_received(part)
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            assert not peer.wire.aborted
            peer.gone()
            await asyncio.sleep(0)
            assert hot.tally.requests == 0
            assert [*hot.open] == []
    finally:
        log.removeHandler(handler)
    return faults


@settings(deadline=None, max_examples=150)
@given(parts=st.lists(_frames() | st.binary(max_size=60), max_size=12), preface=st.booleans())
def test_nothing_that_comes_in_makes_it_fail(parts: list[bytes], *, preface: bool) -> None:
    """It answers, or says good-bye; it is not given up for a fault of ours, and holds nothing."""
    begun = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()

    assert asyncio.run(_endured([begun, *parts] if preface else parts)) == []


@settings(deadline=None, max_examples=150)
@given(
    wrong=st.lists(st.tuples(st.integers(24, 500), st.integers(0, 255)), max_size=4),
    cuts=st.lists(st.integers(0, 500), max_size=6),
)
def test_single_wrong_bytes_do_not_either(wrong: list[tuple[int, int]], cuts: list[int]) -> None:
    """In the middle of requests, in heads that are packed, in lengths; and however it is cut."""
    sent = bytearray(_session())
    for place, byte in wrong:
        sent[place % len(sent)] = byte
    edges = sorted({0, *(cut % len(sent) for cut in cuts), len(sent)})
    parts = [bytes(sent[one:other]) for one, other in pairwise(edges)]

    assert asyncio.run(_endured(parts)) == []


# --- under TLS ------------------------------------------------------------------------------


def _agreed(port: int, context: ssl.SSLContext, offered: list[str]) -> tuple[str | None, bytes]:
    """What the handshake agrees on, and the certificate that was shown."""
    if offered:
        context.set_alpn_protocols(offered)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=240) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
        return secured.selected_alpn_protocol(), shown or b""


async def test_who_asks_for_it_gets_it(tmp_path: Path) -> None:
    """Nobody else; and new connections are shown the certificate that was read last."""
    pairs = Certificates(tmp_path)
    tls = pairs.tls(clients=True)
    tls.protocols = protocols(http2=True)
    site = Site(web.Application(), Access(certificates=True), Limits(), {b"/hot": _echo}, tls)
    await site.start()

    async def agreed(*offered: str) -> tuple[str | None, bytes]:
        return await asyncio.to_thread(_agreed, site.port, pairs.client(), list(offered))

    assert (await agreed("h2", "http/1.1"))[0] == HTTP2
    assert (await agreed("http/1.1"))[0] == "http/1.1"
    assert (await agreed())[0] is None
    before = (await agreed("h2"))[1]
    pairs.issue(2)
    assert tls.refresh()
    name, after = await agreed("h2")
    assert name == HTTP2
    assert after != before
    await site.stop()


async def test_it_is_offered_only_where_it_is_wanted_and_can_be_spoken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Without the library HTTP/1.1 goes on, and the log says why."""
    pairs = Certificates(tmp_path)
    assert protocols(http2=False) == ()
    monkeypatch.setattr("partage.serving.tls.find_spec", lambda _: None)
    tls = pairs.tls()
    tls.protocols = protocols(http2=True)
    assert "h2 is not installed" in caplog.text
    site = Site(web.Application(), Access(plain=True), Limits(), {b"/hot": _echo}, tls)
    await site.start()
    name, _ = await asyncio.to_thread(_agreed, site.port, pairs.client(), ["h2", "http/1.1"])
    assert name is None
    await site.stop()


async def _ran(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    return (await process.communicate())[0].decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_is_served(tmp_path: Path) -> None:
    """A client that is not of the same library: several requests over one connection."""
    if "HTTP2" not in await _ran("curl", "--version"):
        pytest.skip("this curl speaks no HTTP/2")
    pairs = Certificates(tmp_path)
    mine = pairs.authority.issue_cert("kube-scheduler")
    mine.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    tls = pairs.tls(clients=True)
    tls.protocols = protocols(http2=True)
    app = web.Application()
    app.add_routes([web.get("/pieces", _pieces), web.post("/page", _page)])
    site = Site(app, Access(certificates=True), Limits(), {b"/hot": _echo, b"/away": _away}, tls)
    await site.start()
    base = [
        "curl", "-sS", "--http2", "--cacert", str(tmp_path / "ca.pem"), "--cert", str(tmp_path / "client.pem"),
        "--resolve", f"localhost:{site.port}:127.0.0.1", "-w", " %{http_version} %{http_code} %{num_connects}\n",
    ]  # fmt: skip
    url = f"https://localhost:{site.port}"
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    large = f"@{tmp_path / 'large'}"

    assert (
        await _ran(*base, "-d", "ab", f"{url}/hot", f"{url}/hot")
    ) == "ab 2 200 1\nab 2 200 0\n"
    said = await _ran(*base, "--data-binary", large, f"{url}/page")
    assert said.startswith("POST /page None 3000000 ")
    assert len(await _ran(*base, f"{url}/pieces")) == 300 * 4 * 4096 + len(" 2 200 1\n")
    # Who is told 503 takes another connection.
    assert (await _ran(*base, "-d", "", f"{url}/away", f"{url}/away")) == "{} 2 503 1\n" * 2
    assert (await _ran(*base, "--http1.1", "-d", "ab", f"{url}/hot")) == "ab 1.1 200 1\n"
    await site.stop()

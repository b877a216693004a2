"""The retry rules, end to end: what is tried again, how long it waits, and what never is."""

import asyncio
import contextlib
import errno
import socket
import time
from copy import copy
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import msgspec
import pytest
from kube_builders import (
    PODS_PATH,
    Pod,
    client_of,
    eventually,
    pod,
    put,
    started,
    stopped,
    written,
)

from fakes.clock import InstantClock
from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.kube.client import Client, PatchKind
from partage.kube.clock import SystemClock
from partage.kube.config import UserConfig
from partage.kube.errors import (
    ApiError,
    ConfigError,
    Conflict,
    Forbidden,
    NotFound,
    NotServed,
    Outcome,
    ServerError,
    TimedOut,
    TooManyRequests,
    TransportError,
    UnknownOutcome,
    retry_after_seconds,
)
from partage.kube.resources import NODES, PODS
from partage.kube.retry import Backoff, RateLimit
from partage.kube.sender import ClientSettings

SLOW = 60.0
"""Seconds that an answer takes for which the client does not wait."""


def patience(fault: Fault) -> float:
    """Seconds to wait for an answer: only where none comes is the wait short, and a busy machine makes it."""
    return 1.0 if fault.delay else SLOW


READ_FAULTS = [
    pytest.param(Fault(status=429, retry_after="3"), [3.0], id="429-retry-after"),
    pytest.param(Fault(status=503, retry_after="0"), [0.1], id="503-retry-after-0"),
    pytest.param(Fault(status=500, times=3), [0.1, 0.2, 0.4], id="500-thrice"),
    pytest.param(Fault(status=504), [0.1], id="504"),
    pytest.param(Fault(drop=True), [0.1], id="dropped"),
    pytest.param(Fault(half=True), [0.1], id="half-an-answer"),
    pytest.param(Fault(delay=SLOW), [0.1], id="too-slow"),
]

DOUBTFUL = [
    pytest.param(Fault(executed=True, status=504), id="504"),
    pytest.param(Fault(executed=True, status=500), id="500"),
    pytest.param(Fault(executed=True, status=503), id="503-from-a-proxy"),
    pytest.param(Fault(executed=True, drop=True), id="dropped"),
    pytest.param(Fault(half=True), id="half-an-answer"),
    pytest.param(Fault(delay=SLOW), id="too-slow"),
]


@pytest.mark.parametrize(("fault", "waits"), READ_FAULTS)
async def test_a_read_is_tried_again(fault: Fault, waits: list[float]) -> None:
    """Reading twice is reading once; the wait grows, or is the server's."""
    clock = InstantClock()
    async with (
        KubeServer() as server,
        client_of(server, clock=clock, transport={"request_timeout": patience(fault)}) as client,
    ):
        put(server, "a")
        server.fail(copy(fault))

        await client.get(PODS, "a", namespace="default", into=Pod)

        assert clock.slept == pytest.approx(waits)


@pytest.mark.parametrize("fault", DOUBTFUL)
async def test_a_change_in_doubt_is_never_repeated(fault: Fault) -> None:
    """A binding that may have been made is left to its caller to read back."""
    async with (
        KubeServer() as server,
        client_of(server, transport={"request_timeout": patience(fault)}) as client,
    ):
        put(server, "a")
        server.fail(copy(fault))

        with pytest.raises(UnknownOutcome, match="outcome unknown after") as caught:
            await client.bind("default", "a", "node-1", uid="uid-1")

        assert len(server.requests) == 1
        assert caught.value.outcome is Outcome.UNKNOWN
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(status=429), id="429"),
        pytest.param(Fault(status=503, retry_after="1"), id="503-with-retry-after"),
    ],
)
async def test_a_change_that_was_refused_is_tried_again(fault: Fault) -> None:
    """The server said that it did nothing."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        server.fail(copy(fault))

        await client.bind("default", "a", "node-1", uid="uid-1")

        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("kind", "body", "tries"),
    [
        pytest.param(PatchKind.MERGE, {"metadata": {"labels": {"l": "1"}}}, 2, id="merge"),
        pytest.param(PatchKind.STRATEGIC, {"metadata": {"labels": {"l": "1"}}}, 2, id="strategic"),
        pytest.param(
            PatchKind.JSON,
            [{"op": "add", "path": "/metadata/labels", "value": {"l": "1"}}],
            1,
            id="json",
        ),
        pytest.param(
            PatchKind.MERGE, {"metadata": {"resourceVersion": "2"}}, 1, id="with-a-version"
        ),
    ],
)
async def test_a_patch_that_means_the_same_twice_is_tried_again(
    kind: PatchKind, body: object, tries: int
) -> None:
    """JSON patches and those with a precondition are not."""
    async with KubeServer() as server, client_of(server) as client:
        await client.create(PODS, pod("a"), namespace="default", into=Pod)
        server.requests.clear()
        server.fail(Fault(method="PATCH", executed=True, drop=True))

        try:
            await client.patch(PODS, "a", body, kind=kind, namespace="default", into=Pod)
        except UnknownOutcome:
            assert tries == 1

        assert len(server.requests) == tries


async def test_a_delete_by_uid_succeeds_if_the_first_try_did() -> None:
    """Not found after a doubtful try means done."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        server.fail(Fault(method="DELETE", executed=True, drop=True))

        await client.delete(PODS, "a", namespace="default", uid="uid-1")

        assert len(server.requests) == 2
        with pytest.raises(NotFound):
            await client.delete(PODS, "a", namespace="default", uid="uid-1")


async def test_a_delete_by_name_alone_is_not_repeated() -> None:
    """Another object may have the name by then."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        server.fail(Fault(method="DELETE", executed=True, drop=True))

        with pytest.raises(UnknownOutcome):
            await client.delete(PODS, "a", namespace="default")

        assert len(server.requests) == 1


async def test_a_kept_connection_that_breaks_does_not_send_a_change_twice() -> None:
    """The HTTP library would repeat PUT by itself; it must not."""
    async with KubeServer() as server, client_of(server) as client:
        first = put(server, "a")
        await client.get(PODS, "a", namespace="default", into=Pod)
        server.fail(Fault(method="PUT", executed=True, drop=True))
        body = pod("a")
        body["metadata"] |= {
            "resourceVersion": first.metadata.resource_version,
            "labels": {"l": "1"},
        }

        with pytest.raises(UnknownOutcome):
            await client.update(PODS, "a", body, namespace="default", into=Pod)

        assert [request.method for request in server.requests] == ["GET", "PUT"]


async def test_doubt_outlives_a_later_refusal() -> None:
    """First lost, then refused: the first try may still have been made."""
    async with KubeServer() as server, client_of(server, attempts=3) as client:
        put(server, "a")
        server.fail(Fault(drop=True), Fault(status=429, times=9))

        with pytest.raises(UnknownOutcome):
            await client.patch(
                PODS, "a", {"spec": {}}, kind=PatchKind.MERGE, namespace="default", into=Pod
            )


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, Forbidden), (404, NotServed), (409, Conflict), (501, ServerError), (418, ApiError)],
    ids=str,
)
async def test_a_final_no_is_not_asked_again(status: int, kind: type[ApiError]) -> None:
    """The same request would be refused again."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(status=status, times=9))

        with pytest.raises(kind) as caught:
            await client.get(NODES, "n", into=msgspec.Raw)

        assert type(caught.value) is kind
        assert len(server.requests) == 1


async def test_patience_ends() -> None:
    """After the last attempt its error is the answer."""
    async with KubeServer() as server, client_of(server, attempts=3) as client:
        server.fail(Fault(status=500, times=9))

        with pytest.raises(ServerError):
            await client.get(NODES, "n", into=msgspec.Raw)

        assert len(server.requests) == 3


async def test_a_wait_beyond_patience_is_not_begun() -> None:
    """A server that asks for an hour's wait gets its error passed on now."""
    clock = InstantClock()
    async with KubeServer() as server, client_of(server, clock=clock) as client:
        server.fail(Fault(status=429, retry_after="3600"))

        with pytest.raises(TooManyRequests) as caught:
            await client.get(NODES, "n", into=msgspec.Raw)

        assert caught.value.retry_after == 3600
        assert clock.slept == []


async def test_a_loop_of_its_own_waits_no_longer_than_it_says() -> None:
    """Others on the same connections go on waiting as long as the server asks."""
    clock = InstantClock()
    async with KubeServer() as server, client_of(server, clock=clock) as client:
        put(server)
        server.fail(Fault(status=429, retry_after="2"))
        server.fail(Fault(status=503, retry_after="3"))
        with pytest.raises(ServerError):
            await client.insistent(2.0).get(PODS, "a", namespace="default", into=Pod)
        assert clock.slept == [2.0]
        server.fail(Fault(status=429, retry_after="3"))
        await client.get(PODS, "a", namespace="default", into=Pod)
        assert clock.slept == [2.0, 3.0]


async def test_nobody_there_is_safe_to_ask_again() -> None:
    """Without a connection nothing was sent."""
    clock = InstantClock()
    async with client_of("http://127.0.0.1:1", clock=clock, attempts=2) as client:
        with pytest.raises(TransportError) as caught:
            await client.bind("default", "a", "node-1", uid="u")

    assert caught.value.outcome is Outcome.REFUSED
    assert clock.slept == [0.1]
    assert str(caught.value).endswith(": cannot connect to 127.0.0.1:1: Connection refused")


async def test_a_name_that_nobody_has_is_told() -> None:
    """The error has the resolver's words; the HTTP library's show objects of the program."""
    async with client_of("http://nobody.invalid:1", clock=InstantClock(), attempts=1) as client:
        with pytest.raises(
            TransportError, match=r"cannot connect to nobody\.invalid:1: [A-Z]"
        ) as caught:
            await client.get(NODES, "n", into=msgspec.Raw)

    assert "ssl:" not in str(caught.value)


async def test_each_try_has_the_time_that_is_left() -> None:
    """The server counts from when a try arrives, so each try names less time; a fifth may go by before."""
    clock = InstantClock()
    async with KubeServer() as server, client_of(server, clock=clock) as client:
        put(server, "a")
        server.fail(Fault(status=429, retry_after="3", times=2))

        await client.bind("default", "a", "n", uid="uid-1", until=clock.monotonic() + 10.0)

        assert [seen.query["timeout"] for seen in server.requests] == [
            "8000ms",
            "5600ms",
            "3200ms",
        ]


async def test_no_try_begins_when_the_time_is_over() -> None:
    """It was refused each time, which is known, and stays so."""
    clock = InstantClock()
    async with KubeServer() as server, client_of(server, clock=clock) as client:
        put(server, "a")
        server.fail(Fault(status=429, retry_after="4", times=9))

        with pytest.raises(TooManyRequests) as caught:
            await client.bind("default", "a", "n", uid="uid-1", until=clock.monotonic() + 10.0)

        assert caught.value.outcome is Outcome.REFUSED
        assert clock.slept == [4.0, 4.0]
        assert len(server.requests) == 3


@pytest.mark.parametrize("left", [-1.0, 0.0, 0.0009])
async def test_what_is_too_late_is_not_sent_at_all(left: float) -> None:
    """A time-out of nothing would mean none to the server."""
    clock = InstantClock()
    async with KubeServer() as server, client_of(server, clock=clock) as client:
        with pytest.raises(TimedOut, match="not sent") as caught:
            await client.bind("default", "a", "n", uid="uid-1", until=clock.monotonic() + left)

        assert caught.value.outcome is Outcome.REFUSED
        assert server.requests == []


async def test_a_try_with_fresh_credentials_has_the_time_that_is_left_too(tmp_path: Path) -> None:
    """A plugin may take half a minute to make them."""

    class Plodding(InstantClock):
        def monotonic(self) -> float:
            self.pass_time(0.5)
            return super().monotonic()

    file = written(tmp_path / "token", "one")
    clock, user = Plodding(), UserConfig(token_file=file)
    async with KubeServer() as server, client_of(server, user=user, clock=clock) as client:
        put(server, "a")
        await client.get(PODS, "a", namespace="default", into=Pod)
        server.token = "two"  # noqa: S105
        written(file, "two")

        await client.bind("default", "a", "n", uid="uid-1", until=clock.monotonic() + 10.0)

        refused, done = (seen.query["timeout"] for seen in server.requests[1:])
        assert int(done.removesuffix("ms")) < int(refused.removesuffix("ms")) < 8000


async def test_a_slow_answer_in_pieces_is_read_whole() -> None:
    """The body comes a few bytes at a time."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        server.fail(Fault(trickle=7))

        assert (await client.get(PODS, "a", namespace="default", into=Pod)).metadata.name == "a"


async def test_a_redirect_is_not_followed() -> None:
    """No token goes where an answer points."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(status=302))

        with pytest.raises(ApiError, match="302"):
            await client.get(NODES, "n", into=msgspec.Raw)

        assert len(server.requests) == 1


async def test_cancelling_a_request_leaves_the_client_usable() -> None:
    """The connection is dropped, the next request gets another."""
    async with KubeServer() as server, client_of(server) as client:
        put(server, "a")
        server.fail(Fault(delay=SLOW))
        task = started(client.get(PODS, "a", namespace="default", into=Pod))
        await eventually(lambda: server.requests)

        await stopped(task)

        assert task.cancelled()
        assert (await client.get(PODS, "a", namespace="default", into=Pod)).metadata.name == "a"


async def test_a_timed_out_read_says_so() -> None:
    """With one attempt, the time-out itself is the answer."""
    async with (
        KubeServer() as server,
        client_of(server, attempts=1, transport={"request_timeout": 0.2}) as client,
    ):
        server.fail(Fault(delay=SLOW))

        with pytest.raises(TimedOut, match="no answer in time"):
            await client.get(NODES, "n", into=msgspec.Raw)


async def test_a_handshake_that_hangs_is_safe_to_ask_again() -> None:
    """Without a connection nothing was sent; the time for it is short."""
    ended = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with client_of(
            f"https://127.0.0.1:{port}", attempts=1, transport={"connect_timeout": 0.02}
        ) as client:
            with pytest.raises(TimedOut, match="no connection in time") as caught:
                await client.bind("default", "a", "n", uid="u")
        await ended.wait()

    assert caught.value.outcome is Outcome.REFUSED


async def test_a_url_that_is_none_is_a_configuration_error() -> None:
    """Kubeconfigs are checked before; a program may still pass anything."""
    async with client_of("http://") as client:
        with pytest.raises(ConfigError, match="URL is wrong"):
            await client.get(NODES, "n", into=msgspec.Raw)


async def test_an_endless_error_is_read_in_part() -> None:
    """A gateway's page of a megabyte."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(status=403, message="x" * 1_000_000))

        with pytest.raises(Forbidden) as caught:
            await client.get(NODES, "n", into=msgspec.Raw)

        assert len(str(caught.value)) < 400


def test_the_real_clock_passes() -> None:
    """Its wall clock knows its zone."""
    clock = SystemClock()
    before = clock.monotonic()

    asyncio.run(clock.sleep(-1))

    assert clock.monotonic() >= before
    assert clock.now().tzinfo is UTC


def test_the_real_clock_goes_on_while_a_machine_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ran out meanwhile is over afterwards."""
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 7.0}.__getitem__)

    assert SystemClock().monotonic() == 7.0


def test_a_sandbox_without_such_a_clock_has_the_common_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Better than none."""

    def refused(which: int) -> float:
        raise OSError(errno.EINVAL, which)

    monkeypatch.setattr(time, "clock_gettime", refused)

    assert SystemClock().monotonic() == pytest.approx(time.monotonic(), abs=60)


async def test_callers_with_a_bound_of_their_own_are_spread() -> None:
    """Two at once, then one every second; others with the same connections wait for none of them."""
    clock = InstantClock()
    async with KubeServer() as server, client_of(server, clock=clock) as client:
        put(server, "a")
        paced = client.paced(1.0)
        for _ in range(4):
            await paced.get(PODS, "a", namespace="default", into=Pod)
            await client.get(PODS, "a", namespace="default", into=Pod)

    assert clock.slept == pytest.approx([1.0, 1.0])


def test_a_rate_limit_refills_only_up_to_its_burst() -> None:
    """A long pause earns no more than the burst."""
    clock = InstantClock()
    limit = RateLimit(1.0, 2, clock)
    clock.pass_time(100)

    assert [(limit.ready(), limit.reserve()) for _ in range(4)] == [
        (True, 0),
        (True, 0),
        (False, 1),
        (False, 2),
    ]


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)], ids=str)
def test_a_rate_limit_needs_sense(rate: float, burst: int) -> None:
    """With one that makes none nothing could ever be sent."""
    with pytest.raises(ValueError, match="must be positive"):
        RateLimit(rate, burst, InstantClock())


def test_at_least_one_attempt_is_made() -> None:
    """A client that never tries is a mistake."""
    with pytest.raises(ValueError, match="at least 1"):
        ClientSettings(attempts=0)


@pytest.mark.parametrize(
    ("attempt", "chance", "delay"),
    [(0, 0.0, 1.0), (1, 0.0, 2.0), (10, 0.0, 8.0), (10**6, 0.0, 8.0), (1, 1.0, 1.0)],
    ids=["first", "second", "capped", "huge", "jittered"],
)
def test_delays_double_up_to_a_cap(attempt: int, chance: float, delay: float) -> None:
    """Chance may take away up to the jitter's share."""
    assert Backoff(base=1.0, cap=8.0, jitter=0.5).delay(attempt, chance) == delay


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        pytest.param(None, None, id="absent"),
        pytest.param(" 7 ", 7.0, id="seconds"),
        pytest.param("Thu, 01 Jan 2026 00:00:30 GMT", 30.0, id="date"),
        pytest.param("Wed, 31 Dec 2025 00:00:00 GMT", 0.0, id="past"),
        pytest.param("soon", None, id="nonsense"),
        pytest.param("-5", None, id="negative"),
        pytest.param("Thu, 01 Jan 2026 00:00:30 -0000", None, id="no-zone"),
    ],
)
def test_retry_after_has_two_forms(header: str | None, seconds: float | None) -> None:
    """Seconds or a date; anything else is as if it were not there."""
    assert retry_after_seconds(header, datetime(2026, 1, 1, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    ("date", "seconds"),
    [("Wed, 31 Dec 2025 20:00:00 GMT", 30.0), ("today", 0.0), ("", 0.0)],
    ids=["server-behind", "nonsense", "absent"],
)
def test_a_moment_is_counted_by_the_clock_of_the_server(date: str, seconds: float) -> None:
    """Ours may be hours ahead or behind, and would make the wait none or endless."""
    now, asked = datetime(2026, 1, 1, tzinfo=UTC), "Wed, 31 Dec 2025 20:00:30 GMT"
    assert retry_after_seconds(asked, now, date) == seconds


async def test_a_server_whose_clock_is_ahead_of_ours_is_asked_again_soon() -> None:
    """Seconds are meant, and not the hours between the clocks."""
    clock = InstantClock(epoch=datetime.now(UTC) - timedelta(hours=3))
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    async with KubeServer() as server, client_of(server, clock=clock) as client:
        put(server)
        server.fail(Fault(status=429, retry_after=moment))
        await client.get(PODS, "a", namespace="default", into=Pod)
    assert 0 < clock.slept[0] <= 20


async def test_concurrent_requests_share_the_client() -> None:
    """Fifty at once, each with its own answer."""
    async with KubeServer() as server, client_of(server) as client:
        for index in range(50):
            put(server, f"p{index}")

        async def name(client: Client, index: int) -> str:
            found = await client.get(PODS, f"p{index}", namespace="default", into=Pod)
            return found.metadata.name

        names = await asyncio.gather(*(name(client, index) for index in range(50)))

        assert names == [f"p{index}" for index in range(50)]
        assert len(list(server.store.list(PODS_PATH, None))) == 50


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
async def test_the_kernel_does_not_go_on_sending_what_was_given_up() -> None:
    """A Binding that a broken network kept would arrive when another leads."""
    async with KubeServer() as server, client_of(server) as client:
        address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))
        with client._sender.transport._socket(address) as made:
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000

        connector = client._sender.transport._session.connector
        assert connector._socket_factory == client._sender.transport._socket

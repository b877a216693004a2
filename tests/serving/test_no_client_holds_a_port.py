"""Clients that hold connections and do nothing with them keep neither a port nor a probe from others.

The limits are small here, so that few sockets fill a port; what they are made of is what services have.
"""

import asyncio
import contextlib
import gc
import os
import resource
import socket
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import pytest
import trustme
from aiohttp import web

from partage.serving.guarded import Guarded
from partage.serving.limits import Limits, guard, read_body
from partage.serving.listener import end_listening
from partage.serving.site import Site
from partage.serving.tls import ServerTls

PATIENCE: Final = 240.0
LIMITS: Final = Limits(connections=24, per_address=16, patience=30.0, idle=30.0)
GET: Final = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE: Final = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
SOME: Final = b"GET /some HTTP/1.1\r\nHost: x\r\n\r\n"
VERB: Final = b"POST /verb HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
SLOW: Final = b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Served:
    """A site on two ports, what its slow route waits for, and at each verb its body and the connections that are open."""

    site: Site
    client: ssl.SSLContext
    may_end: asyncio.Event
    asked: list[bytes]
    open: list[int]

    async def connect(
        self, *, read: bool, address: str = "127.0.0.1", tls: bool = True
    ) -> Streams:
        """A connection to the read port, or by TLS to the other one."""
        secure = None if read or not tls else self.client
        return await asyncio.open_connection(
            "127.0.0.1",
            self.site.read_port if read else self.site.port,
            local_addr=(address, 0),
            ssl=secure,
            server_hostname="localhost" if secure else None,
        )

    async def answers(
        self, *, read: bool, request: bytes = GET, address: str = "127.0.0.1"
    ) -> int:
        """The status of a request on a connection of its own; 0 where it was closed."""
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await self.connect(read=read, address=address)
                writer.write(request)
                line = await reader.readline()
                writer.close()
        except OSError:
            return 0
        return int(line.split(b" ")[1]) if line else 0


@contextlib.asynccontextmanager
async def served(folder: Path, limits: Limits = LIMITS) -> AsyncIterator[Served]:
    """A site with a port by TLS and a read port."""
    may_end, asked, counted = asyncio.Event(), list[bytes](), list[int]()

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def large(_request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 2**24)

    async def some(_request: web.Request) -> web.Response:
        asked.append(b"")
        return web.Response(body=b"%8d" % len(asked) + b"x" * 59_992)

    async def body(request: web.Request) -> web.Response:
        return web.Response(body=await read_body(request, limits))

    async def verb(request: web.Request) -> web.Response:
        counted.append(sum(1 for _ in site.connections()))
        asked.append(await read_body(request, limits))
        return web.json_response({})

    async def slow(_request: web.Request) -> web.Response:
        await may_end.wait()
        return web.json_response({})

    authority = trustme.CA()
    pair = authority.issue_cert("localhost")
    pair.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    pair.private_key_pem.write_to_path(folder / "key.pem")
    client = ssl.create_default_context()
    authority.configure_trust(client)
    app = web.Application(middlewares=[guard()])
    app.add_routes(
        [web.get("/healthz", healthy), web.get("/large", large), web.post("/body", body)]
    )
    app.add_routes([web.get("/some", some)])
    app.add_routes([web.post("/verb", verb), web.post("/slow", slow)])
    tls = ServerTls(folder / "cert.pem", folder / "key.pem")
    site = Site(app, limits, tls)
    await site.start()
    await site.start_second("127.0.0.1", 0)
    try:
        yield Served(site, client, may_end, asked, counted)
    finally:
        may_end.set()
        await site.stop()


async def until(true: Callable[[], bool]) -> None:
    """Wait for what must come true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "what was waited for did not come true"
        await asyncio.sleep(0.01)


Holding = Callable[[Served, str], Awaitable[Streams]]


def sending(*data: bytes, answered: bool = False, read: bool = True, tls: bool = True) -> Holding:
    """A client that sends this much and waits."""

    async def hold(at: Served, address: str) -> Streams:
        reader, writer = await at.connect(read=read, address=address, tls=tls)
        for one in data:
            writer.write(one)
            await writer.drain()
        if answered:
            await reader.readuntil(b"\r\n\r\n")
        return reader, writer

    return hold


HOLDERS: Final[dict[str, Holding]] = {
    "says nothing": sending(),
    "sends half a head": sending(b"GET /heal"),
    "sends half a head of a verb": sending(VERB[:30]),
    "sends half a body of a verb": sending(VERB[:-1]),
    "sends half a body": sending(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"),
    "sends half a chunk": sending(
        b"POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nx"
    ),
    "keeps its connection after an answer": sending(GET, answered=True),
    "sends half a head after an answer": sending(GET + GET[:9], answered=True),
    "keeps its connection after a verb": sending(VERB, answered=True),
    "does not read": sending(LARGE),
    "does not read and asks on": sending(LARGE * 20),
    "says nothing to TLS": sending(read=False, tls=False),
    "sends half a greeting to TLS": sending(b"\x16\x03\x01\x02\x00\x01", read=False, tls=False),
    "says nothing within TLS": sending(read=False),
    "keeps its connection by TLS": sending(VERB, answered=True, read=False),
}


@pytest.mark.parametrize("addresses", [1, 40])
@pytest.mark.parametrize("how", HOLDERS)
async def test_both_ports_answer_while_one_is_held(
    tmp_path: Path, how: str, addresses: int
) -> None:
    """More of them than the port has places for, of one address or of many; probes and verbs go on."""
    held: list[Streams] = []
    async with served(tmp_path) as at:
        for number in range(40):
            with contextlib.suppress(OSError):
                held.append(await HOLDERS[how](at, f"127.0.1.{1 + number % addresses}"))
            if number % 10 == 9:
                assert await at.answers(read=True) == 200
                assert await at.answers(read=False, request=VERB) == 200
                # From an address that holds connections, too.
                assert await at.answers(read=True, address="127.0.1.1") == 200
        for _, writer in held:
            writer.close()


SOON: Final = replace(LIMITS, patience=0.2, idle=0.4)


@pytest.mark.parametrize("how", HOLDERS)
async def test_who_does_not_go_on_is_closed(tmp_path: Path, how: str) -> None:
    """The connection is closed after its time, although the port is empty."""
    async with served(tmp_path, SOON) as at:
        reader, writer = await HOLDERS[how](at, "127.0.1.1")
        if "does not read" in how:
            transport = cast("asyncio.Transport", writer.transport)
            transport.pause_reading()
            await asyncio.sleep(3)
            transport.resume_reading()
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(OSError):
                while await reader.read(2**20):
                    pass
        writer.close()
        assert await at.answers(read=True) == 200


@pytest.mark.parametrize("path", [b"/verb", b"/body"])
@pytest.mark.parametrize("read", [True, False], ids=["read port", "TLS port"])
async def test_bodies_that_are_never_whole_have_a_bound_together(
    tmp_path: Path, path: bytes, *, read: bool
) -> None:
    """The address that holds most of it loses it; another one's request is served meanwhile."""
    limits = replace(LIMITS, body=2**18, held=2**20)
    head = b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    async with served(tmp_path, limits) as at:
        honest = await at.connect(read=read, address="127.0.0.9")
        honest[1].write(head % (2**15 + 1) + b"x" * 2**15)
        await honest[1].drain()
        held: list[Streams] = []
        for _ in range(14):
            streams = await at.connect(read=read)
            streams[1].write(head % (2**17 + 1) + b"x" * 2**17)
            held.append(streams)

        def closed() -> int:
            return sum(one[0].at_eof() or one[0].exception() is not None for one in held)

        await until(lambda: closed() >= 14 - 2**20 // 2**17)
        assert closed() <= 9
        honest[1].write(b"x")
        line = await honest[0].readline()
        assert line.split()[1] == b"200"
        for _, writer in (*held, honest):
            writer.close()


async def test_what_comes_ahead_of_its_turn_counts_too(tmp_path: Path) -> None:
    """Bytes behind a request that is being answered, up to one read of each connection."""
    async with served(tmp_path, replace(LIMITS, held=2**18)) as at:
        held: list[Streams] = []
        for _ in range(14):
            streams = await at.connect(read=True)
            streams[1].write(SLOW)
            await streams[1].drain()
            await asyncio.sleep(0.02)
            streams[1].write(b"x" * 2**17)
            held.append(streams)

        def closed() -> int:
            return sum(one[0].at_eof() or one[0].exception() is not None for one in held)

        await until(lambda: closed() >= 3)
        for _, writer in held:
            writer.close()


async def test_a_head_counts_until_it_is_whole(tmp_path: Path) -> None:
    """It does not count for as long as its connection stays."""
    async with served(tmp_path, replace(LIMITS, held=2**16)) as at:
        held: list[Streams] = []
        for _ in range(3):
            reader, writer = await at.connect(read=True)
            held.append((reader, writer))
            writer.write(GET[:-2] + b"X: " + b"x" * 40_000)
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.write(b"\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"200"
        await asyncio.sleep(0.1)
        assert sum(1 for _ in at.site.connections()) == 3
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize("read", [True, False], ids=["read port", "TLS port"])
async def test_answers_that_nobody_reads_have_a_bound_together(
    tmp_path: Path, *, read: bool
) -> None:
    """The address that leaves most of them unread loses one; another one gets all of its own."""
    limits = replace(LIMITS, held=2**25, patience=10 * PATIENCE, idle=10 * PATIENCE)
    async with served(tmp_path, limits) as at:
        held: list[Streams] = []
        for _ in range(8):
            streams = await at.connect(read=read)
            streams[1].transport.pause_reading()
            streams[1].write(LARGE)
            held.append(streams)
        reader, writer = await at.connect(read=read, address="127.0.0.9")
        writer.write(LARGE)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: 16777216\r\n" in head
        assert await reader.readexactly(2**24) == b"x" * 2**24
        writer.write(GET)  # the connection goes on
        assert (await reader.readline()).split()[1] == b"200"
        await until(lambda: sum(1 for _ in at.site.connections()) <= 2**25 // 2**24 + 1)
        for _, writing in (*held, (reader, writer)):
            writing.transport.abort()


def on_loop(test: Coroutine[None, None, None], *, fast: bool) -> None:
    """Run on asyncio's own loop, or on uvloop."""
    factory = None
    if fast:
        factory = pytest.importorskip("uvloop", reason="needs the extra fast").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(test)


loops = pytest.mark.parametrize("fast", [False, True], ids=["asyncio", "uvloop"])
ports = pytest.mark.parametrize("read", [True, False], ids=["read port", "TLS port"])


@loops
@ports
def test_answers_written_at_once_have_a_bound_together(
    tmp_path: Path, *, fast: bool, read: bool
) -> None:
    """Small ones count as well, if many requests are sent and no answer is read."""

    async def bound() -> None:
        limits = replace(LIMITS, connections=64, per_address=64, held=2**20)
        limits = replace(limits, patience=10 * PATIENCE, idle=10 * PATIENCE)
        async with served(tmp_path, limits) as at:
            honest = await at.connect(read=read, address="127.0.0.9")
            held: list[Streams] = []
            for _ in range(32):
                streams = await at.connect(read=read)
                streams[1].transport.pause_reading()
                streams[1].write(SOME * 100)
                held.append(streams)
            await until(lambda: sum(1 for _ in at.site.connections()) <= 1 + 2**20 // 2**16)
            honest[1].write(SOME)
            assert (await honest[0].readline()).split()[1] == b"200"
            for _, writer in (*held, honest):
                writer.transport.abort()

    on_loop(bound(), fast=fast)


@loops
@ports
def test_few_answers_are_made_for_who_reads_none(
    tmp_path: Path, *, fast: bool, read: bool
) -> None:
    """The other requests wait unread, and each has its answer, in order, once the client reads on."""

    async def few() -> None:
        def connected() -> socket.socket:  # asyncio's own client by TLS reads on by itself
            client = socket.create_connection(
                ("127.0.0.1", at.site.read_port if read else at.site.port), timeout=PATIENCE
            )
            if not read:
                client = at.client.wrap_socket(client, server_hostname="localhost")
            client.sendall(SOME * 200)
            return client

        def reads_on() -> None:
            with client.makefile("rb") as answers:
                for number in range(1, 201):
                    while answers.readline().strip():
                        pass
                    assert answers.read(60_000)[:8] == b"%8d" % number
                client.sendall(GET)  # the connection goes on
                assert answers.readline().split()[1] == b"200"

        limits = replace(LIMITS, patience=10 * PATIENCE, idle=10 * PATIENCE)
        async with served(tmp_path, limits) as at:
            client = await asyncio.to_thread(connected)
            made = -1
            while made != len(at.asked) or not made:
                made = len(at.asked)
                await asyncio.sleep(0.3)
            assert made <= 16  # of 60 kB each; both kernels have some of them
            await asyncio.to_thread(reads_on)
            client.close()

    on_loop(few(), fast=fast)


@loops
def test_what_tls_keeps_of_requests_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fast: bool
) -> None:
    """TLS has a buffer as large as its largest read, and encrypted bytes that wait. Both stay with the connection."""
    pieces: list[int] = []
    plain = Guarded.data_received

    def noted(one: Guarded, data: bytes) -> None:
        pieces.append(len(data))
        plain(one, data)

    monkeypatch.setattr(Guarded, "data_received", noted)

    async def bound() -> None:
        def ahead() -> socket.socket:
            client = socket.create_connection(("127.0.0.1", at.site.port), timeout=PATIENCE)
            client = at.client.wrap_socket(client, server_hostname="localhost")
            client.sendall(SLOW)
            client.settimeout(0.2)
            with contextlib.suppress(OSError):
                client.sendall(b"x" * 2**20)
            return client

        async with served(tmp_path) as at:
            clients = [await asyncio.to_thread(ahead) for _ in range(8)]
            below = [
                cast("Guarded", one)._transport.get_read_buffer_size()  # type: ignore[attr-defined]
                for one in at.site.connections()
            ]
            assert len(below) == 8
            assert max(below) <= 2**17
            assert max(pieces) <= 2**16
            (open_, _) = at.site._open
            assert open_._bytes >= 8 * 4 * 2**14
            for one in clients:
                one.close()

    on_loop(bound(), fast=fast)


@pytest.mark.parametrize("read", [True, False], ids=["read port", "TLS port"])
async def test_who_goes_before_a_large_answer_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, read: bool
) -> None:
    """The rest of the answer is not written to a connection that is gone."""
    async with served(tmp_path) as at:
        for _ in range(5):
            _, writer = await at.connect(read=read)
            writer.write(LARGE)
            writer.transport.abort()
        await until(lambda: not list(at.site.connections()))
    assert not caplog.records


async def test_a_large_answer_is_sent_where_its_head_alone_is_asked(tmp_path: Path) -> None:
    """The body is left out."""
    async with served(tmp_path) as at:
        reader, writer = await at.connect(read=True)
        writer.write(LARGE.replace(b"GET", b"HEAD") + GET)
        assert b"Content-Length: 16777216\r\n" in await reader.readuntil(b"\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()


async def test_who_drips_is_closed(tmp_path: Path) -> None:
    """A byte now and then is no whole request, before and after an answer."""
    async with served(tmp_path, SOON) as at:
        for first in (b"", GET, VERB):
            reader, writer = await at.connect(read=True)
            writer.write(first)
            if first:
                await reader.readuntil(b"\r\n\r\n")
            with contextlib.suppress(OSError):
                async with asyncio.timeout(PATIENCE):
                    while not reader.at_eof():
                        writer.write(b"a")
                        await writer.drain()
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(100), 0.05)
            writer.close()


async def test_who_is_being_answered_is_not_closed_for_others(tmp_path: Path) -> None:
    """The newcomer is; and as soon as one has its answer there is room again."""
    async with served(tmp_path) as at:
        busy = [await at.connect(read=False, address=f"127.0.1.{1 + k % 2}") for k in range(24)]
        for _, writer in busy:
            writer.write(SLOW)
        await until(lambda: sum(not one.waits for one in at.site.connections()) == 24)
        assert await at.answers(read=False) == 0
        assert await at.answers(read=True) == 200  # another port
        at.may_end.set()
        for reader, _ in busy:
            assert (await reader.readline()).split(b" ")[1] == b"200"
        assert await at.answers(read=False) == 200
        for _, writer in busy:
            writer.close()


async def test_the_first_of_many_have_answers_before_the_last_are_accepted(tmp_path: Path) -> None:
    """All requests have been sent by then; what counts is how many connections are open at the first of them."""
    many = 48
    limits = replace(LIMITS, connections=2 * many, per_address=2 * many)
    async with served(tmp_path, limits) as at:
        with contextlib.ExitStack() as stack:
            clients = []
            for _ in range(many):  # the loop has no turn meanwhile
                address = "127.0.0.1", at.site.read_port
                clients.append(stack.enter_context(socket.create_connection(address)))
                clients[-1].sendall(VERB)
            loop = asyncio.get_running_loop()
            for one in clients:  # the loop goes on: an answer may still be due
                one.setblocking(False)
                assert await loop.sock_recv(one, 12) == b"HTTP/1.1 200"
        assert at.open[0] < many / 2


async def test_one_address_does_not_keep_all_places_busy(tmp_path: Path) -> None:
    """Some are left for other addresses."""
    async with served(tmp_path) as at:
        busy = [await at.connect(read=True, address="127.0.1.1") for _ in range(16)]
        for _, writer in busy:
            writer.write(SLOW)
        await until(lambda: sum(not one.waits for one in at.site.connections()) == 16)
        assert await at.answers(read=True, address="127.0.1.1") == 0
        assert await at.answers(read=True, address="127.0.1.2") == 200
        for _, writer in busy:
            writer.close()


async def test_nothing_is_carried_out_after_the_last_answer(tmp_path: Path) -> None:
    """What was sent behind a request that closes its connection is left alone."""
    last = VERB.replace(b"Host: x\r\n", b"Host: x\r\nConnection: close\r\n")
    async with served(tmp_path) as at:
        reader, writer = await at.connect(read=True)
        writer.write(last[:-2] + b"1." + VERB[:-2] + b"2.")
        answer = await reader.read()
        writer.close()
        assert answer.count(b"HTTP/1.1 200") == 1
        assert at.asked == [b"1."]


async def test_the_limits_of_ports_come_before_that_of_open_files(tmp_path: Path) -> None:
    """A process is often started with room for 1,024 files, fewer than its ports may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * Limits().connections
    if hard != resource.RLIM_INFINITY and hard < wanted + 512:
        pytest.skip("may not open so many files here")
    # Agents that other tests of this process let die may have hundreds of files open.
    low = max(1024, len(os.listdir("/proc/self/fd")) + 64)  # noqa: PTH208 # of this process
    assert low < wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        async with served(tmp_path, Limits()):
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= wanted
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_places_come_back(tmp_path: Path) -> None:
    """Whatever became of connections, none is counted once it is closed."""
    async with served(tmp_path) as at:
        for _ in range(3):
            for hold in HOLDERS.values():
                with contextlib.suppress(OSError):
                    _, writer = await hold(at, "127.0.1.1")
                    writer.transport.abort()
        await until(lambda: not [*at.site.connections()])


@pytest.mark.parametrize(
    "how", ["says nothing to TLS", "keeps its connection by TLS", "does not read"]
)
def test_the_fast_loop_does_the_same(tmp_path: Path, how: str) -> None:
    """Services run on uvloop where it is installed."""
    uvloop = pytest.importorskip("uvloop", reason="needs the extra fast")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_both_ports_answer_while_one_is_held(tmp_path, how, 1))
        runner.run(test_places_come_back(tmp_path))


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_comes_as_listening_ends_is_closed_or_served(turns: int) -> None:
    """Python 3.11 loses the socket of one that was accepted in the turn in which the server closed."""
    served: list[asyncio.BaseTransport] = []

    class Kept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            served.append(transport)

    server = await asyncio.get_running_loop().create_server(Kept, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        for _ in range(turns):
            await asyncio.sleep(0)
        await end_listening(server)
        await asyncio.sleep(0.01)
        for transport in served:
            transport.close()
        await asyncio.sleep(0.01)
    gc.collect()  # a socket that was lost warns here, and the warning is an error


@pytest.mark.parametrize("turns", range(4))
async def test_a_handshake_that_is_aborted_before_it_begins_leaves_no_socket(
    tmp_path: Path, turns: int
) -> None:
    """The service stops in the turn of the loop in which a connection was accepted, or just after."""
    async with served(tmp_path) as at:
        came = socket.create_connection(("127.0.0.1", at.site.port))
        for _ in range(turns):
            await asyncio.sleep(0)
        for connection in at.site.connections():
            connection.abort()
    with came:
        gc.collect()  # as above


@pytest.mark.parametrize(("path", "status"), [("/body", 415), ("/nowhere", 404)])
async def test_no_body_is_inflated(tmp_path: Path, path: str, status: int) -> None:
    """Half a megabyte that would be half a gigabyte took half a second of the loop, on routes that read nothing too."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(10**6)) for _ in range(500)) + packer.flush()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Encoding: deflate\r\nContent-Length: {len(packed)}\r\n\r\n"
    async with served(tmp_path) as site:
        begun = time.thread_time()
        for _ in range(3):
            assert await site.answers(read=True, request=head.encode() + packed) == status
            assert await site.answers(read=True) == 200
        assert time.thread_time() - begun < 1.0

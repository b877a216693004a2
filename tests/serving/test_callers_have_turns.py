"""One address that asks for much delays another by one turn, whatever it costs and however many connections it has."""

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from partage.dashboard.pages import page_routes
from partage.serving.limits import Limits
from partage.serving.site import Site
from partage.serving.turns import TooMany, Turns, waiting_elsewhere

STRANGER, HONEST = "127.0.0.2", "127.0.0.3"
PATIENCE = 240.0


async def settled() -> None:
    """Let everything that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_each_asker_has_its_turn_however_many_of_another_wait() -> None:
    """The second asker comes after those that have a place, and one more."""
    turns = Turns(2, 1000, 1000)
    order: list[str] = []
    go_on = asyncio.Event()

    async def ask(name: str) -> None:
        async with turns.turn(name):
            await go_on.wait()
            order.append(name)
            await asyncio.sleep(0)

    many = [asyncio.create_task(ask("10.0.0.1")) for _ in range(500)]
    await settled()
    one = asyncio.create_task(ask("10.0.0.2"))
    go_on.set()
    await asyncio.gather(one, *many)
    assert order.index("10.0.0.2") <= 2
    assert not turns.waiting


@pytest.mark.parametrize("network", ["10.0.0.{}", "::ffff:10.0.0.{}", "fd00::{}"])
async def test_a_network_has_its_turn_however_many_addresses_of_another_wait(network: str) -> None:
    """A tenant may have a hundred pods. They leave a place, and have one turn between two of the other network."""
    turns = Turns(4, 1000, 1000)
    many = [asyncio.create_task(turns.take(network.format(n))) for n in range(1, 151)]
    await settled()
    assert sum(one.done() for one in many) == 3
    other = [asyncio.create_task(turns.take("10.0.1.1")) for _ in range(2)]
    await settled()
    assert [one.done() for one in other] == [True, False]
    for place in (1, 2):  # the first network has one turn before the other's next
        turns.give(network.format(place))
        await settled()
    assert other[1].done()
    assert sum(one.done() for one in many) == 4
    for one in many:
        one.cancel()


async def test_where_too_many_wait_the_network_with_most_gives_up() -> None:
    """It is not the last to come, nor each address for itself."""
    turns = Turns(2, 8, 4)
    refused: Counter[str] = Counter()
    done: list[str] = []

    async def ask(name: str) -> None:
        try:
            async with turns.turn(name):
                await asyncio.sleep(0)
                done.append(name)
        except TooMany:
            refused[name] += 1

    tasks = [asyncio.create_task(ask(f"10.0.0.{n}")) for n in range(20) for _ in range(3)]
    tasks += [asyncio.create_task(ask(one)) for one in ("10.0.1.1", "fd00::1")]
    tasks += [asyncio.create_task(ask(f"10.0.0.{n}")) for n in range(20, 40)]
    await asyncio.gather(*tasks)
    assert {"10.0.1.1", "fd00::1"} <= set(done)
    assert set(refused) & {"10.0.1.1", "fd00::1"} == set()
    assert refused.total() + len(done) == len(tasks)
    assert not turns.waiting


async def test_owners_of_one_asker_have_turns_by_size() -> None:
    """Large requests in many owners' names delay a small one by a turn each, and lose their places to it."""
    turns = Turns(1, 12, 12)
    done: list[str] = []
    refused: Counter[str] = Counter()

    async def ask(owner: str, size: int) -> None:
        try:
            async with turns.turn("10.0.0.1", owner, size):
                await asyncio.sleep(0)
                done.append(owner)
        except TooMany:
            refused[owner] += 1

    many = [asyncio.create_task(ask(f"m{n % 4}", 3)) for n in range(20)]
    many += [asyncio.create_task(ask("small", 1)) for _ in range(2)]
    await asyncio.gather(*many)
    assert done.count("small") == 2
    assert done.index("small") <= 4
    assert refused.total() == 16
    assert set(refused) <= {"m0", "m1", "m2", "m3"}
    assert not turns.waiting


async def test_of_equal_requests_the_newest_is_refused() -> None:
    """Otherwise a flood in ever new names would push out each request before its turn."""
    turns = Turns(1, 4, 4)
    await turns.take("10.0.0.1", "first")
    waiting = [asyncio.create_task(turns.take("10.0.0.1", f"m{n}")) for n in range(4)]
    await settled()
    for n in range(4, 8):
        with pytest.raises(TooMany):
            await asyncio.wait_for(turns.take("10.0.0.1", f"m{n}"), PATIENCE / 100)
    for one in waiting:
        turns.give("10.0.0.1")
        await asyncio.wait_for(one, PATIENCE)


@pytest.mark.parametrize("seed", range(5))
async def test_no_place_is_lost_or_given_twice(seed: int) -> None:
    """Askers go away, fail, wait elsewhere or give up meanwhile."""
    chance = random.Random(seed)  # noqa: S311 # not for secrets
    turns = Turns(3, 10, 5)
    inside = 0

    async def ask(name: str) -> None:
        nonlocal inside
        owner, size = str(chance.randrange(2)), chance.randrange(1, 4)
        with contextlib.suppress(TooMany, ValueError):
            async with turns.turn(name, owner, size):
                inside += 1
                assert inside <= 3
                try:
                    for _ in range(chance.randrange(3)):
                        await asyncio.sleep(0)
                    if chance.random() < 0.2:
                        raise ValueError
                finally:
                    inside -= 1

    tasks = []
    for _ in range(400):
        tasks.append(asyncio.create_task(ask(f"10.0.{chance.randrange(3)}.{chance.randrange(4)}")))
        if chance.random() < 0.4:
            chance.choice(tasks).cancel()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not turns.waiting
    async with turns.turn("a"), turns.turn("b"), turns.turn("c"):
        pass


async def test_who_gives_up_as_another_comes_costs_no_place() -> None:
    """The one that would be refused has gone already, in the same round."""
    turns = Turns(1, 2, 5)
    await turns.take("10.0.9.9")
    gone = [asyncio.create_task(turns.take("10.0.0.1")) for _ in range(2)]
    await asyncio.sleep(0)
    for one in gone:
        one.cancel()
    coming = turns.take("10.0.1.1")  # before the others have noticed

    async def gives() -> None:
        turns.give("10.0.9.9")

    async with asyncio.TaskGroup() as group:
        group.create_task(gives())
        await coming
    turns.give("10.0.1.1")

    async with asyncio.timeout(PATIENCE):
        await turns.take("10.0.2.2")


@contextlib.asynccontextmanager
async def served(app: web.Application, limits: Limits) -> AsyncIterator[int]:
    """An application on a port."""
    site = Site(app, limits)
    await site.start("0.0.0.0")  # noqa: S104 # loopback's addresses are several
    try:
        yield site.port
    finally:
        await site.stop()


async def opened(port: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection from an address of this machine's own."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def asked(port: int, address: str, path: str) -> bytes:
    """The first line of the answer."""
    reader, writer = await opened(port, address)
    try:
        writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())
        return await asyncio.wait_for(reader.readline(), PATIENCE)
    finally:
        writer.close()


async def test_pages_are_made_for_each_address_in_turn() -> None:
    """Three hundred connections ask for a page that costs, and another caller is served after a few of them."""
    made: list[str] = []
    begun = asyncio.Event()

    async def page(request: web.Request) -> web.Response:
        for _ in range(5):
            await asyncio.sleep(0)
        made.append(request.remote or "")
        if len(made) > 20:
            begun.set()
        return web.Response(text="x")

    app = web.Application()
    app.router.add_get("/page", page)
    async with served(app, Limits()) as port:
        crowd = [asyncio.create_task(asked(port, STRANGER, "/page")) for _ in range(300)]
        await asyncio.wait_for(begun.wait(), PATIENCE)
        assert b"200" in await asked(port, HONEST, "/page")
        assert (
            len(made) < 200
        )  # before it, while its connection was made, and until it was answered
        await asyncio.gather(*crowd)
        assert len(made) == 301


async def test_one_page_is_made_in_a_round_of_the_loop() -> None:
    """Hundreds of requests arrive together, and no page waits: a verb would wait until all were made."""
    loop = asyncio.get_running_loop()
    now = 0
    rounds: Counter[int] = Counter()

    def count() -> None:
        nonlocal now
        now += 1
        loop.call_soon(count)

    async def page(_request: web.Request) -> web.Response:
        rounds[now] += 1
        return web.Response(text="x")

    async def read(request: web.Request) -> web.Response:
        async with waiting_elsewhere(request):
            pass  # others' answer was in a cache
        rounds[now] += 1
        return web.Response(text="x")

    app = web.Application()
    app.router.add_get("/page", page)
    app.router.add_get("/read", read)
    async with served(app, Limits()) as port:
        loop.call_soon(count)
        paths = ["/page", "/read"] * 100
        answers = await asyncio.gather(*(asked(port, STRANGER, path) for path in paths))
        assert all(b"200" in line for line in answers)
    assert rounds.total() == 200
    assert max(rounds.values()) == 1


async def test_a_request_that_waits_for_others_holds_no_place() -> None:
    """An API server that takes its time to review made-up tokens, or clients that do not read on, delay no page."""
    go_on = asyncio.Event()

    async def reviewed(request: web.Request) -> web.Response:
        async with waiting_elsewhere(request):
            await go_on.wait()
        return web.Response(text="x")

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="x")

    app = web.Application()
    app.router.add_get("/reviewed", reviewed)
    app.router.add_get("/page", page)
    async with served(app, Limits()) as port:
        slow = [asyncio.create_task(asked(port, STRANGER, "/reviewed")) for _ in range(50)]
        await asyncio.sleep(0.05)
        for address in (HONEST, STRANGER):
            assert b"200" in await asked(port, address, "/page")
        go_on.set()
        assert all(b"200" in line for line in await asyncio.gather(*slow))


async def test_a_port_full_of_requests_that_wait_has_room_for_another_address() -> None:
    """The server may close them like idle ones, and makes no page for a closed connection."""
    go_on = asyncio.Event()
    made: Counter[str] = Counter()

    async def page(request: web.Request) -> web.Response:
        if request.remote != HONEST:
            await go_on.wait()
        made[request.remote or ""] += 1
        return web.Response(text="x")

    app = web.Application()
    app.router.add_get("/page", page)
    async with served(app, Limits(connections=32, per_address=24)) as port:
        addresses = [f"127.0.1.{n}" for n in range(1, 3)]
        crowd = [
            asyncio.create_task(asked(port, address, "/page"))
            for address in addresses
            for _ in range(24)
        ]
        await asyncio.sleep(0.1)
        # Waiting connections may hold their places; a third address is served as soon as one of them goes on.
        answer = asyncio.create_task(asked(port, HONEST, "/page"))
        await asyncio.sleep(0.1)
        go_on.set()
        assert b"200" in await answer
        await asyncio.gather(*crowd, return_exceptions=True)
        assert made[HONEST] == 1
        assert made.total() <= 33


async def test_thousands_of_tags_are_not_read_one_by_one() -> None:
    """A caller names the versions that he has; a stranger may name as many as a head holds."""
    steps = 0

    def count(_: object, __: str, ___: object) -> None:
        nonlocal steps
        steps += 1

    handler = next(route.handler for route in page_routes() if route.path == "/")
    request = make_mocked_request("GET", "/", headers={"If-None-Match": 12_000 * '"a",'})
    sys.setprofile(count)
    try:
        answer = await handler(request)
    finally:
        sys.setprofile(None)
    assert answer.status == 200
    assert steps < 500

    known = {"If-None-Match": f'"a", {answer.headers["ETag"]}'}
    assert (await handler(make_mocked_request("GET", "/", headers=known))).status == 304

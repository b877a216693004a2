"""The API server decides whose token may read a namespace, and gets few questions."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from aiohttp import web
from daemon_world import until

from fakes.clock import InstantClock
from partage.daemon.access_review import AccessReviews, ReviewSettings
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.retry import Backoff
from partage.kube.sender import ClientSettings

JANE, JOHN = "Bearer token-of-jane", "Bearer token-of-john"
REVIEW: dict[str, Any] = {"kind": "Review"}


class Judge:
    """An API server that knows Jane and John; Jane may read `team`.

    Attributes:
        asked: how often which kind of review was created.
        last: the last question about access.
        away: answer 500 to everything.
        gate: reviews wait for it.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.last: dict[str, Any] = {}
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def token(self, request: web.Request) -> web.Response:
        """TokenReview."""
        self.asked["token"] += 1
        await self.gate.wait()
        if self.away:
            raise web.HTTPInternalServerError
        token = (await request.json())["spec"]["token"]
        names = {"token-of-jane": "jane", "token-of-john": "john"}
        if token not in names:
            return web.json_response(REVIEW | {"status": {"authenticated": False}})
        user = {"username": names[token], "uid": "7", "groups": ["dev"], "extra": {"a": ["b"]}}
        return web.json_response(REVIEW | {"status": {"authenticated": True, "user": user}})

    async def access(self, request: web.Request) -> web.Response:
        """SubjectAccessReview."""
        self.asked["access"] += 1
        self.last = (await request.json())["spec"]
        where = self.last["resourceAttributes"]["namespace"]
        allowed = self.last["user"] == "jane" and where == "team"
        return web.json_response(REVIEW | {"status": {"allowed": allowed}})


@contextlib.asynccontextmanager
async def judged(**settings: Any) -> AsyncIterator[tuple[Judge, AccessReviews, InstantClock]]:
    """The judge, its caller, and the clock."""
    judge, clock = Judge(), InstantClock()
    app = web.Application()
    app.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", judge.token)
    app.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", judge.access)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = Config(ClusterConfig(f"http://127.0.0.1:{runner.addresses[0][1]}"))
    patience = ClientSettings(attempts=1, backoff=Backoff(base=0.001))
    try:
        async with Client(config, clock=clock, settings=patience) as client:
            paced = client.paced(settings.pop("rate")) if "rate" in settings else client
            yield judge, AccessReviews(paced, ReviewSettings(**settings)), clock
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("authorization", "namespace", "expected", "asked"),
    [
        (JANE, "team", True, 2),
        (JANE, "other", False, 2),
        (JOHN, "team", False, 2),
        ("Bearer forged", "team", False, 1),
        ("", "team", False, 0),
        ("Basic amFuZTp4", "team", False, 0),
        ("Bearer ", "team", False, 0),
        ("Bearer " + "x" * 20_000, "team", False, 0),
        ("bearer token-of-jane", "team", True, 2),
    ],
    ids=["may", "not there", "not he", "forged", "none", "basic", "empty", "huge", "lower case"],
)
async def test_only_whom_the_api_server_allows_may_read(
    authorization: str,
    namespace: str,
    expected: bool,  # noqa: FBT001 # a column of the table
    asked: int,
) -> None:
    """A caller without a token is refused without a question."""
    async with judged() as (judge, readers, _):
        assert await readers.may_read(authorization, namespace) is expected
        assert sum(judge.asked.values()) == asked


async def test_the_whole_identity_is_shown() -> None:
    """Reviews contain groups and extras, because these decide in many clusters."""
    async with judged() as (judge, readers, _):
        await readers.may_read(JANE, "team")
        attributes = {"namespace": "team", "verb": "get", "resource": "pods"}
        assert judge.last == {
            "user": "jane",
            "uid": "7",
            "groups": ["dev"],
            "extra": {"a": ["b"]},
            "resourceAttributes": attributes,
        }


async def test_answers_are_believed_for_a_while_a_no_for_less() -> None:
    """A positive answer lasts a minute, a negative one ten seconds."""
    async with judged() as (judge, readers, clock):
        for _ in range(5):
            assert await readers.may_read(JANE, "team")
            assert not await readers.may_read(JOHN, "team")
        assert judge.asked["token"] == 2
        clock.pass_time(20)
        await readers.may_read(JANE, "team")
        await readers.may_read(JOHN, "team")
        assert judge.asked["token"] == 3
        clock.pass_time(50)
        await readers.may_read(JANE, "team")
        assert judge.asked["token"] == 4


async def test_who_asks_the_same_at_once_shares_the_answer() -> None:
    """Many callers share one question, and a caller that disconnects does not cancel it."""
    async with judged() as (judge, readers, _):
        judge.gate.clear()
        tasks = [asyncio.create_task(readers.may_read(JANE, "team")) for _ in range(10)]
        await until(lambda: judge.asked["token"])
        tasks[0].cancel()
        judge.gate.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[1:] == [True] * 9
        assert judge.asked["token"] == 1


async def asks(
    readers: AccessReviews, token: str, address: str, namespace: str = "team"
) -> object:
    """The answer, or `None` where too many wait."""
    with contextlib.suppress(web.HTTPTooManyRequests):
        return await readers.may_read(f"Bearer {token}", namespace, address)
    return None


def flood(readers: AccessReviews, many: int, address: str) -> list[asyncio.Task[object]]:
    """Made-up tokens from an address, all at once."""
    made_up = (f"made-up-{address}-{number}" for number in range(many))
    return [asyncio.create_task(asks(readers, token, address)) for token in made_up]


async def test_made_up_tokens_cost_the_api_server_little() -> None:
    """Few of any number of strangers wait, each for its turn, and the others get an answer at once."""
    async with judged(rate=20.0) as (judge, readers, clock):
        judge.gate.clear()
        tokens = [one for n in range(100) for one in flood(readers, 20, f"10.0.{n}.1")]
        await until(lambda: sum(task.done() for task in tokens) >= len(tokens) - 64 - 8)
        assert len(readers._asking) <= 64 + 8
        assert sum(task.result() is None for task in tokens if task.done()) >= len(tokens) - 72
        judge.gate.set()
        assert not any(await asyncio.gather(*tokens))
        assert judge.asked["token"] <= 64 + 8
        assert sum(clock.slept) >= 0.99 * (judge.asked["token"] - 40) / 20
        assert await readers.may_read(JANE, "team")


async def test_a_flood_from_one_address_delays_no_other() -> None:
    """An unknown reader waits for the questions in progress and one further question."""
    async with judged(rate=20.0) as (judge, readers, _):
        judge.gate.clear()
        tokens = flood(readers, 1000, "10.0.0.1")
        honest = asyncio.create_task(asks(readers, "token-of-jane", "10.0.0.2"))
        await until(lambda: sum(task.done() for task in tokens) >= 1000 - 16 - 4)
        before = judge.asked["token"]
        judge.gate.set()
        assert await honest
        assert judge.asked["token"] - before <= 8
        await asyncio.gather(*tokens)


async def test_a_network_that_floods_by_many_addresses_gives_up_its_own() -> None:
    """Such a network loses its own places, for any number of its addresses."""
    async with judged(rate=20.0) as (judge, readers, _):
        judge.gate.clear()
        tokens = [one for n in range(200) for one in flood(readers, 3, f"10.0.0.{n}")]
        tokens += [one for n in range(200) for one in flood(readers, 3, f"fd00::{n:x}")]
        await asyncio.sleep(0)
        honest = asyncio.create_task(asks(readers, "token-of-jane", "10.0.1.2"))
        tokens += [one for n in range(200, 250) for one in flood(readers, 3, f"10.0.0.{n}")]
        await until(lambda: sum(task.done() for task in tokens) >= len(tokens) - 72)
        judge.gate.set()
        assert await honest
        await asyncio.gather(*tokens)


async def test_a_token_that_was_good_is_asked_for_beside_every_flood() -> None:
    """Its answer has expired, strangers (also of its address) hold all their places, and the server is slow."""
    async with judged(rate=20.0) as (judge, readers, clock):
        assert await readers.may_read(JANE, "team", "10.0.0.1")
        clock.pass_time(120)
        judge.gate.clear()
        tokens = [one for n in range(100) for one in flood(readers, 8, f"10.{n}.0.1")]
        await until(lambda: sum(task.done() for task in tokens) >= len(tokens) - 72)
        before = judge.asked["token"]
        known = asyncio.create_task(asks(readers, "token-of-jane", "10.0.0.1"))
        await until(lambda: judge.asked["token"] > before)
        judge.gate.set()
        assert await known
        await asyncio.gather(*tokens)


async def test_a_user_who_asks_for_everything_takes_no_turn_of_others() -> None:
    """This holds also for a user with a valid token."""
    async with judged(rate=20.0) as (judge, readers, clock):
        assert await readers.may_read(JANE, "team", "10.0.0.1")
        assert not await readers.may_read(JOHN, "team", "10.0.0.2")
        clock.pass_time(120)
        judge.gate.clear()
        greedy = [
            asyncio.create_task(asks(readers, "token-of-john", "10.0.0.2", f"n{n}"))
            for n in range(1000)
        ]
        await until(lambda: sum(task.done() for task in greedy) >= 1000 - 16 - 4)
        honest = asyncio.create_task(asks(readers, "token-of-jane", "10.0.0.2"))
        before = judge.asked["token"]
        judge.gate.set()
        assert await honest
        assert judge.asked["token"] - before <= 8
        await asyncio.gather(*greedy)


async def test_few_answers_are_kept() -> None:
    """Invented tokens and namespaces cannot fill the memory, and evict no positive answer."""
    async with judged(kept=4) as (judge, readers, _clock):
        assert await readers.may_read(JANE, "team")
        for number in range(20):
            await readers.may_read(f"Bearer made-up-{number}", "team")
            await readers.may_read(JANE, f"team-{number}")
        asked = judge.asked["token"]
        assert await readers.may_read(JANE, "team")
        assert judge.asked["token"] == asked
        assert [len(answers) for answers in readers._answers.values()] == [1, 4]
        assert len(readers._good) == 1
        assert not readers._asking


async def test_an_api_server_that_is_away_allows_nothing_and_is_asked_again() -> None:
    """The service does not store an error as an answer."""
    async with judged() as (judge, readers, _):
        judge.away = True
        assert not await readers.may_read(JANE, "team")
        judge.away = False
        assert await readers.may_read(JANE, "team")


def test_no_token_is_kept() -> None:
    """The stored data cannot be used to sign in."""

    async def story() -> Iterable[object]:
        async with judged() as (_, readers, _clock):
            await readers.may_read(JANE, "team")
            return [readers._answers, readers._good]

    assert "token-of-jane" not in repr(asyncio.run(story()))

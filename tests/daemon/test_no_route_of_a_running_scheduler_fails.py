"""No request on any route of a whole running scheduler gets a 5xx.

The service itself lists its routes, so that the tests also try new ones.
"""

import asyncio
import copy
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlsplit

from daemon_world import PATIENCE, World, pod, until, world

from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.extender.server import Faces
from partage.serving.access import Access
from partage.serving.limits import Limits
from partage.webhook.server import review_routes

Manifest = dict[str, Any]
LIMITS = Limits(patience=1.0, idle=1.0)
TRIES = 40
SEED = 4
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "\x00",
    "ü" * 50,
    "a" * 400,
    "n0",
    "1e99",
    "8Gi",
    [],
    {},
    [None],
    {"": None},
    [[]],
    {"n0": {"Pods": [None]}},
    "koordinator.sh/gpu",
    "unheard-of",
)
TEXTS = ("n0", "default", "a", "", ".", "..", "%", "\x00", "ü", "a/b", "a" * 300, "?x=1", "-1")
QUERIES = (
    "",
    "?limit=-1",
    "?limit=x&continue=%00",
    "?namespace=&text=%ff",
    "?order=used&only=free",
    "?state=waiting&page=99999999999999999999",
    "?a=1&a=2&=",
    "?watch=true",
)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[World, SchedulerDaemon]]:
    """A scheduler with all its routes, and one pod that is placed and one that waits."""
    async with world(nodes=2) as cluster:
        made: list[SchedulerDaemon] = []
        routes = review_routes(lambda: made[0].service.books.cluster_cache.translation.context)
        options = SchedulerOptions(faces=Faces(Access(plain=True), LIMITS))
        made.append(SchedulerDaemon(await cluster.client(), options, routes=routes))
        async with made[0] as daemon:
            await cluster.pod("a", HALF)
            await cluster.pod("b", {"koordinator.sh/gpu": "900"})
            await cluster.schedule(daemon.url, "a")
            await cluster.schedule(daemon.url, "b")
            yield cluster, daemon


async def exchange(daemon: SchedulerDaemon, data: bytes) -> tuple[int, bytes]:
    """Send bytes, and read the beginning of the answer; status 0 when there is none."""
    where = urlsplit(daemon.url)
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(data)
            await writer.drain()
            answer = await reader.read(4096)
        except OSError:
            return 0, b""
        finally:
            writer.close()
    first = answer.split(b" ", 2)
    return (int(first[1]) if len(first) > 1 else 0), answer


def request(method: str, target: str, body: bytes = b"", *, length: int | None = None) -> bytes:
    """A request after which the connection is closed."""
    size = len(body) if length is None else length
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def bodies(stored: Manifest) -> list[Manifest]:
    """One right body for each kind of POST."""
    review = {
        "uid": "1",
        "resource": {"resource": "pods"},
        "operation": "CREATE",
        "object": stored,
    }
    return [
        {"Pod": stored, "Nodes": None, "NodeNames": ["n0", "n1", "unheard-of"]},
        {"Pod": stored, "Nodes": {"items": [{"metadata": {"name": "n0"}}]}},
        {"PodName": "a", "PodNamespace": "default", "PodUID": "of-nobody", "Node": "n0"},
        {"Pod": stored, "NodeNameToMetaVictims": {"n0": {"Pods": [{"UID": "x"}]}}},
        {"Pod": stored, "NodeNameToVictims": {"n0": {"Pods": [stored]}}},
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": review},
    ]


def spoiled(body: Any, chance: random.Random) -> Any:
    """The body with one to three values, anywhere in it, replaced or left out."""
    made = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        here, depth = made, chance.randint(1, 7)
        while depth and isinstance(here, dict | list) and here:
            key = chance.choice(list(here) if isinstance(here, dict) else range(len(here)))
            depth -= 1
            if depth and isinstance(here[key], dict | list) and here[key]:
                here = here[key]
                continue
            if chance.randrange(4):
                here[key] = chance.choice(JUNK)
            else:
                del here[key]
            break
    return made


async def test_every_route_bears_anything() -> None:
    """Odd paths, odd queries, bodies with a wrong value anywhere, and bytes that are no JSON."""
    chance = random.Random(SEED)  # noqa: S311 # reproducible on purpose
    async with served() as (_, daemon):
        stored = pod("c", HALF)
        stored["metadata"]["uid"] = "uid-c"
        right = bodies(stored)
        paths = {path for _, path in daemon.routes}
        assert {"/", "/metrics", "/scheduler/bind", "/webhook/mutate", "/api/config"} <= paths

        for method, path in daemon.routes:
            for number in range(TRIES):
                target = path
                while "{" in target:
                    before, _, rest = target.partition("{")
                    target = before + quote(chance.choice(TEXTS), safe="") + rest.partition("}")[2]
                body = b""
                if method == "POST" and number % 8:
                    wrong = spoiled(chance.choice(right), chance)
                    body = json.dumps(wrong).encode(errors="surrogatepass")
                elif number % 2:
                    body = chance.randbytes(chance.randrange(80))
                status, answer = await exchange(
                    daemon, request(method, target + chance.choice(QUERIES), body)
                )
                assert 0 < status < 500, (method, target, body, answer)

        daemon.service.books.engine.ledger.validate()
        assert daemon.service.audit().clean


async def _burdened(daemon: SchedulerDaemon, path: str) -> None:
    huge, deep, slow = [
        (await exchange(daemon, data))[0]
        for data in (
            request("POST", path, b"[" * (10 * 2**20 + 1)),
            request("POST", path, b"[" * (10 * 2**20 - 1)),
            request("POST", path, b'{"Pod":', length=500),
        )
    ]
    assert huge in (0, 413), path
    assert deep < 500, path
    assert slow in (0, 408), path


async def test_slow_broken_and_huge_clients_harm_nobody() -> None:
    """Ten megabytes and more, a body that never arrives, and a connection without use or end."""
    async with served() as (cluster, daemon):
        where = urlsplit(daemon.url)
        open_ = [await asyncio.open_connection(where.hostname, where.port) for _ in range(20)]
        for number, (_, writer) in enumerate(open_):
            writer.write(
                (b"", b"POST /scheduler/filter HT", b"GET / HTTP/1.1\r\nHost:")[number % 3]
            )
        posts = [path for method, path in daemon.routes if method == "POST"]

        await asyncio.gather(*(_burdened(daemon, path) for path in posts))

        assert await cluster.schedule(daemon.url, "a") in ("", "n0", "n1")
        await cluster.pod("d", HALF)
        assert await cluster.schedule(daemon.url, "d")
        await until(lambda: cluster.placed("d"))
        for _, writer in open_:
            writer.close()

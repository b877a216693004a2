"""An embedded cluster in this process, and a plain HTTP client that plays its user."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from partage.daemon.informers import _Followed
from partage.embedded.cluster import EmbeddedCluster, Plan
from partage.embedded.fleet import DEFAULT_FLEET, SimulatedNode, node_of
from partage.embedded.manifests import Manifest, read

Document = dict[str, Any]

PATIENCE = 240.0
"""Seconds that a test waits for what must come; a loaded machine may take long."""

EXAMPLES = Path(__file__).parents[2] / "examples"
PODS = "/api/v1/namespaces/default/pods"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
HEALTH = ("/healthz", "/readyz")


@dataclass
class World:
    """A running cluster and its client."""

    cluster: EmbeddedCluster
    http: aiohttp.ClientSession

    async def heard(self) -> None:
        """Wait until the scheduler service has heard of all that was written so far: it watches the API server as any client."""
        daemon, store = self.cluster._daemon, self.cluster.server.store
        assert daemon is not None
        written = {}
        for followed in daemon._feed._followed:
            resource = followed.watched.scope.resource
            history = store.history(f"{resource.plural}.{resource.group}".rstrip("."))
            if history.end:
                (last,) = history.after(history.end - 1)
                written[followed] = last.record.revision
        async with asyncio.timeout(PATIENCE):
            while not all(map(_has_heard, written, written.values())):  # noqa: ASYNC110 # no event tells
                await asyncio.sleep(0.01)

    async def get(self, path: str, *, scheduler: bool = False, code: int = 200) -> Any:
        """Reads from the API server, or from the scheduler's port what it says of all that was written before."""
        if scheduler and path not in HEALTH:
            await self.heard()
        where = self.cluster.addresses
        url = (where.scheduler if scheduler else where.api) + path
        async with self.http.get(url) as answer:
            text = await answer.text()
            assert answer.status == code, text
            return json.loads(text) if "json" in answer.content_type else text

    async def send(
        self, method: str, path: str, body: Any, media: str = "application/json"
    ) -> tuple[int, Document]:
        """Writes; the code and the answer."""
        url = self.cluster.addresses.api + path
        data = json.dumps(body)
        async with self.http.request(
            method, url, data=data, headers={"Content-Type": media}
        ) as answer:
            return answer.status, await answer.json()

    async def create(self, path: str, body: Document) -> Document:
        """Creates."""
        code, answer = await self.send("POST", path, body)
        assert code == 201, answer
        return answer

    async def patch(self, path: str, body: Document) -> Document:
        """Merges a change."""
        code, answer = await self.send("PATCH", path, body, "application/merge-patch+json")
        assert code == 200, answer
        return answer

    async def pod(self, name: str) -> Document:
        """A pod of the default namespace."""
        return dict(await self.get(f"{PODS}/{name}"))

    async def until(self, name: str, true: Callable[[Document], object]) -> Document:
        """The pod, once something is true of it."""
        return await eventually(lambda: self.pod(name), true)

    async def state(self, node: str) -> Document:
        """What the books say of a node."""
        await self.heard()
        return next(asdict(one) for one in self.cluster.overview().nodes if one.name == node)

    async def phase(self, name: str, phase: str) -> Document:
        """The pod, once it is in a phase and the service has heard of it."""
        found = await self.until(name, lambda pod: pod["status"].get("phase") == phase)
        await self.heard()
        return found

    async def refused(self, name: str) -> str:
        """Why the pod waits, once its status says so and the service has heard of it."""
        found = await self.until(name, _unscheduled)
        await self.heard()
        return str(_unscheduled(found))


def _has_heard(followed: _Followed, revision: int) -> bool:
    """Whether the service knows a kind as it was at a revision, and has nothing of it to read later."""
    known = followed.informer._mirror.resource_version
    return int(known or 0) >= revision and not (followed._pace and followed._pace._late)


def _unscheduled(pod: Document) -> str:
    for one in pod["status"].get("conditions", ()):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one["message"])
    return ""


async def eventually(
    ask: Callable[[], Awaitable[Document]], true: Callable[[Document], object]
) -> Document:
    """The answer, once something is true of it."""
    end = time.monotonic() + PATIENCE
    while True:
        found = await ask()
        if true(found):
            return found
        assert time.monotonic() < end, f"what was waited for did not come true: {found}"
        await asyncio.sleep(0.02)


def node(
    name: str = "n0", model: str = "A100-SXM4-80GB", cards: int = 2, **more: Any
) -> SimulatedNode:
    """A simulated node."""
    return node_of(name, model, cards, **more)


def pod(
    name: str,
    limits: Mapping[str, Any] | None = None,
    *,
    meta: Document | None = None,
    container: Document | None = None,
    **spec: Any,
) -> Document:
    """A pod with one container."""
    inner = {"name": "main", "image": "busybox", **(container or {})}
    if limits:
        inner["resources"] = {"limits": dict(limits)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(meta or {})},
        "spec": {"containers": [inner], **spec},
    }


@contextlib.asynccontextmanager
async def running(
    nodes: Iterable[SimulatedNode] = DEFAULT_FLEET, objects: Iterable[Manifest] = (), **plan: Any
) -> AsyncIterator[World]:
    """A cluster of these nodes."""
    made = EmbeddedCluster(Plan(simulated=tuple(nodes), objects=tuple(objects), **plan))
    async with made as cluster, aiohttp.ClientSession() as session:
        yield World(cluster, session)


def from_files(*paths: Path) -> Any:
    """What files describe."""
    return read(paths)


def run(story: Coroutine[Any, Any, None]) -> None:
    """Runs a story to its end."""
    asyncio.run(story)

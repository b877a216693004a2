"""Controllers beside a real API server in one process, and the documents that they look at."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fakes.clock import SteppedClock
from partage.apiserver import ApiServer, serve
from partage.apiserver.storage import Change
from partage.controllers.manager import Controllers, ControllerSettings
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.recorder import Regarding
from partage.kube.retry import Backoff
from partage.kube.sender import ClientSettings
from partage.wire.documents import Document, decode

Manifest = dict[str, Any]
SLOWEST = 240.0
"""Seconds that a slow machine may take; nothing is measured by them."""


def document(manifest: Manifest) -> Document:
    """The manifest decoded."""
    (found,) = decode("test.json", json.dumps(manifest).encode()).documents
    return found


class Ears:
    """Hears events.

    Attributes:
        heard: kind of object, name, Normal or Warning, and reason.
        said: the newest message by reason.
    """

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str, str]] = []
        self.said: dict[str, str] = {}

    def normal(self, regarding: Regarding, reason: str, message: str) -> None:
        """See `EventRecorder`."""
        self.heard.append((regarding.kind, regarding.name, "Normal", reason))
        self.said[reason] = message

    def warning(self, regarding: Regarding, reason: str, message: str) -> None:
        """See `EventRecorder`."""
        self.heard.append((regarding.kind, regarding.name, "Warning", reason))
        self.said[reason] = message


class World:
    """A server with its controllers; changes reach them at once.

    Attributes:
        deaf: kinds of change that do not reach the controllers, as in a gap of a watch.
    """

    def __init__(self, server: ApiServer, client: Client, settings: ControllerSettings) -> None:
        self.server = server
        self.client = client
        self.clock = SteppedClock()
        self.ears = Ears()
        self.deaf: set[str] = set()
        self.controllers = Controllers(client, self.ears, clock=self.clock, settings=settings)
        server.store.observers.append(self._saw)

    def _saw(self, change: Change) -> None:
        resource, gone = change.record.resource, change.kind == "DELETED"
        if resource in self.deaf or resource not in ("nodes", "pods", "configmaps"):
            return
        found = document(
            {
                "kind": {"nodes": "Node", "pods": "Pod"}.get(resource, "ConfigMap"),
                **change.record.value,
            }
        )
        tell = self.controllers.gone if gone else self.controllers.changed
        tell(found)

    def tell(self, manifest: Manifest) -> None:
        """A Device object is there; the server does not know the kind, nor do controllers write it."""
        self.controllers.changed(document(manifest))

    async def create(self, resource: str, manifest: Manifest) -> Manifest:
        """Create an object, with its status, and return it as it is then."""
        namespace = manifest["metadata"].get("namespace", "")
        await self.server.create(resource, manifest, namespace)
        if "status" in manifest:
            await self.server.patch(
                resource,
                namespace,
                manifest["metadata"]["name"],
                {"status": manifest["status"]},
                sub="status",
            )
        return self.get(resource, manifest["metadata"]["name"], namespace)

    def get(self, resource: str, name: str, namespace: str = "") -> Manifest:
        """An object as it is now."""
        record = self.server.store.get(resource, namespace, name)
        assert record is not None, name
        found: Manifest = json.loads(json.dumps(record.value))
        return found

    def totals(self, name: str = "n1", part: str = "allocatable") -> dict[str, str]:
        """What the node reports of devices."""
        found = self.get("nodes", name)["status"].get(part, {})
        return {key: value for key, value in found.items() if "/" in key}

    def version(self, resource: str, name: str, namespace: str = "") -> str:
        """The object's resourceVersion."""
        found: str = self.get(resource, name, namespace)["metadata"]["resourceVersion"]
        return found

    async def settled(self) -> None:
        """Until everything was looked at."""
        async with asyncio.timeout(SLOWEST):
            for _ in range(3):
                await asyncio.sleep(0)
            while not self.controllers.idle:  # noqa: ASYNC110 # no event tells of rest
                await asyncio.sleep(0.002)

    async def until(self, met: Callable[[], bool]) -> None:
        """Until something holds, which may take several looks."""
        async with asyncio.timeout(SLOWEST):
            while not met():  # noqa: ASYNC110 # whatever the test waits for
                await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """While the controllers run; their first look is over when this begins."""
        task = asyncio.create_task(self.controllers.run())
        try:
            await self.settled()
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def writes(self) -> float:
        """How many changes the controllers have made."""
        return sum(
            sample.value
            for metric in self.controllers.meters.registry.collect()
            for sample in metric.samples
            if sample.name == "partage_controller_writes_total"
            and sample.labels["outcome"] == "done"
        )

    def sample(self, name: str, **labels: str) -> float | None:
        """One value of the metrics."""
        return self.controllers.meters.registry.get_sample_value(name, labels)


@contextlib.asynccontextmanager
async def world_of(**settings: Any) -> AsyncIterator[World]:
    """A world beside a fresh server."""
    server = ApiServer()
    async with serve(server) as url:
        config = Config(ClusterConfig(url))
        patience = ClientSettings(attempts=2, backoff=Backoff(base=0.001, cap=0.01))
        async with Client(config, settings=patience) as client:
            yield World(server, client, ControllerSettings(**settings))


def node(name: str = "n1", **fields: Any) -> Manifest:
    """A Node; labels and annotations by name, further totals as `totals`."""
    more = {key: fields[key] for key in ("labels", "annotations") if key in fields}
    ordinary = {"cpu": "32", "memory": "64Gi", "pods": "110", **fields.get("totals", {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **more},
        "status": {"capacity": dict(ordinary), "allocatable": dict(ordinary)},
    }


def card(
    minor: int, memory: str = "16Gi", domain: str = "koordinator.sh", **more: Any
) -> Manifest:
    """A card of a Device object."""
    amounts = {"gpu-core": "100", "gpu-memory": memory, "gpu-memory-ratio": "100"}
    resources = {f"{domain}/{key}": value for key, value in amounts.items()}
    return {
        "type": "gpu",
        "id": f"GPU-{minor}",
        "minor": minor,
        "health": True,
        "resources": resources,
        **more,
    }


def device(name: str = "n1", *cards: Manifest, version: int = 1, **labels: str) -> Manifest:
    """A Device object; it has two cards by default."""
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {
            "name": name,
            "uid": f"device-{name}",
            "resourceVersion": str(version),
            "labels": labels,
        },
        "spec": {"devices": list(cards) or [card(0), card(1)]},
    }

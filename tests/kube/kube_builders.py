"""Objects, clients and waiting, for the tests of the API client."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from fakes.clock import InstantClock
from fakes.kube_server import KubeServer
from partage.kube.client import Client
from partage.kube.clock import Clock
from partage.kube.config import ClusterConfig, Config, UserConfig
from partage.kube.objects import Meta
from partage.kube.resources import PODS
from partage.kube.retry import Backoff
from partage.kube.sender import ClientSettings
from partage.kube.transport import TransportSettings
from partage.kube.watch import WatchSettings

PODS_PATH = PODS.path()


class PodMeta(Meta, frozen=True):
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    priority: int = 0


class Pod(msgspec.Struct, frozen=True):
    metadata: PodMeta
    spec: PodSpec = PodSpec()


def pod(name: str = "a", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """A pod as a document, without version and UID."""
    meta = {"name": name, "namespace": namespace}
    spec["containers"] = [{"name": "main", "image": "image"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def put(server: KubeServer, name: str = "a", namespace: str = "default", **spec: Any) -> Pod:
    """Create a pod, or change its spec, behind the API's back."""
    store = server.store
    known = {key["metadata"]["name"] for key in store.list(PODS_PATH, namespace)}
    document = pod(name, namespace, **spec)
    if name in known:
        stored = store.update(PODS_PATH, namespace, name, document)
    else:
        stored = store.create(PODS_PATH, namespace, document)
    return msgspec.convert(stored, Pod)


def remove(server: KubeServer, name: str = "a", namespace: str = "default") -> None:
    """Delete a pod behind the API's back."""
    server.store.delete(PODS_PATH, namespace, name)


def client_of(
    server: KubeServer | str,
    *,
    user: UserConfig | None = None,
    clock: Clock | None = None,
    cluster: dict[str, Any] | None = None,
    transport: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    **settings: Any,
) -> Client:
    """A client that is not yet open, and that by default waits for nothing."""
    url = server if isinstance(server, str) else server.url
    settings.setdefault("backoff", Backoff(base=0.1, jitter=0.0))
    return Client(
        Config(ClusterConfig(url, **(cluster or {})), user or UserConfig()),
        settings=ClientSettings(transport=TransportSettings(**(transport or {})), **settings),
        clock=clock or InstantClock(),
        chance=lambda: 0.0,
        environ=environ,
    )


async def eventually(condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Wait for real sockets to have carried something, a moment at a time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def stopped(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.wait((task,))


def started(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task in the background."""
    return asyncio.create_task(coroutine, name="test")


def written(path: Path, text: str) -> Path:
    """A file with this text, its folders made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


QUICK = WatchSettings(duration=60, idle=5.0, backoff=Backoff(base=0.2, jitter=0.0))

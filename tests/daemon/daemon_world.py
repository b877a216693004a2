"""An embedded API server with nodes of cards, and a client that plays kube-scheduler."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from fakes.leases import given_back
from partage.apiserver import ApiServer, DeleteOptions, Settings, serve
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.vendors import names

Manifest = dict[str, Any]

PATIENCE = 240.0
"""Seconds that a test waits for what must come; a loaded machine may take long."""

DEVICE_KIND: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "devices.scheduling.koordinator.sh"},
    "spec": {
        "group": "scheduling.koordinator.sh",
        "scope": "Cluster",
        "names": {"plural": "devices", "singular": "device", "kind": "Device"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


def node(name: str) -> Manifest:
    """A Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
    }


def device(name: str, cards: int = 2) -> Manifest:
    """A Device object."""
    resources = {"gpu-core": "100", "gpu-memory": "16Gi", "gpu-memory-ratio": "100"}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": f"GPU-{name}-{minor}",
                    "minor": minor,
                    "health": True,
                    "resources": {f"koordinator.sh/{k}": v for k, v in resources.items()},
                }
                for minor in range(cards)
            ]
        },
    }


def pod(name: str, limits: Mapping[str, str] | None = None, **spec: Any) -> Manifest:
    """A pod of one container, by default with a whole card."""
    amounts = {"koordinator.sh/gpu": "100"} if limits is None else dict(limits)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "partage-scheduler",
            "containers": [
                {
                    "name": "main",
                    "image": "example.com/main:1",
                    "resources": {"limits": amounts, "requests": amounts},
                }
            ],
            **spec,
        },
    }


@dataclass
class World:
    """A cluster's API, and how to reach it."""

    api: ApiServer
    url: str
    clients: contextlib.AsyncExitStack
    http: aiohttp.ClientSession
    names: list[str] = field(default_factory=list)

    async def client(self, url: str = "") -> Client:
        """A new client, open for as long as the world lasts."""
        config = Config(ClusterConfig(url or self.url))
        return await self.clients.enter_async_context(Client(config))

    async def nodes(self, count: int, cards: int = 2) -> None:
        """So many nodes more, named n0, n1 and on."""
        for _ in range(count):
            name = f"n{len(self.names)}"
            self.names.append(name)
            await self.api.create("nodes", node(name))
            await self.api.create("devices.scheduling.koordinator.sh", device(name, cards))

    async def pod(self, name: str, limits: Mapping[str, str] | None = None, **spec: Any) -> str:
        """A new pod; its uid."""
        record = await self.api.create("pods", pod(name, limits, **spec), "default")
        return str(record.value["metadata"]["uid"])

    async def delete(self, name: str) -> None:
        """Delete a pod at once, as the kubelet does in the end."""
        await self.api.delete("pods", "default", name, DeleteOptions(grace=0))

    def stored(self, name: str, resource: str = "pods", namespace: str = "default") -> Manifest:
        """An object as the API server has it."""
        record = self.api.store.get(resource, namespace, name)
        assert record is not None, f"{resource} {name} is not there"
        return dict(record.value)

    def placed(self, name: str) -> str:
        """The node of a pod, empty when it has none."""
        return str(self.stored(name)["spec"].get("nodeName", ""))

    async def ask(self, url: str, verb: str, body: Manifest) -> Any:
        """One call of the extender."""
        async with self.http.post(f"{url}/scheduler/{verb}", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def filter(self, url: str, name: str) -> Manifest:
        """Filter all nodes for a pod."""
        body = {"Pod": self.stored(name), "NodeNames": self.names}
        return dict(await self.ask(url, "filter", body))

    async def bind(self, url: str, name: str, node: str) -> str:
        """Bind a pod; the error, empty when there is none."""
        uid = self.stored(name)["metadata"]["uid"]
        body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
        return str((await self.ask(url, "bind", body))["Error"])

    async def schedule(self, url: str, name: str) -> str:
        """What kube-scheduler does with a pod; the node, or empty with nothing bound."""
        found = await self.filter(url, name)
        if found.get("Error") or not found["NodeNames"]:
            return ""
        chosen = str(found["NodeNames"][0])
        return "" if await self.bind(url, name, chosen) else chosen

    def taken(self) -> Counter[tuple[str, str]]:
        """Thousandths of each card that bound pods' records hold, from the store alone."""
        found: Counter[tuple[str, str]] = Counter()
        for record in self.api.store.all("pods"):
            place = record.value["spec"].get("nodeName")
            text = record.value["metadata"].get("annotations", {}).get(names.ALLOCATION)
            if not place or text is None:
                continue
            for container in json.loads(text)["containers"]:
                for grant in container["devices"]:
                    found[place, grant["uuid"]] += grant["milli"]
        assert all(milli <= 1000 for milli in found.values()), f"I1: {found}"
        return found

    def events(self, name: str) -> list[Manifest]:
        """Events about an object."""
        return [
            dict(record.value)
            for record in self.api.store.all("events")
            if record.value["involvedObject"]["name"] == name
        ]


@contextlib.asynccontextmanager
async def world(
    nodes: int = 1, cards: int = 2, settings: Settings | None = None
) -> AsyncIterator[World]:
    """A cluster with so many nodes of so many cards."""
    api = ApiServer(settings)
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve(api))
        await api.create("customresourcedefinitions.apiextensions.k8s.io", DEVICE_KIND)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        clients = await stack.enter_async_context(contextlib.AsyncExitStack())
        made = World(api, url, clients, http)
        await made.nodes(nodes, cards)
        lease = given_back("partage-scheduler", "default")
        await api.create("leases.coordination.k8s.io", lease, "default")
        yield made


async def until(true: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for something that must come true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "what was waited for did not come true"
        await asyncio.sleep(0.01)

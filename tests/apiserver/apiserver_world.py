"""A server on loopback and a plain HTTP client, for the tests of this folder."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from partage.apiserver import ApiServer, Settings, serve
from partage.apiserver.metadata import Ambient

PODS = "/api/v1/namespaces/default/pods"
JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass
class FixedAmbient:
    """A clock that stands still until it is set, and chance that counts."""

    seconds: float = 1_700_000_000.0
    drawn: int = 0

    def uid(self) -> str:
        """A new UUID."""
        self.drawn += 1
        return f"00000000-0000-4000-8000-{self.drawn:012x}"

    def suffix(self) -> str:
        """Five new characters."""
        self.drawn += 1
        return f"{self.drawn:05d}"

    def ambient(self) -> Ambient:
        """This clock and chance."""
        return Ambient(now=lambda: self.seconds, uid=self.uid, suffix=self.suffix)


@dataclass
class Answer:
    """What came back."""

    code: int
    body: Any
    headers: dict[str, str]
    warnings: list[str] = field(default_factory=list)

    @property
    def message(self) -> str:
        """The Status's message."""
        return self.body.get("message", "") if isinstance(self.body, dict) else str(self.body)

    @property
    def reason(self) -> str:
        """The Status's reason."""
        return str(self.body.get("reason", ""))


@dataclass
class World:
    """A running server and its client."""

    server: ApiServer
    url: str
    session: aiohttp.ClientSession
    around: FixedAmbient

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = JSON,
        accept: str = JSON,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> Answer:
        """Sends one request."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Accept": accept, **(headers or {})}
        if data is not None:
            sent["Content-Type"] = media
        async with self.session.request(
            method,
            self.url + path,
            data=io.BytesIO(data) if data else data,
            headers=sent,
            params=query,
        ) as response:
            raw = await response.read()
            found = response.headers.get("Content-Type", "")
            decoded = json.loads(raw) if found.startswith(JSON) and raw else raw.decode()
            return Answer(
                response.status,
                decoded,
                dict(response.headers),
                response.headers.getall("Warning", []),
            )

    async def get(self, path: str, **query: Any) -> Answer:
        """Reads."""
        return await self.ask("GET", path, **query)

    async def post(self, path: str, body: Any, **query: Any) -> Answer:
        """Creates."""
        return await self.ask("POST", path, body, **query)

    async def put(self, path: str, body: Any, **query: Any) -> Answer:
        """Replaces."""
        return await self.ask("PUT", path, body, **query)

    async def patch(self, path: str, body: Any, media: str = MERGE, **query: Any) -> Answer:
        """Patches."""
        return await self.ask("PATCH", path, body, media=media, **query)

    async def delete(self, path: str, body: Any = None, **query: Any) -> Answer:
        """Deletes."""
        return await self.ask("DELETE", path, body, **query)

    async def watch(self, path: str, **query: str) -> list[dict[str, Any]]:
        """The events of a watch that ends by itself after a second."""
        params = {"watch": "1", "timeoutSeconds": "1", **query}
        async with self.session.get(self.url + path, params=params) as response:
            assert response.status == 200, await response.text()
            text = await response.read()
        return [json.loads(line) for line in text.splitlines()]


Story = Callable[[World], Awaitable[None]]


def run(story: Story, settings: Settings | None = None, *, port: int = 0) -> None:
    """Runs a story against a fresh server."""

    async def main() -> None:
        around = FixedAmbient()
        server = ApiServer(settings, around.ambient())
        async with (
            serve(server, port=port) as url,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        ):
            await story(World(server, url, session, around))

    asyncio.run(main())


def ok(answer: Answer, code: int = 200) -> Any:
    """The body of an answer with the code expected."""
    assert answer.code == code, answer.body
    return answer.body


def pod(name: str = "web", **spec: Any) -> dict[str, Any]:
    """A pod with one container."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "busybox"}], **spec},
    }


def sized(
    limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A pod whose container has limits and requests."""
    resources = {}
    if limits is not None:
        resources["limits"] = limits
    if requests is not None:
        resources["requests"] = requests
    return pod(containers=[{"name": "main", "image": "busybox", "resources": resources}])


def config(name: str = "settings", **data: str) -> dict[str, Any]:
    """A ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def named(value: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """An object with more metadata."""
    return {**value, "metadata": {**value["metadata"], **metadata}}


def deployment(name: str = "web", replicas: int = 1) -> dict[str, Any]:
    """A Deployment of one container."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "busybox"}]},
            },
        },
    }


def definition(**version: Any) -> dict[str, Any]:
    """A namespaced custom resource `widgets.example.com`."""
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "maximum": 10},
                    "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                    "replicas": {"type": "integer"},
                },
            },
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
        },
    }
    one = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        **version,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [one],
        },
    }


def widget(name: str = "one", **spec: Any) -> dict[str, Any]:
    """A custom object."""
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": 3, **spec},
    }


WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

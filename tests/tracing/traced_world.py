"""An embedded cluster whose pods are traced, and its user."""

import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from collector import Collector, Received

from partage.embedded.cluster import EmbeddedCluster, Plan
from partage.embedded.fleet import DEFAULT_FLEET
from partage.tracing.otlp import live_tracer
from partage.tracing.tracer import LiveTracer
from span_page import ATTRIBUTES, EVENTS, SPANS

PODS = "/api/v1/namespaces/default/pods"
WHO = {"k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid"}


def tracer(service: str = "partage-test") -> LiveTracer:
    """A tracer as the environment wants it, soon."""
    found = live_tracer(
        service, {"OTEL_BSP_SCHEDULE_DELAY": "5"}, time.time_ns, random.getrandbits
    )
    assert found is not None
    return found


def pod(name: str, memory: str = "1000", **annotations: str) -> dict[str, Any]:
    """A pod with a part of a card, by HAMi's names."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": memory}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]},
    }


@dataclass
class World:
    """A cluster and its API."""

    cluster: EmbeddedCluster
    http: aiohttp.ClientSession

    async def create(self, body: dict[str, Any], path: str = PODS) -> tuple[dict[str, Any], str]:
        """Created, and what was warned of."""
        url = self.cluster.addresses.api + path
        async with self.http.post(url, json=body) as answer:
            found = await answer.json()
            assert answer.status == 201, found
            return found, answer.headers.get("Warning", "")

    async def pod(self, name: str) -> dict[str, Any]:
        """As it is now."""
        async with self.http.get(f"{self.cluster.addresses.api}{PODS}/{name}") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def delete(self, name: str) -> None:
        """Be gone."""
        url = f"{self.cluster.addresses.api}{PODS}/{name}"
        async with self.http.delete(url) as answer:
            assert answer.status < 300


@contextlib.asynccontextmanager
async def traced(live: LiveTracer, **plan: Any) -> AsyncIterator[World]:
    """A cluster with simulated nodes."""
    given = Plan(simulated=DEFAULT_FLEET, tracer=live, **plan)
    async with EmbeddedCluster(given) as cluster, aiohttp.ClientSession() as http:
        yield World(cluster, http)


def of_pod(collector: Collector, uid: str, name: str) -> list[Received]:
    """The spans of one pod; its admission comes before its UID."""
    return [
        one
        for one in collector.spans
        if one.attributes.get("k8s.pod.uid") == uid
        or (one.name == "partage.admit" and one.attributes.get("k8s.pod.name") == name)
    ]


def sound(spans: list[Received], above: str = "") -> dict[str, list[Received]]:
    """The spans by name, once they are found to be one connected trace and as documented.

    Args:
        spans: of one pod.
        above: the author's span that they hang under.
    """
    assert len({one.trace for one in spans}) == 1
    ids = {one.id for one in spans}
    assert len(ids) == len(spans)
    roots = [one for one in spans if one.parent not in ids]
    assert [one.parent for one in roots] == [above], [one.name for one in roots]
    for one in spans:
        assert set(one.attributes) <= SPANS[one.name][1] | WHO, one
        assert one.start <= one.end
        for name, more in one.events:
            assert name in EVENTS
            assert set(more) <= ATTRIBUTES
        for value in one.attributes.values():
            assert len(str(value)) < 2000
    by: dict[str, list[Received]] = {}
    for one in spans:
        by.setdefault(one.name, []).append(one)
    return by


Condition = Callable[[Collector], object]

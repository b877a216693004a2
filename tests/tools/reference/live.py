"""Pages made by asking: what a live cluster's programs serve, and which series they export.

The cluster is the embedded one with the examples of all four protocols, asked once pods were
bound, were refused and got hardware instances; beside it a webhook and an agent's meters.
"""

import asyncio
import json
import ssl
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import aiohttp
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from partage.agent.discovery.found import CardUse
from partage.agent.held_allocations import Holding
from partage.agent.metrics import Books, NodeSeries, Tallies
from partage.agent.notes import Notes
from partage.agent.uses import Use
from partage.daemon.isolation_status import StatementSeries
from partage.daemon.mps import MpsDaemon
from partage.daemon.webhook import WebhookDaemon, WebhookOptions
from partage.embedded.cluster import EmbeddedCluster, Plan
from partage.embedded.manifests import examples, read
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.serving.tls import ServerTls
from partage.tracing.tracer import NO_TRACES, SpanSeries
from partage.webhook.certificates import Bundle, renewed
from reference.pages import HEAD, table

__all__ = ["Exported", "Route", "exported", "routes_page", "series_page"]

SCRAPE: Final = ("instance", "job")
"""Labels that Prometheus adds to every series."""
_PATIENCE: Final = 120.0
_WORKED: Final = (
    'partage_decisions_total{outcome="done",verb="bind"}',
    'partage_verb_seconds_bucket{le="+Inf",verb="bind"}',
    "partage_controller_writes_total{",
    "partage_waiting_pods{",
    "hami_node_gpu_mig_instance_info{",
    "hami_vgpu_memory_allocated_bytes{",
)


@dataclass(frozen=True, slots=True)
class Route:
    """One path that is served.

    Attributes:
        program: which command serves it.
        keys: top-level keys of the JSON that a live one answers; empty for other answers.
    """

    program: str
    method: str
    path: str
    keys: tuple[str, ...] = ()


@dataclass(slots=True)
class Exported:
    """What was found.

    Attributes:
        series: names as expressions name them (`_total` and `_bucket` included), with the values
            that were seen of each label.
        families: type and text of help, by program and name.
        routes: every path.
    """

    series: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    families: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)

    def take(self, program: str, text: str) -> Self:
        """Add what one program's page of metrics has."""
        for family in text_string_to_metric_families(text):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
            ends = suffixes.get(family.type, ("",))
            if family.name.endswith("_created"):
                continue
            shown = f"{family.name}{ends[0] if family.type == 'counter' else ''}"
            self.families[program, shown] = (family.type, family.documentation)
            for suffix in ends:
                self.series.setdefault(f"{family.name}{suffix}", defaultdict(set))
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                seen = self.series.setdefault(sample.name, defaultdict(set))
                for label, value in sample.labels.items():
                    seen[label].add(value)
        return self

    def labels(self, names: Iterable[str]) -> dict[str, set[str]]:
        """Labels, with the values seen, that any of these series has after a scrape."""
        found: dict[str, set[str]] = defaultdict(set)
        for name in names:
            for label, values in self.series[name].items():
                found[label] |= values
            for label in SCRAPE:
                found.setdefault(label, set())
        return found


async def exported(folder: Path) -> Exported:
    """Everything that the programs serve and export.

    Args:
        folder: for a certificate.

    Raises:
        TimeoutError: the examples do not come to rest.
    """
    found = Exported()
    manifests = read([*examples()])
    plan = Plan(simulated=tuple(manifests.simulated), objects=tuple(manifests.objects))
    async with EmbeddedCluster(plan) as cluster, aiohttp.ClientSession() as http:
        url = cluster.addresses.scheduler
        async with asyncio.timeout(_PATIENCE):
            found.take("scheduler", await _worked(f"{url}/metrics", http))
        await _ask_routes(found, cluster, http)
        await _webhook(found, cluster.addresses.api, folder)
    return found.take("agent", _agent())


async def _worked(url: str, http: aiohttp.ClientSession) -> str:
    while True:
        async with http.get(url) as answer:
            text = await answer.text()
        if all(f"\n{sign}" in text for sign in _WORKED):
            return text
        await asyncio.sleep(0.05)


async def _ask_routes(
    found: Exported, cluster: EmbeddedCluster, http: aiohttp.ClientSession
) -> None:
    pod = next(
        one
        for one in cluster.server.store.all("pods")
        if "partage.io/allocation" in one.value["metadata"].get("annotations", {})
    )
    some = {"node": pod.value["spec"]["nodeName"], "namespace": pod.namespace, "pod": pod.name}
    for method, path in cluster.routes:
        if method == "HEAD" or path.startswith("/dashboard/"):
            continue
        keys: tuple[str, ...] = ()
        if method == "GET":
            async with http.get(cluster.addresses.scheduler + path.format(**some)) as answer:
                text = await answer.text()
                if "json" in answer.content_type:
                    document = json.loads(text)
                    keys = tuple(document) if "DeviceShare" not in path or "{" in path else ()
        found.routes.append(Route("scheduler", method, path, keys))


async def _webhook(found: Exported, api: str, folder: Path) -> None:
    made = renewed(Bundle(), ["127.0.0.1"], datetime.now(UTC))
    certificate, key = folder / "tls.crt", folder / "tls.key"
    await asyncio.to_thread(certificate.write_bytes, made.certificate)
    await asyncio.to_thread(key.write_bytes, made.key)
    trust = ssl.create_default_context(cadata=made.trusted.decode())
    options = WebhookOptions(tls=ServerTls(certificate, key))
    async with (
        Client(Config(ClusterConfig(api))) as client,
        WebhookDaemon(client, options) as one,
        aiohttp.ClientSession() as http,
        http.get(f"{one.url}/metrics", ssl=trust) as answer,
    ):
        found.take("webhook", await answer.text())
        found.routes += [Route("webhook", m, path) for m, path in one.routes if m != "HEAD"]


def _agent() -> str:
    """An agent's own registry, each series with the labels that it takes."""
    tallies = Tallies()
    tallies.injected.labels(limits="enforced").inc()
    tallies.refused.labels(rule="CardFull").inc()
    tallies.instances.labels(card="GPU-0", state="foreign").set(1)
    tallies.findings.labels(kind="PodGone").set(1)
    tallies.claim_failures.labels(rule="CardFull").inc()
    tallies.claim_seconds.labels(call="prepare", result="done").observe(0.1)
    MpsDaemon(Path()).tell(tallies, Notes())
    statements = StatementSeries(tallies.registry)
    for series in (statements.in_force, statements.unenforced):
        series.labels("team", "train", "main", "partage").set(1)
    statements.excess.labels("team", "train", "main", "GPU-0").set(1)
    tallies.registry.register(SpanSeries(NO_TRACES))
    tallies.registry.register(NodeSeries(_books))
    return generate_latest(tallies.registry).decode()


def _books() -> Books:
    """A card that a container shares, all of it measured."""
    card = Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", model="T4", memory_bytes=2**34)
    grant = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, 2**32, GrantMode.SHARE, protocol="hami")
    held = Holding("c1", "main", Allocation("u1", "team", "train", "n1", (grant,)))
    use = Use(2**31, 0.2, 10**9, 2**29)
    return Books(
        Node("n1", devices=(card,)),
        [held],
        {"GPU-0": CardUse(2**32, 0.5, 70_000)},
        {("c1", "GPU-0"): use},
    )


def series_page(found: Exported) -> str:
    """Every series with its type, labels and help."""
    text = (
        f"{HEAD}# All series\n\nThe series of live programs at `/metrics`. For their use see [metrics](metrics.md) and "
        "[watch it](../how-to/watch-it.md). Histograms have `_bucket` (label `le`), `_count` and `_sum`; series of single pods "
        "exist with `--pod-series` only.\n"
    )
    for program in ("scheduler", "webhook", "agent"):
        rows = [
            (
                f"`{name}`",
                kind,
                ", ".join(f"`{one}`" for one in _labels_of(found, name, kind)),
                told,
            )
            for (owner, name), (kind, told) in sorted(found.families.items())
            if owner == program
        ]
        text += f"\n## partage {program}\n\n{table(('series', 'type', 'labels', ''), rows)}"
    return text


def _labels_of(found: Exported, name: str, kind: str) -> list[str]:
    seen = found.series[f"{name}_count" if kind == "histogram" else name]
    return sorted(seen)


def routes_page(found: Exported) -> str:
    """Every path with the keys of what a live one answers."""
    text = (
        f"{HEAD}# All paths\n\nThe paths of live programs, with the keys of their JSON answers. [HTTP](http.md) has requests, answers and "
        "allowed callers.\n"
    )
    for program in ("scheduler", "webhook"):
        rows = [
            (f"`{one.method}`", f"`{one.path}`", ", ".join(f"`{key}`" for key in one.keys))
            for one in found.routes
            if one.program == program
        ]
        text += f"\n## partage {program}\n\n{table(('', 'path', 'keys of the answer'), rows)}"
    return text

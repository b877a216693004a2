"""What is really exported: by the service of a live cluster, by a webhook and by an agent."""

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiohttp
import trustme
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from partage.agent.keeper import Tallies
from partage.daemon.webhook import WebhookDaemon, WebhookOptions
from partage.embedded.cluster import EmbeddedCluster, Plan
from partage.embedded.examples import examples
from partage.embedded.fleet import DEFAULT_FLEET
from partage.embedded.manifests import read
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.serving.tls import ServerTls

SCRAPE = {"instance": {"x"}, "job": {"x"}}
"""Labels that Prometheus adds to every series."""


PATIENCE = 60.0
"""Seconds for what must come; a loaded machine may take long."""

_WORKED = (
    'partage_decisions_total{outcome="done",verb="bind"}',
    'partage_verb_seconds_bucket{le="+Inf",verb="bind"}',
    "partage_waiting_pods{",
    "hami_node_gpu_mig_instance_info{",
)


@dataclass
class Exported:
    """Series by name: the values seen of each label.

    Attributes:
        series: names as expressions name them, `_total` and `_bucket` included.
    """

    series: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    def take(self, text: str) -> Self:
        """Add what one page has."""
        for family in text_string_to_metric_families(text):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
            for suffix in suffixes.get(family.type, ("",)):
                self.series.setdefault(f"{family.name}{suffix}", defaultdict(set))
            for sample in family.samples:
                seen = self.series.setdefault(sample.name, defaultdict(set))
                for label, value in sample.labels.items():
                    seen[label].add(value)
        return self

    def labels(self, names: Iterable[str]) -> dict[str, set[str]]:
        """Labels, with the values seen, that any of these series has after a scrape."""
        found: dict[str, set[str]] = defaultdict(set)
        for name in names:
            for label, values in (*self.series[name].items(), *SCRAPE.items()):
                found[label] |= values
        return found


async def exported(folder: Path) -> Exported:
    """Everything that the programs export, with the examples of all protocols running.

    Args:
        folder: for a certificate.
    """
    found = Exported()
    manifests = read([*examples()]).objects
    plan = Plan(simulated=tuple(DEFAULT_FLEET), objects=tuple(manifests))
    async with EmbeddedCluster(plan) as cluster, aiohttp.ClientSession() as http:
        found.take(await _service(f"{cluster.addresses.scheduler}/metrics", http))
        found.take(await _webhook(cluster.addresses.api, http, folder))
    return found.take(_agent())


async def _service(url: str, http: aiohttp.ClientSession) -> str:
    """The service's page, once pods were bound, were refused and got hardware instances."""
    end = time.monotonic() + PATIENCE
    while True:
        async with http.get(url) as answer:
            text = await answer.text()
        missing = [sign for sign in _WORKED if f"\n{sign}" not in text]
        if not missing:
            return text
        assert time.monotonic() < end, f"the cluster does not come to {missing}"
        await asyncio.sleep(0.05)


async def _webhook(api: str, http: aiohttp.ClientSession, folder: Path) -> str:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    certificate.private_key_pem.write_to_path(folder / "tls.key")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    options = WebhookOptions(tls=ServerTls(folder / "tls.crt", folder / "tls.key"))
    async with (
        Client(Config(ClusterConfig(api))) as client,
        WebhookDaemon(client, options) as one,
        http.get(f"{one.url}/metrics", ssl=trust) as answer,
    ):
        return await answer.text()


def _agent() -> str:
    """An agent's own registry, each series with the labels that it takes."""
    tallies = Tallies()
    tallies.injected.labels(limits="enforced").inc()
    tallies.refused.labels(rule="CardFull").inc()
    tallies.instances.labels(card="GPU-0", state="foreign").set(1)
    return generate_latest(tallies.registry).decode()

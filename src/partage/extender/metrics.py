"""The service's own series: decisions, latencies, waiting pods by reason, and the state of the books.

Their number depends on the number of codes and verbs, never on that of nodes or pods. Series of
single cards and pods are in `exposition`. All series belong to one registry of the service's own.
"""

from collections.abc import Iterator

import numpy as np
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from partage import __version__
from partage.extender.audit import DIMENSIONS
from partage.extender.service import Meters, SchedulerService
from partage.inventory.ledger import Ledger
from partage.inventory.plane import CLOSED
from partage.model.device import DeviceType
from partage.model.reason import ReasonCode


class ServiceMetrics:
    """Collects the state of one service at each scrape."""

    def __init__(self, service: SchedulerService, meters: Meters) -> None:
        self._service = service
        self._registry = meters.registry
        meters.registry.register(self)

    def text(self) -> bytes:
        """All of the service's own series in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`: the series that are read from the service's state at the scrape."""
        service = self._service
        books = service.books
        build = GaugeMetricFamily("partage_build_info", "The program.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield _gauge("partage_leader", "1 if this instance serves the verbs.", service.leading)
        yield _gauge("partage_ready", "1 once the ledger is rebuilt.", service.rebuilt)
        yield self._decisions()
        yield _gauge("partage_holds", "Places that are held for pods.", len(books.cycle.holds))
        busy = len(service.bindings.busy)
        yield _gauge(
            "partage_bindings_in_flight",
            "Bindings that are on their way or wait for their turn.",
            busy,
        )
        yield _gauge(
            "partage_bindings_unknown",
            "Pods whose Binding was never answered and that cannot be read back yet.",
            len(books.unread),
        )
        yield _gauge(
            "partage_refused_documents",
            "Documents that break a rule; their last good state is still in force.",
            len(books.cluster_cache.problems),
        )
        waiting = GaugeMetricFamily(
            "partage_waiting_pods", "Pods that wait, by reason.", labels=["code"]
        )
        for code, count in sorted(books.waiting.counts().items()):
            waiting.add_metric([code.value], count)
        yield waiting
        yield from self._audit()
        yield from _pool(books.engine.ledger)

    def _decisions(self) -> Metric:
        family = CounterMetricFamily(
            "partage_decisions", "Decisions by verb and outcome.", labels=["verb", "outcome"]
        )
        for key, count in sorted(self._service.books.counts.items()):
            verb, _, outcome = key.partition(" ")
            family.add_metric([verb, (outcome or "done").replace(" ", "_")], count)
        return family

    def _audit(self) -> Iterator[Metric]:
        found = self._service.last_audit
        for name, units in (
            ("leaked", found.leaked if found else {}),
            ("missing", found.missing if found else {}),
        ):
            family = GaugeMetricFamily(
                f"partage_audit_{name}_units",
                f"Units that the last audit found {name}; 0 in a sound service.",
                labels=["dimension"],
            )
            for dimension in DIMENSIONS:
                family.add_metric([dimension], units.get(dimension, 0))
            yield family
        yield _gauge(
            "partage_audit_clean",
            "1 if the last audit found nothing; 0 if it found something, or there was none.",
            found is not None and found.clean,
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def _pool(ledger: Ledger) -> Iterator[Metric]:
    """The amounts of all cards together, by state; read from columns, so the cost hardly grows with the cards."""
    yield _gauge("partage_nodes", "Nodes in the ledger.", int(ledger.present.sum()))
    cards = GaugeMetricFamily(
        "partage_devices", "Devices by type and state.", labels=["type", "state"]
    )
    pool = GaugeMetricFamily(
        "partage_pool_units",
        "Units of all cards: offered, allocated, and closed by quarantine.",
        labels=["dimension", "state"],
    )
    for type_, plane in ledger.planes.items():
        there = plane.kind > 0
        for number, code in enumerate(CLOSED):
            count = int(np.count_nonzero(there & (plane.closed == number)))
            if count:
                state = "open" if code is None else code.value
                cards.add_metric([type_.value, state], count)
        if type_ is not DeviceType.GPU:
            continue
        beyond = sum(node.left_out for node in ledger.nodes if node is not None)
        if beyond:
            cards.add_metric(["any", "left_out"], beyond)
        closed = plane.closed == CLOSED.index(ReasonCode.QUARANTINED)
        for dimension, total, free in (
            ("core_milli", plane.core_total, plane.core_free),
            ("memory_bytes", plane.memory_total, plane.memory_free),
        ):
            pool.add_metric([dimension, "offered"], int(total.sum()))
            pool.add_metric([dimension, "allocated"], int((total - free).sum()))
            pool.add_metric([dimension, "quarantined"], int(total[closed].sum()))
    yield cards
    yield pool

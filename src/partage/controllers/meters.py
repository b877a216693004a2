"""Counters of the controllers: writes, flagged pods, rejected ConfigMaps; none by object."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client import Counter as Counted
from prometheus_client.core import GaugeMetricFamily, Metric

from partage.controllers.pods import Problem


class ControllerMeters:
    """The series of one set of controllers.

    Attributes:
        flags: the problems of flagged pods, by uid.
        writes: by the change, and its outcome.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        waiting: Callable[[], int] = lambda: 0,
        refused: Callable[[], int] = lambda: 0,
    ) -> None:
        """Series on a registry, by default one of their own.

        `waiting`: number of queued objects. `refused`: number of rejected ConfigMaps now.
        """
        self.registry = registry or CollectorRegistry(auto_describe=True)
        self.flags: Mapping[str, Problem] = {}
        self._waiting = waiting
        self._refused = refused
        self.writes = Counted(
            "partage_controller_writes",
            "Changes that the controllers made, by what was changed and the outcome.",
            ["what", "outcome"],
            registry=self.registry,
        )
        self.contended = Counted(
            "partage_controller_contended",
            "Nodes whose totals another writer overwrote again and again.",
            registry=self.registry,
        )
        self.unreadable = Counted(
            "partage_controller_unreadable",
            "Looks at unreadable objects, which are left unchanged.",
            registry=self.registry,
        )
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`: the series that are read, not counted."""
        flagged = GaugeMetricFamily(
            "partage_flagged_pods",
            "Bound pods with a device problem, by problem.",
            labels=["problem"],
        )
        counts = Counter(self.flags.values())
        for problem in Problem:
            flagged.add_metric([problem.value], counts[problem])
        yield flagged
        yield GaugeMetricFamily(
            "partage_controller_queue", "Objects that wait to be looked at.", value=self._waiting()
        )
        yield GaugeMetricFamily(
            "partage_refused_config_maps",
            "ConfigMaps that break a rule; their last good state is still in force.",
            value=self._refused(),
        )

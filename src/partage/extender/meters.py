"""The latencies that the service measures while it works, as histograms on a registry of its own."""

from typing import Final

from prometheus_client import CollectorRegistry, Histogram

_BUCKETS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.5,
    1.0,
    5.0,
)
_WAITS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Meters:
    """Histograms of the service's latencies."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry(auto_describe=True)
        self.verbs = Histogram(
            "partage_verb_seconds",
            "Time to answer a verb of the extender or a question of the plugin, without reading and writing the connection.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.woken = Histogram(
            "partage_wake_to_bind_seconds",
            "From the moment a waiting pod was woken, because room appeared, to its Binding.",
            buckets=_WAITS,
            registry=self.registry,
        )

"""What the node agent counts, under the names that its metrics have."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.5)


class Tallies:
    """What the agent counts, on a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.injected = Counter(
            "partage_agent_injected",
            "Containers that were given devices or kept from choosing them.",
            ["limits"],
            registry=self.registry,
        )
        self.refused = Counter(
            "partage_agent_refused",
            "Containers that were not made, by rule.",
            ["rule"],
            registry=self.registry,
        )
        self.holding = Gauge(
            "partage_agent_containers",
            "Containers on this node that hold devices.",
            registry=self.registry,
        )
        self.unprotected = Gauge(
            "partage_agent_unprotected_containers",
            "Containers that run with a record, or claim one, and were not served by this agent.",
            registry=self.registry,
        )
        self.evicted = Counter(
            "partage_agent_evicted",
            "Pods of unprotected containers that were evicted.",
            registry=self.registry,
        )
        self.units = Gauge(
            "partage_agent_kubelet_units",
            "Healthy units that the agent reports to the kubelet.",
            ["resource"],
            registry=self.registry,
        )
        self.registered = Gauge(
            "partage_agent_kubelet_registered",
            "Whether the kubelet watches the reports.",
            ["resource"],
            registry=self.registry,
        )
        self.unserved = Gauge(
            "partage_agent_kubelet_unserved",
            "Containers that hold units by the kubelet's word and that were given nothing.",
            registry=self.registry,
        )
        self.devices_published = Gauge(
            "partage_agent_devices_published",
            "Devices that this node offers to ResourceClaims.",
            registry=self.registry,
        )
        self.claims_prepared = Gauge(
            "partage_agent_claims_prepared",
            "ResourceClaims that are prepared on this node.",
            registry=self.registry,
        )
        self.claim_failures = Counter(
            "partage_agent_claim_failures",
            "ResourceClaims that were not prepared, by reason; the kubelet tries again.",
            ["rule"],
            registry=self.registry,
        )
        self.findings = Gauge(
            "partage_agent_findings",
            "What records, journal, kubelet and runtime do not agree on, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.notes = Gauge(
            "partage_agent_notes",
            "What the agent has to tell its operators now, by code.",
            ["code"],
            registry=self.registry,
        )
        self.repaired = Counter(
            "partage_agent_journal_repaired",
            "Containers that were written down again after the journal had lost them.",
            registry=self.registry,
        )
        self.connected = Gauge(
            "partage_agent_connected",
            "Whether the runtime asks this agent about containers.",
            registry=self.registry,
        )
        self.instances = Gauge(
            "partage_agent_instances",
            "Hardware instances that are ready, and those that are not Partage's.",
            ["card", "state"],
            registry=self.registry,
        )
        self.instance = Gauge(
            "partage_agent_instance_info",
            "One for each hardware instance on the node's cards.",
            [
                "card",
                "profile",
                "start",
                "size",
                "mig_uuid",
                "gpu_instance",
                "compute_instance",
                "pod",
                "state",
            ],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "partage_agent_decision_seconds",
            "Time to decide about a container and write it down.",
            buckets=_BUCKETS,
            registry=self.registry,
        )

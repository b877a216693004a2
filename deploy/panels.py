"""Grafana dashboards as tables: each panel's question and its expression.

`deploy/generate.py dashboards` makes JSON of them. Tests ask a live service for every series and label
that is named here. Panels are laid out from left to right, 24 columns wide, in the order given.
"""

from dataclasses import dataclass
from typing import Any, Final

__all__ = ["DASHBOARDS", "Panel", "dashboard"]

_WIDTH: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_LEADS: Final = "and on (instance) partage_leader == 1"
"""Followers keep the same ledger; only the leader's are shown."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: what it shows, or the question that it answers.
        series: expressions with the legend of each.
        unit: Grafana's name of the unit.
        kind: Grafana's type of panel, or `row` for a heading.
        width: of 24 columns.
        height: in Grafana's rows.
        about: what to know when reading it.
        red: values from here on are shown red; None colours nothing.
        stacked: whether the series are parts of one whole.
    """

    title: str
    series: tuple[tuple[str, str], ...] = ()
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    about: str = ""
    red: float | None = None
    stacked: bool = False


def _units(dimension: str, state: str) -> str:
    return f'sum(partage_pool_units{{dimension="{dimension}", state="{state}"}} {_LEADS})'


def _part(dimension: str) -> str:
    return f"{_units(dimension, 'allocated')} / {_units(dimension, 'offered')}"


def _quantile(part: float, series: str, by: str = "le") -> str:
    return f"histogram_quantile({part}, sum by ({by}) (rate({series}_bucket[$__rate_interval])))"


_POOL: Final = (
    Panel(
        "Compute allocated",
        ((_part("core_milli"), ""),),
        "percentunit",
        "gauge",
        5,
        6,
        "Of all cards, closed ones too. Above 90 % fragmentation decides which pods fit.",
    ),
    Panel("Memory allocated", ((_part("memory_bytes"), ""),), "percentunit", "gauge", 5, 6),
    Panel(
        "Pods that wait",
        ((f"sum(partage_waiting_pods {_LEADS}) or vector(0)", ""),),
        "short",
        "stat",
        4,
        6,
    ),
    Panel(
        "Cards in quarantine",
        (
            (
                f'sum(partage_pool_units{{dimension="core_milli", state="quarantined"}} {_LEADS}) / 1000',
                "",
            ),
        ),
        "short",
        "stat",
        5,
        6,
        "Closed because a record cannot be trusted; see the alert PartageQuarantine.",
        red=0.001,
    ),
    Panel(
        "Instances that serve",
        (("sum(partage_leader)", ""),),
        "short",
        "stat",
        5,
        6,
        "1 in a sound cluster.",
        red=2,
    ),
    Panel(
        "Pods that wait, and why",
        ((f"sum by (code) (partage_waiting_pods {_LEADS})", "{{code}}"),),
        width=12,
        about="Codes are explained in the reference; partage explain POD has the numbers.",
        stacked=True,
    ),
    Panel(
        "Devices by what they take",
        ((f"sum by (type, state) (partage_devices {_LEADS})", "{{type}} {{state}}"),),
        width=12,
        stacked=True,
    ),
    Panel(
        "Compute",
        (
            (f"{_units('core_milli', 'allocated')} / 1000", "allocated"),
            (f"{_units('core_milli', 'offered')} / 1000", "offered"),
        ),
        "short",
        width=12,
        about="In cards.",
    ),
    Panel(
        "Memory",
        (
            (_units("memory_bytes", "allocated"), "allocated"),
            (_units("memory_bytes", "offered"), "offered"),
        ),
        "bytes",
        width=12,
    ),
)

_SERVICE: Final = (
    Panel("Decisions", kind="row", width=_WIDTH, height=1),
    Panel(
        "Decisions a second",
        (
            (
                "sum by (verb, outcome) (rate(partage_decisions_total[$__rate_interval]))",
                "{{verb}} {{outcome}}",
            ),
        ),
        "ops",
        width=8,
    ),
    Panel(
        "Time to answer, 99th percentile",
        ((_quantile(0.99, "partage_verb_seconds", "verb, le"), "{{verb}}"),),
        "s",
        about="bind includes the API server.",
    ),
    Panel(
        "From room to Binding",
        (
            (_quantile(0.5, "partage_wake_to_bind_seconds"), "median"),
            (_quantile(0.9, "partage_wake_to_bind_seconds"), "90th percentile"),
        ),
        "s",
        about="For pods that were woken because room appeared.",
    ),
    Panel("Soundness of the ledger", kind="row", width=_WIDTH, height=1),
    Panel(
        "Audit",
        (
            ("partage_audit_clean", "{{instance}} clean"),
            ("sum by (dimension) (partage_audit_leaked_units)", "leaked {{dimension}}"),
            ("sum by (dimension) (partage_audit_missing_units)", "missing {{dimension}}"),
        ),
        about="Clean is 1, leaked and missing are 0.",
    ),
    Panel(
        "Bindings on their way",
        (
            ("partage_bindings_in_flight", "{{instance}} in flight"),
            ("partage_bindings_unknown", "{{instance}} unknown"),
            ("partage_holds", "{{instance}} holds"),
        ),
    ),
    Panel(
        "Leader",
        (("partage_leader", "{{instance}} leads"), ("partage_ready", "{{instance}} ready")),
    ),
    Panel("Controllers", kind="row", width=_WIDTH, height=1),
    Panel(
        "Writes a second",
        (
            (
                "sum by (what, outcome) (rate(partage_controller_writes_total[$__rate_interval]))",
                "{{what}} {{outcome}}",
            ),
        ),
        "ops",
        about="Nothing is written in a cluster at rest.",
    ),
    Panel(
        "What is not as it should be",
        (
            ("sum by (problem) (partage_flagged_pods)", "{{problem}}"),
            ("partage_refused_config_maps", "refused ConfigMaps"),
            (f"partage_refused_documents {_LEADS}", "refused documents"),
        ),
    ),
    Panel(
        "Queue, and disputes",
        (
            ("partage_controller_queue", "{{instance}} queue"),
            (
                "increase(partage_controller_contended_total[$__rate_interval])",
                "{{instance}} totals overwritten by others",
            ),
            (
                "increase(partage_controller_unreadable_total[$__rate_interval])",
                "{{instance}} unreadable",
            ),
        ),
    ),
    Panel("Nodes and webhook", kind="row", width=_WIDTH, height=1),
    Panel(
        "Days until the webhook's certificate ends",
        (
            (
                "(partage_webhook_certificate_end_seconds > 0) / 86400 - time() / 86400",
                "{{instance}}",
            ),
        ),
        "d",
    ),
    Panel(
        "Containers with devices",
        (
            ("sum(partage_agent_containers)", "served"),
            ("sum(partage_agent_unprotected_containers)", "not served"),
            ("sum(partage_agent_connected)", "agents connected"),
        ),
    ),
    Panel(
        "Agents",
        (
            ("sum by (state) (partage_agents)", "{{state}}"),
            (
                "increase(partage_agents_unlisted_total[$__rate_interval])",
                "{{instance}} looks failed",
            ),
        ),
        about="Nodes of silent agents take no new pod with devices.",
    ),
    Panel(
        "Containers refused on their node",
        (("sum by (rule) (increase(partage_agent_refused_total[$__rate_interval]))", "{{rule}}"),),
    ),
    Panel(
        "Time until ResourceClaims are prepared (p99)",
        (
            (
                _quantile(0.99, "partage_agent_claim_seconds", "le, call"),
                "{{call}}",
            ),
        ),
        "s",
        about="On their nodes; the kubelet gives a call up after 45 s and asks again.",
    ),
    Panel(
        "ResourceClaims not prepared",
        (
            (
                "sum by (rule) (increase(partage_agent_claim_failures_total[$__rate_interval]))",
                "{{rule}}",
            ),
        ),
        about="The kubelet asks again; the pod's events say why.",
    ),
    Panel(
        "Spans of traces",
        (
            (
                "sum by (outcome) (increase(partage_trace_spans_total[$__rate_interval]))",
                "{{outcome}}",
            ),
        ),
    ),
)

_ON: Final = '{node=~"$node"}'

_CARDS: Final = (
    Panel(
        "Memory allocated, by card",
        ((f"hami_node_gpu_memory_allocated_ratio{_ON}", "{{node}} {{device_index}}"),),
        "percentunit",
        width=12,
        height=9,
    ),
    Panel(
        "Compute allocated, by card",
        ((f"hami_gpu_core_allocated_ratio{_ON}", "{{node}} {{device_index}}"),),
        "percent",
        width=12,
        height=9,
    ),
    Panel(
        "Containers that share a card",
        ((f"hami_gpu_shared_count{_ON}", "{{node}} {{device_index}}"),),
        width=12,
    ),
    Panel(
        "Hardware instances",
        (
            (
                f"sum by (node, device_index, profile) (hami_node_gpu_mig_instance_info{_ON})",
                "{{node}} {{device_index}} {{profile}}",
            ),
        ),
        width=12,
        about="Instances that pods hold on cards in mode mig.",
    ),
    Panel(
        "Fullest nodes",
        (
            (
                f"topk(20, sum by (node) (hami_gpu_memory_allocated_bytes{_ON}) / sum by (node) (hami_gpu_memory_limit_bytes{_ON}))",
                "{{node}}",
            ),
        ),
        "percentunit",
        "bargauge",
        12,
        10,
    ),
    Panel(
        "Memory by model",
        (
            (
                "sum by (device_type) (hami_gpu_memory_allocated_bytes)",
                "{{device_type}} allocated",
            ),
            ("sum by (device_type) (hami_gpu_memory_limit_bytes)", "{{device_type}} offered"),
        ),
        "bytes",
        width=12,
        height=10,
    ),
    Panel(
        "Quotas",
        (
            (
                "hami_resource_quota_used / ignoring (limit) hami_resource_quota_limit",
                "{{namespace}} {{quota_name}}",
            ),
        ),
        "percentunit",
        width=12,
    ),
    Panel(
        "Cards left out",
        (("partage_metrics_cards_omitted", "{{instance}}"),),
        width=12,
        about="Above the bound cards have no series of their own, and this page is empty.",
    ),
)

_HELD: Final = 'sum by (namespace) (partage_namespace_units{dimension="%s"} * on (instance) group_left () partage_leader)'
_IDLE: Final = "container_request_gpu_utilization > 0 unless on (namespace, node, pod, container, card) avg_over_time(container_gpu_utilization[1h]) >= 5"
_MEASURED: Final = "and on (namespace, node, pod, container, card) container_gpu_utilization"

_TENANTS: Final = (
    Panel("Holders of cards", kind="row", width=_WIDTH, height=1),
    Panel(
        "Compute by namespace",
        ((f"{_HELD % 'core_milli'} / 1000", "{{namespace}}"),),
        width=12,
        about="In cards.",
        stacked=True,
    ),
    Panel(
        "Memory by namespace",
        ((_HELD % "memory_bytes", "{{namespace}}"),),
        "bytes",
        width=12,
        stacked=True,
    ),
    Panel(
        "Card-hours of the last day",
        ((f"sort_desc(sum_over_time(({_HELD % 'core_milli'})[1d:1m]) / 60000)", "{{namespace}}"),),
        kind="bargauge",
        width=12,
        height=9,
        about="Compute held over time, whether it was used or not.",
    ),
    Panel(
        "Compute by protocol",
        (
            (
                'sum by (protocol) (partage_namespace_units{dimension="core_milli"} * on (instance) group_left () partage_leader) / 1000',
                "{{protocol}}",
            ),
        ),
        width=12,
        height=9,
        stacked=True,
    ),
    Panel("Users of cards", kind="row", width=_WIDTH, height=1),
    Panel(
        "Compute used of what was granted",
        (
            (
                "sum by (namespace) (container_gpu_utilization) / sum by (namespace) (container_request_gpu_utilization > 0)",
                "{{namespace}}",
            ),
        ),
        "percentunit",
        width=12,
        about="Of containers whose use is measured, by Partage's library.",
    ),
    Panel(
        "Memory used of what was granted",
        (
            (
                "sum by (namespace) (container_gpu_memory_total) / sum by (namespace) (container_request_gpu_memory)",
                "{{namespace}}",
            ),
        ),
        "percentunit",
        width=12,
        about="By the library's account, or by what the driver says of processes.",
    ),
    Panel(
        "Idle shares",
        (
            (
                f"topk(20, {_IDLE} {_MEASURED})",
                "{{namespace}}/{{pod}} {{container}} on {{node}} {{card}}",
            ),
        ),
        "percent",
        "bargauge",
        12,
        10,
        "Compute granted to containers that received less than 5 % of their card's time in the last hour.",
    ),
    Panel(
        "Memory that is never touched",
        (
            (
                "topk(20, container_request_gpu_memory - on (namespace, node, pod, container, card) max_over_time(container_gpu_memory_total[1h]))",
                "{{namespace}}/{{pod}} {{container}} on {{node}} {{card}}",
            ),
        ),
        "decmbytes",
        "bargauge",
        12,
        10,
        "Granted less the most that was used in the last hour.",
    ),
    Panel(
        "Device time by namespace",
        (
            (
                "sum by (namespace) (rate(partage_agent_container_seconds[$__rate_interval]))",
                "{{namespace}}",
            ),
        ),
        width=_WIDTH,
        about="In cards: seconds of device time a second.",
    ),
    Panel(
        "Utilization of cards, with the pods on them",
        (
            (
                "DCGM_FI_DEV_GPU_UTIL * on (UUID) group_right () partage_agent_tenant_info",
                "{{namespace}}/{{pod}} {{protocol}} on {{Hostname}} {{gpu}}",
            ),
        ),
        "percent",
        width=_WIDTH,
        about="For clusters with DCGM's exporter: the whole card's figure, beside each pod that shares it.",
    ),
)

DASHBOARDS: Final[dict[str, tuple[str, tuple[Panel, ...]]]] = {
    "partage-service": ("Partage: pool and service", (*_POOL, *_SERVICE)),
    "partage-cards": ("Partage: nodes and cards", _CARDS),
    "partage-tenants": ("Partage: who uses what they hold", _TENANTS),
}
"""Title and panels of each dashboard, by uid."""


def dashboard(uid: str) -> dict[str, Any]:
    """One dashboard as Grafana imports it (schema 39: Grafana 10 and newer)."""
    title, panels = DASHBOARDS[uid]
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    if any("$node" in expression for panel in panels for expression, _ in panel.series):
        variables.append(_node_variable())
    return {
        "uid": uid,
        "title": title,
        "description": "Made by deploy/generate.py; change deploy/panels.py instead.",
        "tags": ["partage", "gpu"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": _laid_out(panels),
    }


def _node_variable() -> dict[str, Any]:
    return {
        "name": "node",
        "label": "Node",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(hami_gpu_memory_limit_bytes, node)", "refId": "node"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _laid_out(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    x = y = tallest = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _WIDTH:
            x, y, tallest = 0, y + tallest, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        made.append({"id": number, "gridPos": place, **_drawn(panel)})
        x, tallest = x + panel.width, max(tallest, panel.height)
    return made


def _drawn(panel: Panel) -> dict[str, Any]:
    if panel.kind == "row":
        return {"type": "row", "title": panel.title, "collapsed": False, "panels": []}
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red is not None:
        steps.append({"color": "red", "value": panel.red})
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.unit == "percentunit":
        defaults["max"] = 1
    if panel.stacked:
        defaults["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 30}
    targets = [
        {
            "refId": chr(ord("A") + n),
            "datasource": _SOURCE,
            "expr": expression,
            "legendFormat": legend or "__auto",
            "instant": panel.kind != "timeseries",
        }
        for n, (expression, legend) in enumerate(panel.series)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }

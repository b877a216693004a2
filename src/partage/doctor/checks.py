"""All checks of a cluster, in the order in which they are reported."""

from collections.abc import Callable, Iterator
from typing import Final

from partage.doctor import admission, claims, node_config, nodes, plugged, scheduling
from partage.doctor.finding import ClusterFacts, Finding

CHECKS: Final[tuple[Callable[[ClusterFacts], Iterator[Finding]], ...]] = (
    scheduling.parts,
    scheduling.extender,
    scheduling.sampling,
    plugged.configuration,
    plugged.pods,
    scheduling.unrecorded,
    scheduling.others,
    scheduling.gates,
    scheduling.rights,
    admission.webhooks,
    claims.parts,
    claims.resources,
    claims.gates,
    claims.slices,
    nodes.devices,
    nodes.twins,
    nodes.cordons,
    nodes.files,
    nodes.agents,
    nodes.noted,
    nodes.totals,
    nodes.plugins,
    nodes.units,
    nodes.runtimes,
    nodes.closed,
    nodes.twice,
    nodes.faults,
    nodes.unusable,
    nodes.settings,
    node_config.written,
    nodes.unread,
)


_INSTALLED: Final = frozenset(
    {scheduling.extender, admission.webhooks, claims.parts, claims.resources, claims.slices}
)
"""Checks of parts that `partage up` has in its own process."""


def diagnosed(facts: ClusterFacts) -> list[Finding]:
    """All findings."""
    checks = [check for check in CHECKS if not (facts.embedded and check in _INSTALLED)]
    return [finding for check in checks for finding in check(facts)]

"""The annotation of a Node whose agent is silent; the scheduler's leader maintains it.

It is a fact of the API like any other. So every instance, an offline run over a dump and a replay of
a snapshot decide by the same fact, and a new leader need not observe the silence again. The text is written
once: the moment since which the agent is silent, and the limit in seconds.

    partage.io/agent-silent: 2026-11-22T08:00:00Z 60
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from partage.model.node import Verdict
from partage.model.reason import ReasonCode
from partage.vendors import names

LEASE_NAMESPACE: Final = "kube-node-lease"
"""The namespace of agents' Leases."""
LEASE_PREFIX: Final = "partage-agent-"
"""Prefix of the name of an agent's Lease, before the node's."""


def silence_text(since: datetime, limit: float) -> str:
    """The annotation's value. `since`: the agent's last sign, for display; `limit`: seconds until it is silent."""
    return f"{since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} {limit:g}"


def silence(annotations: Mapping[str, str]) -> Verdict | None:
    """The objection of a node whose agent is silent; None without the annotation.

    A value that cannot be read also closes the node; it only has no numbers to show.
    """
    text = annotations.get(names.AGENT_SILENT)
    if text is None:
        return None
    since, _, limit = text.partition(" ")
    try:
        datetime.fromisoformat(since)
        told = f"since {since}; the limit is {float(limit):g} s"
    except ValueError:
        told = f"(annotation {names.AGENT_SILENT}: {text!r})"
    return Verdict(
        "", ReasonCode.AGENT_SILENT, f"the node's agent has not renewed its Lease {told}"
    )

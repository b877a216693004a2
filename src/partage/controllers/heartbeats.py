"""Finds nodes with silent agents, from looks at the leases that agents renew; pure.

As leader election does, a look compares a lease with the lease of the look before, and compares no time in it
with a clock. An agent is silent when looks without a gap have seen no change of its lease for the limit. Anything
that prevents looks (an unreachable API server, a process that stood still) also prevents renewals. So after a
gap the first look starts the count again for all nodes.

    heard ──limit without a change, looked at all the while──> silent ──a change──> heard
      └────────────── the lease is gone: no agent is expected ──────────────┘

A node that an earlier leader closed stays closed until its lease changes or is deleted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Heeded:
    """The result of a look.

    Attributes:
        close: open nodes with silent agents, and for how many seconds.
        open: closed nodes whose agents are back or no longer expected.
        silent: number of silent agents, including those of closed nodes.
    """

    close: Mapping[str, float] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    silent: int = 0


@dataclass(slots=True)
class _Agent:
    """One agent's lease.

    Attributes:
        mark: the lease's content.
        since: when this content was first seen; counted afresh after a gap.
        back: it has changed since the agent was last silent, or since we first saw it.
    """

    mark: str
    since: float
    back: bool = False


class Heartbeats:
    """All agents' leases at the last looks."""

    def __init__(self, limit: float, gap: float) -> None:
        """No look yet.

        `limit`: seconds without a change after which an agent is silent. `gap`: longest time in seconds between the
        ends of two looks that belong together.
        """
        self._limit, self._gap = limit, gap
        self._agents: dict[str, _Agent] = {}
        self._looked: float | None = None

    def __len__(self) -> int:
        """Number of present and past agents: nodes with a lease."""
        return len(self._agents)

    def missed(self) -> None:
        """Count silence afresh, because a look failed."""
        self._looked = None

    def look(
        self, marks: Mapping[str, str], closed: Collection[str], asked: float, heard: float
    ) -> Heeded:
        """Take in the present state of all leases.

        Args:
            marks: each node's lease, by any content that changes with each renewal.
            closed: nodes closed for this reason.
            asked: time of the request for the leases, seconds on a steady clock; they are no older.
            heard: time of the answer.
        """
        torn = self._looked is None or heard - self._looked > self._gap
        self._looked = heard
        before, self._agents = self._agents, {}
        for node, mark in marks.items():
            agent = before.get(node)
            if agent is None:
                agent = _Agent(mark, heard)
            elif agent.mark != mark:
                agent = _Agent(mark, heard, back=True)
            elif torn:
                agent.since = heard
            self._agents[node] = agent
        silent = {
            node: asked - agent.since
            for node, agent in self._agents.items()
            if asked - agent.since >= self._limit
        }
        for node in silent:
            self._agents[node].back = False
        return Heeded(
            {node: seconds for node, seconds in silent.items() if node not in closed},
            frozenset(
                node for node in closed if node not in self._agents or self._agents[node].back
            ),
            len({*silent, *(n for n in closed if n in marks and not self._agents[n].back)}),
        )

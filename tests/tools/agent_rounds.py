"""The rounds of an agent's reporting, one after another: `AgentReporting.run` has them side by side."""

from partage.agent.reporting import AgentReporting

__all__ = ["once"]


async def once(reporting: AgentReporting) -> tuple[str, ...]:
    """One search, and one report of it. Raises as `AgentReporting.report` does."""
    await reporting.look()
    return await reporting.report()

"""Makes late allocations of ResourceClaims fail before their devices go to other pods.

A write that an API server was allowed to store cannot be revoked. The server may store it at any later time, even after
the term of the leader that reserved the devices, or after the time limit of any request. But the write names the
version of the claim that it replaces. So the service writes the claim first. Every write that was admitted before names
an older version and fails; its scheduler then reads the claim and asks again. This relies on no clock.

The service admits no claim without kube-scheduler's finalizer (`claim_arbiter`), so a new leader writes few claims:
those whose allocation is on its way, and those whose last allocation failed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from partage.kube.clock import Clock
from partage.wire.documents import Document

_LOG: Final = logging.getLogger("partage.extender")
_AT_ONCE: Final = 16
_AGAIN: Final = 1.0
"""Seconds until the next try for the claims that could not be written."""

Outdate = Callable[[str, str], Awaitable[Document | None]]
"""Gives the ResourceClaim of this namespace and name another version, and returns the claim as written; None if the
claim does not exist. After an exception of any type the outcome is unknown."""


async def outdated(
    claims: Sequence[Document],
    outdate: Outdate,
    clock: Clock,
    until: float,
    tell: Callable[[Document], object],
) -> bool:
    """Write these claims; whether each claim was written or is gone. Any user may have made any of them.

    Args:
        until: when the function gives up, seconds on the clock's steady time.
        tell: receives each claim as it was written.
    """
    turns = asyncio.Semaphore(_AT_ONCE)
    left = list(claims)
    errors: list[str] = []
    told = ""

    async def write(claim: Document) -> None:
        async with turns:
            if clock.monotonic() >= until:  # one user's many claims delay others no longer
                return
            try:
                found = await outdate(claim.namespace, claim.name)
            except Exception as error:  # noqa: BLE001 # the port may raise any exception
                errors.append(f"{claim.label}: {error}")
                return
        left.remove(claim)
        if found is not None:
            tell(found)

    while left:
        errors.clear()
        async with asyncio.TaskGroup() as group:
            for claim in left:
                group.create_task(write(claim), name=f"outdate {claim.label}")
        if left:
            why = errors[0] if errors else "no time"
            if why != told:
                _LOG.warning(
                    "%d claims cannot be written, so what was admitted for them may still be stored; "
                    "nothing is served until that is over, %.0f s at most: %s",
                    len(left),
                    max(0.0, until - clock.monotonic()),
                    why,
                )
                told = why
            if clock.monotonic() >= until:
                return False
            await clock.sleep(_AGAIN)
    return True

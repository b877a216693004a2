"""An instance without a Lease looks at the store's version, and binds only while the API server answers."""

import asyncio
import contextlib

import pytest

from fakes.clock import SteppedClock
from partage.daemon.leadership import Sole
from partage.kube.errors import Outcome, TransportError
from partage.kube.resources import Scope


class Api:
    """A store's version; None does not answer."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.version: int | None = 100

    async def newest_version(self, _scope: Scope) -> str:
        """See `kube.client.Client`."""
        if self.version is None:
            raise TransportError("GET", "/api/v1/pods", "refused", Outcome.REFUSED)
        return str(self.version)


@pytest.mark.parametrize(
    ("away", "version", "told"),
    [(0.0, 100, False), (0.0, 99, True), (5.0, 101, False), (5.0, 99, True), (30.0, 1101, True)],
    ids=["as it was", "older", "a moment", "older after a moment", "newer after long"],
)
async def test_it_tells_of_a_store_that_may_be_an_earlier_one(
    away: float, version: int, *, told: bool
) -> None:
    """An older version shows it; after a long outage any version may come from a backup."""
    api, heard = Api(), list[float]()
    sole = Sole(api, lambda: heard.append(api.clock.monotonic()))  # type: ignore[arg-type]
    running = asyncio.create_task(sole.run())
    await api.clock.advance(60.0)
    assert sole.leading
    assert not heard

    if away:
        api.version = None
        await api.clock.advance(away)
        assert sole.leading == (away < 10)
    api.version = version
    await api.clock.advance(2.0)

    assert bool(heard) == told
    assert sole.leading
    await api.clock.advance(60.0)
    assert len(heard) == told  # once
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running

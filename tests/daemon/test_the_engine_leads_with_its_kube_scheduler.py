"""The engine leads while the kube-scheduler beside it holds its Lease, and no longer."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Self

from fakes.clock import SteppedClock
from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.daemon.followed_lease import FollowedLease
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.election import LeaseSpec
from partage.kube.errors import NotServed
from partage.kube.errors import Status as ErrorStatus
from partage.kube.objects import Meta


class Api:
    """A Lease, as the API server has it; every read of it takes no time, or `slow` seconds.

    Attributes:
        times: of the next reads, seconds before it is carried out and until it is answered.
    """

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.spec: LeaseSpec | None = None
        self.fails = False
        self.error: Exception = TimeoutError()
        self.slow = 0.0
        self.times: list[tuple[float, float]] = []
        self.writes = 0
        self.version = 0

    def insistent(self, _longest_wait: float) -> Self:
        """See `kube.client.Client`."""
        return self

    async def get(self, _resource: object, _name: str, *, namespace: str, into: Any) -> Any:
        """See `kube.client.Client`."""
        assert namespace == "kube-system"
        before, after = self.times.pop(0) if self.times else (self.slow, 0.0)
        if before:
            await self.clock.sleep(before)
        if self.fails:
            raise self.error
        if self.spec is None:
            return into(Meta(), LeaseSpec())
        found = into(Meta(resource_version=str(self.version or self.writes)), self.spec)
        if after:
            await self.clock.sleep(after)
        return found

    def renew(self, holder: str) -> None:
        """A holder writes its Lease."""
        self.writes += 1
        self.spec = LeaseSpec(holder, 15, renew_time=f"moment {self.writes}")


class Follower:
    """One engine, and what it did."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.reigns: list[str] = []
        self.lease = FollowedLease(
            api,  # type: ignore[arg-type]
            "kube-system",
            "kube-scheduler",
            self._lead,
            lambda: self.reigns.append("restored"),
        )

    async def _lead(self) -> None:
        self.reigns.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            self.reigns.append("ended")

    async def pass_time(self, seconds: float, renews: str = "") -> None:
        """Seconds go by, a half at a time; the holder renews every two."""
        for half in range(round(seconds * 2)):
            if renews and not half % 4:
                self.api.renew(renews)
            await _settle()
            await self.api.clock.advance(0.5)
            await _settle()


async def _settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def following(test: Callable[[Follower], Awaitable[None]]) -> Callable[[], None]:
    """A test with a follower that runs."""

    async def runner() -> None:
        follower = Follower(Api())
        running = asyncio.create_task(follower.lease.run())
        try:
            await test(follower)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    def run() -> None:
        asyncio.run(runner())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@following
async def test_it_leads_once_a_renewal_of_its_own_is_seen(follower: Follower) -> None:
    """A claim alone is not enough, and neither is a Lease of unknown age."""
    follower.lease.claim(True)
    await follower.pass_time(3)
    assert not follower.lease.leading

    follower.api.renew("ours")
    await follower.pass_time(1)
    await follower.pass_time(4, renews="ours")
    assert follower.lease.leading
    assert follower.reigns == ["begun"]


@following
async def test_a_busy_api_server_ends_no_lead(follower: Follower) -> None:
    """Each answer takes four seconds and shows the state by then; without answers the lead ends in time."""
    follower.lease.claim(True)
    await follower.pass_time(6, renews="ours")
    assert follower.lease.leading
    follower.api.slow = 4.0
    await follower.pass_time(40, renews="ours")
    assert follower.reigns == ["begun"]
    follower.api.slow = 3600.0
    await follower.pass_time(12, renews="ours")
    assert not follower.lease.leading
    follower.api.slow = 0.0
    await follower.pass_time(9, renews="ours")
    assert follower.lease.leading


@following
async def test_a_proxy_that_answers_for_the_api_server_ends_no_lead(follower: Follower) -> None:
    """Its 404 does not show that the Lease is gone; kube-scheduler would not claim it again."""
    follower.lease.claim(True)
    await follower.pass_time(6, renews="ours")
    follower.api.fails, follower.api.error = True, NotServed("GET", "/", 404, ErrorStatus())
    await follower.pass_time(3, renews="ours")
    follower.api.fails = False
    await follower.pass_time(6, renews="ours")
    assert follower.reigns == ["begun"]


@following
async def test_looks_that_pass_each_other_show_no_restored_backup(follower: Follower) -> None:
    """The first look is served last and answered first. The second shows an older version, which is equally true."""
    follower.lease.claim(True)
    await follower.pass_time(6, renews="ours")
    follower.api.times = [(3.5, 0.0), (0.0, 2.0)]
    await follower.pass_time(3.5)
    follower.api.renew("ours")
    await follower.pass_time(4)
    assert "restored" not in follower.reigns


@following
async def test_a_lease_of_another_is_not_ours(follower: Follower) -> None:
    """Later claims of kube-scheduler do not count: the holder must be the one that claimed."""
    await follower.pass_time(6, renews="theirs")
    assert not follower.lease.leading
    assert follower.reigns == []


@following
async def test_without_renewals_it_stops_before_others_may_lead(follower: Follower) -> None:
    """It stops two thirds of the duration after the last look that did not show the last renewal."""
    follower.lease.claim(True)
    await follower.pass_time(6, renews="ours")
    assert follower.lease.leading

    await follower.pass_time(11)
    assert not follower.lease.leading
    assert follower.reigns == ["begun", "ended"]


@following
async def test_it_stops_at_once_when_the_claim_ends_or_another_holds_it(
    follower: Follower,
) -> None:
    """kube-scheduler is gone, or has lost the Lease."""
    follower.lease.claim(True)
    await follower.pass_time(6, renews="ours")
    follower.lease.claim(False)
    assert not follower.lease.leading
    await follower.pass_time(1)
    assert follower.reigns == ["begun", "ended"]

    follower.lease.claim(True)
    await follower.pass_time(4, renews="ours")
    assert follower.lease.leading
    follower.api.renew("theirs")
    await follower.pass_time(2)
    assert not follower.lease.leading


@following
async def test_a_kube_scheduler_that_gets_its_lease_back_unawares_has_its_engine_again(
    follower: Follower,
) -> None:
    """It stood still, another led and released, and it renewed before its own deadline: it never reports a loss."""
    follower.lease.claim(True)
    await follower.pass_time(6, renews="ours")
    await follower.pass_time(16)
    await follower.pass_time(4, renews="theirs")
    assert not follower.lease.leading
    ended = follower.api.clock.monotonic()
    follower.api.spec = LeaseSpec("", 1, renew_time="released")
    await follower.pass_time(2)
    await follower.pass_time(4, renews="ours")
    assert follower.lease.leading
    assert follower.reigns == ["begun", "ended", "begun"]
    assert ended <= follower.lease.quiet_from <= ended + 2


@following
async def test_it_waits_out_what_the_leader_before_may_have_sent(follower: Follower) -> None:
    """The wait starts ten seconds after that leader's last renewal, or at its release of the Lease."""
    await follower.pass_time(6, renews="theirs")
    last = follower.api.clock.monotonic()
    await follower.pass_time(14)
    follower.lease.claim(True)
    await follower.pass_time(4, renews="ours")
    assert follower.lease.leading
    assert last <= follower.lease.quiet_from <= last + 10.5
    assert follower.lease.quiet_from < follower.api.clock.monotonic()


@following
async def test_one_wrong_duration_costs_minutes_at_most(follower: Follower) -> None:
    """The next leader would otherwise wait for years, also after the Lease is right again."""
    await follower.pass_time(6, renews="theirs")
    wrong = follower.api.clock.monotonic()
    follower.api.spec = LeaseSpec("theirs", 2**31 - 1, renew_time="wrong")
    await follower.pass_time(2)
    follower.lease.claim(True)
    await follower.pass_time(4, renews="ours")
    assert follower.lease.leading
    assert wrong + 10 <= follower.lease.quiet_from <= wrong + 600


@following
async def test_a_duration_of_a_second_makes_no_leader_early(follower: Follower) -> None:
    """Its kube-scheduler goes by its own."""
    await follower.pass_time(6, renews="theirs")
    wrong = follower.api.clock.monotonic()
    follower.api.spec = LeaseSpec("theirs", 1, renew_time="wrong")
    await follower.pass_time(1)
    follower.lease.claim(True)
    await follower.pass_time(4, renews="ours")
    assert follower.lease.leading
    assert wrong + 10 <= follower.lease.quiet_from


@following
async def test_a_released_lease_is_quiet_from_then_on(follower: Follower) -> None:
    """A leader that ends in order stops before its deadline."""
    await follower.pass_time(6, renews="theirs")
    follower.api.spec = LeaseSpec("", 1, renew_time="released")
    await follower.pass_time(2)
    released = follower.api.clock.monotonic()
    follower.lease.claim(True)
    await follower.pass_time(4, renews="ours")
    assert follower.lease.leading
    assert follower.lease.quiet_from <= released


@following
async def test_a_released_lease_of_a_restored_backup_is_not(follower: Follower) -> None:
    """An unseen holder in between may lead until its next renewal."""
    await follower.pass_time(6, renews="theirs")
    follower.api.spec, follower.api.version = LeaseSpec("", 1, renew_time="of old"), 1
    restored = follower.api.clock.monotonic()
    await follower.pass_time(2)
    assert follower.reigns == ["restored"]
    follower.lease.claim(True)
    await follower.pass_time(4, renews="ours")
    assert follower.lease.leading
    assert restored + 10 <= follower.lease.quiet_from


@following
async def test_an_api_server_that_does_not_answer_ends_the_reign_in_time(
    follower: Follower,
) -> None:
    """The known state expires."""
    follower.lease.claim(True)
    await follower.pass_time(6, renews="ours")
    follower.api.fails = True
    await follower.pass_time(6, renews="ours")
    assert follower.lease.leading
    await follower.pass_time(5, renews="ours")
    assert not follower.lease.leading


@following
async def test_the_next_leader_is_never_early(follower: Follower) -> None:
    """Another instance takes the Lease fifteen seconds after the last renewal that it saw."""
    follower.lease.claim(True)
    await follower.pass_time(6, renews="ours")
    renewed = follower.api.clock.monotonic()
    while follower.lease.leading:
        await follower.pass_time(0.5)
    assert follower.api.clock.monotonic() - renewed <= 10.5


async def test_a_server_that_was_busy_for_some_seconds_ends_no_lead() -> None:
    """It asks each look for half a minute, longer than all that is known is good for."""
    clock, reigns = SteppedClock(), list[str]()
    leases = "/apis/coordination.k8s.io/v1/leases"

    async def lead() -> None:
        reigns.append("begun")
        await asyncio.Event().wait()

    async with KubeServer() as server:
        config, writes = Config(ClusterConfig(server.url)), 0

        async def pass_time(seconds: int) -> None:
            nonlocal writes
            for quarter in range(4 * seconds):
                if not quarter % 8:
                    writes += 1
                    spec = {"holderIdentity": "ours", "leaseDurationSeconds": 15}
                    body = {
                        "metadata": {"name": "lock", "namespace": "kube-system"},
                        "spec": {**spec, "renewTime": f"2026-01-01T00:00:00.{writes:06}Z"},
                    }
                    if writes == 1:
                        server.store.create(leases, "kube-system", body)
                    else:
                        server.store.update(leases, "kube-system", "lock", body)
                await clock.advance(0.25)
                await asyncio.sleep(0.01)

        async with Client(config, clock=clock) as client:
            followed = FollowedLease(client, "kube-system", "lock", lead, lambda: None)
            followed.claim(True)
            running = asyncio.create_task(followed.run())
            try:
                await pass_time(6)
                assert followed.leading
                server.fail(Fault(path="leases", status=429, retry_after="30", times=6))
                await pass_time(20)
                assert followed.leading
                assert reigns == ["begun"]
            finally:
                running.cancel()
                await asyncio.wait((running,))

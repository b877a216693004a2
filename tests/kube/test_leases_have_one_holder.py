"""Leader election: the rules under any timing, then the loop against a server with faults."""

import asyncio
import contextlib
import functools
import heapq
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import client_of, eventually, started, stopped

from partage.kube.errors import KubeError
from partage.kube.lease import Election, LeaderElector, LeaseSettings, LeaseSpec
from partage.kube.resources import LEASES
from partage.testing.clock import SteppedClock
from partage.testing.kube_server import Fault, KubeServer

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = LeaseSettings()
LEASES_PATH = LEASES.path()


@dataclass
class Cell:
    """A lease in a store that compares versions."""

    spec: LeaseSpec | None = None
    version: int = 0


@dataclass
class Candidate:
    """One process: its rules, and a clock that shows something else than everybody else's."""

    election: Election
    offset: float
    read: tuple[LeaseSpec | None, int] = (None, -1)
    claims: list[tuple[LeaseSpec, float, int]] = field(default_factory=list)


DELAYS = st.lists(st.floats(0, 12), min_size=1, max_size=60)


@given(
    count=st.integers(2, 3),
    offsets=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    delays=DELAYS,
    lost=st.lists(st.booleans(), min_size=1, max_size=60),
)
def test_there_is_never_a_second_leader(
    count: int, offsets: list[float], delays: list[float], lost: list[bool]
) -> None:
    """Slow networks, lost answers and skewed clocks: at every moment at most one leads."""
    cell = Cell()
    actors = [Candidate(Election(f"c{i}", SETTINGS), offsets[i]) for i in range(count)]
    agenda = [(i / 10, i, i, "read") for i in range(count)]
    drawn = iter(range(10**9))

    def delay() -> float:
        return delays[next(drawn) % len(delays)]

    sequence = count
    for _ in range(120):
        now, _, who, step = heapq.heappop(agenda)
        actor = actors[who]
        mine = now + actor.offset
        assert sum(a.election.leads(now + a.offset) for a in actors) <= 1
        wait, following = delay(), "read"
        if step == "read":
            actor.read = (cell.spec, cell.version)
            following = "decide"
        elif step == "decide":
            actor.election.observe(actor.read[0], str(actor.read[1]), mine)
            if actor.election.may_take(mine):
                actor.claims.append((actor.election.claim(MOMENT), mine, actor.read[1]))
                following = "store"
        elif step == "store":
            claim, sent, version = actor.claims.pop()
            stored = version == cell.version
            if stored:
                cell.spec, cell.version = claim, cell.version + 1
            if stored and not lost[next(drawn) % len(lost)]:
                actor.claims.append((claim, sent, version))
                following = "answer"
        else:
            claim, sent, version = actor.claims.pop()
            actor.election.won(claim, str(version + 1), sent=sent, now=mine)
        sequence += 1
        heapq.heappush(agenda, (now + wait, sequence, who, following))


def test_a_lease_is_free_only_after_it_was_seen_unchanged_for_its_time() -> None:
    """By the watcher's own clock; what the lease says of its renewal is not looked at."""
    election = Election("me", SETTINGS)
    held = LeaseSpec("other", 20, "", "1970-01-01T00:00:00.000000Z", 3)

    election.observe(held, "1", 100.0)
    assert not election.may_take(119.9)
    election.observe(held, "1", 119.0)
    assert election.may_take(120.0)
    election.observe(held, "2", 121.0)
    assert not election.may_take(140.0)
    assert (election.holder, election.term) == ("other", 3)


def test_a_term_counts_changes_of_hands() -> None:
    """A renewal keeps term and start."""
    election = Election("me", SETTINGS)
    election.observe(None, "", 0.0)
    first = election.claim(MOMENT)
    election.won(first, "1", sent=0.0, now=0.0)
    renewed = election.claim(MOMENT.replace(year=2027))
    other = Election("other", SETTINGS)
    other.observe(renewed, "2", 0.0)

    assert (first.lease_transitions, first.acquire_time) == (0, "2026-01-01T00:00:00.000000Z")
    assert (renewed.lease_transitions, renewed.acquire_time) == (0, first.acquire_time)
    assert renewed.renew_time == "2027-01-01T00:00:00.000000Z"
    assert other.claim(MOMENT).lease_transitions == 1


@pytest.mark.parametrize(
    ("duration", "deadline", "retry"), [(10, 10.0, 2.0), (15, 2.0, 2.0), (15, 10.0, 0.0)], ids=str
)
def test_times_that_do_not_fence_are_refused(duration: int, deadline: float, retry: float) -> None:
    """A leader must stop before others may start, and be able to renew in time."""
    with pytest.raises(ValueError, match="must exceed"):
        LeaseSettings(duration, deadline, retry)


@dataclass
class Office:
    """What an elector's work did."""

    log: list[str] = field(default_factory=list)
    leading: int = 0
    end: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self, name: str) -> None:
        """Lead until told to end."""
        self.log.append(f"{name} starts")
        self.leading += 1
        try:
            await self.end.wait()
        finally:
            self.leading -= 1
            self.log.append(f"{name} ends")


@contextlib.asynccontextmanager
async def electing(
    server: KubeServer, clock: SteppedClock, office: Office, *names: str, **options: Any
) -> AsyncIterator[list[LeaderElector]]:
    """Electors at work, one for each name."""
    async with contextlib.AsyncExitStack() as stack:
        electors, tasks = [], []
        for name in names:
            client = await stack.enter_async_context(client_of(server, clock=clock, attempts=1))
            elector = LeaderElector(
                client, namespace="kube-system", name="lock", identity=name,
                lead=functools.partial(office.hold, name), **options,
            )  # fmt: skip
            electors.append(elector)
            tasks.append(started(elector.run()))
        try:
            yield electors
        finally:
            for task in tasks:
                await asyncio.gather(stopped(task), _pass(clock, task))


async def _pass(clock: SteppedClock, task: asyncio.Task[Any]) -> None:
    """Real sockets need real moments; time-outs of ours must not wait for anyone."""
    for _ in range(100):
        if task.done():
            return
        await asyncio.sleep(0.001)
    await clock.advance(5.0)


async def passing(clock: SteppedClock, condition: Any, limit: float = 60.0) -> None:
    """Let time pass in small steps, and the sockets work in between, until it holds."""
    end = clock.monotonic() + limit
    while not condition():
        assert clock.monotonic() < end, "in vain"
        await clock.advance(0.25)
        await asyncio.sleep(0.001)


def lease(server: KubeServer) -> dict[str, Any]:
    """The lease as stored."""
    spec: dict[str, Any] = server.store.get(LEASES_PATH, "kube-system", "lock")["spec"]
    return spec


async def test_one_of_two_leads_and_renews() -> None:
    """The other waits; half a minute of renewals later it still does."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server, electing(server, clock, office, "a", "b") as electors:
        await passing(clock, lambda: office.leading)
        first = lease(server)["renewTime"]
        end = clock.monotonic() + 30
        await passing(clock, lambda: clock.monotonic() >= end)

        assert len(office.log) == 1
        assert sorted(elector.leading for elector in electors) == [False, True]
        assert {elector.holder for elector in electors} == {lease(server)["holderIdentity"]}
        assert lease(server)["renewTime"] > first
        assert lease(server)["leaseTransitions"] == 0


async def test_a_lease_given_back_is_taken_at_once() -> None:
    """The work ends first, then the lease is free, then another starts."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server, electing(server, clock, office, "b"):
        await passing(clock, lambda: office.leading)
        async with electing(server, clock, office, "a"):
            end = clock.monotonic() + 5
            await passing(clock, lambda: clock.monotonic() >= end)
            assert office.log == ["b starts"]
    assert office.log == ["b starts", "b ends"]
    async with KubeServer() as server:
        async with electing(server, clock, office, "a"):
            await passing(clock, lambda: office.leading)
        assert lease(server)["holderIdentity"] == ""
        before = clock.monotonic()
        async with electing(server, clock, office, "c") as (elector,):
            await passing(clock, lambda: office.leading)

            assert clock.monotonic() - before < 1
            assert elector.term == 1


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(method="PATCH", status=500, times=999), id="500"),
        pytest.param(Fault(method="PATCH", drop=True, times=999), id="dropped"),
        pytest.param(Fault(method="PATCH", executed=True, status=504, times=999), id="in-doubt"),
    ],
)
async def test_a_leader_that_cannot_renew_stops_in_time(fault: Fault) -> None:
    """Before the deadline is over nobody else leads, afterwards it does not either."""
    clock, office = SteppedClock(), Office()
    errors: list[KubeError] = []
    async with (
        KubeServer() as server,
        electing(server, clock, office, "a", failed=errors.append) as (elector,),
    ):
        await passing(clock, lambda: office.leading)
        since = clock.monotonic()
        server.fail(fault)
        await passing(clock, lambda: not office.leading)

        assert 7 <= clock.monotonic() - since <= 10.5
        assert not elector.leading
        assert errors


async def test_a_lost_answer_is_made_good_by_the_next_try() -> None:
    """The renewal was stored; reading it back shows it is ours."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server, electing(server, clock, office, "a"):
        await passing(clock, lambda: office.leading)
        server.fail(Fault(method="PATCH", executed=True, drop=True, times=2))
        end = clock.monotonic() + 30
        await passing(clock, lambda: clock.monotonic() >= end)

        assert office.log == ["a starts"]
        assert lease(server)["leaseTransitions"] == 0


async def test_a_stolen_lease_ends_the_work() -> None:
    """An administrator may hand it to another; the leader sees it at its next renewal."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server, electing(server, clock, office, "a") as (elector,):
        await passing(clock, lambda: office.leading)
        held = server.store.get(LEASES_PATH, "kube-system", "lock")
        stolen = {**held, "spec": {**held["spec"], "holderIdentity": "thief"}}
        server.store.update(LEASES_PATH, "kube-system", "lock", stolen)
        since = clock.monotonic()
        await passing(clock, lambda: not office.leading)

        assert clock.monotonic() - since < 6
        assert elector.holder == "thief"
        await passing(clock, lambda: office.leading)
        assert clock.monotonic() - since >= 15


async def test_a_renewal_that_hangs_does_not_outlast_the_deadline() -> None:
    """The attempt is given up by our clock."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server, electing(server, clock, office, "a"):
        await passing(clock, lambda: office.leading)
        server.fail(Fault(method="PATCH", delay=0.5))
        since = clock.monotonic()
        await passing(clock, lambda: "a ends" in office.log)

        assert clock.monotonic() - since <= 10.5


async def test_work_that_ends_gives_the_lease_back() -> None:
    """And `run` returns."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server, client_of(server, clock=clock) as client:
        elector = LeaderElector(
            client, namespace="kube-system", name="lock", identity="a",
            lead=lambda: office.hold("a"),
        )  # fmt: skip
        task = started(elector.run())
        await eventually(lambda: office.leading)
        office.end.set()
        await task

        assert lease(server)["holderIdentity"] == ""
        assert not elector.leading


async def test_work_that_fails_passes_its_error_on() -> None:
    """After the lease was given back."""

    async def fail() -> None:
        raise LookupError("boom")

    async with KubeServer() as server, client_of(server, clock=SteppedClock()) as client:
        elector = LeaderElector(
            client, namespace="kube-system", name="lock", identity="a", lead=fail
        )
        with pytest.raises(LookupError, match="boom"):
            await elector.run()

        assert lease(server)["holderIdentity"] == ""


async def test_what_others_keep_in_the_lease_stays() -> None:
    """Labels and the like."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        meta = {"name": "lock", "labels": {"team": "x"}}
        server.store.create(LEASES_PATH, "kube-system", {"metadata": meta})
        async with electing(server, clock, office, "a"):
            await passing(clock, lambda: office.leading)

        stored = server.store.get(LEASES_PATH, "kube-system", "lock")
        assert stored["metadata"]["labels"] == {"team": "x"}


@pytest.mark.parametrize("settled", [True, False])
async def test_the_next_leader_is_told_whether_anything_is_on_its_way(settled: bool) -> None:  # noqa: FBT001
    """Who finds a lease given back in order need not wait for what its holder sent."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        async with electing(server, clock, office, "a", settled=lambda: settled) as (first,):
            await passing(clock, lambda: office.leading)
            assert not first.handed_over  # nobody had it before
        async with electing(server, clock, office, "b") as (second,):
            await passing(clock, lambda: office.leading)

            assert second.handed_over is settled
            held = lease(server)["renewTime"]
            await passing(clock, lambda: lease(server)["renewTime"] > held)
            assert second.handed_over is settled  # renewing does not change what was found


@pytest.mark.parametrize("how", ["expired", "emptied by hand"])
async def test_a_lease_that_was_not_given_back_hands_nothing_over(how: str) -> None:
    """What its holder sent may still arrive."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        spec = {"holderIdentity": "gone", "leaseDurationSeconds": 15}
        if how == "emptied by hand":
            spec["holderIdentity"] = ""
        body = {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": "lock", "namespace": "kube-system"},
            "spec": spec,
        }
        server.store.create(LEASES_PATH, "kube-system", body)
        async with electing(server, clock, office, "b") as (elector,):
            await passing(clock, lambda: office.leading)

            assert not elector.handed_over

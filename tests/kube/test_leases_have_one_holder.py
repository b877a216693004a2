"""Leader election: the rules under any timing, then the loop against a server with faults."""

import asyncio
import contextlib
import functools
import heapq
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import client_of, eventually, started, stopped

from fakes.clock import SteppedClock
from fakes.kube_server import KubeServer
from fakes.leases import given_back
from fakes.wire import Fault
from partage.apiserver import ApiServer, serve
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.election import Election, LeaseSettings, LeaseSpec
from partage.kube.errors import KubeError
from partage.kube.lease import Candidacy, LeaderElector
from partage.kube.resources import LEASES
from partage.kube.sender import ClientSettings

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = LeaseSettings()
LEASES_PATH = LEASES.path()
SOON = 1e-6
"""Seconds; of rounding, where clocks show millions of seconds."""


@dataclass
class Cell:
    """A lease in a store that compares versions; and what its holder says of when it stops."""

    spec: LeaseSpec | None = None
    version: int = 0
    stops: float | None = None


@dataclass
class Candidate:
    """One process: its rules, and a clock that differs from all others."""

    election: Election
    offset: float
    says: bool = True
    read: tuple[LeaseSpec | None, int, float | None] = (None, -1, None)
    claims: list[tuple[LeaseSpec, float, int]] = field(default_factory=list)

    @property
    def stops(self) -> float:
        """The moment, by the test's own time, at which it stops to lead; long ago if it does not."""
        until = self.election.leads_until
        return -1e9 if until is None else until - self.offset


RARELY = st.just([False]) | st.lists(st.booleans(), min_size=1, max_size=60)
DELAYS = st.lists(st.floats(0, 12), min_size=1, max_size=60)


@given(
    count=st.integers(2, 3),
    offsets=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    delays=DELAYS,
    lost=st.lists(st.booleans(), min_size=1, max_size=60),
    says=st.lists(st.booleans(), min_size=3, max_size=3),
    wiped=RARELY,
    killed=RARELY,
)
def test_there_is_never_a_second_leader(
    count: int,
    offsets: list[float],
    delays: list[float],
    lost: list[bool],
    says: list[bool],
    wiped: list[bool],
    killed: list[bool],
) -> None:
    """Slow networks, lost answers and skewed clocks: at every moment at most one leads.

    A new leader knows a moment from which no earlier one leads, even one that learns
    only later that it had renewed; also where leases are deleted by hand, and processes killed and
    others begun that have seen nothing.
    """
    cell = Cell()
    actors = [Candidate(Election(f"c{i}", SETTINGS), offsets[i], says[i]) for i in range(count)]
    taken: list[tuple[int, float]] = []
    agenda = [(i / 10, i, i, "read") for i in range(count)]
    drawn = iter(range(10**9))

    def delay() -> float:
        return delays[next(drawn) % len(delays)]

    sequence = count
    for _ in range(120):
        now, _, who, step = heapq.heappop(agenda)
        if killed[next(drawn) % len(killed)]:
            actors[who], step = (
                Candidate(Election(f"{now}", SETTINGS), offsets[who], says[who]),
                "read",
            )
        actor = actors[who]
        mine = now + actor.offset
        if wiped[next(drawn) % len(wiped)]:
            cell.spec, cell.version, cell.stops = None, cell.version + 1, None
        assert any(wiped) or sum(a.election.leads(now + a.offset) for a in actors) <= 1
        wait, following = delay(), "read"
        if step == "read":
            actor.read = (cell.spec, cell.version, cell.stops)
            following = "decide"
        elif step == "decide":
            spec, version, stops = actor.read
            actor.election.observe(spec, str(version), mine, stops)
            if actor.election.may_take(mine):
                actor.claims.append((actor.election.claim(MOMENT), mine, actor.read[1]))
                following = "store"
        elif step == "store":
            claim, sent, version = actor.claims.pop()
            stored = version == cell.version
            if stored:
                if cell.spec is None or cell.spec.holder_identity != claim.holder_identity:
                    quiet = actor.election.quiet_from - actor.offset + SOON
                    taken.append((cell.version + 1, quiet))
                    assert all(one.stops <= quiet for one in actors if one is not actor)
                cell.spec, cell.version = claim, cell.version + 1
                cell.stops = actor.election.stops(sent) if actor.says else None
            if stored and not lost[next(drawn) % len(lost)]:
                actor.claims.append((claim, sent, version))
                following = "answer"
        else:
            claim, sent, version = actor.claims.pop()
            actor.election.won(claim, str(version + 1), sent=sent, now=mine)
            assert all(actor.stops <= quiet for at, quiet in taken if at > version + 1)
        sequence += 1
        heapq.heappush(agenda, (now + wait, sequence, who, following))


def test_a_lease_is_free_only_after_it_was_seen_unchanged_for_its_time() -> None:
    """The watcher's own clock decides; what the lease says of its renewal does not count."""
    election = Election("me", SETTINGS)
    held = LeaseSpec("other", 20, "", "1970-01-01T00:00:00.000000Z", 3)

    election.observe(held, "1", 100.0)
    assert not election.may_take(119.9)
    election.observe(held, "1", 119.0)
    assert election.may_take(120.0)
    election.observe(held, "2", 121.0)
    assert not election.may_take(140.0)
    assert (election.holder, election.term) == ("other", 3)


@pytest.mark.parametrize(
    ("duration", "free"),
    [(1, 115.0), (14, 115.0), (15, 115.0), (270, 370.0), (601, 700.0), (2**31 - 1, 700.0)],
)
def test_a_wrong_duration_keeps_candidates_neither_for_years_nor_too_short(
    duration: int, free: float
) -> None:
    """The lease names a holder: a person or a broken program wrote the number once."""
    election = Election("me", SETTINGS)
    election.observe(LeaseSpec("other", duration, "", "x", 3), "1", 100.0)
    assert not election.may_take(free - 0.1)
    assert election.may_take(free)
    assert election.quiet_from == free


HELD = LeaseSpec("other", 15, "", "2026-01-01T00:00:00.000000Z", 3)


@pytest.mark.parametrize(
    ("spec", "stops", "quiet"),
    [
        pytest.param(HELD, 10.0, 110.0, id="says when it stops"),
        pytest.param(HELD, None, 115.0, id="does not say"),
        pytest.param(HELD, 3600.0, 115.0, id="says nonsense"),
        pytest.param(
            LeaseSpec("other", 1, "", "x", 3), 10.0, 110.0, id="a duration changed by hand"
        ),
        pytest.param(LeaseSpec("", 1, "", "x", 3), 0.0, 100.0, id="released"),
        pytest.param(LeaseSpec("", 2, "", "x", 3), 0.0, 100.0, id="released unsettled"),
        pytest.param(LeaseSpec("", 1, "", "x", 3), None, 115.0, id="released by others"),
        pytest.param(LeaseSpec("", 2, "", "x", 3), None, 115.0, id="odd"),
        pytest.param(LeaseSpec("", 15, "", "x", 3), None, 115.0, id="emptied by hand"),
        pytest.param(LeaseSpec("", 15, "", "x", 3), 10.0, 110.0, id="a name taken out by hand"),
        pytest.param(LeaseSpec("", 1, "", "x", 3), 10.0, 110.0, id="all of it changed by hand"),
        pytest.param(LeaseSpec("", 60, "", "x", 3), None, 160.0, id="of a program with more time"),
        pytest.param(LeaseSpec(), None, 115.0, id="empty"),
        pytest.param(None, None, 115.0, id="none"),
    ],
)
def test_it_is_known_from_when_the_one_before_is_quiet(
    spec: LeaseSpec | None, stops: float | None, quiet: float
) -> None:
    """The time is counted from when its last renewal was seen, which was after it was sent."""
    election = Election("me", SETTINGS)

    election.observe(spec, "1", 100.0, stops)
    election.observe(spec, "1", 109.0, stops)

    assert election.quiet_from == quiet


def test_a_lease_deleted_under_its_holder_is_no_sign_that_it_stopped() -> None:
    """It notices at its next renewal at the earliest."""
    election = Election("me", SETTINGS)
    election.observe(HELD, "1", 100.0, 10.0)
    election.observe(None, "", 101.0)

    assert election.may_take(101.0)
    assert election.quiet_from == 116.0


def test_a_lease_of_which_all_was_taken_out_is_no_sign_that_its_holder_stopped() -> None:
    """It counts as one that was deleted."""
    election = Election("me", SETTINGS)
    election.observe(HELD, "1", 100.0, 10.0)
    election.observe(LeaseSpec(), "2", 101.0)

    assert election.may_take(101.0)
    assert election.quiet_from == 116.0


@pytest.mark.parametrize(
    ("found", "quiet"),
    [
        pytest.param(
            LeaseSpec("me", 15, "", "x", 4), 116.0, id="ours: the answer to our claim was lost"
        ),
        pytest.param(None, 117.0, id="gone as well"),
    ],
)
def test_what_comes_after_an_emptied_lease_does_not_end_the_wait(
    found: LeaseSpec | None, quiet: float
) -> None:
    """Its former holder still has its time."""
    election = Election("me", SETTINGS)
    election.observe(HELD, "1", 100.0, 10.0)
    election.observe(LeaseSpec("", 15, "", "x", 3), "2", 101.0)
    election.observe(found, "3", 102.0)

    assert election.quiet_from == quiet


@pytest.mark.parametrize("duration", [1, 2])
def test_a_lease_that_was_given_back_ends_the_wait(duration: int) -> None:
    """Its holder said so itself."""
    election = Election("me", SETTINGS)
    election.observe(HELD, "1", 100.0, 10.0)
    election.observe(LeaseSpec("", duration, "", "x", 3), "2", 101.0, 0.0)

    assert election.quiet_from == 101.0
    assert election.handed_over is (duration == 1)


@pytest.mark.parametrize(
    ("spec", "stops"),
    [
        pytest.param(LeaseSpec("", 1, "", "x", 3), 0.0, id="released"),
        pytest.param(LeaseSpec("me", 15, "", "x", 3), 10.0, id="ours"),
        pytest.param(LeaseSpec("she", 15, "", "x", 3), 10.0, id="a third one's"),
    ],
)
def test_a_lease_of_a_restored_backup_does_not(spec: LeaseSpec, stops: float) -> None:
    """Its holder may have renewed it until that moment, and leads on that."""
    election = Election("me", SETTINGS)
    election.observe(HELD, "236", 100.0, 10.0)
    election.observe(spec, "212", 101.0, stops)

    assert not election.handed_over
    assert election.quiet_from == 116.0


def test_a_lease_that_another_program_gave_back_does_not() -> None:
    """Kubernetes' own clients release without waiting for what they sent, and say nothing of it."""
    election = Election("me", SETTINGS)
    election.observe(HELD, "1", 100.0)
    election.observe(LeaseSpec("", 1, "", "y", 3), "2", 101.0)

    assert election.may_take(101.0)
    assert not election.handed_over
    assert election.quiet_from == 116.0


def test_what_a_holder_says_is_also_of_the_one_before_it() -> None:
    """A process that finds only the lease of the later one may have to wait for the earlier one."""
    election = Election("me", SETTINGS)
    election.observe(None, "", 100.0)

    assert [election.stops(sent) for sent in (100.0, 103.0, 105.0, 200.0)] == [
        15.0,
        12.0,
        10.0,
        10.0,
    ]


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
def test_times_that_let_two_lead_are_refused(duration: int, deadline: float, retry: float) -> None:
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
        """Lead until the test sets `end`."""
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
        settings = options.pop("settings", LeaseSettings())
        mark = options.pop("mark", "stops")
        attempts = options.pop("attempts", 1)
        for name in names:
            client = await stack.enter_async_context(
                client_of(server, clock=clock, attempts=attempts)
            )
            elector = LeaderElector(
                client,
                Candidacy("kube-system", "lock", name, settings, mark),
                functools.partial(office.hold, name),
                **options,
            )
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
        assert clock.monotonic() < end, "it never held"
        await clock.advance(0.25)
        await asyncio.sleep(0.001)


def left_in_order(server: KubeServer) -> None:
    """The lease was released by its holder."""
    server.store.create(LEASES_PATH, "kube-system", given_back("lock", "kube-system", "stops"))


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
        left_in_order(server)
        async with electing(server, clock, office, "a"):
            await passing(clock, lambda: office.leading)
        assert lease(server)["holderIdentity"] == ""
        before = clock.monotonic()
        async with electing(server, clock, office, "c"):
            await passing(clock, lambda: office.leading)

            assert clock.monotonic() - before < 1
            assert lease(server)["leaseTransitions"] == 2


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(method="PATCH", status=500, times=999), id="500"),
        pytest.param(Fault(method="PATCH", drop=True, times=999), id="dropped"),
        pytest.param(Fault(method="PATCH", executed=True, status=504, times=999), id="in-doubt"),
        pytest.param(Fault(method="PATCH", body=b'{"metadata": {}}', times=999), id="nonsense"),
        pytest.param(Fault(method="PATCH", body=b"<html></html>", times=999), id="a-page"),
    ],
)
async def test_a_leader_that_cannot_renew_stops_in_time(fault: Fault) -> None:
    """No other leads before the deadline, and this one does not lead after it."""
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


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_was_busy_for_a_moment_costs_no_lead(status: int) -> None:
    """It asks for more time than a leader has; a try without that wait succeeds."""
    clock, office = SteppedClock(), Office()
    async with (
        KubeServer() as server,
        electing(server, clock, office, "a", attempts=5) as (elector,),
    ):
        await passing(clock, lambda: office.leading)
        before = lease(server)["renewTime"]
        server.fail(Fault(method="PATCH", status=status, retry_after="20"))
        end = clock.monotonic() + 15
        await passing(clock, lambda: clock.monotonic() >= end)
        assert office.log == ["a starts"]
        assert elector.leading
        assert lease(server)["renewTime"] > before


async def test_a_candidate_asks_again_soon_where_a_server_was_busy_for_a_moment() -> None:
    """A free lease is not left for as long as the server asks."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        left_in_order(server)
        server.fail(Fault(path="leases", watch=False, status=429, retry_after="25", times=3))
        before = clock.monotonic()
        async with electing(server, clock, office, "a", attempts=5):
            await passing(clock, lambda: office.leading)
        assert clock.monotonic() - before < 10


async def test_a_candidate_says_that_its_namespace_is_missing_and_leads_once_it_is_there() -> None:
    """The Lease cannot be made before: that is no race which another candidate won."""
    clock, office, told = SteppedClock(), Office(), list[str]()
    server = ApiServer()
    async with (
        serve(server) as url,
        Client(
            Config(ClusterConfig(url)), settings=ClientSettings(attempts=1), clock=clock
        ) as client,
    ):
        elector = LeaderElector(
            client,
            Candidacy("partage", "partage", "a"),
            functools.partial(office.hold, "a"),
            failed=lambda error: told.append(str(error)),
        )
        task = started(elector.run())
        await passing(clock, lambda: len(told) > 1)
        assert not office.leading
        assert 'namespaces "partage" not found' in told[0]
        assert "create this namespace" in told[0]
        await server.create("namespaces", {"metadata": {"name": "partage"}})
        await passing(clock, lambda: office.leading)
        await asyncio.gather(stopped(task), _pass(clock, task))


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


async def test_a_leader_hears_of_a_restored_backup_and_leads_on() -> None:
    """The lease is its own, of long ago: no other led meanwhile, and it must know at once what else was restored."""
    clock, office, heard = SteppedClock(), Office(), list[float]()
    async with (
        KubeServer() as server,
        electing(server, clock, office, "a", went_back=lambda: heard.append(clock.monotonic())),
    ):
        await passing(clock, lambda: office.leading)
        backup = server.store.backup()
        end = clock.monotonic() + 30
        await passing(clock, lambda: clock.monotonic() >= end)
        server.store.restored(backup)
        await passing(clock, lambda: clock.monotonic() >= end + 10)

        assert office.log == ["a starts"]
        assert heard
        assert heard[0] < end + 6


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


@dataclass
class Paused(SteppedClock):
    """The clock of a machine that may be paused: its wall clock is corrected afterwards."""

    ahead: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()

    def now(self) -> datetime:
        """The wall clock as it is set."""
        return super().now() + timedelta(seconds=self.ahead)


async def test_a_machine_that_stood_still_leads_again_when_it_has_renewed() -> None:
    """Its own clock does not know that the lease may have run out; the work goes on."""
    clock, office = Paused(), Office()
    doubts: list[float] = []
    async with (
        KubeServer() as server,
        electing(server, clock, office, "a", doubted=doubts.append) as (elector,),
    ):
        await passing(clock, lambda: office.leading)

        clock.ahead = 20.0
        assert not elector.leading
        since = clock.monotonic()
        await passing(clock, lambda: elector.leading)

        assert clock.monotonic() - since <= SETTINGS.retry + 0.5
        assert doubts == pytest.approx([20.0])
        assert office.log == ["a starts"]


async def test_a_machine_that_stood_still_finds_that_another_leads() -> None:
    """It did not lead for a moment after its clock was set."""
    clock, office = Paused(), Office()
    async with KubeServer() as server, electing(server, clock, office, "a") as (elector,):
        await passing(clock, lambda: office.leading)
        held = server.store.get(LEASES_PATH, "kube-system", "lock")
        taken = {**held, "spec": {**held["spec"], "holderIdentity": "next"}}
        server.store.update(LEASES_PATH, "kube-system", "lock", taken)
        clock.ahead = 20.0

        def ended() -> bool:
            assert not elector.leading
            return not office.leading

        await passing(clock, ended)
        assert elector.holder == "next"


async def test_a_machine_that_stood_still_and_cannot_renew_leads_no_more() -> None:
    """Until its deadline it does not know."""
    clock, office = Paused(), Office()
    async with KubeServer() as server, electing(server, clock, office, "a") as (elector,):
        await passing(clock, lambda: office.leading)
        server.fail(Fault(method="PATCH", status=500, times=999))
        clock.ahead = 20.0

        def ended() -> bool:
            assert not elector.leading
            return not office.leading

        await passing(clock, ended)


@pytest.mark.parametrize("ahead", [0.9, -3600.0], ids=["adjusted", "set back"])
async def test_a_clock_that_is_adjusted_or_set_back_costs_nothing(ahead: float) -> None:
    """A pause looks different from both."""
    clock, office = Paused(), Office()
    async with KubeServer() as server, electing(server, clock, office, "a") as (elector,):
        await passing(clock, lambda: office.leading)

        clock.ahead = ahead

        assert elector.leading


async def test_a_renewal_that_hangs_does_not_outlast_the_deadline() -> None:
    """The attempt is given up by our clock."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server, electing(server, clock, office, "a"):
        await passing(clock, lambda: office.leading)
        server.fail(Fault(method="PATCH", delay=3600.0))
        since = clock.monotonic()
        await passing(clock, lambda: "a ends" in office.log)

        assert clock.monotonic() - since <= 10.5


async def test_work_that_ends_gives_the_lease_back() -> None:
    """`run` returns."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server, client_of(server, clock=clock) as client:
        left_in_order(server)
        elector = LeaderElector(
            client, Candidacy("kube-system", "lock", "a", mark="stops"), lambda: office.hold("a")
        )
        task = started(elector.run())
        await eventually(lambda: office.leading)
        office.end.set()
        await task

        assert lease(server)["holderIdentity"] == ""
        assert not elector.leading


async def test_work_that_fails_passes_its_error_on() -> None:
    """It passes the error on after it has released the lease."""

    async def fail() -> None:
        raise LookupError("boom")

    async with KubeServer() as server, client_of(server, clock=SteppedClock()) as client:
        left_in_order(server)
        elector = LeaderElector(client, Candidacy("kube-system", "lock", "a", mark="stops"), fail)
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
    """A process that finds a properly released lease need not wait for what its holder sent."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        left_in_order(server)
        async with electing(server, clock, office, "a", settled=lambda: settled) as (first,):
            await passing(clock, lambda: office.leading)
            assert not first.handed_over  # who had it before did not say so
        async with electing(server, clock, office, "b") as (second,):
            await passing(clock, lambda: office.leading)

            assert second.handed_over is settled
            held = lease(server)["renewTime"]
            await passing(clock, lambda: lease(server)["renewTime"] > held)
            assert second.handed_over is settled  # renewing does not change what was found


@pytest.mark.parametrize("how", ["expired", "emptied by hand", "released by another program"])
async def test_a_lease_that_was_not_given_back_hands_nothing_over(how: str) -> None:
    """What its holder sent may still arrive."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        spec = {"holderIdentity": "gone", "leaseDurationSeconds": 15}
        if how != "expired":
            spec["holderIdentity"] = ""
        if how == "released by another program":
            spec |= {"leaseDurationSeconds": 1, "renewTime": "y"}
        # Others leave what Partage said of an earlier moment as it was.
        body = given_back("lock", "kube-system", "stops") | {"spec": spec}
        server.store.create(LEASES_PATH, "kube-system", body)
        seen = clock.monotonic()
        async with electing(server, clock, office, "b") as (elector,):
            await passing(clock, lambda: office.leading)

            assert not elector.handed_over
            assert elector.quiet_from >= seen + SETTINGS.duration


async def test_a_lease_that_never_was_is_one_that_was_deleted() -> None:
    """A process that has just begun cannot tell: the one that held it may still send."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        seen = clock.monotonic()
        async with electing(server, clock, office, "b") as (elector,):
            await eventually(lambda: clock.sleepers)  # it has looked
            await passing(clock, lambda: office.leading)

            assert elector.quiet_from == seen + SETTINGS.duration
            stored = server.store.get(LEASES_PATH, "kube-system", "lock")
            moment, said = stored["metadata"]["annotations"]["stops"].split()
            assert moment == stored["spec"]["renewTime"]
            assert SETTINGS.deadline < float(said) <= SETTINGS.duration


@pytest.mark.parametrize("waited", [False, True], ids=["early", "in time"])
async def test_a_lease_is_not_given_back_while_the_one_before_may_send(waited: bool) -> None:  # noqa: FBT001
    """The next holder would not know of that one, and counts from the moment of the release."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        spec = {"holderIdentity": "", "leaseDurationSeconds": 15, "renewTime": "x"}
        server.store.create(
            LEASES_PATH, "kube-system", {"metadata": {"name": "lock"}, "spec": spec}
        )
        async with electing(server, clock, office, "b", settled=lambda: True) as (elector,):
            await passing(clock, lambda: office.leading)
            quiet = elector.quiet_from
            if waited:
                await passing(clock, lambda: clock.monotonic() >= quiet)

        assert lease(server)["holderIdentity"] == ("" if waited else "b")


@pytest.mark.parametrize(("deleted", "duration"), [(0, 1), (1, 2)], ids=["never", "once"])
async def test_a_lease_that_was_gone_is_not_given_back_as_settled(
    deleted: int, duration: int
) -> None:
    """What was waited for at the start of the work is not what came since."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        left_in_order(server)
        async with electing(server, clock, office, "a", settled=lambda: True) as (elector,):
            await passing(clock, lambda: office.leading)
            for _ in range(deleted):
                server.store.delete(LEASES_PATH, "kube-system", "lock")
            end = clock.monotonic() + 30.0
            await passing(clock, lambda: clock.monotonic() >= end)
            assert elector.leading

        assert office.log == ["a starts", "a ends"]
        assert lease(server)["holderIdentity"] == ""
        assert lease(server)["leaseDurationSeconds"] == duration


async def test_a_lease_given_back_is_seen_without_a_look_at_the_clock() -> None:
    """A watch reports it to pending instances: no time passes here at all."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        left_in_order(server)
        async with electing(server, clock, office, "a"):
            await eventually(lambda: office.log == ["a starts"])
            # A candidate that has won ends its watch, which the server notices a little later.
            await eventually(lambda: not server.watches)
            waiting = contextlib.AsyncExitStack()
            await waiting.enter_async_context(electing(server, clock, office, "b"))
            await eventually(lambda: server.watches)
        async with waiting:
            await eventually(lambda: office.log[1:] == ["a ends", "b starts"])


async def test_a_lease_that_runs_out_is_taken_at_that_moment() -> None:
    """The moment is not that of the next look; it holds without a granted watch too."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        server.fail(Fault(method="GET", watch=True, status=403, times=9999))
        meta = {"name": "lock"}
        held = {"holderIdentity": "gone", "leaseDurationSeconds": 15}
        server.store.create(LEASES_PATH, "kube-system", {"metadata": meta, "spec": held})
        seen = clock.monotonic()
        async with electing(server, clock, office, "a") as (elector,):
            await eventually(lambda: elector.holder == "gone")
            await passing(clock, lambda: office.leading)

            assert 15 <= clock.monotonic() - seen <= 15.5


@pytest.mark.parametrize(
    ("mark", "quiet"),
    [
        ("2026-01-01T00:00:00.000000Z 9", 9.0),
        ("2025-01-01T00:00:00.000000Z 9", 15.0),
        ("x", 15.0),
        ("2026-01-01T00:00:00.000000Z nan", 15.0),
        ("", 15.0),
    ],
    ids=["of this renewal", "of an earlier one", "nonsense", "no number", "none"],
)
async def test_what_a_holder_says_holds_for_that_renewal_alone(mark: str, quiet: float) -> None:
    """Another program that renews leaves the annotation as it was, and keeps its own deadline."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server:
        meta = {"name": "lock", "annotations": {"stops": mark}}
        held = {
            "holderIdentity": "gone",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        }
        server.store.create(LEASES_PATH, "kube-system", {"metadata": meta, "spec": held})
        seen = clock.monotonic()
        async with electing(server, clock, office, "a", mark="stops") as (elector,):
            await eventually(lambda: elector.holder == "gone")
            await passing(clock, lambda: office.leading)

            assert elector.quiet_from == seen + quiet
            stored = server.store.get(LEASES_PATH, "kube-system", "lock")
            renewed = stored["spec"]["renewTime"]
            assert stored["metadata"]["annotations"] == {"stops": f"{renewed} 10"}


async def test_ten_minutes_without_an_api_server_cost_the_lease_and_nothing_else() -> None:
    """The leader stops in time, no instance leads meanwhile, and one of the two does soon afterwards."""
    clock, office = SteppedClock(), Office()
    async with KubeServer() as server, electing(server, clock, office, "a", "b") as electors:
        await passing(clock, lambda: office.leading)
        outage = Fault(drop=True, times=10**9)
        server.fail(outage)
        await passing(clock, lambda: not office.leading, 11.0)
        for _ in range(600):
            await clock.advance(1.0)
            await asyncio.sleep(0.001)
            assert not any(elector.leading for elector in electors)
            assert not office.leading
        outage.times = 0

        await passing(clock, lambda: office.leading, 20.0)
        assert office.leading == 1

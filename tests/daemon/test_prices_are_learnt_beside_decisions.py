"""The running scheduler learns prices from its pods, and no decision waits for that."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes.builders import card, make_node, make_pod, share, whole
from partage.daemon import learning as daemon_learning
from partage.daemon import learning_process
from partage.daemon.learning import Learning, LearningSettings
from partage.daemon.learning_process import process
from partage.extender.books import Books
from partage.model.pod import Pod
from partage.model.policy import Policy, Strategy
from partage.model.request import CardFilter
from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Selector,
    Taint,
    Toleration,
)
from partage.placement import learning as placement_learning
from partage.placement.learning import asks_of
from partage.placement.mix import Ask
from partage.placement.tables import Tables
from partage.scheduler.engine import Engine
from partage.scheduler.events import BindSucceeded, NodeSeen, TablesChanged

ROOM = {"cpu": 32_000, "memory": 64 * 2**30, "pods": 100}
HOST = {"cpu": 2000, "memory": 2**30}


class Watch:
    """A clock that stands still; every sleep ends at once."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return 0.0

    async def sleep(self, seconds: float) -> None:
        """Let others run."""
        del seconds
        await asyncio.sleep(0)


@dataclass
class Shelf:
    """Books with an engine and pods, as far as learning looks at them."""

    engine: Engine = field(default_factory=Engine)
    known: dict[str, Any] = field(default_factory=dict)
    compared: dict[str, Pod] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)

    @property
    def cluster_cache(self) -> Any:
        """What knows the pods."""
        return SimpleNamespace(
            pods=self.known,
            compared=self.compared,
            taken_by_others=lambda: self.taken,
        )

    def asking(self, one: Any) -> Pod:
        """The pod, with its requests beside devices once such amounts are known."""
        asking: Pod = one.hosted if self.taken else one.pod
        return asking

    def take(self, events: list[TablesChanged], now: float) -> None:
        """Tell the engine."""
        del now
        for event in events:
            self.engine.handle(event)

    def come(self, pods: Mapping[str, Pod]) -> None:
        """Pods are there."""
        self.known.update(
            {
                uid: SimpleNamespace(pod=replace(pod, host={}), hosted=pod)
                for uid, pod in pods.items()
            }
        )


def shelf(policy: Strategy = Strategy.PARTAGE) -> Shelf:
    """Six nodes of four cards."""
    found = Shelf(Engine(Policy(policy, policy)))
    for i in range(6):
        gpus = [card(g, prefix=f"n{i}", model="T4" if i % 2 else "A100") for g in range(4)]
        found.engine.handle(NodeSeen(make_node(f"n{i}", gpus, allocatable=ROOM)))
    return found


def pods(first: int, last: int) -> dict[str, Pod]:
    """Shares and whole cards in turn."""
    asked = [share(40), share(60), whole(1), whole(2)]
    return {f"u{i}": make_pod(f"p{i}", asked[i % 4], host=HOST) for i in range(first, last)}


def learning(mine: Shelf, worker: Any = None, **settings: Any) -> Learning:
    """Learning over the shelf."""
    books = cast("Books", mine)
    threads = worker or (lambda: ThreadPoolExecutor(1))
    return Learning(lambda: books, Watch(), LearningSettings(**settings), threads)


@pytest.fixture(autouse=True)
def no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins are chosen in no time; which tables come of it is tested elsewhere."""
    monkeypatch.setitem(sys.modules, "highspy", None)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cluster counts as large enough for prices."""
    monkeypatch.setattr(placement_learning, "_SMALL", 0)


def test_a_small_cluster_gets_usual_requests_as_events() -> None:
    """They arrive once there are cards, before the first pod, and then after each arrival of pods."""
    mine = Shelf()
    learns = learning(mine)

    async def story() -> None:
        await learns.step()
        assert mine.engine.tables == Tables()
        mine.engine = shelf().engine
        await learns.step()
        assert (learns.arrivals.total, mine.engine.tables.chosen) == (0, "capacity")
        await learns.step()
        assert mine.engine.tables.version == 1
        mine.come(pods(0, 40))
        await learns.step()
        await learns.step()

    asyncio.run(story())

    assert mine.engine.tables.version == 2
    assert (1, 400) in {(s.count, s.core_milli) for s in mine.engine.tables.expected.shapes}


@pytest.mark.usefixtures("large")
def test_pods_with_claims_and_what_others_take_are_learnt_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods with claims count one by one, all others as their average."""
    mine = shelf()
    mine.compared |= pods(0, 310)
    mine.taken |= {"cpu": 9000, "memory": 6 * 2**30, "pods": 3}
    told: list[Mapping[Ask, int]] = []

    def due(_what: object, tables: Tables, counts: Mapping[Ask, int], *_more: object) -> Tables:
        told.append(counts)
        return tables

    monkeypatch.setattr(daemon_learning, "tables_due", due)
    asyncio.run(learning(mine).step())

    (counts,) = told
    assert counts[Ask(3000, 2048, elsewhere=True)] == 3
    assert sum(counts.values()) == 313


def test_pods_count_with_their_processors_where_those_of_others_are_known() -> None:
    """Otherwise the pods with devices would seem to be the only ones with processors."""
    mine = shelf()
    learns = learning(mine)
    mine.come(pods(0, 4))
    asyncio.run(learns.step())
    assert {ask.cpu_milli for ask in learns.arrivals.seen} == {0}
    mine.taken |= {"cpu": 9000}
    mine.come(pods(4, 8))
    asyncio.run(learns.step())
    assert {ask.cpu_milli for ask in learns.arrivals.seen} == {0, 2000}


@pytest.mark.usefixtures("large")
def test_enough_pods_bring_new_tables_as_an_event() -> None:
    """In a large cluster few pods change nothing, and more pods bring a choice."""
    mine = shelf()
    learns = learning(mine)

    async def story() -> None:
        mine.come(pods(0, 1))
        await learns.step()
        await learns.step()
        assert (learns.arrivals.total, mine.engine.tables.version) == (1, 0)
        mine.come(pods(1, 310))
        await learns.step()

    asyncio.run(story())

    assert learns.arrivals.total == 310
    assert mine.engine.tables.version == 1
    assert mine.engine.tables.stand_in in (Strategy.FGD, Strategy.FIRST_FIT)
    assert learns.arrivals.counts.total() == 310


@pytest.mark.usefixtures("large")
def test_what_runs_is_told_to_the_rehearsal() -> None:
    """The service then chooses from the present books, as a replay does."""
    mine, told = shelf(), []

    class Ear(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **more: Any) -> Any:
            told.append(arguments[-1])
            return super().submit(*arguments, **more)

    learns = learning(mine, lambda: Ear(1))
    some = {uid: replace(pod, uid=uid) for uid, pod in pods(0, 300).items()}
    mine.come(some)
    for pod in list(some.values())[:4]:
        mine.engine.schedule(pod)
        mine.engine.handle(BindSucceeded(pod.uid))

    asyncio.run(learns.step())

    (standing,) = told
    assert sum(standing.running.values()) == 4
    assert standing.left.sum() == (6 * 4 * 1000) - (400 + 600 + 1000 + 2000)


@pytest.mark.usefixtures("large")
def test_books_made_anew_get_the_tables_in_force() -> None:
    """The engine of new books has no tables until the next look."""
    mine = shelf()
    learns = learning(mine)

    async def story() -> Tables:
        mine.come(pods(0, 300))
        await learns.step()
        before = mine.engine.tables
        mine.engine = shelf().engine
        await learns.step()
        return before

    assert asyncio.run(story()) is mine.engine.tables


def test_another_policy_learns_nothing() -> None:
    """No decision would use the prices."""
    mine = shelf(Strategy.BINPACK)
    learns = learning(mine)
    mine.come(pods(0, 400))

    asyncio.run(learns.step())

    assert (learns.arrivals.total, mine.engine.tables.version) == (0, 0)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("whose", ["policy", "pod"])
def test_fgd_learns_the_requests_that_it_keeps_room_for(
    monkeypatch: pytest.MonkeyPatch, *, small: bool, whose: str
) -> None:
    """Also where only a pod names it; for FGD alone nothing is rehearsed."""
    if not small:
        monkeypatch.setattr(placement_learning, "_SMALL", 0)
    mine = shelf(Strategy.FGD if whose == "policy" else Strategy.BINPACK)

    def none() -> Executor:
        raise AssertionError("prices are made")

    learns = learning(mine, none)
    known = pods(0, 400)
    if whose == "pod":
        one = known["u9"]
        known["u9"] = replace(one, request=replace(one.request, node_strategy=Strategy.FGD))
    mine.come(known)

    asyncio.run(learns.step())

    asked = {(s.count, s.core_milli) for s in mine.engine.tables.workload.shapes}
    assert asked == {(1, 400), (1, 600), (1, 1000), (2, 1000)}


def test_what_was_counted_is_forgotten_slowly() -> None:
    """Beyond the window all counts are halved."""
    mine = shelf()
    learns = learning(mine, window=100)
    mine.come(pods(0, 120))

    asyncio.run(learns.step())

    assert (learns.arrivals.total, learns.arrivals.counts.total()) == (120, 60)


@pytest.mark.usefixtures("large")
def test_a_fault_ends_neither_learning_nor_decisions(caplog: pytest.LogCaptureFixture) -> None:
    """The fault is logged, and the next look follows."""
    mine = shelf()
    mine.come(pods(0, 300))
    calls = []

    def broken() -> Executor:
        calls.append(1)
        raise OSError("no more processes")

    async def story() -> None:
        task = asyncio.create_task(learning(mine, broken).run())
        for _ in range(200):
            await asyncio.sleep(0)
        assert calls
        assert not task.done()
        task.cancel()

    asyncio.run(story())

    assert "no new prices could be made" in caplog.text


@pytest.mark.usefixtures("large")
def test_a_process_of_its_own_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments and results survive the transfer between processes."""
    # Less urgent than all else it would wait for this machine's other work, which is what it is for.
    monkeypatch.setattr(learning_process, "_NICE", 0)
    mine = shelf()
    learns = learning(mine, process)
    mine.come(pods(0, 300))

    asyncio.run(learns.step())

    assert learns.tables is not None
    assert mine.engine.tables is learns.tables


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(make_pod("a", share(40), host=HOST), Ask(2000, 1024, 1, 400), id="share"),
        pytest.param(make_pod("a", whole(2), host=HOST), Ask(2000, 1024, 2, 1000), id="whole"),
        pytest.param(make_pod("a", host=HOST), Ask(2000, 1024), id="none"),
        pytest.param(
            make_pod("a", share(20), whole(1), host=HOST), Ask(2000, 1024, 1, 1000), id="largest"
        ),
        *(
            pytest.param(
                make_pod("a", share(40, filter=wanted), host=HOST),
                Ask(2000, 1024, 1, 400, models),
                id=told,
            )
            for told, wanted, models in (
                ("a model", CardFilter(use_types=("t4",)), ("T4",)),
                ("no model", CardFilter(use_types=("H100",)), ()),
                ("cards", CardFilter(use_uuids=("n1-0", "gone")), ("T4",)),
                (
                    "no card",
                    CardFilter(use_uuids=("n1-0",), avoid_uuids=("n1-0",)),
                    (),
                ),
                ("a card less", CardFilter(avoid_uuids=("n1-0",)), ()),
                (
                    "a model less",
                    CardFilter(
                        avoid_uuids=tuple(f"n{n}-{c}" for n in (1, 3, 5) for c in range(4))
                    ),
                    ("A100",),
                ),
            )
        ),
    ],
)
def test_an_ask_is_what_prices_look_at(pod: Pod, expected: Ask) -> None:
    """CPU, memory, and the largest request for cards."""
    engine = shelf().engine

    assert list(asks_of([pod], engine.ledger, engine.accepting)) == [expected]


T4_NODES = NodeConstraint(Selector((Requirement("cards", Operator.IN, ("T4",)),)))
NAMED = Requirement("metadata.name", Operator.IN, ("n2", "n4"))


@pytest.mark.parametrize(
    ("fields", "filters", "models"),
    [
        pytest.param({"constraint": T4_NODES}, {}, ("T4",), id="nodeSelector"),
        pytest.param(
            {"constraint": NodeConstraint(terms=(NodeTerm(fields=(NAMED,)),))},
            {},
            ("A100",),
            id="affinity",
        ),
        pytest.param({"tolerations": ()}, {}, ("A100",), id="taint"),
        pytest.param({"constraint": T4_NODES, "tolerations": ()}, {}, (), id="no node"),
        pytest.param(
            {"constraint": T4_NODES}, {"use_uuids": ("n1-0", "n2-0")}, ("T4",), id="cards too"
        ),
        pytest.param({}, {"avoid_uuids": ("n1-0",)}, (), id="a card less"),
        pytest.param(
            {"constraint": T4_NODES}, {"avoid_uuids": ("n0-0",)}, ("T4",), id="elsewhere"
        ),
        pytest.param(
            {"constraint": NodeConstraint(terms=(NodeTerm(fields=(NAMED,)),))},
            {"avoid_uuids": tuple(f"n{n}-{c}" for n in (2, 4) for c in range(4))},
            (),
            id="all cards of these nodes less",
        ),
    ],
)
def test_an_ask_has_the_models_on_the_nodes_that_its_pod_accepts(
    monkeypatch: pytest.MonkeyPatch,
    fields: Mapping[str, Any],
    filters: Mapping[str, Any],
    models: tuple[str, ...],
) -> None:
    """Most clusters choose a model by a label of its nodes; a node's cordon changes nothing."""
    monkeypatch.setattr(placement_learning, "_SMALL", 0)
    engine = Engine()
    for i in range(6):
        model = "T4" if i % 2 else "A100"
        gpus = [card(g, prefix=f"n{i}", model=model) for g in range(4)]
        taints = (Taint("small", "", "NoSchedule"),) if i % 2 else ()
        node = make_node(f"n{i}", gpus, labels={"cards": model}, taints=taints)
        engine.handle(NodeSeen(replace(node, unschedulable=i < 2)))
    pod = replace(
        make_pod("a", share(40, filter=CardFilter(**filters)), host=HOST),
        **{"tolerations": (Toleration(operator="Exists"),), **fields},
    )

    found = list(asks_of([pod], engine.ledger, engine.accepting))

    assert found == [Ask(2000, 1024, 1, 400, models)]


def test_pods_that_end_while_requests_are_looked_at_leave_nothing_behind() -> None:
    """Memory of a pod that is gone may serve the next one, which asks for something else."""
    engine = shelf().engine
    passing = (make_pod("a", share(1 + i), host=HOST) for i in range(50))

    found = list(asks_of(passing, engine.ledger, engine.accepting))

    assert [ask.milli for ask in found] == [10 * (1 + i) for i in range(50)]


def test_nodes_may_come_while_requests_are_looked_at() -> None:
    """They may have cards of a new kind; the next look counts them."""
    engine = shelf().engine
    found = asks_of(
        [make_pod("a", share(40), host=HOST), make_pod("b", share(50), host=HOST)],
        engine.ledger,
        engine.accepting,
    )

    first = next(found)
    engine.handle(NodeSeen(make_node("n0", [card(0, prefix="n0", model="H100")])))
    engine.handle(NodeSeen(make_node("new", [card(0, prefix="new", model="H200")])))

    assert [ask.milli for ask in (first, *found)] == [400, 500]


def test_others_run_while_many_requests_are_looked_at() -> None:
    """Any tenant may make many pods at once that all ask for something else, with hundreds of conditions on nodes."""
    mine = shelf()
    mine.come({f"u{i}": make_pod(f"p{i}", share(1 + i % 100, 1 + i)) for i in range(640)})
    learns, turns = learning(mine), 0

    async def counted() -> None:
        nonlocal turns
        step = asyncio.create_task(learns.step())
        while not step.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(counted())

    assert learns.arrivals.total == 640
    assert turns >= 640 / 4


LOADED = """
import sys
import partage.daemon.learning_process, partage.placement.learning
print(*sys.modules)
"""


def test_the_process_loads_little_of_the_service() -> None:
    """Its start is part of the cost of prices."""
    found = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )

    assert not {"aiohttp", "partage.extender", "partage.kube"} & set(found.stdout.split())


KILLED = """
import os, sys, time
from partage.daemon.learning_process import process

if __name__ == "__main__":
    worker = process()
    print(worker.submit(os.getpid).result(), flush=True)
    if sys.argv[1] == "busy":
        worker.submit(time.sleep, 3600)
    time.sleep(3600)
"""


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_it_ends_with_a_scheduler_that_is_killed(tmp_path: Path, state: str) -> None:
    """After a kill, for example for lack of memory, no process computes on or keeps its memory."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, str(script), state], stdout=subprocess.PIPE, text=True
    ) as main:
        assert main.stdout is not None
        worker = int(main.stdout.readline())
        main.send_signal(signal.SIGKILL)
        main.wait()
    until = time.monotonic() + 120
    try:
        while _runs(worker):
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        if _runs(worker):
            os.kill(worker, signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


ABLE = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "fpu"))
USES = """
import os, sys
from pathlib import Path
from partage.daemon.learning_process import use_machine_code
if sys.argv[1] == "use":
    use_machine_code(os.environ, frozenset(sys.argv[2].split()))
import numpy as np
from partage.placement import prices
prices.knapsack(np.array([10]), np.ones((1, 1)))
stats = prices._knapsack.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_machine_code_of_an_image_is_used_where_nothing_of_it_can_be_written(
    tmp_path: Path,
) -> None:
    """Made for processors of another name, in a folder of its own; numba compiles nothing."""
    pytest.importorskip("numba")
    if not learning_process.abilities() >= ABLE - {"fpu"}:
        pytest.skip("this processor cannot run such machine code")
    made, cache = tmp_path / "made", tmp_path / "cache"

    def looked(*words: str, **variables: str) -> str:
        known = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
        command = [sys.executable, "-c", USES, *words]
        done = subprocess.run(
            command, env=known | variables, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    common = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
    assert looked("make", NUMBA_CACHE_DIR=str(made), **common) == "0 1"
    for path in (*made.rglob("*"), made):
        path.chmod(0o555)
    both = {"PARTAGE_MACHINE_CODE": str(made), "NUMBA_CACHE_DIR": str(cache)}

    assert looked("use", " ".join(ABLE), **both) == "1 0"
    assert looked("use", " ".join(ABLE), **both) == "1 0"  # the links are there already
    assert looked("use", "fpu", **both) == "0 1"  # this processor's own name


@pytest.mark.parametrize(
    ("variables", "able"),
    [
        pytest.param({"NUMBA_CACHE_DIR": "cache"}, ABLE, id="no-image"),
        pytest.param({"PARTAGE_MACHINE_CODE": "made"}, ABLE, id="no-place-to-write"),
        pytest.param(
            {"PARTAGE_MACHINE_CODE": "made", "NUMBA_CACHE_DIR": "cache"},
            ABLE - {"avx2"},
            id="an-old-processor",
        ),
        pytest.param(
            {
                "PARTAGE_MACHINE_CODE": "made",
                "NUMBA_CACHE_DIR": "cache",
                "NUMBA_CPU_NAME": "generic",
            },
            ABLE,
            id="a-processor-of-the-users-choice",
        ),
    ],
)
def test_machine_code_that_does_not_fit_is_left_alone(
    variables: dict[str, str], able: frozenset[str], tmp_path: Path
) -> None:
    """Numba then compiles for the processor that it finds."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "one.nbi").write_bytes(b"")
    mine = {k: str(tmp_path / v) if v in ("made", "cache") else v for k, v in variables.items()}
    before = dict(mine)

    learning_process.use_machine_code(mine, able)

    assert mine == before
    assert not (tmp_path / "cache").exists()


def test_a_full_disk_and_a_missing_folder_of_machine_code_end_nothing(tmp_path: Path) -> None:
    """Numba compiles what it does not find."""
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    for made, cache in (("missing", "cache"), ("", "file")):
        names = {
            "PARTAGE_MACHINE_CODE": str(tmp_path / made),
            "NUMBA_CACHE_DIR": str(tmp_path / cache),
        }
        learning_process.use_machine_code(names, ABLE)
        assert names["NUMBA_CPU_NAME"] == "x86-64-v3"


def test_a_processor_says_what_it_can_do(tmp_path: Path) -> None:
    """Linux's words say it; without them nothing is assumed."""
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2\n\nflags\t\t: fpu\n", encoding="utf-8")

    assert learning_process.abilities(file) == {"fpu", "avx2"}
    assert learning_process.abilities(tmp_path / "missing") == frozenset()

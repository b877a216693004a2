"""After any events, the data that the dashboard keeps between two looks equals newly made data."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from world import card, device, document, half, node, pod, whole

from partage.dashboard.fleet import fleet_document
from partage.dashboard.nodes import nodes_document
from partage.dashboard.overview import overview_document
from partage.dashboard.queries import NodeQuery, PodQuery
from partage.dashboard.view_cache import Standing, Texts
from partage.dashboard.workloads import pods_document
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache, PodLog
from partage.extender.ports import Hooks
from partage.model.reason import ReasonCode, Refusal
from partage.vendors import names

NODES, PODS = ("n1", "n2", "N3"), ("a", "b", "B", "c")
SHARES = (10, 50)
CODES = (ReasonCode.INSUFFICIENT_CORE, ReasonCode.INSUFFICIENT_CARDS)
NAMED = st.sampled_from(NODES)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("node"), NAMED, st.booleans()),
        st.tuples(st.just("cards"), NAMED, st.sampled_from(["A100", "T4", ""]), st.integers(1, 3)),
        st.tuples(st.just("fault"), NAMED),
        st.tuples(st.just("no cards"), NAMED),
        st.tuples(st.just("node gone"), NAMED),
        st.tuples(st.just("waits"), st.sampled_from(PODS), st.integers(0, 2)),
        st.tuples(
            st.just("bound"),
            st.sampled_from(PODS),
            NAMED,
            st.integers(0, 2),
            st.sampled_from(SHARES),
        ),
        st.tuples(st.just("ended"), st.sampled_from(PODS)),
        st.tuples(st.just("refused"), st.sampled_from(PODS), st.sampled_from(CODES)),
        st.tuples(st.just("placed"), st.sampled_from(PODS)),
        st.tuples(st.just("pod gone"), st.sampled_from(PODS)),
        st.tuples(st.just("rebuilt")),
    ),
    max_size=12,
)
BEGUN: list[tuple[Any, ...]] = [
    *(("node", name, False) for name in NODES),
    *(("cards", name, "A100", 3) for name in NODES),
    ("bound", "a", "n1", 0, 10),
    ("bound", "b", "n1", 1, 50),
    ("waits", "B", 1),
]
NODE_QUERIES = [
    NodeQuery(),
    NodeQuery(order="used"),
    NodeQuery(order="free"),
    NodeQuery(only="used"),
    NodeQuery(only="free"),
    NodeQuery(only="closed"),
    NodeQuery(text="n3"),
    NodeQuery(model="A100"),
    NodeQuery(protocol="koordinator"),
    NodeQuery(vendor="x"),
    NodeQuery(text="t4", order="used"),
    NodeQuery(text="gpu-2"),
    NodeQuery(offset=1, limit=1),
    NodeQuery(cards="no", order="free"),
    NodeQuery(cards="used"),
]
POD_QUERIES = [
    PodQuery(),
    PodQuery(state="placed"),
    PodQuery(state="waiting"),
    PodQuery(text="b"),
    PodQuery(text="N1"),
    PodQuery(namespace="team"),
    PodQuery(namespace="tea"),
    PodQuery(code=CODES[0].value),
    PodQuery(code=CODES[0].value, state="placed"),
    PodQuery(offset=1, limit=2),
    PodQuery(protocol="koordinator"),
    PodQuery(order="node"),
    PodQuery(order="compute", reverse="yes"),
    PodQuery(order="memory"),
    PodQuery(order="age"),
]


class Told:
    """Books that receive events, with versions that grow."""

    def __init__(self) -> None:
        self.books = Books(ClusterCache(), Hooks())
        self._version = 0
        self._lives = 0

    def _next(self) -> int:
        self._version += 1
        return self._version

    def tell(self, step: tuple[Any, ...]) -> None:
        """One event."""
        self.books.take(list(self._events(step)), 0.0)

    def _events(self, step: tuple[Any, ...]) -> Iterator[Any]:
        cluster_cache = self.books.cluster_cache
        match step:
            case ("node", name, cordoned):
                found = node(name, self._next())
                found["spec"] = {"unschedulable": cordoned}
                yield from cluster_cache.changed(document(found))
            case ("cards", name, model, count):
                labels = {"node.koordinator.sh/gpu-model": model} if model else {}
                cards = [card(minor) for minor in range(count)]
                made = device(name, *cards, version=self._next())
                made["metadata"]["labels"] = labels
                yield from cluster_cache.changed(document(made))
            case ("fault", name):
                made = device(name, card(0, health=False), card(2), version=self._next())
                yield from cluster_cache.changed(document(made))
            case ("no cards", name):
                yield from cluster_cache.gone(document(device(name)))
            case ("node gone", name):
                yield from cluster_cache.gone(document(node(name)))
            case ("rebuilt",):
                self.books = Books(ClusterCache(), Hooks())
            case _:
                yield from self._of_a_pod(step)

    def _of_a_pod(self, step: tuple[Any, ...]) -> Iterator[Any]:
        cluster_cache, name = self.books.cluster_cache, step[1] if len(step) > 1 else ""
        known = cluster_cache.pod_named("team", name)
        match step:
            case ("pod gone", _) if known is not None:
                yield from cluster_cache.pod_gone(known.pod.uid)
            case ("refused", _, code) if known is not None and known.pod.node is None:
                self.books.waiting.enter(known, Refusal(code, f"{code} it is"), 0.0)
            case ("placed", _) if known is not None and known.pod.node is None:
                if known.pod.uid not in self.books.engine.states:
                    self.books.engine.schedule(known.pod)
            case ("ended", _) if known is not None:
                yield from self._seen(name, known.pod.uid, status={"phase": "Succeeded"})
            case ("waits", _, priority) if known is None:
                self._lives += 1
                asked = whole() if priority else half()
                yield from self._seen(name, f"{name}-{self._lives}", asked, priority=priority)
            case ("bound", _, place, minor, percent) if known is None or known.pod.node is None:
                self._lives += 1
                uid = known.pod.uid if known else f"{name}-{self._lives}"
                asked = {
                    f"koordinator.sh/gpu-{what}": str(percent) for what in ("core", "memory-ratio")
                }
                record = json.dumps({"gpu": [{"minor": minor, "resources": asked}]})
                yield from self._seen(
                    name, uid, asked, {names.DEVICE_ALLOCATED: record}, nodeName=place
                )

    def _seen(
        self,
        name: str,
        uid: str,
        asked: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        **more: Any,
    ) -> Iterator[Any]:
        meta = {"uid": uid, "resourceVersion": str(self._next()), "annotations": annotations or {}}
        yield from self.books.cluster_cache.pod_changed(
            document(pod(name, asked or half(), meta=meta, **more))
        )


async def looked(books: Books, standing: Standing | None) -> list[str]:
    """All documents as JSON; fragmentation is measured against a mix that is counted seldom."""
    made = [await overview_document(books, standing) | {"fragmentation": None}]
    made += [await fleet_document(books, standing)]
    made += [await nodes_document(books, query, standing) for query in NODE_QUERIES]
    made += [await nodes_document(books, NodeQuery(), standing, names=False)]
    made += [await pods_document(books, query, standing) for query in POD_QUERIES]
    return [msgspec.json.encode(one).decode() for one in made]


@given(STEPS)
@settings(max_examples=40)
def test_what_is_kept_is_what_would_be_made_anew(steps: list[tuple[Any, ...]]) -> None:
    """A look after every event returns the same documents to the byte."""

    async def story() -> None:
        told, standing, forgetful = Told(), Standing(Texts()), Standing(Texts(most=3000))
        for step in [*BEGUN, *steps]:
            told.tell(step)
            anew = await looked(told.books, None)
            assert await looked(told.books, standing) == anew, step
        assert await looked(told.books, forgetful) == anew

    asyncio.run(story())


def test_texts_are_kept_up_to_a_number_of_bytes() -> None:
    """The least recently used goes first; one that is larger than all is made each time, and a changed one counts once."""
    made: list[str] = []
    texts = Texts(most=250)

    def ask(key: str, size: int = 90, state: int = 0) -> None:
        def make() -> dict[str, Any]:
            made.append(key)
            return {"text": "x" * size}

        texts.of(key, (state,), make)

    for key in "abac":
        ask(key)
    assert made == ["a", "b", "c"]
    ask("a")
    ask("b")  # went for c
    assert made == ["a", "b", "c", "b"]
    for state in range(9):
        ask("b", state=state)
    ask("a")
    assert made[4:] == ["b"] * 8
    for _ in range(2):
        ask("large", 300)
    ask("a")
    assert made[12:] == ["large", "large", "a"]


@given(STEPS)
@example(
    [("ended", "a"), ("pod gone", "a"), ("cards", "n1", "A100", 1)]
)  # reported without its node
@settings(max_examples=40)
def test_lists_hold_what_the_books_hold_in_order(steps: list[tuple[Any, ...]]) -> None:
    """The test asks the books one by one: for existing, waiting, used and closed entries."""

    async def story() -> None:
        told, standing = Told(), Standing()
        for step in [*BEGUN, *steps]:
            told.tell(step)
        books, ledger = told.books, told.books.engine.ledger
        alive = [e.pod for e in books.cluster_cache.pods.values() if not e.pod.finished]
        for query, wanted in (
            (PodQuery(), alive),
            (PodQuery(state="waiting"), [one for one in alive if one.node is None]),
            (PodQuery(text="B"), [one for one in alive if "b" in one.name.lower()]),
        ):
            found = await pods_document(books, query, standing)
            assert [p["uid"] for p in found["pods"]] == [
                p.uid for p in sorted(wanted, key=lambda p: (p.namespace, p.name, p.uid))
            ]
        nodes = (await nodes_document(books, NodeQuery(), standing))["nodes"]
        assert [n["name"] for n in nodes] == sorted(ledger.index)
        short = (await nodes_document(books, NodeQuery(cards="no"), standing))["nodes"]
        assert [
            one | {"cards": full["cards"]} for one, full in zip(short, nodes, strict=True)
        ] == (nodes)
        used = (await nodes_document(books, NodeQuery(cards="used"), standing))["nodes"]
        assert used == [
            full
            | {"cards": [c for c in full["cards"] if c["tenants"] or c["foreign"] or c["closed"]]}
            for full in nodes
        ]
        for told_of in nodes:
            assert told_of["devices"] == Counter(card["type"] for card in told_of["cards"])
            for key in ("core_milli", "memory_bytes", "slots"):
                gpus = [card[key] for card in told_of["cards"] if card["type"] == "gpu"]
                assert told_of[key] == {
                    part: sum(one[part] for one in gpus) for part in ("total", "used")
                }, key
            closed = Counter(card["closed"] for card in told_of["cards"] if card["closed"])
            faults = [f"{count} {code}" for code, count in closed.items()]
            assert told_of["state"].removeprefix("cordoned, ") in (
                ", ".join(faults) or "ok",
                "cordoned",
            )
        for only, true in (
            ("closed", lambda n: n["state"] != "ok"),
            ("used", lambda n: any(c["slots"]["used"] for c in n["cards"])),
        ):
            found = (await nodes_document(books, NodeQuery(only=only), standing))["nodes"]
            assert found == [n for n in nodes if true(n)], only
        seen = await overview_document(books, standing)
        assert seen["nodes"]["cordoned"] == sum("cordoned" in n["state"] for n in nodes)
        shut = [card | {"node": n["name"]} for n in nodes for card in n["cards"] if card["closed"]]
        told = seen["attention"]
        assert told["closed"] == sum(one["cards"] for one in told["closed_by_code"]) == len(shut)
        assert [(one["node"], one["minor"], one["code"]) for one in told["cards"]] == [
            (one["node"], one["minor"], one["closed"]) for one in shut
        ]
        held = [one for name in ledger.index for one in ledger.on_node(name)]
        assert {p["protocol"]: (p["pods"], p["core_milli"]) for p in seen["protocols"]} == {
            protocol: (
                sum(any(g.protocol == protocol for g in one.grants) for one in held),
                sum(g.core_milli for one in held for g in one.grants if g.protocol == protocol),
            )
            for protocol in {g.protocol for one in held for g in one.grants}
        }
        assert sum(one["cards"]["total"] for one in seen["models"]) == seen["cards"]["total"]

    asyncio.run(story())


def test_a_look_takes_turns_with_others() -> None:
    """A look at thousands of pods and hundreds of nodes reads only one piece at a time."""

    async def story() -> None:
        told = Told()
        for number in range(300):
            told.tell(("node", f"n{number}", False))
            told.tell(("cards", f"n{number}", "A100", 1))
        for number in range(1500):
            told.tell(("bound", f"p{number}", f"n{number % 300}", 0, 10))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(others())
        found = await overview_document(told.books, Standing())
        beside.cancel()
        assert found["pods"]["placed"] == 1500
        assert turns > 20

    asyncio.run(story())


def test_a_reader_that_comes_too_late_is_told_so() -> None:
    """The log keeps the latest changes only."""
    log = PodLog(kept=4)
    for number in range(9):
        log.append(f"u{number}")
    assert log.count == 9
    assert log.since(9) == []
    assert log.since(5) == ["u5", "u6", "u7", "u8"]
    assert log.since(3) is None


async def test_a_pod_that_asks_for_no_device_is_not_counted() -> None:
    """`nvidia.com/gpu: 0`, as charts write it; the names do not matter for a pod with a record."""
    books = Books(ClusterCache(), Hooks())
    unreadable = {"uid": "odd", "annotations": {"partage.io/allocation": "{"}}
    for one in (
        pod("none", {"nvidia.com/gpu": "0"}, meta={"uid": "none"}),
        pod("share", half(), meta={"uid": "share"}),
        pod("broken", {"nvidia.com/gpu": "1500m"}, meta={"uid": "broken"}),
        pod("odd", {}, meta=unreadable, nodeName="n1"),
    ):
        books.take([*books.cluster_cache.pod_changed(document(one))], 0.0)
    standing = Standing()

    seen = await overview_document(books, standing)
    assert (seen["pods"]["placed"], seen["pods"]["waiting"]) == (1, 2)
    told = pod("none", {"nvidia.com/gpu": "0"}, meta={"uid": "none", "labels": {"a": "b"}})
    books.take([*books.cluster_cache.pod_changed(document(told))], 0.0)
    assert (await overview_document(books, standing))["pods"] == seen["pods"]


async def test_pods_stand_in_line_by_priority_and_then_by_age() -> None:
    """As in kube-scheduler's queue, for pods that a look has seen before and for later ones."""
    books = Books(ClusterCache(), Hooks())
    kept, seen = Standing(), []
    for name, hour, priority in (("b", 2, 0), ("z", 1, 0), ("a", 3, 0), ("urgent", 4, 5)):
        meta = {"uid": name, "creationTimestamp": f"2026-01-01T0{hour}:00:00Z"}
        one = pod(name, half(), meta=meta, priority=priority)
        books.take([*books.cluster_cache.pod_changed(document(one))], 0.0)
        seen = (await overview_document(books, kept))["waiting"]

    anew = (await overview_document(books))["waiting"]
    assert [one["name"] for one in seen] == ["urgent", "z", "b", "a"]
    assert anew == seen


async def test_objects_that_cannot_be_read_are_named_to_their_readers_alone() -> None:
    """The list of very many is cut: authors of pods or settings may make them unreadable."""
    books = Books(ClusterCache(), Hooks())
    for number in range(500):
        books.cluster_cache.problems[f"ConfigMap team/c{number:03}"] = "no number"
    books.cluster_cache.problems["Node n"] = "no list"

    shown = (await overview_document(books))["problems"]
    hidden = (await overview_document(books, names=False))["problems"]

    assert len(shown) == 100
    assert list(shown)[:2] == ["Node n", "ConfigMap team/c000"]
    assert hidden == {"Node n": "no list"}


async def test_a_fault_of_a_whole_fleet_makes_no_overview_dearer() -> None:
    """The closed cards are counted in columns, and only the shown ones are looked at."""

    async def calls(nodes: int) -> int:
        books, standing, count = Books(ClusterCache(), Hooks()), Standing(), 0
        for number in range(nodes):
            name = f"n{number}"
            books.take([*books.cluster_cache.changed(document(node(name)))], 0.0)
            cards = [card(minor, health=False, id=f"{name}/{minor}") for minor in range(8)]
            books.take([*books.cluster_cache.changed(document(device(name, *cards)))], 0.0)
        await overview_document(books, standing)

        def counted(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counted)
        try:
            seen = await overview_document(books, standing)
        finally:
            sys.setprofile(None)
        assert seen["attention"]["closed"] == 8 * nodes
        assert len(seen["attention"]["cards"]) == 20
        return count

    assert await calls(200) < 1.2 * await calls(50)

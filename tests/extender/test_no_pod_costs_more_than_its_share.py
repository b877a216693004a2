"""Deliberately hard pods cost a bounded amount of work, and others are served meanwhile.

The tests count calls of functions while the service answers a verb, so a busy machine changes nothing.
They stop a verb that takes more than is allowed, so that a fault does not take minutes.
"""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, target
from hypothesis import strategies as st
from plugin_world import Plugged
from world import Manifest, World, card, device, document, node

from fakes.builders import make_node
from partage.extender.cycle import AllowanceSettings
from partage.extender.explain import explain
from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType
from partage.model.node import Verdict
from partage.model.pod import Pod
from partage.model.reason import ReasonCode
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Selector,
    Taint,
    Toleration,
)
from partage.placement import kernel
from partage.placement.card import MOST, MOST_A_NODE, Work
from partage.placement.node import Eligibility, NodeColumns
from partage.placement.tables import UNITS, Prices, Tables
from partage.scheduler.events import TablesChanged
from partage.wire import plugin as wire
from partage.wire.limits import LIMITS

NODES = 120
NUMBERS = itertools.count()
CALLS = 300_000
"""Calls that one verb may take: 40 ms, where one takes an eighth of a microsecond."""

HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
KOORD = {"koordinator.sh/gpu": "100"}


class TooMuchWork(BaseException):
    """A verb has taken more than it may; no handler of the service catches it."""


@contextmanager
def bounded(calls: int = CALLS) -> Iterator[list[int]]:
    """Stops what takes more calls than it may."""
    done = [0]

    def count(_frame: object, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            done[0] += 1
            if done[0] > calls:
                raise TooMuchWork(f"more than {calls} calls")

    sys.setprofile(count)
    try:
        yield done
    finally:
        sys.setprofile(None)


def network(number: int) -> Manifest:
    """A network card with four functions."""
    address = f"0000:{0x40 + number:02x}:00"
    functions = [{"busID": f"{address}.{i}", "minor": i} for i in range(2, 6)]
    return {
        "type": "rdma",
        "id": f"{address}.0",
        "minor": number + 1,
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
        "topology": {
            "socketID": -1,
            "nodeID": number // 2,
            "pcieID": f"pci0000:{number:02x}",
            "busID": f"{address}.0",
        },
        "vfGroups": [{"vfs": functions, "labels": {"type": "general"}}],
    }


def machine(number: int) -> list[Manifest]:
    """A node of eight cards; every second one has a topology and network cards."""
    name = f"n{number}"
    # No two nodes are equal: each is searched by itself.
    cards = [card(minor, f"{81_920 + number}Mi") for minor in range(8)]
    if number % 2 == 0:
        for minor, one in enumerate(cards):
            one["topology"] = {
                "socketID": -1,
                "nodeID": minor // 4,
                "pcieID": f"pci0000:{minor // 2:02x}",
                "busID": f"0000:{minor:02x}:00.0",
            }
        cards += [network(number) for number in range(4)]
    return [node(name), device(name, *cards)]


@pytest.fixture(scope="module")
def world() -> Plugged:
    """Nodes of eight cards; every third has no room for another pod."""

    async def made() -> Plugged:
        # What each pod costs is judged here, however many of its namespace came before.
        plenty = AllowanceSettings(10**9, 60_000, 2 * 10**9)
        found = Plugged(allowance=plenty, preempts=False)
        await found.start(*[one for i in range(NODES) for one in machine(i)])
        found.propose(
            "nobody", taken=[wire.Taken(f"n{i}", pods=110 * (i % 3 == 0)) for i in range(NODES)]
        )
        return found

    return asyncio.run(made())


def container(name: str, limits: Mapping[str, str], **more: Any) -> Manifest:
    """A container that asks for devices."""
    return {
        "name": name,
        "image": "x",
        "resources": {"limits": {**limits}, "requests": {**limits}},
        **more,
    }


def pod(
    containers: list[Manifest], notes: Mapping[str, str] | None = None, **spec: Any
) -> Manifest:
    """A pod of a scheduler that asks us."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "", "namespace": "team", "uid": "", "annotations": {**(notes or {})}},
        "spec": {"schedulerName": "ours", "containers": containers, **spec},
        "status": {"phase": "Pending"},
    }


def share(cards: int = 1, memory: int = 100, cores: int = 1) -> dict[str, str]:
    """A share of cards, in names of HAMi."""
    return {
        "nvidia.com/gpu": str(cards),
        "nvidia.com/gpumem": str(memory),
        "nvidia.com/gpucores": str(cores),
    }


def affinity(terms: list[Manifest]) -> Manifest:
    """Required node affinity."""
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def preferring(terms: list[Manifest]) -> Manifest:
    """Preferred node affinity."""
    listed = [{"weight": 1, "preference": term} for term in terms]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": listed}}


def term(key: str, operator: str, *values: str) -> Manifest:
    """A term with one expression."""
    return {
        "matchExpressions": [
            {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
        ]
    }


def many(count: int, *asks: Mapping[str, str]) -> list[Manifest]:
    """Containers that ask these things in turn."""
    return [container(f"c{i}", asks[i % len(asks)]) for i in range(count)]


LAST = container("last", share(8, 100, 95))
SIDECARS = [container(f"s{i}", share(1, 100 + i, 12), restartPolicy="Always") for i in range(60)]
SAME = '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'
NOBODY = '{"rdma":{"allocateStrategy":"ApplyForAll","vfSelector":{"matchLabels":{"type":"none"}}}}'
ODD = json.dumps(
    {
        "gpu": {
            "selector": {
                "matchExpressions": [
                    {"key": f"k{i}", "operator": "NotIn", "values": ["x"]} for i in range(200)
                ]
            }
        }
    }
)

SHAPES: dict[str, Manifest] = {
    "one more share than slots": pod(many(64, share(2))),
    "more containers than are read": pod(many(81, share())),
    "a thousand containers": pod(many(1000, share())),
    "eleven times all cards": pod(many(11, share(8))),
    "shares of more than half": pod(many(17, share(1, 100, 51))),
    "shares of memory of more than half": pod(many(17, share(1, 50_000, 1))),
    "a whole card too many": pod(many(9, share(1, 100, 100))),
    "whole cards beside shares": pod(
        many(34, *[share(1, 100, 100)] * 4, *[share(1, 100, 51)] * 30)
    ),
    "three sizes that add up": pod(
        many(24, *(share(1, 100 + i, 26 + 7 * (i % 3)) for i in range(24)))
    ),
    "as many sizes as containers": pod(
        many(64, *(share(1, 100 + 7 * i, 13 + i % 5) for i in range(64)))
    ),
    "sets of two to seven": pod(many(12, *(share(2 + i % 6, 100 + i, 30) for i in range(12)))),
    "sets of three": pod(many(20, *(share(3, 100 + i, 9 + i) for i in range(20)))),
    "sets of four of eight": pod(many(9, *(share(4, 100 + i, 24 + i) for i in range(9)))),
    "steps of five percent": pod(
        many(
            60,
            *(
                {
                    "tke.cloud.tencent.com/qgpu-core": str(5 + 5 * i),
                    "tke.cloud.tencent.com/qgpu-memory": "1",
                }
                for i in range(5)
            ),
        )
    ),
    "percent of memory": pod(
        many(
            30,
            *(
                {
                    "nvidia.com/gpu": "2",
                    "nvidia.com/gpumem-percentage": str(20 + i),
                    "nvidia.com/gpucores": str(10 + i % 4),
                }
                for i in range(30)
            ),
        )
    ),
    "init containers": pod(
        many(1, share()),
        initContainers=[
            *(container(f"i{i}", share(1 + i % 8, 100 + i, 9)) for i in range(62)),
            LAST,
        ],
    ),
    "sidecars before an init container": pod(many(1, share()), initContainers=[*SIDECARS, LAST]),
    "a function that no card has": pod(
        [container("a", {"koordinator.sh/gpu": "500", "koordinator.sh/rdma": "100"})],
        {JOINT: SAME, HINT: NOBODY},
    ),
    "cards and network cards of one switch": pod(
        [container("a", {"koordinator.sh/gpu": "300", "koordinator.sh/rdma": "400"})],
        {JOINT: SAME},
    ),
    "a selector of devices' labels": pod([container("a", KOORD)], {HINT: ODD}),
    "a hint beyond all measure": pod(
        [container("a", KOORD)],
        {
            HINT: json.dumps(
                {"gpu": {"selector": {"matchLabels": {f"k{i}": "v" for i in range(9000)}}}}
            )
        },
    ),
    "terms of names": pod(
        [container("a", KOORD)],
        affinity=affinity(
            [
                term("kubernetes.io/hostname", "In", *(f"x{i}-{j}" for j in range(20)))
                for i in range(120)
            ]
        ),
    ),
    "a thousand terms": pod(
        [container("a", KOORD)],
        affinity=affinity([term("kubernetes.io/hostname", "In", f"x{i}") for i in range(1000)]),
    ),
    "terms that compare numbers": pod(
        [container("a", KOORD)],
        affinity=affinity([term("kubernetes.io/hostname", "Gt", str(i)) for i in range(120)]),
    ),
    "preferred terms": pod(
        [container("a", KOORD)],
        affinity=preferring(
            [term("kubernetes.io/hostname", "NotIn", f"x{i}") for i in range(120)]
        ),
    ),
    "one term of many names": pod(
        [container("a", KOORD)],
        affinity=affinity(
            [term("kubernetes.io/hostname", "NotIn", *(f"x{i}" for i in range(4000)))]
        ),
    ),
    "a selector of many labels": pod(
        [container("a", KOORD)],
        nodeSelector={f"k{i}": "v" for i in range(LIMITS["node selector labels"])},
    ),
    "tolerations": pod(
        [container("a", KOORD)],
        tolerations=[{"key": f"k{i}", "operator": "Exists"} for i in range(250)],
    ),
    "uuids": pod(
        many(20, share()),
        {"nvidia.com/nouse-gpuuuid": ",".join(f"GPU-{i:08x}" for i in range(250))},
    ),
    "uuids beyond all measure": pod(
        many(1, share()), {"nvidia.com/use-gpuuuid": ",".join(f"GPU-{i:08x}" for i in range(6000))}
    ),
    "models": pod(
        many(64, *(share(1, 100 + i, 13) for i in range(64))),
        {"nvidia.com/nouse-gputype": ",".join(f"X{i}" for i in range(250))},
    ),
    "resource names": pod(
        [container("a", {**KOORD, **{f"x.example/r{i}": "1" for i in range(8000)}})]
    ),
    "amounts in every container": pod(
        [
            container("a", KOORD),
            *(container(f"c{i}", {f"a/{j:x}": "0" for j in range(125)}) for i in range(500)),
        ]
    ),
    "amounts beside init containers": pod(
        [container("a", KOORD)],
        initContainers=[
            container(f"c{i}", {f"a/{j:x}": str(i) for j in range(125)}) for i in range(500)
        ],
    ),
    "some resource names": pod(
        [container("a", {**KOORD, **{f"x.example/r{i}": "1" for i in range(100)}})]
    ),
}


def ask(world: Plugged, manifest: Manifest, *, searching: bool = False) -> Manifest:
    """All that is asked about a pod until it waits or has its node; each in its bound."""
    uid = f"hard-{next(NUMBERS)}"
    manifest = {**manifest, "metadata": {**manifest["metadata"], "name": uid, "uid": uid}}
    names = [f"n{i}" for i in range(NODES)]
    body = json.dumps({"Pod": manifest, "NodeNames": names}).encode()
    victims = {"Pod": manifest, "NodeNameToMetaVictims": {name: {"Pods": []} for name in names}}
    try:
        with bounded() as created:
            world.create(manifest)
        with bounded() as first:
            answer: Manifest = json.loads(world.service.filter(body))
        with bounded() as again:
            world.service.filter(body)
        with bounded() as scored:
            world.service.prioritize(body)
        with bounded() as preempted:
            world.service.preempt(json.dumps(victims).encode())
        with bounded() as looked:
            world.service.books.tick(world.clock.monotonic())
        proposed = propose(world, uid)
        assert not answer["Error"]
        if searching:
            # The search goes on from the pods that took most.
            target(float(max(first + again)), label="calls of a filter")
            target(
                float(max(created + scored + preempted + looked)), label="calls of another verb"
            )
            target(float(proposed), label="calls of the plugin's question")
        return answer
    finally:
        world.service.pod_gone(uid)


def propose(world: Plugged, uid: str) -> int:
    """The calls of a question of the plugin, which wants every node that fits, and of one after a rejection."""
    calls = []
    for rejected in ([], [f"n{i}" for i in range(NODES // 2)]):
        if rejected:
            world.attempts._retries.rejected.add(uid, rejected, world.clock.monotonic())
        world.number += 1
        with bounded() as done:
            world.attempts.propose(wire.Propose(1, uid, world.number, wide=True))
        calls += done
    return max(calls)


@pytest.mark.parametrize("operator", list(Operator))
def test_conditions_on_labels_are_asked_of_all_nodes_at_once(operator: Operator) -> None:
    """Two hundred conditions on a label that has another value, a number, on each of 2,000 nodes."""
    ledger = Ledger()
    for number in range(2_000):
        ledger.upsert_node(make_node(f"n{number}", labels={"kubernetes.io/hostname": str(number)}))
    columns = NodeColumns(ledger)
    columns.refresh()
    values = () if operator.name.startswith(("EXISTS", "DOES")) else ("1000",)
    terms = tuple(
        NodeTerm((Requirement("kubernetes.io/hostname", operator, values),)) for _ in range(200)
    )
    plain = [terms[0].matches(f"n{i}", {"kubernetes.io/hostname": str(i)}) for i in range(2_000)]
    with bounded(20_000):
        found = columns.constrained(NodeConstraint(terms=terms))
    assert found[:2_000].tolist() == plain


def test_conditions_on_nodes_count_as_work_until_they_are_judged() -> None:
    """A hundred terms at 2,000 nodes, or two hundred tolerations where forty nodes have taints of their own."""
    ledger = Ledger()
    for number in range(2_000):
        taints = (Taint("team", str(number), "NoSchedule"),) if number < 40 else ()
        ledger.upsert_node(make_node(f"n{number}", taints=taints))
    columns = NodeColumns(ledger)
    columns.refresh()
    terms = tuple(NodeTerm((Requirement("at", Operator.GT, (str(n),)),)) for n in range(100))
    plain = Eligibility(Pod("u", "team", "p"), columns)
    choosy = Eligibility(Pod("u", "team", "p", constraint=NodeConstraint(terms=terms)), columns)
    tolerations = tuple(Toleration(f"k{n}", "Exists") for n in range(200))
    tolerant = Eligibility(Pod("u", "team", "p", tolerations=tolerations), columns)

    assert plain.arrears(ledger) == 2
    assert choosy.arrears(ledger) == 2 + 2 * 200
    assert tolerant.arrears(ledger) == 2 + 41 * 200 // 8
    for one in (plain, choosy, tolerant):
        one.refresh(ledger)
        assert one.arrears(ledger) == 0


def test_what_a_node_names_anew_all_the_time_is_not_kept() -> None:
    """Each change of one node's document has other labels and taints; its kubelet may write any label."""
    ledger = Ledger()
    columns = NodeColumns(ledger)
    asked = NodeConstraint(Selector((Requirement("zone", Operator.IN, ("a",)),)))
    ledger.upsert_node(make_node("n0", labels={"zone": "a"}))
    for step in range(200):
        labels = {f"{step}-{number}": "x" for number in range(10)}
        taints = (Taint("upgraded", str(step), "NoSchedule"),)
        ledger.upsert_node(make_node("n1", labels={"zone": "b", **labels}, taints=taints))
        columns.refresh()
        assert columns.constrained(asked)[:2].tolist() == [True, False]
    assert set(columns._labels) == {"zone"}
    assert len(columns._nodes_with) == 11
    assert len(columns.taints.values) < 100


def test_nodes_that_object_in_words_of_their_own_are_judged_together() -> None:
    """The agents of all nodes are silent, each since another moment."""
    ledger = Ledger()
    for number in range(2_000):
        silent = Verdict("", ReasonCode.AGENT_SILENT, f"no word since {number}", cards_only=True)
        ledger.upsert_node(make_node(f"n{number}", verdicts=(silent,)))
    columns = NodeColumns(ledger)
    columns.refresh()
    group = RequestGroup("hami", DeviceRequest(DeviceType.GPU), (ContainerAsk("main"),))
    judged = Eligibility(Pod("u", "team", "p", request=PodRequest((group,))), columns)
    with bounded(20_000):
        judged.refresh(ledger)
    assert not judged.allowed.any()
    assert list(judged.codes) == [ReasonCode.AGENT_SILENT]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_hard_pod_is_answered_within_its_bound(world: Plugged, shape: str) -> None:
    """Filter, a repeated filter, prioritize, preempt and wake-ups, each by itself."""
    ask(world, SHAPES[shape])


def test_a_node_is_looked_at_for_the_request_alone_that_rules_it_out(
    world: Plugged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of forty requests rules out three more nodes; a refusal does not read all nodes for each request."""
    plain, looked = kernel.classify, list[int]()

    def counted(*given_: Any) -> kernel.Codes:
        ranks = plain(*given_)
        looked.append(ranks.shape[1])
        return ranks

    monkeypatch.setattr(kernel, "classify", counted)
    asks = [share(1, 81_920 + 3 * number) for number in range(1, 41)]
    assert not ask(world, pod(many(40, *asks)))["NodeNames"]
    assert len(looked) > 20
    assert sum(looked) <= 2 * NODES


def rare(number: int) -> list[Manifest]:
    """A node whose cards are of a model of their own, but for one that gives hardware instances."""
    name, model = f"n{number}", "NVIDIA A100-SXM4-80GB"
    cards = [card(minor, "80Gi") for minor in range(8)]
    told = [
        {
            "id": one["id"],
            "count": 10,
            "devmem": 81920,
            "devcore": 100,
            "type": f"X{number}" if minor < 7 else model,
            "numa": 0,
            "health": True,
            "mode": "hami-core" if minor < 7 else "mig",
        }
        for minor, one in enumerate(cards)
    ]
    return [
        node(name, annotations={"hami.io/node-nvidia-register": json.dumps(told)}),
        device(name, *cards),
    ]


async def test_words_and_cards_that_a_pod_names_are_compared_once_for_all_its_containers() -> None:
    """Ten requests name the same; each model is compared once for shares and once for instances."""
    world = await Plugged().start(*[one for i in range(NODES) for one in rare(i)])
    notes = {
        "nvidia.com/use-gpuuuid": ",".join(f"GPU-{i % 3}" for i in range(250)),
        "nvidia.com/nouse-gputype": ",".join(f"Y{i}" for i in range(100)),
        "nvidia.com/vgpu-mode": "either",
    }
    listed = many(
        10,
        *(
            {"nvidia.com/gpu": str(1 + i % 3), "nvidia.com/gpumem": str(100 + i)}
            for i in range(10)
        ),
    )
    ask(world, pod(listed, notes))


PARTS = [21, 22, 23, 24, 26, 27, 28, 29, 31, 33, 34, 36, 37, 38, 39, 41, 43, 44, 46]


def cut(number: int) -> Manifest:
    """A node of eight cards that are cut into instances; other cards of each are ill."""
    cards = [
        {
            "id": f"GPU-{number}-{minor}",
            "index": minor,
            "count": 7,
            "devmem": 81_920,
            "devcore": 100,
            "type": "NVIDIA A100-SXM4-80GB",
            "mode": "mig",
            "health": not number >> minor & 1,
        }
        for minor in range(8)
    ]
    return node(f"n{number}", annotations={"hami.io/node-nvidia-register": json.dumps(cards)})


@pytest.fixture(scope="module")
def instances() -> Plugged:
    """As many nodes, in mode `mig`."""

    async def made() -> Plugged:
        plenty = AllowanceSettings(10**9, 60_000, 2 * 10**9)
        found = Plugged(allowance=plenty, preempts=False)
        await found.start(*map(cut, range(NODES)))
        return found

    return asyncio.run(made())


@pytest.mark.parametrize(
    "asks",
    [
        [share(1, 4000 + i, 1) for i in range(64)],
        [share(7, 4000 + i, (1, 28, 0, 43)[i % 4]) for i in range(64)],
        [
            share((3, 8, 7, 3, 1, 2, 1)[i % 7], 1 + 3 * i, (28, 1, 15, 57)[i % 4])
            for i in range(64)
        ],
        [share(1, (4000, 19_000, 39_000)[i % 3] + i, 1) for i in range(40)],
    ],
    ids=["one more than there is room", "sets of seven", "sets of any size", "three profiles"],
)
@pytest.mark.parametrize("initial", [0, 56], ids=["main", "init"])
def test_a_pod_that_is_hard_to_place_on_instances_is_answered_within_its_bound(
    instances: Plugged, asks: list[dict[str, str]], initial: int
) -> None:
    """Of many containers, on nodes of which no two are equal."""
    listed = many(len(asks), *asks)
    for notes in ({}, {"hami.io/gpu-scheduler-policy": "topology-aware"}):
        ask(instances, pod(listed[initial:] or listed, notes, initContainers=listed[:initial]))


def test_a_search_that_is_given_up_says_so(world: Plugged) -> None:
    """Eight cards, and 24 shares of different sizes that are 800 percent together."""
    asks = [share(1, 100 + i, PARTS[i % 19] + (3 if i < 14 else 2)) for i in range(24)]
    assert sum(int(one["nvidia.com/gpucores"]) for one in asks) == 800
    answer = ask(world, pod(many(24, *asks)))
    assert not answer["NodeNames"]
    told = set(answer["FailedNodes"].values())
    assert all(one.startswith("SearchLimit") for one in told)
    assert any("ask for devices in fewer containers" in one for one in told)


def test_a_pod_that_the_search_takes_too_long_for_is_placed_at_the_first_try(
    world: Plugged,
) -> None:
    """The same with six percent to spare: in the pod's own order a search takes too long."""
    asks = [share(1, 100 + i, PARTS[i % 19]) for i in range(24)]
    assert ask(world, pod(many(24, *asks)))["NodeNames"]


@st.composite
def pods(draw: st.DrawFn) -> Manifest:
    """Pods of many containers, of few or many sizes, main and init, alone or in sets."""
    sizes = draw(
        st.lists(
            st.tuples(st.integers(1, 8), st.integers(1, 80_000), st.integers(0, 100)),
            min_size=1,
            max_size=12,
        )
    )
    count = draw(st.integers(1, 64))
    initial = draw(st.integers(0, count - 1))
    asks = [share(*size) for size in sizes]
    if draw(st.booleans()):
        # Other protocols in containers of their own.
        asks.append(
            {
                "koordinator.sh/gpu-core": str(sizes[0][2] or 1),
                "koordinator.sh/gpu-memory-ratio": str(sizes[0][2] or 1),
            }
        )
        asks.append(
            {
                "tke.cloud.tencent.com/qgpu-core": str(5 * (1 + sizes[-1][2] % 19)),
                "tke.cloud.tencent.com/qgpu-memory": "1",
            }
        )
    # Each container a little larger than the one before: none is another's equal.
    step = draw(st.integers(0, 40))
    listed = many(count, *asks)
    for number, one in enumerate(listed):
        for kind in ("limits", "requests"):
            held = one["resources"][kind]
            if step and "nvidia.com/gpumem" in held:
                held["nvidia.com/gpumem"] = str(int(held["nvidia.com/gpumem"]) + step * number)
    for one in listed[:initial]:
        if draw(st.booleans()):
            one["restartPolicy"] = "Always"
    notes = {}
    if draw(st.booleans()):
        notes["hami.io/gpu-scheduler-policy"] = draw(
            st.sampled_from(["binpack", "spread", "topology-aware"])
        )
    if draw(st.booleans()):
        notes["nvidia.com/numa-bind"] = "true"
    if draw(st.booleans()):
        notes[draw(st.sampled_from(["nvidia.com/nouse-gpuuuid", "nvidia.com/use-gputype"]))] = (
            ",".join(f"GPU-{i}" for i in range(draw(st.integers(1, 250))))
        )
    if draw(st.booleans()):
        notes[JOINT] = SAME
    spec: Manifest = {}
    if terms := draw(st.integers(0, 120)):
        operator = draw(st.sampled_from(["In", "NotIn", "Gt"]))
        spec["affinity"] = (affinity if draw(st.booleans()) else preferring)(
            [term("kubernetes.io/hostname", operator, str(i)) for i in range(terms)]
        )
    return pod(listed[initial:], notes, initContainers=listed[:initial], **spec)


CASES = int(os.environ.get("PARTAGE_CASES", "60"))
"""Pods that the search tries: as a part of the suite few and always the same, by `make soak-laws` many and others each time."""


@settings(max_examples=CASES, deadline=None, derandomize="PARTAGE_CASES" not in os.environ)
@given(manifest=pods())
def test_no_pod_that_is_searched_for_is_harder(world: Plugged, manifest: Manifest) -> None:
    """A search for slow pods finds none, for any sizes and mixes, with hints and affinity."""
    ask(world, manifest, searching=True)


def test_others_are_served_after_a_row_of_hard_pods(world: Plugged) -> None:
    """Each hard pod is a separate request; an ordinary pod right after them gets its node."""
    for number in range(5):
        ask(
            world, pod(many(60, *(share(1, 100 + number * 64 + i, 13 + i % 7) for i in range(60))))
        )
    answer = ask(world, pod(many(1, share())))
    assert answer["NodeNames"]


def test_cards_are_scored_for_the_first_group_alone(world: Plugged) -> None:
    """Nodes that pass by their columns and fail card by card score their cards before that."""
    pairs, steps = np.array([(0.0, 0.0), (5.0, 1.0)]), np.linspace(0, 1000, UNITS + 1)
    worth = steps[None, :, None] * np.ones((1, 1, 2))
    prices = Prices(("A100",), pairs, worth, np.array([0.5]))
    engine = world.service.books.engine
    engine.handle(TablesChanged(Tables(prices=prices)))
    sidecar = container("side", share(1, 100, 12), restartPolicy="Always")
    crowd = [container(f"i{i}", share(8, 100 + i, 89 - i)) for i in range(62)]
    try:
        ask(world, pod(many(1, share(1, 100, 95)), initContainers=[sidecar, *crowd]))
    finally:
        engine.handle(TablesChanged(Tables()))


def test_waiting_pods_cost_a_bounded_look(world: Plugged) -> None:
    """Their scores were forgotten, and an ordinary pod behind them is woken at once."""
    uids = []
    for number in range(40):
        listed = many(64, *(share(1, 100 + 64 * number + i, 26 + i % 5) for i in range(64)))
        uids.append(_wait(world, pod(listed)))
    uids.append(_wait(world, pod(many(1, {"koordinator.sh/gpu": "900"}))))
    last = _wait(world, pod(many(1, share()), nodeSelector={"kubernetes.io/hostname": "late"}))
    world.service.books.engine._classes.clear()
    world.woken.clear()
    try:
        labels = {"kubernetes.io/hostname": "late"}
        with bounded():
            world.service.changed(document(node("n0", 2, labels=labels)))
            world.service.books.tick(world.clock.monotonic())
        assert last in world.woken
        for _ in range(200):
            world.clock.pass_time(1.0)
            with bounded():
                world.service.books.tick(world.clock.monotonic())
        assert world.woken.count(last) > 0
        assert not set(uids) & set(world.woken)
        assert all(
            world.service.books.waiting.get(uid).told == world.service.books.waiting.newest
            for uid in uids
        )  # type: ignore[union-attr] # they wait
    finally:
        for uid in [*uids, last]:
            world.service.pod_gone(uid)


def _wait(world: Plugged, manifest: Manifest) -> str:
    """A pod that is refused; its uid."""
    uid = f"hard-{next(NUMBERS)}"
    manifest = {**manifest, "metadata": {**manifest["metadata"], "name": uid, "uid": uid}}
    answer = world.filter(world.create(manifest), *(f"n{i}" for i in range(NODES)))
    assert not answer["NodeNames"]
    return uid


def test_work_is_counted_and_ends() -> None:
    """One decision may take more than one node."""
    work, seen = Work(limit=3), []
    for _ in range(3):
        seen.append(work.spent)
        work.done += 1
    assert (seen, work.spent) == ([False] * 3, True)
    assert MOST > MOST_A_NODE


def thick(number: int) -> list[Manifest]:
    """A node with as many functions as it may report, no two groups of which are alike."""
    listed = []
    for place in range(16):
        one = network(place)
        address = f"0000:{0x40 + place:02x}"
        one["vfGroups"] = [
            {
                "vfs": [{"busID": f"{address}:{group:02x}.{i}"} for i in range(64)],
                "labels": {"type": "general", "group": f"{number}-{place}-{group}"},
            }
            for group in range(4)
        ]
        listed.append(one)
    cards = [card(minor, f"{81_920 + number}Mi") for minor in range(8)]
    return [node(f"n{number}"), device(f"n{number}", *cards, *listed)]


@pytest.mark.parametrize("fits", [True, False])
async def test_functions_of_stolen_nodes_are_judged_by_group(fits: bool) -> None:  # noqa: FBT001
    """Forty nodes report 4,096 functions each: a pod with the most conditions is placed and explained."""
    world = await World().start(*[one for number in range(40) for one in thick(number)])
    conditions = [
        {"key": f"k{i}", "operator": "NotIn" if fits or i < 7 else "In", "values": ["x"]}
        for i in range(8)
    ]
    hint = {"rdma": {"vfSelector": {"matchExpressions": conditions}}}
    hard = pod([container("a", {"koordinator.sh/rdma": "1600"})], {HINT: json.dumps(hint)})
    hard["metadata"] |= {"name": "hard", "uid": "hard"}
    world.create(hard)
    body = json.dumps({"Pod": hard, "NodeNames": [f"n{i}" for i in range(40)]}).encode()
    with bounded():
        answer = json.loads(world.service.filter(body))
    with bounded():
        explain(world.service.books, "team", "hard")
    assert bool(answer["NodeNames"]) is fits

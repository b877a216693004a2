"""The checker of the invariants is itself checked: each kind of wrong is seen, and nothing else."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from bed import HALF, WHOLE, bed, node, until
from invariants import Findings, capacities, findings, misplaced, over_capacity, unlike

from partage.vendors import names

CARD = "GPU-0"
DEVICE = {
    "metadata": {"name": "n0"},
    "spec": {
        "devices": [
            {
                "id": CARD,
                "minor": 0,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": "80Gi",
                },
            }
        ]
    },
}
CARDS = capacities([DEVICE])


def bound(*containers: tuple[str, str, int], name: str = "a", **record: Any) -> dict[str, Any]:
    """A pod with a record: of each container its phase, its name and what it takes of the card."""
    given = [
        {
            "name": one,
            "phase": phase,
            "devices": [{"type": "gpu", "uuid": CARD, "milli": milli, "bytes": milli}],
        }
        for phase, one, milli in containers
    ]
    said = {"uid": name, "node": "n0", "containers": given} | record
    init = [
        {"name": one} | ({"restartPolicy": "Always"} if phase == "sidecar" else {})
        for phase, one, _ in containers
        if phase != "main"
    ]
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "annotations": {names.ALLOCATION: json.dumps(said)},
        },
        "spec": {"nodeName": "n0", "initContainers": init},
    }


SIDECAR, FIRST, MAIN = ("sidecar", "s", 300), ("init", "f", 600), ("main", "m", 500)


@pytest.mark.parametrize(
    ("pods", "wrong"),
    [
        pytest.param([bound(("main", "m", 1000))], 0, id="full"),
        pytest.param([bound(("main", "m", 600)), bound(MAIN, name="b")], 1, id="two over it"),
        pytest.param([bound(FIRST, MAIN)], 0, id="an init container ends first"),
        pytest.param([bound(SIDECAR, ("init", "f", 800))], 1, id="beside an earlier sidecar"),
        pytest.param([bound(("init", "f", 800), SIDECAR)], 0, id="before a later sidecar"),
        pytest.param([bound(SIDECAR, ("main", "m", 800))], 1, id="a sidecar stays"),
    ],
)
def test_cards_over_their_capacity_are_seen(pods: list[dict[str, Any]], wrong: int) -> None:
    """The sum is Kubernetes' own over containers."""
    assert len([one for one in over_capacity(pods, CARDS) if "milli" in one]) == wrong


@pytest.mark.parametrize("record", [{"uid": "other"}, {"node": "n9"}])
def test_records_of_others_are_seen(record: dict[str, str]) -> None:
    """Records of another pod, and of another node."""
    assert misplaced([bound(MAIN)], CARDS) == []
    assert len(misplaced([bound(MAIN, **record)], CARDS)) == 1


@pytest.mark.parametrize(
    ("handed", "wrong"),
    [
        pytest.param({"a": {"m": frozenset({CARD})}}, 0, id="what its record names"),
        pytest.param({}, 0, id="not started"),
        pytest.param({"a": {}}, 1, id="nothing"),
        pytest.param({"a": {"m": frozenset({"GPU-1"})}}, 1, id="another card"),
        pytest.param({"a": {"m": frozenset({CARD, "GPU-1"})}}, 1, id="one more"),
        pytest.param({"a": {"m": frozenset({CARD}), "x": frozenset({CARD})}}, 1, id="another one"),
    ],
)
def test_what_containers_were_handed_is_compared(handed: Any, wrong: int) -> None:
    """Each container's cards are compared with those of the record."""
    assert len(unlike([bound(MAIN)], handed)) == wrong


def waiting(limits: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod that waits, and says so."""
    told = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/1 nodes: 1 insufficient gpu-core",
    }
    return {
        "metadata": {"name": "w", "namespace": "default", "uid": "w"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits or WHOLE}}]},
        "status": {"conditions": [told]},
    }


def reason(
    code: str = "CardNotIdle", line: str = "", name: str = "n0", **card: Any
) -> dict[str, Any]:
    """The reason of the pod that waits: of one node, by its only card."""
    cards = [{"minor": 0, "code": code} | card]
    return {
        "reason": {"code": code, "message": line, "nodes": {name: {"code": code, "cards": cards}}}
    }


def moment() -> Findings:
    """A node whose only card one pod has half of, and another pod that waits for all of it."""
    half = bound(("main", "m", 500))
    half["metadata"]["namespace"] = "default"
    half["spec"]["containers"] = [{"name": "m", "resources": {"limits": HALF}}]
    (row,) = json.loads(half["metadata"]["annotations"][names.ALLOCATION])["containers"]
    row["devices"][0]["bytes"] = 40 * 2**30
    said = {"uid": "a", "node": "n0", "containers": [row]}
    half["metadata"]["annotations"][names.ALLOCATION] = json.dumps(said)
    device: dict[str, Any] = copy.deepcopy(DEVICE)
    for one in device["spec"]["devices"]:
        one |= {"type": "gpu", "health": True}
    held = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "40Gi"}
    line = "0/1 nodes: 1 no idle card (asked 100, most free 50 on n0 card 0)"
    return Findings(
        pods=[half, waiting()],
        devices=[device],
        nodes=["n0"],
        metrics={"partage_audit_clean": 1},
        summaries={"n0": {"allocateSet": {"gpu": {"default/a": {"0": held}}}}},
        explained={"w": reason(line=line)},
        standing={"n0": {"metadata": {"name": "n0"}, "spec": {}, "status": {}}},
        quotas=[],
    )


def metric(name: str, value: float) -> Callable[[Findings], object]:
    """One series says something else."""
    return lambda seen: seen.metrics.update({name: value})


def given(**pods: dict[str, str] | None) -> Callable[[Findings], object]:
    """The books of the node say something else of these pods."""

    def change(seen: Findings) -> None:
        rows = seen.summaries["n0"]["allocateSet"]["gpu"]
        for name, amounts in pods.items():
            rows.pop(f"default/{name}", None)
            if amounts is not None:
                rows[f"default/{name}"] = {"0": amounts}

    return change


def told(**change: Any) -> Callable[[Findings], object]:
    """The pod that waits has another reason."""
    return lambda seen: seen.explained.update(w=reason(**change))


def gone(seen: Findings) -> None:
    """The pod that has the half ends, and the books know: all of the card is free."""
    seen.pods.pop(0)
    given(a=None)(seen)


def free(change: Callable[[Findings], object]) -> Callable[[Findings], object]:
    """No pod has the card, and something else has changed."""

    def both(seen: Findings) -> None:
        gone(seen)
        change(seen)

    return both


def unsaid(seen: Findings) -> None:
    """The condition of the pod that waits says nothing."""
    seen.pods[1]["status"]["conditions"] = []


QUARTER_HELD = {"koordinator.sh/gpu-core": "25", "koordinator.sh/gpu-memory": "40Gi"}
HALF_HELD = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "40Gi"}
WRONG = {
    "I2: the audit found something": (
        metric("partage_audit_clean", 0),
        "I2: the audit is not clean",
    ),
    "I2: no audit": (lambda seen: seen.metrics.clear(), "I2: the audit is not clean"),
    "I2: units leaked": (metric('partage_audit_leaked_units{d="x"}', 5), "I2: the audit finds 5"),
    "I2: units missing": (
        metric('partage_audit_missing_units{d="x"}', 7),
        "I2: the audit finds 7",
    ),
    "I2: less in the books": (given(a=QUARTER_HELD), "I2: the books say"),
    "I2: nothing in the books": (given(a=None), "I2: the books say {}"),
    "I2: more in the books": (given(w=HALF_HELD), "I2: the books say"),
    "I4: a hold": (metric("partage_holds", 1), "I4: partage_holds is 1"),
    "I4: a Binding": (
        metric("partage_bindings_in_flight", 2),
        "I4: partage_bindings_in_flight is 2",
    ),
    "I4: an unknown Binding": (
        metric("partage_bindings_unknown", 1),
        "I4: partage_bindings_unknown",
    ),
    "I4: kept for a waiting pod": (given(w=HALF_HELD), "I4: n0 keeps devices for default/w"),
    "I4: kept without a pod": (given(x=HALF_HELD), "I4: n0 keeps devices for default/x"),
    "I5: nothing said": (lambda seen: seen.explained.clear(), "waits without a reason"),
    "I5: no code": (told(code=""), "waits without a reason"),
    "I5: no condition": (unsaid, "its condition does not say why"),
    "I5: a node that is gone": (told(name="n7"), "it names node n7, which is not there"),
    "I5: a node in the line": (
        told(line="0/1 nodes: 1 x (asked 1, most free 0 on n8 card 0)"),
        "it names node n8",
    ),
    "I5: a card that is gone": (told(minor=5), "cards [5] of n0 are not there"),
    "I5: a card in the line": (
        told(line="0/1 nodes: 1 x (asked 1, at most 0 on n0 card 6)"),
        "cards [6] of n0 are not",
    ),
    "I5: more nodes than there are": (
        told(line="0/2 nodes: 2 x"),
        "it names 2 nodes, there are 1",
    ),
    "I5: no such quota": (told(code="QuotaExceeded"), "it names a quota, and default has none"),
    "I5: want, and the card is free": (
        gone,
        "CardNotIdle is reported of n0, whose cards [0] have room",
    ),
    "I5: want, and half is free": (
        lambda seen: seen.pods.__setitem__(1, waiting(HALF)),
        "whose cards [0] have room",
    ),
    "I5: ill, and all is well": (told(code="Unhealthy"), "reported as ill, and all are well"),
    "I5: closed, and it is open": (told(code="NodeUnschedulable"), "reported as closed"),
    "I5: no such taint": (told(code="Taint"), "reported with a taint, and it has none"),
}
"""Of each invariant but I1 and I3: what is changed in a sound moment, and what must be said of it."""


def test_a_sound_moment_is_sound() -> None:
    """Otherwise the table would prove nothing."""
    assert findings(moment()) == []


@pytest.mark.parametrize("what", WRONG)
def test_each_violation_is_named(what: str) -> None:
    """The finding names its invariant, in words of its own."""
    change, words = WRONG[what]
    seen = moment()

    change(seen)

    assert [one for one in findings(seen) if one.startswith(what[:2]) and words in one]


def device(**fields: Any) -> Callable[[Findings], object]:
    """The card is not what it was."""
    return lambda seen: seen.devices[0]["spec"]["devices"][0].update(fields)


def node_is(**fields: Any) -> Callable[[Findings], object]:
    """The node has something that decides as well."""
    return lambda seen: seen.standing.update(n0={**seen.standing["n0"], **fields})


def other(**fields: Any) -> Callable[[Findings], object]:
    """The pod that waits asks something more."""
    return lambda seen: seen.pods[-1]["spec"].update(fields)


def marked(seen: Findings) -> None:
    """The pod that waits says by an annotation where it wants to go."""
    seen.pods[-1]["metadata"]["annotations"] = {"nvidia.com/use-gputype": "H100"}


def promised(seen: Findings) -> None:
    """The card is kept for a pod for which room was made."""
    pod = waiting()
    pod["metadata"] |= {"uid": "v", "name": "v"}
    pod["status"]["nominatedNodeName"] = "n0"
    seen.pods.append(pod)
    seen.explained["v"] = reason()


def torn(seen: Findings) -> None:
    """A pod of the node has an unreadable record."""
    half = moment().pods[0]
    half["metadata"]["annotations"][names.ALLOCATION] = "{"
    seen.pods.insert(0, half)


UNKNOWN = {
    "an ill card": device(health=False),
    "a card that is closed": told(code="Cordoned"),
    "a tainted node": node_is(spec={"taints": [{"key": "x", "effect": "NoSchedule"}]}),
    "a closed node": node_is(spec={"unschedulable": True}),
    "cards that are registered otherwise too": node_is(
        metadata={"name": "n0", "annotations": {"hami.io/node-nvidia-register": "[]"}}
    ),
    "a node with as many pods as it takes": node_is(status={"allocatable": {"pods": "0"}}),
    "a pod that chooses its nodes": other(nodeSelector={"a": "b"}),
    "a pod of two containers": other(containers=[*waiting()["spec"]["containers"]] * 2),
    "a pod that chooses its cards": marked,
    "a card kept for another": promised,
    "a record that cannot be read": torn,
}
"""Cases in which an outsider cannot know whether the pod may have a free card."""


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_cannot_be_told_is_not_judged(what: str) -> None:
    """A free card is no proof where something else decides."""
    seen = moment()
    free(UNKNOWN[what])(seen)

    assert not [one for one in findings(seen) if "have room" in one]


async def test_a_record_that_is_changed_under_a_running_container_is_seen() -> None:
    """Two pods of one node whose records are exchanged: nothing is over, but I3 is broken."""
    async with bed(node(cards=2)) as cluster:
        await cluster.daemon()
        await cluster.led()
        for name in ("a", "b"):
            await cluster.pod(name, WHOLE if name == "a" else HALF)
        await cluster.bound("a", "b")
        await until(lambda: len(cluster.handed) == 2, "both run")
        assert not cluster.watchman.wrong
        texts = {n: cluster.stored(n)["metadata"]["annotations"][names.ALLOCATION] for n in "ab"}
        (uuid,), (other,) = cluster.cards("a"), cluster.cards("b")

        body = {names.ALLOCATION: texts["a"].replace(uuid, other)}
        await cluster.patch("a", {"metadata": {"annotations": body}})

        await until(lambda: cluster.watchman.wrong, "the watchman sees it")
        found = await cluster.look()
        assert any("was handed" in one for one in findings(found, cluster.handed))

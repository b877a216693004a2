"""The checker of the invariants is itself checked: each kind of wrong is seen, and nothing else."""

import json
from typing import Any

import pytest
from bed import HALF, WHOLE, bed, node, until
from invariants import capacities, findings, misplaced, over_capacity, unlike

from partage.vendors import names

CARD = "GPU-0"
DEVICE = {
    "metadata": {"name": "n0"},
    "spec": {
        "devices": [
            {"id": CARD, "minor": 0, "resources": {"koordinator.sh/gpu-core": "100",
                                                   "koordinator.sh/gpu-memory": "80Gi"}}
        ]
    },
}  # fmt: skip
CARDS = capacities([DEVICE])


def bound(*containers: tuple[str, str, int], name: str = "a", **record: Any) -> dict[str, Any]:
    """A pod with a record: of each container its phase, its name and what it takes of the card."""
    given = [
        {"name": one, "phase": phase, "devices": [
            {"type": "gpu", "uuid": CARD, "milli": milli, "bytes": milli}]}
        for phase, one, milli in containers
    ]  # fmt: skip
    said = {"uid": name, "node": "n0", "containers": given} | record
    init = [
        {"name": one} | ({"restartPolicy": "Always"} if phase == "sidecar" else {})
        for phase, one, _ in containers
        if phase != "main"
    ]
    return {
        "metadata": {"name": name, "uid": name, "annotations": {names.ALLOCATION: json.dumps(said)}},
        "spec": {"nodeName": "n0", "initContainers": init},
    }  # fmt: skip


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
    """By Kubernetes' arithmetic of containers."""
    assert len([one for one in over_capacity(pods, CARDS) if "milli" in one]) == wrong


@pytest.mark.parametrize("record", [{"uid": "other"}, {"node": "n9"}])
def test_records_of_others_are_seen(record: dict[str, str]) -> None:
    """Of another pod, of another node."""
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
    """By container, with what the record names."""
    assert len(unlike([bound(MAIN)], handed)) == wrong


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

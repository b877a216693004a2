"""Scenario 14: a pod that asks two vendors, and what becomes of their locks.

A node has cards of one vendor, so no node can serve such a pod: it waits, with a reason, and takes
no lock that it would have to release. Were there two locks to take, they are one write.
"""

from typing import Any

import pytest
from bed import HALF, Bed, bed, node, until

from partage.daemon.binding import ApiNodeLocks
from partage.extender.ports import Outcome
from partage.vendors import names

METAX = {names.SGPU: "1", **HALF}
CAMBRICON = {names.SMLU_VCORE: "50", names.SMLU_VMEMORY: "8", **HALF}
LOCKS = {names.METAX_LOCK, names.DSMLU_LOCK}


def held(cluster: Bed, name: str) -> dict[str, str]:
    """The locks on a node."""
    notes = cluster.stored(name, "nodes")["metadata"].get("annotations") or {}
    return {key: value for key, value in notes.items() if key in LOCKS}


async def test_a_pod_of_two_vendors_waits_and_holds_nobody_up(seam: str) -> None:
    """Pods of each vendor come and go beside it; no lock is left on any node."""
    nodes = (node("m0", 1, model="C500", mode="sgpu"), node("c0", 1, model="MLU-370"))
    both = [
        {"name": name, "image": "x", "resources": {"limits": limits}}
        for name, limits in (("metax", METAX), ("cambricon", CAMBRICON))
    ]
    async with bed(*nodes, seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.pod("both", containers=both)
        await cluster.told("both")
        await cluster.pod("metax", METAX)
        await cluster.pod("cambricon", CAMBRICON)
        await cluster.bound("metax", "cambricon")

        found = await cluster.sound("14: two vendors")

        assert (cluster.placed("metax"), cluster.placed("cambricon")) == ("m0", "c0")
        assert not cluster.placed("both")
        said: dict[str, Any] = found.explained[cluster.stored("both")["metadata"]["uid"]]
        assert said["reason"]["code"]
        for name in ("m0", "c0"):
            await until(lambda name=name: not held(cluster, name), "no lock is left")  # type: ignore[misc]


@pytest.mark.parametrize("taken", [*sorted(LOCKS), ""])
async def test_two_locks_are_taken_together_or_not_at_all(taken: str) -> None:
    """Where another pod has one of them, the other is not written either."""
    both = dict.fromkeys(LOCKS, "2026-01-01T00:00:00Z,default,both")
    other = {taken: "2026-01-01T00:00:00Z,default,other"} if taken else {}
    async with bed(node("m0", 1, model="C500", mode="sgpu")) as cluster:
        if taken:
            await cluster.patch("m0", {"metadata": {"annotations": other}}, "nodes")
        locks = ApiNodeLocks(await cluster.client())

        answer = await locks.take("m0", both, {})

        assert answer.outcome is (Outcome.REFUSED if taken else Outcome.DONE)
        assert held(cluster, "m0") == (other or both)
        await locks.give_back("m0", both)
        assert held(cluster, "m0") == other

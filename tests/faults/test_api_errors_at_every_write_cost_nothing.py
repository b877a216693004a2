"""Scenario 7: every write of Partage fails in every way, also after it was carried out."""

import pytest
from bed import HALF, WHOLE, Bed, bed, node, told, until
from ways import WAYS

from fakes.wire import Fault
from partage.vendors import names

WRITES = {
    "Binding": {"method": "POST", "path": "/binding"},
    "wake-up": {"method": "PATCH", "path": "/api/v1/namespaces/default/pods/c"},
    "Lease": {"method": "PATCH", "path": "/leases/"},
    "event": {"method": "POST", "path": "/events"},
    "node totals": {"method": "PATCH", "path": "/api/v1/nodes/"},
}
"""Where each write goes."""


async def work(cluster: Bed) -> None:
    """Two pods get the two cards, a third waits, and gets the card that the first releases."""
    await cluster.pod("a", WHOLE)
    await cluster.pod("b", HALF)
    await cluster.bound("a", "b")
    await cluster.pod("c", WHOLE)
    await cluster.told("c")
    await cluster.delete("a")
    await cluster.bound("c")


@pytest.mark.parametrize(
    ("write", "seam"), [*((write, "extender") for write in WRITES), ("Binding", "plugin")]
)
@pytest.mark.parametrize("fault", WAYS)
async def test_a_write_that_fails_leaves_the_books_right(
    write: str, fault: str, seam: str
) -> None:
    """Whatever was answered, all pods get their place, and all five invariants hold."""
    how = WAYS[fault]
    times = 1 if "delay" in how else 2
    async with bed(node(cards=2), seam=seam) as cluster:
        cluster.wire.fail(Fault(**WRITES[write], **how, times=times))
        await cluster.daemon()

        await work(cluster)

        await cluster.sound(f"7: {write}, {fault}")
        assert cluster.wire.struck, "nothing was hit"
        woken = cluster.stored("c")["metadata"]["annotations"].get(names.WOKEN)
        # By the plugin a pod is woken by a word at the socket, and nothing of it is changed.
        assert bool(woken) == (seam == "extender"), "how it was woken"


@pytest.mark.parametrize("fault", ["too many requests", "timeout though done", "no answer"])
async def test_a_vendors_lock_is_given_back_whatever_is_answered(fault: str, seam: str) -> None:
    """A MetaX pod's lock on its node: taken, or released, by what the node says in the end."""
    metax = node("m0", 1, model="C500", mode="sgpu")
    asks = {"metax-tech.com/sgpu": "1", **HALF}
    async with bed(metax, seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        where = {"method": "PATCH", "path": "/api/v1/nodes/m0"}
        cluster.wire.fail(Fault(**where, **WAYS[fault], times=2))

        await cluster.pod("one", asks)
        await cluster.pod("two", asks)
        await cluster.bound("one", "two")

        await cluster.sound(f"7: vendor's lock, {fault}")
        await until(
            lambda: (
                "hami.io/mutex.lock"
                not in cluster.stored("m0", "nodes")["metadata"].get("annotations", {})
            ),
            "the lock is off",
        )
        assert set(cluster.cards("one")) == set(cluster.cards("two"))


async def test_everything_may_fail_at_once(seam: str) -> None:
    """Every second request of any kind fails in some way, while pods come and go."""
    count = 0

    def chance(_request: object) -> Fault | None:
        nonlocal count
        count += 1
        kinds = list(WAYS.values())
        how = kinds[count // 2 % len(kinds)]
        return Fault(**how) if count % 2 and "delay" not in how else None

    async with bed(node(cards=4), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        cluster.wire.chance = chance
        for number in range(8):
            await cluster.pod(f"p{number}", HALF)
        await cluster.bound(*(f"p{number}" for number in range(8)))
        cluster.wire.heal()

        assert cluster.wire.struck, "nothing was hit"
        found = await cluster.sound("7: every second request fails")

        assert found.metrics["partage_bindings_unknown"] == 0
        told("7: requests that failed", float(sum(cluster.wire.hit.values())))

"""Random histories of documents, hostile values included, leave the books of a fresh start.

Nodes and Devices are created, changed, deleted and created again under bound pods. Pods are unreadable, lose and gain
records of any scheduler, and end. Claims hold existing and missing devices. The tests compare the free amounts of nodes
with cards.
"""

import asyncio
import copy
import os
import random

import pytest
from world import Manifest, World, card, device, document, half, node, pod, whole

from claim_documents import claim, result, share
from partage.vendors import names

SEQUENCES = int(os.environ.get("PARTAGE_SEQUENCES", "200")) // 4
STEPS = 40
NODES = ("n1", "n2")
ODD = ("much", "1e9Gi", "-1", "9" * 400, "1E-3", "-0")
QGPU = {names.QGPU_CORE: "30", names.QGPU_MEMORY: "5"}
ASKS = (half(), whole(), QGPU, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048"})
RECORDS = (
    {},
    {names.DEVICE_ALLOCATED: "{}"},
    {names.DEVICE_ALLOCATED: '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50"}}]}'},
    {names.HAMI_ALLOCATED: "GPU-0,NVIDIA,8192,50:;", names.HAMI_POD_NODE: "n1"},
    {names.ALLOCATION: "{}"},
)
Key = tuple[str, str]


class History:
    """The API server's objects, and a service that hears of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 # reproducible on purpose
        self.world = World()
        self.store: dict[Key, Manifest] = {}
        self.version = 0

    def put(self, manifest: Manifest) -> None:
        """An object is there, or has changed."""
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        self.store[manifest["kind"], manifest["metadata"]["name"]] = manifest
        self.world.service.changed(document(copy.deepcopy(manifest)))

    def drop(self, kind: str, name: str) -> None:
        """An object is there no more."""
        manifest = self.store.pop((kind, name), None)
        if manifest is not None:
            self.world.service.gone(document(manifest))

    def machine(self) -> None:
        """A Node, as it was or with another amount; its Device; or one of them goes."""
        name = self.chance.choice(NODES)
        if self.chance.random() < 0.25:
            self.drop(self.chance.choice(("Node", "Device")), name)
        elif self.chance.random() < 0.4:
            made = node(name)
            if self.chance.random() < 0.2:
                made["status"]["allocatable"]["cpu"] = self.chance.choice(ODD)
            self.put(made)
        else:
            memories = [self.chance.choice(("16Gi", "32Gi")) for _ in range(2)]
            if self.chance.random() < 0.1:
                memories[1] = self.chance.choice(ODD)
            self.put(device(name, *(card(minor, one) for minor, one in enumerate(memories))))

    def workload(self) -> None:
        """Another bound pod; some of them cannot be read."""
        name = f"p{self.chance.randrange(3)}"
        self.drop("Pod", name)
        limits = dict(self.chance.choice(ASKS))
        if self.chance.random() < 0.4:
            limits["cpu"] = self.chance.choice(ODD)
        meta = {"uid": f"uid-{self.version}", "annotations": dict(self.chance.choice(RECORDS))}
        self.put(pod(name, limits, meta=meta, nodeName=self.chance.choice(NODES)))

    def ends(self) -> None:
        """A pod ends, or is gone."""
        pods = [name for kind, name in self.store if kind == "Pod"]
        if pods:
            name = self.chance.choice(pods)
            if self.chance.random() < 0.5:
                self.drop("Pod", name)
            else:
                self.put({**self.store["Pod", name], "status": {"phase": "Succeeded"}})

    def claims(self) -> None:
        """A claim is allocated, or gone."""
        name = f"c{self.chance.randrange(3)}"
        self.drop("ResourceClaim", name)
        if self.chance.random() < 0.6:
            given = self.chance.choice((share(), share("gpu-9"), result("nope"), result("gpu-1")))
            self.put(claim(given, name=name, uid=f"claim-{self.version}"))

    async def run(self) -> bool:
        """A history, and a fresh start with what is left of it; whether any card is open then."""
        await self.world.start()
        for _ in range(STEPS):
            self.chance.choice(
                (self.machine, self.workload, self.workload, self.ends, self.claims)
            )()
        fresh = await World().start(*self.store.values())
        free = _free(self.world)
        assert free == _free(fresh)
        found, expected = (
            {label for label in one.service.books.cluster_cache.problems if "Node" in label}
            for one in (self.world, fresh)
        )
        assert found == expected
        assert self.world.service.audit().clean
        return bool(free)


def _free(world: World) -> dict[str, list[tuple[int, int, int]]]:
    """What each open card has left, of each node that has one."""
    ledger = world.service.books.engine.ledger
    found = {
        name: [
            (one.device.minor, one.core_free, one.memory_free)
            for type_ in ledger.planes
            for one in ledger.cards(type_, index)
            if one.closed is None
        ]
        for name, index in ledger.index.items()
    }
    return {name: cards for name, cards in found.items() if cards}


@pytest.mark.parametrize("seed", range(4))
def test_the_books_are_those_of_a_fresh_start(seed: int) -> None:
    """No card is open that a restart would close, and none closed that it would open."""
    with_cards = 0
    for number in range(SEQUENCES):
        with_cards += asyncio.run(History(seed * SEQUENCES + number).run())
    assert with_cards >= SEQUENCES // 10, "most would compare nothing"

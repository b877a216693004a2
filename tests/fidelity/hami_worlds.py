"""Small HAMi clusters and pods: drawn so that amounts meet, cards fill up, and wishes collide."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import decisions
import hami_rules as hami
from hypothesis import strategies as st

from drawn import sampled

_TYPES = ("NVIDIA A100-SXM4-40GB", "NVIDIA-Tesla T4")
_LINKS = (10, 20, 50, 100, 300)


@dataclass(frozen=True)
class Pod:
    """A pod: limits of each container, and annotations."""

    name: str
    containers: tuple[dict[str, str], ...]
    annotations: dict[str, str]

    def document(self) -> dict[str, Any]:
        """The manifest."""
        return decisions.pod(self.name, self.containers, self.annotations, "hami-scheduler")


@dataclass
class World:
    """Nodes with nothing on them, and the pods that come one after another.

    `policy`: between nodes and between cards, for pods that name none.
    """

    nodes: list[hami.Node]
    pods: list[Pod]
    policy: str = "binpack/spread"

    def wishes(self, pod: Pod) -> dict[str, str]:
        """A pod's annotations as HAMi's scheduler reads them, with what its own flags say."""
        node, card = self.policy.split("/")
        flags = {"hami.io/node-scheduler-policy": node, "hami.io/gpu-scheduler-policy": card}
        return flags | pod.annotations

    def documents(self) -> list[dict[str, Any]]:
        """The manifests."""
        return [*(_node(node) for node in self.nodes), *(pod.document() for pod in self.pods)]


def _node(node: hami.Node) -> dict[str, Any]:
    registered = [
        {
            "id": c.uuid,
            "index": c.index,
            "count": c.count,
            "devmem": c.memory,
            "devcore": c.cores,
            "type": c.type,
            "numa": c.numa,
            "mode": "hami-core",
            "health": c.healthy,
        }
        for c in node.cards
    ]
    notes = {
        "hami.io/node-nvidia-register": json.dumps(registered),
        "hami.io/device-cordon": ",".join(c.uuid for c in node.cards if c.cordoned),
    }
    if node.links:
        scores = [
            {
                "uuid": c.uuid,
                "score": {
                    next(iter(pair - {c.uuid})): worth
                    for pair, worth in node.links.items()
                    if c.uuid in pair
                },
            }
            for c in node.cards
        ]
        notes["hami.io/node-nvidia-score"] = json.dumps(scores)
    units = str(sum(c.count for c in node.cards))
    return decisions.node(node.name, {"nvidia.com/gpu": units}, {"annotations": notes})


@cache
@st.composite
def _nodes(draw: st.DrawFn, name: str, most: int, *, alike: bool, linked: bool) -> hami.Node:
    usual = draw(_card())
    cards = []
    for index in range(draw(st.integers(1, most))):
        count, memory, kind, health = usual if alike else draw(_card())
        numa = draw(st.integers(0, 1))
        cards.append(
            hami.Card(
                f"{name}-{index}",
                index,
                numa,
                kind,
                count,
                memory,
                health != "unhealthy",
                health == "cordoned",
            )
        )
    links = {}
    if linked:
        for one in cards:
            for other in cards[: one.index]:
                links[frozenset((one.uuid, other.uuid))] = draw(sampled(_LINKS))
    return hami.Node(name, cards, links)


@cache
def _card() -> st.SearchStrategy[tuple[int, int, str, str]]:
    return st.tuples(
        sampled((10, 4, 5, 2, 1, 20)),
        sampled((16000, 8000, 40000)),
        sampled(_TYPES),
        sampled(("healthy",) * 8 + ("unhealthy", "cordoned")),
    )


_CONTAINER = st.builds(
    lambda count, memory, cores: {"nvidia.com/gpu": str(count)} | memory | cores,
    sampled((1, 1, 1, 2, 2, 3)),
    st.one_of(
        sampled((1000, 2000, 4000, 4000, 8000, 0)).map(lambda n: {"nvidia.com/gpumem": str(n)}),
        sampled((10, 25, 50, 100, 0)).map(lambda n: {"nvidia.com/gpumem-percentage": str(n)}),
        st.just({}),
    ),
    sampled(("", "", "0", "10", "30", "50", "100")).map(
        lambda text: {"nvidia.com/gpucores": text} if text else {}
    ),
)


@cache
def _annotations(uuids: tuple[str, ...], *, linked: bool) -> st.SearchStrategy[dict[str, str]]:
    chains = [
        "binpack",
        "spread",
        "mutex",
        "numa",
        "numa,spread",
        "numa,binpack",
        "binpack,numa",
        "spread,numa",
        "mutex,binpack",
        "spread,mutex",
        "mutex,numa",
        "spread,binpack,numa",
    ]
    if linked:
        chains += ["topology-aware", "topology-aware,binpack"]
    words = {
        "hami.io/node-scheduler-policy": ["binpack", "spread"],
        "hami.io/gpu-scheduler-policy": chains,
        "nvidia.com/numa-bind": ["true", "false"],
        "nvidia.com/use-gputype": ["a100", "T4", "A100,T4"],
        "nvidia.com/nouse-gputype": ["t4", "H100"],
        "nvidia.com/use-gpuuuid": [uuids[0], ",".join(uuids[-2:])],
        "nvidia.com/nouse-gpuuuid": [uuids[0]],
        "hami.io/device-scoring-weights": [
            "slot=0,core=0,memory=1",
            "slot=5,core=1,memory=1",
            "slot=0,core=2,memory=0",
        ],
    }
    often = ("hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy")
    usual = st.fixed_dictionaries({}, optional={key: sampled(words[key]) for key in often})
    rare = [key for key in words if key not in often]
    return st.builds(
        lambda policies, wish: policies | wish,
        usual,
        st.one_of(
            st.just({}),
            sampled(rare).flatmap(lambda key: sampled(words[key]).map(lambda value: {key: value})),
        ),
    )


@st.composite
def worlds(draw: st.DrawFn, nodes: int = 1, cards: int = 4) -> World:
    """A world of so many nodes and cards a node at most."""
    alike, linked = draw(st.booleans()), draw(st.booleans())
    found = [
        draw(_nodes(f"n{index}", cards, alike=alike, linked=linked))
        for index in range(draw(st.integers(max(1, nodes), nodes)))
    ]
    uuids = tuple(card.uuid for node in found for card in node.cards)
    wishes = _annotations(uuids, linked=linked)
    pods = [
        Pod(f"p{number}", tuple(draw(st.lists(_CONTAINER, min_size=1, max_size=2))), draw(wishes))
        for number in range(draw(st.integers(1, 8)))
    ]
    policies = (
        "binpack/spread",
        "binpack/spread",
        "spread/binpack",
        "binpack/binpack",
        "spread/spread",
    )
    return World(found, pods, draw(sampled(policies)))

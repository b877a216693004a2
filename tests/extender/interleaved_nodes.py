"""Model nodes for interleavings: hardware, a kubelet, a runtime, and the product's own agent in between.

The agent decides with the product's code and a journal on a disk. The runtime keeps its own account of the
cards that running containers have open, from what it got at their creation alone.
"""

import copy
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from interleaved_api import Manifest, ModelApi

from partage.agent.container_admission import Keeper
from partage.agent.container_edits import MARK, HostFacts, Instance
from partage.agent.device_document import device_document
from partage.agent.discovery.found import Inventory
from partage.agent.discovery.models import MODELS
from partage.agent.discovery.simulated import SimulatedHardware, simulate
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.journal import Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Adjustment, Container, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.runtimes import VISIBLE, VOID
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.documents import decode
from partage.wire.nodes import translate_node

MAKE = replace(MODELS["Tesla-T4"], memory=16 << 30)
CARDS = 2
TALLIES = Tallies()
"""Of all agents: nothing here reads them, and making them takes longer than a container."""

Amounts = tuple[int, int, bool]
"""Thousandths of compute, bytes, and whether no other container may have the card."""


def granted(record: str) -> dict[str, Amounts]:
    """What a record gives its pod, by card; read without the product."""
    found: dict[str, Amounts] = {}
    for container in json.loads(record)["containers"]:
        for grant in container["devices"]:
            milli, size, alone = found.get(grant["uuid"], (0, 0, False))
            whole = alone or grant["mode"] == "whole"
            found[grant["uuid"]] = milli + grant["milli"], size + grant["bytes"], whole
    return found


@dataclass
class Life:
    """A container as the runtime has it.

    Attributes:
        cards: those that it has open.
        ended: its processes are gone; the agent may not know yet.
    """

    id: str
    sandbox: PodSandbox
    annotations: dict[str, str] = field(default_factory=dict)
    cards: frozenset[str] = frozenset()
    ended: bool = False

    @property
    def record(self) -> str:
        """The record by which it was made."""
        return self.sandbox.annotations.get(names.ALLOCATION, "")

    def container(self) -> Container:
        """As the runtime describes it."""
        return Container(
            self.id,
            self.sandbox.id,
            "main",
            annotations=self.annotations,
            env=(f"{MARK}gpu=1",),  # the kubelet counts units for each
        )


class Machine:
    """One node.

    Attributes:
        keeper: the agent's; None while the agent is away.
        pods: as the kubelet knows them, by uid.
        leaving: pods that the kubelet ends.
        lives: containers that the agent does not know as ended.
        reports: Device objects that were written, oldest first.
    """

    def __init__(self, name: str, folder: Path, api: ModelApi) -> None:
        self.name = name
        self.api = api
        self._folder = folder
        self.identities = [f"GPU-{name}-{number}" for number in range(CARDS)]
        self.ill: set[int] = set()
        self.gone: set[int] = set()
        self.swaps = 0
        self.seen: Manifest | None = None
        self.reports: list[Manifest] = []
        self.pods: dict[str, Manifest] = {}
        self.leaving: set[str] = set()
        self.sandboxes: dict[str, PodSandbox] = {}
        self.lives: dict[str, Life] = {}
        self.made = 0
        self.keeper: Keeper | None = None
        self._journal: Journal | None = None
        self.begin()

    # --- the agent ---------------------------------------------------------------------------

    def inventory(self) -> Inventory:
        """What a search of the machine finds now."""
        hardware = SimulatedHardware(self.name, "Tesla-T4", MAKE, CARDS)
        found = simulate(hardware, [("gpu", number) for number in self.ill]).found
        return Inventory(
            tuple(
                replace(one, device=replace(one.device, uuid=self.identities[number]))
                for number, one in enumerate(found)
                if number not in self.gone
            )
        )

    def look(self) -> None:
        """The agent searches its machine; containers are admitted by what it found."""
        now = "2026-01-01T00:00:00Z"
        self.seen = device_document(self.name, self.inventory(), self.seen, now)
        plain = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        read = translate_node(
            decode("Node", json.dumps(plain).encode()).documents[0],
            decode("Device", json.dumps(self.seen).encode()).documents[0],
            Context.of(Settings()),
        )
        facts = HostFacts(lambda *_: Instance())
        self._place = Place(read.node, Settings(), FAMILIES, facts)

    def report(self, at: int | None = None) -> None:
        """What the agent saw last arrives at the API server, or once more what it saw before that."""
        if at is None and self.seen is not None:
            self.reports.append(copy.deepcopy(self.seen))
        if self.reports:
            body = copy.deepcopy(self.reports[-1 if at is None else at % len(self.reports)])
            self.api.put("Device", self.name, body)

    def end(self) -> None:
        """The agent dies."""
        self.keeper = None
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def begin(self) -> None:
        """An agent starts, and the runtime sends it what runs."""
        self.end()
        self.look()
        self._journal = Journal(self._folder / self.name)
        host = Host(self._folder, simulated=True)
        self.keeper = Keeper(lambda: self._place, host, self._journal, TALLIES)
        self.lives = {key: life for key, life in self.lives.items() if not life.ended}
        self.keeper.synchronize(
            tuple(self.sandboxes.values()), tuple(life.container() for life in self.lives.values())
        )

    # --- kubelet and runtime -----------------------------------------------------------------

    def listen(self) -> None:
        """The kubelet hears what the API server has."""
        mine = {uid: pod for uid, pod in self.api.pods.items() if pod.node == self.name}
        for uid, pod in mine.items():
            if uid not in self.pods and not pod.deleting and pod.phase == "Pending":
                self.pods[uid] = pod.manifest()
        self.leaving |= self.pods.keys() - mine.keys()
        self.leaving |= {uid for uid, pod in mine.items() if pod.deleting}

    def start(self, uid: str, *, dies: int = 0) -> Life | None:
        """The kubelet makes the container of a pod; the runtime asks the agent, if it is there.

        Args:
            dies: 1: the agent ends before its answer, and nothing is made; 2: the runtime goes on without it.
        """
        if any(life.sandbox.uid == uid and not life.ended for life in self.lives.values()):
            return None
        meta = self.pods[uid]["metadata"]
        sandbox = self.sandboxes.setdefault(
            uid,
            PodSandbox(
                f"s-{self.name}-{uid}",
                meta["name"],
                uid,
                meta["namespace"],
                labels=dict(meta["labels"]),
                annotations=dict(meta["annotations"]),
            ),
        )
        self.made += 1
        life = Life(f"c-{self.name}-{self.made}", sandbox)
        if self.keeper is not None:
            try:
                adjustment = self.keeper.create(sandbox, life.container())
            except Refused:
                return None
            if dies:
                self.end()
            if dies == 1:
                return None
            if not dies and adjustment is not None:
                self._adjust(life, adjustment)
        self.lives[life.id] = life
        return life

    def _adjust(self, life: Life, adjustment: Adjustment) -> None:
        """Make the container as the agent says; its variable names cards by identities or numbers."""
        life.annotations = dict(adjustment.annotations)
        env = {one.key: one.value for one in adjustment.env}
        numbered = {str(one["minor"]): str(one["id"]) for one in self.shown()}
        said = [one for one in env.get(VISIBLE, VOID).split(",") if one != VOID]
        life.cards = frozenset(numbered.get(one, one) for one in said)

    def shown(self) -> list[Manifest]:
        """The cards that the agent saw last, and those that it saw before and misses."""
        found: list[Manifest] = [] if self.seen is None else self.seen["spec"]["devices"]
        return found

    def stop(self, life: Life) -> None:
        """The container's processes end; the kubelet deletes a pod that was to go, or tells that one is done."""
        life.ended = True
        self._settled(life.sandbox.uid)

    def _settled(self, uid: str) -> None:
        """Let go of a pod that leaves and of which nothing runs."""
        running = any(one.sandbox.uid == uid and not one.ended for one in self.lives.values())
        if uid in self.leaving and not running:
            self.leaving.discard(uid)
            self.pods.pop(uid, None)
            pod = self.api.pods.get(uid)
            if pod is not None and pod.deleting and pod.node == self.name:
                self.api.delete(uid)

    def leave(self) -> None:
        """Pods that were to go and never ran are let go."""
        for uid in list(self.leaving):
            self._settled(uid)

    def tell(self, life: Life) -> None:
        """The agent hears that a container has ended."""
        if life.ended:
            self.lives.pop(life.id, None)
            if self.keeper is not None:
                self.keeper.remove(life.container())
            if life.sandbox.uid not in self.pods and not any(
                one.sandbox.uid == life.sandbox.uid for one in self.lives.values()
            ):
                self.sandboxes.pop(life.sandbox.uid, None)

    # --- its own account ---------------------------------------------------------------------

    @property
    def using(self) -> list[Life]:
        """Containers with cards open."""
        return [life for life in self.lives.values() if life.cards and not life.ended]

    def wrong(self) -> str:
        """A card that more use than may; empty if none."""
        for card in {card for life in self.using for card in life.cards}:
            those = [granted(life.record)[card] for life in self.using if card in life.cards]
            if len(those) > 1 and any(alone for _, _, alone in those):
                return f"card {card} is whole and used by {len(those)}"
            if sum(milli for milli, _, _ in those) > 1000:
                return f"card {card} is used beyond its compute"
            if sum(size for _, size, _ in those) > MAKE.memory:
                return f"card {card} is used beyond its memory"
        return ""

    def forgotten(self) -> str:
        """A container that uses a card of which the agent does not know; empty if none."""
        if self.keeper is None:
            return ""
        held: Any = self.keeper.books.held
        for life in self.using:
            known = held.get(life.id)
            if known is None or {grant.uuid for grant in known.allocation.grants} != life.cards:
                return f"{life.id} uses {sorted(life.cards)}, and the agent does not know"
        return ""

"""Koordinator's choice of devices, written again from its source (commit a7a1b76b, after v1.8.0): DeviceShare.

Each rule names the function that it was read from, in
https://github.com/koordinator-sh/koordinator/tree/master/pkg/scheduler/plugins/deviceshare . A rule that Partage keeps
otherwise on purpose is marked with the row of docs/compatibility/koordinator.md that says so. Scores are LeastAllocated, the default, or
MostAllocated.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

Q5 = "Q5 partition scores"
Q6 = "Q6 shared card in the topology path"
Q15 = "Q15 joint allocation"
FAR = "joint allocation, more network cards than PCIe switches"
SCORES = "scores"
SWITCHES = "equal PCIe switches"
NODE_SCOPE = "scope `Node` on a node whose topology is not known"
DEVICE_SCOPE = "scope `Device`"
SHARED_SCOPE = "shares of several cards with a scope"
UNSEEN = "`SamePCIe` on a node whose topology is not known"
"""Rows of docs/compatibility/koordinator.md that the rules and the worlds keep to."""

SCOPES = {"": 0, "Node": 1, "NUMANode": 2, "PCIe": 3, "Device": 4}
_HARM = {8: 10_000, 4: 100, 2: 1}


@dataclass
class Device:
    """A card or network card and what is used of it; amounts in percent, of a card's memory too."""

    minor: int
    healthy: bool
    numa: int
    pcie: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    functions: tuple[tuple[str, str], ...] = ()
    used: dict[str, int] = field(default_factory=dict)
    functions_taken: set[str] = field(default_factory=set)

    def free(self, name: str) -> int:
        """Percent left; an unhealthy device has nothing."""
        return 100 - self.used.get(name, 0) if self.healthy else 0

    def fits(self, asked: Mapping[str, int]) -> bool:
        """Whether each amount is left. device_allocator.go: defaultAllocateDevices; allocator_gpu.go: allocateFromScope."""
        return self.healthy and all(amount <= self.free(name) for name, amount in asked.items())

    @property
    def in_use(self) -> bool:
        """Whether anything of it is used. allocator_gpu.go: getRealUsed."""
        return any(self.used.values())


@dataclass(frozen=True)
class Partition:
    """A set of cards that may be given together, and how good it is."""

    minors: tuple[int, ...]
    score: int


@dataclass
class Node:
    """Devices of a node; `partitions` by number of cards, None where there is no table.

    `packs`: whether the scheduler scores by MostAllocated.
    """

    name: str
    gpus: list[Device]
    nics: list[Device] = field(default_factory=list)
    partitions: dict[int, list[Partition]] | None = None
    honor: bool = False
    packs: bool = False


@dataclass(frozen=True)
class Ask:
    """What a pod asks.

    Attributes:
        gpu: what each card must give, in percent; empty for no card.
        gpus: how many cards.
        rdma: percent of network cards; 0 for none.
        scope: the widest scope that its cards may have, empty for any.
        strategy: ApplyForAll or RequestsAsCount for network cards, or empty.
        exclusive: DeviceLevel for network cards.
        selector: label `type` of its network cards, or empty.
        function: label `type` of its virtual functions; None for no function, empty for any.
        joint: allocated jointly.
        same: all on the same switches.
        partition: None, or "BestEffort" or "Restricted" where partitions must be honoured.
    """

    gpu: Mapping[str, int] = field(default_factory=dict)
    gpus: int = 1
    rdma: int = 0
    scope: str = ""
    strategy: str = ""
    exclusive: bool = False
    selector: str = ""
    function: str | None = None
    joint: bool = False
    same: bool = False
    partition: str | None = None

    @property
    def shared(self) -> bool:
        """Whether less than whole cards are asked. devicehandler_gpu.go: calcDesiredRequestsAndCountForGPU."""
        return self.gpu.get("ratio", 0) < 100


def _worth(left: int, *, packs: bool) -> int:
    """What it scores that so much would be left, of 100. scoring.go: leastRequestedScore, mostRequestedScore."""
    return 100 - max(0, left) if packs else max(0, left)


def nic_score(nic: Device, asked: int, *, packs: bool) -> int:
    """Score of a network card. scoring.go: scoreDevice."""
    return _worth(nic.free("rdma") - asked, packs=packs)


def gpu_score(card: Device, asked: Mapping[str, int], *, packs: bool) -> int:
    """Score of a card: the mean of its ratio and its bytes, of which the ratio counts the request. scoring.go: scoreDevice."""
    free = card.free("ratio")
    return (_worth(free - asked.get("ratio", 0), packs=packs) + _worth(free, packs=packs)) // 2


def gpus(node: Node, ask: Ask, *, ours: bool = True) -> list[int] | None:
    """Minors of the cards that are given; None where the node refuses. allocator_gpu.go: Allocate, generalAllocate.

    Args:
        node: where.
        ask: what.
        ours: read scopes as Partage does where it is a row (SWITCHES, NODE_SCOPE, DEVICE_SCOPE).
    """
    if not node.gpus:
        return None
    if not ask.shared:
        found = by_partition(node, ask)
        if found:
            return found
        if node.honor or ask.partition is not None:
            return None
    if ours and ask.scope == "Device":  # for upstream no card is within it
        if ask.gpus > 1:
            return None
        ask = replace(ask, scope="")
    known = all(card.pcie is not None for card in node.gpus)
    if ours and ask.scope == "Node" and not known:  # upstream refuses
        ask = replace(ask, scope="")
    several = ask.shared and ask.gpus > 1
    if known and not several:
        result = from_scope(node, ask, ours=ours)
        return result[2] if result else None
    if ask.scope:
        return None
    fitting = [card for card in node.gpus if card.fits(ask.gpu)]
    fitting.sort(key=lambda c: (-gpu_score(c, ask.gpu, packs=node.packs), c.minor))
    return [c.minor for c in fitting[: ask.gpus]] if len(fitting) >= ask.gpus else None


def by_partition(node: Node, ask: Ask) -> list[int] | None:
    """A free partition. allocator_gpu.go: allocateByPartition, selectPartitionByBinPack.

    Upstream takes the lowest score first, here the highest is (Q5).
    """
    table = (node.partitions or {}).get(ask.gpus, [])
    used = {card.minor for card in node.gpus if card.in_use}
    healthy = {card.minor for card in node.gpus if card.healthy}
    for group in _by_score(table)[: 1 if ask.partition == "Restricted" else None]:
        free = [p for p in group if not used & set(p.minors) and healthy >= set(p.minors)]
        if free:
            return list(
                max(free, key=lambda p: _spared(node, used | set(p.minors), ask.gpus)).minors
            )
    return None


def _by_score(table: Iterable[Partition]) -> list[list[Partition]]:
    table = list(table)
    scores = sorted({p.score for p in table}, reverse=True)
    return [[p for p in table if p.score == score] for score in scores]


def _spared(node: Node, gone: set[int], count: int) -> int:
    worth = 0
    for size, weight in _HARM.items():
        groups = _by_score((node.partitions or {}).get(size, []))
        if size >= count and groups:
            worth += weight * sum(p.score for p in groups[0] if not gone & set(p.minors))
    return worth


def from_scope(
    node: Node, ask: Ask, *, ours: bool = True
) -> tuple[int, int, list[int], int] | None:
    """Depth, scopes in use around it, cards and score of the best place. allocator_gpu.go: allocateFromScope.

    The score of a share is the scorer's own, of which upstream swaps the arguments (Q6). Of equal scopes upstream takes the
    first by NUMA node and switch, Partage the one with the lowest minor (SWITCHES).

    Args:
        node: where.
        ask: what.
        ours: read equal scopes as Partage does.
    """

    def rank(found: tuple[int, int, list[int], int]) -> tuple[int, int, int, list[int]]:
        depth, used, chosen, worth = found
        return depth, used, worth, [-minor for minor in chosen] if ours else []

    def inside(
        level: int, cards: list[Device], used: int, depth: int
    ) -> tuple[int, int, list[int], int] | None:
        if len(cards) < ask.gpus:
            return None
        used += any(card.in_use for card in cards)
        best: tuple[int, int, list[int], int] | None = None
        for child in _children(level, cards):
            found = inside(level + 1, child, used, depth + 1)
            if found is None:
                continue
            if best is None or rank(found) > rank(best):
                best = found
        if best is not None:
            return best
        if SCOPES[ask.scope] > level:
            return None
        fitting = [card for card in cards if card.fits(ask.gpu)]
        if len(fitting) < ask.gpus:
            return None
        if not ask.shared:
            return depth, used, [card.minor for card in fitting[: ask.gpus]], -1

        def worth(card: Device) -> tuple[int, int]:
            return gpu_score(card, ask.gpu, packs=node.packs), -card.minor

        chosen = max(fitting, key=worth)
        return depth, used, [chosen.minor], worth(chosen)[0]

    return inside(SCOPES["Node"], sorted(node.gpus, key=lambda c: c.minor), 0, 1)


def _children(level: int, cards: list[Device]) -> list[list[Device]]:
    """allocator_gpu_helper.go: GetGPUTopologyScope."""
    if level >= SCOPES["PCIe"]:
        return []
    places = {c.minor: str(c.numa) if level == SCOPES["Node"] else str(c.pcie) for c in cards}
    return [[c for c in cards if places[c.minor] == p] for p in sorted(set(places.values()))]


@dataclass(frozen=True)
class Nics:
    """How many network cards are wanted, and what each gives in percent."""

    least: int
    most: int
    each: int


def nics_wanted(node: Node, ask: Ask, switches: int) -> Nics | None:
    """devicehandler_default.go: CalcDesiredRequestsAndCount; device_allocator.go: jointAllocate."""
    if not node.nics:
        return None
    count, each = 1, ask.rdma
    if ask.rdma > 100 and ask.rdma % 100 == 0:
        count, each = ask.rdma // 100, 100
    elif ask.strategy == "ApplyForAll":
        count = sum(_selected(nic, ask) for nic in node.nics)
        if not count:
            return None
    elif ask.strategy == "RequestsAsCount":
        count, each = ask.rdma, 100 if ask.exclusive else 1
    return Nics(max(count, switches if ask.same else 0), max(count, switches), each)


def _selected(nic: Device, ask: Ask) -> bool:
    return not ask.selector or nic.labels.get("type") == ask.selector


def function_of(nic: Device, ask: Ask) -> str | None:
    """The virtual function that is given: the free one with the smallest address. device_allocator.go: allocateVF."""
    free = (
        bus
        for kind, bus in nic.functions
        if bus not in nic.functions_taken and ask.function in ("", kind)
    )
    return min(free, default=None)


def usable(nic: Device, ask: Ask, each: int) -> bool:
    """Whether a network card serves."""
    has_function = ask.function is None or function_of(nic, ask) is not None
    return _selected(nic, ask) and nic.fits({"rdma": each}) and has_function


def nics(
    node: Node, ask: Ask, primary: Sequence[int] | None, *, ours: bool = True
) -> list[tuple[int, str]] | None:
    """Minor and virtual function of each network card; None where the node refuses.

    device_allocator.go: jointAllocate, defaultAllocateDevices, validateJointAllocation; device_resources.go:
    sortDeviceResourcesByPreferredPCIe. Beyond the switches of the primary's cards those on their NUMA nodes come first (FAR).

    Args:
        node: where.
        ask: what.
        primary: minors of the cards that they are allocated with; None where they are not.
        ours: read switches that are not known as Partage does (UNSEEN).
    """
    cards = [card for card in node.gpus if card.minor in (primary or ())]
    switches = {card.pcie for card in cards} - {None}
    same = ask.same and primary is not None
    wanted = nics_wanted(node, ask, len(switches))
    if wanted is None or (ask.function is not None and not any(n.functions for n in node.nics)):
        return None

    def rank(nic: Device) -> tuple[int, int]:
        return -nic_score(nic, wanted.each, packs=node.packs), nic.minor

    ranked = sorted(node.nics, key=rank)
    near = {switch: [n for n in ranked if n.pcie == switch] for switch in switches}
    turns = max(map(len, near.values()), default=0)
    order = [
        nic
        for turn in range(turns)
        for nic in sorted((row[turn] for row in near.values() if turn < len(row)), key=rank)
    ]
    numas = {card.numa for card in cards if card.pcie is not None}
    order += sorted(
        (n for n in ranked if n.pcie is None or n.pcie not in switches),
        key=lambda n: bool(primary) and n.numa not in numas,
    )
    chosen = [nic for nic in order if usable(nic, ask, wanted.each)][: wanted.most]
    if len(chosen) < wanted.least:
        return None
    unseen = set() if ours else {None}
    if same and {nic.pcie for nic in chosen} - unseen != switches:
        return None
    return [
        (nic.minor, (function_of(nic, ask) or "") if ask.function is not None else "")
        for nic in chosen
    ]


@dataclass(frozen=True)
class Given:
    """What a node gives a pod."""

    gpus: tuple[int, ...]
    nics: tuple[tuple[int, str], ...]


def jointly(ask: Ask) -> bool:
    """Whether devices are allocated jointly: types with ApplyForAll are not. plugin.go: PreFilter."""
    return ask.joint and bool(ask.gpu) and bool(ask.rdma) and ask.strategy != "ApplyForAll"


def given(node: Node, ask: Ask, cards: list[int] | None = None) -> Given | None:
    """What the node gives, or None where it refuses; with `cards` for these cards. device_allocator.go: Allocate."""
    if ask.gpu and cards is None:
        cards = gpus(node, ask)
        if cards is None:
            return None
    others: list[tuple[int, str]] | None = []
    if ask.rdma:
        others = nics(node, ask, cards if jointly(ask) else None)
    if others is None:
        return None
    return Given(tuple(sorted(cards or ())), tuple(sorted(others)))


def charge(node: Node, ask: Ask, taken: Given) -> None:
    """Books what was given. device_cache.go: updateCacheUsed."""
    for card in node.gpus:
        if card.minor in taken.gpus:
            for name, amount in ask.gpu.items():
                card.used[name] = card.used.get(name, 0) + amount
    wanted = nics_wanted(node, ask, 0)
    for nic in node.nics:
        for minor, bus in taken.nics:
            if nic.minor == minor and wanted is not None:
                nic.used["rdma"] = nic.used.get("rdma", 0) + wanted.each
                nic.functions_taken |= {bus} if bus else set()


def node_score(node: Node, ask: Ask) -> int:
    """Score of the node: what would be left of its cards, of 100, or used. scoring.go: scoreNode.

    Partage looks at what is used before the pod comes, so only nodes of one size compare (SCORES).
    """
    total = 100 * sum(card.healthy for card in node.gpus)
    left = sum(card.free("ratio") for card in node.gpus)
    if not total:
        return 0
    after = left - ask.gpu.get("ratio", 0)
    return sum(_worth(one * 100 // total, packs=node.packs) for one in (after, left)) // 2

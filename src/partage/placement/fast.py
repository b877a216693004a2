"""A short path for the common case: one container, shares of cards or some whole cards.

Most pods ask for one thing of one kind, and most nodes have no partition table. For these this module reads the cards
straight from the columns. It gives the same answer as `pod.place`, card for card (a law under test), and leaves all
other cases to it.
"""

from collections.abc import Iterable, Mapping, Sequence

from partage.inventory.card import Tree
from partage.inventory.ledger import Ledger
from partage.inventory.plane import STATE
from partage.model.allocation import Grant
from partage.model.device import MILLI, Device, DeviceType
from partage.model.policy import CardOrder, Scoring, Strategy
from partage.model.request import DeviceRequest, Phase, PodRequest, RequestGroup
from partage.placement.card import grant_of, sharers_on
from partage.placement.grouping import nearest

_PLAIN_ORDER = CardOrder()

_Row = tuple[bool, bool, int, int, int, int, int, int]
"""A card: whether the request accepts it, whether it is open, and the first `STATE` of its `Plane.amounts`."""


def is_plain(request: PodRequest) -> bool:
    """Whether the request is of the common kind."""
    if len(request.groups) != 1 or request.joint is not None or request.partition is not None:
        return False
    group = request.groups[0]
    asked = group.request
    return (
        group.phase is Phase.MAIN
        and len(group.containers) == 1
        and request.card_order == _PLAIN_ORDER
        and asked.type is DeviceType.GPU
        and not (asked.every or asked.templated or asked.core_unit or asked.extras)
        and asked.scope is None
        and asked.scope_exclusive is None
        and asked.filter.functions is None
    )


def simple(ledger: Ledger, request: DeviceRequest, index: int) -> bool:
    """Whether a node lets a plain request use any of its cards."""
    if not request.whole and request.count == 1:
        return True
    node = ledger.node_at(index)
    bound = node.single_numa or (request.whole and node.honour_partitions)
    return not bound and not (request.whole and node.partitions)


def choose(
    ledger: Ledger,
    group: RequestGroup,
    suits: Sequence[bool],
    index: int,
    strategy: Strategy,
    ranking: Mapping[int, int] | None,
    scoring: Scoring = Scoring(),  # noqa: B008 # frozen
) -> tuple[Grant, ...] | None:
    """Grants for a plain request on a node; empty if it has no room, None if it is not `simple` for the request.

    Args:
        suits: for each row, whether the request accepts the card.
        ranking: score of each row by a strategy that scores cards itself; higher is better.
    """
    request = group.request
    if not simple(ledger, request, index):
        return None
    plane = ledger.planes[request.type]
    open_ = plane.open[:, index].tolist()
    columns = zip(suits, open_, *plane.amounts[:STATE, :, index].tolist(), strict=True)
    if request.whole:
        idle_alike = scoring.sharers and strategy is Strategy.BINPACK
        smallest = strategy not in (Strategy.FIRST_FIT, Strategy.SPREAD) and not idle_alike
        rows = _whole_rows(ledger, request, index, columns, smallest=smallest)
    else:
        slots = plane.slots_total[:, index].tolist() if scoring.sharers else None
        devices = ledger.devices(request.type, index)
        found = _share_rows(request, devices, columns, strategy, ranking, slots)
        tree = ledger.trees.get(index) if scoring.topology and request.count == 1 else None
        if tree is not None and found:
            taken = [row for row, used in enumerate(plane.tenants[:, index].tolist()) if used]
            found = _beside_used(tree, found, taken)
        rows = _best(found, request.count)
    if not rows:
        return ()
    devices = ledger.devices(request.type, index)
    return tuple([grant_of(group, devices[row], group.containers[0]) for row in rows])


def _whole_rows(
    ledger: Ledger, request: DeviceRequest, index: int, columns: Iterable[_Row], *, smallest: bool
) -> list[int]:
    """The best rows for whole cards, best first; empty if too few are idle.

    Args:
        smallest: those with the least memory first, if the topology does not decide.
    """
    rows: list[int] = []
    totals: list[int] = []
    taken: list[int] = []
    for row, (fit, open_, _, _, total, memory, slots, tenants) in enumerate(columns):
        totals.append(total)
        if tenants:
            taken.append(row)
        elif fit and open_ and slots > 0 and memory >= total:
            rows.append(row)
    if len(rows) < request.count:
        return []
    tree = ledger.trees.get(index)
    if tree is not None:
        return nearest(tree, rows, taken, request.count)  # rows are in the order of minors
    if smallest:
        rows.sort(key=totals.__getitem__)
    return rows[: request.count]


def _share_rows(
    request: DeviceRequest,
    devices: Sequence[Device],
    columns: Iterable[_Row],
    strategy: Strategy,
    ranking: Mapping[int, int] | None,
    slots_total: Sequence[int] | None,
) -> list[tuple[int, int]]:
    """The rows that serve a share, each with its key; the least is the best.

    Args:
        slots_total: sharers that each card may have, if they count.
    """
    milli, size, part = request.core_milli, request.memory_bytes, request.memory_milli
    alone = request.unused or request.exclusive
    claims = request.claims_core and not milli
    sharers = request.sharers
    found: list[tuple[int, int]] = []
    for row, (fit, open_, core_total, core, total, memory, slots, tenants) in enumerate(columns):
        if core < milli or not fit or not open_ or slots < 1:
            continue
        need = size or total * part // MILLI
        if memory < need or (alone and tenants) or (claims and core <= 0):
            continue
        full = sharers is not None and tenants >= sharers
        if full and sharers_on(request, devices[row]) is not None:
            continue
        if ranking is not None:
            key = -ranking.get(row, 0)
        elif strategy is Strategy.FIRST_FIT:
            key = 0
        elif strategy is Strategy.PARTAGE:
            key = core - milli + ((memory - need) * MILLI // total if total else 0)
        else:
            key = _used(core_total, core) + _used(total, memory)
            if slots_total is not None:
                key += _used(slots_total[row], slots_total[row] - tenants)
            if strategy is not Strategy.SPREAD:
                key = -key
        found.append((key, row))
    return found


def _best(found: list[tuple[int, int]], count: int) -> list[int]:
    """The best rows, best first; empty if too few fit."""
    if len(found) < count:
        return []
    if count == 1:
        return [min(found)[1]]
    return [row for _, row in sorted(found)[:count]]


def _beside_used(
    tree: Tree, found: list[tuple[int, int]], taken: Sequence[int]
) -> list[tuple[int, int]]:
    """The given rows whose surroundings are most in use; see `grouping.beside_used`."""
    switches, numas = tree
    busy_switches, busy_numas = {switches[r] for r in taken}, {numas[r] for r in taken}
    busy = [(switches[r] in busy_switches) + (numas[r] in busy_numas) for _, r in found]
    most = max(busy)
    return [one for one, crowd in zip(found, busy, strict=True) if crowd == most]


def _used(total: int, free: int) -> int:
    return (total - free) * 1_000_000 // total if total else 0

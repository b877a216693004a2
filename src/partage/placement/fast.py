"""The common case without detours: one container, shares of cards or some whole cards.

Most pods ask for one thing of one kind, and most nodes have no partition table. For those the
cards are read straight from the columns. The answer is that of `pod.place`, card for card (a law
under test); everything else is left to it.
"""

from collections.abc import Mapping, Sequence

from partage.inventory.ledger import Card, Ledger
from partage.inventory.plane import Plane
from partage.model.allocation import Grant, GrantMode
from partage.model.device import MILLI, Device, DeviceType
from partage.model.policy import CardOrder, Strategy
from partage.model.request import DeviceRequest, Phase, PodRequest, RequestGroup, Scope
from partage.placement.grouping import has_tree, in_scopes

__all__ = ["choose", "is_plain", "simple"]

_PLAIN_ORDER = CardOrder()


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
    """Whether a node leaves a plain request free to take any of its cards."""
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
) -> tuple[Grant, ...]:
    """Grants for a plain request on a node that is `simple` for it; empty where it has no room.

    Args:
        suits: for each row, whether the card is the right one at all.
        index: the node.
        ranking: score of each row by a strategy that scores cards itself; higher is better.
    """
    request = group.request
    plane = ledger.planes[request.type]
    open_ = plane.open[:, index].tolist()
    tenants = plane.tenants[:, index].tolist()
    core = plane.core_free[:, index].tolist()
    memory = plane.memory_free[:, index].tolist()
    if request.whole:
        totals = plane.memory_total[:, index].tolist()
        slots = plane.slots_free[:, index].tolist()
        rows = [
            row
            for row, fit in enumerate(suits)
            if fit and open_[row] and not tenants[row] and slots[row] > 0
            and memory[row] >= totals[row]
        ]  # fmt: skip
        if len(rows) < request.count:
            return ()
        chosen = [] if ledger.is_flat(index) else _nearest(ledger, request, index, rows, tenants)
        if not chosen:
            if strategy not in (Strategy.FIRST_FIT, Strategy.SPREAD):
                rows.sort(key=totals.__getitem__)
            chosen = rows[: request.count]
        return tuple([_grant(ledger, group, index, row) for row in chosen])
    columns = (open_, tenants, core, memory)
    chosen = _share_rows(plane, request, suits, index, columns, strategy, ranking)
    return tuple([_grant(ledger, group, index, row) for row in chosen])


def _nearest(
    ledger: Ledger, request: DeviceRequest, index: int, rows: list[int], tenants: list[int]
) -> list[int]:
    """The rows of whole cards that lie best together; none where nobody knows how they lie."""
    everyone = [
        Card(device, row, 0, 0, 0, tenants[row])
        for row, device in enumerate(ledger.devices(request.type, index))
    ]
    if not has_tree(everyone, Scope.PCIE):
        return []
    fitting = [everyone[row] for row in rows]  # rows are in the order of minors
    return [card.row for card in next(in_scopes(everyone, fitting, request))]


def _share_rows(
    plane: Plane,
    request: DeviceRequest,
    suits: Sequence[bool],
    index: int,
    columns: tuple[list[bool], list[int], list[int], list[int]],
    strategy: Strategy,
    ranking: Mapping[int, int] | None,
) -> list[int]:
    """The best rows for a share of each, best first; empty where too few fit."""
    open_, tenants, core, memory = columns
    core_totals = plane.core_total[:, index].tolist()
    totals = plane.memory_total[:, index].tolist()
    slots = plane.slots_free[:, index].tolist()
    alone = request.unused or request.exclusive
    claims = request.claims_core and not request.core_milli
    found: list[tuple[int, int]] = []
    for row, fit in enumerate(suits):
        if not fit or not open_[row] or slots[row] < 1 or core[row] < request.core_milli:
            continue
        need = request.memory_bytes or totals[row] * request.memory_milli // MILLI
        if memory[row] < need or (alone and tenants[row]) or (claims and core[row] <= 0):
            continue
        if request.sharers is not None and tenants[row] >= request.sharers:
            continue
        if ranking is not None:
            key = -ranking.get(row, 0)
        elif strategy is Strategy.FIRST_FIT:
            key = 0
        elif strategy is Strategy.PARTAGE:
            spare = (memory[row] - need) * MILLI // totals[row] if totals[row] else 0
            key = core[row] - request.core_milli + spare
        else:
            key = _used(core_totals[row], core[row]) + _used(totals[row], memory[row])
            if strategy is not Strategy.SPREAD:
                key = -key
        found.append((key, row))
    if len(found) < request.count:
        return []
    if request.count == 1:
        return [min(found)[1]]
    return [row for _, row in sorted(found)[: request.count]]


def _used(total: int, free: int) -> int:
    return (total - free) * 1_000_000 // total if total else 0


def _grant(ledger: Ledger, group: RequestGroup, index: int, row: int) -> Grant:
    device: Device = ledger.device_at(group.request.type, index, row)
    request = group.request
    if request.whole:
        mode = GrantMode.WHOLE
        core, memory = device.core_milli, device.memory_bytes
    else:
        mode = GrantMode.VENDOR if device.vendor_cut else GrantMode.SHARE
        core = request.core_milli
        memory = request.memory_bytes or device.memory_bytes * request.memory_milli // MILLI
    container = group.containers[0]
    return Grant(
        container=container.name,
        type=device.type,
        minor=device.minor,
        uuid=device.uuid,
        core_milli=core,
        memory_bytes=memory,
        mode=mode,
        phase=container.phase,
        protocol=group.protocol,
        extras=device.extras if request.whole else (),
        exclusive=request.exclusive,
        sharers=request.sharers,
    )

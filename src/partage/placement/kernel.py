"""The same rules as `card` and `order`, read straight from the columns.

For common requests `choose` takes cards of one node: one container that asks for shares of cards or for some whole
cards, as most pods do, on a node without a partition table, as most nodes are. It gives the same answer as `pod.place`,
card for card (a law under test), and leaves all other cases to it.

All other functions are asked of every node at once. Arrays have shape (cards, nodes) or (nodes,). Each function takes
`nodes`, an index array or a slice, so the same code first scores the whole cluster and then only the changed nodes. All
numbers are integers: the plain twins give the same ones on any machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from partage.inventory.card import CEILING, Tree
from partage.inventory.ledger import Ledger
from partage.inventory.plane import ABSENT_KIND, CLOSED, STATE, Bools, Ints, Plane
from partage.model.allocation import Grant
from partage.model.device import MILLI, Device, DeviceType
from partage.model.policy import CardOrder, Scoring, Strategy
from partage.model.reason import ReasonCode
from partage.model.request import DeviceRequest, Phase, PodRequest, RequestGroup
from partage.placement.card import accepted, grant_of, sharers_on, slots_on, unsuitable
from partage.placement.grouping import nearest
from partage.placement.reasons import LEADING, RANK, none_left

Nodes = NDArray[np.intp] | slice
Codes = NDArray[np.int8]
Judged = dict[object, Codes]
"""Results of `unsuited` for all nodes, by its inputs; for one decision with its many requests."""
T = TypeVar("T", bound=np.generic)

FITS: Final = len(LEADING)
"""Rank of a card that serves the request; lower ranks are positions in `LEADING`."""

_PLAIN_ORDER = CardOrder()

_Row = tuple[bool, bool, int, int, int, int, int, int]
"""A card: whether the request accepts it, whether it is open, and the first `STATE` of its `Plane.amounts`."""


def suited(ledger: Ledger, request: DeviceRequest, protocol: str, nodes: Nodes) -> Bools:
    """Cards that the request accepts regardless of their free amounts; see `card.unsuitable`."""
    result: Bools = unsuited(ledger, request, protocol, nodes) == FITS
    return result


def unsuited_anywhere(
    ledger: Ledger,
    request: DeviceRequest,
    protocol: str,
    judged: Judged,
    *,
    by_instance: bool = False,
) -> Codes:
    """`unsuited` of all nodes, judged once for requests of equal filters."""
    key = request.type, request.filter, protocol, by_instance
    if (found := judged.get(key)) is None:
        found = judged[key] = unsuited(
            ledger, request, protocol, slice(None), by_instance=by_instance
        )
    return found


def unsuited(
    ledger: Ledger,
    request: DeviceRequest,
    protocol: str,
    nodes: Nodes,
    *,
    by_instance: bool = False,
) -> Codes:
    """Rank of the reason why a card is not accepted, decided once a kind of card."""
    plane = ledger.planes[request.type]
    by_kind = unsuited_kinds(ledger, request, protocol, by_instance=by_instance)
    ranks: Codes = by_kind[plane.kind[:, nodes]]
    if not (request.filter.use_uuids or request.filter.avoid_uuids):
        return ranks
    wrong = np.full(plane.open.shape, bool(request.filter.use_uuids))
    for listed, refused in ((request.filter.use_uuids, False), (request.filter.avoid_uuids, True)):
        for type_, index, row in (place for uuid in listed for place in ledger.at_uuid(uuid)):
            if type_ is request.type:
                wrong[row, index] = refused
    wrong = wrong[:, nodes]
    later = (RANK[ReasonCode.INSUFFICIENT_DEVICES], RANK[ReasonCode.MIG_PLACEMENT])
    overrides = (ranks == FITS) | np.isin(ranks, later)
    ranks[wrong & overrides] = RANK[ReasonCode.UUID_MISMATCH]
    return ranks


def unsuited_kinds(
    ledger: Ledger, request: DeviceRequest, protocol: str, *, by_instance: bool = False
) -> Codes:
    """Rank of the reason why a kind of card is not accepted, whatever the UUIDs of its cards are."""
    by_kind = np.full(len(ledger.kinds), FITS, np.int8)
    anonymous = replace(request.filter, use_uuids=(), avoid_uuids=())
    for kind, device in enumerate(ledger.kinds):
        if device is not None:
            reason = unsuitable(device, anonymous, protocol, by_instance=by_instance)
            by_kind[kind] = FITS if reason is None else RANK[reason.code]
    return by_kind


def at(columns: NDArray[T], nodes: Nodes) -> NDArray[T]:
    """The columns of some nodes, shape (cards, nodes); `take` picks faster."""
    return columns[:, nodes] if isinstance(nodes, slice) else columns.take(nodes, axis=1)


def needs(plane: Plane, request: DeviceRequest, nodes: Nodes) -> tuple[Ints | int, Ints | int]:
    """Compute (milli) and memory (bytes) that a request takes of each card; see `card.need_of`."""
    if request.whole:
        return at(plane.core_total, nodes), at(plane.memory_total, nodes)
    memory: Ints | int = min(request.memory_bytes, CEILING + 1)  # larger amounts never fit
    if request.memory_milli:
        memory = at(plane.memory_total, nodes) * request.memory_milli // MILLI
    core: Ints | int = min(request.core_milli, CEILING + 1)
    if request.core_unit:
        total = at(plane.unit_columns(request.core_unit)[0], nodes)
        asked = min(dict(request.extras).get(request.core_unit, 0), CEILING)
        safe = np.maximum(total, 1)
        core = np.where(total > 0, np.minimum(MILLI, -(-asked * MILLI // safe)), MILLI)
    return core, memory


def _taking(ledger: Ledger, request: DeviceRequest, suits: Bools, nodes: Nodes) -> Bools:
    """Which of the `suited` cards take one more like the request, regardless of amounts."""
    plane = ledger.planes[request.type]
    fits: Bools = at(plane.open, nodes) & at(suits, nodes)
    slots = slots_of(ledger, plane, request, nodes)
    fits &= at(plane.slots_free, nodes) >= slots
    if request.whole or request.unused or request.exclusive:
        fits &= at(plane.tenants, nodes) == 0
    if request.whole:
        return fits
    limit = most_tenants(ledger, plane, request, nodes)
    if limit is not None:
        fits &= at(plane.tenants, nodes) <= limit - slots
    if claims_core(request):
        fits &= at(plane.core_free, nodes) > 0
    return fits


def _alike(request: DeviceRequest) -> object:
    """A key that is equal for requests with the same `_taking`, if they accept the same cards."""
    alone = request.unused or request.exclusive
    limit = request.sharers, request.registrar, request.beside
    return request.type, request.whole, alone, limit, claims_core(request)


def fitting(
    ledger: Ledger,
    request: DeviceRequest,
    suits: Bools,
    nodes: Nodes,
    known: dict[object, Bools] | None = None,
) -> Bools:
    """Which cards serve the request now.

    Args:
        suits: the result of `suited`, for all nodes.
        known: results of `_taking` for the same nodes and `suits`; this call adds its own.
    """
    plane = ledger.planes[request.type]
    known, like = {} if known is None else known, _alike(request)
    takes = known.get(like)
    if takes is None:
        takes = known[like] = _taking(ledger, request, suits, nodes)
    core, memory = needs(plane, request, nodes)
    fits: Bools = takes & (at(plane.memory_free, nodes) >= memory)
    if not request.whole:
        fits &= at(plane.core_free, nodes) >= core
    for unit, amount in request.extras:
        fits &= at(plane.unit_columns(unit)[1], nodes) >= amount
    return fits


def with_functions(ledger: Ledger, request: DeviceRequest, nodes: Nodes) -> Bools:
    """Cards that have a virtual function that the request accepts, free or not."""
    selector = request.filter.functions
    by_kind = np.zeros(len(ledger.kinds), np.bool_)
    for kind, device in enumerate(ledger.kinds):
        if device is not None and selector is not None:
            by_kind[kind] = any(True for _ in accepted(device.functions, selector))
    found: Bools = by_kind[at(ledger.planes[request.type].kind, nodes)]
    return found


def most_tenants(
    ledger: Ledger, plane: Plane, request: DeviceRequest, nodes: Nodes
) -> Ints | int | None:
    """The most tenants that the request's protocol allows on each card; see `sharers_on`."""
    if request.sharers is None or request.registrar not in ledger.registrars:
        return request.sharers
    limits = [
        CEILING if device is None or (limit := sharers_on(request, device)) is None else limit
        for device in ledger.kinds
    ]
    found: Ints = np.array(limits, np.int64)[at(plane.kind, nodes)]
    return found


def slots_of(ledger: Ledger, plane: Plane, request: DeviceRequest, nodes: Nodes) -> Ints | int:
    """How many sharers of each card the request counts for; see `slots_on`."""
    if not request.beside or not ledger.seated:
        return 1
    slots = [1 if device is None else slots_on(request, device) for device in ledger.kinds]
    found: Ints = np.array(slots, np.int64)[at(plane.kind, nodes)]
    return found


def claims_core(request: DeviceRequest) -> bool:
    """Whether a share that asks for no compute still needs some to be left."""
    return request.claims_core and not request.core_milli and not request.core_unit


def classify(
    ledger: Ledger,
    request: DeviceRequest,
    protocol: str,
    judged: Judged | None = None,
    nodes: Nodes = slice(None),
) -> Codes:
    """Rank of each card's reason in `LEADING`; `FITS` if it serves, -1 for no card.

    Written from the last check of `card.refusal` to the first, so that the first one remains.
    """
    plane = ledger.planes[request.type]
    open_ = at(plane.open, nodes)
    ranks = np.full(open_.shape, FITS, np.int8)
    ranks[~open_] = RANK[ReasonCode.CARD_NOT_IDLE]
    tenants = at(plane.tenants, nodes)
    core_free, memory_free = at(plane.core_free, nodes), at(plane.memory_free, nodes)
    core, memory = needs(plane, request, nodes)
    for unit, amount in reversed(request.extras):
        short = at(plane.unit_columns(unit)[1], nodes) < amount
        ranks[short] = RANK[ReasonCode.INSUFFICIENT_DEVICES]
    if claims_core(request) and not request.whole:
        ranks[core_free <= 0] = RANK[ReasonCode.INSUFFICIENT_CORE]
    ranks[core_free < core] = RANK[ReasonCode.INSUFFICIENT_CORE]
    ranks[memory_free < memory] = RANK[ReasonCode.INSUFFICIENT_MEMORY]
    slots = at(plane.slots_free, nodes)
    limit = most_tenants(ledger, plane, request, nodes)
    if limit is not None:
        slots = np.minimum(slots, limit - tenants)
    ranks[slots < slots_of(ledger, plane, request, nodes)] = RANK[ReasonCode.INSUFFICIENT_SLOTS]
    if request.whole or request.unused or request.exclusive:
        busy = (tenants > 0) | ~open_
        full = (core_free <= 0) | (memory_free <= 0)
        ranks[busy] = RANK[ReasonCode.CARD_NOT_IDLE]
        ranks[busy & full] = RANK[none_left(request.type)]
    shut(ranks, at(plane.closed, nodes))
    wrong = at(
        unsuited_anywhere(ledger, request, protocol, {} if judged is None else judged), nodes
    )
    ranks[wrong < FITS] = wrong[wrong < FITS]
    ranks[at(plane.kind, nodes) == ABSENT_KIND] = -1
    return ranks


def shut(ranks: Codes, closed: Codes) -> None:
    """Write the reason of closed cards, by the column `closed`; idle cards are a separate check."""
    for position, code in enumerate(CLOSED):
        if code not in (None, ReasonCode.CARD_NOT_IDLE):
            ranks[closed == position] = RANK[code]


def leading(ranks: Codes) -> Codes:
    """The leading rank of each node: the least among its refused cards, else `FITS`."""
    refused = np.where((ranks >= 0) & (ranks < FITS), ranks, FITS)
    result: Codes = refused.min(axis=0, initial=FITS).astype(np.int8)
    return result


def host_fits(ledger: Ledger, host: Mapping[str, int], nodes: Nodes) -> Bools:
    """Nodes that have the ordinary resources."""
    fits: Bools = ledger.present[nodes].copy()
    for resource, amount in host.items():
        if amount <= 0:
            continue
        column = ledger.host_free.get(resource)
        if column is None:
            fits &= ledger.unchecked[nodes]
        else:
            fits &= column[nodes] >= amount
    return fits


# --- common requests on one node ----------------------------------------------------------------


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

"""Every card of the cluster in a few bytes, for a picture of the whole fleet.

Each fact takes a byte a card, in the order of nodes and of card numbers. So 40,000 cards take a quarter of a
megabyte, and they are made from the ledger's columns without a loop.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import numpy as np

from partage.dashboard.catalogue import HELD, Catalogue
from partage.dashboard.holdings import SEVERAL
from partage.dashboard.view_cache import Standing
from partage.extender.books import Books
from partage.inventory.plane import CLOSED, Bools, Ints, Plane
from partage.model.device import DeviceType
from partage.model.reason import ReasonCode

_CORDONED: Final = CLOSED.index(ReasonCode.CORDONED)
_MOST: Final = 255
_T = TypeVar("_T", str, tuple[str, str])

STATES: Final = ("idle", "shared", "whole", *(code.value for code in CLOSED[1:HELD] if code))
"""Meanings of a card's byte of `state`: in use, or the reason why it takes no pod."""


async def fleet_document(books: Books, standing: Standing | None = None) -> dict[str, Any]:
    """All cards; bytes become base64 in JSON.

    `nodes` are names in natural order and `cards` the number of each. Then a byte a card:
    `compute` and `memory` in percent used, and positions in the lists `protocols` (0 for no pod,
    255 for several), `states` and `kinds`.
    """
    kept = standing or Standing()
    await kept.all(books)
    ledger, catalogue = books.engine.ledger, kept.catalogue
    plane, order = ledger.planes[DeviceType.GPU], catalogue.order
    there = catalogue.models[:, order] >= 0

    def cells(values: Ints) -> Ints:
        return values[: there.shape[0]][:, order].T[there.T]

    models = cells(catalogue.models)
    kinds, kind = _listed(models, dict(enumerate(catalogue.kinds)))
    place = np.zeros(len(catalogue.kinds) + 1, np.int64)
    place[[*kind]] = [*kind.values()]
    names = {number: name for name, number in kept.holdings.protocols.items()}
    served = cells(kept.holdings.served.astype(np.int64))
    protocols, protocol = _listed(served[(served > 0) & (served < SEVERAL)], names)
    numbers = np.full(SEVERAL + 1, SEVERAL, np.int64)
    numbers[0] = 0
    numbers[[*protocol]] = [number + 1 for number in protocol.values()]
    return {
        "nodes": [ledger.node_at(index).name for index in order.tolist()],
        "cards": _bytes(there.sum(axis=0)),
        "kinds": [{"vendor": vendor, "model": model} for vendor, model in kinds],
        "protocols": ["", *protocols],
        "states": list(STATES),
        "compute": _bytes(cells(_percent(plane.core_total, plane.core_free))),
        "memory": _bytes(cells(_percent(plane.memory_total, plane.memory_free))),
        "protocol": _bytes(numbers[served]),
        "state": _bytes(cells(_states(plane, catalogue))),
        "kind": _bytes(place[models]),
    }


def _bytes(values: Ints) -> bytes:
    return np.minimum(values, _MOST).astype(np.uint8).tobytes()


def _listed(numbers: Ints, known: Mapping[int, _T]) -> tuple[list[_T], dict[int, int]]:
    """The numbers' meanings in order, and the position of each number's; the order is the same in any history."""
    there = sorted(np.unique(numbers).tolist(), key=lambda number: known[number])
    return [known[number] for number in there], {number: at for at, number in enumerate(there)}


def _percent(total: Ints, free: Ints) -> Ints:
    """The used part, from 0 to 100; 0 and 100 only if exact."""
    used = total - free
    part: Ints = (200 * used + total) // np.maximum(2 * total, 1)
    part = np.where((used > 0) & (part < 1), 1, part)
    part = np.where((used < total) & (part > 99), 99, part)
    return np.clip(part, 0, 100)


def _states(plane: Plane, catalogue: Catalogue) -> Ints:
    cordoned: Bools = np.zeros(plane.open.shape, np.bool_)
    cordoned |= catalogue.cordoned[: plane.open.shape[1]]
    closed = np.where(plane.closed == HELD, 0, plane.closed).astype(np.int64)
    closed = np.where((closed == 0) & cordoned, _CORDONED, closed)
    used = np.where(
        plane.closed == HELD, STATES.index("whole"), (plane.tenants > 0).astype(np.int64)
    )
    return np.where(closed > 0, STATES.index("whole") + closed, used)

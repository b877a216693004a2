"""The whole cluster on one page: what there is, what is used, by whom, and what waits for what.

Sums over cards come from the ledger's columns. Those over pods are made in pieces between which
the event loop serves others; they are of one state only as long as nobody writes in between, which
is good enough for a page that renews itself.
"""

import asyncio
from collections import Counter
from typing import Any, Final

import numpy as np

from partage.dashboard.fragments import Fragments
from partage.dashboard.workloads import refusal_of, waiting_pods
from partage.extender.books import Books
from partage.inventory.ledger import Ledger
from partage.inventory.plane import CLOSED, Bools, Ints, Plane
from partage.model.device import DeviceType
from partage.model.reason import ReasonCode
from partage.wire.outcomes import said

__all__ = ["Labels", "overview_document", "sums"]

_PIECE: Final = 512
"""Pods that are summed before others get their turn."""
_EXAMPLES: Final = 20
"""Waiting pods that are told in full."""


class Labels:
    """Which model each card is of, kept as long as the nodes offer what they did."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._ledger: Ledger | None = None
        self._at = -1
        self._column: Ints = np.zeros((0, 0), np.int64)
        self._names: list[tuple[str, str]] = []

    def of(self, ledger: Ledger) -> tuple[Ints, list[tuple[str, str]]]:
        """By card and node the number of its model, -1 where no card is; and (vendor, model)."""
        if ledger is not self._ledger or self._at != len(ledger.node_changes):
            self._ledger, self._at = ledger, len(ledger.node_changes)
            numbers: dict[tuple[str, str], int] = {}
            column = np.full(ledger.planes[DeviceType.GPU].core_total.shape, -1, np.int64)
            for index in ledger.index.values():
                node = ledger.node_at(index)
                for row, device in enumerate(ledger.devices(DeviceType.GPU, index)):
                    kind = said(node, device, "vendor"), said(node, device, "model") or "unknown"
                    column[row, index] = numbers.setdefault(kind, len(numbers))
            self._column, self._names = column, list(numbers)
        return self._column, self._names


async def overview_document(
    books: Books,
    labels: Labels | None = None,
    fragments: Fragments | None = None,
    *,
    names: bool = True,
) -> dict[str, Any]:
    """The overview.

    Args:
        books: what is known.
        labels: of the cards, where they are kept between calls.
        fragments: the same of fragmentation.
        names: whether waiting pods are named.
    """
    ledger = books.engine.ledger
    column, kinds = (labels or Labels()).of(ledger)
    plane = ledger.planes[DeviceType.GPU]
    there = column >= 0
    nodes = [node for node in ledger.nodes if node is not None]
    return {
        "policy": str(books.engine.policy),
        "nodes": {
            "total": len(nodes),
            "with_devices": sum(bool(node.devices) for node in nodes),
            "used": int(((plane.tenants > 0) & there).any(axis=0).sum()),
            "cordoned": sum(node.unschedulable for node in nodes),
        },
        **sums(plane, there),
        "fragmentation": (fragments or Fragments()).of(books),
        "models": [
            {"vendor": vendor, "model": model, **sums(plane, column == number)}
            for number, (vendor, model) in sorted(enumerate(kinds), key=lambda one: one[1])
        ],
        "protocols": await _protocols(books),
        **_waiting(books, names=names),
        "problems": dict(sorted(books.intake.problems.items())),
    }


def sums(plane: Plane, which: Bools) -> dict[str, Any]:
    """Amounts of those cards: how many are in which use, compute, memory and slots.

    Args:
        plane: the cards.
        which: shape (cards, nodes).
    """
    used = plane.tenants > 0
    whole = ~plane.open & (plane.closed == CLOSED.index(ReasonCode.CARD_NOT_IDLE))
    closed = ~plane.open & ~whole
    kinds = {"idle": ~used & ~closed, "shared": used & ~whole, "whole": whole, "closed": closed}
    return {
        "cards": {
            "total": int(which.sum()),
            **{name: int((part & which).sum()) for name, part in kinds.items()},
        },
        **{
            name: {
                "total": int(total[which].sum()),
                "used": int((total - free)[which].sum()),
            }
            for name, total, free in (
                ("core_milli", plane.core_total, plane.core_free),
                ("memory_bytes", plane.memory_total, plane.memory_free),
            )
        },
        "slots": {
            "total": int(plane.slots_total[which].sum()),
            "used": int(plane.tenants[which].sum()),
        },
    }


async def _protocols(books: Books) -> list[dict[str, Any]]:
    """What is held, by the protocol that asked for it."""
    pods: Counter[str] = Counter()
    cores: Counter[str] = Counter()
    memories: Counter[str] = Counter()
    for number, held in enumerate(list(books.engine.ledger.allocations()), 1):
        for protocol in {grant.protocol for grant in held.grants}:
            pods[protocol] += 1
        for grant in held.grants:
            if grant.type is DeviceType.GPU:
                cores[grant.protocol] += grant.core_milli
                memories[grant.protocol] += grant.memory_bytes
        if not number % _PIECE:
            await asyncio.sleep(0)
    return [
        {
            "protocol": name, "pods": pods[name], "core_milli": cores[name],
            "memory_bytes": memories[name],
        }
        for name in sorted(pods)
    ]  # fmt: skip


def _waiting(books: Books, *, names: bool) -> dict[str, Any]:
    entries = list(waiting_pods(books))
    codes = Counter(
        refusal.code.value if (refusal := refusal_of(books, entry)) else "" for entry in entries
    )
    placed = sum(
        entry.pod.node is not None and not entry.pod.finished
        for entry in books.intake.pods().values()
    )
    return {
        "pods": {"placed": placed, "waiting": len(entries)},
        "waiting_by_code": [{"code": code, "pods": n} for code, n in codes.most_common()],
        "waiting": [
            {
                "namespace": entry.pod.namespace,
                "name": entry.pod.name,
                "code": refusal.code.value if (refusal := refusal_of(books, entry)) else None,
                "message": refusal.message if refusal else None,
            }
            for entry in sorted(entries, key=lambda e: (-e.pod.priority, e.pod.key))[:_EXAMPLES]
        ]
        if names
        else [],
    }

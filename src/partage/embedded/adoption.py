"""The objects of a workload: those that it controls and its selector matches.

A workload adopts a matching object without a controller, such as a ReplicaSet after `kubectl delete
--cascade=orphan`. It releases one whose labels no longer match, such as a pod that a person takes out to examine.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from partage.apiserver import Record
from partage.apiserver.selectors import parse_labels
from partage.model.selector import Selector


def controller(record: Record) -> Mapping[str, Any] | None:
    """The reference to the controller of an object."""
    references = record.metadata.get("ownerReferences") or ()
    return next((one for one in references if one.get("controller")), None)


def owned(records: Iterable[Record], uid: str) -> list[Record]:
    """Those of the objects that this owner controls."""
    return [one for one in records if (by := controller(one)) is not None and by.get("uid") == uid]


def selector(workload: Record) -> Selector | None:
    """The selector of a workload's objects; None without one, which selects nothing."""
    written = workload.value["spec"].get("selector") or {}
    return parse_labels(written) if written else None


def selects(picks: Selector | None, record: Record) -> bool:
    """Whether a workload's selector matches an object."""
    return picks is not None and picks.matches(record.metadata.get("labels") or {})


def claim(workload: Record, records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Those of these objects that a workload adopts, and those that it releases; objects in deletion keep their owner."""
    taken, let_go = list[Record](), list[Record]()
    picks = selector(workload)
    for one in records:
        if one.metadata.get("deletionTimestamp"):
            continue
        by = controller(one)
        if by is None:
            if selects(picks, one):
                taken.append(one)
        elif by.get("uid") == workload.uid and not selects(picks, one):
            let_go.append(one)
    return taken, let_go

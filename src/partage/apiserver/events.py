"""Events have two forms: the core's, which is stored, and that of `events.k8s.io`."""

from typing import Any, Final

_NAMES: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_BACK: Final = {new: old for old, new in _NAMES.items()}


def outward(value: dict[str, Any]) -> dict[str, Any]:
    """A stored event as `events.k8s.io/v1` shows it."""
    found = {_NAMES.get(key, key): inner for key, inner in value.items()}
    found["apiVersion"] = "events.k8s.io/v1"
    return found


def inward(value: dict[str, Any]) -> dict[str, Any]:
    """An `events.k8s.io/v1` event as it is stored."""
    found = {_BACK.get(key, key): inner for key, inner in value.items()}
    found["apiVersion"] = "v1"
    return found

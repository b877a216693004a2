"""The forms of the API that the fake server speaks: paths, selectors, patches, Status."""

import json
from typing import Any, NamedTuple

__all__ = ["Refused", "Target", "json_patch", "line", "merge", "selected", "status", "target_of"]


class Refused(Exception):
    """An answer of 400 or more."""

    def __init__(
        self, status: int, reason: str, message: str, causes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes


class Target(NamedTuple):
    """What a path is about; empty where it does not say."""

    collection: str
    namespace: str | None
    name: str
    subresource: str


def target_of(path: str) -> Target:
    """`/api/v1/…` or `/apis/<group>/<version>/…`, taken apart."""
    parts = path.strip("/").split("/")
    roots = 2 if parts[0] == "api" else 3
    if parts[0] not in {"api", "apis"} or len(parts) <= roots:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    prefix, rest = "/".join(parts[:roots]), parts[roots:]
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    rest += ["", ""]
    return Target(f"/{prefix}/{rest[0]}", namespace, rest[1], rest[2])


def selected(item: Any, query: dict[str, str]) -> bool:
    """Equality selectors, joined by commas."""
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = term.partition("=")
        if labels.get(key) != value.lstrip("="):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        key, _, value = term.partition("=")
        found = item
        for part in key.split("."):
            found = (found or {}).get(part)
        if (found or "") != value.lstrip("="):
            return False
    return True


def json_patch(target: Any, step: Any) -> None:
    """One operation of a JSON patch on objects: add, replace, remove, test."""
    *parents, last = [
        part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
    ]
    for part in parents:
        target = target.setdefault(part, {})
    if step["op"] == "test":
        if target.get(last) != step["value"]:
            raise Refused(422, "Invalid", f"test of {step['path']} failed")
    elif step["op"] == "remove":
        target.pop(last, None)
    else:
        target[last] = step["value"]


def line(kind: str, item: Any) -> bytes:
    """One event of a watch."""
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def status(code: int, reason: str, message: str, causes: tuple[str, ...] = ()) -> Any:
    """A Status document."""
    details = {"causes": [{"reason": cause} for cause in causes]} if causes else {}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Success" if code < 400 else "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


def merge(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result

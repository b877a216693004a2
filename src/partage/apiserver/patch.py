"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396) over plain values.

Neither changes its arguments.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import msgspec

from partage.apiserver.decoding import kind_of

_MOST: Final = 10_000
_MOST_COPIED: Final = 3 * 2**20
"""Most bytes that the `copy` operations of one patch may add; each could double the document."""
_END: Final = "-"


_encode: Final = msgspec.json.Encoder().encode


class PatchError(ValueError):
    """A patch that is malformed or does not fit the document."""


class Undecodable(PatchError):
    """A patch that is no list of operations, or no object."""


class Unmergeable(PatchError):
    """A strategic merge patch with an unknown directive, or an item without its list's merge key."""


class TestFailed(PatchError):
    """A `test` operation of a JSON Patch found another value."""


def merge_patch(value: Any, patch: Any) -> Any:
    """`value` with `patch` merged in: null removes, maps merge, everything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(value) if isinstance(value, Mapping) else {}
    for key, inner in patch.items():
        if inner is None:
            found.pop(key, None)
        else:
            found[key] = merge_patch(found.get(key), inner)
    return found


def json_patch(value: Any, patch: Any) -> Any:
    """`value` after the operations of `patch`. Raises `TestFailed`; `PatchError`: malformed, or an absent path."""
    wrong = (
        [patch]
        if not isinstance(patch, list)
        else [o for o in patch if not isinstance(o, Mapping)]
    )
    if wrong:
        many = "" if isinstance(patch, list) else "[]"
        raise Undecodable(
            f"error decoding patch: json: cannot unmarshal {kind_of(wrong[0])} into Go value of type "
            f"{many}handlers.jsonPatchOp"
        )
    if len(patch) > _MOST:
        raise PatchError(
            f"The allowed maximum operations in a JSON patch is {_MOST}, got {len(patch)}"
        )
    value, copied = deepcopy(value), 0
    for operation in patch:
        if operation.get("op") == "copy":
            copied += len(_encode(_find(value, _pointer(operation.get("from")))))
            if copied > _MOST_COPIED:
                raise PatchError(
                    f"Unable to complete the copy, the accumulated size increase of copy is {copied}, "
                    f"exceeding the limit {_MOST_COPIED}"
                )
        value = _apply(value, operation)
    return value


def _apply(value: Any, operation: Mapping[str, Any]) -> Any:
    kind = operation.get("op")
    path = _pointer(operation.get("path"))
    if kind in ("add", "replace", "test") and "value" not in operation:
        raise PatchError(f"operation {kind} needs a value")
    if kind == "test":
        if not _same(_present(value, path), operation["value"]):
            raise TestFailed(f"testing value {operation.get('path')} failed: test failed")
        return value
    if kind == "add":
        return _add(value, path, deepcopy(operation["value"]))
    if kind == "replace":
        _find(value, path)
        return _replace(value, path, deepcopy(operation["value"]))
    if kind == "remove":
        return _remove(value, path)
    if kind in ("move", "copy"):
        source = _pointer(operation.get("from"))
        found = _find(value, source)
        if kind == "copy":
            return _add(value, path, deepcopy(found))
        if path[: len(source)] == source and path != source:
            raise PatchError("a value cannot be moved into itself")
        return _add(_remove(value, source), path, found)
    raise PatchError(f"unexpected kind of operation: {kind!r}")


def _pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchError(f"{text!r} is not a JSON pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(part: str, most: int) -> int:
    if not part.isdecimal() or not part.isascii() or len(part) > 9 or int(part) > most:
        raise PatchError(f"invalid index referenced: {part}")
    return int(part)


def _present(value: Any, path: Sequence[str]) -> Any:
    """The value at a path; None also where an object lacks the last key."""
    if path and isinstance(parent := _find(value, path[:-1]), Mapping):
        return parent.get(path[-1])
    return _find(value, path)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal in JSON, where `true` is not 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _find(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        if isinstance(value, Mapping):
            if part not in value:
                raise PatchError(f"path /{'/'.join(path)} does not exist: missing key {part}")
            value = value[part]
        elif isinstance(value, list):
            value = value[_index(part, len(value) - 1)]
        else:
            raise PatchError(f"path /{'/'.join(path)} does not exist")
    return value


def _add(value: Any, path: Sequence[str], new: Any) -> Any:
    if not path:
        return new
    parent = _find(value, path[:-1])
    if isinstance(parent, dict):
        parent[path[-1]] = new
    elif isinstance(parent, list):
        at = len(parent) if path[-1] == _END else _index(path[-1], len(parent))
        parent.insert(at, new)
    else:
        raise PatchError(f"path /{'/'.join(path)} does not exist")
    return value


def _replace(value: Any, path: Sequence[str], new: Any) -> Any:
    if not path:
        return new
    parent, last = _find(value, path[:-1]), path[-1]
    parent[last if isinstance(parent, dict) else _index(last, len(parent) - 1)] = new
    return value


def _remove(value: Any, path: Sequence[str]) -> Any:
    _find(value, path)
    if not path:
        raise PatchError("the whole document cannot be removed")
    parent = _find(value, path[:-1])
    if isinstance(parent, dict):
        del parent[path[-1]]
    else:
        del parent[_index(path[-1], len(parent) - 1)]
    return value

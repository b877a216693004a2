"""Server-side apply: merging an applied configuration, conflicts, and the record of owners."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from partage.apiserver.ownership import (
    Path,
    item_key,
    leaves,
    readable,
    set_item,
    to_document,
    to_paths,
    within,
)
from partage.apiserver.status import ApiError
from partage.apiserver.strategic import union
from partage.wire.field_types import Type

_PLAIN: Final = Type("any")


@dataclass(frozen=True, slots=True)
class Manager:
    """A writer, and the kind of its write.

    Attributes:
        operation: `Apply` or `Update`.
        time: in Kubernetes' format.
        subresource: such as `status`; empty for the main one.
    """

    name: str
    operation: str
    version: str
    time: str
    subresource: str = ""

    def entry(self, paths: set[Path]) -> dict[str, Any]:
        """Its entry of `managedFields`."""
        return {
            "manager": self.name,
            "operation": self.operation,
            "apiVersion": self.version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_document(paths),
            **({"subresource": self.subresource} if self.subresource else {}),
        }

    def is_(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry is this manager's."""
        return (
            entry.get("manager") == self.name
            and entry.get("operation") == self.operation
            and entry.get("subresource", "") == self.subresource
        )


def record_update(
    new: dict[str, Any], old: Mapping[str, Any] | None, type_: Type, manager: Manager
) -> None:
    """Writes the owners of fields into `new` after an update (or creation) that was not an apply."""
    after = _within(leaves(new, type_), manager)
    before = _within(leaves(old, type_), manager) if old is not None else {}
    changed = {p for p, v in after.items() if p not in before or before[p] != v}
    removed = set(before) - set(after)
    entries = list(old["metadata"].get("managedFields") or ()) if old is not None else []
    if not changed and not removed and old is not None:
        _keep(new, entries)
        return
    own = [_owned(one) for one in entries if manager.is_(one)]
    kept = list(_without((one for one in entries if not manager.is_(one)), changed | removed))
    mine = changed.union(*own) - removed
    if mine:
        kept.append(manager.entry(mine))
    _keep(new, kept)


def _owned(entry: Mapping[str, Any]) -> set[Path]:
    return to_paths(entry.get("fieldsV1"))


def _without(entries: Iterable[dict[str, Any]], gone: set[Path]) -> Iterator[dict[str, Any]]:
    """Entries without paths that they own no longer; one without any other is left out."""
    for entry in entries:
        paths = _owned(entry)
        if left := paths - gone:
            yield entry if left == paths else {**entry, "fieldsV1": to_document(left)}


def _within(paths: dict[Path, Any], manager: Manager) -> dict[Path, Any]:
    """The paths that this kind of write can change: the status, or all but the status."""
    status = manager.subresource == "status"
    return {
        path: value
        for path, value in paths.items()
        if path[0] == "f:metadata" or (path[0] == "f:status") is status
    }


def _keep(value: dict[str, Any], entries: Sequence[Any]) -> None:
    metadata = {k: v for k, v in value["metadata"].items() if k != "managedFields"}
    if entries:
        metadata["managedFields"] = list(entries)
    value["metadata"] = metadata


def apply(
    live: Mapping[str, Any] | None,
    wanted: dict[str, Any],
    type_: Type,
    manager: Manager,
    *,
    force: bool,
) -> dict[str, Any]:
    """The object after `manager` applied `wanted` to `live`.

    Raises `ApiError`: 409, another manager owns a field that would change, and `force` is not set.
    """
    claimed = _within(leaves(wanted, type_), manager)
    if live is None:
        value = {**wanted, "metadata": dict(wanted["metadata"])}
        _keep(value, [manager.entry(set(claimed))])
        return value
    entries = _owners(live, type_, manager)
    before = leaves(live, type_)
    differs = {p for p, v in claimed.items() if p not in before or before[p] != v}
    others = [one for one in entries if not manager.is_(one)]
    own = next((one for one in entries if manager.is_(one)), None)
    mine = _owned(own) if own is not None else set()
    conflicts = [(one, found) for one in others if (found := _owned(one) & differs)]
    if conflicts and not force:
        raise _conflict(conflicts)
    merged = _merge(dict(live), wanted, type_)
    owned_elsewhere = set[Path]().union(*map(_owned, others))
    dropped = mine - set(claimed) - owned_elsewhere
    merged = _prune(merged, type_, dropped, owned_elsewhere | set(claimed))
    same = mine == set(claimed) and leaves(merged, type_) == before
    kept = [
        *_without(others, differs),
        own if own is not None and same else manager.entry(set(claimed)),
    ]
    _keep(merged, kept)
    return merged


def _owners(live: Mapping[str, Any], type_: Type, manager: Manager) -> list[dict[str, Any]]:
    """The live entries; an object without any was written before the first apply."""
    entries = live["metadata"].get("managedFields") or []
    if entries:
        return list(entries)
    earlier = Manager("before-first-apply", "Update", manager.version, manager.time)
    return [earlier.entry(set(leaves(live, type_)))]


def _conflict(conflicts: Sequence[tuple[Mapping[str, Any], set[Path]]]) -> ApiError:
    causes: list[dict[str, str]] = []
    texts: dict[str, list[str]] = {}
    for entry, paths in conflicts:
        how = f' with subresource "{entry["subresource"]}"' if entry.get("subresource") else ""
        using = "" if entry.get("operation") == "Apply" else f" using {entry.get('apiVersion')}"
        manager = f'"{entry.get("manager")}"{how}{using}'
        who = f"conflict with {manager}"
        fields = sorted(readable(path) for path in paths)
        texts[manager] = fields
        causes.extend(
            {"reason": "FieldManagerConflict", "message": who, "field": field} for field in fields
        )
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines = [
            line
            for manager, fields in sorted(texts.items())
            for line in (f"conflicts with {manager}:", *(f"- {field}" for field in fields))
        ]
        message = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
    return ApiError(409, "Conflict", message, {"causes": causes})


def _merge(value: Any, wanted: Any, type_: Type) -> Any:
    if isinstance(wanted, Mapping) and isinstance(value, Mapping) and not type_.atomic:
        found = dict(value)
        for key, inner in wanted.items():
            found[key] = _merge(value[key], inner, within(type_, key)) if key in value else inner
        return found
    if isinstance(wanted, list) and isinstance(value, list) and type_.listing == "map":
        item_type = type_.item or _PLAIN
        fresh = {item_key(item, type_, i): item for i, item in enumerate(wanted)}
        have = {item_key(item, type_, i): item for i, item in enumerate(value)}
        joined = [
            _merge(item, fresh[key], item_type) if key in fresh else item
            for key, item in have.items()
        ]
        return joined + [item for key, item in fresh.items() if key not in have]
    if isinstance(wanted, list) and isinstance(value, list) and type_.listing == "set":
        return union(value, wanted)
    return wanted


def _prune(
    value: dict[str, Any], type_: Type, dropped: set[Path], kept: set[Path]
) -> dict[str, Any]:
    """`value` without the paths that no manager owns any longer."""
    if not dropped:
        return value
    parents = {path[:n] for path in kept for n in range(len(path) + 1)}
    found: dict[str, Any] = _pruned(value, type_, (), dropped, parents)
    return found


def _pruned(value: Any, type_: Type, at: Path, dropped: set[Path], kept: set[Path]) -> Any:
    if isinstance(value, Mapping) and not type_.atomic:
        found: dict[str, Any] = {}
        for key, inner in value.items():
            path = (*at, f"f:{key}")
            if path in dropped and path not in kept:
                continue
            after = _pruned(inner, within(type_, key), path, dropped, kept)
            if after or not inner or after == inner:
                found[key] = after
        return found
    if isinstance(value, list) and type_.listing == "map":
        items = []
        for index, item in enumerate(value):
            path = (*at, item_key(item, type_, index))
            if path not in dropped or path in kept:
                items.append(_pruned(item, type_.item or _PLAIN, path, dropped, kept))
        return items
    if isinstance(value, list) and type_.listing == "set":
        return [
            item
            for item in value
            if (path := (*at, set_item(item))) not in dropped or path in kept
        ]
    return value

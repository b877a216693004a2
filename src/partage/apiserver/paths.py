"""Parses a request's path and query into a call."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from partage.apiserver.admission import User
from partage.apiserver.calls import Call
from partage.apiserver.kinds import Kind, Registry
from partage.apiserver.listing import Selection
from partage.apiserver.selectors import FieldSelector, parse_selector
from partage.apiserver.status import bad_request, invalid_options, unknown_path

_NAMESPACE_PARTS: Final = ("status", "finalize")
_DEPRECATED: Final = {
    "endpoints": ("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",)
}
"""Warnings with every answer about a resource."""
_VALIDATION: Final = ("Ignore", "Strict", "Warn")


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a path; `watch` marks one of the old `/watch/` paths."""

    group: str
    version: str
    resource: str
    namespace: str = ""
    name: str = ""
    sub: str = ""
    watch: bool = False


def target_of(parts: Sequence[str]) -> Target | None:
    """The target of `/api/v1/...` or `/apis/<group>/<version>/...`; None for other paths."""
    if len(parts) >= 3 and parts[0] == "api":
        group, version, rest = "", parts[1], list(parts[2:])
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, rest = parts[1], parts[2], list(parts[3:])
    else:
        return None
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in _NAMESPACE_PARTS:
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3 or not all(rest) or ("namespaces" in rest[1:] and not rest[0]):
        return None
    resource, name, sub = (*rest, "", "")[:3]
    return Target(group, version, resource, namespace, name, sub, watch)


def _deprecation(kind: Kind) -> Iterator[str]:
    """A custom resource's warning about a deprecated version."""
    version = kind.definition or {}
    if version.get("deprecated"):
        yield version.get("deprecationWarning") or f"{kind.api_version} {kind.kind} is deprecated"


def call_for(registry: Registry, target: Target, query: Mapping[str, str], user: User) -> Call:
    """The call of a request. Raises `ApiError`: 404 for an unknown resource, 422 for impossible options."""
    kind = registry.find(target.group, target.version, target.resource)
    if kind is None:
        raise unknown_path()
    if target.sub and kind.sub(target.sub) is None:
        raise unknown_path()
    if target.namespace and not kind.namespaced:
        raise unknown_path()
    if kind.namespaced and target.name and not target.namespace:
        raise unknown_path()
    dry_run = query.get("dryRun", "")
    options = "UpdateOptions" if target.name else "CreateOptions"
    if dry_run not in ("", "All"):
        raise invalid_options(options, _unsupported("dryRun", dry_run, '"All"'))
    validation = query.get("fieldValidation", "") or "Warn"
    if validation not in _VALIDATION:
        known = '"Ignore", "Strict", "Warn"'
        raise invalid_options(options, _unsupported("fieldValidation", validation, known))
    manager = query.get("fieldManager", "")
    if len(manager) > 128:
        raise invalid_options(options, "fieldManager: Too long: may not be more than 128 bytes")
    if not manager.isprintable():
        raise invalid_options(options, "fieldManager: Invalid value: should be printable")
    return Call(
        warnings=[*_DEPRECATED.get(kind.resource, ()), *_deprecation(kind)],
        kind=kind,
        namespace=target.namespace,
        name=target.name,
        sub=target.sub,
        user=user,
        dry_run=bool(dry_run),
        manager=manager,
        force=flag(query, "force"),
        validation=cast("Literal['Ignore', 'Strict', 'Warn']", validation),
    )


def _unsupported(name: str, value: str, known: str) -> str:
    return f'{name}: Unsupported value: "{value}": supported values: {known}'


def flag(query: Mapping[str, str], name: str) -> bool:
    """A yes-or-no parameter."""
    return query.get(name, "").lower() in ("true", "1", "t")


def number(query: Mapping[str, str], name: str) -> int | None:
    """A number parameter, None if absent. Raises `ApiError`: 400, it is no number."""
    text = query.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise bad_request(
            f'unable to decode parameter {name}: strconv.ParseInt: parsing "{text[:64]}": '
            "invalid syntax"
        )
    return int(text)


def selection_of(call: Call, query: Mapping[str, str]) -> Selection:
    """The selected objects of a list, watch or collection delete. Raises `ApiError`: 400, malformed selectors."""
    fields = query.get("fieldSelector", "")
    if call.name:
        fields = f"{fields},metadata.name={call.name}" if fields else f"metadata.name={call.name}"
    return Selection(
        parse_selector(query.get("labelSelector", "").strip()),
        FieldSelector.parse(fields, call.kind.fields(), call.kind.unknown_field),
        call.kind.convert,
    )

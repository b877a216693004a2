"""OpenAPI documents, made from the same shapes that decoding uses.

Enough for kubectl: field validation on the server (every PATCH tells its `fieldValidation`
parameter), `explain`, and the merge keys that a client-side apply computes its patch with.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from partage.apiserver.descriptions import OF_EVERY_OBJECT, SENTENCES
from partage.apiserver.kinds import Kind, Registry
from partage.wire.field_types import META, Field, Type, catalogue

_SCALARS: Final[dict[str, dict[str, Any]]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "format": "int32"},
    "long": {"type": "integer", "format": "int64"},
    "float": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"type": "string"},
    "intorstring": {"type": "string", "format": "int-or-string"},
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
_REFERENCE: Final = "https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.36/"
_GVK: Final = "x-kubernetes-group-version-kind"
_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
_PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
)
_STRATEGIC: Final = "application/strategic-merge-patch+json"


def index(registry: Registry) -> dict[str, Any]:
    """What `/openapi/v3` answers."""
    paths = {}
    for group, versions in registry.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            url = f"/openapi/v3/{path}?hash={registry.counter}"
            paths[path] = {"serverRelativeURL": url}
    return {"paths": paths}


def v3(registry: Registry, group: str, version: str) -> dict[str, Any] | None:
    """What `/openapi/v3/apis/<group>/<version>` answers; None when nothing is served there."""
    kinds = registry.served(group, version)
    if not kinds:
        return None
    schemas = _schemas(kinds, "#/components/schemas/")
    paths = {path: item for kind in kinds for path, item in _paths(kind, version=3)}
    return {
        "openapi": "3.0.0",
        "info": _info(),
        "paths": paths,
        "components": {"schemas": schemas},
    }


def v2(registry: Registry) -> dict[str, Any]:
    """What `/openapi/v2` answers."""
    kinds = list(registry)
    return {
        "swagger": "2.0",
        "info": _info(),
        "paths": {path: item for kind in kinds for path, item in _paths(kind, version=2)},
        "definitions": _schemas(kinds, "#/definitions/"),
    }


def _info() -> dict[str, str]:
    return {"title": "Kubernetes", "version": "v1.36.6+partage"}


def schema_name(kind: Kind) -> str:
    """The name of a kind's schema; that of a custom one has its group turned round."""
    if kind.type.name:
        return kind.type.name
    return ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])


def _schemas(kinds: list[Kind], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in kinds:
        name = schema_name(kind)
        custom = kind.definition
        if custom is None:
            _add(kind.type, found, prefix)
        else:
            _add(kind.type.fields["metadata"].type, found, prefix)
            found[name] = _custom(custom["schema"]["openAPIV3Schema"], prefix)
        gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        found[name] = {**found[name], _GVK: [gvk]}
        list_gvk = {**gvk, "kind": f"{kind.kind}List"}
        found[f"{name}List"] = {
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "items": {"type": "array", "items": {"$ref": prefix + name}},
                "metadata": {"type": "object"},
            },
            _GVK: [list_gvk],
        }
    return found


def _custom(schema: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """A definition's own schema, with what every object has."""
    metadata = _type(catalogue()[f"{META}ObjectMeta"], prefix)
    head = {
        "apiVersion": {"type": "string", "description": OF_EVERY_OBJECT["apiVersion"]},
        "kind": {"type": "string", "description": OF_EVERY_OBJECT["kind"]},
        "metadata": metadata | {"description": OF_EVERY_OBJECT["metadata"]},
    }
    return {**schema, "properties": {**(schema.get("properties") or {}), **head}}


def _add(type_: Type, found: dict[str, Any], prefix: str) -> None:
    """Adds a struct's schema and those it refers to."""
    if type_.form in ("list", "map"):
        if type_.item is not None:
            _add(type_.item, found, prefix)
        return
    if type_.form != "struct" or not type_.name or type_.name in found:
        return
    made: dict[str, Any] = {"type": "object", "description": _described(type_.name)}
    found[type_.name] = made
    if type_.fields:
        made["properties"] = {f.name: _field(f, type_, prefix) for f in type_.fields.values()}
    required = [f.name for f in type_.fields.values() if f.required]
    if required:
        made["required"] = required
    if type_.atomic:
        made["x-kubernetes-map-type"] = "atomic"
    for field in type_.fields.values():
        _add(field.type, found, prefix)


def _described(name: str) -> str:
    """What a struct is, where we say so, and where Kubernetes documents it."""
    *packages, version, kind = name.split(".")
    group = "core" if packages[-1] == "core" else packages[-1]
    anchor = f"{kind}-{version}-{group}".lower()
    return f"{SENTENCES.get(kind, '')} Documented at {_REFERENCE}#{anchor}".lstrip()


def _field(field: Field, of: Type, prefix: str) -> dict[str, Any]:
    made = _type(field.type, prefix)
    sentence = SENTENCES.get(f"{of.name.rpartition('.')[2]}.{field.name}")
    if sentence:
        made["description"] = sentence
    strategies = [name for name in (field.patch, "retainKeys" if field.retain else "") if name]
    if strategies:
        made["x-kubernetes-patch-strategy"] = ",".join(strategies)
    if field.merge_key:
        made["x-kubernetes-patch-merge-key"] = field.merge_key
    return made


def _type(type_: Type, prefix: str) -> dict[str, Any]:
    if type_.form == "list":
        made: dict[str, Any] = {"type": "array", "items": _type(type_.item or type_, prefix)}
        made["x-kubernetes-list-type"] = type_.listing
        if type_.keys:
            made["x-kubernetes-list-map-keys"] = list(type_.keys)
        return made
    if type_.form == "map":
        return {
            "type": "object",
            "additionalProperties": _type(type_.item or type_, prefix),
            **({"x-kubernetes-map-type": "atomic"} if type_.atomic else {}),
        }
    if type_.form == "struct":
        if not type_.name:
            return {"type": "object"}
        reference = {"$ref": prefix + type_.name}
        return {"allOf": [reference], "default": {}} if "components" in prefix else reference
    return dict(_SCALARS[type_.form])


def _paths(kind: Kind, *, version: int) -> Iterator[tuple[str, dict[str, Any]]]:
    head = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    base = (
        f"{head}/namespaces/{{namespace}}/{kind.plural}"
        if kind.namespaced
        else (f"{head}/{kind.plural}")
    )
    if kind.namespaced:
        yield f"{head}/{kind.plural}", {"get": _operation(kind, "list", version)}
    collection = {"get": _operation(kind, "list", version)}
    collection["post"] = _operation(kind, "post", version)
    yield base, collection
    if "get" in kind.verbs:
        verbs = ("get", "put", "patch", "delete")
        yield f"{base}/{{name}}", {verb: _operation(kind, verb, version) for verb in verbs}


def _operation(kind: Kind, verb: str, version: int) -> dict[str, Any]:
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    where = {"schema": {"type": "string"}} if version == 3 else {"type": "string"}
    media = list(_PATCHES) if kind.definition is not None else [*_PATCHES, _STRATEGIC]
    made: dict[str, Any] = {
        "operationId": f"{verb}{kind.group.title().replace('.', '')}{kind.version}{kind.kind}",
        "x-kubernetes-action": verb,
        _GVK: gvk,
        "parameters": [{"name": name, "in": "query", **where} for name in _PARAMETERS]
        if verb in ("patch", "post", "put")
        else [],
        "responses": {"200": {"description": "OK"}},
    }
    if verb == "patch" and version == 3:
        made["requestBody"] = {"content": {one: {"schema": {}} for one in media}}
    elif verb == "patch":
        made["consumes"] = media
    return made

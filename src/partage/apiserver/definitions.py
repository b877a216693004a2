"""CustomResourceDefinitions: their required content, and the resources that they define."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from partage.apiserver import builtin, naming
from partage.apiserver.kinds import Kind
from partage.apiserver.problems import Problems
from partage.apiserver.status import qualified
from partage.apiserver.structural import complete

_SCOPES: Final = ("Cluster", "Namespaced")


@cache
def _built_in() -> frozenset[str]:
    """Names that no definition may have: its objects would be mixed with others, and go with it."""
    return frozenset(qualified(kind.plural, kind.group) for kind in builtin.kinds())


def fill_definition(value: dict[str, Any]) -> None:
    """Fills in a definition, in place."""
    spec = value.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
    spec.setdefault("conversion", {"strategy": "None"})


def check_definition(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports problems of a definition."""
    spec = value["spec"]
    names = spec.get("names") or {}
    for key in ("plural", "kind"):
        if not names.get(key):
            problems.required(f"spec.names.{key}")
    if not spec.get("group"):
        problems.required("spec.group")
    elif "." not in spec["group"]:
        problems.invalid("spec.group", spec["group"], "should be a domain with at least one dot")
    for key in ("plural", "singular"):
        for why in naming.service_name(names[key]) if names.get(key) else ():
            problems.invalid(f"spec.names.{key}", names[key], why)
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if value["metadata"].get("name") != wanted:
        problems.invalid(
            "metadata.name",
            value["metadata"].get("name", ""),
            'must be spec.names.plural+"."+spec.group',
        )
    if wanted in _built_in():
        problems.forbidden("spec.names.plural", f"{wanted} is a resource of the API server itself")
    if spec.get("scope") not in _SCOPES:
        problems.unsupported("spec.scope", spec.get("scope", ""), _SCOPES)
    _check_versions(spec.get("versions") or [], problems)


def _check_versions(versions: list[Any], problems: Problems) -> None:
    if not versions:
        problems.required("spec.versions")
    stored = [one for one in versions if one.get("storage")]
    if len(stored) != 1:
        problems.invalid(
            "spec.versions",
            [one.get("name", "") for one in versions],
            "must have exactly one version marked as storage version",
        )
    seen: set[str] = set()
    for index, one in enumerate(versions):
        where = f"spec.versions[{index}]"
        for why in naming.service_name(one.get("name", "")):
            problems.invalid(f"{where}.name", one.get("name", ""), why)
        if one.get("name") in seen:
            problems.duplicate(f"{where}.name", one.get("name"))
        seen.add(one.get("name", ""))
        schema = (one.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, dict):
            problems.required(f"{where}.schema.openAPIV3Schema", "schemas are required")
            continue
        if schema.get("type") != "object":
            problems.invalid(
                f"{where}.schema.openAPIV3Schema.type",
                schema.get("type", ""),
                "must be object at the root",
            )
        _check_schema(schema, f"{where}.schema.openAPIV3Schema", problems, 0)


_KEYWORDS: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(
        ("$ref", "description", "format", "pattern", "title", "type", "x-kubernetes-list-type"),
        (str,),
    ),
    **dict.fromkeys(
        ("exclusiveMaximum", "exclusiveMinimum", "nullable", "uniqueItems"),
        (bool,),
    ),
    **dict.fromkeys(
        ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"),
        (int,),
    ),
    **dict.fromkeys(("maximum", "minimum", "multipleOf"), (int, float)),
    **dict.fromkeys(
        ("allOf", "anyOf", "enum", "oneOf", "required", "x-kubernetes-list-map-keys"), (list,)
    ),
    **dict.fromkeys(("items", "not", "properties"), (dict,)),
    "additionalProperties": (bool, dict),
}
"""The types of a schema's keywords. OpenAPI documents have all of them, so one of another type would spoil these."""
_LARGEST: Final = 2**64


def _is(value: Any, kinds_: tuple[type, ...]) -> bool:
    """Whether a value is of one of these types, and no number that clients cannot read.

    null is no value, but refused for lists and objects, whose readers would have to expect it.
    """
    if value is None:
        return kinds_ not in ((dict,), (list,))
    if isinstance(value, bool):
        return bool in kinds_
    large = isinstance(value, int) and abs(value) > _LARGEST
    return isinstance(value, kinds_) and not large


def _check_schema(schema: Any, field: str, problems: Problems, depth: int) -> None:
    """Reports problems that would fail a schema's use later."""
    if not isinstance(schema, dict) or depth > 100:
        problems.invalid(field, "", "must be an object, nested less than 100 levels")
        return
    for key, kinds_ in _KEYWORDS.items():
        if key in schema and not _is(schema[key], kinds_):
            problems.invalid(f"{field}.{key}", "", "has a wrong type")
            return
    if any(
        not isinstance(one, str)
        for key in ("required", "x-kubernetes-list-map-keys")
        for one in schema.get(key, ())
    ):
        problems.invalid(field, "", "names of fields must be strings")
    for name, inner in schema.get("properties", {}).items():
        _check_schema(inner, f"{field}.properties[{name}]", problems, depth + 1)
    for key in ("allOf", "anyOf", "oneOf"):
        for index, inner in enumerate(schema.get(key, ())):
            _check_schema(inner, f"{field}.{key}[{index}]", problems, depth + 1)
    for key in ("items", "not"):
        if key in schema:
            _check_schema(schema[key], f"{field}.{key}", problems, depth + 1)
    if isinstance(schema.get("additionalProperties"), dict):
        _check_schema(
            schema["additionalProperties"], f"{field}.additionalProperties", problems, depth + 1
        )


def accepted(value: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The status of a served definition."""
    names = {k: v for k, v in value["spec"]["names"].items() if v}
    old = (value.get("status") or {}).get("conditions") or [{"lastTransitionTime": now}]
    since = old[0].get("lastTransitionTime", now)
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": since,
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [one.get("name", "") for one in value["spec"]["versions"] if one.get("storage")]
    return {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}


def kinds(value: Mapping[str, Any]) -> Iterator[Kind]:
    """A definition's resources, one for each served version."""
    spec, names = value["spec"], value["spec"]["names"]
    group = spec["group"]
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        at, kind = version["name"], names["kind"]
        parts = version.get("subresources") or {}
        yield Kind(
            group=group,
            version=at,
            kind=kind,
            plural=names["plural"],
            singular=names.get("singular") or kind.lower(),
            namespaced=spec["scope"] == "Namespaced",
            type=complete(version["schema"]["openAPIV3Schema"]),
            short=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(
                builtin.subresource(name, kind, group, at)
                for name in ("status", "scale")
                if name in parts
            ),
            storage=qualified(names["plural"], group),
            generation=True,
            selectable=tuple(
                str(one.get("jsonPath", "")).lstrip(".")
                for one in version.get("selectableFields") or ()
            ),
            definition=version,
        )

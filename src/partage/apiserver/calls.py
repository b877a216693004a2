"""One request without its HTTP parts, and the cluster that it concerns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from partage.apiserver import structural
from partage.apiserver.admission import ADMIN, Admission, Operation, Review, User
from partage.apiserver.decoding import Mismatch, conform
from partage.apiserver.definitions import accepted, check_definition
from partage.apiserver.kinds import Kind, Registry
from partage.apiserver.metadata import Ambient
from partage.apiserver.plugins import Plugins
from partage.apiserver.rules.defaults import complete
from partage.apiserver.rules.objects import fixed
from partage.apiserver.rules.table import RULES, Rules
from partage.apiserver.status import ApiError, Cause, bad_request, conflict, invalid, not_found
from partage.apiserver.storage import Record, Store

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


def _begin_definition(value: dict[str, Any]) -> None:
    if not value["spec"].get("versions") or not value["spec"].get("names"):
        return
    value["status"] = accepted(value, value["metadata"]["creationTimestamp"])


_DEFINITION = Rules(
    begin=_begin_definition,
    check=check_definition,
    check_update=fixed("spec.group", "spec.scope", "spec.names.plural", "spec.names.kind"),
)
_NONE = Rules()


@dataclass(frozen=True, slots=True)
class Call:
    """The action of a request, and its object.

    Attributes:
        kind: the resource, in the requested version.
        namespace: empty for cluster-scoped kinds, and for all namespaces.
        sub: the subresource, empty for the whole.
        dry_run: whether nothing is stored.
        manager: the field manager, empty if the client names none.
        force: whether server-side apply takes fields from other managers.
        validation: handling of unknown fields: `Strict`, `Warn` or `Ignore`.
        repeated: messages about duplicate keys of the body.
    """

    kind: Kind
    namespace: str = ""
    name: str = ""
    sub: str = ""
    user: User = ADMIN
    dry_run: bool = False
    manager: str = ""
    force: bool = False
    validation: Literal["Ignore", "Strict", "Warn"] = "Warn"
    warnings: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch whose result may be rejected; `text` for the refusal: a strategic patch itself, else its result."""

    text: str
    strategic: bool = False

    def refused(self, why: str) -> ApiError:
        """422, for an object without a kind and name."""
        shown = msgspec.json.encode(self.text).decode()
        cause = Cause("FieldValueInvalid", "patch", f"Invalid value: {shown}: {why}")
        return invalid("", "", "", [cause])


@dataclass(slots=True)
class Cluster:
    """State that all requests share.

    `relaxed_names`: whether names may have upper-case letters, as a pod of the MetaX document and a node of the HAMi
    document have; the genuine server refuses them.
    """

    store: Store
    registry: Registry
    admission: Admission
    plugins: Plugins
    ambient: Ambient
    relaxed_names: bool = False


def rules_of(kind: Kind) -> Rules:
    """The rules of a kind; custom resources have their schema instead."""
    if kind.resource == DEFINITIONS:
        return _DEFINITION
    return RULES.get(kind.resource, _NONE) if kind.definition is None else _NONE


def missing(call: Call) -> ApiError:
    """404 for a call's object."""
    return not_found(call.kind.plural, call.kind.group, call.name)


def must_get(cluster: Cluster, call: Call) -> Record:
    """The object of a call. Raises `ApiError`."""
    found = cluster.store.get(call.kind.resource, call.namespace, call.name)
    if found is None:
        raise missing(call)
    return found


def check_preconditions(call: Call, old: Record, uid: str | None, version: str | None) -> None:
    """Compares a request's UID and resourceVersion, if it has them, with the object's. Raises `ApiError`: 409."""
    for what, want, have in (
        ("UID", uid, old.uid),
        ("ResourceVersion", version, old.metadata["resourceVersion"]),
    ):
        if want and want != have:
            why = f"Precondition failed: {what} in precondition: {want}, {what} in object meta: {have}"
            raise conflict(call.kind.plural, call.kind.group, call.name, why)


def accept(call: Call, value: Any, patch: Patch | None = None) -> dict[str, Any]:
    """A body as an object of the call's kind, in new containers.

    `value`: the body, or an object after a patch. Raises `ApiError`: 400, another kind of object, or unknown fields
    under strict validation.
    """
    kind = call.kind
    if not isinstance(value, Mapping):
        raise bad_request(
            f"couldn't get version/kind; json parse error: a {kind.kind} is an object"
        )
    version, named = value.get("apiVersion"), value.get("kind")
    if version is not None and version != kind.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({kind.api_version})"
        )
    if named is not None and named != kind.kind:
        raise bad_request(
            f'{named} in version "{kind.version}" cannot be handled as a {kind.kind}: converting '
            f"({named}) to ({kind.kind}): unknown conversion"
        )
    unknown: list[str] = []
    try:
        found: dict[str, Any] = conform(value, kind.type, unknown, "", kind.kind)
    except (Mismatch, RecursionError) as error:
        if patch is None or not isinstance(error, Mismatch):
            raise _unhandled(kind, str(error)) from error
        raise patch.refused(error.converting if patch.strategic else str(error)) from error
    _report(call, unknown, patch)
    found["apiVersion"], found["kind"] = kind.api_version, kind.kind
    metadata = found.setdefault("metadata", {})
    if kind.namespaced and metadata.get("namespace") not in (None, "", call.namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    name = metadata.get("name")
    if name and call.name and name != call.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({call.name})"
        )
    return found


def _report(call: Call, unknown: list[str], patch: Patch | None) -> None:
    if call.validation == "Ignore":
        return
    paths = unknown if patch is None else sorted(unknown)
    texts = [f'unknown field "{path}"' for path in paths]
    if call.validation == "Warn":
        call.warnings.extend([*call.repeated, *texts])
        call.repeated.clear()
        return
    lines = [text for text in call.repeated if text.startswith("line ")]
    others = [text for text in call.repeated if not text.startswith("line ")]
    if lines:
        others.insert(0, "\n  ".join(["yaml: unmarshal errors:", *lines]))
    if not others and not texts:
        return
    why = "strict decoding error: " + ", ".join([*others, *texts])
    raise _unhandled(call.kind, why) if patch is None else patch.refused(why)


def _unhandled(kind: Kind, why: str) -> ApiError:
    return bad_request(
        f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}'
    )


def refit(call: Call, value: dict[str, Any]) -> dict[str, Any]:
    """Admission's object decoded as its kind again, with defaults. Raises `ApiError`: 500, a hook malformed it."""
    try:
        found: dict[str, Any] = conform(value, call.kind.type, [], "", call.kind.kind)
    except (Mismatch, RecursionError) as error:
        raise ApiError(
            422, "Invalid", f"admission left no valid {call.kind.kind}: {error}"
        ) from error
    found.setdefault("metadata", {})
    return fill(call.kind, found)


def fill(kind: Kind, value: dict[str, Any]) -> dict[str, Any]:
    """The object with its kind's defaults; this changes `value` itself."""
    if kind.definition is None:
        complete(value, kind.type)
    else:
        structural.fill(value, kind.definition["schema"]["openAPIV3Schema"])
    return value


def review(
    call: Call, operation: Operation, value: dict[str, Any] | None, old: Record | None
) -> Review:
    """The review of a call for admission."""
    return Review(
        operation=operation,
        kind=call.kind,
        subresource=call.sub,
        namespace=call.namespace,
        name=call.name or ((value or {}).get("metadata") or {}).get("name", ""),
        object=value,
        old=old.value if old is not None else None,
        user=call.user,
        dry_run=call.dry_run,
        warnings=call.warnings,
    )

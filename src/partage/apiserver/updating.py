"""Replaces and patches objects, whole or in part."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from partage.apiserver import metadata
from partage.apiserver.apply import apply, record_update
from partage.apiserver.calls import (
    Call,
    Cluster,
    Patch,
    accept,
    check_preconditions,
    fill,
    missing,
    must_get,
    refit,
    review,
    rules_of,
)
from partage.apiserver.creating import create, inspect_object, manager_of, pretend
from partage.apiserver.decoding import go_text, kind_of
from partage.apiserver.ownership import untyped
from partage.apiserver.patch import PatchError, Undecodable, Unmergeable, json_patch, merge_patch
from partage.apiserver.problems import Problems
from partage.apiserver.status import (
    ApiError,
    bad_request,
    conflict,
    invalid,
    invalid_options,
    unsupported_media,
)
from partage.apiserver.storage import Absent, Record, Stale
from partage.apiserver.strategic import strategic_patch

APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"
MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
PATCHES: Final = (JSON_PATCH, MERGE, _STRATEGIC, APPLY)
_TRIES: Final = 6
_CARRYING: Final = ("namespaces", "nodes", "pods")

Make = Callable[[Record], dict[str, Any]]


async def update(cluster: Cluster, call: Call, body: Any) -> Record:
    """Replaces an object, or a part of it, with `body`. Raises `ApiError`: 409 for another resourceVersion."""
    value = fill(call.kind, accept(call, body))

    def make(old: Record) -> dict[str, Any]:
        expect(call, value["metadata"], old)
        return value

    pinned = bool(value["metadata"].get("resourceVersion"))
    return await _retry(cluster, call, make, once=pinned)


async def patch(cluster: Cluster, call: Call, media: str, body: Any) -> tuple[Record, bool]:
    """Changes an object by a patch of one of `PATCHES`; returns also whether it was created. Raises `ApiError`."""
    if media == APPLY:
        return await _apply(cluster, call, body)
    if media == _STRATEGIC and call.kind.definition is not None:
        raise unsupported_media(f"{JSON_PATCH}, {MERGE}, {APPLY}")

    def make(old: Record) -> dict[str, Any]:
        live = call.kind.outward(old.value)
        try:
            changed = _patched(call, media, live, body)
        except Undecodable as error:
            raise bad_request(str(error)) from error
        except Unmergeable as error:
            raise ApiError(500, "", str(error)) from error
        except PatchError as error:
            if media == JSON_PATCH:
                why = "the server rejected our request due to an error in our request"
                raise ApiError(422, "Invalid", why) from error
            raise bad_request(str(error)) from error
        strategic = media == _STRATEGIC
        if strategic:  # such a patch cannot change an object's kind
            changed.update(apiVersion=live["apiVersion"], kind=live["kind"])
        shown = Patch(go_text(body) if strategic else _text(changed), strategic)
        value = fill(call.kind, accept(call, changed, shown))
        expect(call, value["metadata"], old)
        return value

    wanted = ((body.get("metadata") or {}) if isinstance(body, Mapping) else {}) or {}
    pinned = isinstance(wanted, Mapping) and bool(wanted.get("resourceVersion"))
    return await _retry(cluster, call, make, once=pinned), False


def _patched(call: Call, media: str, live: dict[str, Any], body: Any) -> Any:
    if media == JSON_PATCH:
        return json_patch(live, body)
    if not isinstance(body, Mapping):
        why = f"json: cannot unmarshal {kind_of(body)} into Go value of type map[string]interface {{}}"
        raise Undecodable(why if media == _STRATEGIC else f"error decoding patch: {why}")
    if media == MERGE:
        return merge_patch(live, body)
    return strategic_patch(live, body, call.kind.type)


async def _apply(cluster: Cluster, call: Call, body: Any) -> tuple[Record, bool]:
    if not call.manager:
        why = "fieldManager: Required value: is required for apply patch"
        raise invalid_options("PatchOptions", why)
    told = list(untyped(body, call.kind.type)) if isinstance(body, Mapping) else []
    if told:
        raise _untyped(call, body, told)
    wanted = accept(call, body)
    if wanted["metadata"].get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    wanted["metadata"].setdefault("name", call.name)
    manager = manager_of(cluster, call, "Apply")
    if cluster.store.get(call.kind.resource, call.namespace, call.name) is None:
        if call.sub or wanted["metadata"].get("uid"):
            raise missing(call)
        made = apply(None, wanted, call.kind.type, manager, force=call.force)
        entries = made["metadata"]["managedFields"]
        return await create(cluster, call, wanted, entries=entries), True

    def make(old: Record) -> dict[str, Any]:
        expect(call, wanted["metadata"], old)
        live = call.kind.outward(old.value)
        merged = apply(live, wanted, call.kind.type, manager, force=call.force)
        entries = merged["metadata"].pop("managedFields", None)
        value = fill(call.kind, accept(call, merged))
        value["metadata"]["managedFields"] = entries or []
        return value

    return await _retry(cluster, call, make, applied=True), False


def _untyped(call: Call, body: Mapping[str, Any], told: list[str]) -> ApiError:
    """500: the genuine server's message about an applied object that is not of its kind."""
    head = body.get("metadata")
    named = head if isinstance(head, Mapping) else {}
    why = told[0] if len(told) == 1 else "\n  ".join(["errors:", *told])
    whose = f"{named.get('namespace', '')}/{named.get('name', '')}"
    version = f"{call.kind.group}/{call.kind.version}"
    return ApiError(
        500,
        "",
        f"failed to create typed patch object ({whose}; {version}, Kind={call.kind.kind}): {why}",
    )


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def expect(call: Call, said: Mapping[str, Any], old: Record) -> None:
    """Compares a body's own resourceVersion and UID with the stored ones."""
    check_preconditions(call, old, said.get("uid"), None)
    version = said.get("resourceVersion")
    if version and version != old.metadata["resourceVersion"]:
        raise conflict(call.kind.plural, call.kind.group, call.name)


async def _retry(
    cluster: Cluster, call: Call, make: Make, *, once: bool = False, applied: bool = False
) -> Record:
    """Makes and writes a change; repeats it from the newest state if another writer was faster."""
    for _attempt in range(1 if once else _TRIES):
        old = must_get(cluster, call)
        try:
            return await _change(cluster, call, make(old), old, applied=applied)
        except Absent as gone:
            raise missing(call) from gone
        except Stale:
            continue
    raise conflict(call.kind.plural, call.kind.group, call.name)


async def _change(
    cluster: Cluster, call: Call, value: dict[str, Any], old: Record, *, applied: bool
) -> Record:
    """One attempt: merge with the fields that this call may not change, admit, check, write."""
    kind = call.kind
    before = kind.outward(old.value)
    entries = value["metadata"].get("managedFields") if applied else None
    value = _bounded(call, value, before)
    value = cluster.plugins.completed(review(call, "UPDATE", value, old))
    admitted = await cluster.admission.mutate(review(call, "UPDATE", value, old))
    if admitted is not value:
        value = _bounded(call, refit(call, admitted), before)
    _count(call, value, before)
    _check(cluster, call, value, before)
    await cluster.admission.validate(review(call, "UPDATE", value, old))
    if applied:
        value["metadata"]["managedFields"] = entries
    elif call.manager or before["metadata"].get("managedFields"):
        record_update(value, before, kind.type, manager_of(cluster, call))
    stored = kind.inward(value)
    if stored == old.value:
        return old
    if call.dry_run:
        return pretend(kind.resource, stored)
    if metadata.finished(stored) and not stored.get("spec", {}).get("finalizers"):
        return cluster.store.remove(kind.resource, old.namespace, old.name, old.revision)
    return cluster.store.replace(kind.resource, stored, old.revision)


def _bounded(call: Call, value: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The change limited to this path's fields: all but the status, or the status alone."""
    kind = call.kind
    if call.sub == "status":
        carrying = kind.resource in _CARRYING
        source = value["metadata"] if carrying else before["metadata"]
        kept = {k: v for k, v in before.items() if k != "status"}
        kept["metadata"] = metadata.carried(source, before["metadata"])
        _take(kept["metadata"], before["metadata"], "ownerReferences", "finalizers")
        _take(kept, value, "status")
        return kept
    found = {**value, "metadata": metadata.carried(value["metadata"], before["metadata"])}
    _take(found["metadata"], before["metadata"], "managedFields")
    if call.sub == "finalize":
        return {**before, "spec": found.get("spec") or {}}
    if kind.sub("status") is not None:
        _take(found, before, "status")
    if kind.resource == "namespaces":
        found["spec"] = before.get("spec") or {}
    keep = rules_of(kind).keep
    if keep is not None and not call.sub:
        keep(found, before)
    return found


def _take(into: dict[str, Any], source: Mapping[str, Any], *keys: str) -> None:
    """Makes these fields those of `source`, absent ones too; in place."""
    for key in keys:
        into.pop(key, None)
        if key in source:
            into[key] = source[key]


def _count(call: Call, value: dict[str, Any], before: Mapping[str, Any]) -> None:
    if not call.kind.generation or call.sub == "status":
        return
    apart = ("metadata", "status")
    after = {k: v for k, v in value.items() if k not in apart}
    if after != {k: v for k, v in before.items() if k not in apart}:
        generation = int(before["metadata"].get("generation") or 0) + 1
        value["metadata"]["generation"] = generation


def _check(cluster: Cluster, call: Call, value: dict[str, Any], before: Mapping[str, Any]) -> None:
    kind, rules = call.kind, rules_of(call.kind)
    problems = Problems(relaxed=cluster.relaxed_names)
    if call.sub == "status" and kind.definition is None and not rules.keeps_status:
        metadata.check(value["metadata"], problems, lambda _name: [], namespaced=kind.namespaced)
    else:
        inspect_object(call, value, problems)
        if rules.check_update is not None and not call.sub:
            rules.check_update(value, before, problems)
    old = set(before["metadata"].get("finalizers") or ())
    new = set(value["metadata"].get("finalizers") or ()) - old
    if before["metadata"].get("deletionTimestamp") and new:
        problems.forbidden(
            "metadata.finalizers",
            "no new finalizers can be added if the object is being deleted, found new "
            f"finalizers []string{{{', '.join(map(_text, sorted(new)))}}}",
        )
    if problems:
        raise invalid(kind.kind, kind.group, call.name, problems.causes)

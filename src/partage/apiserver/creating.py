"""Creating objects."""

from collections.abc import Mapping
from typing import Any, Final

from partage.apiserver import metadata, quota, structural
from partage.apiserver.apply import Manager, record_update
from partage.apiserver.calls import Call, Cluster, accept, fill, refit, review, rules_of
from partage.apiserver.problems import Problems
from partage.apiserver.rules.fields import check_fields
from partage.apiserver.status import ApiError, already_exists, forbidden, invalid
from partage.apiserver.storage import Record, Taken
from partage.wire.field_types import Type

_TRIES: Final = 8


async def create(
    cluster: Cluster, call: Call, body: Any, *, entries: list[Any] | None = None
) -> Record:
    """Stores a new object and returns it. Raises `ApiError`. `entries`: its `managedFields`, if an apply creates it."""
    value = fill(call.kind, accept(call, body))
    cluster.plugins.namespace(review(call, "CREATE", value, None))
    value = cluster.plugins.completed(review(call, "CREATE", value, None))
    admitted = await cluster.admission.mutate(review(call, "CREATE", value, None))
    if admitted is not value:
        value = refit(call, admitted)
    value = _begin(cluster, call, value)
    problems = Problems(relaxed=cluster.relaxed_names)
    inspect_object(call, value, problems)
    if problems:
        raise invalid(
            call.kind.kind, call.kind.group, value["metadata"].get("name", ""), problems.causes
        )
    await cluster.admission.validate(review(call, "CREATE", value, None))
    if entries is not None:
        value["metadata"]["managedFields"] = entries
    elif call.manager:
        record_update(value, None, call.kind.type, manager_of(cluster, call))
    return _commit(cluster, call, call.kind.inward(value))


def manager_of(cluster: Cluster, call: Call, operation: str = "Update") -> Manager:
    """The field manager of a call."""
    return Manager(
        call.manager or "unknown",
        operation,
        call.kind.api_version,
        metadata.timestamp(cluster.ambient.now()),
        call.sub,
    )


def _begin(cluster: Cluster, call: Call, value: dict[str, Any]) -> dict[str, Any]:
    kind, rules = call.kind, rules_of(call.kind)
    born = metadata.born(value["metadata"], call.namespace, cluster.ambient)
    born.pop("managedFields", None)
    value = {**value, "metadata": born}
    if kind.sub("status") is not None and not rules.keeps_status:
        value.pop("status", None)
        if kind.definition is None:
            value["status"] = _begun(kind.type.fields["status"].type)
    if kind.generation:
        born["generation"] = 1
    if rules.begin is not None and "name" in born:
        rules.begin(value)
    return value


def _begun(type_: Type) -> dict[str, Any]:
    """The status of a new object: the numbers that are never omitted, at zero."""
    return {f.name: 0 for f in type_.fields.values() if f.required and f.type.form == "int"}


def inspect_object(call: Call, value: Mapping[str, Any], problems: Problems) -> None:
    """Reports all problems of an object."""
    rules = rules_of(call.kind)
    metadata.check(value["metadata"], problems, rules.name, namespaced=call.kind.namespaced)
    if call.kind.definition is None:
        check_fields(value, call.kind.type, "", problems)
    if rules.check is not None:
        rules.check(call.kind.inward(dict(value)), problems)
    elif call.kind.definition is not None:
        schema = call.kind.definition["schema"]["openAPIV3Schema"]
        structural.check(dict(value), schema, "", problems)


def _commit(cluster: Cluster, call: Call, value: dict[str, Any]) -> Record:
    """Checks the quota and stores, in one uninterrupted step."""
    kind, store = call.kind, cluster.store
    cluster.plugins.namespace(review(call, "CREATE", value, None))
    name = value["metadata"]["name"]
    if call.namespace:
        over = quota.exceeded(store, call.namespace, kind.resource, value)
        if over:
            raise forbidden(kind.plural, kind.group, name, over)
    if call.dry_run:
        if store.get(kind.resource, call.namespace, name) is not None:
            raise already_exists(kind.plural, kind.group, name)
        return pretend(kind.resource, value)
    for attempt in range(_TRIES):
        try:
            return store.insert(kind.resource, value)
        except Taken as taken:
            prefix = value["metadata"].get("generateName")
            if not prefix or not name.startswith(prefix) or attempt == _TRIES - 1:
                raise already_exists(kind.plural, kind.group, name) from taken
            name = prefix[:58] + cluster.ambient.suffix()
            value["metadata"]["name"] = name
    raise ApiError(500, "ServerTimeout", f"no free name found for {name}")  # pragma: no cover


def pretend(resource: str, value: dict[str, Any]) -> Record:
    """A dry run's answer: the resulting object, at no revision."""
    found = value["metadata"]
    return Record(resource, found.get("namespace", ""), found["name"], value, 0)

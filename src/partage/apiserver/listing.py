"""Lists: selected objects in pages of one revision, in the requested form."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from partage.apiserver.calls import Call, Cluster
from partage.apiserver.selectors import FieldSelector
from partage.apiserver.status import bad_request, expired
from partage.apiserver.storage import Compacted, Record
from partage.model.errors import UNREADABLE
from partage.model.selector import Selector

_CONTINUE: Final = (
    "The provided continue parameter is too old to display a consistent list result."
)


class _Token(msgspec.Struct, frozen=True):
    """Content of a continue token."""

    rv: int
    start: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Selection:
    """The requested objects of a resource."""

    labels: Selector = Selector()
    fields: FieldSelector = FieldSelector()
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    @property
    def everything(self) -> bool:
        """Whether it selects all objects."""
        return not self.labels.requirements and not self.fields.terms

    def matches(self, record: Record) -> bool:
        """Whether it selects an object."""
        if self.labels.requirements and not self.labels.matches(record.labels):
            return False
        if not self.fields.terms:
            return True
        value = self.convert(record.value) if self.convert else record.value
        return self.fields.matches(value)


@dataclass(frozen=True, slots=True)
class Listing:
    """One page.

    Attributes:
        revision: the store's revision that it shows.
        token: for the next page; empty on the last.
        remaining: number of later objects; None if not counted.
    """

    records: list[Record]
    revision: int
    token: str = ""
    remaining: int | None = None


def listed(
    cluster: Cluster,
    call: Call,
    selection: Selection,
    *,
    limit: int = 0,
    token: str = "",
    exact: int | None = None,
) -> Listing:
    """The requested objects. Raises `ApiError`: 400 for a malformed token, 410 for one that is too old.

    Args:
        limit: the most objects of a page; 0 for all.
        token: from the page before.
        exact: the revision to show, None for the newest.
    """
    resource, store = call.kind.resource, cluster.store
    after: tuple[str, str] | None = None
    revision = store.revision if exact is None else exact
    if token:
        page = _read(token)
        revision, after = page.rv, page.start
    if revision > store.revision:
        raise expired(f"resourceVersion {revision} is in the future")
    if revision == store.revision:
        records = _at_once(cluster, call, selection)
    else:
        try:
            records = store.list_at(resource, call.namespace, revision)
        except Compacted as gone:
            raise expired(
                _CONTINUE if token else f"too old resource version: {revision}"
            ) from gone
    if after is not None:
        records = [r for r in records if (r.namespace, r.name) > after]
    if not selection.everything:
        records = [record for record in records if selection.matches(record)]
    if not limit or len(records) <= limit:
        return Listing(records, revision)
    first = records[:limit]
    left = len(records) - limit if selection.everything else None
    last = first[-1]
    return Listing(first, revision, _write(revision, last.namespace, last.name), left)


def _at_once(cluster: Cluster, call: Call, selection: Selection) -> list[Record]:
    """The newest objects; a single one if the selection names it."""
    name = selection.fields.exact("metadata.name")
    if name is not None and (call.namespace or not call.kind.namespaced):
        found = cluster.store.get(call.kind.resource, call.namespace, name)
        return [found] if found is not None else []
    return list(cluster.store.all(call.kind.resource, call.namespace))


def _write(revision: int, namespace: str, name: str) -> str:
    text = msgspec.json.encode(_Token(revision, (namespace, name)))
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def _read(token: str) -> _Token:
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        return msgspec.json.decode(text, type=_Token)
    except UNREADABLE as error:
        raise bad_request("continue key is not valid: encoding failed") from error

"""References to owners in documents that came from another cluster.

A reference identifies its owner by UID, and an object brought here gets a new UID. An API server deletes an object
without existing owners: a Device as `kubectl get` printed it, or a dumped pod of a ReplicaSet.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from partage.apiserver import ApiServer

_REFERENCES: Final = "ownerReferences"


def references(value: Mapping[str, Any]) -> Any:
    """An object's references to owners, as written."""
    head = value.get("metadata")
    return head.get(_REFERENCES) if isinstance(head, dict) else None


def with_owners_here(
    server: ApiServer, value: Mapping[str, Any], namespace: str
) -> dict[str, Any] | None:
    """The document with references only to existing owners, found by name; None if it has these already."""
    head, listed = value.get("metadata"), references(value)
    if not isinstance(head, dict) or not isinstance(listed, list):
        return None
    left = [one for given in listed for one in _here(server, given, namespace)]
    if left == listed:
        return None
    others = {key: one for key, one in head.items() if key != _REFERENCES}
    return {**value, "metadata": others | ({_REFERENCES: left} if left else {})}


def _here(server: ApiServer, given: Any, namespace: str) -> Iterator[Any]:
    if not isinstance(given, dict):
        yield given  # the API server reports its error
        return
    for kind in server.registry:
        if (kind.api_version, kind.kind) == (given.get("apiVersion"), given.get("kind")):
            place = namespace if kind.namespaced else ""
            found = server.store.get(kind.resource, place, str(given.get("name")))
            if found is not None:
                yield {**given, "uid": found.uid}
            return

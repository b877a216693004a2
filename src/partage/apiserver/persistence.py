"""The cluster's files: its objects, if they outlive a run, and the address for kubectl."""

import os
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from partage.apiserver.storage import Record, Store
from partage.model.errors import UNREADABLE
from partage.wire.documents import read_file

_VERSION: Final = 1
_NAME: Final = "partage"


class UnreadableState(Exception):
    """The file has no state of an earlier run; the message names it."""


def snapshot(store: Store) -> tuple[int, dict[str, list[Record]]]:
    """The revision and all objects; cheap, and unaffected by later writes to the store."""
    return store.revision, {resource: list(store.all(resource)) for resource in store.resources()}


def save(path: Path, revision: int, objects: dict[str, list[Record]]) -> None:
    """Writes a snapshot, replacing the file as a whole; may run in a thread. Raises `OSError`."""
    text = msgspec.json.encode(
        {
            "version": _VERSION,
            "revision": revision,
            "objects": {
                resource: [record.value for record in records]
                for resource, records in objects.items()
            },
        }
    )
    _replaced(path, text)


def _replaced(path: Path, text: bytes) -> None:
    """Writes a file that its owner alone can read, as a whole."""
    part = path.with_name(path.name + ".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(path: Path, store: Store) -> bool:
    """Fills an empty store from a file; False without one. Raises `UnreadableState`: no such state; `OSError`."""
    try:
        text = read_file(path)
    except FileNotFoundError:
        return False
    try:
        document: Any = msgspec.json.decode(text)
        version = document["version"]
        if version == _VERSION:
            store.restore(document["revision"], document["objects"])
    except (TypeError, KeyError, AttributeError, *UNREADABLE) as error:
        raise UnreadableState(
            f"{path} holds no cluster state: {error}; name another file"
        ) from error
    if version != _VERSION:
        raise UnreadableState(f"{path} was written by another version ({version})")
    return True


def write_kubeconfig(path: Path, url: str) -> None:
    """Writes a kubeconfig for an API server's `url` without a trailing slash, replacing the file as a whole.

    Only its owner can read it. Raises `OSError`: it cannot be written.
    """
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": {"server": url}}],
        "users": [{"name": _NAME, "user": {}}],
        "contexts": [
            {"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": "default"}}
        ],
        "current-context": _NAME,
        "preferences": {},
    }
    _replaced(path, yaml.safe_dump(document, sort_keys=False).encode())

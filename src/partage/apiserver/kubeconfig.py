"""The file with the server's address and the user's name, for kubectl."""

import os
from pathlib import Path
from typing import Final

import yaml

_NAME: Final = "partage"


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
    part = path.with_name(path.name + ".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        yaml.safe_dump(document, file, sort_keys=False)
    part.replace(path)

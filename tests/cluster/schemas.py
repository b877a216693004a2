"""JSON schemas for kubeconform, from what a genuine API server says of itself; nothing is downloaded.

An object of a schema that names its properties may have no others: what a server would drop without a word is refused.
"""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from control_plane import KUBECONFORM, ControlPlane

__all__ = ["judged", "write"]

_HERE = "#/components/schemas/"
_LOCATION = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""How kubeconform names a file: `deployment-apps-v1.json`, `pod-v1.json`."""


def write(plane: ControlPlane, folder: Path, versions: Iterable[str]) -> None:
    """Write the schema of every kind of some API versions.

    Args:
        plane: the API server.
        folder: for one file a kind.
        versions: as in `apiVersion`.
    """
    for version in versions:
        path = f"apis/{version}" if "/" in version else f"api/{version}"
        found = plane.call("GET", f"/openapi/v3/{path}")["components"]["schemas"]
        schemas = {name: _strict(one) for name, one in found.items()}
        group, _, last = version.rpartition("/")
        suffix = "-".join(filter(None, (group.split(".")[0], last)))
        for name, one in found.items():
            for kind in one.get("x-kubernetes-group-version-kind", ()):
                if (kind["group"], kind["version"]) == (group, last):
                    text = {"$ref": _HERE + name, "components": {"schemas": schemas}}
                    file = folder / f"{kind['kind'].lower()}-{suffix}.json"
                    file.write_text(json.dumps(text))


def _strict(value: Any) -> Any:
    """A schema whose objects have the properties that it names and no others."""
    if isinstance(value, list):
        return [_strict(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: _strict(one) for key, one in value.items()}
    open_ = made.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in made
    if isinstance(made.get("properties"), dict) and made.get("type") == "object" and not open_:
        made["additionalProperties"] = False
    return made


def judged(schemas: Path, manifests: str) -> list[str]:
    """What kubeconform says is wrong with manifests, and which kinds it has no schema of."""
    done = subprocess.run(
        [
            str(KUBECONFORM),
            "-strict",
            "-output",
            "json",
            "-schema-location",
            f"{schemas}/{_LOCATION}",
        ],
        input=manifests,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return [
        f"{one['kind']} {one['name']}: {one['msg']}"
        for one in json.loads(done.stdout)["resources"]
    ]

"""Which field of which kind there is in which version of Kubernetes, from the published Go types.

    go mod download k8s.io/{api,apimachinery,apiextensions-apiserver}@v0.28.15 …
    python tests/versions/condense.py "$(go env GOMODCACHE)/k8s.io" 0.28.15 … 0.37.1

Writes `fields.txt`: one line a field of each type that a document of ours can contain, with the
versions that have it where those are not all. Descriptions are not taken.
"""

import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tools" / "schema"))

from tabulate import Tables  # noqa: E402

ROOTS: Final = {
    "core": "Binding ConfigMap Event Namespace Node Pod ResourceQuota Secret Service ServiceAccount",
    "apps": "DaemonSet Deployment",
    "batch": "Job",
    "coordination": "Lease",
    "scheduling": "PriorityClass",
    "admission": "MutatingWebhookConfiguration ValidatingWebhookConfiguration "
    "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
    "rbac": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "policy": "Eviction PodDisruptionBudget",
    "networking": "NetworkPolicy",
    "apiextensions": "CustomResourceDefinition",
    "meta": "DeleteOptions",
}


class Lenient(Tables):
    """Tables in which a type of a package that is not read counts as anything."""

    def kind_of(self, package: str, text: str) -> str:
        """See `Tables.kind_of`."""
        try:
            return str(super().kind_of(package, text))
        except SystemExit:
            return "any"


def fields(cache: Path, version: str) -> dict[str, str]:
    """Every field of one version, as `package.Type.field`, with its kind."""
    tables = Lenient(cache, version)
    for package, names in ROOTS.items():
        for name in names.split():
            if name in tables.parsed[package][0]:
                tables.add(package, name)
    found = {}
    for package, types in tables.out.items():
        for name, lines in types.items():
            for line in lines:
                field, kind, *_ = line.split()
                found[f"{package}.{name}.{field.rstrip('!?')}"] = kind
    return found


def main() -> None:
    """Write the file."""
    cache, versions = Path(sys.argv[1]), sys.argv[2:]
    known: dict[tuple[str, str], list[str]] = {}
    for version in versions:
        minor = "1." + version.split(".")[1]
        for field, kind in fields(cache, version).items():
            known.setdefault((field, kind), []).append(minor)
    every = ["1." + version.split(".")[1] for version in versions]
    text = [
        f"# Fields of the Kubernetes API, {every[0]} to {every[-1]}; made by tests/versions/condense.py.",
        f"versions {' '.join(every)}",
    ]
    for (field, kind), minors in sorted(known.items()):
        text.append(f"{field} {kind}" if minors == every else f"{field} {kind} {' '.join(minors)}")
    (HERE / "fields.txt").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()

"""Which field of which kind there is in which version of Kubernetes, from the published Go types.

    go mod download k8s.io/{api,apimachinery,apiextensions-apiserver}@v0.28.15 …
    python tests/versions/condense.py "$(go env GOMODCACHE)/k8s.io" 0.28.15 … 0.37.1

Writes `fields.txt`: one line a field of each type that a document of ours can contain, with `!` where it must be
given, and one line an enumeration with its values, each with the versions that have it so where those are not all.
Descriptions are not taken.
"""

import re
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tools" / "schema"))

from tabulate import PACKAGES, Tables  # noqa: E402

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


ENUM: Final = re.compile(r"^// \+enum\n(?:// .*\n|//\n)*type (\w+) string$", re.MULTILINE)
VALUE: Final = re.compile(r'^\s*(?:const )?\w+\s+(\w+)\s*=\s*"([^"]+)"', re.MULTILINE)


class Lenient(Tables):
    """Tables in which a type of a package that is not read counts as anything, and enumerations keep their names."""

    def __init__(self, cache: Path, version: str) -> None:
        """Read all packages."""
        super().__init__(cache, version)
        self.enums = {
            f"{package}.{name}": values
            for package, (module, folder, _) in PACKAGES.items()
            for name, values in enumerations(cache / f"{module}@v{version}" / folder).items()
        }

    def kind_of(self, package: str, text: str) -> str:
        """See `Tables.kind_of`."""
        bare = text.lstrip("*")
        name = bare if "." in bare else f"{package}.{bare}"
        if name in self.enums:
            return name
        try:
            return str(super().kind_of(package, text))
        except SystemExit:
            return "any"


def enumerations(folder: Path) -> dict[str, list[str]]:
    """The values of types that a server lets have no others."""
    found: dict[str, list[str]] = {}
    for file in sorted(folder.glob("types*.go")):
        text = file.read_text()
        for name in ENUM.findall(text):
            found[name] = sorted({value for of, value in VALUE.findall(text) if of == name})
    return found


def fields(cache: Path, version: str) -> dict[str, str]:
    """Every field of one version, as `package.Type.field`, with its kind; and every enumeration, with its values."""
    tables = Lenient(cache, version)
    for package, names in ROOTS.items():
        for name in names.split():
            if name in tables.parsed[package][0]:
                tables.add(package, name)
    found = {}
    for package, types in tables.out.items():
        for name, lines in types.items():
            optional = tables.parsed[package][0][name].optional | inlined(tables, package, name)
            for line in lines:
                mark, kind, *_ = line.split()
                field = mark.rstrip("!?")
                found[f"{package}.{name}.{field}"] = kind + ("" if field in optional else "!")
    used = {kind.strip("[]{}!") for kind in found.values()}
    return found | {
        name: "|".join(values) for name, values in tables.enums.items() if name in used
    }


def inlined(tables: Tables, package: str, name: str) -> set[str]:
    """Optional fields of the structs that a struct embeds."""
    found: set[str] = set()
    for json_name, _, go_type, _ in tables.parsed[package][0][name].fields:
        if not json_name:
            alias, _, inner = go_type.rpartition(".")
            owner = {"metav1": "meta", "v1": "core"}.get(alias, package)
            for where in (owner, "meta", "core"):
                struct = tables.parsed[where][0].get(inner)
                if struct is not None:
                    found |= struct.optional | inlined(tables, where, inner)
                    break
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

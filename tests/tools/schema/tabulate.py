"""Make the API server's schema tables from the published Go types.

Reads the `types.go` files of k8s.io/api, k8s.io/apimachinery and k8s.io/apiextensions-apiserver
(as the Go module cache holds them) and writes one compact table a group: field names, types, how
lists merge, protobuf numbers. Descriptions are not taken. Run it to move to another Kubernetes version:

    python tests/tools/schema/tabulate.py "$(go env GOMODCACHE)/k8s.io" 0.36.6 src/partage/wire/field_tables

One line a field: name, a mark (`!` always written; `?` left out when zero; none: left out when
absent), its type, and options: `map=KEYS` and `set` (how server-side apply sees the list),
`atomic`, `merge[=KEY]` and `retain` (strategic merge patch), `#N` (its protobuf number; `#N/M`
for a field of an embedded message that JSON does not show).
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = {
    "meta": ("apimachinery", "pkg/apis/meta/v1", "io.k8s.apimachinery.pkg.apis.meta.v1"),
    "core": ("api", "core/v1", "io.k8s.api.core.v1"),
    "apps": ("api", "apps/v1", "io.k8s.api.apps.v1"),
    "batch": ("api", "batch/v1", "io.k8s.api.batch.v1"),
    "coordination": ("api", "coordination/v1", "io.k8s.api.coordination.v1"),
    "scheduling": ("api", "scheduling/v1", "io.k8s.api.scheduling.v1"),
    "events": ("api", "events/v1", "io.k8s.api.events.v1"),
    "admission": ("api", "admissionregistration/v1", "io.k8s.api.admissionregistration.v1"),
    "authentication": ("api", "authentication/v1", "io.k8s.api.authentication.v1"),
    "authorization": ("api", "authorization/v1", "io.k8s.api.authorization.v1"),
    "autoscaling": ("api", "autoscaling/v1", "io.k8s.api.autoscaling.v1"),
    "autoscaling2": ("api", "autoscaling/v2", "io.k8s.api.autoscaling.v2"),
    "rbac": ("api", "rbac/v1", "io.k8s.api.rbac.v1"),
    "policy": ("api", "policy/v1", "io.k8s.api.policy.v1"),
    "networking": ("api", "networking/v1", "io.k8s.api.networking.v1"),
    "discovery": ("api", "discovery/v1", "io.k8s.api.discovery.v1"),
    "node": ("api", "node/v1", "io.k8s.api.node.v1"),
    "storage": ("api", "storage/v1", "io.k8s.api.storage.v1"),
    "resource": ("api", "resource/v1", "io.k8s.api.resource.v1"),
    "apiextensions": (
        "apiextensions-apiserver",
        "pkg/apis/apiextensions/v1",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
    ),
}
ROOTS = {
    "core": "Node Pod Namespace ConfigMap Secret ServiceAccount Service Endpoints Event "
    "ResourceQuota Binding PersistentVolumeClaim PersistentVolume LimitRange PodTemplate "
    "ReplicationController",
    "apps": "Deployment ReplicaSet StatefulSet DaemonSet ControllerRevision",
    "batch": "Job CronJob",
    "coordination": "Lease",
    "scheduling": "PriorityClass",
    "events": "Event",
    "admission": "MutatingWebhookConfiguration ValidatingWebhookConfiguration "
    "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
    "authentication": "SelfSubjectReview",
    "authorization": "SelfSubjectAccessReview SubjectAccessReview SelfSubjectRulesReview",
    "autoscaling": "Scale HorizontalPodAutoscaler",
    "autoscaling2": "HorizontalPodAutoscaler",
    "rbac": "Role RoleBinding ClusterRole ClusterRoleBinding",
    "policy": "PodDisruptionBudget Eviction",
    "networking": "NetworkPolicy Ingress IngressClass",
    "discovery": "EndpointSlice",
    "node": "RuntimeClass",
    "storage": "StorageClass",
    "resource": "ResourceClaim ResourceClaimTemplate DeviceClass ResourceSlice",
    "apiextensions": "CustomResourceDefinition",
    "meta": "DeleteOptions Status",
}
SCALARS = {
    "string": "string",
    "bool": "bool",
    "int": "int",
    "int32": "int",
    "int64": "long",
    "uint32": "long",
    "uint64": "long",
    "float64": "float",
    "byte": "int",
    "meta.Time": "time",
    "meta.MicroTime": "microtime",
    "meta.Duration": "string",
    "resource.Quantity": "quantity",
    "intstr.IntOrString": "intorstring",
    "runtime.RawExtension": "any",
    "meta.FieldsV1": "any",
    "runtime.Object": "any",
    "types.UID": "string",
    "types.NodeName": "string",
    "types.NamespacedName": "string",
    "apiextensions.JSON": "any",
    "apiextensions.JSONSchemaPropsOrBool": "any",
    "apiextensions.JSONSchemaPropsOrArray": "any",
    "apiextensions.JSONSchemaPropsOrStringArray": "any",
    "apiextensions.JSONSchemaProps": "any",
}
ALIASES = {"metav1": "meta", "v1": None, "corev1": "core", "apiv1": "core", "v1core": "core"}


@dataclass
class Struct:
    """One Go struct: its lines of fields, which of them may be left out, whether it is replaced as a whole."""

    fields: list[tuple[str, str, str, list[str]]] = field(default_factory=list)
    optional: set[str] = field(default_factory=set)
    atomic: bool = False


def parse(package: str, folder: Path) -> tuple[dict[str, Struct], dict[str, str]]:
    """The structs of a package and its named types that stand for others."""
    structs: dict[str, Struct] = {}
    named: dict[str, str] = {}
    for file in sorted(folder.glob("*.go")):
        if file.name.startswith("zz_") or file.name.endswith("_test.go"):
            continue
        text = re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.DOTALL)
        comments: list[str] = []
        current: Struct | None = None
        for raw in text.splitlines():
            line = raw.strip()
            if line.startswith("//"):
                comments.append(line[2:].strip())
                continue
            start = re.match(r"type (\w+) struct \{$", line)
            other = re.match(r"type (\w+) (=\s*)?([\w.\[\]*]+)$", line)
            empty = re.match(r"type (\w+) struct\s*\{\}$", line)
            if empty:
                structs[empty[1]] = Struct()
            if start:
                current = structs[start[1]] = Struct(
                    atomic="+structType=atomic" in comments or "+mapType=atomic" in comments
                )
            elif other and current is None:
                named[other[1]] = other[3]
            elif line == "}":
                current = None
            elif current is not None:
                add_field(current, line, comments)
            if line or current is None:
                comments = []
    return structs, named


def add_field(struct: Struct, line: str, comments: list[str]) -> None:
    """Note one field line of a struct, embedded ones included."""
    match = re.match(r"(?:(\w+)\s+)?([\w.\[\]*]+)\s+`(.*)`", line)
    if match is None:
        return
    tag = re.search(r'json:"([^"]*)"', match[3])
    if tag is None or tag[1].startswith("-"):
        return
    name, *flags = tag[1].split(",")
    options: list[str] = []
    keys = [c.split("=", 1)[1] for c in comments if c.startswith("+listMapKey=")]
    if "+listType=map" in comments:
        options.append("map=" + ",".join(keys))
    if "+listType=set" in comments:
        options.append("set")
    if {"+structType=atomic", "+mapType=atomic"} & set(comments):
        options.append("atomic")
    strategy = re.search(r'patchStrategy:"([^"]*)"', match[3])
    if strategy:
        for part in strategy[1].split(","):
            key = re.search(r'patchMergeKey:"([^"]*)"', match[3])
            if part == "merge":
                options.append("merge" + (f"={key[1]}" if key else ""))
            elif part == "retainKeys":
                options.append("retain")
    number = re.search(r'protobuf:"\w+,(\d+)', match[3])
    if number:
        options.append("#" + number[1])
    pointer = match[2].startswith(("*", "[]", "map["))
    omit = "omitempty" in flags or "omitzero" in flags
    if omit or "+optional" in comments:
        struct.optional.add(name)
    mark = "!" if not omit else ("" if pointer and match[2].startswith("*") else "?")
    struct.fields.append(("" if "inline" in flags else name, mark, match[2], options))


class Tables:
    """The types reachable from the roots, by package."""

    def __init__(self, cache: Path, version: str) -> None:
        self.parsed = {
            package: parse(package, cache / f"{module}@v{version}" / folder)
            for package, (module, folder, _name) in PACKAGES.items()
        }
        self.out: dict[str, dict[str, list[str]]] = {package: {} for package in PACKAGES}

    def kind_of(self, package: str, text: str) -> str:
        """The table's word for a Go type; structs met on the way are added."""
        if text.startswith("*"):
            return self.kind_of(package, text[1:])
        if text == "[]byte":
            return "bytes"
        if text.startswith("[]"):
            return f"[{self.kind_of(package, text[2:])}]"
        if text.startswith("map["):
            return "{" + self.kind_of(package, text[text.index("]") + 1 :]) + "}"
        if "." in text:
            alias, _dot, name = text.partition(".")
            package = ALIASES.get(alias, alias) or ("meta" if package == "core" else "core")
            text = name
        full = text if text in SCALARS else f"{package}.{text}"
        if full in SCALARS:
            return SCALARS[full]
        structs, named = self.parsed.get(package, ({}, {}))
        if text in named:
            return self.kind_of(package, named[text])
        if text not in structs:
            raise SystemExit(f"unknown Go type {full}")
        self.add(package, text)
        return full

    def add(self, package: str, name: str) -> None:
        """Put one struct in the tables."""
        if name in self.out[package]:
            return
        lines = self.out[package][name] = []
        lines.extend(self.lines(package, name))

    def lines(self, package: str, name: str) -> list[str]:
        """The field lines of a struct, embedded structs flattened."""
        found: list[str] = []
        for json_name, mark, go_type, options in self.parsed[package][0][name].fields:
            if json_name:
                kind = self.kind_of(package, go_type)
                found.append(" ".join([f"  {json_name}{mark}", kind, *options]))
                continue
            alias, _dot, inner = go_type.rpartition(".")
            owner = (ALIASES.get(alias, alias) or "core") if alias else package
            if owner == "core" and package == "core" and alias:
                owner = "meta"
            found.extend(
                re.sub(r"#", f"{options[-1]}/", line) if options else re.sub(r" #\S+", "", line)
                for line in self.lines(owner, inner)
            )
        return found


def main() -> None:
    """Write the tables."""
    cache, version, target = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    tables = Tables(cache, version)
    for package, names in ROOTS.items():
        for name in names.split():
            tables.add(package, name)
    for package, types in tables.out.items():
        text = [f"# Kubernetes {version} field tables; made by tests/tools/schema/tabulate.py."]
        text.append(f"package {package} {PACKAGES[package][2]}")
        for name in sorted(types):
            atomic = " atomic" if tables.parsed[package][0][name].atomic else ""
            text.extend([name + atomic, *types[name]])
        (target / f"{package}.txt").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()

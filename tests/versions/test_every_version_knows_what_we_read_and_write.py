"""Documents that we read and write, against the fields of every Kubernetes from 1.28 on.

`fields.txt` is made from the published Go types (`condense.py`). A field that a server does not
know it drops without a word, or refuses in strict mode; so each one that is not in all versions is
named here, and `docs/reference/versions.md` says what follows. A value of another type, one that an
enumeration does not have, and a field that must be given and is not, it refuses.
"""

import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import yaml

from charts import objects_of
from partage.kube.bodies import binding, delete_options, eviction
from partage.wire import shapes

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
KINDS = {
    "Deployment": "apps.Deployment",
    "DaemonSet": "apps.DaemonSet",
    "Job": "batch.Job",
    "Lease": "coordination.Lease",
    "PriorityClass": "scheduling.PriorityClass",
    "PodDisruptionBudget": "policy.PodDisruptionBudget",
    "Eviction": "policy.Eviction",
    "NetworkPolicy": "networking.NetworkPolicy",
    "DeleteOptions": "meta.DeleteOptions",
    "CustomResourceDefinition": "apiextensions.CustomResourceDefinition",
    **{
        kind: f"rbac.{kind}"
        for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    },
    **{
        kind: f"admission.{kind}"
        for kind in (
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        )
    },
}
READ = {
    shapes.Pod: "core.Pod",
    shapes.Node: "core.Node",
    shapes.ConfigMap: "core.ConfigMap",
    shapes.ResourceQuota: "core.ResourceQuota",
    shapes.PriorityClass: "scheduling.PriorityClass",
    shapes.DisruptionBudget: "policy.PodDisruptionBudget",
    shapes.Shape: "core.Namespace",
}
LATER = {
    "core.PodSpec.resources": "1.32",
    "core.Container.restartPolicyRules": "1.34",
    "core.PodResourceClaim.resourceClaimName": "1.31",
    "core.PodResourceClaim.resourceClaimTemplateName": "1.31",
}
"""Fields that we read and that came after 1.28."""
POLICIES_SINCE = "1.30"
"""ValidatingAdmissionPolicy of v1."""


SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "bytes": (str,),
    "bool": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "quantity": (str, int, float),
    "intorstring": (str, int),
    "time": (str,),
    "microtime": (str,),
    "any": (object,),
}


class Fields:
    """The fields of all versions."""

    def __init__(self, text: str) -> None:
        lines = text.splitlines()[1:]
        self.versions = lines[0].split()[1:]
        self.kinds: dict[str, list[tuple[str, frozenset[str]]]] = {}
        for line in lines[1:]:
            name, kind, *minors = line.split()
            known = frozenset(minors or self.versions)
            self.kinds.setdefault(name, []).append((kind, known))
        self.types = {name.rpartition(".")[0] for name in self.kinds if name.count(".") == 2}
        self.required: dict[str, set[str]] = {}
        for name, found in self.kinds.items():
            if any(kind.endswith("!") for kind, _ in found):
                type_, _, field = name.rpartition(".")
                self.required.setdefault(type_, set()).add(field)

    def kind(self, type_: str, field: str, version: str) -> str:
        """What a field holds in a version; empty where there is no such field."""
        return self._stated(f"{type_}.{field}", version).rstrip("!")

    def _stated(self, name: str, version: str) -> str:
        return next((kind for kind, known in self.kinds.get(name, ()) if version in known), "")

    def unknown(self, kind: str, value: Any, version: str, path: str = "") -> Iterator[str]:
        """Fields of a document that the version does not have."""
        if kind.startswith("[") and isinstance(value, list):
            for one in value:
                yield from self.unknown(kind[1:-1], one, version, path)
        elif kind.startswith("{") and isinstance(value, dict):
            for one in value.values():
                yield from self.unknown(kind[1:-1], one, version, path)
        elif kind in self.types and isinstance(value, dict):
            for field, inner in value.items():
                found = self.kind(kind, field, version)
                where = f"{path}.{field}".lstrip(".")
                if field in ("apiVersion", "kind") and not path:
                    continue
                if found:
                    yield from self.unknown(found, inner, version, where)
                else:
                    yield where

    def wrong(self, kind: str, value: Any, version: str, path: str = "") -> Iterator[str]:
        """Values of a whole document that the version refuses; fields that it does not have are left to `unknown`."""
        if value is None:
            return
        if kind.startswith(("[", "{")) and isinstance(value, list if kind[0] == "[" else dict):
            for one in value.values() if isinstance(value, dict) else value:
                yield from self.wrong(kind[1:-1], one, version, path)
        elif kind in self.types and isinstance(value, dict):
            for field in sorted(self.required.get(kind, ())):
                if self._stated(f"{kind}.{field}", version).endswith("!") and field not in value:
                    yield f"{path}.{field} is not given".lstrip(".")
            for field, inner in value.items():
                found = self.kind(kind, field, version) or "any"
                yield from self.wrong(found, inner, version, f"{path}.{field}".lstrip("."))
        elif not self._scalar(kind, value, version):
            yield f"{path} is no {kind}: {value!r}"

    def _scalar(self, kind: str, value: Any, version: str) -> bool:
        """Whether a value that holds no others is one of a kind."""
        if kind in SCALARS:
            right = isinstance(value, SCALARS[kind])
            return right and (kind in ("bool", "any") or not isinstance(value, bool))
        if kind in self.types or kind.startswith(("[", "{")):
            return False
        values = self._stated(kind, version)
        # A type without fields is nowhere in the tables.
        return value in values.split("|") if values else isinstance(value, dict)

    def missing(self, shape: type, kind: str, version: str, seen: set[str]) -> Iterator[str]:
        """Fields of a shape that the version does not have."""
        if kind in seen:
            return
        seen.add(kind)
        for field in msgspec.structs.fields(shape):
            found = self.kind(kind, field.encode_name, version)
            if not found:
                yield f"{kind}.{field.encode_name}"
                continue
            inner = struct_of(get_type_hints(shape)[field.name])
            if inner is not None:
                yield from self.missing(inner, found.strip("[]{}"), version, seen)


def struct_of(hint: Any) -> type | None:
    """The struct within a type, through lists and None."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    found = [struct_of(one) for one in get_args(hint) if one is not types.NoneType]
    return next((one for one in found if one is not None), None)


@cache
def fields() -> Fields:
    """The tables."""
    return Fields((HERE / "fields.txt").read_text())


VERSIONS = fields().versions


def test_the_tables_reach_from_1_28_to_the_newest() -> None:
    """The tables are not empty."""
    assert VERSIONS[0] == "1.28"
    assert VERSIONS[-1] >= "1.37"
    assert len(fields().kinds) > 1000


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_that_is_read_is_there(version: str) -> None:
    """Younger fields are absent in older clusters, and read as absent."""
    found = {
        name
        for shape, kind in READ.items()
        for name in fields().missing(shape, kind, version, set())
    }

    assert found == {
        name for name, since in LATER.items() if VERSIONS.index(version) < VERSIONS.index(since)
    }


def bodies() -> list[tuple[str, dict[str, Any]]]:
    """What our clients send, by the code that sends it."""
    notes, labels = {"partage.io/allocation": "{}"}, {"a": "b"}
    bound = binding("ns", "pod", "node", uid="u", annotations=notes, labels=labels)
    options = delete_options("u", grace_seconds=0)
    told = {"type": "DisruptionTarget", "status": "True", "reason": "x", "message": "y"}
    moment = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    return [
        ("core.Binding", bound),
        ("policy.Eviction", eviction("ns", "pod", "u")),
        ("meta.DeleteOptions", options),
        ("core.Pod", {"metadata": {"uid": "u", "annotations": notes, "labels": labels}}),
        ("core.Pod", {"status": {"nominatedNodeName": "n", "conditions": [{**told, **moment}]}}),
        ("core.Node", {"metadata": {"labels": labels, "resourceVersion": "1"}}),
        ("core.Node", {"status": {"allocatable": {"a": "1"}, "capacity": {"a": "1"}}}),
        ("core.Secret", {"metadata": {"name": "s"}, "data": {"tls.crt": ""}, "type": "Opaque"}),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_that_is_sent_is_known(version: str) -> None:
    """Bindings, evictions, deletions and patches."""
    found = {
        (kind, where) for kind, body in bodies() for where in fields().unknown(kind, body, version)
    }

    assert not found


def chart() -> list[dict[str, Any]]:
    """Every object of the chart, by profile."""
    return [
        one
        for name in ("definitions", "partage")
        for path in sorted(KUSTOMIZE.glob(f"*/{name}.yaml"))
        for one in objects_of(path.read_text())
        if one
    ]


def installable(version: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects of the chart with their types; before 1.30 the rules against forging are not of v1, and it refuses to install."""
    old = VERSIONS.index(version) < VERSIONS.index(POLICIES_SINCE)
    for one in chart():
        kind = KINDS.get(one["kind"], f"core.{one['kind']}")
        if old and one["kind"].startswith("ValidatingAdmissionPolicy"):
            continue
        assert kind in fields().types, one["kind"]
        yield kind, one


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_of_the_chart_is_known(version: str) -> None:
    """The version knows the name of the field."""
    found = {
        (one["kind"], where)
        for kind, one in installable(version)
        for where in fields().unknown(kind, one, version)
    }

    assert not found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_value_of_the_chart_is_taken(version: str) -> None:
    """The type fits, an enumeration has the value, and what is required is given."""
    found = {
        (one["kind"], one["metadata"]["name"], told)
        for kind, one in installable(version)
        for told in fields().wrong(kind, one, version)
    }

    assert not found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_value_that_is_sent_is_taken(version: str) -> None:
    """Patches give a part, so that only what they give is judged."""
    found = {
        (kind, told)
        for kind, body in bodies()
        for told in fields().wrong(kind, body, version)
        if not told.endswith("is not given")
    }

    assert not found


def test_a_field_that_is_not_there_is_found() -> None:
    """The walk sees what it should."""
    wrong = {"spec": {"containers": [{"name": "a", "colour": "red"}]}}
    late = {"spec": {"resources": {}, "schedulingGates": []}}

    assert list(fields().unknown("core.Pod", wrong, "1.36")) == ["spec.containers.colour"]
    assert list(fields().unknown("core.Pod", late, "1.31")) == ["spec.resources"]
    assert not list(fields().unknown("core.Pod", late, "1.32"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hostNetwork": "yes"}, "spec.hostNetwork is no bool: 'yes'"),
        ({"priority": True}, "spec.priority is no int: True"),
        ({"containers": {}}, "spec.containers is no [core.Container]: {}"),
        ({"containers": [{"image": "i"}]}, "spec.containers.name is not given"),
        ({"restartPolicy": "Often"}, "spec.restartPolicy is no core.RestartPolicy: 'Often'"),
        ({"nodeSelector": {"a": 1}}, "spec.nodeSelector is no string: 1"),
    ],
)
def test_a_value_that_is_refused_is_found(change: dict[str, Any], told: str) -> None:
    """The walk sees each kind of mistake, and only that."""
    spec: dict[str, Any] = {"containers": [{"name": "a"}], "restartPolicy": "Never"}

    assert not list(fields().wrong("core.Pod", {"spec": spec}, "1.36"))
    assert list(fields().wrong("core.Pod", {"spec": spec | change}, "1.36")) == [told]


def test_values_are_those_of_the_version() -> None:
    """A toleration by `Gt` came with 1.35."""
    late = {"spec": {"containers": [], "tolerations": [{"operator": "Gt"}]}}

    assert not list(fields().wrong("core.Pod", late, "1.35"))
    assert list(fields().wrong("core.Pod", late, "1.34")) == [
        "spec.tolerations.operator is no core.TolerationOperator: 'Gt'"
    ]


def test_the_chart_asks_for_a_version_that_has_its_rules() -> None:
    """It refuses the versions whose fields it was not checked against."""
    told = yaml.safe_load((ROOT / "deploy" / "helm" / "partage" / "Chart.yaml").read_text())

    assert told["kubeVersion"] == f">={POLICIES_SINCE}.0-0"

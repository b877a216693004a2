"""Writes the generated files of deploy/: the chart's files and the plain manifests.

    .venv/bin/python deploy/generate.py files       the chart's files/: definitions, rules, configuration
    .venv/bin/python deploy/generate.py schema      descriptions in values.schema.json and the chart's README.md, from the comments of values.yaml
    .venv/bin/python deploy/generate.py dashboards  deploy/observability/*.json, from the tables of panels.py
    .venv/bin/python deploy/generate.py kustomize   deploy/kustomize, from `helm template` (needs helm)

Tests compare the files with its output.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from kube_scheduler_config import (
    ExtenderAccess,
    kube_scheduler_config,
    left_to_the_ledger,
)
from own_fields import own_fields, own_slices
from panels import DASHBOARDS, dashboard

from partage.embedded.definitions import DEFINITIONS, DEVICES, ELASTIC_GPUS
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.webhook.installation import Endpoint, installation
from partage.webhook.settings import Admission
from partage.wire.context import Context

sys.path.append(str(Path(__file__).parents[1] / "tests" / "tools"))
from reference.pages import value_comments, values_page  # after the path

HERE: Final = Path(__file__).parent
CHART: Final = HERE / "helm" / "partage"
KUBE_VERSION: Final = "1.36.4"
NAMESPACES: Final = {
    "default": "partage-system",
    "extender": "partage-system",
    "qgpu": "kube-system",
    "koordinator": "koordinator-system",
    "hami": "kube-system",
}
"""Profiles, and the namespace of each."""
_MOUNT: Final = "/etc/partage"
_PLACEHOLDER: Final = "@RESOURCES@"


def files() -> dict[str, str]:
    """The chart's generated files by name."""
    context = Context.of(Settings())
    known = sorted({*context.owners, *context.triggers})
    objects = installation(Endpoint(), context, Admission(), claims=True, translate=True)
    rules = json.dumps(objects, indent=2)
    listed = "': true, '".join(known)
    admission = {
        "resources": known,
        "objects": json.loads(rules.replace(listed, _PLACEHOLDER)),
    }
    access = ExtenderAccess(
        "https://service", f"{_MOUNT}/ca.crt", f"{_MOUNT}/tls.crt", f"{_MOUNT}/tls.key"
    )
    beside = kube_scheduler_config(
        access, left_to_the_ledger(FAMILIES, Settings()), ["partage-scheduler"]
    )
    plugged = kube_scheduler_config(
        None, left_to_the_ledger(FAMILIES, Settings()), ["partage-scheduler"]
    )
    defined = {one["metadata"]["name"]: one for one in DEFINITIONS}
    made = {
        "admission.json": admission,
        "own-fields.json": {**own_fields(), "slices": own_slices()},
        "kube-scheduler.json": beside,
        "kube-scheduler-plugin.json": plugged,
        "devices.json": defined[DEVICES],
        "elasticgpu.json": defined[ELASTIC_GPUS],
    }
    rules = yaml.safe_load((HERE / "observability" / "alerts.yaml").read_text(encoding="utf-8"))
    made |= {"alerts.json": rules} | {f"{uid}.json": dashboard(uid) for uid in DASHBOARDS}
    return {name: json.dumps(value, indent=2) + "\n" for name, value in made.items()}


def dashboards() -> dict[str, str]:
    """Grafana's dashboards by file name."""
    return {f"{uid}.json": json.dumps(dashboard(uid), indent=2) + "\n" for uid in DASHBOARDS}


def schema() -> dict[str, str]:
    """The chart's schema, each value described by the comment above it in values.yaml; editors show it.

    Every value with a default must exist. Only `helm upgrade --reuse-values` can omit one, with all values of a release
    that did not have it yet. The schema rejects this by name, so that no empty value is rendered.
    """
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    told = value_comments(values)
    made = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    described(made, told, ())
    required(made, yaml.safe_load(values))
    return {"values.schema.json": json.dumps(made, indent=2, ensure_ascii=False) + "\n"}


def readme() -> dict[str, str]:
    """The chart's own page: its purpose, its installation, and every value."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    _head, _title, table = values_page(values).partition("| value |")
    text = (
        f"<!-- Made by deploy/generate.py from values.yaml and Chart.yaml; change those instead. -->\n# {chart['name']}\n\n"
        f"{chart['description']}\n\n"
        f"Kubernetes {chart['kubeVersion'].removesuffix('-0')}. Alpha: of the agent, only parts were tried on real cards. [All of it]({chart['home']}/blob/main/docs/how-to/install.md)\n"
        "is in the documentation; in short:\n\n"
        "    helm install partage deploy/helm/partage -n partage-system --create-namespace\n\n"
        f"`profiles/` holds values for clusters that come from another system: {', '.join(sorted(NAMESPACES.keys() - {'default'}))}\n"
        "(`-f deploy/helm/partage/profiles/hami.yaml`). `fullnameOverride` is the prefix of\n"
        "names, and each object's name is a value too (`names`).\n\n## Values\n\n"
    )
    return {"README.md": f"{text}{_title}{table}"}


def described(node: dict[str, Any], told: dict[str, str], path: tuple[str, ...]) -> None:
    """Describe the properties below a node of a schema."""
    for name, below in node.get("properties", {}).items():
        here = (*path, name)
        rest = {key: value for key, value in below.items() if key != "description"}
        below.clear()
        if ".".join(here) in told:
            below["description"] = told[".".join(here)]
        below.update(rest)
        described(below, told, here)


def required(node: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Make the objects of a schema require the properties with a default."""
    names = [name for name in node.get("properties", {}) if values.get(name) is not None]
    node.pop("required", None)
    if names:
        node["required"] = names
    for name in names:
        if isinstance(values[name], dict):
            required(node["properties"][name], values[name])


def rendered(helm: str, profile: str, *options: str, hooks: bool = False) -> str:
    """The output of `helm template` for a profile; the objects of uninstalling only if hooks are wanted."""
    values = [] if profile == "default" else ["-f", str(CHART / "profiles" / f"{profile}.yaml")]
    command = [
        helm,
        "template",
        "partage",
        str(CHART),
        "-n",
        NAMESPACES[profile],
        "--kube-version",
        KUBE_VERSION,
        *([] if hooks else ["--no-hooks"]),
        *values,
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 # a program of the tool cache


def kustomize(helm: str) -> dict[str, str]:
    """The plain manifests: path under deploy/kustomize to text.

    Objects that must survive Partage, because others' objects depend on them, are in a file of their own. The
    other one begins with the webhook configurations, because `kubectl delete -f` follows the order.
    """
    made: dict[str, str] = {}
    for profile, namespace in NAMESPACES.items():
        objects = [one for one in yaml.safe_load_all(rendered(helm, profile)) if one]
        for one in objects:
            one["metadata"].get("labels", {}).pop("app.kubernetes.io/managed-by", None)
        definitions = [one for one in objects if one["kind"] == "CustomResourceDefinition"]
        for one in definitions:
            one["metadata"].pop("annotations", None)
        if namespace != "kube-system":
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            definitions.insert(0, space)
        rest = [one for one in objects if one not in definitions]
        rest.sort(key=lambda one: not one["kind"].endswith("WebhookConfiguration"))
        head = "# Made by deploy/generate.py from the chart; change that instead.\n"
        for name, held in (("definitions", definitions), ("partage", rest)):
            text = yaml.safe_dump_all(held, sort_keys=False, width=120)
            made[f"{profile}/{name}.yaml"] = head + text
        made[f"{profile}/kustomization.yaml"] = (
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
            "resources: [definitions.yaml, partage.yaml]\n"
        )
    return made


def main() -> None:
    """Write files, schema, dashboards or kustomize."""
    what, *rest = sys.argv[1:] or ["files"]
    if what == "files":
        root, made = CHART / "files", files()
    elif what == "schema":
        root, made = CHART, schema() | readme()
    elif what == "dashboards":
        root, made = HERE / "observability", dashboards()
    else:
        helm = rest[0] if rest else "helm"
        root, made = HERE / "kustomize", kustomize(helm)
    for name, text in made.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()

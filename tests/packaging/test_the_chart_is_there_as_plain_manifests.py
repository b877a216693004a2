"""`deploy/kustomize`: all of the chart, in two files, of which the one that is deleted deletes no object of others."""

from pathlib import Path
from typing import Any

import pytest

from charts import HELM, generate, needs_helm, objects_of

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
LASTING = ("Namespace", "CustomResourceDefinition")
"""Kinds whose deletion takes the objects of all users along."""


def read(profile: str, name: str) -> list[dict[str, Any]]:
    """The objects of a file."""
    text = (KUSTOMIZE / profile / f"{name}.yaml").read_text(encoding="utf-8")
    return objects_of(text)


def known(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Kind, namespace and name of each object, in order."""
    heads = [(one["kind"], one["metadata"]) for one in found]
    return sorted((kind, head.get("namespace", ""), head["name"]) for kind, head in heads)


@pytest.mark.parametrize("profile", generate.NAMESPACES)
def test_what_is_deleted_takes_nothing_of_others_along(profile: str) -> None:
    """Definitions and the namespace are beside it."""
    kinds = {one["kind"] for one in read(profile, "partage")}

    assert not kinds & {*LASTING}
    assert {one["kind"] for one in read(profile, "definitions")} <= {*LASTING}


@pytest.mark.parametrize("profile", generate.NAMESPACES)
def test_webhook_configurations_are_deleted_first(profile: str) -> None:
    """They are deleted in the order of the file."""
    kinds = [one["kind"] for one in read(profile, "partage")]
    first = [kind.endswith("WebhookConfiguration") for kind in kinds]

    assert sum(first) == len({"mutating", "validating"})
    assert first == sorted(first, reverse=True)


@needs_helm
@pytest.mark.parametrize("profile", generate.NAMESPACES)
def test_both_files_are_the_chart(profile: str) -> None:
    """Each object once, the hooks of uninstalling aside; the namespace is what helm would make."""
    rendered = objects_of(generate.rendered(str(HELM), profile))
    chart = known([one for one in rendered if one])
    namespace = generate.NAMESPACES[profile]
    made = [] if namespace == "kube-system" else [("Namespace", "", namespace)]

    assert known(read(profile, "definitions") + read(profile, "partage")) == sorted(chart + made)


@pytest.mark.parametrize("profile", generate.NAMESPACES)
def test_the_kustomization_lists_both(profile: str) -> None:
    """`kubectl apply -k` makes all."""
    (listed,) = read(profile, "kustomization")

    assert listed["resources"] == ["definitions.yaml", "partage.yaml"]

"""Helm, for tests that look at what the chart comes out as; with it the script that renders the chart."""

import os
from pathlib import Path
from typing import Any

import generate
import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"

__all__ = ["HELM", "TOOLS", "generate", "needs_helm", "objects_of"]

TOOLS = Path(os.environ.get("PARTAGE_TOOLS", str(Path.home() / ".cache/partage/tools")))
"""What `make test-cluster` fetched."""
HELM = next(iter(sorted(TOOLS.glob("helm-v*/helm"))), None)
needs_helm = pytest.mark.skipif(
    HELM is None, reason=f"no helm in {TOOLS}: make test-cluster fetches it"
)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one that is not written in Python takes a tenth of the time, where PyYAML has it."""


def objects_of(text: str) -> list[Any]:
    """The objects of manifests; what is empty is left out."""
    return [one for one in yaml.load_all(text, _LOADER) if one]  # both are safe

"""Helm, for tests that look at what the chart comes out as; with it the script that renders the chart."""

import os
from pathlib import Path

import generate
import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"

__all__ = ["HELM", "TOOLS", "generate", "needs_helm"]

TOOLS = Path(os.environ.get("PARTAGE_TOOLS", str(Path.home() / ".cache/partage/tools")))
"""What `make test-cluster` fetched."""
HELM = next(iter(sorted(TOOLS.glob("helm-v*/helm"))), None)
needs_helm = pytest.mark.skipif(
    HELM is None, reason=f"no helm in {TOOLS}: make test-cluster fetches it"
)

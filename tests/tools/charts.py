"""Helm, for tests that look at what the chart comes out as; with it the script that renders the chart."""

import os
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
sys.path.insert(0, str(DEPLOY))
import generate  # noqa: E402 # a script beside what it writes

__all__ = ["HELM", "TOOLS", "generate", "needs_helm"]

TOOLS = Path(os.environ.get("PARTAGE_TOOLS", str(Path.home() / ".cache/partage/tools")))
"""What `make test-cluster` fetched."""
HELM = next(iter(sorted(TOOLS.glob("helm-v*/helm"))), None)
needs_helm = pytest.mark.skipif(
    HELM is None, reason=f"no helm in {TOOLS}: make test-cluster fetches it"
)

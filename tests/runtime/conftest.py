"""Skips what needs a genuine container runtime where it cannot be had."""

import os
from pathlib import Path

import containerd
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a genuine container runtime, unless `make test-cluster` asks for it."""
    reason = containerd.missing()
    if not os.environ.get("PARTAGE_CLUSTER"):
        reason = "needs a genuine container runtime: make test-cluster"
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("cluster")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))

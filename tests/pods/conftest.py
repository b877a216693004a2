"""Skips what needs a cluster of pods, unless `make test-pods` asks for it."""

import os
from pathlib import Path

import pods_cluster
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot be had here, with the reason."""
    reason = "needs images and a cluster of pods: make test-pods"
    if os.environ.get("PARTAGE_PODS"):
        reason = pods_cluster.missing()
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("cluster")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))

"""One genuine cluster with Partage in it for all tests here, where it can be had."""

import os
from collections.abc import Iterator
from pathlib import Path

import control_plane
import pytest
import stack as partage_stack

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a genuine control plane, unless `make test-cluster` asks for it."""
    reason = control_plane.missing("kube-apiserver", "kube-scheduler", "kube-controller-manager")
    if not os.environ.get("PARTAGE_CLUSTER"):
        reason = "needs a genuine control plane: make test-cluster"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("cluster")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[partage_stack.Stack]:
    """The cluster."""
    with partage_stack.stack(tmp_path_factory.mktemp("cluster")) as made:
        yield made

"""What the tests of the enforcement library share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from native_world import World

from native_build import built


@pytest.fixture(scope="session")
def build() -> Path:
    """The build folder; skips where there is no compiler."""
    return built()


@pytest.fixture
def world(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A modelled card; its folder's path is short, as a socket's must be."""
    world = World(tmp_path_factory.mktemp("w"), build)
    yield world
    world.close()


@pytest.fixture
def world_by_work(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A modelled card on which only work takes time."""
    world = World(tmp_path_factory.mktemp("w"), build, by_work=True)
    yield world
    world.close()

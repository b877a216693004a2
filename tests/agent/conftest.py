"""What many tests of the agent need."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="agent") as made:
        yield Path(made)

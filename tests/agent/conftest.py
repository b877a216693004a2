"""What many tests of the agent need."""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.agent import container_admission
from partage.agent.isolation import lookers


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be late with a look's thread, and its files still answer; the tests of looks that are late say so."""
    for module in (container_admission, lookers):
        monkeypatch.setattr(module, "_PATIENCE", 240.0)
    monkeypatch.setattr(container_admission, "_CREDIT", math.inf)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="agent") as made:
        yield Path(made)

"""The native build of the tests: once for all processes, and kept by the gate for the next clone."""

import shutil
from pathlib import Path

import pytest

import native_build

MAKEFILE = """
$(OUT)/program: $(OUT)/libpartage-isolation.so
\tcp $< $@
\techo program >> made
$(OUT)/libpartage-isolation.so: library.c
\tcp $< $@
\techo library >> made
"""


def clone(folder: Path, text: str) -> Path:
    """A tree with something to build in it."""
    native = folder / "native"
    native.mkdir(parents=True)
    (native / "Makefile").write_text(MAKEFILE)
    (native / "library.c").write_text(text)
    return folder


def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Build a tree, check the result, and say which files were made."""
    monkeypatch.setattr(native_build, "ROOT", folder)
    out = native_build.built()
    assert (out / "program").read_text() == (folder / "native/library.c").read_text()
    log = folder / "native/made"
    told = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return told


def test_a_gate_keeps_what_it_has_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next clone copies it; another source, and a source that was changed since, is built again."""
    monkeypatch.setattr(native_build, "CACHE", tmp_path / "cache")
    monkeypatch.delenv("PARTAGE_GATE", raising=False)
    assert made(clone(tmp_path / "by-hand", "one"), monkeypatch) == ["library", "program"]
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("PARTAGE_GATE", "1")
    first = clone(tmp_path / "first", "one")
    assert made(first, monkeypatch) == ["library", "program"]
    assert made(first, monkeypatch) == []

    next_ = clone(tmp_path / "next", "one")
    assert made(next_, monkeypatch) == []
    (next_ / "native/library.c").write_text("two")
    assert made(next_, monkeypatch) == ["library", "program"]
    assert made(clone(tmp_path / "other", "two"), monkeypatch) == []
    shutil.rmtree(tmp_path / "cache")
    assert made(clone(tmp_path / "cold", "two"), monkeypatch) == ["library", "program"]

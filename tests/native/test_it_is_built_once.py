"""The native build of the tests: once for all processes, and kept by the gate for the next clone."""

import shutil
import subprocess
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


COMPILED = """
$(OUT)/libpartage-isolation.so: one.c two.c shared.h
\t$(CC) -O1 -Wall -Werror $(if $(SANITIZE),-DCHECKED) -o $@ one.c two.c
"""
SOURCES = {
    "Makefile": COMPILED,
    "shared.h": "int two(void);\n",
    "one.c": '#include "shared.h"\nint main(void) { return two(); }\n',
    "two.c": "int two(void) { return 2; }\n",
}


def test_a_gate_compiles_only_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By compiler, options, source and headers; what cannot be compiled is kept by no one."""
    monkeypatch.setattr(native_build, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PARTAGE_GATE", "1")
    clones = 0

    def compiled(sanitize: str = "", **changed: str) -> tuple[int, int]:
        """How many objects a fresh clone adds, and what its program ends with."""
        nonlocal clones
        clones += 1
        native = tmp_path / f"clone-{clones}/native"
        native.mkdir(parents=True)
        for name, text in SOURCES.items():
            (native / name).write_text(changed.get(name.replace(".", "_"), text))
        objects = tmp_path / "cache/objects"
        before = set(objects.glob("*"))
        monkeypatch.setattr(native_build, "ROOT", native.parent)
        out = native_build.built(sanitize=sanitize)
        added = set(objects.glob("*")) - before
        ended = subprocess.run([out / "libpartage-isolation.so"], check=False).returncode
        return len(added), ended

    assert compiled() == (2, 2)
    assert compiled(Makefile=COMPILED + "# said\n") == (0, 2)
    assert compiled(two_c="int two(void) { return 3; }\n") == (1, 3)
    assert compiled(
        shared_h="#define two() two_of(4)\nint two_of(int);\n",
        two_c="int two_of(int n) { return n; }\n",
    ) == (2, 4)
    assert compiled("checked") == (2, 2)
    with pytest.raises(AssertionError, match="unused variable"):
        compiled(two_c="int two(void) { int kept; return 2; }\n")
    assert compiled(Makefile=COMPILED + "# again\n") == (0, 2)

"""Modules and files that pages name are in the repository, by the names of today."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_blocks import PAGES, ROOT

PACKAGE = ROOT / "src/partage"
LAYERS = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
QUOTED = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"(?:partage\.)?([a-z_]+(?:\.[a-zA-Z_]\w*)+)")
PATH = re.compile(r"(?:src|tests|bench|native|docs|kube-scheduler|deploy|examples)/[\w./-]+\w")
INSIDE = re.compile(rf"(?:{'|'.join(sorted(LAYERS))})/[\w/]+\.(?:py|js)")
OTHERS = ("native/build", "docs/develop")
"""What is built, and a folder of HAMi's."""
RECORDS = ("CHANGELOG.md", "docs/decisions/", "docs/conformance", "docs/sources/")
"""What is said of another time, or of another program's files."""
NAMED = [path for path in PAGES if not str(path.relative_to(ROOT)).startswith(RECORDS)]


def is_module(name: str) -> bool:
    """Whether `package.module` is one of ours, or something that is defined in one."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        file = PACKAGE.joinpath(*parts[:size])
        if file.is_dir():
            return (
                size == len(parts)
                or (file / "__init__.py").read_text("utf-8").find(parts[size]) >= 0
            )
        if file.with_suffix(".py").is_file():
            text = file.with_suffix(".py").read_text("utf-8")
            return all(re.search(rf"\b{word}\b", text) for word in parts[size:])
    return False


def missing(text: str, *, architecture: bool = False) -> Iterator[str]:
    """Names of modules and files that are not there."""
    for word in QUOTED.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        dotted = DOTTED.fullmatch(word) if architecture or word.startswith("partage.") else None
        if PATH.fullmatch(word):
            there = word.startswith(OTHERS) or (ROOT / word).exists()
        elif INSIDE.fullmatch(word):
            there = (PACKAGE / word).is_file()
        else:
            there = not dotted or dotted[1].split(".")[0] not in LAYERS or is_module(dotted[1])
        if not there:
            yield word


@pytest.mark.parametrize("page", NAMED, ids=[str(one.relative_to(ROOT)) for one in NAMED])
def test_what_a_page_names_is_there(page: Path) -> None:
    """Between backquotes: paths, and in ARCHITECTURE.md modules by package."""
    text = page.read_text(encoding="utf-8")
    assert list(missing(text, architecture=page.name == "ARCHITECTURE.md")) == []


def test_architecture_is_read_in_five_minutes() -> None:
    """At most 150 lines."""
    assert (ROOT / "ARCHITECTURE.md").read_text("utf-8").count("\n") <= 150


def test_a_name_of_yesterday_is_noticed() -> None:
    """A module that was renamed, a path, a file inside the package, and a word that a module lacks."""
    text = "`extender.intake` `tests/none/test_x.py` `placement/guard.py` `scheduler.engine.Engine.vanished_word`"
    assert len(list(missing(text, architecture=True))) == 4
    there = "`extender.cluster_cache` `tests/docs` `placement/card.py` `scheduler.engine.Engine` `partage.io/x`"
    assert list(missing(there, architecture=True)) == []

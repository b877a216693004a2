"""requirements/*.txt have all that pyproject.toml declares, new enough, and each version by its hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_PINNED = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)(?: ; [^\\]+)? \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
    re.MULTILINE,
)


def locked(name: str) -> dict[str, set[str]]:
    """Versions by package, of the lines that have a hash."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for package, version, _ in _PINNED.findall(text):
        found.setdefault(canonicalize_name(package), set()).add(version)
    assert sum(map(len, found.values())) == len(re.findall("^[A-Za-z]", text, re.MULTILINE)), (
        "a line without a hash"
    )
    return found


def declared(extras: tuple[str, ...], groups: tuple[str, ...]) -> list[Requirement]:
    """What pyproject.toml asks for."""
    lines = [*PROJECT["project"]["dependencies"]]
    for extra in extras:
        lines += PROJECT["project"]["optional-dependencies"][extra]
    for group in groups:
        lines += [one for one in PROJECT["dependency-groups"][group] if isinstance(one, str)]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize(
    ("name", "extras", "groups"),
    [
        ("image", ("fast", "node", "nvidia", "solver", "trace"), ()),
        ("dev", ("fast", "plot", "solver"), ("test", "lint", "docs")),
    ],
)
def test_what_is_declared_is_locked(
    name: str, extras: tuple[str, ...], groups: tuple[str, ...]
) -> None:
    """Each package, in versions that pyproject.toml allows; `make lock` writes them again."""
    have = locked(name)

    for one in declared(extras, groups):
        versions = have.get(canonicalize_name(one.name))
        assert versions, f"{one.name} is not in requirements/{name}.txt: make lock"
        assert all(version in one.specifier for version in versions), f"{one}: make lock"


def test_the_builder_is_locked() -> None:
    """What builds the wheel of the image."""
    (wanted,) = map(Requirement, PROJECT["build-system"]["requires"])

    assert all(version in wanted.specifier for version in locked("build")[wanted.name])

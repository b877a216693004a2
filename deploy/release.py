"""Makes a release of this tree, or prints its steps.

    .venv/bin/python deploy/release.py 0.2.0            prints the changes; changes nothing
    .venv/bin/python deploy/release.py 0.2.0 --write    changes the files, and builds wheel and source package into dist/

Four places contain the version, and so do the manifests that are made from the chart. The changelog's section of
unreleased changes gets its number and date. People commit, tag and publish; the last lines of output have the
commands.
"""

import argparse
import difflib
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_PLACES: Final[dict[str, str]] = {
    "pyproject.toml": r'(?m)^(version = ")([^"]+)(")$',
    "src/partage/__init__.py": r'(?m)^(__version__ = ")([^"]+)(")$',
    "deploy/helm/partage/Chart.yaml": r"(?m)^((?:version|appVersion): )(\S+)()$",
    "docs/how-to/install.md": r"(registry\.example\.com/\$image:)([\w.]+)()",
    "Dockerfile": r"(registry\.example\.com/partage:)([\w.]+)()",
    "kube-scheduler/Dockerfile": r"(registry\.example\.com/kube-scheduler:)([\w.]+)()",
}
"""Patterns with the version as their second group, by file."""
_IMAGES: Final = r"(registry\.example\.com/[a-z-]+:|app\.kubernetes\.io/version: )([\w.]+)()"
_CHANGELOG: Final = "CHANGELOG.md"
_UNRELEASED: Final = "## [Unreleased]\n"


class CannotRelease(Exception):
    """The release is not possible; the message has the reason and a remedy."""


def current(root: Path) -> str:
    """The version that every place agrees on.

    Raises:
        CannotRelease: two places disagree, or one has none.
    """
    found: dict[str, set[str]] = {}
    for name, pattern in _PLACES.items():
        versions = {hit[1] for hit in re.findall(pattern, (root / name).read_text("utf-8"))}
        if not versions:
            raise CannotRelease(f"{name}: no version is found there; see _PLACES in {__file__}")
        found[name] = versions
    known = set().union(*found.values())
    if len(known) > 1:
        told = ", ".join(f"{name} {'/'.join(sorted(v))}" for name, v in found.items())
        raise CannotRelease(f"the places disagree about the version ({told}); make them one first")
    return known.pop()


def changes(root: Path, version: str, today: str) -> dict[str, str]:
    """New texts of the files that change, by path.

    Args:
        root: of the repository.
        version: the new one.
        today: ISO date of the release.

    Raises:
        CannotRelease: the version is invalid or not newer, or there are no changes.
    """
    if not _VERSION.fullmatch(version):
        raise CannotRelease(f"{version!r} is no version; write MAJOR.MINOR.PATCH, as in 0.2.0")
    before = current(root)
    if _ordered(version) <= _ordered(before) and f"## [{before}]" in (root / _CHANGELOG).read_text(
        "utf-8"
    ):
        raise CannotRelease(
            f"{version} is not newer than {before}, which is released; choose a higher one"
        )
    made = {name: _replaced(root / name, pattern, version) for name, pattern in _PLACES.items()}
    for path in sorted((root / "deploy/kustomize").glob("*/*.yaml")):
        made[path.relative_to(root).as_posix()] = _replaced(path, _IMAGES, version)
    made[_CHANGELOG] = _released(root / _CHANGELOG, version, today)
    return {name: text for name, text in made.items() if text != (root / name).read_text("utf-8")}


def _ordered(version: str) -> tuple[list[int], bool]:
    numbers = re.findall(r"\d+", version)
    return [int(number) for number in numbers[:3]], not re.search("[a-z]", version)


def _replaced(path: Path, pattern: str, version: str) -> str:
    insert: Callable[[re.Match[str]], str] = lambda hit: f"{hit[1]}{version}{hit[3]}"  # noqa: E731 # used once
    return re.sub(pattern, insert, path.read_text("utf-8"))


def _released(path: Path, version: str, today: str) -> str:
    text = path.read_text("utf-8")
    head, found, rest = text.partition(_UNRELEASED)
    part = rest.split("\n## [")[0]
    if not found or "\n* " not in part:
        raise CannotRelease(
            f"{path.name}: nothing stands under [Unreleased]; write what changed there first"
        )
    return f"{head}{_UNRELEASED}\n## [{version}] - {today}\n{rest}"


def main(arguments: list[str]) -> int:
    """Say or do it; 2 where something is in the way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--write", action="store_true", help="change the files and build")
    given = parser.parse_args(arguments)
    try:
        made = changes(ROOT, given.version, datetime.now(UTC).date().isoformat())
    except CannotRelease as error:
        sys.stderr.write(f"release: {error}\n")
        return 2
    for name, text in made.items():
        old = (ROOT / name).read_text("utf-8").splitlines(keepends=True)
        sys.stdout.writelines(
            difflib.unified_diff(old, text.splitlines(keepends=True), name, name, n=0)
        )
        if given.write:
            (ROOT / name).write_text(text, encoding="utf-8")
    if given.write:
        script = "from hatchling.build import build_sdist, build_wheel; [print('dist/' + b('dist')) for b in (build_wheel, build_sdist)]"
        subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)  # noqa: S603 # ourselves
    told = "" if given.write else "Nothing was changed; --write does it. "
    sys.stdout.write(
        f"{told}Then: make reference, make test, git commit -am 'Release {given.version}', "
        f"git tag v{given.version}, IMAGE_ARCHIVES=dist make image, "
        "deploy/evidence.py dist --key FILE, and publish dist/ and the images.\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

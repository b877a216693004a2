"""deploy/release.py: one version everywhere, a dated changelog, and no change without `--write`."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import release

from partage import __version__

ROOT = Path(__file__).parents[2]

TODAY = "2026-12-01"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files in which a version stands."""
    for name in (*release._PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "deploy/kustomize", tmp_path / "deploy/kustomize")
    return tmp_path


def test_all_places_agree_now() -> None:
    """This tree has one version, which the program tells."""
    assert release.current(ROOT) == __version__


def test_every_place_gets_the_new_version(tree: Path) -> None:
    """The old version is nowhere left, and the changelog has a new section."""
    for name, text in release.changes(tree, "9.8.7", TODAY).items():
        (tree / name).write_text(text, encoding="utf-8")

    assert release.current(tree) == "9.8.7"
    folder = tree / "deploy/kustomize/default"
    definitions = (folder / "definitions.yaml").read_text("utf-8")
    manifests = (folder / "partage.yaml").read_text("utf-8")
    assert set(re.findall(r"registry\.example\.com/partage:(\S+)", manifests)) == {"9.8.7"}
    for text in (definitions, manifests):
        assert set(re.findall(r"app\.kubernetes\.io/version: (\S+)", text)) == {"9.8.7"}
    log = (tree / "CHANGELOG.md").read_text("utf-8")
    assert f"## [Unreleased]\n\n## [9.8.7] - {TODAY}\n\n" in log


def test_a_second_release_needs_changes_and_a_higher_version(tree: Path) -> None:
    """What is wrong is named, with what to do."""
    for name, text in release.changes(tree, "9.8.7", TODAY).items():
        (tree / name).write_text(text, encoding="utf-8")

    with pytest.raises(release.CannotRelease, match=r"9\.8\.6 is not newer than 9\.8\.7"):
        release.changes(tree, "9.8.6", TODAY)
    with pytest.raises(release.CannotRelease, match="nothing stands under"):
        release.changes(tree, "9.8.8", TODAY)
    with pytest.raises(release.CannotRelease, match=r"write MAJOR\.MINOR\.PATCH"):
        release.changes(tree, "9.9", TODAY)


def test_places_that_disagree_are_named(tree: Path) -> None:
    """A version that was changed by hand in one place stops the release."""
    chart = tree / "deploy/helm/partage/Chart.yaml"
    chart.write_text(chart.read_text("utf-8").replace(f"version: {__version__}", "version: 7.7.7"))

    with pytest.raises(release.CannotRelease, match=r"Chart\.yaml .*7\.7\.7"):
        release.changes(tree, "9.8.7", TODAY)


def test_without_being_told_nothing_changes() -> None:
    """The script shows differences and ends; a wrong version is exit code 2."""
    watched = [ROOT / name for name in (*release._PLACES, "CHANGELOG.md")]
    before = [path.read_bytes() for path in watched]

    def run(version: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "deploy/release.py"), version]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good, bad = run("99.0.0"), run("x")

    assert good.returncode == 0
    assert '+version = "99.0.0"' in good.stdout
    assert "Nothing was changed" in good.stdout
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "'x' is no version" in bad.stderr
    assert [path.read_bytes() for path in watched] == before

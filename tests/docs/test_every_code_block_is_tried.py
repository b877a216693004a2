"""Code blocks of all pages: data is data, commands exist, manifests are read, the site builds.

What a block behind `$ partage` prints is in `test_the_pages_tell_the_truth`; the quick start is
followed command by command in tests/embedded.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml

from partage.embedded.manifests import read

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
CHART = ROOT / "deploy/helm/partage"
MADE = "docs/conformance.md"
"""Thousands of lines of manifests, each of which is a case of tests/conformance."""
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_WORDS = ("partage", "kubectl partage")


class Block(NamedTuple):
    """One fenced block."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        first = self.text.strip().splitlines()[:1]
        return f"{self.page}: {first[0] if first else ''}"


class Command(NamedTuple):
    """One line of a shell."""

    page: str
    line: str

    @property
    def words(self) -> list[str]:
        """The program and its arguments, without pipes, redirections and what comes after."""
        found = shlex.split(self.line.removeprefix("$ "), comments=True)
        ends = [n for n, word in enumerate(found) if word in ("|", ">", "||", "&&", "<")]
        return found[: min(ends, default=len(found))]


def _blocks() -> list[Block]:
    found = []
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for indent, language, text in _BLOCK.findall(page.read_text("utf-8")):
            lines = [line.removeprefix(indent) for line in text.splitlines(keepends=True)]
            found.append(Block(name, language, "".join(lines)))
    return found


BLOCKS = [block for block in _blocks() if block.page != MADE]
DATA = [block for block in BLOCKS if block.language in ("yaml", "json", "toml")]
PLAIN = [b for b in BLOCKS if not b.language and b.text.startswith(("partage ", "kubectl "))]


def _commands() -> list[Command]:
    found = []
    for block in [b for b in BLOCKS if b.language in ("sh", "console")] + PLAIN:
        text = re.sub(r"\\\n\s*", "", block.text)
        lines = text.splitlines()
        if block.language == "console":
            lines = [line for line in lines if line.startswith("$ ")]
        found += [Command(block.page, line.strip()) for line in lines if line.strip()]
    return [one for one in found if one.words and "..." not in one.line]


COMMANDS = _commands()


def _of(*programs: str) -> list[Command]:
    return [c for c in COMMANDS if c.words[: len(programs)] == list(programs)]


@pytest.mark.parametrize("block", DATA, ids=str)
def test_data_is_what_it_says(block: Block, tmp_path: Path) -> None:
    """YAML, JSON and TOML can be read; manifests of Kubernetes are read as `partage up` does."""
    if block.language == "toml":
        assert tomllib.loads(block.text)
        return
    documents = list(yaml.safe_load_all(block.text))
    assert all(document is not None for document in documents)
    if block.language == "json":
        json.loads(block.text)
    if all(isinstance(d, dict) and d.get("kind") and d.get("metadata") for d in documents):
        file = tmp_path / "page.yaml"
        file.write_text(block.text, encoding="utf-8")
        assert read([file])


def _command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The subcommand that words name, and what is left of them."""
    (entry,) = entry_points(group="console_scripts", name="partage")
    command: click.Command = entry.load()
    while isinstance(command, click.Group):
        assert words, "a subcommand is missing"
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words[0]
        command, words = found, words[1:]
    return command, words


PARTAGE = [
    Command(c.page, " ".join(map(shlex.quote, c.words[c.words.index("partage") + 1 :])))
    for c in COMMANDS
    if c.words[:1] == ["partage"] or c.words[:2] in (["sudo", "partage"], ["kubectl", "partage"])
]


@pytest.mark.parametrize("given", PARTAGE, ids=[f"{c.page}: {c.line}" for c in PARTAGE])
def test_a_partage_command_exists_with_its_options(given: Command) -> None:
    """No page names a subcommand, an option or a choice that is not there."""
    command, words = _command(shlex.split(given.line))
    options = {o: p for p in command.params for o in (*p.opts, *p.secondary_opts)} | {
        "--help": None
    }

    for at, word in enumerate(words):
        name, _, _ = word.partition("=")
        if word.startswith("-") and word != "-":
            assert name in options, f"{given.page}: {name}"
            option = options[name]
            if isinstance(option, click.Option) and isinstance(option.type, click.Choice):
                assert words[at + 1] in option.type.choices, given.page


@pytest.mark.parametrize("given", _of("make"), ids=lambda c: f"{c.page}: {c.line}")
def test_a_target_of_make_exists(given: Command) -> None:
    """Each is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [word for word in given.words[1:] if "=" not in word]

    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("given", _of("helm"), ids=lambda c: f"{c.page}: {c.line}")
def test_values_that_helm_is_given_exist(given: Command) -> None:
    """Each chart, file and value is there, because the chart refuses others."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    words = given.words
    for at, word in enumerate(words):
        if word.startswith("deploy/"):
            assert (ROOT / word).exists()
        if word == "--set":
            found = values
            for part in words[at + 1].partition("=")[0].split("."):
                assert part in found, words[at + 1]
                found = found[part]


@pytest.mark.parametrize("given", _of("kubectl"), ids=lambda c: f"{c.page}: {c.line}")
def test_kubectl_is_asked_for_what_it_has(given: Command) -> None:
    """A verb of kubectl; folders that are applied are there."""
    verbs = ("get", "describe", "apply", "delete", "annotate", "logs", "create", "scale", "rollout", "partage", "label")  # fmt: skip
    words = given.words
    verb = next(word for word in words[1:] if word in verbs or not _is_option(words, word))

    assert verb in verbs
    if "-k" in words:
        assert (ROOT / words[words.index("-k") + 1] / "kustomization.yaml").is_file()


def _is_option(words: list[str], word: str) -> bool:
    at = words.index(word)
    return word.startswith("-") or words[at - 1] in ("-n", "--namespace")


def test_the_commands_were_found() -> None:
    """The tests above have something to look at."""
    assert len(DATA) >= 10
    assert len(PARTAGE) > 40
    assert len(_of("kubectl")) > 25


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every page is in the navigation, every link and anchor leads somewhere."""
    pytest.importorskip("material", reason="mkdocs-material is not installed (group docs)")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    page = (tmp_path / "site/reference/metrics.html").read_text("utf-8")
    assert "partage_verb_seconds" in page
    assert not re.search(r'(src|href)="https?://(fonts|cdn|unpkg)', page)

"""Code blocks of all pages: data is data, commands exist, manifests are read, the site builds.

What a block behind `$ partage` prints is in `test_the_pages_tell_the_truth`; every line is typed in
tests/embedded and tests/cluster. What is looked at here needs neither.
"""

import json
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from page_blocks import BLOCKS, LINES, ROOT, Block, Line

from partage.cli.main import main as program
from partage.embedded.manifests import read
from site_build import built

CHART = ROOT / "deploy/helm/partage"
DATA = [block for block in BLOCKS if block.language in ("yaml", "json", "toml")]
COMMANDS = [one for one in LINES if one.words]


def _of(*programs: str) -> list[Line]:
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
    command: click.Command = program
    while isinstance(command, click.Group):
        assert words, "a subcommand is missing"
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words[0]
        command, words = found, words[1:]
    return command, words


PARTAGE = [
    Line(c.page, " ".join(map(shlex.quote, c.words[c.words.index("partage") + 1 :])))
    for c in COMMANDS
    if c.words[:1] == ["partage"] or c.words[:2] in (["sudo", "partage"], ["kubectl", "partage"])
]


@pytest.mark.parametrize("given", PARTAGE, ids=str)
def test_a_partage_command_exists_with_its_options(given: Line) -> None:
    """No page names a subcommand, an option or a choice that is not there."""
    command, words = _command(given.words)
    options = {o: p for p in command.params for o in (*p.opts, *p.secondary_opts)} | {
        "--help": None
    }

    words = [word.strip("[]") for word in words]  # of an outline
    for at, word in enumerate(words):
        name, _, _ = word.partition("=")
        if word.startswith("-") and word != "-":
            assert name in options, f"{given.page}: {name}"
            option = options[name]
            if isinstance(option, click.Option) and isinstance(option.type, click.Choice):
                choices = [one for one in words[at + 1].split("|") if not one.isupper()]
                assert {*choices} <= {*option.type.choices}, given.page


@pytest.mark.parametrize("given", _of("make"), ids=str)
def test_a_target_of_make_exists(given: Line) -> None:
    """Each is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [word for word in given.words[1:] if "=" not in word]

    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("given", _of("helm"), ids=str)
def test_values_that_helm_is_given_exist(given: Line) -> None:
    """Each chart, file and value is there, because the chart refuses others."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    words = given.words
    for at, word in enumerate(words):
        if word.startswith("deploy/"):
            assert (ROOT / word).exists()
        if word == "--set":
            found = values
            for part in words[at + 1].partition("=")[0].split("."):
                if found == {}:
                    break  # any label
                assert part in found, words[at + 1]
                found = found[part]


@pytest.mark.parametrize("given", _of("kubectl"), ids=str)
def test_kubectl_is_asked_for_what_it_has(given: Line) -> None:
    """A verb of kubectl; folders and files that are applied are there."""
    verbs = (
        "get",
        "describe",
        "apply",
        "patch",
        "delete",
        "annotate",
        "logs",
        "create",
        "scale",
        "rollout",
        "partage",
        "label",
        "drain",
        "uncordon",
        "exec",
    )
    words = given.words
    verb = next(word for word in words[1:] if word in verbs or not _is_option(words, word))

    assert verb in verbs
    if "-k" in words:
        assert (ROOT / words[words.index("-k") + 1] / "kustomization.yaml").is_file()
    if "--patch-file" in words:
        assert (ROOT / words[words.index("--patch-file") + 1]).is_file()


def _is_option(words: list[str], word: str) -> bool:
    at = words.index(word)
    return word.startswith("-") or words[at - 1] in ("-n", "--namespace")


def test_the_commands_were_found() -> None:
    """The tests above have something to look at."""
    assert len(DATA) >= 10
    assert len(PARTAGE) > 40
    assert len(_of("kubectl")) > 25


def test_the_site_builds_without_a_warning(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every page is in the navigation, every link and anchor leads somewhere."""
    pytest.importorskip("material", reason="mkdocs-material is not installed (group docs)")
    site = built(tmp_path_factory)

    assert site.code == 0, site.said
    assert "WARNING" not in site.said
    page = (site.folder / "reference/metrics.html").read_text("utf-8")
    assert "partage_verb_seconds" in page
    values = (site.folder / "reference/values.html").read_text("utf-8")
    assert "by &lt;vendor&gt;-&lt;model&gt;;" in values
    assert "{name: shop, namespaces: [shop]" in values
    assert not re.search(r'(src|href)="https?://(fonts|cdn|unpkg)', page)

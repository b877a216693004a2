"""Every block of a page has a proof, and every entry of the tables has its block."""

import re
from pathlib import Path

import pytest
import yaml
from page_blocks import (
    BLOCKS,
    GROUND,
    LINES,
    PAGES,
    ROOT,
    UNTYPED,
    WRITTEN,
    Block,
    is_manifest,
    is_shell,
    lines,
    read,
    untyped,
)

CHART = ROOT / "deploy/helm/partage"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_typed_applied_or_proven(block: Block) -> None:
    """A new block of another kind needs a test and an entry in `page_blocks.GROUND`."""
    proof = [
        test
        for (page, first), test in GROUND.items()
        if page == block.page and block.first.startswith(first)
    ]

    assert is_shell(block) + is_manifest(block) + len(proof) == 1, (
        f"{block}: lines of a shell, manifests, or one entry in GROUND"
    )


@pytest.mark.parametrize("block", [b for b in BLOCKS if is_shell(b)], ids=str)
def test_a_block_of_a_shell_has_lines(block: Block) -> None:
    """A `console` block shows its commands behind a prompt; no command without one is lost."""
    assert lines(block)


@pytest.mark.parametrize("entry", [*GROUND, *UNTYPED], ids=" ".join)
def test_an_entry_is_of_something_that_is_there(entry: tuple[str, str]) -> None:
    """An entry leaves the tables when its block leaves the page."""
    page, first = entry
    there = [b.first for b in BLOCKS if b.page == page] + [
        one.text for one in LINES if one.page == page
    ]

    assert any(one.startswith(first) for one in there)


@pytest.mark.parametrize(
    "proof", sorted({*GROUND.values(), *WRITTEN.values(), *(u.proof for u in UNTYPED.values())})
)
def test_a_proof_is_a_test(proof: str) -> None:
    """The file is there, and has that function or table."""
    file, _, name = proof.partition("::")
    text = (ROOT / file).read_text("utf-8")

    assert not name or re.search(rf"^((async )?def {name}\(|{name} = )", text, re.MULTILINE)


def test_little_is_not_typed() -> None:
    """Exceptions stay exceptions."""
    left = [one for one in LINES if untyped(one)]

    assert all(untyped(one).why for one in left)  # type: ignore[union-attr]
    assert len(left) < len(LINES) / 10


def test_a_fence_of_any_kind_is_found() -> None:
    """Indented ones, tildes and longer fences; one that is not closed is an error."""
    text = "1. x\n\n   ```sh\n   a\n   ```\n~~~\nb\n~~~\n````md\n```\nc\n```\n````\n"

    assert [(b.line, b.language, b.text) for b in read("p", text)] == [
        (3, "sh", "a\n"),
        (6, "", "b\n"),
        (9, "md", "```\nc\n```\n"),
    ]
    with pytest.raises(ValueError, match="p: the block of line 1"):
        list(read("p", "```\na\n"))


@pytest.mark.parametrize("page", ["quick-start.md", "from/qgpu.md", "from/metax.md"])
def test_both_languages_print_the_same_commands(page: str) -> None:
    """A Chinese page is kept with the English one: manifests and commands are equal."""
    pages = (f"docs/{page}", f"docs/zh/{page}")
    typed = [[one.text for one in LINES if one.page == page] for page in pages]
    applied = [[b.text for b in BLOCKS if b.page == page and is_manifest(b)] for page in pages]

    assert typed[0] == typed[1]
    assert typed[0]
    assert applied[0] == applied[1]
    headings = [
        len(re.findall(r"^#+ ", (ROOT / one).read_text("utf-8"), re.MULTILINE)) for one in pages
    ]
    assert page == "quick-start.md" or headings[0] == headings[1]


def test_the_port_that_the_page_asks_is_the_charts() -> None:
    """`services/partage-metrics:metrics/proxy` reaches the chart's Service, which is for the cluster alone."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    template = (CHART / "templates/scheduler.yaml").read_text("utf-8")

    made = (CHART.parents[1] / "kustomize/default/partage.yaml").read_text("utf-8")
    services = [one for one in yaml.safe_load_all(made) if one and one["kind"] == "Service"]
    assert "partage-metrics" in {one["metadata"]["name"] for one in services}
    assert values["metrics"]["service"]["type"] == "ClusterIP"
    assert "- name: metrics\n      port: {{ .Values.metrics.service.port }}" in template


def test_nothing_is_fenced_in_a_way_that_is_not_read() -> None:
    """Every page was read: as many blocks as pairs of fences."""
    fences = sum(
        len(re.findall(r"^ *(?:```|~~~)", path.read_text("utf-8"), re.MULTILINE))
        for path in PAGES
        if str(Path(path).relative_to(ROOT)) not in WRITTEN
    )

    assert fences == 2 * len(BLOCKS)

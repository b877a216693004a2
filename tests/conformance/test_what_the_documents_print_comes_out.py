"""What the four published documents print comes out of the real command."""

import os
from functools import cache
from pathlib import Path

import pytest

from published.__main__ import main
from published.case import Case, Expectation, Verdict, observe
from published.cases import CASES, ELSEWHERE, MISPRINTS, TITLES
from published.page import pages
from published.program import Output, actual, holds, run, verdict

DOCS = Path(__file__).parents[2] / "docs"


@cache
def _output(number: int) -> Output:
    return run(CASES[number])


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.id for case in CASES])
def test_a_printed_case_comes_out_as_printed(number: int) -> None:
    """Every expectation of a case holds in what the command prints."""
    case = CASES[number]

    output = _output(number)

    found = {e.path: actual(output, e) for e in case.expected if not holds(output, e)}
    assert not found, output["error"]
    assert verdict(case, output) is not Verdict.FAIL


def test_the_pages_in_docs_are_up_to_date() -> None:
    """`make conformance` would write what docs/conformance.md and docs/conformance hold, and no page more."""
    outputs = {case.id: _output(number) for number, case in enumerate(CASES)}

    there = [DOCS / "conformance.md", *DOCS.glob("conformance/*")]

    held = {path.relative_to(DOCS).as_posix(): path.read_text("utf-8") for path in there}
    assert pages(outputs) == held


def test_every_row_has_a_name_of_its_own_and_a_document() -> None:
    """Names are unique and begin with the number of a document that exists."""
    names = [case.id for case in CASES]

    assert len(set(names)) == len(names)
    assert {name[:3] for name in names} == set(TITLES)
    assert {row.number for row in (*ELSEWHERE, *MISPRINTS)} == set(TITLES)


def test_a_case_that_does_not_hold_fails() -> None:
    """A wrong expectation is a FAIL, a path that leads nowhere too; so the table can fail."""
    documents = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n"
    wrong = Case("003-x", "", documents, (Expectation(("nodes", "n", "name"), "m"),))
    nowhere = Case("003-y", "", documents, (Expectation(("pods", "default/p", "node"), "n"),))

    assert verdict(wrong, run(wrong)) is Verdict.FAIL
    assert verdict(nowhere, run(nowhere)) is Verdict.FAIL


def test_refused_input_is_an_output_too() -> None:
    """A document that cannot be decoded gives exit 2 and a message instead of JSON."""
    case = Case("003-z", "", "kind: Node\nmetadata: [1]\n", ())

    output = run(case)

    assert output["exit"] == 2
    assert "metadata" in output["error"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(("pods", "a/b", "n"), 1, id="by-namespace-and-name"),
        pytest.param(("nodes", "x", "cards", 1), "two", id="by-number"),
        pytest.param(("nodes", "x", "cards", 2), None, id="beyond-the-end"),
        pytest.param(("nodes", "x", "name", "deeper"), None, id="into-a-text"),
    ],
)
def test_places_in_the_output_are_found_by_name_and_number(
    path: tuple[str | int, ...], value: object
) -> None:
    """Pods and nodes are looked up by name, lists by number; nothing is None."""
    output = {
        "pods": [{"namespace": "a", "name": "b", "n": 1}],
        "nodes": [{"name": "x", "cards": ["one", "two"]}],
    }

    assert observe(output, path) == value


def test_the_pages_are_written_where_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m published FOLDER` writes below FOLDER and says how many cases pass."""
    code = main([os.fspath(tmp_path)])

    assert code == 0
    written = (tmp_path / "conformance.md").read_text(encoding="utf-8")
    assert written.startswith("# Conformance")
    assert (tmp_path / "conformance/qgpu.md").is_file()
    assert f"{len(CASES)} of {len(CASES)} cases pass" in capsys.readouterr().out

"""The conformance pages: a summary with one line a case, and for each document what goes in and what must come out."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from published.case import Case, Elsewhere, Expectation, Misprint, Verdict
from published.cases import CASES, ELSEWHERE, MISPRINTS, PAGES, TITLES
from published.program import Output, actual, verdict

__all__ = ["pages"]

_HEAD: Final = """# Conformance with the four published documents

{passed} of {all} statements pass. {elsewhere} more cannot be shown by this command; their tables name what shows each, or why nothing does. (Written by `make conformance`; do not edit.)

Each row is a statement that one of the [four documents](sources/documents.md) prints or
promises. A test in `tests/conformance` gives its manifests to the real command (`partage schedule - -o json`) and compares the
output with the print. A row's name links to its manifests and to each compared value. `tests/embedded` follows the steps that
need a running cluster, document by document.
"""
_INPUTS: Final = """# {title}: inputs and compared values

Written by `make conformance`; do not edit. Manifests and values of the cases of [conformance](../conformance.md), folded.
"""


def pages(outputs: Mapping[str, Output]) -> dict[str, str]:
    """Every page below `docs` for what came out of every case, by the case's id."""
    return {"conformance.md": _lines(outputs)} | {
        f"conformance/{PAGES[number]}.md": "\n".join(
            [
                _INPUTS.format(title=title),
                *(_input(case, outputs[case.id]) for case in CASES if case.id.startswith(number)),
            ]
        )
        for number, title in TITLES.items()
    }


def _lines(outputs: Mapping[str, Output]) -> str:
    """The summary: one line a case."""
    verdicts = {case.id: verdict(case, outputs[case.id]) for case in CASES}
    passed = sum(one is not Verdict.FAIL for one in verdicts.values())
    head = _HEAD.format(passed=passed, all=len(verdicts), elsewhere=len(ELSEWHERE))
    parts = [head, _summary(verdicts)]
    for number, title in TITLES.items():
        cases = [case for case in CASES if case.id.startswith(number)]
        parts.append(f"## {title}\n")
        parts.append(_checked(cases, verdicts))
        parts.append(_elsewhere(row for row in ELSEWHERE if row.number == number))
    parts.append(_misprints(MISPRINTS))
    return "\n".join(part for part in parts if part)


def _summary(verdicts: Mapping[str, Verdict]) -> str:
    rows = []
    for number, title in TITLES.items():
        counts = Counter(v for name, v in verdicts.items() if name.startswith(number))
        passed = counts[Verdict.OK] + counts[Verdict.MISPRINT]
        elsewhere = sum(row.number == number for row in ELSEWHERE)
        rows.append((title, passed, counts[Verdict.FAIL], elsewhere))
    return _table(("document", "pass", "fail", "shown elsewhere"), rows)


def _checked(cases: Iterable[Case], verdicts: Mapping[str, Verdict]) -> str:
    rows = [
        (
            f"[{case.id}](conformance/{PAGES[case.id[:3]]}.md#{case.id})",
            case.printed,
            f"{verdicts[case.id].value}"
            + (f": {case.misprint}" if case.misprint else "")
            + f" ({case.how})",
        )
        for case in cases
    ]
    return _table(("case", "printed", "verdict (how)"), rows)


def _elsewhere(rows: Iterable[Elsewhere]) -> str:
    listed = [(row.printed, row.by, f"`{row.test}`" if row.test else "") for row in rows]
    return _table(("printed, not shown by this command", "by", "test"), listed) if listed else ""


def _misprints(rows: Iterable[Misprint]) -> str:
    listed = [(TITLES[row.number], row.printed, row.meant, row.implemented) for row in rows]
    table = _table(("document", "printed", "meant", "implemented"), listed)
    return f"## Misprints\n\n{table}"


def _input(case: Case, output: Output) -> str:
    """What a case is made of, folded: values that must come out, and manifests."""
    arguments = " ".join(("partage schedule -", *case.arguments))
    text = case.documents.strip("\n")
    values = "\n".join(_compared(e, output) for e in case.expected)
    return (
        f'## {case.id}\n\n<details markdown="1"><summary>{len(case.expected)} values, and the manifests</summary>\n\n'
        f"`{arguments}`\n\n{values}\n\n```yaml\n{text}\n```\n\n</details>\n"
    )


def _compared(expectation: Expectation, output: Output) -> str:
    """One value, and what came out instead."""
    found = actual(output, expectation)
    other = "" if found == expectation.value else f", and the command prints {_code(found)}"
    return f"* {_where(expectation)} = {_code(expectation.value)}{other}"


def _where(expectation: Expectation) -> str:
    return " . ".join(str(step) for step in expectation.path)


def _code(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"`{text}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")

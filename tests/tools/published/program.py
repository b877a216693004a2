"""Runs the real command in process, as a shell would: arguments, decoding, decision, output and exit code."""

import json
from typing import Any

from click.testing import CliRunner

from partage.cli.main import main
from published.case import Case, Expectation, Verdict, observe

__all__ = ["actual", "holds", "run", "verdict"]

Output = dict[str, Any]


def run(case: Case) -> Output:
    """What `partage schedule - -o json` says of the case's documents.

    The exit code is under `exit`; when the input is refused, the message is under `error`.
    """
    result = CliRunner().invoke(
        main, ["schedule", "-", "-o", "json", *case.arguments], input=case.documents
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    output: Output = {"error": result.stderr.strip()}
    if result.stdout.strip():
        output |= json.loads(result.stdout)
    return output | {"exit": result.exit_code}


def actual(output: Output, expectation: Expectation) -> Any:
    """What came out where something is expected; of a mapping only the keys that are."""
    found = observe(output, expectation.path)
    if isinstance(expectation.value, dict) and isinstance(found, dict):
        return {key: found.get(key) for key in expectation.value}
    return found


def holds(output: Output, expectation: Expectation) -> bool:
    """Whether what came out is what is expected, types included."""
    found: Any = actual(output, expectation)
    return json.dumps(found, sort_keys=True) == json.dumps(expectation.value, sort_keys=True)


def verdict(case: Case, output: Output) -> Verdict:
    """The case's verdict on an output."""
    if not all(holds(output, expectation) for expectation in case.expected):
        return Verdict.FAIL
    return Verdict.MISPRINT if case.misprint else Verdict.OK

"""Keeps the differences that the agent found last in a file, for readers on the node that do not ask the agent."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from partage.agent.differences import TABLE, Finding
from partage.agent.mig.journal import replace_file
from partage.model.errors import UNREADABLE, InvalidDocument

NAME: Final = "findings.json"
_VERSION: Final = 1
_MOST: Final = 200
"""Findings in the file; the metric counts all."""


class Told(msgspec.Struct, frozen=True):
    """One finding.

    Attributes:
        kind: a name of `differences.Kind`; a newer agent may know others.
        pod: `namespace/name`.
        done: the agent's reaction.
        fix: the remedy for people.
    """

    kind: str
    pod: str
    container: str
    message: str
    done: str
    fix: str


class _Document(msgspec.Struct, frozen=True):
    v: int
    at: str
    findings: list[Told]


def write_findings(folder: Path, findings: Sequence[Finding], at: str) -> None:
    """Replace the whole file or nothing. Raises `OSError`: the disk refuses it. `at`: the wall clock, for people."""
    told = [
        Told(
            one.kind,
            f"{one.namespace}/{one.pod}",
            one.container,
            one.message,
            TABLE[one.kind].done,
            TABLE[one.kind].fix,
        )
        for one in findings[:_MOST]
    ]
    data = msgspec.json.encode(_Document(_VERSION, at, told))
    replace_file(folder / NAME, data)


def read_findings(path: Path) -> tuple[str, list[Told]]:
    """The time of writing, and the findings, if any. Raises `InvalidDocument`: unreadable, or another version."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Document)
    except FileNotFoundError:
        return "", []
    except (OSError, *UNREADABLE) as error:
        raise InvalidDocument(f"{path}: {error}") from error
    if found.v != _VERSION:
        raise InvalidDocument(f"{path}: version {found.v}, this program reads {_VERSION}")
    return found.at, found.findings

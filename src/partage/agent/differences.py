"""The differences that `reconcile` can find on a node, by name, and the reaction to each.

A file has those found last, for readers on the node that do not ask the agent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from partage.agent.mig.journal import replace_file
from partage.model.errors import UNREADABLE, InvalidDocument

FINDINGS_FILE: Final = "findings.json"
_VERSION: Final = 1
_MOST: Final = 200
"""Findings in the file; the metric counts all."""


class Kind(StrEnum):
    """A kind of difference; stable, because a metric has them as labels."""

    NEVER_GIVEN = "NeverGiven"
    STARTED_UNASKED = "StartedUnasked"
    BAD_RECORD = "BadRecord"
    RUNS_WITHOUT_RECORD = "RunsWithoutRecord"
    UNITS_WITHOUT_RECORD = "UnitsWithoutRecord"
    RECORD_CHANGED = "RecordChanged"
    UNREADABLE = "Unreadable"
    DEVICE_GONE = "DeviceGone"
    CARD_OVERFULL = "CardOverfull"
    NOT_IN_JOURNAL = "NotInJournal"
    ENDED = "Ended"
    POD_GONE = "PodGone"
    POD_UNKNOWN = "PodUnknown"
    NOT_COUNTED = "NotCounted"
    OTHER_CARD = "OtherCard"
    OTHER_AMOUNT = "OtherAmount"
    UNKNOWN_UNIT = "UnknownUnit"
    UNIT_TWICE = "UnitTwice"
    USES_UNGRANTED = "UsesUngranted"


class Done(StrEnum):
    """The agent's reaction to a finding, beside the report."""

    EVICT = "evict"  # the pod, with --evict-unprotected
    REFUSE = "refuse"  # containers before they are created
    REPAIR = "repair"  # the journal, at the next comparison with the runtime
    REPORT = "report"  # no reaction: running containers stay untouched


@dataclass(frozen=True, slots=True)
class Meaning:
    """The reaction to a kind, and its texts."""

    done: Done
    fix: str


_DELETE: Final = "delete the pod; its controller makes it again, and it is served"
_KUBELET: Final = "restart the kubelet; it then counts again what runs"
TABLE: Final[Mapping[Kind, Meaning]] = {
    Kind.NEVER_GIVEN: Meaning(Done.EVICT, _DELETE),
    Kind.STARTED_UNASKED: Meaning(Done.EVICT, _DELETE),
    Kind.BAD_RECORD: Meaning(Done.EVICT, _DELETE),
    Kind.RUNS_WITHOUT_RECORD: Meaning(Done.EVICT, _DELETE),
    Kind.UNITS_WITHOUT_RECORD: Meaning(
        Done.REFUSE, "have it placed by Partage's scheduler: delete it, and see its schedulerName"
    ),
    Kind.RECORD_CHANGED: Meaning(
        Done.REFUSE, "find the program or user that wrote the annotation, and delete the pod"
    ),
    Kind.UNREADABLE: Meaning(
        Done.REFUSE, "run the agent that wrote the journal, or delete the pod"
    ),
    Kind.DEVICE_GONE: Meaning(
        Done.REFUSE, "see the card (partage discover); delete the pod where it is gone for good"
    ),
    Kind.CARD_OVERFULL: Meaning(
        Done.REFUSE, "delete one of the pods, keep both records and the scheduler's log, report it"
    ),
    Kind.NOT_IN_JOURNAL: Meaning(Done.REPAIR, "nothing; see that the disk is not full"),
    Kind.ENDED: Meaning(Done.REPAIR, "nothing; see that the disk is not full"),
    Kind.POD_GONE: Meaning(
        Done.REPORT,
        "it was deleted by force, and the kubelet waits for its grace period: the agent kills it if it sees the host's "
        "processes (hostPID); else end it (crictl stop -t 0)",
    ),
    Kind.POD_UNKNOWN: Meaning(Done.REPORT, "inspect it: crictl inspect"),
    Kind.NOT_COUNTED: Meaning(Done.REPORT, _KUBELET),
    Kind.OTHER_CARD: Meaning(
        Done.REPORT, "nothing; the kubelet reports the health of another card with the pod"
    ),
    Kind.OTHER_AMOUNT: Meaning(Done.REPORT, _KUBELET),
    Kind.UNKNOWN_UNIT: Meaning(
        Done.REPORT, "nothing while the card is away for a moment; else delete the pod"
    ),
    Kind.UNIT_TWICE: Meaning(Done.REPORT, _KUBELET),
    Kind.USES_UNGRANTED: Meaning(
        Done.REPORT,
        "see how it got the card (a file that another container opened and passed on, another device plugin), and delete "
        "the pod; if it is a driver's or a monitor's, exempt its namespace (--exempt-namespace)",
    ),
}
"""The reaction to each kind."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One difference. `namespace`, `pod`, `uid`: of the pod; the UID is empty if it is unknown."""

    kind: Kind
    namespace: str
    pod: str
    uid: str
    container: str
    message: str

    @property
    def who(self) -> tuple[Kind, str, str, str, str]:
        """The key by which two looks recognise the same finding."""
        return self.kind, self.namespace, self.pod, self.uid, self.container


class Told(msgspec.Struct, frozen=True):
    """One finding; its `kind` may be a newer agent's.

    `pod`: `namespace/name`. `done`: the agent's reaction. `fix`: the remedy for people.
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
    told = []
    for one in findings[:_MOST]:
        pod, meaning = f"{one.namespace}/{one.pod}", TABLE[one.kind]
        told.append(Told(one.kind, pod, one.container, one.message, meaning.done, meaning.fix))
    data = msgspec.json.encode(_Document(_VERSION, at, told))
    replace_file(folder / FINDINGS_FILE, data)


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

"""The differences that `reconcile` can find on a node, by name, and the reaction to each."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


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
        Done.REPORT, "it was deleted by force: see why it does not end (crictl ps, its processes)"
    ),
    Kind.POD_UNKNOWN: Meaning(Done.REPORT, "inspect it: crictl inspect"),
    Kind.NOT_COUNTED: Meaning(Done.REPORT, _KUBELET),
    Kind.OTHER_CARD: Meaning(
        Done.REPORT, "nothing; the kubelet tells the health of another card with the pod"
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

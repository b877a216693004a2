"""Judges the health of NVIDIA cards by the errors of their driver (Xid), and when a card is healthy again.

Upstream's plugins close a card until they are restarted, at the first error that no application caused.
Here each error defines what makes the card trusted again. A restart of the agent loses nothing, because it
reads the state back from the Device object.

Source: docs/sources/koordinator.md 7 and docs/sources/hami.md 3 (the errors of applications); NVIDIA's published catalog of
Xid errors (the rest).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

_REASON: Final = re.compile(r"Xid([0-9]{1,5})")


class Severity(StrEnum):
    """The meaning of an error for the card."""

    APPLICATION = "application"
    """A program's own fault, or one that the card contained; the card is unaffected."""
    SUSPECT = "suspect"
    """Possibly harmful; the card is trusted again after a quiet time."""
    RESET = "reset"
    """The card needs a reset: it is trusted again after it disappeared and returned, or after a reboot."""
    REBOOT = "reboot"
    """The machine needs a reboot, or the card a repair."""


SEVERITIES: Final[Mapping[int, Severity]] = {
    13: Severity.APPLICATION,  # exception in a program's shader or kernel
    31: Severity.APPLICATION,  # a program's illegal address
    43: Severity.APPLICATION,  # a program was stopped
    45: Severity.APPLICATION,  # clean-up after a program
    63: Severity.APPLICATION,  # a row is to be remapped at the next reset
    68: Severity.APPLICATION,  # exception in the video processor
    94: Severity.APPLICATION,  # memory error that hit one program only
    109: Severity.APPLICATION,  # a context took too long to switch
    48: Severity.RESET,  # double-bit memory error
    61: Severity.RESET,  # internal micro-controller, breakpoint
    62: Severity.RESET,  # internal micro-controller, halt
    64: Severity.RESET,  # remapping a row failed
    74: Severity.RESET,  # NVLink
    95: Severity.RESET,  # memory error that was not contained
    119: Severity.RESET,  # the card's system processor does not answer
    120: Severity.RESET,  # the card's system processor failed
    140: Severity.RESET,  # memory error that could not be recovered
    79: Severity.REBOOT,  # fell off the bus
}
"""The known errors; any other is suspect."""

_RANKS: Final = tuple(Severity)


def severity_of(xid: int) -> Severity:
    """The severity of an error."""
    return SEVERITIES.get(xid, Severity.SUSPECT)


def outlasts_absence(reason: object) -> bool:
    """Whether a card with this reason in its condition is not trusted although it went away and came back."""
    match = _REASON.fullmatch(str(reason))
    return match is not None and severity_of(int(match[1])) is Severity.REBOOT


@dataclass(frozen=True, slots=True)
class Ailment:
    """Why a card is not trusted.

    Attributes:
        xid: the gravest error since the card was last trusted.
        since: time of its last report; seconds of a clock that never goes back.
        missed: whether the card has been away since.
    """

    xid: int
    since: float
    missed: bool = False

    @property
    def reason(self) -> str:
        """The name of Koordinator's agent for it."""
        return f"Xid{self.xid}"

    @property
    def message(self) -> str:
        """For people: the event and the remedy."""
        cure = {
            Severity.SUSPECT: "trusted again after a quiet time",
            Severity.RESET: "the card needs a reset",
            Severity.REBOOT: "the machine needs a reboot",
        }
        kind = severity_of(self.xid)
        return f"the driver reported Xid {self.xid} ({kind}): {cure.get(kind, 'harmless')}"


_QUIET: Final = 600.0
"""Seconds without an error until a suspect card is trusted again."""


class HealthBook:
    """The health of all cards."""

    def __init__(self) -> None:
        self._ailments: dict[str, Ailment] = {}
        # Cards that were away, or are trusted again, since this book began.
        self._renewed: set[str] = set()

    @property
    def ailing(self) -> frozenset[str]:
        """The cards that are not trusted."""
        return frozenset(self._ailments)

    def restore(self, document: Mapping[str, Any] | None, now: float, booted: datetime) -> None:
        """Take over the conditions of a Device object, unless the machine was `booted` since.

        The object may be older than this book, if the API server was away. So a graver error of the book stays, and a
        card that was reset meanwhile, or had its quiet time, is not closed again. `now`: seconds of the clock.
        """
        for entry in ((document or {}).get("spec") or {}).get("devices") or ():
            for condition in entry.get("conditions") or ():
                match = _REASON.fullmatch(str(condition.get("reason")))
                if condition.get("status") == "False" and match:
                    since = _moment(condition.get("lastTransitionTime"))
                    if since is None or since >= booted:
                        self._take_over(str(entry.get("id")), int(match[1]), now)

    def _take_over(self, uuid: str, xid: int, now: float) -> None:
        known = self._ailments.get(uuid)
        if known is not None and _rank(known.xid) >= _rank(xid):
            return
        if uuid not in self._renewed or severity_of(xid) is Severity.REBOOT:
            self._ailments[uuid] = Ailment(xid, now)

    def reported(self, uuid: str, xid: int, now: float) -> None:
        """Note an error of a card."""
        if severity_of(xid) is Severity.APPLICATION:
            return
        known = self._ailments.get(uuid)
        graver = known if known and _rank(known.xid) > _rank(xid) else None
        self._ailments[uuid] = Ailment(graver.xid if graver else xid, now)

    def missing(self, uuid: str) -> None:
        """Note that a card does not answer."""
        self._renewed.add(uuid)
        if (known := self._ailments.get(uuid)) is not None:
            self._ailments[uuid] = Ailment(known.xid, known.since, missed=True)

    def answers(self, uuid: str, now: float) -> Ailment | None:
        """Note that a card answers; return why it is still not trusted, None if it is."""
        known = self._ailments.get(uuid)
        if known is None:
            return None
        match severity_of(known.xid):
            case Severity.SUSPECT:
                over = known.missed or now - known.since >= _QUIET
            case Severity.RESET:
                over = known.missed
            case _:
                over = False
        if over:
            del self._ailments[uuid]
            self._renewed.add(uuid)
            return None
        return known


def _rank(xid: int) -> int:
    return _RANKS.index(severity_of(xid))


def _moment(text: object) -> datetime | None:
    """A condition's time; None if it is malformed."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)

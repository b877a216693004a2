"""The trace of a pod: from its annotation, else derived from its UID.

Every program derives it alone, and all get the same result. The annotation has the form of W3C's header
`traceparent`. Any writer of pods may have written it, so it is read strictly and used only for the trace. A
broken one is logged and ignored.

Samplers take the lower half of a trace's id for a random number. A UID is not one (six of its bits are fixed), so
the id is a digest of it.

Source: W3C Trace Context, level 1, 3.2 (version 00).
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from partage.vendors import names

_FORM: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LENGTH: Final = 55
_SAMPLED: Final = 1
_SPACE: Final = b"partage.io/traceparent\0"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A reference to one span.

    Attributes:
        trace: id of the trace, 32 hexadecimal digits, not all 0.
        span: id of the span, 16 hexadecimal digits, not all 0.
        sampled: whether the program that began it sends it.
    """

    trace: str
    span: str
    sampled: bool = True

    def __str__(self) -> str:
        """As a `traceparent`."""
        return f"00-{self.trace}-{self.span}-{self.sampled:02x}"


@dataclass(frozen=True, slots=True)
class PodTrace:
    """The trace of one pod.

    Attributes:
        parent: the span in the annotation; None without one.
        scheduling: id of the span of all of the pod's scheduling, which every program can derive.
        problem: reason why the annotation is ignored; empty if it is used or absent.
    """

    trace: str
    parent: TraceContext | None
    scheduling: str
    problem: str = ""

    @property
    def above(self) -> str:
        """Id of the parent span of all spans outside scheduling."""
        return self.parent.span if self.parent is not None else self.scheduling


def read_traceparent(text: str) -> TraceContext | str:
    """The span of a `traceparent`, or a text with the reason why it has none."""
    if len(text) != _LENGTH:
        return f"it has {len(text)} characters, a traceparent of version 00 has {_LENGTH}"
    found = _FORM.fullmatch(text)
    if found is None:
        return "it is not 00-<32 digits>-<16 digits>-<2 digits>, hexadecimal in lower case"
    trace, span, flags = found.groups()
    if not int(trace, 16) or not int(span, 16):
        return "an id that is all 0 names nothing"
    return TraceContext(trace, span, bool(int(flags, 16) & _SAMPLED))


def trace_of(uid: str, annotations: Mapping[str, str]) -> PodTrace:
    """The trace of a pod; two pods share one if their author gives both the same."""
    text = annotations.get(names.TRACEPARENT)
    found = "" if text is None else read_traceparent(text)
    if isinstance(found, TraceContext):
        return PodTrace(found.trace, found, _digest(uid, found.trace)[:16])
    digest = _digest(uid, "")
    return PodTrace(digest[:32], None, digest[32:48], found)


def _digest(uid: str, trace: str) -> str:
    return hashlib.sha256(_SPACE + f"{uid}\0{trace}".encode()).hexdigest()

"""A span as a value, and every kind of span with its attributes.

A part that has decided something reports it with a `Span` of facts that it has anyway. Another part sends it.
Spans hold names, amounts and codes: no environment, no command line, no header, no content of a Secret. Texts are
cut, lists are short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

Value = str | int | bool | Sequence[str]
_LONGEST: Final = 256


class Role(StrEnum):
    """The role of the span's owner."""

    SERVER = "server"  # a caller asked it
    CLIENT = "client"  # it asks a server
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of span.

    Attributes:
        program: the sender's command.
        attributes: possible attributes of its spans, besides those of the pod.
    """

    name: str
    program: str
    role: Role
    meaning: str
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """A moment within a span.

    Attributes:
        name: one of `EVENTS`.
        at: nanoseconds since 1970.
    """

    name: str
    at: int
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """An operation with a duration.

    Attributes:
        start: nanoseconds since 1970.
        end: the same.
        problem: reason of a failure; empty on success.
        id: 16 hexadecimal digits; empty for any.
        parent: id of the span that it is part of; empty for none.
    """

    kind: Kind
    start: int
    end: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    problem: str = ""
    events: tuple[Event, ...] = ()
    children: tuple["Span", ...] = ()
    id: str = ""
    parent: str = ""


def cut(text: str) -> str:
    """A text from another program, short enough for an attribute."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


ATTRIBUTES: Final[Mapping[str, str]] = {
    "k8s.namespace.name": "the pod's namespace",
    "k8s.pod.name": "the pod's name, or its prefix before the API server makes the name",
    "k8s.pod.uid": "the pod's UID; absent at admission, before the pod has one",
    "k8s.node.name": "the node in question",
    "k8s.container.name": "the container in question",
    "partage.outcome": "the result, one word",
    "partage.code": "the reason code of a refusal",
    "partage.counts": "how many nodes failed by each reason code, as `CODE=N`",
    "partage.decision": "number of the decision in the record, if one is kept",
    "partage.nodes.asked": "nodes in the question",
    "partage.nodes.fitting": "nodes in the answer",
    "partage.refusals": "how often the pod was refused",
    "partage.victims": "pods that are evicted",
    "partage.changes": "operations of the patch",
    "partage.trace.ignored": "why the pod's own traceparent was ignored",
    "partage.limits": "provider of the container's limits",
    "partage.rule": "the agent's rule by which the container was refused",
    "partage.resource": "name of the resource",
    "partage.units": "units of the kubelet",
    "partage.card": "UUID of the card",
    "partage.profile": "profile of the hardware instance",
    "partage.start": "its first unit on the card",
}
"""Every attribute with its meaning."""

EVENTS: Final[Mapping[str, str]] = {
    "refused": "no place on any node that was asked about, with `partage.code`",
    "woken": "room appeared, and Partage made kube-scheduler try the pod again",
    "hindered": "an obstacle to the instance, in `partage.code`",
}
"""Every event with its meaning."""

ADMIT: Final = Kind(
    "partage.admit",
    "webhook",
    Role.SERVER,
    "the webhook completes the pod at its creation; begins the trace if the pod has none",
    ("partage.outcome", "partage.changes", "partage.trace.ignored"),
)
VALIDATE: Final = Kind(
    "partage.validate",
    "webhook",
    Role.SERVER,
    "the webhook judges the pod at its creation",
    ("partage.outcome",),
)
SCHEDULE: Final = Kind(
    "partage.schedule",
    "scheduler",
    Role.INTERNAL,
    "all of the pod's waiting, from the first filter to the end of the Binding or of the pod; sent at its "
    "end",
    ("partage.outcome", "k8s.node.name", "partage.refusals"),
)
FILTER: Final = Kind(
    "partage.filter",
    "scheduler",
    Role.SERVER,
    "kube-scheduler asks which nodes fit",
    (
        "partage.outcome",
        "partage.nodes.asked",
        "partage.nodes.fitting",
        "partage.code",
        "partage.counts",
        "partage.decision",
    ),
)
PRIORITIZE: Final = Kind(
    "partage.prioritize",
    "scheduler",
    Role.SERVER,
    "kube-scheduler asks which of them is best",
    ("partage.nodes.asked",),
)
PREEMPT: Final = Kind(
    "partage.preempt",
    "scheduler",
    Role.SERVER,
    "kube-scheduler asks which pods it may evict",
    ("partage.nodes.asked", "partage.nodes.fitting"),
)
BIND: Final = Kind(
    "partage.bind",
    "scheduler",
    Role.SERVER,
    "the service picks cards and follows the Binding to its end",
    ("partage.outcome", "k8s.node.name", "partage.code", "partage.decision"),
)
LOCK: Final = Kind(
    "partage.lock",
    "scheduler",
    Role.CLIENT,
    "waiting for a vendor's lock of the node",
    ("partage.outcome", "k8s.node.name"),
)
SEND: Final = Kind(
    "partage.send",
    "scheduler",
    Role.CLIENT,
    "the Binding at the API server",
    ("partage.outcome", "k8s.node.name"),
)
READ_BACK: Final = Kind(
    "partage.read_back",
    "scheduler",
    Role.CLIENT,
    "a check whether a Binding without an answer was stored",
    ("partage.outcome",),
)
MAKE_ROOM: Final = Kind(
    "partage.make_room",
    "scheduler",
    Role.INTERNAL,
    "the service evicts less important pods for this one",
    ("partage.outcome", "k8s.node.name", "partage.victims"),
)
INSTANCE: Final = Kind(
    "partage.instance",
    "agent",
    Role.INTERNAL,
    "the agent makes a hardware instance, from the moment it sees the pod; not for pods that existed "
    "before the agent",
    ("k8s.node.name", "partage.card", "partage.profile", "partage.start"),
)
ALLOCATE: Final = Kind(
    "partage.allocate",
    "agent",
    Role.SERVER,
    "the kubelet takes units for the container; sent with the injection, which knows the container",
    ("k8s.node.name", "k8s.container.name", "partage.resource", "partage.units"),
)
INJECT: Final = Kind(
    "partage.inject",
    "agent",
    Role.SERVER,
    "the runtime asks, by NRI or through the CRI proxy, for the container's adjustment",
    ("partage.outcome", "k8s.node.name", "k8s.container.name", "partage.limits", "partage.rule"),
)

KINDS: Final = (
    ADMIT,
    VALIDATE,
    SCHEDULE,
    FILTER,
    PRIORITIZE,
    PREEMPT,
    BIND,
    LOCK,
    SEND,
    READ_BACK,
    MAKE_ROOM,
    INSTANCE,
    ALLOCATE,
    INJECT,
)
"""Every kind, in the order of a pod's life."""

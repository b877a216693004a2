"""What the service needs of the world: a way to bind, a lock on nodes, and ears.

The driver implements these over the API server; tests and the embedded cluster implement them in
memory. Nothing here knows HTTP.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from partage.model.reason import Refusal
from partage.scheduler.events import Quarantined, Unserviceable
from partage.wire.documents import Document
from partage.wire.translation import PodEntry


class Outcome(StrEnum):
    """What became of a request to the API server."""

    DONE = "done"
    REFUSED = "refused"  # the API server said no: nothing was changed
    UNKNOWN = "unknown"  # no answer: it may or may not have been done


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcome of one request, with the API server's words."""

    outcome: Outcome
    message: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """A Binding to be sent.

    Attributes:
        uid: precondition: the pod must still be this one.
        annotations: written on the pod in the same transaction.
        labels: the same, from Kubernetes 1.35 on; reconciled by a controller before.
    """

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


class Binder(Protocol):
    """Sends Bindings, and reads a pod back where the outcome of one is unknown."""

    async def bind(self, binding: Binding) -> Answered:
        """Send the Binding. Whatever is raised counts as an unknown outcome."""

    async def read(self, namespace: str, name: str) -> Document | None:
        """The pod as the API server has it now; None when there is none. Raises `Exception`."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of taking a lock.

    Attributes:
        message: the API server's words, or who has it.
        held: what is there in its place; empty unless it was refused for that.
    """

    outcome: Outcome
    message: str = ""
    held: Mapping[str, str] = field(default_factory=dict)


class NodeLocks(Protocol):
    """Annotations on nodes that single vendors' plugins use as a lock.

    Both must be refused by the API server where the node has changed since it was read, so that
    neither ever touches what others wrote, also when it arrives late.
    """

    async def take(
        self, node: str, annotations: Mapping[str, str], instead: Mapping[str, str]
    ) -> Taken:
        """Write annotations where none of the keys is there (refused), or only in place of values of `instead`."""

    async def give_back(self, node: str, annotations: Mapping[str, str]) -> bool:
        """Remove the annotations, where they still have these values; whether any had. Raises `Exception`."""


def _nothing(*_: object) -> None:
    """No hook."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the service calls on news; each is called synchronously and must not block.

    Attributes:
        wake: these pods may fit now; kube-scheduler must be made to try them again.
        refused: a pod waits, or waits for another reason than before.
        quarantined: capacity was closed because of a pod.
        unserviceable: cards are configured so that they serve no pod.
        cut: a pod was bound that does not get all of its wishes; says what.
        not_adjusted: a bound pod asks for other amounts of its shares and does not get them.
        leads: asked whether this instance is known to lead at this very moment. The books of one that
            does not may be of the past, and nothing of cards is said by them.
    """

    wake: Callable[[Sequence[str]], None] = _nothing
    refused: Callable[[PodEntry, Refusal], None] = _nothing
    quarantined: Callable[[Quarantined], None] = _nothing
    unserviceable: Callable[[Unserviceable], None] = _nothing
    cut: Callable[[PodEntry, str], None] = _nothing
    not_adjusted: Callable[[PodEntry, str], None] = _nothing
    leads: Callable[[], bool] = _always

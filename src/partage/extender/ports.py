"""The interfaces that the service needs: to send Bindings, to lock nodes, and to report news.

The driver implements them over the API server. Tests and the embedded cluster implement them in
memory. This module knows no HTTP.
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
    """The outcome of a request to the API server."""

    DONE = "done"
    REFUSED = "refused"  # the API server refused it and changed nothing
    UNKNOWN = "unknown"  # without an answer the request may or may not be done


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcome of one request.

    Attributes:
        message: the API server's message.
        ended: the request cannot arrive any more.
        held: for a lock, the annotations that are there instead; empty unless they are the reason of a refusal.
    """

    outcome: Outcome
    message: str = ""
    ended: bool = False
    held: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Binding:
    """A Binding to be sent.

    Attributes:
        uid: a precondition; the pod must still have this uid.
        annotations: the API server writes them on the pod in the same transaction.
        labels: written the same way from Kubernetes 1.35 on; on older ones a controller writes them.
    """

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


class Binder(Protocol):
    """Sends Bindings, and reads a pod back if the outcome of its Binding is unknown."""

    async def bind(self, binding: Binding) -> Answered:
        """Send the Binding. Any exception counts as an unknown outcome."""

    async def read(self, namespace: str, name: str) -> Document | None:
        """The pod in the API server's current state; None if it does not exist. Raises `Exception`."""


class NodeLocks(Protocol):
    """Annotations on nodes that single vendors' plugins use as a lock.

    The API server must refuse both writes if the node has changed since it was read. So neither
    write changes the annotations of others, even if it arrives late.
    """

    async def take(
        self, node: str, annotations: Mapping[str, str], instead: Mapping[str, str]
    ) -> Answered:
        """Write annotations; refused if a key exists already, unless with its value in `instead`."""

    async def give_back(self, node: str, annotations: Mapping[str, str]) -> bool:
        """Remove the annotations that still have these values; whether any had. Raises `Exception`."""


def _nothing(*_: object) -> None:
    """No hook."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Hooks:
    """The functions that the service calls on news; each call is synchronous and must not block.

    Attributes:
        wake: these pods may fit now; kube-scheduler must retry them.
        refused: a pod waits, or waits for another reason than before.
        quarantined: capacity is closed because of a pod.
        unserviceable: cards are configured so that they serve no pod.
        cut: a pod was bound without some of its wishes; the text names them.
        bound: a pod that was woken is bound, so many seconds later.
        not_adjusted: a bound pod asks for other amounts of its shares and does not get them.
        leads: returns whether this instance is sure to lead at this moment. The books of another instance
            may be outdated, so it reports nothing about cards.
    """

    wake: Callable[[Sequence[str]], None] = _nothing
    refused: Callable[[PodEntry, Refusal], None] = _nothing
    quarantined: Callable[[Quarantined], None] = _nothing
    unserviceable: Callable[[Unserviceable], None] = _nothing
    cut: Callable[[PodEntry, str], None] = _nothing
    bound: Callable[[float], None] = _nothing
    not_adjusted: Callable[[PodEntry, str], None] = _nothing
    leads: Callable[[], bool] = _always

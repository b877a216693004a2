"""The questions of `explain`, `top` and `inspect`, with one interface for all that answer them (`cli.asking`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from partage.dashboard.queries import Views


@dataclass(frozen=True, slots=True)
class Asked:
    """A source of answers.

    Attributes:
        told: the source's name, for people.
        namespace: the default one.
        conditions: kube-scheduler's messages on waiting pods, by `namespace/name`.
        pods: every existing pod, with devices or without; None if unknown.
        unread: notes on names in pods that Partage does not read, by `namespace/name`.
        placed: pods of manifests, by `namespace/name`, that had no node and get a place; None
            without manifests.
        notes: unreadable inputs, and the consequences.
    """

    views: Views
    told: str
    namespace: str = "default"
    conditions: dict[str, str] | None = None
    pods: frozenset[str] | None = None
    unread: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    placed: frozenset[str] | None = None
    notes: tuple[str, ...] = ()

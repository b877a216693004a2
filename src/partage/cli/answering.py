"""The questions of `explain`, `top` and `inspect`, with one interface for all that answer them (`cli.asking`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from partage.dashboard.queries import Views


@dataclass(frozen=True, slots=True)
class Asked:
    """The one who answers.

    Attributes:
        told: who that is, for people.
        namespace: the one that is meant where none is named.
        conditions: what kube-scheduler wrote on waiting pods, by `namespace/name`.
        pods: every pod that there is, with devices or without; None where that is not known.
        nearly: of pods, names that are nearly a protocol's, by `namespace/name`.
        placed: pods of manifests, by `namespace/name`, that had no node and get a place; None where
            no manifests were given.
        notes: what could not be read, and what that means.
    """

    views: Views
    told: str
    namespace: str = "default"
    conditions: dict[str, str] | None = None
    pods: frozenset[str] | None = None
    nearly: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    placed: frozenset[str] | None = None
    notes: tuple[str, ...] = ()

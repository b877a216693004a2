"""The result of a check, and its subject."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

_SHOWN: Final = 3

Object = Mapping[str, Any]


class Level(StrEnum):
    """Severity."""

    ERROR = "error"  # pods wait, or get cards that they should not
    WARNING = "warning"  # works, but not as well, or not for long


@dataclass(frozen=True, slots=True)
class Finding:
    """One misconfiguration.

    Attributes:
        check: its stable name.
        rule: the violated rule, and the present state.
    """

    check: str
    level: Level
    thing: str
    rule: str
    fix: str


def error(check: str, thing: str, rule: str, fix: str) -> Finding:
    """A finding of level error."""
    return Finding(check, Level.ERROR, thing, rule, fix)


def warning(check: str, thing: str, rule: str, fix: str) -> Finding:
    """A finding of level warning."""
    return Finding(check, Level.WARNING, thing, rule, fix)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The API server's objects; None if they could not be read.

    Attributes:
        schedulers: kube-scheduler configurations by source; none of a tenant's.
        programs: pods that operators made; checks of installed parts use these alone.
        templates: ResourceClaimTemplates that the scheduler service made.
        denied: missing rights of the scheduler's account, such as `create pods/binding`.
        agents: time of the last renewal of each agent's Lease, by node.
        closed: quarantines, by node and message.
        twice: cards with more in records than they have, by node and message.
        faults: pods whose requests break a rule, with the rule.
        refused: rejected ConfigMaps and ResourceQuotas, with the reason.
        unusable: other objects that break a rule because of which pods wait, with the rule.
        node_configs: HAMi's configurations of single nodes, by ConfigMap; as texts.
        unread: ConfigMaps in namespaces that the service does not read, with the namespaces that it does.
        taken: DeviceClasses with a name by which pods ask for our devices, and that name.
        unrecorded: bound pods that ask for devices and have no record.
        known: nodes with devices in the books.
        missed: UUIDs that an operator closes on a node, of none of its devices, by node.
        embedded: whether this is `partage up`, whose scheduler and admission are in its process.
    """

    now: datetime
    schedulers: Mapping[str, Object] = field(default_factory=dict)
    pods: Sequence[Object] = ()
    programs: Sequence[Object] = ()
    nodes: Sequence[Object] = ()
    devices: Sequence[Object] | None = ()
    mutating: Sequence[Object] | None = ()
    validating: Sequence[Object] | None = ()
    runtimes: frozenset[str] | None = frozenset()
    classes: frozenset[str] | None = frozenset()
    taken: tuple[tuple[str, str], ...] = ()
    slices: Sequence[Object] | None = ()
    templates: Sequence[Object] | None = ()
    denied: tuple[str, ...] = ()
    agents: Mapping[str, datetime] = field(default_factory=dict)
    closed: tuple[tuple[str, str], ...] = ()
    twice: tuple[tuple[str, str], ...] = ()
    faults: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    unusable: tuple[tuple[str, str], ...] = ()
    node_configs: tuple[tuple[str, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    unrecorded: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()
    missed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    embedded: bool = False


def named(one: Object) -> str:
    """`namespace/name`, or the name of an object without a namespace."""
    meta = one.get("metadata", {})
    namespace = meta.get("namespace")
    return f"{namespace}/{meta.get('name')}" if namespace else str(meta.get("name"))


def node_of(pod: Object) -> str:
    """The node of a pod; empty if it has none."""
    return str(pod.get("spec", {}).get("nodeName", ""))


def ours(pod: Object) -> bool:
    """Whether a pod is of Partage's own chart, with any profile's names."""
    labels = pod.get("metadata", {}).get("labels") or {}
    return bool(labels.get("app.kubernetes.io/part-of") == "partage")


def some(words: Iterable[str]) -> str:
    """The first words, and the number of the others."""
    listed = list(words)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more

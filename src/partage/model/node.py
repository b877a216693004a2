"""A node: its labels, its ordinary resources, and its devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from partage.model.device import Device, Partition
from partage.model.reason import ReasonCode
from partage.model.selector import Taint


@dataclass(frozen=True, slots=True)
class Verdict:
    """A protocol's own objection to a node, decided by the protocol's code.

    Attributes:
        protocol: it concerns only this protocol's requests; empty for all.
        message: one sentence with the value found.
        sharing_only: whole-card requests are not concerned.
        cards_only: requests for other devices than cards are not concerned.
    """

    protocol: str
    code: ReasonCode
    message: str
    sharing_only: bool = False
    cards_only: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One node as the engine sees it.

    Attributes:
        name: its name; never used for ordering.
        uid: its identity; empty offline.
        unschedulable: cordoned.
        allocatable: room by resource name in whole units (`cpu` in milli, memory in bytes).
        taken: the part of it that pods unknown to the engine take, as the engine's driver reports.
        devices: its devices, ordered by type and minor.
        partitions: tables of cards behind one link, by number of cards.
        honour_partitions: whole-card requests must take a partition.
        templates: sharing templates of its model: name to (native unit, amount) pairs, memory in bytes under the name
            `memory`.
        links: link score of two cards by their UUIDs, smaller UUID first.
        registrar: the protocol that registered its devices; it owns names that several use.
        properties: values that only renderers need (vendor, model, policy).
        version: counts its changes, so that a late event is recognised as old.
        single_numa: all devices of one type that a pod gets here must be on one NUMA node.
        left_out: devices that were reported beyond the most that a node may have of a type.
    """

    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    allocatable: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    partitions: Mapping[int, tuple[Partition, ...]] = field(default_factory=dict)
    honour_partitions: bool = False
    templates: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    links: Mapping[tuple[str, str], int] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    registrar: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = 0
    single_numa: bool = False
    left_out: int = 0
    taken: Mapping[str, int] = field(default_factory=dict)

    @property
    def shut(self) -> bool:
        """Whether the node gives no device to any new pod of any protocol."""
        return any(
            not (one.protocol or one.sharing_only or one.cards_only) for one in self.verdicts
        )

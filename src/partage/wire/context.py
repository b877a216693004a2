"""The settings for reading a pod: the families and their settings, and the cluster's priorities."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from partage.vendors.base import Family
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings

SYSTEM_PRIORITIES: Final[Mapping[str, int]] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
"""Priority classes that every cluster has."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything outside its own document that decides how a pod is read.

    Attributes:
        families: the families, in catalog order.
        owners: resource name to the names of the families that read it, in catalog order.
        triggers: resource names that only wake a vendor's plugin.
        default_priority: of pods that name no class.
        registrars: the protocols that registered the existing nodes; empty when unknown.
    """

    settings: Settings
    families: tuple[Family, ...]
    owners: Mapping[str, tuple[str, ...]]
    triggers: frozenset[str] = frozenset()
    priorities: Mapping[str, int] = field(default_factory=lambda: SYSTEM_PRIORITIES)
    default_priority: int = 0
    registrars: frozenset[str] = frozenset()

    @staticmethod
    def of(
        settings: Settings,
        families: Iterable[Family] = FAMILIES,
        *,
        priorities: Mapping[str, int] | None = None,
        default_priority: int = 0,
        registrars: Iterable[str] = (),
    ) -> "Context":
        """The context with the families' names looked up once."""
        families = tuple(families)
        owners: dict[str, tuple[str, ...]] = {}
        for family in families:
            for name in sorted(family.owned(settings)):
                owners[name] = (*owners.get(name, ()), family.name)
        return Context(
            settings=settings,
            families=families,
            owners=owners,
            triggers=frozenset().union(*(family.triggers for family in families)),
            priorities={**(priorities or {}), **SYSTEM_PRIORITIES},
            default_priority=default_priority,
            registrars=frozenset(registrars),
        )

    def is_device(self, resource: str) -> bool:
        """Whether a resource name belongs to a family, even only as a trigger."""
        return resource in self.owners or resource in self.triggers

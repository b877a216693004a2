"""All families: one explicit tuple, in the order in which they read a node.

Koordinator is first because its Device objects describe most cards. The vendors that adapt its protocol follow after
the protocols themselves. This module also names everything else that the rest of the package needs of single families.
"""

from typing import Final

from partage.vendors.base import Family
from partage.vendors.families import cambricon, hami, huawei, koordinator, metax, qgpu
from partage.vendors.families.hami import cards
from partage.vendors.families.koordinator import amounts, partitions, templates, totals
from partage.vendors.families.koordinator.recover import recorded
from partage.vendors.families.qgpu import registration, rules
from partage.vendors.settings import Settings
from partage.vendors.traits import ROWS, traits_of

HamiCard = cards.RegisteredCard
encode_hami_cards = cards.encode_cards
KOORDINATOR_ALIASES: Final = amounts.ALIASES
honoured = partitions.honoured
parse_partitions = partitions.parse_partitions
partitions_of = partitions.partitions_of
koordinator_recorded = recorded
templates_of = templates.templates_of
koordinator_totals = totals.totals
made_of_totals = registration.is_synthetic
qgpu_totals = registration.totals
QGPU_SHARERS: Final = rules.SHARERS

FAMILIES: Final[tuple[Family, ...]] = (
    koordinator.FAMILY,
    hami.FAMILY,
    qgpu.FAMILY,
    metax.FAMILY,
    huawei.FAMILY,
    cambricon.FAMILY,
)

ADAPTING: Final = tuple(family for family in FAMILIES if traits_of(family.name).adapted)
"""Families that write keys for a vendor's own device plugin (Koordinator's DevicePluginAdaption)."""

_COUNTED_BY_PLUGINS: Final = frozenset(name for row in ROWS for name in row.counts)


def native_units(vendor: str) -> frozenset[str]:
    """Names beside percent and memory that a Device object's cards of a vendor have."""
    return frozenset(traits_of(vendor).units)


def koordinator_reports(settings: Settings) -> frozenset[str]:
    """Names that a node reports for Koordinator; such a name without devices is stale."""
    return koordinator.FAMILY.owned(settings) - _COUNTED_BY_PLUGINS

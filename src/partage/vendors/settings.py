"""The families' settings from their published ConfigMaps; decoded in `wire.config`.

They are separate from the families so that the decoder needs no family and no family needs another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from partage.vendors.traits import ROWS


@dataclass(frozen=True, slots=True)
class MigGeometry:
    """An entry of HAMi's `knownMigGeometries`: models, and an ordered list of layouts.

    Attributes:
        models: substrings of model names.
        layouts: each a list of (profile name, memory in MiB, how many), in the order written.
    """

    models: tuple[str, ...]
    layouts: tuple[tuple[tuple[str, int, int], ...], ...]


@dataclass(frozen=True, slots=True)
class HamiNodeSettings:
    """One entry of HAMi's per-node configuration (`config.json`); None keeps the global value."""

    name: str
    operating_mode: str = ""
    memory_scaling: float | None = None
    core_scaling: float | None = None
    split_count: int | None = None
    filter_uuids: tuple[str, ...] = ()
    filter_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HamiSettings:
    """HAMi's device-config, section `nvidia` (docs/sources/hami.md 2.1), with its published defaults.

    Attributes:
        default_memory: MiB a device if a pod names neither memory nor percentage; 0 = all.
        default_cores: percent a device if a pod names no cores.
        default_count: devices if a pod names memory or cores but no count; 0 = none.
        memory_factor: bytes of `gpumem` are this many MiB each.
        split_count: the most sharers of a card.
        geometries: layouts that cards of some models may have, in order of preference; models without an entry may have
            any.
        mig_allowlist: (models, profiles that may be made on them).
        mig_record: how instances are written on pods: `suffix`, as the UUID's suffix of HAMi 2.5 if the card has
            geometries, or `allocations`, as the annotation of HAMi 2.10.
    """

    count_name: str = "nvidia.com/gpu"
    memory_name: str = "nvidia.com/gpumem"
    percentage_name: str = "nvidia.com/gpumem-percentage"
    cores_name: str = "nvidia.com/gpucores"
    priority_name: str = "nvidia.com/priority"
    default_memory: int = 0
    default_cores: int = 0
    default_count: int = 1
    memory_factor: int = 1
    split_count: int = 10
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    disable_core_limit: bool = False
    geometries: tuple[MigGeometry, ...] = ()
    mig_allowlist: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    mig_record: str = "suffix"
    nodes: Mapping[str, HamiNodeSettings] = field(default_factory=dict)

    @property
    def amounts(self) -> tuple[str, str, str]:
        """The names of a card's amounts: memory, percentage, cores."""
        return self.memory_name, self.percentage_name, self.cores_name

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of its resources, without empty ones."""
        return tuple(filter(None, (self.count_name, *self.amounts, self.priority_name)))


@dataclass(frozen=True, slots=True)
class KoordinatorSettings:
    """Koordinator's scheduler arguments that affect a pod's devices.

    Attributes:
        templates: `<vendor>-<model>` to template name to (native unit, amount) pairs; memory in bytes under the name
            `memory`. None uses the published table.
        unshareable_models: (vendor, model) pairs that refuse shares.
    """

    templates: Mapping[str, Mapping[str, tuple[tuple[str, int], ...]]] | None = None
    unshareable_models: tuple[tuple[str, str], ...] = tuple(
        (row.name, model) for row in ROWS for model in row.unshareable
    )


@dataclass(frozen=True, slots=True)
class MetaxSettings:
    """`metax-device-config`: the cluster's mode and those of single nodes; empty if not given."""

    cluster_mode: str = ""
    node_modes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PermitRule:
    """An entry of `permits` in `partage-config`: pods' permitted wishes. The first rule that names a pod decides.

    Attributes:
        name: its name in messages; pods are counted under it.
        namespaces: of the pods; `*` for all.
        service_accounts: of the pods; empty for all.
        online: they may go before others on their cards.
        online_pods: the most in each namespace at once; None for any number.
        online_cards: the most of each node's cards with such pods at once, in thousandths of all, rounded down; None
            for all.
        policy: the most that their policy may be, if the node's is more; empty for the node's.
    """

    name: str
    namespaces: tuple[str, ...]
    service_accounts: tuple[str, ...] = ()
    online: bool = False
    online_pods: int | None = None
    online_cards: int | None = None
    policy: str = ""

    def names(self, namespace: str, service_account: str) -> bool:
        """Whether the rule applies to pods of this namespace and account."""
        return (namespace in self.namespaces or "*" in self.namespaces) and (
            not self.service_accounts or service_account in self.service_accounts
        )


@dataclass(frozen=True, slots=True)
class IsolationSettings:
    """`partage-config`: nodes for pods with software shares of NVIDIA cards, and the wishes that they get.

    Attributes:
        memory: only nodes whose provider limits memory to the grant.
        compute: for pods that chose a policy with a quota (`fixed-share`, `burst-share`) only nodes whose provider
            limits compute.
        permits: rules for wishes; the first that names a pod decides. Without rules the nodes decide alone.
    """

    memory: bool = False
    compute: bool = False
    permits: tuple[PermitRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all families, and those beside them."""

    hami: HamiSettings = HamiSettings()
    koordinator: KoordinatorSettings = KoordinatorSettings()
    metax: MetaxSettings = MetaxSettings()
    isolation: IsolationSettings = IsolationSettings()

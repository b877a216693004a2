"""The software that enforces shares of a card: one provider a node, chosen by its operator.

A provider is asked once for each container before it is created. It answers with the container's needs: variables,
mounts, or limits for a room (`container_dirs`). The providers are `none`, `hami-core` from the operator's own
path, `vendor` (the vendor's driver or plugin enforces), `mig` (only hardware instances are enforced, shares are
refused), `mps` (NVIDIA's driver, through the daemon that the agent supervises), and `partage`, the library in
`native/`. Only software shares of NVIDIA cards reach this module.

Source: docs/sources/hami.md 6 and 7, docs/sources/koordinator.md 7 (HAMi's library); docs/sources/qgpu.md 1.4 (policies).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from msgspec import structs

from partage.agent.isolation.container_dirs import INSIDE, PRELOAD, CardQuota, Room, Rooms
from partage.agent.isolation.seats import seat_file
from partage.model.allocation import Grant, GrantMode
from partage.model.device import MILLI, DeviceType
from partage.model.errors import InvalidValue
from partage.model.permit import Permit
from partage.vendors.wishes import POLICIES, Policy, Priority, Wishes, bounded, read_wishes

_PRELOAD: Final = "LD_PRELOAD"
_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
_SM_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
_CORE_POLICY: Final[Mapping[Policy, str]] = {
    Policy.BEST_EFFORT: "disable",
    Policy.FIXED_SHARE: "force",
}
"""Policies in the words of HAMi's library; its default is burst-share."""
_TASK_PRIORITY: Final[Mapping[Priority, str]] = {Priority.ONLINE: "0", Priority.OFFLINE: "1"}
"""Precedence in the words of HAMi's library, whose monitor delays 1 beside 0."""
_NO_SM_LIMIT: Final = 100
"""Percent. For HAMi's library 0 or no value means the limit without a place; from 100 on it delays nothing."""
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Bind:
    """A bind mount; a `folder` is created on the host if it is missing, writable for all users."""

    source: str
    target: str
    writable: bool = False
    folder: bool = False


@dataclass(frozen=True, slots=True)
class Shares:
    """The cards of a container that has at least one share of one.

    Attributes:
        known: variables that the container has already.
        env: the protocols' variables for it.
        policy: the node's own, by the qGPU document's label; empty without one.
        grants: all of its cards, shares and others.
        may_be_online: whether the node's operator gives pods of its namespace precedence.
        permit: the scheduler's permit for the pod, which then decides; None if no rule was made.
    """

    uid: str
    container: str
    annotations: Mapping[str, str]
    known: Mapping[str, str]
    env: Mapping[str, str]
    policy: str
    grants: tuple[Grant, ...]
    may_be_online: bool = False
    permit: Permit | None = None

    def granted(
        self, most: Policy | None = None, swap_bytes: int = 0
    ) -> tuple[Wishes, tuple[str, ...]]:
        """The granted part of the pod's wishes, and a text for each other wish. Raises `InvalidValue`: impossible.

        `most`: the policy if the node's label has none. `swap_bytes`: the most of the host's beyond its grant.
        """
        wishes = read_wishes(self.annotations, {**self.known, **self.env}, swap_bytes)
        most = POLICIES.get(self.policy) or most
        return bounded(wishes, most, self.permit, may_be_online=self.may_be_online)

    @property
    def cards(self) -> tuple[Grant, ...]:
        """One grant for each card, by the driver's numbers: two requests of a claim may have shares of one card."""
        found: dict[int, Grant] = {}
        cards = (one for one in self.grants if one.type is DeviceType.GPU)
        for one in sorted(cards, key=lambda grant: grant.minor):
            if (before := found.get(one.minor)) is None:
                found[one.minor] = one
            else:
                core = before.core_milli + one.core_milli
                memory = before.memory_bytes + one.memory_bytes
                found[one.minor] = structs.replace(before, core_milli=core, memory_bytes=memory)
        return tuple(found.values())

    @property
    def shares(self) -> tuple[Grant, ...]:
        """The cards' grants that only software can enforce."""
        return tuple(one for one in self.cards if one.mode is GrantMode.SHARE)


@dataclass(frozen=True, slots=True)
class Kept:
    """A provider's needs in a container.

    Attributes:
        env: all variables of the container that the agent sets.
        binds: mounts, outer ones first.
        quota: limits for a room; None if the provider does not use one.
        cut: a text for each wish of the pod that is not granted.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[Bind, ...] = ()
    quota: tuple[CardQuota, ...] | None = None
    cut: tuple[str, ...] = ()


class Provider(Protocol):
    """Enforces shares."""

    @property
    def name(self) -> str:
        """Its name in the journal, in metrics and in messages."""

    @property
    def memory(self) -> bool:
        """Whether it enforces memory grants, as far as its operator knows."""

    @property
    def compute(self) -> bool:
        """Whether it enforces policies and quotas of compute, as far as its operator knows."""

    def keep(self, shares: Shares) -> Kept:
        """The needs of a container. Raises `InvalidValue` if it must not be created."""


@dataclass(frozen=True, slots=True)
class NoIsolation:
    """No provider: nothing enforces shares."""

    name: str = "none"
    memory: bool = False
    compute: bool = False

    def keep(self, shares: Shares) -> Kept:
        """The protocols' variables, without those that load a library."""
        return Kept(_unloaded(shares.env))


@dataclass(frozen=True, slots=True)
class VendorIsolation:
    """The vendor's own driver or kernel module, by its plugin's edits of the container."""

    name: str = "vendor"
    memory: bool = True
    compute: bool = True

    def keep(self, shares: Shares) -> Kept:
        """The protocols' variables, all of them; the vendor supplies what they name."""
        return Kept(shares.env)


@dataclass(frozen=True, slots=True)
class MigOnly:
    """Only hardware instances and whole cards are allocated on the node."""

    name: str = "mig"
    memory: bool = False
    compute: bool = False

    def keep(self, shares: Shares) -> Kept:
        """Refuse. Raises `InvalidValue`: always."""
        one = shares.shares[0]
        raise InvalidValue(
            f"a software share of card {one.minor} ({one.uuid}): on this node only hardware "
            "instances have enforced limits (--isolation mig)"
        )


@dataclass(frozen=True, slots=True)
class HamiCore:
    """HAMi's library, from the operator. `path`: on host and in container; `folder`: of containers' state (host)."""

    path: str = "/usr/local/vgpu/libvgpu.so"
    folder: str = "/usr/local/vgpu/containers"
    lock: str = "/tmp/vgpulock"  # noqa: S108 # where that library looks
    name: str = "hami-core"
    memory: bool = True
    compute: bool = True

    def keep(self, shares: Shares) -> Kept:
        """The library, and its limits if the protocol names none. Raises `InvalidValue`: an impossible request."""
        env = dict(shares.env)
        wishes, cut = shares.granted()
        if not any(key.startswith(_LIMIT) for key in env):
            env.update(_hami_limits(shares))
            policy = wishes.policy or POLICIES.get(shares.policy)
            if policy is not None and policy in _CORE_POLICY:
                env["GPU_CORE_UTILIZATION_POLICY"] = _CORE_POLICY[policy]
            if wishes.priority in _TASK_PRIORITY:
                env["CUDA_TASK_PRIORITY"] = _TASK_PRIORITY[wishes.priority]
        # The container's own variables may disagree.
        asked = read_wishes(shares.annotations, {**shares.known, **shares.env})
        if wishes.priority is not asked.priority:
            env["CUDA_TASK_PRIORITY"] = _TASK_PRIORITY[Priority.OFFLINE]
        if wishes.policy is not None and wishes.policy is not asked.policy:
            env["GPU_CORE_UTILIZATION_POLICY"] = _CORE_POLICY.get(wishes.policy, "default")
        env[_PRELOAD] = self.path
        inside = self.path.rpartition("/")[0]
        env.setdefault("CUDA_DEVICE_MEMORY_SHARED_CACHE", f"{inside}/{shares.container}.cache")
        mine = f"{self.folder}/{shares.uid}_{shares.container}"
        binds = (
            Bind(mine, inside, writable=True, folder=True),
            Bind(self.path, self.path),
            Bind(self.lock, self.lock, writable=True, folder=True),
        )
        return Kept(env, binds, cut=cut)


def _hami_limits(shares: Shares) -> dict[str, str]:
    """Limits by the place of each card among the container's.

    That library reads `CUDA_DEVICE_MEMORY_LIMIT_<place>` and `CUDA_DEVICE_SM_LIMIT_<place>`, and for a place without
    either the same name without a place; older ones read the compute limit without a place alone. So that name gets
    the smallest limit of all shares if this limits no card that must stay free of limits, and else is not set. The
    place is the driver's number of the card, which follows the bus and not the order of the grants.

    Source: HAMi-core at 8f3a89c, `multiprocess_memory_limit.c` (`do_init_device_sm_limits`).
    """
    env: dict[str, str] = {}
    percents: list[int] = []
    for place, one in enumerate(shares.cards):
        if one.mode is not GrantMode.SHARE:
            percents.append(_NO_SM_LIMIT)
            continue
        env[f"{_LIMIT}_{place}"] = f"{_mebibytes(one)}m"
        percents.append(_percent(one.core_milli) or _NO_SM_LIMIT)
    if max(percents) < _NO_SM_LIMIT or len(percents) == 1:
        env[_SM_LIMIT] = str(min(percents))
    if len(percents) > 1:
        env |= {f"{_SM_LIMIT}_{place}": str(percent) for place, percent in enumerate(percents)}
    return env


@dataclass(frozen=True, slots=True)
class OwnLibrary:
    """Partage's own enforcement library (`native/`).

    Attributes:
        policy: how compute is shared if neither pod nor node sets it.
        most_beyond_bytes: memory of the host that a pod may request beyond its grant.
        context_bytes: the estimate of one context until it was measured.
        compute: enforce policies and quotas of compute too. Otherwise only memory is capped and no launch is ever
            delayed: the quota stays in the limits, from which the agent reports what is not enforced.
    """

    policy: Policy = Policy.BEST_EFFORT
    most_beyond_bytes: int = 0
    context_bytes: int = 0
    compute: bool = False
    name: str = "partage"
    memory: bool = True

    def keep(self, shares: Shares) -> Kept:
        """Limits of every card, as one without would be closed. Raises `InvalidValue`: an impossible request."""
        wishes, cut = shares.granted(self.policy, self.most_beyond_bytes)
        policy = wishes.policy or POLICIES.get(shares.policy) or self.policy
        cards = []
        for grant in shares.cards:
            if grant.mode is GrantMode.MIG:
                continue  # hardware enforces instances
            if grant.mode is not GrantMode.SHARE:
                cards.append(CardQuota(grant.uuid, 0, MILLI, Policy.NONE))
                continue
            core = min(grant.core_milli, MILLI)
            # Without a quota there is nothing to guarantee or to enforce.
            mine = policy if core else Policy.BEST_EFFORT
            if not self.compute:
                core = core if mine is not Policy.BEST_EFFORT else 0
                mine = Policy.NONE
            memory = max(grant.memory_bytes, 1)  # 0 would be no cap
            wished = wishes.priority, wishes.swap_bytes
            cards.append(CardQuota(grant.uuid, memory, core, mine, *wished, self.context_bytes))
        return Kept(_unloaded(shares.env), quota=tuple(cards), cut=cut)


@dataclass(frozen=True, slots=True)
class Mps:
    """NVIDIA's Multi-Process Service: the driver limits each process to threads and memory in its environment.

    Processes of one card run at the same time and share a context: a fault of one ends all. The percentage of threads
    applies to all cards of a process, so it is the smallest of its shares, and a whole card beside a share
    cannot be granted. The only possible policy is a fixed quota: without a quota, and with `best-effort` and
    `burst-share`, threads are not limited. `folder`: of the daemon, on the host. `problem`: why it cannot be reached.

    Source: NVIDIA's Multi-Process Service (environment variables, limits and fault domains); its Kubernetes device
    plugin (the containers' mounts). Limits tried on an H200 with driver 580.159; in a container not yet.
    """

    folder: str = "/run/partage/mps"
    problem: Callable[[], str] = str
    name: str = "mps"
    memory: bool = True
    compute: bool = True

    def keep(self, shares: Shares) -> Kept:
        """The daemon's files and the driver's limits. Raises `InvalidValue`: impossible, or the daemon is away."""
        wishes, cut = shares.granted()
        if problem := self.problem():
            # Without the daemon a program would run beside it, without limits.
            raise InvalidValue(f"a share of a card: {problem}; the kubelet tries again")
        cards = shares.cards
        other = next((one for one in cards if one.mode is not GrantMode.SHARE), None)
        if other is not None:
            raise InvalidValue(
                f"card {other.minor} ({other.uuid}) beside a share: MPS holds all cards of a process to one "
                "percentage; ask for them in containers of their own"
            )
        env = _unloaded(shares.env) | {
            "CUDA_MPS_PIPE_DIRECTORY": f"{self.folder}/pipe",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(
                f"{place}={_mebibytes(one)}M" for place, one in enumerate(cards)
            ),
        }
        policy = wishes.policy or POLICIES.get(shares.policy)
        quota = min(one.core_milli for one in cards)
        if quota and policy in {None, Policy.FIXED_SHARE}:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(_percent(quota))
        binds = (
            # Under the daemon's own path.
            Bind(f"{self.folder}/pipe", f"{self.folder}/pipe", writable=True),
            Bind(f"{self.folder}/shm", "/dev/shm", writable=True),  # noqa: S108 # where the driver looks
        )
        return Kept(env, binds, cut=cut)


def _mebibytes(share: Grant) -> int:
    """A share's memory in whole MiB; at least one, because 0 would be no limit."""
    return max(share.memory_bytes // _MIB, 1)


def _percent(core_milli: int) -> int:
    """A quota in whole percent, at least one; 0 for none."""
    return max(core_milli * 100 // MILLI, 1) if core_milli else 0


def _unloaded(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key != _PRELOAD}


@dataclass(frozen=True, slots=True)
class Isolation:
    """The node's own enforcement library for `container_admission`; if `required`, containers whose limits it cannot enforce do not start."""

    rooms: Rooms
    required: bool = False
    proc: Path = Path("/proc")


def binds_of(room: Room) -> tuple[Bind, ...]:
    """The mounts of a room, outer ones first: read-only except for its own account and its own seats."""
    host = room.source.rpartition("/containers/")[0]
    account = f"{host}/private/{room.account.parent.name}/{room.account.name}"
    inside = f"{INSIDE}/{room.limits.account}"
    binds = [Bind(room.source, INSIDE), Bind(account, inside, writable=True)]
    for card in room.limits.cards:
        seats = room.seats_of(card)
        if seats is None:
            continue
        own = seat_file(seats, card.slot).name
        source, inside = f"{host}/{seats.parent.name}/{seats.name}", f"{INSIDE}/{card.seats}"
        binds += [Bind(source, inside), Bind(f"{source}/{own}", f"{inside}/{own}", writable=True)]
    return (*binds, Bind(f"{room.source}/preload", PRELOAD))

"""A pod's choices about its own limits: policy, precedence, memory beyond its grant.

The qGPU document sets the policy for a node by a label. Here that is the default, and a pod may choose its own by an
annotation. HAMi's words are understood in pods that use them. A user wrote all of it, so an unknown word is an error
that names the choices. Admission and the engine refuse such a pod, and the agent does not start one that arrives on its
node anyway; all three ask this module.

Source: docs/sources/qgpu.md 1.4 (policies), 1.7 (online and offline); docs/sources/hami.md 7.4 and 7.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar

from partage.model.errors import InvalidQuantity, InvalidValue
from partage.model.permit import Permit
from partage.model.quantity import Quantity
from partage.vendors import names


class Policy(StrEnum):
    """How compute is shared (the qGPU document); `none` does not limit launches."""

    BEST_EFFORT = "best-effort"
    FIXED_SHARE = "fixed-share"
    BURST_SHARE = "burst-share"
    NONE = "none"


class Priority(StrEnum):
    """The precedence on a card: online work pauses offline work at once."""

    OFFLINE = "offline"
    ORDINARY = "ordinary"
    ONLINE = "online"


SHORT: Final = {"be": Policy.BEST_EFFORT, "fs": Policy.FIXED_SHARE, "bs": Policy.BURST_SHARE}
"""The qGPU document's policies by abbreviation."""
POLICIES: Final[Mapping[str, Policy]] = {
    spelt: policy for short, policy in SHORT.items() for spelt in (policy.value, short)
}
"""The same, by full name too."""
_TAKES: Final = (Policy.FIXED_SHARE, Policy.BURST_SHARE, Policy.BEST_EFFORT)
"""Policies by how much of a card a pod may take beside others, the least first."""
_HAMI_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
_HAMI_POLICIES: Final[Mapping[str, Policy]] = {
    "force": Policy.FIXED_SHARE,
    "disable": Policy.BEST_EFFORT,
    "default": Policy.BURST_SHARE,
}
_HAMI_PRIORITY: Final = "CUDA_TASK_PRIORITY"
_HAMI_PRIORITIES: Final = {"0": Priority.ONLINE, "1": Priority.OFFLINE}
_T = TypeVar("_T")
_APP_CLASSES: Final = {"online": Priority.ONLINE, "offline": Priority.OFFLINE}


@dataclass(frozen=True, slots=True)
class Wishes:
    """A container's limits beside its amounts.

    Attributes:
        policy: how compute is shared; None if none was chosen.
        priority: its precedence on a card.
        swap_bytes: memory beyond the grant that the host may provide.
    """

    policy: Policy | None = None
    priority: Priority = Priority.ORDINARY
    swap_bytes: int = 0


def read_class(annotations: Mapping[str, str]) -> Priority | None:
    """A pod annotation's precedence; None without one. Raises `InvalidValue`: the message names the choices."""
    said = annotations.get(names.QGPU_APP_CLASS)
    return _chosen(names.QGPU_APP_CLASS, said, _APP_CLASSES) if said else None


def read_wishes(
    annotations: Mapping[str, str], env: Mapping[str, str], most_swap_bytes: int | None = 0
) -> Wishes:
    """The choices of a container's pod; annotations override HAMi's variables.

    `most_swap_bytes`: memory that the node allows a container beyond its grant; None before it has a node. Raises
    `InvalidValue`: an unknown choice, or more than the node allows; the message names key and rule.
    """
    policy = _HAMI_POLICIES.get(env.get(_HAMI_POLICY, "").lower())
    said = annotations.get(names.COMPUTE_POLICY)
    if said is not None:
        policy = _chosen(names.COMPUTE_POLICY, said, POLICIES)
    priority = _HAMI_PRIORITIES.get(env.get(_HAMI_PRIORITY, ""), Priority.ORDINARY)
    priority = read_class(annotations) or priority
    return Wishes(policy, priority, _swap(annotations, most_swap_bytes))


def bounded(
    wishes: Wishes,
    most: Policy | None,
    permit: Permit | None = None,
    *,
    may_be_online: bool = False,
) -> tuple[Wishes, tuple[str, ...]]:
    """The wishes that a pod gets, and those that it does not get, in words.

    A pod may ask for less than its node gives. More would be taken from its neighbours, so operators grant it. They do
    so by the rules that the scheduler used, or on the node if there were no rules when the pod was bound.

    Args:
        most: the node's policy; None if it has none.
        permit: the wishes that the scheduler grants the pod; None if there was no rule.
        may_be_online: without a permit, whether pods of this namespace may go before others.
    """
    said: list[str] = []
    why = "online is not granted to this namespace (--online)"
    if permit is not None:
        may_be_online = permit.online
        why = permit.why or (
            f"online is not granted: the scheduler saw no wish for it; ask by annotation {names.QGPU_APP_CLASS}"
        )
        # A pod that asks for no policy has the node's own, so the rule bounds that too.
        least, had = POLICIES.get(permit.policy), wishes.policy or most or Policy.BURST_SHARE
        if had in _TAKES and least in _TAKES[: _TAKES.index(had)]:
            if wishes.policy is not None:
                said.append(f"policy {wishes.policy} is cut down to {least} by rule {permit.rule}")
            wishes = replace(wishes, policy=least)
    if wishes.policy in _TAKES and most in _TAKES[: _TAKES.index(wishes.policy)]:
        said.append(f"policy {wishes.policy} is cut down to the node's {most}")
        wishes = replace(wishes, policy=most)
    if wishes.priority is Priority.ONLINE and not may_be_online:
        said.append(why)
        wishes = replace(wishes, priority=Priority.ORDINARY)
    return wishes, tuple(said)


def _chosen(key: str, text: str, choices: Mapping[str, _T]) -> _T:
    found = choices.get(text)
    if found is None:
        raise InvalidValue(f"annotation {key}: {text[:64]!r} is not one of {', '.join(choices)}")
    return found


def _swap(annotations: Mapping[str, str], most: int | None) -> int:
    text = annotations.get(names.MEMORY_BEYOND)
    if text is None:
        return 0
    try:
        asked = Quantity.parse(text).floor()
    except InvalidQuantity as error:
        raise InvalidValue(f"annotation {names.MEMORY_BEYOND}: {error}") from error
    if asked < 0:
        raise InvalidValue(f"annotation {names.MEMORY_BEYOND}: {text[:64]} is negative")
    if most is not None and asked > most:
        raise InvalidValue(
            f"annotation {names.MEMORY_BEYOND}: {text[:64]} is asked; this node allows a container "
            f"0 to {most} bytes of host memory (--isolation-beyond)"
        )
    return asked

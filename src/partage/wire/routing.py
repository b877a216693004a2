"""Finds the protocol of each container of a pod.

A container's resource names decide. Two protocols in one container are refused; different
containers of a pod may use different ones. One name belongs to two protocols: a lone
`nvidia.com/gpu` is HAMi's or Koordinator's. The pod's scheduler decides, else other signs of HAMi on
the pod, else HAMi's default memory, else the node of its placement. In that last case both mean whole cards, and
the request is placed as such under the name `nvidia`.

Source: docs/reference/annotations.md (`nvidia.com/gpu: N` alone; one container, two protocols).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from partage.model.device import MILLI, DeviceType
from partage.model.quantity import Quantity
from partage.model.request import (
    CardFilter,
    ContainerAsk,
    DeviceRequest,
    Fault,
    Phase,
    RequestGroup,
)
from partage.vendors import names
from partage.vendors.base import ContainerView, PodView
from partage.vendors.reserved import RESERVED
from partage.vendors.traits import NVIDIA
from partage.wire.context import Context

KOORDINATOR: Final = "koordinator"
HAMI: Final = "hami"
UNDECIDED: Final = NVIDIA.name
"""Means HAMi or Koordinator until the node is known."""

_SCHEDULERS: Final = {"koord-scheduler": KOORDINATOR, "hami-scheduler": HAMI}
SERVED: Final = ("partage-scheduler", *_SCHEDULERS)
"""Scheduler names whose pods Partage places, if nothing else is set."""
DEFAULT_SCHEDULER: Final = "default-scheduler"
"""The cluster's own; the webhook moves its pods with devices to Partage."""
_PREFIXES: Final = ("nvidia.com/", "hami.io/")
_PERCENT: Final = 100
_MOST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Routes:
    """Containers by protocol, each list in the pod's order.

    Attributes:
        families: family name to its containers.
        undecided: containers that ask for `nvidia.com/gpu` and nothing else, of no protocol yet.
        fault: set when a container speaks two protocols.
        notes: the owner of a lone `nvidia.com/gpu`, and the reason.
    """

    families: dict[str, tuple[ContainerView, ...]]
    undecided: tuple[ContainerView, ...] = ()
    fault: Fault | None = None
    notes: tuple[str, ...] = ()


def route(pod: PodView, context: Context) -> Routes:
    """Assign each container to a family."""
    speakers: list[tuple[ContainerView, str]] = []
    alone: list[ContainerView] = []
    for container in pod.containers:
        found, shared = _spoken(container, context)
        problem = _problem(container, found, shared)
        if problem:
            return Routes({}, fault=Fault(problem))
        if found:
            speakers.append((container, next(iter(found))))
        elif shared:
            alone.append(container)
    owner, reason = _owner(pod, {family for _, family in speakers}, context)
    if owner:
        speakers += [(container, owner) for container in alone]
    spoken = {(container.name, family) for container, family in speakers}
    notes = tuple(
        f"container {container.name}: {names.COUNT_NVIDIA} alone is {reason}"
        for container in alone
        if (container.ask(names.COUNT_NVIDIA) or Quantity(0)).nano
    )
    return Routes(
        {
            family: tuple(one for one in pod.containers if (one.name, family) in spoken)
            for family in dict.fromkeys(f for _, f in speakers)
        },
        undecided=() if owner else tuple(alone),
        notes=notes,
    )


def whole_cards(containers: Iterable[ContainerView]) -> tuple[tuple[RequestGroup, ...], str]:
    """One group of whole cards for each container that asks for `nvidia.com/gpu` alone.

    A multiple of 100 is percent of cards, as HAMi's family reads it (`hami.request`) and the webhook writes it anew
    (`webhook.mutating`). The text is the broken rule, if any.
    """
    groups: list[RequestGroup] = []
    for container in containers:
        value = container.ask(names.COUNT_NVIDIA) or Quantity(0)
        count = value.floor()
        if count > _MOST:
            about = f"container {container.name}: {names.COUNT_NVIDIA}: {value}"
            return (), f"{about} must be at most {_MOST}"
        if count:
            groups.append(_group(container, count // _PERCENT if count % _PERCENT == 0 else count))
    return tuple(groups), ""


def _group(container: ContainerView, count: int) -> RequestGroup:
    return RequestGroup(
        protocol=UNDECIDED,
        request=DeviceRequest(
            type=DeviceType.GPU,
            count=count,
            core_milli=MILLI,
            memory_milli=MILLI,
            whole=True,
            instances=True,
            filter=CardFilter(vendors=(NVIDIA.name,)),
        ),
        containers=(ContainerAsk(container.name, container.phase),),
        phase=Phase.INIT if container.phase is Phase.INIT else Phase.MAIN,
    )


def _spoken(container: ContainerView, context: Context) -> tuple[dict[str, str], dict[str, str]]:
    """Families that a container names, each with one of its names; and names of several.

    An amount of zero counts only if no other protocol is named, so that `0` beside another
    protocol's names is no contradiction.
    """
    found: dict[str, str] = {}
    shared: dict[str, str] = {}
    device = [name for name in sorted(container.names) if name in context.owners]
    positive = [name for name in device if (container.ask(name) or Quantity(0)).nano]
    for name in positive or device:
        owners = context.owners[name]
        if len(owners) == 1 or name != names.COUNT_NVIDIA:
            found.setdefault(owners[0], name)
        else:
            shared.update((owner, name) for owner in owners)
    if shared and not found:
        # A 0 has a meaning to the family that reads the shared name too: to HAMi all memory, or the highest priority.
        own = {o[0]: name for name in device if len(o := context.owners[name]) == 1}
        said = [(owner, name) for owner, name in own.items() if owner in shared]
        found = dict(said) if len(said) == 1 else {}
    return found, shared


def _problem(container: ContainerView, found: dict[str, str], shared: dict[str, str]) -> str:
    spoken = dict(found)
    if len(found) == 1 and shared and not shared.keys() & found.keys():
        spoken["/".join(shared)] = next(iter(shared.values()))
    if len(spoken) < 2:  # one protocol, or none
        return ""
    parts = " and ".join(f"{name} ({family})" for family, name in spoken.items())
    return f"container {container.name}: names of two protocols in one container: {parts}"


def _owner(pod: PodView, spoken: set[str], context: Context) -> tuple[str, str]:
    """The owner of a lone `nvidia.com/gpu`, empty when only the node can decide; and the reason."""
    known = [family.name for family in context.families]
    by_scheduler = _SCHEDULERS.get(pod.scheduler, "")
    if by_scheduler in known:
        return by_scheduler, f"{by_scheduler}'s, by schedulerName {pod.scheduler}"
    if HAMI in spoken:
        return HAMI, "hami's, because another container of the pod uses its names"
    signs = sorted(
        key for key in pod.annotations if key.startswith(_PREFIXES) or key == names.MIG_PROFILE
    )
    if signs and HAMI in known:
        own = next((key for key in signs if key not in RESERVED.annotations), "")
        by = f"the annotation {own}" if own else "the record of its place"
        return HAMI, f"hami's, by {by}"
    if HAMI in known and context.settings.hami.default_memory > 0:
        # The operator's word for requests without memory; otherwise one node that registers otherwise changes all.
        return HAMI, "hami's, because its configuration has a default memory"
    if context.registrars == {HAMI}:
        return HAMI, "hami's, because it registered every node"
    return "", "read as whole cards; its node decides which protocol's records it gets"

"""A pod's requests with qGPU's names: one for each container.

Units: `qgpu-core` in percent of a card, `qgpu-memory` in GiB. Containers of one pod may get different cards. Source:
the qGPU document; docs/sources/qgpu.md 1.1, 1.2 and 1.7.
"""

from typing import Final

from partage.model.device import MILLI, DeviceType
from partage.model.errors import InvalidValue
from partage.model.policy import CardOrder, Scoring, Strategy
from partage.model.request import (
    CardFilter,
    ContainerAsk,
    DeviceRequest,
    Fault,
    Phase,
    RequestGroup,
)
from partage.vendors import names
from partage.vendors.base import ContainerView, PodView, Reading
from partage.vendors.families.qgpu.rules import (
    GIB,
    OFFLINE,
    ONLINE,
    SHARERS,
    Ask,
    RuleBroken,
    ask_of,
)
from partage.vendors.settings import Settings
from partage.vendors.traits import NVIDIA
from partage.vendors.wishes import read_class

NAME: Final = "qgpu"
_OWNED: Final = frozenset({names.QGPU_CORE, names.QGPU_MEMORY, names.QGPU_GREEDY})
_ORDERS: Final = {
    ONLINE: CardOrder(strategy=Strategy.SPREAD),
    OFFLINE: CardOrder(strategy=Strategy.BINPACK),
}
"""Placement of pods by class: online ones apart, offline ones together (a later addition)."""
_SCORING: Final = Scoring(left=True)
"""Spread prefers the node that has more left (the qGPU document)."""


def owned(_settings: Settings) -> frozenset[str]:
    """The three resource names of qGPU."""
    return _OWNED


def asking(pod: PodView) -> tuple[ContainerView, ...]:
    """The containers of a pod that use qGPU's names."""
    return tuple(container for container in pod.containers if container.names & _OWNED)


def read(pod: PodView, containers: tuple[ContainerView, ...], _settings: Settings) -> Reading:
    """One group for each container that asks for something; a broken rule is the fault.

    The group's dialect is the pod's class: `online`, `offline` or empty.
    """
    app_class = pod.annotations.get(names.QGPU_APP_CLASS, "")
    fault: Fault | None = None
    try:
        read_class(pod.annotations)
    except InvalidValue as error:
        fault = Fault(str(error))
    groups: list[RequestGroup] = []
    notes: list[str] = []
    for container in containers:
        try:
            ask = ask_of(container, app_class)
        except RuleBroken as broken:
            fault = fault or Fault(f"container {container.name}: {broken}")
            continue
        if ask is None:
            continue
        groups.append(_group(container, ask, app_class))
        if ask.note:
            notes.append(f"container {container.name}: {ask.note}")
    if not groups and fault is None:
        return Reading()
    return Reading(
        groups=tuple(sorted(groups, key=lambda group: group.phase is Phase.INIT)),
        card_order=_ORDERS.get(app_class, CardOrder()),
        scoring=_SCORING,
        fault=fault,
        notes=tuple(notes),
    )


def _group(container: ContainerView, ask: Ask, app_class: str) -> RequestGroup:
    request = DeviceRequest(
        type=DeviceType.GPU,
        count=ask.cards,
        core_milli=ask.core * MILLI // 100,
        memory_bytes=ask.memory * GIB,
        memory_milli=MILLI if ask.whole else 0,
        whole=ask.whole,
        sharers=SHARERS,
        filter=CardFilter(vendors=(NVIDIA.name,)),
    )
    return RequestGroup(
        protocol=NAME,
        dialect=app_class,
        request=request,
        containers=(ContainerAsk(container.name, container.phase),),
        phase=container.phase,
    )

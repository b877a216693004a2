"""Everything that is written on a pod for its allocation: every family's keys, and our record and permit.

Source: docs/decisions/0002 and 0003.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from msgspec import structs

from partage.model.allocation import Allocation
from partage.model.node import Node
from partage.model.request import PodRequest
from partage.vendors import names
from partage.vendors.base import Family, PlacedPod, Rendering
from partage.vendors.settings import Settings
from partage.wire import permit
from partage.wire.record import encode
from partage.wire.routing import HAMI, KOORDINATOR, UNDECIDED


def render(placed: PlacedPod, settings: Settings, families: Sequence[Family]) -> Rendering:
    """The families' renderings as one, with Partage's record; empty for a pod without devices.

    A lone `nvidia.com/gpu` gets the records of the protocol that its node registers with.
    """
    placed = resolve(placed)
    if not placed.allocation.grants:
        return Rendering()
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    env: dict[str, dict[str, str]] = {}
    on_node: dict[str, str] = {}
    concerned = placed.concerned
    for family in families:
        if family.name not in concerned:
            continue
        said = family.render(placed, settings)
        annotations |= said.annotations
        labels |= said.labels
        on_node |= said.node_annotations
        for container, variables in said.env.items():
            env.setdefault(container, {}).update(variables)
    annotations[names.ALLOCATION] = encode(placed.allocation)
    if placed.allocation.permit is not None:
        annotations[names.PERMIT] = permit.encode(placed.allocation.permit, placed.allocation.uid)
    return Rendering(dict(sorted(annotations.items())), dict(sorted(labels.items())), env, on_node)


def labels_of(
    placed: PlacedPod, settings: Settings, families: Sequence[Family]
) -> Mapping[str, str]:
    """The labels of `render`, at a small part of its cost."""
    if not placed.allocation.grants:
        return {}
    if any(grant.protocol == UNDECIDED for grant in placed.allocation.grants):
        placed = resolve(
            placed
        )  # labels follow from the grants, and a record names their protocols
    found: dict[str, str] = {}
    for family in families:
        found |= family.labels(placed, settings)
    return dict(sorted(found.items()))


def resolve(placed: PlacedPod) -> PlacedPod:
    """The pod with undecided requests and grants given to their node's protocol."""
    told = {grant.protocol for grant in placed.allocation.grants}
    if UNDECIDED not in told.union(group.protocol for group in placed.request.groups):
        return placed
    protocol = _owner(placed.allocation, placed.node)
    return replace(
        placed,
        request=_given(placed.request, protocol),
        allocation=resolved(placed.allocation, placed.node),
    )


@lru_cache(maxsize=1024)
def _given(request: PodRequest, protocol: str) -> PodRequest:
    """The request with its undecided groups given to a protocol; made once for equal pods."""
    groups = tuple(
        replace(group, protocol=protocol) if group.protocol == UNDECIDED else group
        for group in request.groups
    )
    return replace(request, groups=groups)


def _owner(allocation: Allocation, node: Node) -> str:
    """The protocol for undecided requests: HAMi also if they got an instance, which Koordinator's record lacks."""
    cut = any(grant.mig and grant.protocol == UNDECIDED for grant in allocation.grants)
    return HAMI if cut or node.registrar == HAMI else KOORDINATOR


def resolved(allocation: Allocation, node: Node) -> Allocation:
    """The allocation with undecided grants given to the node's protocol."""
    protocol = _owner(allocation, node)
    return structs.replace(
        allocation,
        grants=tuple(
            structs.replace(grant, protocol=protocol) if grant.protocol == UNDECIDED else grant
            for grant in allocation.grants
        ),
    )

"""The requests of a pod's ResourceClaims as the engine's own request, so that it can compare nodes for them. Pure.

The engine decides nothing by it: kube-scheduler's allocator has the last word on every node. So this module reads a
claim only if that is simple and exact, and leaves others to kube-scheduler: alternatives, all devices, constraints,
access for administrators, another driver's classes, and a request that does not name both amounts. Of selectors it
understands only equality of a few attributes, since it evaluates nothing. The annotation of a pod that admission
translated into claims contains its full request.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from partage.model.allocation import CLAIM
from partage.model.device import MILLI, DeviceType, SliceMode
from partage.model.errors import InvalidValue
from partage.model.quantity import NANO
from partage.model.request import CardFilter, ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.vendors.names import DRA_DRIVER, MIG_CLASS, SHARE_CLASS, TRANSLATED
from partage.wire.claim_shapes import decode_translated, request_of
from partage.wire.claims import allocation_of, spec_of
from partage.wire.device_requests import Ask, Asked, asked
from partage.wire.documents import Document
from partage.wire.limits import LIMITS

_PERCENT: Final = MILLI // 100
_EQUAL: Final = re.compile(
    rf'device\.attributes\["{re.escape(DRA_DRIVER)}"\]\.(profile|model|vendor|uuid) == "([^"\\]*)"'
)
_AMOUNTS: Final = frozenset({"cores", "memory"})
_MOST: Final = LIMITS["containers that ask for devices"]
"""Requests of one pod for which nodes are compared; each costs a look at all nodes."""
MOST_BYTES: Final = 2**18
"""Bytes of the claims of one pod that are read for that."""


def request_of_claims(pod: Document, claims: Sequence[Document]) -> PodRequest | None:
    """The joint request of claims; None if only kube-scheduler can tell, it is too much, or one is allocated already.

    `pod`: the pod that names them, and no devices.
    """
    read = [_asked(claim) for claim in claims]
    wanted = [one for one in read if one is not None and _ours(one)]
    if not wanted or len(wanted) < len(claims):
        return None
    requests = _translated(pod, len(claims)) or list(islice(_requests(wanted), _MOST + 1))
    if None in requests or len(requests) > _MOST:
        return None
    return PodRequest(
        tuple(
            RequestGroup(CLAIM, one, (ContainerAsk(f"claim-{number}", position=number),))
            for number, one in enumerate(requests)
            if one is not None
        )
    )


def _asked(claim: Document) -> Asked | None:
    """The request of a claim; None if it cannot be read or is allocated."""
    if allocation_of(claim):
        return None
    try:
        return asked(spec_of(claim))
    except InvalidValue:
        return None


def _ours(wants: Asked) -> bool:
    """Whether it asks for devices of Partage, and for no others."""
    asks = [ask for some in wants.requests for ask in some]
    return bool(asks) and all(ask.device_class in (SHARE_CLASS, MIG_CLASS) for ask in asks)


def _translated(pod: Document, claims: int) -> list[DeviceRequest | None]:
    """The original requests of a pod whose requests became claims; nothing if it has other claims too."""
    try:
        told = decode_translated(pod.annotations.get(TRANSLATED, "{}"))
        if len(told) != claims:
            return []
    except InvalidValue:
        return []
    found: list[DeviceRequest | None] = []
    for shape in (one.shape for one in told.values()):
        request = request_of(shape)
        if not shape.shares:
            request = replace(request, filter=replace(request.filter, modes=(SliceMode.MIG,)))
        found.append(request)
    return found


def _requests(wanted: Iterable[Asked]) -> Iterable[DeviceRequest | None]:
    for wants in wanted:
        for some in wants.requests:
            (ask, *others) = some
            yield None if others or wants.constraints else _request(ask)


def _request(ask: Ask) -> DeviceRequest | None:
    """One request of a claim as the engine's; None if it contains more than this module understands."""
    chosen = _filter(ask.selectors)
    if chosen is None or not ask.count or ask.admin or ask.capacity.keys() - _AMOUNTS:
        return None
    profile, filters = chosen
    if ask.device_class == MIG_CLASS:
        if not profile or ask.capacity:
            return None
        cut = replace(filters, modes=(SliceMode.MIG,))
        return DeviceRequest(
            DeviceType.GPU, ask.count, filter=cut, instances=True, profile=profile
        )
    core = ask.capacity.get("cores", 0) * _PERCENT // NANO
    memory = ask.capacity.get("memory", 0) // NANO
    if profile or core > MILLI or core < 0 or memory < 0:
        return None
    if core == MILLI:
        # A card without free compute takes no further pod.
        return DeviceRequest(
            DeviceType.GPU, ask.count, MILLI, memory_milli=MILLI, whole=True, filter=filters
        )
    if not core or not memory:
        return None  # an unnamed amount means all that a card has left
    return DeviceRequest(DeviceType.GPU, ask.count, core, memory, filter=filters)


def _filter(selectors: Iterable[str]) -> tuple[str, CardFilter] | None:
    """The profile and the cards that selectors choose; None if one does more than compare attributes with texts."""
    found: dict[str, str] = {}
    for selector in selectors:
        for term in selector.split("&&"):
            equal = _EQUAL.fullmatch(term.strip())
            if equal is None or found.get(equal[1], equal[2]) != equal[2]:
                return None
            found[equal[1]] = equal[2]
    models, vendors, uuids = (
        (found[name],) if name in found else () for name in ("model", "vendor", "uuid")
    )
    return found.get("profile", ""), CardFilter(use_types=models, vendors=vendors, use_uuids=uuids)

"""Makes the spec of a ResourceClaimTemplate from a claim's shape and the cluster's cards. Pure.

Amounts of a card become one request. Amounts that depend on the card become alternatives, and Kubernetes' allocator
takes the first with room on a node. Memory in percent becomes one alternative for each size of card. A hardware
instance becomes one for each profile that is large enough, the smallest first. Eight are allowed; if a cluster's cards
need more, the alternatives of the most cards are kept.

Source: Kubernetes' API types of resource.k8s.io/v1 at v1.36.4 (`FirstAvailableDeviceRequestMaxSize`); CEL of DRA.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from partage.model.cutting import Cutting
from partage.model.device import MILLI, Device, DeviceType, SliceMode
from partage.model.quantity import binary
from partage.placement.instances import sized, wished
from partage.vendors.names import (
    CLAIMS_LABEL,
    CLAIMS_TRANSLATE,
    DRA_DRIVER,
    MIG_CLASS,
    SHARE_CLASS,
)
from partage.wire.claim_shapes import Shape, request_of

API_VERSION: Final = "resource.k8s.io/v1"
SPEC_MARK: Final = f"{CLAIMS_LABEL}-spec"
"""Annotation of a template with the hash of its original spec, because the API server fills in fields of its own."""
MOST_ALTERNATIVES: Final = 8
_LONGEST_MODEL: Final = 64
_MIB: Final = 2**20
_PERCENT: Final = MILLI // 100
_OF: Final = f'device.attributes["{DRA_DRIVER}"]'
_HAS: Final = f'device.capacity["{DRA_DRIVER}"]'
_IDLE: Final = (
    f"{_HAS}.cores.asInteger() == 100 && {_HAS}.memory.asInteger() > {_OF}.memory - {_MIB}"
)
"""Pods hold nothing of the card; the amounts express that claims hold nothing."""

Spec = dict[str, Any]


class Kind(NamedTuple):
    """Cards that are alike for claims.

    Attributes:
        vendor: their maker; empty if it is unknown.
        model: their model, as in a ResourceSlice.
        mode: how each may be cut.
        cutting: the instances into which each may be cut.
    """

    vendor: str
    model: str
    memory_bytes: int
    mode: SliceMode
    cutting: Cutting | None


def claim_spec(shape: Shape, cards: Mapping[Kind, int]) -> Spec | str:
    """The spec of the claims of a shape; a text gives the reason for none with these `cards`, counted by kind."""
    options = _alternatives(shape, cards)
    if not options:
        return "no card of the cluster can give it"
    request: Spec = {"name": "cards"}
    if len(options) == 1:
        request["exactly"] = options[0]
    else:
        named = ({"name": f"way-{number}", **one} for number, one in enumerate(options))
        request["firstAvailable"] = list(named)
    return {"devices": {"requests": [request]}}


def template(shape: Shape, namespace: str, spec: Spec, owner: Mapping[str, Any]) -> Spec:
    """The ResourceClaimTemplate of a shape; it is deleted with its `owner`, the DeviceClass."""
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": shape.template,
            "namespace": namespace,
            "labels": {CLAIMS_LABEL: CLAIMS_TRANSLATE},
            "annotations": {SPEC_MARK: mark(spec)},
            "ownerReferences": [dict(owner)],
        },
        "spec": {"spec": spec},
    }


def mark(spec: Spec) -> str:
    """A hash that tells specs apart."""
    return blake2b(json.dumps(spec, sort_keys=True).encode(), digest_size=8).hexdigest()


def kinds(devices: Iterable[Device]) -> Counter[Kind]:
    """The number of cards of each kind, by the properties that matter to a spec."""
    return Counter(
        Kind(one.vendor, one.model[:_LONGEST_MODEL], one.memory_bytes, one.mode, one.cutting)
        for one in devices
        if one.type is DeviceType.GPU and not one.vendor_cut
    )


def _alternatives(shape: Shape, cards: Mapping[Kind, int]) -> list[Spec]:
    mine = {
        one: count
        for one, count in cards.items()
        if one.vendor not in shape.avoid_vendors
        and (not one.vendor or not shape.vendors or one.vendor in shape.vendors)
    }
    found = [*_shares(shape, mine), *_instances(shape, mine)]
    # The alternatives of the most cards stay, in the order of their trial.
    most = sorted(range(len(found)), key=lambda at: -found[at][0])[:MOST_ALTERNATIVES]
    return [found[at][1] for at in sorted(most)]


def _shares(shape: Shape, cards: Mapping[Kind, int]) -> Iterator[tuple[int, Spec]]:
    """Alternatives on shared cards, with the number of cards."""
    if not shape.shares:
        return
    cores = str(shape.core_milli // _PERCENT)
    if shape.whole:
        yield sum(cards.values()), _request(shape, SHARE_CLASS, [_IDLE], {"cores": "100"})
    elif shape.memory_bytes:
        amounts = {"cores": cores, "memory": str(binary(shape.memory_bytes))}
        yield sum(cards.values()), _request(shape, SHARE_CLASS, [], amounts)
    else:
        sizes = Counter[int]()
        for card, count in cards.items():
            if card.mode is not SliceMode.MIG:
                sizes[card.memory_bytes] += count
        for size, count in sorted(sizes.items()):
            # Rounded down: ten tenths have room on one card.
            memory = size * shape.memory_milli // MILLI // _MIB * _MIB
            if memory:
                amounts = {"cores": cores, "memory": str(binary(memory))}
                yield count, _request(shape, SHARE_CLASS, [f"{_OF}.memory == {size}"], amounts)


def _instances(shape: Shape, cards: Mapping[Kind, int]) -> Iterator[tuple[int, Spec]]:
    """Alternatives as hardware instances, the smallest profile of each model first."""
    if not shape.instances:
        return
    asked, found = sized(request_of(shape)), dict[tuple[int, int, str], Counter[str]]()
    for card, count in cards.items():
        cutting = card.cutting
        if cutting is None or card.mode is SliceMode.SHARE or cutting.geometries:
            continue
        for rank, name in enumerate(wished(cutting, asked)):
            key = rank, cutting.axis.profile(name).memory_bytes, name
            found.setdefault(key, Counter())[card.model] += count
    for (_, _, name), models in sorted(found.items(), key=lambda one: one[0]):
        chosen = f"{_OF}.profile == {json.dumps(name)} && {_any('model', sorted(models))}"
        yield models.total(), _request(shape, MIG_CLASS, [chosen], {})


def _request(shape: Shape, class_: str, chosen: list[str], amounts: dict[str, str]) -> Spec:
    selectors = [*chosen, *_filters(shape)]
    return {
        "deviceClassName": class_,
        **(
            {"selectors": [{"cel": {"expression": one}} for one in selectors]} if selectors else {}
        ),
        "count": shape.count,
        **({"capacity": {"requests": amounts}} if amounts else {}),
    }


def _filters(shape: Shape) -> Iterator[str]:
    """Expressions that a suitable card must satisfy, all of them."""
    if shape.vendors:
        yield f'!("vendor" in {_OF}) || {_OF}.vendor in {_list(shape.vendors)}'
    if shape.avoid_vendors:
        yield f"!({_any('vendor', shape.avoid_vendors)})"
    if shape.use_uuids:
        yield _any("uuid", shape.use_uuids)
    if shape.avoid_uuids:
        yield f"!({_any('uuid', shape.avoid_uuids)})"
    if shape.use_types:
        yield _named(shape.use_types)
    if shape.avoid_types:
        yield f"!({_named(shape.avoid_types)})"


def _any(attribute: str, values: Iterable[str]) -> str:
    return f'"{attribute}" in {_OF} && {_OF}.{attribute} in {_list(values)}'


def _named(words: Iterable[str]) -> str:
    folded = _list(word.lower() for word in words)
    return f'"model" in {_OF} && {folded}.exists(w, {_OF}.model.lowerAscii().contains(w))'


def _list(values: Iterable[str]) -> str:
    """A list of CEL's texts; for printable ASCII, a JSON text is one."""
    return json.dumps([*values])

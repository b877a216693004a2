"""The requests of ResourceClaims, and the claims that a pod names.

Source: Kubernetes API resource.k8s.io/v1 at v1.36 (`DeviceClaim`); v1beta1 leaves out `exactly`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from partage.model.errors import InvalidValue
from partage.model.selector import Toleration
from partage.wire import shapes
from partage.wire.device_pools import expressions, nano
from partage.wire.documents import Document, explain
from partage.wire.pod_phase import finished

CLAIM_KINDS: Final = frozenset(
    {"ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice"}
)
"""Kinds that decide an allocation."""
MOST: Final = 32
"""Requests, devices, constraints or selectors of one claim, the API server's limit."""


class _Capacity(msgspec.Struct, frozen=True):
    requests: dict[str, shapes.Amount] = msgspec.field(default_factory=dict)


class _Ask(msgspec.Struct, frozen=True, rename="camel"):
    device_class_name: str = ""
    name: str = ""
    selectors: list[shapes.DeviceSelector] | None = None
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    tolerations: list[Toleration] | None = None
    capacity: _Capacity | None = None


class _Request(_Ask, frozen=True, rename="camel"):
    exactly: _Ask | None = None
    first_available: list[_Ask] | None = None


class _Constraint(msgspec.Struct, frozen=True, rename="camel"):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class _Devices(msgspec.Struct, frozen=True):
    requests: list[_Request] | None = None
    constraints: list[_Constraint] | None = None


class _Spec(msgspec.Struct, frozen=True):
    devices: _Devices = _Devices()


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, or one alternative of a request.

    Attributes:
        name: of the request; `request/alternative` of an alternative.
        count: the number of devices; 0 for all.
        admin: for an administrator, whose access takes nothing.
        capacity: the least amounts, in billionths, by name.
    """

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    count: int = 1
    admin: bool = False
    capacity: Mapping[str, int] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class Constraint:
    """A property in which devices agree or differ.

    Attributes:
        requests: the requests whose devices are compared; empty for all of the claim.
        attribute: with its domain.
        distinct: the devices differ in it.
    """

    requests: tuple[str, ...]
    attribute: str
    distinct: bool = False

    def concerns(self, ask: Ask) -> bool:
        """Whether it restricts the devices of a request."""
        return (
            not self.requests
            or ask.name in self.requests
            or ask.name.partition("/")[0] in self.requests
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A claim's requests: for each one its alternatives, the best first."""

    requests: tuple[tuple[Ask, ...], ...] = ()
    constraints: tuple[Constraint, ...] = ()


def asked(spec: Mapping[str, Any] | None) -> Asked:
    """The requests of a spec. Raises `InvalidValue`: one field is invalid; its message begins with `field …: `."""
    try:
        devices = msgspec.convert(spec or {}, _Spec).devices
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidValue(f"field spec.{explain(error).removeprefix('field ')}") from error
    given, bounds = devices.requests or [], devices.constraints or []
    if len(given) > MOST or len(bounds) > MOST:
        raise InvalidValue(f"field spec.devices: more than {MOST} requests or constraints")
    requests = tuple(_alternatives(one) for one in given)
    if sum(min(one.count for one in some) for some in requests) > MOST:
        raise InvalidValue(f"field spec.devices.requests: more than {MOST} devices")
    return Asked(
        requests,
        tuple(
            Constraint(tuple(one.requests or ()), attribute, one.match_attribute is None)
            for one in bounds
            if (attribute := one.match_attribute or one.distinct_attribute)
        ),
    )


def _alternatives(request: _Request) -> tuple[Ask, ...]:
    if request.first_available:
        several = request.first_available[:MOST]
        return tuple(_ask(one, f"{request.name}/{one.name}") for one in several)
    return (_ask(request.exactly or request, request.name),)


def _ask(one: _Ask, name: str) -> Ask:
    where = f"spec.devices.requests[{name}]"
    if len(one.selectors or ()) > MOST or not 0 < one.count <= MOST:
        raise InvalidValue(f"field {where}: more than {MOST} selectors or devices, or no device")
    amounts = one.capacity.requests if one.capacity is not None else {}
    return Ask(
        name=name,
        device_class=one.device_class_name,
        selectors=expressions(one.selectors),
        count=0 if one.allocation_mode == "All" else one.count,
        admin=bool(one.admin_access),
        capacity={
            key: nano(value, f"{where}.capacity.requests[{key}]") for key, value in amounts.items()
        },
        tolerations=tuple(one.tolerations or ()),
    )


def claims_left_out(documents: Iterable[Document]) -> list[str]:
    """A note on bound pods whose ResourceClaims are not among the documents: a dump of pods alone has none."""
    known: set[tuple[str, str]] = set()
    holders: dict[str, list[tuple[str, str]]] = {}
    for one in documents:
        if one.kind == "ResourceClaim":
            known.add((one.namespace, one.name))
        shape = one.shape
        if not isinstance(shape, shapes.Pod) or shape.spec is None or not shape.spec.node_name:
            continue
        if (named := claims_named(one)) and not finished(shape):
            holders[one.label] = [(one.namespace, claim) for _own, claim, _template in named]
    told = [pod for pod, claims in holders.items() if any(one not in known for one in claims)]
    if not told:
        return []
    whose = f"{told[0]} and {len(told) - 1} more: their" if len(told) > 1 else f"{told[0]}: its"
    more = "add kubectl get resourceclaims,deviceclasses,resourceslices -A -o yaml"
    return [
        f"{whose} ResourceClaims are not there, and the devices of these count as free; {more}"
    ]


def claims_named(pod: Document) -> list[tuple[str, str, str]]:
    """For each claim of a pod: the pod's name for it, its own, and its template's if it does not exist yet."""
    shape = pod.shape
    if not isinstance(shape, shapes.Pod) or shape.spec is None:
        return []
    statuses = shape.status.resource_claim_statuses if shape.status else None
    made = {one.name: one.resource_claim_name or "" for one in statuses or ()}
    found = []
    for one in (shape.spec.resource_claims or ())[:MOST]:
        name = one.name or ""
        claim = one.resource_claim_name or made.get(name, "")
        found.append((name, claim, "" if claim else one.resource_claim_template_name or ""))
    return found

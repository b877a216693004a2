"""The shape of a ResourceClaim for a pod's request by a protocol's names, or the reason why no claim can express it.

A claim depends on nothing but its shape. So pods with equal requests have one shape, in whatever names, and one
template. A shape contains no more than the request does. Its spec depends on the cluster's cards (`claim_specs`). Pure.
"""

from hashlib import blake2b
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from partage.model.device import MILLI, DeviceType, SliceMode
from partage.model.errors import UNREADABLE, InvalidValue
from partage.model.policy import CardOrder
from partage.model.request import CardFilter, DeviceRequest, Phase, PodRequest, RequestGroup
from partage.wire.device_requests import MOST
from partage.wire.documents import explain
from partage.wire.limits import LIMITS

MIB: Final = 2**20
"""The unit of a claim's memory."""
_PERCENT: Final = MILLI // 100
_MOST_TEXT: Final = 256 * 2**10
_HASH: Final = 5
_WORDS = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=80, pattern=r"^[ -~]*$")], ...],
    Meta(max_length=16),
]
_Count = Annotated[int, Meta(ge=1, le=MOST)]
_Milli = Annotated[int, Meta(ge=0, le=MILLI)]
_Bytes = Annotated[int, Meta(ge=0, lt=2**62)]


class Shape(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The request of one claim.

    Attributes:
        core_milli: compute of each, in thousandths of a card.
        memory_milli: memory of each in thousandths of its card's, instead.
        whole: each is an idle card, all of it.
        shares: a card, or a part of one, is enough.
        instances: a hardware instance is enough.
        profile: of the instance, as the pod names it; empty if amounts decide.
        vendors: allowed makers of the card; a card with an unknown maker is allowed too.
        avoid_vendors: excluded makers.
        use_types: its model contains one of these.
        avoid_types: its model contains none of these.
        use_uuids: it is one of these.
        avoid_uuids: it is none of these.
    """

    count: _Count = 1
    core_milli: _Milli = 0
    memory_bytes: _Bytes = 0
    memory_milli: _Milli = 0
    whole: bool = False
    shares: bool = True
    instances: bool = False
    profile: Annotated[str, Meta(max_length=32, pattern=r"^[0-9a-z.+-]*$")] = ""
    vendors: _WORDS = ()
    avoid_vendors: _WORDS = ()
    use_types: _WORDS = ()
    avoid_types: _WORDS = ()
    use_uuids: _WORDS = ()
    avoid_uuids: _WORDS = ()

    @property
    def template(self) -> str:
        """The name of its template: a summary for people, and a hash of the whole shape."""
        kind = "card" if self.whole else "share" if self.shares else "instance"
        amounts = [f"{self.count}x"] if self.count > 1 else []
        if not self.whole and not self.profile:
            amounts.append(f"{self.core_milli // _PERCENT}c")
            memory = self.memory_bytes // MIB
            amounts.append(f"{memory}m" if memory else f"{self.memory_milli // _PERCENT}p")
        mark = blake2b(msgspec.json.encode(self, order="deterministic"), digest_size=_HASH)
        return "-".join(("partage", kind, *amounts, mark.hexdigest()))


_ASKED: Final = [name for name in Shape.__struct_fields__ if hasattr(DeviceRequest, name)]
_WANTED: Final = [name for name in Shape.__struct_fields__ if hasattr(CardFilter, name)]
"""Fields with the same name in a shape and in a request's filter."""


class Translated(msgspec.Struct, frozen=True):
    """One container of a pod whose requests became claims; it `asked` for these resources by name."""

    shape: Shape
    asked: dict[str, str] = {}


def encode_translated(containers: dict[str, Translated]) -> str:
    """The annotation of a pod, by its containers' names."""
    return msgspec.json.encode(containers).decode()


_Containers = Annotated[
    dict[str, Translated], Meta(max_length=LIMITS["containers that ask for devices"])
]


def decode_translated(text: str) -> dict[str, Translated]:
    """Read the text of `encode_translated`; anybody may have written it. Raises `InvalidValue`."""
    if len(text) > _MOST_TEXT:
        raise InvalidValue(f"more than {_MOST_TEXT} characters")
    try:
        return msgspec.json.decode(text, type=_Containers)
    except UNREADABLE as error:
        raise InvalidValue(explain(error)) from error


def shapes_of(request: PodRequest) -> dict[str, Shape] | str:
    """The shape of each container's claim by the container's name; a text gives the reason for none.

    `request`: without a fault; scheduling gates are allowed, because they decide when and not what.
    """
    for wish, told in (
        (request.joint, "devices of several types are to be placed together"),
        (request.partition, "the pod asks for a partition of its node"),
        (request.node_labels, "the pod names the provider that enforces its shares"),
        (request.node_strategy, "the pod chooses how nodes are compared"),
        (request.card_order != CardOrder(), "the pod chooses the order of cards"),
    ):
        if wish:
            return f"{told}, which a claim cannot express"
    found: dict[str, Shape] = {}
    for group in request.groups:
        containers = [one.name for one in group.containers]
        shape = shape_of(group)
        if isinstance(shape, str):
            return f"container {containers[0]}: {shape}" if len(containers) == 1 else shape
        if containers[0] in found:
            return f"container {containers[0]} asks twice, and may have one claim"
        found[containers[0]] = shape
    return found


def shape_of(group: RequestGroup) -> Shape | str:
    """The shape of one container's request; a text gives the reason why no claim can express it."""
    request = group.request
    told = next((told for wrong, told in _beyond_claims(group) if wrong), "")
    if told:
        return told
    modes = request.filter.modes
    shape = {name: getattr(request, name) for name in _ASKED}
    shape |= {name: getattr(request.filter, name) for name in _WANTED}
    shape["shares"] = not request.profile and (not modes or SliceMode.SHARE in modes)
    try:
        return msgspec.convert(shape, Shape)
    except msgspec.ValidationError as error:
        return f"a claim cannot express this: {explain(error)}"


def request_of(shape: Shape) -> DeviceRequest:
    """The shape as a request: the amounts that a card would give for it."""
    asked = {name: getattr(shape, name) for name in _ASKED}
    asked["memory_milli"] = 0 if shape.memory_bytes else shape.memory_milli
    wanted = CardFilter(**{name: getattr(shape, name) for name in _WANTED})
    return DeviceRequest(DeviceType.GPU, **asked, filter=wanted)


def _beyond_claims(group: RequestGroup) -> tuple[tuple[object, str], ...]:
    """Features that a claim cannot express: whether the group uses each one, and the reason."""
    request = group.request
    wanted = request.filter
    amounts = not request.whole and not request.profile
    return (
        (request.type is not DeviceType.GPU, f"claims are for cards, not for {request.type}"),
        (len(group.containers) != 1, "several containers share one request"),
        (
            any(one.phase is Phase.INIT for one in group.containers),
            "an init container releases its card when it ends, but a claim lasts as long as the pod",
        ),
        (request.every, "all devices of a node are asked for"),
        (request.extras or request.templated, "only its vendor's plugin gives native units"),
        (request.exclusive or request.unused, "it must be the only sharer of its card"),
        (
            wanted.selector or wanted.functions,
            "it chooses by labels of devices, which claims do not see",
        ),
        (
            request.scope or request.scope_exclusive,
            "its devices must be near each other, or away from others",
        ),
        (request.core_milli % _PERCENT, "a claim's compute is counted in whole percent"),
        (request.memory_bytes % MIB, "a claim's memory is counted in whole MiB"),
        (
            amounts and not request.memory_bytes and not request.memory_milli,
            "it asks for no memory, and a claim has at least 1Mi",
        ),
    )

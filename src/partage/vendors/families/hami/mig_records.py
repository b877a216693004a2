"""How HAMi writes hardware instances on pods: two encodings, both read.

HAMi 2.5 to 2.9 add a geometry and a slot of it to the card's UUID: `GPU-x[1-0]`. HAMi 2.10 leaves the UUID alone and
lists the instances with their exact places in an annotation of their own. A geometry's slots are numbered in the order
of the operator's table. The instances of one profile are numbered from the highest start down, because they are made in
this order.

Source: docs/sources/hami.md 1.5, 5.2 and 5.3; the HAMi document.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from partage.model.allocation import Grant
from partage.model.cutting import Cutting
from partage.model.errors import UNREADABLE, InvalidRecord
from partage.model.mig import MigSlice
from partage.vendors.families.hami.codec import MigMark

_Natural = Annotated[int, Meta(ge=0, le=4096)]


class _Placement(Struct, frozen=True, rename="camel"):
    start: _Natural
    size: Annotated[int, Meta(ge=1, le=64)]


class Listed(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One instance in `hami.io/vgpu-mig-allocations`.

    Attributes:
        container: the container's position in the pod.
        device: the instance's position among the container's devices.
        profile: such as `2g.10gb`.
        placement: first memory unit and units taken.
        mig: the instance's UUID; HAMi's plugin adds it and the next two once the instance exists.
        gpu_instance: the driver's number.
        compute_instance: the driver's number.
    """

    container: _Natural = msgspec.field(name="containerIndex")
    device: _Natural = msgspec.field(name="deviceIndex")
    gpu: Annotated[str, Meta(min_length=1)] = msgspec.field(name="gpuUUID")
    profile: Annotated[str, Meta(min_length=1)]
    placement: _Placement
    mig: str = msgspec.field(name="migUUID", default="")
    gpu_instance: int | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance: int | None = msgspec.field(name="computeInstanceID", default=None)

    @property
    def instance(self) -> MigSlice:
        """The instance with the model's names."""
        return MigSlice(self.profile, self.placement.start, self.placement.size)


def encode_listed(held: Iterable[tuple[int, int, Grant]]) -> str:
    """The annotation of HAMi 2.10 for instances `held`: by positions of container and device in it."""
    return msgspec.json.encode(
        [
            Listed(
                container=container,
                device=position,
                gpu=grant.uuid,
                profile=grant.mig.profile,
                placement=_Placement(grant.mig.start, grant.mig.size),
            )
            for container, position, grant in held
            if grant.mig is not None
        ]
    ).decode()


def decode_listed(text: str) -> Mapping[tuple[int, int], Listed]:
    """The instances of an annotation of HAMi 2.10, by container and device position.

    Raises `InvalidRecord`: not the published JSON, one position twice, or an incomplete identity.
    """
    try:
        listed = msgspec.json.decode(text, type=list[Listed])
    except UNREADABLE as error:
        raise InvalidRecord(f"malformed JSON: {error}") from error
    result: dict[tuple[int, int], Listed] = {}
    for one in listed:
        key = one.container, one.device
        if key in result:
            raise InvalidRecord(f"device {one.device} of container {one.container} is there twice")
        told = [bool(one.mig), one.gpu_instance is not None, one.compute_instance is not None]
        if any(told) and not all(told):
            raise InvalidRecord(f"the identity of {one.profile} on {one.gpu} is there in part")
        result[key] = one
    return result


def slot_uuid(grant: Grant, cutting: Cutting | None) -> str:
    """The card's UUID with the suffix of HAMi 2.5; empty if no geometry has that instance."""
    for geometry in cutting.geometries if cutting is not None else ():
        usual = geometry.usual
        if grant.mig in usual:
            return f"{grant.uuid}[{geometry.number}-{usual.index(grant.mig)}]"
    return ""


def slot_of(mark: MigMark, cutting: Cutting | None) -> MigSlice | None:
    """The instance for a suffix of HAMi 2.5; None if no geometry has such a slot."""
    for geometry in cutting.geometries if cutting is not None else ():
        if geometry.number == mark.geometry and mark.slot < len(geometry.usual):
            return geometry.usual[mark.slot]
    return None

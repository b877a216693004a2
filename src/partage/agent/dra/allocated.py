"""Reads which of this node's devices a claim was allocated. Pure.

`wire.claims` reads the claim as the ledger does. An agent grants access to devices, so it is stricter: it does not
prepare a claim with any oddity in its allocation.
"""

from dataclasses import dataclass

import msgspec

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.vendors.names import DRA_DRIVER
from partage.wire.claims import claim_uid, has_parameters, held_devices, read_claim
from partage.wire.documents import Document

_MIB = 2**20


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device of a claim. `request`: or `request/alternative`. `share`: its identity, if the device has several."""

    request: str
    pool: str
    device: str
    share: str = ""


@dataclass(frozen=True, slots=True)
class Allocated:
    """A claim's part of one node; the container of each grant of its `allocation` is the number of its part."""

    parts: tuple[Part, ...]
    allocation: Allocation


def allocated(claim: Document, node: Node) -> Allocated:
    """A ResourceClaim's devices here. Raises `InvalidValue`: it holds none here, or one that cannot be granted."""
    read = read_claim(claim, lambda pool: node if pool == node.name else None)
    if read.problems:
        raise InvalidValue("; ".join(read.problems))
    results = held_devices(claim)
    where = f"ResourceClaim {read.namespace}/{read.name}"
    if any(one.get("adminAccess") for one in results):
        raise InvalidValue(f"{where}: access for administrators is not served")
    if has_parameters(claim):
        raise InvalidValue(f"{where} has parameters for {DRA_DRIVER}, which takes none")
    if others := sorted({str(one["pool"]) for one in results} - {node.name}):
        raise InvalidValue(f"{where} is allocated on node {others[0]}, not on {node.name}")
    record = read.records.get(node.name)
    if record is None or len(record.grants) != len(results):
        raise InvalidValue(f"{where} is not allocated")
    cards = {one.uuid: one for one in node.devices}
    grants = tuple(
        msgspec.structs.replace(_entire(grant, cards.get(grant.uuid)), container=str(number))
        for number, grant in enumerate(record.grants)
    )
    allocation = Allocation(claim_uid(claim), read.namespace, read.name, node.name, grants)
    return Allocated(parts_of(claim), allocation)


def parts_of(claim: Document) -> tuple[Part, ...]:
    """The devices of this driver that a claim's allocation names, whether they can be granted or not."""
    return tuple(
        Part(
            str(one.get("request")),
            str(one.get("pool")),
            str(one.get("device")),
            str(one.get("shareID") or ""),
        )
        for one in held_devices(claim)
    )


def _entire(grant: Grant, card: Device | None) -> Grant:
    """A share of a whole card is the card, because nothing is left to protect from others."""
    if card is None or grant.mode is not GrantMode.SHARE:
        return grant
    entire = (
        grant.core_milli >= min(card.core_milli, 1000)
        and grant.memory_bytes >= card.memory_bytes // _MIB * _MIB
    )
    return msgspec.structs.replace(grant, mode=GrantMode.WHOLE) if entire else grant

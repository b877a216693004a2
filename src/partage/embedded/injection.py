"""A node agent's edits of a container: environment, device files, and the cards behind them.

The edits follow an agent's way: from the pod's own record on its node, through the families that wrote it. A pod
that asks for devices and has no trusted record gets nothing and does not start.

The agent's own rule (`partage.agent.container_edits`) turns grants into edits.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import msgspec

from partage.agent.container_edits import HostFacts, Instance, gifts
from partage.agent.isolation.providers import VendorIsolation
from partage.embedded.manifests import decoded
from partage.model.allocation import Allocation, Grant
from partage.model.errors import InvalidDocument
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.pod import Record
from partage.vendors.base import PlacedPod
from partage.wire import shapes
from partage.wire.claims import held_devices, read_claim
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.nodes import translate_node
from partage.wire.outcomes import grant_text, said
from partage.wire.pods import translate_pod
from partage.wire.recovery import recover
from partage.wire.translation import names_devices

_SPACE: Final = uuid.UUID("5b8e1f4a-2f0d-5c52-9a35-1f0c2c9a7d10")


@dataclass(frozen=True, slots=True)
class Injection:
    """Edits of one pod's containers.

    Attributes:
        problem: reason why the pod may not start; empty if it may.
        env: variables by container.
        files: device files by container.
        cards: one line a device, by container.
    """

    problem: str = ""
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def injection(
    pod: Mapping[str, Any],
    node: Mapping[str, Any] | None,
    device: Mapping[str, Any] | None,
    context: Context,
    claims: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Injection:
    """Edits of a bound pod's containers on its node, with its `claims` by the pod's names; never raises."""
    try:
        document = decoded("Pod", pod)
        place = _place(node, device, context)
        given = {name: decoded("ResourceClaim", one) for name, one in claims.items()}
        return _injection(document, place, context, tuple(_claimed(pod, place, given)))
    except InvalidDocument as error:
        return Injection(f"the pod cannot be read: {error}")


def _place(
    node: Mapping[str, Any] | None, device: Mapping[str, Any] | None, context: Context
) -> Node:
    documents = (
        decoded("Node", node) if node is not None else None,
        decoded("Device", device) if device is not None else None,
    )
    if documents == (None, None):
        return Node("")
    return translate_node(*documents, context).node


def _claimed(
    pod: Mapping[str, Any], place: Node, claims: Mapping[str, Document]
) -> Iterator[Grant]:
    """The containers' devices by the pod's claims, in the form of a record."""
    for container in (pod.get("spec") or {}).get("containers") or ():
        for wish in (container.get("resources") or {}).get("claims") or ():
            claim = claims.get(wish["name"])
            if claim is None or not isinstance(claim.shape, shapes.ResourceClaim):
                continue
            results = [
                one
                for one in held_devices(claim)
                if wish.get("request") in (None, str(one.get("request")).partition("/")[0])
            ]
            status = {"allocation": {"devices": {"results": results}}}
            mine = replace(claim, shape=msgspec.structs.replace(claim.shape, status=status))
            found = read_claim(mine, lambda name: place if name == place.name else None)
            for record in found.records.values():
                for grant in record.grants:
                    yield msgspec.structs.replace(grant, container=container["name"])


def _injection(
    document: Document, place: Node, context: Context, claimed: tuple[Grant, ...]
) -> Injection:
    read = translate_pod(document, context)
    record = recover(read.view, place, context)
    if record is None and claimed and not names_devices(_spec(document), context):
        record = Record(claimed)
    elif record is not None:
        record = replace(record, grants=(*record.grants, *claimed))
    if record is None:
        asked = read.pod.request
        # Amounts of 0 name devices and ask for none.
        asks = bool(asked.groups) or asked.fault is not None
        return Injection("the pod asks for devices and was given none by Partage" if asks else "")
    if record.problem:
        return Injection(f"the record of the pod's devices cannot be trusted: {record.problem}")
    pod = read.pod
    allocation = Allocation(pod.uid, pod.namespace, pod.name, place.name, record.grants)
    placed = PlacedPod(read.view, pod.request, allocation, place, 0)
    given = gifts(placed, context.settings, context.families, _HOST)
    cards: dict[str, list[str]] = {}
    for grant in record.grants:
        cards.setdefault(grant.container, []).append(_line(placed, grant))
    return Injection(
        env={name: one.env for name, one in given.items() if one.env},
        files={name: (*one.spare, *one.files) for name, one in given.items()},
        cards={name: tuple(lines) for name, lines in cards.items()},
    )


def _spec(document: Document) -> shapes.PodSpec | None:
    return document.shape.spec if isinstance(document.shape, shapes.Pod) else None


def _instance(_pod: str, card: str, mig: MigSlice) -> Instance:
    """The identity that a driver would give to the new instance."""
    return Instance(f"MIG-{uuid.uuid5(_SPACE, f'{card}/{mig.profile}/{mig.start}')}")


_HOST: Final = HostFacts(_instance, provider=VendorIsolation(), vendors=True)


def _line(placed: PlacedPod, grant: Grant) -> str:
    device, _ = placed.card(grant)
    model = said(placed.node, device, "model") if device is not None else ""
    identity = f"{grant.uuid} {model}".strip()
    return f"{grant.type.value} {grant.minor} ({identity}): {grant_text(grant)}"

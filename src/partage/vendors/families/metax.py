"""MetaX sGPU: shares of one card, sixteen to a card, cut by the vendor's own plugin.

The MetaX document: the pod asks in Koordinator's names and adds `metax-tech.com/sgpu`, which activates the plugin, and
a quality of service, which the plugin enforces. The ConfigMap `metax-device-config` lists the nodes that are cut that
way (docs/sources/koordinator.md 5).
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final

import msgspec

from partage.model.allocation import Grant, GrantMode
from partage.model.device import MILLI, Device, DeviceType
from partage.model.errors import UNREADABLE, InvalidValue
from partage.model.node import Node, Verdict
from partage.model.pod import Record
from partage.model.reason import ReasonCode
from partage.model.request import DeviceRequest, Phase, at_most
from partage.vendors import names
from partage.vendors.base import (
    KOORDINATOR,
    Family,
    NodeView,
    PlacedPod,
    PodView,
    Reading,
    Registration,
    Rendering,
    adapted,
    gpus_of,
    lock_of,
    undersized,
    wakes,
)
from partage.vendors.settings import MetaxSettings, Settings
from partage.vendors.traits import METAX

_MODE: Final = "metax-mode"
_PERCENT: Final = MILLI // 100
_POLICIES: Final = ("fixed-share", "best-effort", "burst-share")
_DEFAULT_POLICY: Final = "best-effort"
# The document's prose joins each name with "sGPU", so it looks like a plural.
_SPELLINGS: Final = {spelt: one for one in _POLICIES for spelt in (one, f"{one}s")}
_NATIVE: Final = "native"
_SHARING: Final = "sgpu"


def _refine(pod: PodView, reading: Reading, _settings: Settings) -> Reading:
    """The rules of a pod that activates the plugin: quality of service, one card, vendor's cards."""
    asks = reading.fault is None and reading.groups
    if asks and names.SGPU_QOS_POLICY in pod.annotations and not wakes(pod, METAX):
        note = (
            f"annotation {names.SGPU_QOS_POLICY} has no effect: no container asks for {names.SGPU}"
        )
        reading = replace(reading, notes=(*reading.notes, note))
    return adapted(pod, reading, METAX, lambda request: not request.whole, partial(_problem, pod))


def _problem(pod: PodView, requests: Sequence[DeviceRequest]) -> str:
    policy = pod.annotations.get(names.SGPU_QOS_POLICY, _DEFAULT_POLICY)
    if policy not in _SPELLINGS:
        known = ", ".join(_POLICIES)
        return (
            f"annotation {names.SGPU_QOS_POLICY}: {policy!r} is not allowed; choose one of {known}"
        )
    problem = next(filter(None, map(_uncut, requests)), "")
    if problem or requests:
        return problem or _units_problem(pod, requests)
    return (
        f"{names.SGPU} only wakes the vendor's plugin; ask for {names.KOORD_GPU_SHARED},"
        f" {names.KOORD_GPU_CORE} and {names.KOORD_GPU_MEMORY} beside it"
    )


def _units_problem(pod: PodView, requests: Sequence[DeviceRequest]) -> str:
    """Why the plugin would get a request for more or fewer virtual cards than the pod's record contains."""
    asked = ((one.phase, {names.SGPU: one.ask(names.SGPU)}) for one in pod.containers)
    most = at_most(
        (phase, {k: one.nano for k, one in some.items() if one}) for phase, some in asked
    )
    units = Fraction(most.get(names.SGPU, 0), 10**9)
    cards = sum(request.count for request in requests)
    if units == cards or (units < cards and all(request.whole for request in requests)):
        return ""
    return (
        f"{names.SGPU} asks the vendor's plugin for {units} virtual cards, and the pod's record has {cards};"
        f" write {names.SGPU}: {cards}"
    )


def _uncut(request: DeviceRequest) -> str:
    """Why the plugin could not cut the request; texts contain upstream's."""
    if request.whole:
        return ""
    if request.count > 1:
        return (
            "MetaX does not support virtualisation over several cards:"
            f" a share of {request.count} cards was asked, one is allowed"
        )
    problem = undersized(request, METAX)
    prefix = f'failed to adapt for GPU device plugin of vendor "{METAX.name}": '
    return problem and prefix + problem


def _register(node: NodeView, settings: Settings) -> Registration:
    """Sixteen sharers a card on sGPU nodes, none on native ones; other modes are refused."""
    named = node.labels.get(names.GPU_VENDOR, "")
    if not any(_is_ours(device, named) for device in node.devices):
        return Registration()
    mode = _mode(node, settings.metax)
    devices = None
    verdicts: tuple[Verdict, ...] = ()
    if mode == _NATIVE:
        why = "the MetaX node is in mode native: whole cards only, no sGPU"
        verdicts = (Verdict("", ReasonCode.NOT_SHAREABLE, why, sharing_only=True),)
    elif mode not in (_SHARING, ""):
        why = f"the MetaX node is in mode {mode}, which is not supported; use native or sgpu"
        verdicts = (Verdict("", ReasonCode.MODE_MISMATCH, why),)
    else:
        devices = tuple(
            replace(device, slots=min(device.slots, METAX.sharers), vendor_cut=True)
            if _is_ours(device, named)
            else device
            for device in node.devices
        )
    return Registration(
        devices=devices,
        verdicts=verdicts,
        properties={_MODE: mode} if mode else {},
        notes=() if mode else (f"no {names.SGPU} and no mode is known; taken for an sGPU node",),
    )


def _is_ours(device: Device, vendor: str) -> bool:
    return device.type is DeviceType.GPU and (device.vendor or vendor) == METAX.name


def _mode(node: NodeView, settings: MetaxSettings) -> str:
    """The node's own mode, else the cluster's, else the one that its plugin reports; empty if unknown."""
    configured = settings.node_modes.get(node.name) or settings.cluster_mode
    if configured:
        return configured.strip().lower()
    for resource, mode in ((names.SGPU, _SHARING), (names.METAX_GPU, _NATIVE)):
        quantity = node.allocatable.get(resource)
        if quantity is not None and quantity.nano > 0:
            return mode
    return ""


def _render(placed: PlacedPod, _settings: Settings) -> Rendering:
    cards = gpus_of(placed, METAX.name)
    if not cards:
        return Rendering()
    entries = [
        {
            "uuid": card.uuid,
            "compute": card.core or (100 if card.whole else 0),
            "vRam": card.memory_bytes // METAX.unit,
        }
        for card in cards
    ]
    annotations = {names.METAX_DEVICES_ALLOCATED: msgspec.json.encode([entries]).decode()}
    value = placed.pod.annotations.get(names.SGPU_QOS_POLICY)
    if value is None and wakes(placed.pod, METAX) and not all(card.whole for card in cards):
        value = _DEFAULT_POLICY
    if value is not None and value in _SPELLINGS:
        annotations[names.SGPU_QOS_POLICY] = _SPELLINGS[value]
    return Rendering(annotations=annotations, node_annotations=lock_of(placed, METAX))


class _Entry(msgspec.Struct, frozen=True):
    uuid: str
    compute: int = 0
    memory: int = msgspec.field(default=0, name="vRam")


def _recover(pod: PodView, node: Node, _settings: Settings) -> Record | None:
    """The allocation in the vendor's record; Koordinator's record has the same and is read first."""
    text = pod.annotations.get(names.METAX_DEVICES_ALLOCATED)
    if text is None:
        return None
    try:
        document = msgspec.json.decode(text, type=list[list[_Entry]])
        # One list for each container: two of them may have a card together.
        for part in document:
            if len({entry.uuid for entry in part}) < len(part):
                raise InvalidValue("a card is listed twice")
        grants = tuple(_grant(entry, pod, node) for part in document for entry in part)
    except UNREADABLE as error:
        problem = f"annotation {names.METAX_DEVICES_ALLOCATED}: {error}"
        return Record(source=METAX.name, problem=problem)
    return Record(grants=grants, source=METAX.name) if grants else None


def _grant(entry: _Entry, pod: PodView, node: Node) -> Grant:
    device = next((d for d in node.devices if d.uuid == entry.uuid), None)
    if device is None:
        raise InvalidValue(f"the node has no card {entry.uuid}")
    if entry.compute < 0 or entry.memory < 0:
        raise InvalidValue(f"card {entry.uuid} has a negative amount")
    if (
        entry.compute * _PERCENT > device.core_milli
        or entry.memory * METAX.unit > device.memory_bytes
    ):
        raise InvalidValue(
            f"card {entry.uuid} has less than {entry.compute} % or {entry.memory} MiB"
        )
    whole = entry.compute == 100 and entry.memory == device.memory_bytes // METAX.unit
    owner = next(
        (c for c in pod.containers if c.phase is not Phase.INIT and names.SGPU in c.names), None
    )
    return Grant(
        container=owner.name if owner else "",
        type=device.type,
        minor=device.minor,
        uuid=device.uuid,
        core_milli=device.core_milli if whole else entry.compute * _PERCENT,
        memory_bytes=device.memory_bytes if whole else entry.memory * METAX.unit,
        mode=GrantMode.WHOLE if whole else GrantMode.VENDOR,
        phase=owner.phase if owner else Phase.MAIN,
        protocol=KOORDINATOR,
    )


FAMILY: Final = Family(
    name=METAX.name,
    triggers=frozenset(METAX.wakes),
    refine=_refine,
    register=_register,
    render=_render,
    recover=_recover,
)

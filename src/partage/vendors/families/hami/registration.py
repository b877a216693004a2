"""HAMi's report of a node: registered cards, cordons, link scores and the operator's settings.

HAMi's plugin registers a node's cards in an annotation, or a Device object describes them. If both exist they are
matched by UUID, and the registration decides how the card is shared. Unreadable text becomes a note. If nothing else
describes the cards, the node gets no pod with devices until the text is readable.

Source: docs/sources/hami.md 2.1, 2.4, 3 and 1.4 (cordon); the HAMi document for the node configuration.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Final

from partage.model.device import Device, DeviceType, SliceMode, Topology
from partage.model.errors import InvalidRecord
from partage.model.mig import MigAxis
from partage.model.node import Verdict
from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.vendors.base import NodeView, Registration
from partage.vendors.families.hami.bounds import CardFacts, cutting_of, foreign_of
from partage.vendors.families.hami.cards import (
    RegisteredCard,
    RegisteredProfile,
    decode_cards,
    decode_scores,
)
from partage.vendors.families.hami.request import MIB, NAME, sharers
from partage.vendors.families.hami.wishes import split_list
from partage.vendors.settings import HamiNodeSettings, Settings
from partage.vendors.traits import NVIDIA, traits_of

_MOST_TOLD: Final = 4
"""The most different tables of MIG profiles that the cards of one node may report."""
_Told = tuple[MigAxis | None, tuple[RegisteredProfile, ...]]

_MODES: Final = {
    "": SliceMode.SHARE,
    "hami-core": SliceMode.SHARE,
    "mig": SliceMode.MIG,
    "either": SliceMode.EITHER,
}


def register(node: NodeView, settings: Settings) -> Registration:
    """The node's cards as HAMi and its settings describe them; never raises.

    Devices are None if HAMi changes nothing. The registrar is HAMi if the registration annotation is readable.
    """
    notes: list[str] = []
    cards = _registered(node, notes)
    unread = [Verdict("", ReasonCode.QUARANTINED, note) for note in notes]
    if node.devices and cards is None and _untouched(node, settings):
        devices = node.devices
    elif node.devices:
        devices = tuple(
            _described(device, cards, node, settings, notes) for device in node.devices
        )
        described = {device.uuid for device in node.devices}
        notes += [
            f"card {card.uuid} is registered in {names.HAMI_REGISTER}, but the Device object "
            "does not describe it; it is left out"
            for card in cards or ()
            if card.uuid not in described
        ]
    else:
        devices = _from_registration(cards or (), node, settings, notes)
    told = _told(devices, cards or (), notes)
    devices = tuple(_cut(device, told, node, settings, notes) for device in devices)
    devices = _cordoned(devices, node)
    links = _links(node, notes)
    return Registration(
        devices=None if devices == node.devices else devices,
        verdicts=() if node.devices else tuple(unread),
        registrar=NAME if cards is not None else "",
        links=links,
        notes=tuple(dict.fromkeys(notes)),
    )


def _untouched(node: NodeView, settings: Settings) -> bool:
    """Whether the operator's settings change no card of the node; the common case, decided once.

    In a large cluster most nodes have no settings of their own, and a check of each card costs more than reading the
    cards.
    """
    hami = settings.hami
    return (
        node.name not in hami.nodes
        and hami.memory_scaling == hami.core_scaling == 1
        and hami.split_count == sharers(settings)
        and all(device.slots >= hami.split_count for device in node.devices)
    )


def memory_scaling(node: str, settings: Settings) -> Fraction:
    """The factor of memory that a card of this node offers; 1 is all of it."""
    own = _own(node, settings).memory_scaling
    return _factor(settings.hami.memory_scaling if own is None else own)


def _core_scaling(node: str, settings: Settings) -> Fraction:
    own = _own(node, settings).core_scaling
    return _factor(settings.hami.core_scaling if own is None else own)


@cache
def _factor(scaling: float) -> Fraction:
    """The factor as written (1.1 is eleven tenths); anything but a positive number counts as 1."""
    if not math.isfinite(scaling) or scaling <= 0:
        return Fraction(1)
    return Fraction(repr(scaling))


def _own(node: str, settings: Settings) -> HamiNodeSettings:
    return settings.hami.nodes.get(node) or HamiNodeSettings(name=node)


def _registered(node: NodeView, notes: list[str]) -> tuple[RegisteredCard, ...] | None:
    text = node.annotations.get(names.HAMI_REGISTER)
    if text is None:
        return None
    try:
        return decode_cards(text)
    except InvalidRecord as error:
        notes.append(f"annotation {names.HAMI_REGISTER} cannot be read: {error}")
        return None


def _from_registration(
    cards: tuple[RegisteredCard, ...], node: NodeView, settings: Settings, notes: list[str]
) -> tuple[Device, ...]:
    """Devices of a node that has no Device object. The plugin has already scaled the amounts.

    The old text has no index; cards whose indexes are not distinct are numbered as listed.
    """
    indexes = [card.index for card in cards]
    distinct = len(set(indexes)) == len(indexes)
    devices = [
        Device(
            type=DeviceType.GPU,
            minor=card.index if distinct else position,
            uuid=card.uuid,
            vendor=NVIDIA.name,
            model=card.model,
            healthy=card.healthy,
            core_milli=card.cores * 10,
            memory_bytes=card.memory_mib * MIB,
            slots=card.slots,
            registrar=_registrar(card, settings),
            topology=Topology(numa=card.numa, pcie=""),
            mode=_mode(card.mode, node, settings, notes),
            health_detail="" if card.healthy else _UNHEALTHY,
        )
        for position, card in enumerate(cards)
    ]
    devices.sort(key=lambda device: device.minor)
    return tuple(_hidden(device, node, settings) for device in devices)


_UNHEALTHY: Final = f"reported unhealthy in {names.HAMI_REGISTER}"


def _described(
    device: Device,
    cards: tuple[RegisteredCard, ...] | None,
    node: NodeView,
    settings: Settings,
    notes: list[str],
) -> Device:
    """A card of a Device object with HAMi's settings; other vendors' cards stay unchanged."""
    if device.type is not DeviceType.GPU or traits_of(device.vendor) is not NVIDIA:
        return device
    card = next((card for card in cards or () if card.uuid == device.uuid), None)
    if card is None:
        device = _configured(device, node, settings, notes)
    else:
        device = _merged(device, card, _mode(card.mode, node, settings, notes))
        device = replace(device, registrar=_registrar(card, settings))
    return _hidden(device, node, settings)


def _registrar(card: RegisteredCard, settings: Settings) -> str:
    """HAMi, if its plugin counts more sharers for the card than the settings here."""
    return NAME if card.slots > sharers(settings) else ""


def _merged(device: Device, card: RegisteredCard, mode: SliceMode) -> Device:
    """Sharing as registered; memory too, unless it only lacks the part below one MiB."""
    same = device.memory_bytes // MIB == card.memory_mib
    return replace(
        device,
        slots=card.slots,
        mode=mode,
        core_milli=card.cores * 10,
        memory_bytes=device.memory_bytes if same else card.memory_mib * MIB,
        model=device.model or card.model,
        topology=device.topology or Topology(numa=card.numa, pcie=""),
        healthy=device.healthy and card.healthy,
        health_detail=device.health_detail if card.healthy else device.health_detail or _UNHEALTHY,
    )


def _configured(device: Device, node: NodeView, settings: Settings, notes: list[str]) -> Device:
    """The operator's settings on a card that HAMi's plugin has not registered.

    Other protocols may share a card by more than HAMi's split count, so that count binds HAMi's own requests. It binds
    the card's slots only if this node's count is below the greatest. Memory and compute of hardware instances are not
    scaled.
    """
    own = _own(node.name, settings).split_count
    split = max(1, settings.hami.split_count if own is None else own)
    slots = split if split < sharers(settings) else max(device.slots, split)
    mode = _mode("", node, settings, notes)
    if mode is SliceMode.MIG:
        return replace(device, slots=slots, mode=mode)
    device = replace(device, mode=mode) if mode is not device.mode else device
    core, memory = _core_scaling(node.name, settings), memory_scaling(node.name, settings)
    if slots == device.slots and core == memory == 1:
        return device
    return replace(
        device,
        slots=slots,
        core_milli=math.floor(device.core_milli * core),
        memory_bytes=math.floor(device.memory_bytes * memory),
    )


def _mode(registered: str, node: NodeView, settings: Settings, notes: list[str]) -> SliceMode:
    """How the card is cut: the operator's setting for the node, else the registered mode."""
    wanted = _own(node.name, settings).operating_mode
    for text, source in ((wanted, "node configuration"), (registered, names.HAMI_REGISTER)):
        if text and text not in _MODES:
            notes.append(f"{source}: mode {text!r} is not known; it counts as hami-core")
    if wanted and registered and wanted != registered:
        notes.append(
            f"the node configuration asks for mode {wanted}, its cards are registered as "
            f"{registered}; the configuration counts"
        )
    return _MODES.get(wanted or registered, SliceMode.SHARE)


def _told(
    devices: Iterable[Device], cards: Iterable[RegisteredCard], notes: list[str]
) -> Mapping[str, _Told]:
    """The registered instances of the node's cards, by UUID, within a limit.

    Each different one needs its own tables, and a node has cards of few models. So registrations beyond the limit do
    not count.
    """
    profiles = {card.uuid: card.profiles for card in cards}
    found = {
        one.uuid: (one.axis, profiles.get(one.uuid, ()))
        for one in devices
        if one.mode is not SliceMode.SHARE
    }
    kept = [*dict.fromkeys(found.values())][:_MOST_TOLD]
    if beyond := [uuid for uuid, told in found.items() if told not in kept]:
        notes.append(
            f"{len(beyond)} cards have other MIG profiles than the first {_MOST_TOLD} kinds of "
            "card; the published ones count for them"
        )
    return {uuid: told for uuid, told in found.items() if told in kept}


def _cut(
    device: Device,
    told: Mapping[str, _Told],
    node: NodeView,
    settings: Settings,
    notes: list[str],
) -> Device:
    """The card with the instances into which it may be cut, if its mode allows any.

    A card that cannot be cut takes nothing in mode mig, and only software shares in mode either; the note gives the
    reason. A card that its driver has switched to instances is closed if no agent cuts it, because a process can use it
    only through an instance.
    """
    if device.type is not DeviceType.GPU:
        return device
    switched = device.labels.get(names.MIG_MODE) == names.MIG_ENABLED
    if switched:  # only for the present state; otherwise equal cards stay equal
        device = replace(
            device, labels={k: v for k, v in device.labels.items() if k != names.MIG_MODE}
        )
    device = _cut_by_mode(device, told, node, settings, notes)
    if switched and device.mode is SliceMode.SHARE:
        notes.append(f"card {device.uuid} is closed: {_SWITCHED}")
        device = replace(device, doubt=device.doubt or _SWITCHED)
    return device


_SWITCHED: Final = (
    "it is in MIG mode, and nothing cuts it into instances here; switch that off (nvidia-smi -mig 0) "
    "or set the node's mode to mig"
)


def _cut_by_mode(
    device: Device,
    told: Mapping[str, _Told],
    node: NodeView,
    settings: Settings,
    notes: list[str],
) -> Device:
    if device.mode is SliceMode.SHARE:
        return device
    if device.uncuttable:
        notes.append(f"card {device.uuid} in mode {device.mode}: {device.uncuttable}")
        if device.mode is SliceMode.EITHER and not device.foreign:
            return replace(device, mode=SliceMode.SHARE)
        device = replace(device, doubt=device.doubt or device.uncuttable)
    axis, profiles = told.get(device.uuid, (None, ()))
    cutting, problem = cutting_of(
        CardFacts(
            model=device.model,
            product=device.labels.get(names.PCI_PRODUCT, ""),
            memory_bytes=device.memory_bytes,
            core_milli=device.core_milli,
            branch=_branch(node),
            profiles=profiles,
            axis=axis,
        ),
        settings.hami,
    )
    if problem:
        notes.append(f"card {device.uuid} in mode {device.mode}: {problem}")
    if cutting is None and device.mode is SliceMode.EITHER:
        return replace(device, mode=SliceMode.SHARE)
    device = replace(device, cutting=cutting)
    if cutting is not None and device.foreign:
        found, doubt = foreign_of(cutting, device.foreign)
        device = replace(device, foreign=found, doubt=device.doubt or doubt)
        if doubt:
            notes.append(f"card {device.uuid} is closed: {doubt}")
    return device


def _branch(node: NodeView) -> int:
    """First number of the node's driver version; 0 if it is not reported."""
    first = node.labels.get(names.GPU_DRIVER_VERSION, "").partition(".")[0]
    return int(first) if first.isdecimal() and len(first) < 6 else 0


def _hidden(device: Device, node: NodeView, settings: Settings) -> Device:
    own = _own(node.name, settings)
    if device.uuid in own.filter_uuids or device.minor in own.filter_indexes:
        return replace(device, hidden_from=device.hidden_from | {NAME})
    return device


def _cordoned(devices: tuple[Device, ...], node: NodeView) -> tuple[Device, ...]:
    closed = set(split_list(node.annotations.get(names.HAMI_CORDON, "")))
    if not closed:
        return devices
    return tuple(
        replace(device, cordoned=True) if device.uuid in closed else device for device in devices
    )


def _links(node: NodeView, notes: list[str]) -> dict[tuple[str, str], int]:
    text = node.annotations.get(names.HAMI_SCORE)
    if text is None:
        return {}
    try:
        return decode_scores(text)
    except InvalidRecord as error:
        notes.append(f"annotation {names.HAMI_SCORE} cannot be read: {error}")
        return {}

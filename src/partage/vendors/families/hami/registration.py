"""HAMi's report of a node: registered cards, cordons, link scores and the operator's settings.

HAMi's plugin registers a node's cards in an annotation, or a Device object describes them. If both exist they are
matched by UUID, and the registration decides how the card is shared. Unreadable text becomes a note. If nothing else
describes the cards, the node gets no pod with devices until the text is readable.

Source: docs/sources/hami.md 2.1, 2.4, 3 and 1.4 (cordon); the HAMi document for the node configuration.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Final, TypeVar

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
_T = TypeVar("_T")
_Told = tuple[MigAxis | None, tuple[RegisteredProfile, ...]]

_NOTHING: Final = HamiNodeSettings(name="")
_UNHEALTHY: Final = f"reported unhealthy in {names.HAMI_REGISTER}"
_SWITCHED: Final = (
    "it is in MIG mode, and nothing cuts it into instances here; switch that off (nvidia-smi -mig 0) "
    "or set the node's mode to mig"
)
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
    return _Node(node, settings).registration()


def memory_scaling(node: str, settings: Settings) -> Fraction:
    """The factor of memory that a card of this node offers; 1 is all of it."""
    own = _own(node, settings).memory_scaling
    return _factor(settings.hami.memory_scaling if own is None else own)


@cache
def _factor(scaling: float) -> Fraction:
    """The factor as written (1.1 is eleven tenths); anything but a positive number counts as 1."""
    if not math.isfinite(scaling) or scaling <= 0:
        return Fraction(1)
    return Fraction(repr(scaling))


def _own(node: str, settings: Settings) -> HamiNodeSettings:
    return settings.hami.nodes.get(node, _NOTHING)


class _Node:
    """A node while its registration is made; `notes` is for its operator."""

    def __init__(self, node: NodeView, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self.own = _own(node.name, settings)
        self.notes: list[str] = []
        self.told: Mapping[str, _Told] = {}

    def registration(self) -> Registration:
        node, notes = self.node, self.notes
        cards = self._read(names.HAMI_REGISTER, decode_cards)
        unread = [Verdict("", ReasonCode.QUARANTINED, note) for note in notes]
        known = {card.uuid: card for card in cards or ()}
        if not node.devices:
            devices = self._from_registration(cards or ())
        elif cards is None and self._untouched():
            devices = node.devices
        else:
            devices = tuple(self._described(one, known.get(one.uuid)) for one in node.devices)
            described = {device.uuid for device in node.devices}
            notes += [
                f"card {uuid} is registered in {names.HAMI_REGISTER}, but the Device object "
                "does not describe it; it is left out"
                for uuid in known
                if uuid not in described
            ]
        self.told = self._reported(devices, known)
        closed = split_list(node.annotations.get(names.HAMI_CORDON, ""))
        devices = tuple(
            replace(one, cordoned=True) if one.uuid in closed else one
            for one in map(self._cut, devices)
        )
        links = self._read(names.HAMI_SCORE, decode_scores) or {}
        return Registration(
            devices=None if devices == node.devices else devices,
            verdicts=() if node.devices else tuple(unread),
            registrar=NAME if cards is not None else "",
            links=links,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _read(self, key: str, decode: Callable[[str], _T]) -> _T | None:
        """The contents of an annotation; None without one, and with a note for an unreadable one."""
        text = self.node.annotations.get(key)
        try:
            return None if text is None else decode(text)
        except InvalidRecord as error:
            self.notes.append(f"annotation {key} cannot be read: {error}")
            return None

    def _untouched(self) -> bool:
        """Whether the operator's settings change no card of the node; the common case, decided once.

        In a large cluster most nodes have no settings of their own, and a check of each card costs more than reading
        the cards.
        """
        hami = self.settings.hami
        return (
            self.node.name not in hami.nodes
            and hami.memory_scaling == hami.core_scaling == 1
            and hami.split_count == sharers(self.settings)
            and all(device.slots >= hami.split_count for device in self.node.devices)
        )

    def _from_registration(self, cards: tuple[RegisteredCard, ...]) -> tuple[Device, ...]:
        """Devices of a node that has no Device object. The plugin has already scaled the amounts.

        The old text has no index; cards whose indexes are not distinct are numbered as listed.
        """
        distinct = len({card.index for card in cards}) == len(cards)
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
                registrar=self._registrar(card),
                topology=Topology(numa=card.numa, pcie=""),
                mode=self._mode(card.mode),
                health_detail="" if card.healthy else _UNHEALTHY,
            )
            for position, card in enumerate(cards)
        ]
        return tuple(map(self._hidden, sorted(devices, key=lambda device: device.minor)))

    def _described(self, device: Device, card: RegisteredCard | None) -> Device:
        """A card of a Device object with HAMi's settings; other vendors' cards stay unchanged."""
        if device.type is not DeviceType.GPU or traits_of(device.vendor) is not NVIDIA:
            return device
        return self._hidden(
            self._configured(device) if card is None else self._merged(device, card)
        )

    def _registrar(self, card: RegisteredCard) -> str:
        """HAMi, if its plugin counts more sharers for the card than the settings here."""
        return NAME if card.slots > sharers(self.settings) else ""

    def _merged(self, device: Device, card: RegisteredCard) -> Device:
        """Sharing as registered; memory too, unless it only lacks the part below one MiB."""
        same = device.memory_bytes // MIB == card.memory_mib
        detail = device.health_detail
        return replace(
            device,
            slots=card.slots,
            mode=self._mode(card.mode),
            core_milli=card.cores * 10,
            memory_bytes=device.memory_bytes if same else card.memory_mib * MIB,
            model=device.model or card.model,
            topology=device.topology or Topology(numa=card.numa, pcie=""),
            healthy=device.healthy and card.healthy,
            health_detail=detail if card.healthy else detail or _UNHEALTHY,
            registrar=self._registrar(card),
        )

    def _configured(self, device: Device) -> Device:
        """The operator's settings on a card that HAMi's plugin has not registered.

        Other protocols may share a card by more than HAMi's split count, so that count binds HAMi's own requests. It
        binds the card's slots only if this node's count is below the greatest. Memory and compute of hardware
        instances are not scaled.
        """
        hami, own = self.settings.hami, self.own
        split = max(1, hami.split_count if own.split_count is None else own.split_count)
        slots = split if split < sharers(self.settings) else max(device.slots, split)
        mode = self._mode("")
        if mode is SliceMode.MIG:
            return replace(device, slots=slots, mode=mode)
        device = replace(device, mode=mode) if mode is not device.mode else device
        core = _factor(hami.core_scaling if own.core_scaling is None else own.core_scaling)
        memory = memory_scaling(self.node.name, self.settings)
        if slots == device.slots and core == memory == 1:
            return device
        return replace(
            device,
            slots=slots,
            core_milli=math.floor(device.core_milli * core),
            memory_bytes=math.floor(device.memory_bytes * memory),
        )

    def _mode(self, registered: str) -> SliceMode:
        """How the card is cut: the operator's setting for the node, else the registered mode."""
        wanted = self.own.operating_mode
        for text, source in ((wanted, "node configuration"), (registered, names.HAMI_REGISTER)):
            if text and text not in _MODES:
                self.notes.append(f"{source}: mode {text!r} is not known; it counts as hami-core")
        if wanted and registered and wanted != registered:
            self.notes.append(
                f"the node configuration asks for mode {wanted}, its cards are registered as "
                f"{registered}; the configuration counts"
            )
        return _MODES.get(wanted or registered, SliceMode.SHARE)

    def _hidden(self, device: Device) -> Device:
        if device.uuid in self.own.filter_uuids or device.minor in self.own.filter_indexes:
            return replace(device, hidden_from=device.hidden_from | {NAME})
        return device

    def _reported(
        self, devices: Iterable[Device], cards: Mapping[str, RegisteredCard]
    ) -> Mapping[str, _Told]:
        """The registered instances of the node's cards, by UUID, within a limit.

        Each different one needs its own tables, and a node has cards of few models. So registrations beyond the limit
        do not count.
        """
        found = {
            one.uuid: (one.axis, cards[one.uuid].profiles if one.uuid in cards else ())
            for one in devices
            if one.mode is not SliceMode.SHARE
        }
        kept = [*dict.fromkeys(found.values())][:_MOST_TOLD]
        if beyond := [uuid for uuid, told in found.items() if told not in kept]:
            self.notes.append(
                f"{len(beyond)} cards have other MIG profiles than the first {_MOST_TOLD} kinds of "
                "card; the published ones count for them"
            )
        return {uuid: told for uuid, told in found.items() if told in kept}

    def _cut(self, device: Device) -> Device:
        """The card with the instances into which it may be cut, if its mode allows any.

        A card that cannot be cut takes nothing in mode mig, and only software shares in mode either; the note gives the
        reason. A card that its driver has switched to instances is closed if no agent cuts it, because a process can
        use it only through an instance.
        """
        if device.type is not DeviceType.GPU:
            return device
        switched = device.labels.get(names.MIG_MODE) == names.MIG_ENABLED
        if switched:  # only for the present state; otherwise equal cards stay equal
            others = {k: v for k, v in device.labels.items() if k != names.MIG_MODE}
            device = replace(device, labels=others)
        device = self._cut_by_mode(device)
        if switched and device.mode is SliceMode.SHARE:
            self.notes.append(f"card {device.uuid} is closed: {_SWITCHED}")
            device = replace(device, doubt=device.doubt or _SWITCHED)
        return device

    def _cut_by_mode(self, device: Device) -> Device:
        if device.mode is SliceMode.SHARE:
            return device
        if device.uncuttable:
            self.notes.append(f"card {device.uuid} in mode {device.mode}: {device.uncuttable}")
            if device.mode is SliceMode.EITHER and not device.foreign:
                return replace(device, mode=SliceMode.SHARE)
            device = replace(device, doubt=device.doubt or device.uncuttable)
        axis, profiles = self.told.get(device.uuid, (None, ()))
        branch = self.node.labels.get(names.GPU_DRIVER_VERSION, "").partition(".")[0]
        cutting, problem = cutting_of(
            CardFacts(
                model=device.model,
                product=device.labels.get(names.PCI_PRODUCT, ""),
                memory_bytes=device.memory_bytes,
                core_milli=device.core_milli,
                branch=int(branch) if branch.isdecimal() and len(branch) < 6 else 0,
                profiles=profiles,
                axis=axis,
            ),
            self.settings.hami,
        )
        if problem:
            self.notes.append(f"card {device.uuid} in mode {device.mode}: {problem}")
        if cutting is None and device.mode is SliceMode.EITHER:
            return replace(device, mode=SliceMode.SHARE)
        device = replace(device, cutting=cutting)
        if cutting is not None and device.foreign:
            found, doubt = foreign_of(cutting, device.foreign)
            device = replace(device, foreign=found, doubt=device.doubt or doubt)
            if doubt:
                self.notes.append(f"card {device.uuid} is closed: {doubt}")
        return device

"""Series of hardware instances, as HAMi's scheduler exports them.

With a geometry table every slot of a card in use has a series: 1 for a used slot, 0 for a free one.
Without a table every instance that exists has one, numbered by start. Idle cards have no series. A
foreign instance counts as used, and has a series of its own that marks it as foreign.

Source: the HAMi document (`nodeGPUMigInstance`, its HELP text included); docs/sources/hami.md 5.5.
"""

from collections.abc import Iterator
from typing import Final

from partage.inventory.card import Card
from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType
from partage.model.mig import MigSlice


def label_text(value: str) -> str:
    """The value, escaped."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


_OLD: Final = "nodeGPUMigInstance"
_OLD_HELP: Final = "GPU Sharing mode. 0 for hami-core, 1 for mig, 2 for mps"
_TODAY: Final = "hami_node_gpu_mig_instance_info"
_TODAY_HELP: Final = "Hardware instances that pods hold."
_FOREIGN: Final = "partage_foreign_instance_info"
_FOREIGN_HELP: Final = "Hardware instances that Partage did not make and no pod's record names."
_PIECE: Final = 64
"""Cards of one piece; each has up to seven lines."""


def mig_series(ledger: Ledger) -> Iterator[bytes]:
    """The series of all cards that are cut into instances, with the name of HAMi up to 2.8 and with today's.

    They come in pieces of a few hundred lines, and other tasks may run between two of them.
    """
    cards = [
        (ledger.node_at(index).name, card)
        for index in sorted(ledger.cut_nodes)
        for card in ledger.cards(DeviceType.GPU, index)
        if card.occupied
    ]
    for name, told, lines in ((_OLD, _OLD_HELP, _slots), (_TODAY, _TODAY_HELP, _instances)):
        yield f"# HELP {name} {told}\n# TYPE {name} gauge\n".encode()
        for start in range(0, len(cards), _PIECE):
            some = cards[start : start + _PIECE]
            yield "".join(line for node, card in some for line in lines(node, card)).encode()


def foreign_series(ledger: Ledger) -> bytes:
    """One series for each instance that no pod of ours holds, also on cards that offer no instances."""
    text = f"# HELP {_FOREIGN} {_FOREIGN_HELP}\n# TYPE {_FOREIGN} gauge\n"
    for name, index in sorted(ledger.index.items()):
        node = ledger.node_at(index)
        if any(device.foreign for device in node.devices):
            for card in ledger.cards(DeviceType.GPU, index):
                text += "".join(_strangers(name, card))
    return text.encode()


def _strangers(node: str, card: Card) -> Iterator[str]:
    for one in card.device.foreign:
        place = one.instance
        if place in card.foreign:
            yield (
                f'{_FOREIGN}{{device_index="{card.device.minor}",'
                f'device_uuid="{label_text(card.device.uuid)}",'
                f'mig_uuid="{label_text(",".join(one.uuids))}",node="{label_text(node)}",'
                f'placement_size="{place.size}",placement_start="{place.start}",'
                f'profile="{label_text(place.profile)}"}} 1\n'
            )


def _slots(node: str, card: Card) -> Iterator[str]:
    for number, (one, used) in enumerate(_numbered(card)):
        yield (
            f'{_OLD}{{deviceidx="{card.device.minor}",deviceuuid="{label_text(card.device.uuid)}",'
            f'migname="{label_text(one.profile)}-{number}",nodeid="{label_text(node)}",'
            f'zone="vGPU"}} {used:d}\n'
        )


def _numbered(card: Card) -> list[tuple[MigSlice, bool]]:
    """The slots of the card's geometry, or without one its instances by start, each with whether it is used."""
    cutting, there = card.device.cutting, card.occupied
    stage = cutting.stage(there) if cutting is not None and cutting.geometries else None
    if cutting is None or stage is None:
        return [(one, True) for one in there]
    geometry = cutting.geometries[stage]
    layout = next(layout for layout in geometry.layouts if set(there) <= set(layout))
    return [(one, one in there) for one in geometry.numbered(layout)]


def _instances(node: str, card: Card) -> Iterator[str]:
    """The series of HAMi 2.10 for each instance. Only the node knows the identities, so they are empty here."""
    for one in card.instances:
        yield (
            f'{_TODAY}{{compute_instance_id="",device_index="{card.device.minor}",'
            f'device_uuid="{label_text(card.device.uuid)}",gpu_instance_id="",mig_uuid="",'
            f'node="{label_text(node)}",placement_size="{one.size}",'
            f'placement_start="{one.start}",profile="{label_text(one.profile)}",zone="vGPU"}} 1\n'
        )

"""Reports a node's cards beside the Device object: labels, and HAMi's registration.

Source: docs/sources/koordinator.md 6; docs/sources/hami.md 2.4 and 3; docs/sources/qgpu.md 1.
"""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from partage.agent.discovery.found import Inventory
from partage.agent.isolation.providers import Provider
from partage.model.device import Device, DeviceType
from partage.vendors import names
from partage.vendors.catalog import HamiCard, encode_hami_cards
from partage.vendors.settings import HamiSettings
from partage.vendors.traits import NVIDIA

_MIB: Final = 2**20
_LINK: Final = 100
"""HAMi's score of one NVLink between two cards."""
_NONE: Final = "[]"


def isolation_labels(provider: Provider) -> dict[str, str]:
    """The labels of a node with NVIDIA cards: the provider of shares there, and its enforced amounts."""
    held = {True: "true", False: "false"}
    return {
        names.ISOLATION_PROVIDER: provider.name,
        names.ISOLATION_MEMORY: held[provider.memory],
        names.ISOLATION_COMPUTE: held[provider.compute],
    }


def node_labels(
    inventory: Inventory,
    labels: Mapping[str, str],
    *,
    qgpu: bool = False,
    isolation: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Labels to set on the node; empty if it has them. `isolation`: those of the provider, if the cards are NVIDIA's.

    Make, model and driver follow the found cards. A label that others may also set is added only if it is absent.
    """
    card = next((one for one in inventory.found if one.device.type is DeviceType.GPU), None)
    if card is None:
        return {}
    ours = {
        names.GPU_VENDOR: card.device.vendor,
        names.GPU_MODEL: card.device.model,
        names.GPU_DRIVER_VERSION: card.driver,
    }
    filled: dict[str, str] = {}
    if card.device.vendor == NVIDIA.name:
        ours |= isolation
        filled[names.QGPU_MODEL_LABELS[0]] = card.product.replace(" ", "-")
        filled[names.QGPU_DRIVER_LABELS[1]] = card.driver
    if qgpu:
        filled[names.QGPU_ENABLE] = "enable"
    wanted = {key: value for key, value in ours.items() if value and labels.get(key) != value}
    return wanted | {key: value for key, value in filled.items() if value and key not in labels}


def registered_cards(
    cards: Iterable[tuple[Device, str]], hami: HamiSettings, node: str, mode: str = ""
) -> list[HamiCard]:
    """The cards, each with its driver's name for it, as HAMi's plugin registers them by its configuration for the node.

    Cards that the configuration filters are left out, as upstream leaves them out. In mode `mig` memory is not scaled.
    `mode`: `hami-core` or `mig`, if the configuration of the node names none.
    """
    own = hami.nodes.get(node)
    mode = (own.operating_mode if own else "") or mode or "hami-core"
    memory = (own.memory_scaling if own else None) or hami.memory_scaling
    cores = (own.core_scaling if own else None) or hami.core_scaling
    slots = (own.split_count if own else None) or hami.split_count
    hidden = (own.filter_uuids, own.filter_indexes) if own else ((), ())
    return [
        HamiCard(
            uuid=card.uuid,
            index=card.minor,
            slots=slots,
            memory_mib=int(card.memory_bytes // _MIB * (1.0 if mode == "mig" else memory)),
            cores=int(100 * cores),
            model=product if product.startswith("NVIDIA") else f"NVIDIA-{product}",
            mode=mode,
            healthy=card.healthy,
            numa=max(card.topology.numa, 0) if card.topology else 0,
        )
        for card, product in cards
        if card.uuid not in hidden[0] and card.minor not in hidden[1]
    ]


def hami_annotations(
    inventory: Inventory,
    hami: HamiSettings,
    node: str,
    known: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Node annotations that HAMi's scheduler reads; empty without NVIDIA cards.

    A card in MIG mode is registered as one to be cut into instances, unless the node's configuration names a mode.
    Links are scored as HAMi's plugin scores NVLink: 100 a link. `known`: the node's annotations; those of cards or
    links that are not found any more become empty lists, as HAMi's plugin writes them.
    """
    gone = {key: _NONE for key in (names.HAMI_REGISTER, names.HAMI_SCORE) if key in known}
    cards = [
        one
        for one in inventory.found
        if one.device.type is DeviceType.GPU and one.device.vendor == NVIDIA.name
    ]
    if not cards:
        return gone
    registered = [
        card
        for one in cards
        for card in registered_cards(
            [(one.device, one.product)], hami, node, "mig" if one.mig else ""
        )
    ]
    said = gone | {names.HAMI_REGISTER: encode_hami_cards(registered)}
    if inventory.links:
        scores: dict[str, dict[str, int]] = {one.device.uuid: {} for one in cards}
        for (one, other), links in sorted(inventory.links.items()):
            if one in scores and other in scores:
                scores[one][other] = scores[other][one] = links * _LINK
        table = [{"uuid": uuid, "score": score} for uuid, score in scores.items()]
        said[names.HAMI_SCORE] = json.dumps(table, separators=(",", ":"))
    return said

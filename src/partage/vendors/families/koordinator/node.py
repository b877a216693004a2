"""Koordinator's report of a node: its registrar, its cards' make, its refusals.

The devices themselves give vendor and model, else the node's labels do (docs/sources/koordinator.md 3.3 and 5).
"""

from collections.abc import Callable
from typing import Final

from partage.model.device import Device, DeviceType
from partage.model.node import Verdict
from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.vendors.base import NodeView, Registration
from partage.vendors.families.koordinator.request import PROTOCOL
from partage.vendors.settings import Settings

VENDOR: Final = "vendor"
MODEL: Final = "model"
ISOLATION: Final = "isolation-provider"


def register(node: NodeView, settings: Settings) -> Registration:
    """Properties of the node, and an objection to shares if the model cannot be shared."""
    cards = [device for device in node.devices if device.type is DeviceType.GPU]
    vendor = _said(cards, lambda device: device.vendor) or node.labels.get(names.GPU_VENDOR, "")
    model = _said(cards, lambda device: device.model) or node.labels.get(names.GPU_MODEL, "")
    properties = {
        VENDOR: vendor,
        MODEL: model,
        ISOLATION: node.labels.get(names.GPU_ISOLATION_PROVIDER, ""),
    }
    verdicts: tuple[Verdict, ...] = ()
    if (vendor, model) in settings.koordinator.unshareable_models:
        verdicts = (
            Verdict(
                protocol="",
                code=ReasonCode.NOT_SHAREABLE,
                message=f'model "{model}" of vendor "{vendor}" does not support GPU Share',
                sharing_only=True,
            ),
        )
    return Registration(
        verdicts=verdicts,
        registrar=PROTOCOL if node.devices else "",
        properties={key: value for key, value in properties.items() if value},
    )


def _said(cards: list[Device], fact: Callable[[Device], str]) -> str:
    return next((fact(card) for card in cards if fact(card)), "")

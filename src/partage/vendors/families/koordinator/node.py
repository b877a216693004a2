"""Koordinator's report of a node: its registrar, its cards' make, its refusals.

The devices themselves give vendor and model, else the node's labels do (docs/sources/koordinator.md 3.3 and 5).
"""

from partage.model.device import DeviceType
from partage.model.node import Verdict
from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.vendors.base import NodeView, Registration
from partage.vendors.families.koordinator.request import PROTOCOL
from partage.vendors.settings import Settings


def register(node: NodeView, settings: Settings) -> Registration:
    """Properties of the node, and an objection to shares if the model cannot be shared."""
    cards = [device for device in node.devices if device.type is DeviceType.GPU]
    vendors, models = (one.vendor for one in cards), (one.model for one in cards)
    vendor = next(filter(None, vendors), node.labels.get(names.GPU_VENDOR, ""))
    model = next(filter(None, models), node.labels.get(names.GPU_MODEL, ""))
    properties = {
        "vendor": vendor,
        "model": model,
        "isolation-provider": node.labels.get(names.GPU_ISOLATION_PROVIDER, ""),
    }
    verdicts: tuple[Verdict, ...] = ()
    if (vendor, model) in settings.koordinator.unshareable_models:
        message = f'model "{model}" of vendor "{vendor}" does not support GPU Share'
        verdicts = (Verdict("", ReasonCode.NOT_SHAREABLE, message, sharing_only=True),)
    return Registration(
        verdicts=verdicts,
        registrar=PROTOCOL if node.devices else "",
        properties={key: value for key, value in properties.items() if value},
    )

"""`GET /api/config` and `GET /api/config/<node>`, to be served beside the scheduler's routes.

An answer has the configuration in force on one node, which results from the ConfigMaps, and its effects. It has
the settings in the families' form, a node's own beside the cluster's, and their effects card by card, for
operators. The report on a ConfigMap that is not in force has the reason.
"""

from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from partage.controllers.picture import Picture
from partage.model.device import Device
from partage.model.errors import InvalidDocument
from partage.model.policy import Policy
from partage.serving.limits import json_response
from partage.vendors.catalog import QGPU_SHARERS
from partage.vendors.settings import HamiSettings, Settings
from partage.vendors.traits import METAX
from partage.wire.nodes import device_totals

_SHOWN: Final = (
    *("type", "minor", "uuid", "healthy", "cordoned"),
    *("mode", "core_milli", "memory_bytes", "slots"),
)
"""What an answer has of each device."""


def effective(picture: Picture, name: str, policy: Policy | None = None) -> dict[str, Any] | None:
    """The document for one node, ready for JSON; None for an unknown node.

    `policy`: the one in force if no ConfigMap names one. Raises `InvalidDocument`: the node cannot be read.
    """
    read = picture.read_node(name)
    if read is None:
        return None
    configuration, node = picture.configs.configuration, read.node
    return {
        "node": name,
        **_in_force(picture, policy),
        "settings": _settings(configuration.settings, name),
        "registrar": node.registrar,
        "properties": dict(node.properties),
        "devices": [_device(device) for device in node.devices],
        "totals": {key: str(amount) for key, amount in device_totals(node).items()},
        "objections": [
            {"protocol": v.protocol, "code": v.code.value, "message": v.message}
            for v in node.verdicts
        ],
        "notes": [*read.notes, *configuration.notes],
    }


def _in_force(picture: Picture, policy: Policy | None) -> dict[str, Any]:
    configs = picture.configs
    return {
        "policy": str(configs.configuration.policy or policy or Policy()),
        "sources": [
            {"configMap": source.name, "resourceVersion": source.version, "keys": source.keys}
            for source in configs.sources
        ],
        "refused": dict(sorted(configs.refused.items())),
    }


def _settings(settings: Settings, name: str) -> dict[str, Any]:
    metax, koordinator = settings.metax, settings.koordinator
    return {
        "hami": _hami(settings.hami, name),
        METAX.name: {"mode": metax.node_modes.get(name) or metax.cluster_mode},
        "qgpu": {"sharers": QGPU_SHARERS},
        "koordinator": {
            "templates": sorted(koordinator.templates or ()),
            "unshareable_models": [list(pair) for pair in koordinator.unshareable_models],
        },
    }


def _hami(hami: HamiSettings, name: str) -> dict[str, Any]:
    """The cluster's settings without those of other nodes, and the node's own beside them."""
    cluster = {key: value for key, value in asdict(hami).items() if key != "nodes"}
    own = hami.nodes.get(name)
    return {**cluster, "node": asdict(own) if own else None}


def _device(device: Device) -> dict[str, Any]:
    shown = {name: getattr(device, name) for name in _SHOWN}
    return {**shown, "hidden_from": sorted(device.hidden_from)}


def config_routes(picture: Picture, policy: Policy | None = None) -> list[web.RouteDef]:
    """The routes; `policy` is the one in force if no ConfigMap names one."""

    async def one(request: web.Request) -> web.Response:
        name = request.match_info["node"]
        try:
            found = effective(picture, name, policy)
        except InvalidDocument as error:
            return json_response({"message": f"node {name} cannot be read: {error}"}, 422)
        if found is None:
            return json_response({"message": f"there is no node {name}"}, 404)
        return json_response(found)

    async def all_(_request: web.Request) -> web.Response:
        return json_response(_in_force(picture, policy))

    return [web.get("/api/config", all_), web.get("/api/config/{node}", one)]

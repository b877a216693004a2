"""Stand-ins for kubelets that remember which devices they handed to each container."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from partage.apiserver import ApiServer
from partage.embedded.definitions import DEVICES
from partage.embedded.injection import Injection
from partage.embedded.kubelet import Kubelet
from partage.wire.context import Context

__all__ = ["HandingKubelet"]

_CARD = re.compile(r"/dev/(?:nvidia|davinci|dri/card)([0-9]+)")
"""A device file that opens a card, by its number."""
_VENDOR = "node.koordinator.sh/gpu-vendor"
_OURS = {"nvidia", "metax", "huawei"}
"""Vendors whose files are handed here; others' own plugins do it."""


class HandingKubelet(Kubelet):
    """All nodes' kubelets.

    Attributes:
        handed: by pod's uid and container, the uuids of the cards behind the device files that it
            got when it started, as the node had them at that moment. What the pod's record says
            now is not looked at.
    """

    def __init__(self, server: ApiServer, context: Callable[[], Context]) -> None:
        super().__init__(server, context)
        self._devices = server.store
        self.handed: dict[str, dict[str, frozenset[str]]] = {}

    def _given(self, pod: Mapping[str, Any]) -> Injection:
        found = super()._given(pod)
        cards = self._cards(pod["spec"]["nodeName"])
        # Of a pod whose node reports nothing at this moment, its cards are unknown.
        if pod["metadata"]["uid"] not in self.handed and cards:
            self.handed[pod["metadata"]["uid"]] = {
                container: frozenset(
                    cards[number[1]] for file in files if (number := _CARD.fullmatch(file))
                )
                for container, files in found.files.items()
            }
        return found

    def _cards(self, node: str) -> dict[str, str]:
        """The uuids of a node's cards, by number; none where no kubelet here hands them."""
        device = self._devices.get(DEVICES, "", node)
        if device is None or device.labels.get(_VENDOR) not in _OURS:
            return {}
        rows = device.value["spec"]["devices"]
        return {str(one["minor"]): one["id"] for one in rows if one["type"] == "gpu"}

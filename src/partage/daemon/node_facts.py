"""The work of an agent that finds no devices itself: it reads its Node and Device, and renews its Lease.

A watch of all nodes would send each agent the changes of the whole cluster; two small reads do not. Until the
first read succeeds the agent knows nothing of the node, and refuses records of devices.
"""

from collections.abc import Callable
from typing import Any, Final

from partage.agent.reporting import ReportingSettings, renew_lease
from partage.agent.trouble import Rounds
from partage.daemon.watched import DEVICES, LiveDevice, LiveNode, as_document
from partage.kube.client import Client
from partage.kube.errors import KubeError, NotFound, NotServed
from partage.kube.resources import NODES
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.traits import NVIDIA, traits_of
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.nodes import translate_node

_READ: Final = 6
"""Renewals of the lease between two readings of the Node, which may be another one by then, or have lost its labels."""


class NodeFacts:
    """The API server's facts about one node."""

    name = "node"

    def __init__(
        self,
        client: Client,
        name: str,
        context: Callable[[], Context],
        tell: Callable[[Node], None],
        period: float = 30.0,
    ) -> None:
        """Facts that were not read yet.

        Args:
            context: returns the one in force now.
            tell: gets the node after each reading.
            period: seconds between two readings; chance shortens it by up to a fifth.
        """
        self._client = client
        self._node = name
        self._context = context
        self._tell = tell
        self._period = period
        self._had_device = False

    async def read(self) -> Node:
        """The node as it is now.

        Raises `KubeError`: no answer arrived, the node does not exist, or we may not read it; `InvalidDocument`: an
        object does not have the shape of its kind.
        """
        node = await self._client.get(NODES, self._node, into=LiveNode)
        device: Document | None = None
        try:
            found = await self._client.get(DEVICES, self._node, into=LiveDevice)
            device = as_document("Device", found)
        except NotFound:
            pass
        except NotServed:
            # Some protocols report devices in the Node itself, and the cluster may not have the kind.
            if self._had_device:
                raise
        self._had_device = device is not None
        return translate_node(as_document("Node", node), device, self._context()).node

    async def run(self) -> None:
        """Read and pass on until cancelled; a failed reading changes nothing."""
        rounds = Rounds(f"node {self._node} cannot be read", KubeError, InvalidDocument)
        while True:
            with rounds:
                self._tell(await self.read())
            pause = self._period * (1 - self._client.chance() / 5)
            await self._client.clock.sleep(min(pause, 1.0) if rounds.problem else pause)


class Heartbeat:
    """The lease of an agent that reports nothing else; without it the node would be closed. `run` it."""

    name = "lease"

    def __init__(
        self,
        client: Client,
        node: str,
        settings: ReportingSettings = ReportingSettings(),  # noqa: B008 - a frozen value
    ) -> None:
        """A lease that is not renewed yet; the open client's clock is used."""
        self._client = client.insistent(settings.period)
        self._node, self._settings = node, settings

    async def run(self) -> None:
        """Renew until cancelled; log errors, and try again.

        The Lease is renewed although the known Node cannot be read: the two have rights and rate limits of their own.
        """
        rounds, uid, renewed = Rounds("the agent's lease cannot be renewed", KubeError), "", 0
        while True:
            with rounds:
                uid = uid or await self._uid()
                await renew_lease(self._client, self._node, self._settings, uid)
                renewed += 1
                if renewed % _READ == 0:
                    uid = await self._uid()
            chance = self._settings.jitter * self._client.chance()
            await self._client.clock.sleep(self._settings.lease_period * (1 + chance))

    async def _uid(self) -> str:
        """The UID of the Node; empty if there is none. Also gives the Node labels that it lacks."""
        try:
            node = await self._client.get(NODES, self._node, into=dict[str, Any])
        except NotFound:
            return ""
        metadata = node["metadata"]
        labels = metadata.get("labels") or {}
        wanted = {
            key: text for key, text in self._settings.isolation.items() if labels.get(key) != text
        }
        if wanted and traits_of(labels.get(names.GPU_VENDOR, "")) is NVIDIA:
            body = {"metadata": {"uid": metadata["uid"], "labels": wanted}}
            await self._client.patch(NODES, self._node, body, into=dict[str, Any])
        return str(metadata["uid"])

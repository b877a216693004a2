"""Says that a node's agent is alive where it reports nothing else: `partage agent --no-discovery`.

An agent that finds devices says so beside its reports. One that serves what another program reports
has to say it too, or the node would be closed as one whose agent has gone. Who keeps shares there it says as well,
once: that changes with the agent's own options only.
"""

import logging
from typing import Any, Final

from partage.agent.reporting import ReportingSettings, renew_lease
from partage.kube.client import Client, PatchKind
from partage.kube.errors import KubeError, NotFound
from partage.kube.resources import NODES
from partage.vendors import names
from partage.vendors.traits import NVIDIA, traits_of

_LOG: Final = logging.getLogger("partage.daemon")


class Heartbeat:
    """The lease of one node's agent; `run` it."""

    name = "lease"

    def __init__(
        self,
        client: Client,
        node: str,
        settings: ReportingSettings = ReportingSettings(),  # noqa: B008 - a frozen value
    ) -> None:
        """A lease that nobody renews yet, by the clock of an open client."""
        self._client, self._node, self._settings = client, node, settings

    async def run(self) -> None:
        """Renew until cancelled; errors are told, and tried again."""
        problem = uid = ""
        while True:
            try:
                uid = uid or await self._uid()
                await renew_lease(self._client, self._node, self._settings, uid)
                problem = ""
            except KubeError as error:
                if str(error) != problem:
                    _LOG.warning("the agent's lease cannot be renewed: %s", error)
                problem = str(error)
            chance = self._settings.jitter * self._client.chance()
            await self._client.clock.sleep(self._settings.lease_period * (1 + chance))

    async def _uid(self) -> str:
        """Of the Node, which is labelled too; empty where there is none."""
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
            await self._client.patch(
                NODES, self._node, body, kind=PatchKind.MERGE, into=dict[str, Any]
            )
        return str(metadata["uid"])

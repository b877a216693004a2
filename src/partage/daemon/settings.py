"""The families' settings on a node, read every minute from named ConfigMaps of the cluster.

A node needs two or three ConfigMaps, and a watch of the namespace would show its agent all of them. A ConfigMap that
cannot be read, or breaks a rule, leaves the previous settings in force.
"""

import logging
from collections.abc import Sequence
from typing import Final

from partage.daemon.watched import LiveConfigMap, as_document
from partage.kube.client import Client
from partage.kube.errors import KubeError, NotFound
from partage.kube.resources import CONFIG_MAPS
from partage.vendors.settings import Settings
from partage.wire.config_book import ConfigBook
from partage.wire.documents import Document

_LOG: Final = logging.getLogger("partage.daemon")
_PERIOD: Final = 60.0


class NodeSettings:
    """Settings in force on a node; `run` it."""

    name = "settings"

    def __init__(self, client: Client, maps: Sequence[tuple[str, str]]) -> None:
        self._client, self._maps = client, maps
        self._told = ""
        self._book = ConfigBook()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._book.configuration.settings

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self.read()
            except KubeError as error:
                self._tell(f"ConfigMaps cannot be read: {error}")
            await self._client.clock.sleep(_PERIOD)

    async def read(self) -> None:
        """Read once. Raises `KubeError`."""
        found: list[Document] = []
        for namespace, name in self._maps:
            try:
                shape = await self._client.get(
                    CONFIG_MAPS, name, namespace=namespace, into=LiveConfigMap
                )
            except NotFound:
                continue  # its defaults apply
            found.append(as_document("ConfigMap", shape))
        book = self._book
        known = {one.identity for one in found}
        for gone in [one for one in book.documents.values() if one.identity not in known]:
            book.gone(gone)
        for one in found:
            book.changed(one)
        self._tell("; ".join((*book.refused.values(), *book.configuration.notes)))

    def _tell(self, problem: str) -> None:
        if problem and problem != self._told:
            _LOG.warning("%s", problem)
        self._told = problem

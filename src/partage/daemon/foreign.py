"""Keeps facts of the maker of instances on the node's Device object: others' instances, and profiles.

This agent's own discovery or Koordinator's writes the object. The maker of instances keeps these annotations, because
no other program can tell which instances are Partage's. It writes them at once when a card has changed, and checks them
now and then, because the object may have been recreated.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from partage.agent.reporting import DEVICES
from partage.agent.trouble import Rounds
from partage.kube.client import Client, PatchKind
from partage.kube.clock import sleep_until
from partage.kube.errors import KubeError, NotFound, NotServed

_LOOK: Final = 30.0
"""Seconds between two looks at the object while no card changes."""

Body = dict[str, Any]


class ForeignReport:
    """The annotations of one node; `run` it, and call `changed` after a change."""

    def __init__(
        self, client: Client, node: str, told: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """A report that does not run yet.

        Args:
            client: an open client; its clock is used.
            told: returns the wanted annotations, given the present ones.
        """
        self._client = client
        self._node = node
        self._told = told
        self._news = asyncio.Event()

    def changed(self) -> None:
        """Have `run` compare now, because a look at a card had another result than the one before."""
        self._news.set()

    async def run(self) -> None:
        """Keep the annotations until cancelled; try again after an error."""
        rounds = Rounds("others' instances cannot be reported", KubeError)
        while True:
            self._news.clear()
            with rounds:
                await self.once()
            await sleep_until(self._client.clock, _LOOK, self._news)

    async def once(self) -> bool:
        """Compare, and write differences. Returns whether there were any. Raises `KubeError`."""
        try:
            device = await self._client.get(DEVICES, self._node, into=Body)
        except (NotFound, NotServed):
            return False  # there is no object yet that a scheduler could read
        metadata = device.get("metadata") or {}
        before = metadata.get("annotations") or {}
        wanted = self._told(before)
        changes = {key: text for key, text in wanted.items() if before.get(key) != text}
        if not changes:
            return False
        # The uid prevents a write to an object that was created meanwhile.
        body = {"metadata": {"uid": metadata.get("uid"), "annotations": changes}}
        await self._client.patch(DEVICES, self._node, body, kind=PatchKind.MERGE, into=Body)
        return True

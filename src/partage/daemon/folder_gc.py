"""Empties folders that containers have left, beside everything else.

A tenant may have written any number of files there: they are removed in a thread of their own, some thousands at a
time, so that no container waits for it and an agent ends when it has to.
"""

import asyncio
from typing import Final

from partage.agent.isolation.folders import Folders


class Tidying:
    """One node's; `run` it."""

    name: Final = "tidying"

    def __init__(self, folders: Folders, period: float = 2.0) -> None:
        """Nothing is removed yet; every `period` seconds it is looked whether there is anything."""
        self._folders = folders
        self._period = period

    async def run(self) -> None:
        """Remove until cancelled."""
        while True:
            if self._folders.pending:
                await asyncio.to_thread(self._folders.sweep)
            await asyncio.sleep(self._period)

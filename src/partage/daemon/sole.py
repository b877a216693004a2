"""Lets a single instance of the service lead: it renews no Lease, so it looks at the store's version instead.

A leader notices by its Lease that its API server was away, or that the store was restored from a backup. A single
instance has no Lease, and its watches may return only half a minute after the API server.
"""

import logging
from collections.abc import Callable
from typing import Final

from partage.kube.client import Client
from partage.kube.election import LeaseSettings
from partage.kube.errors import KubeError
from partage.kube.mirror import is_older
from partage.kube.resources import PODS, Scope

_LOG: Final = logging.getLogger("partage.daemon")
_TIMES: Final = LeaseSettings()


class Sole:
    """Leads as long as the API server answers."""

    def __init__(self, client: Client, went_back: Callable[[], None]) -> None:
        """Start without a look.

        Args:
            went_back: called when the store has lost changes, or may have lost some because it was silent for long.
        """
        self._client = client
        self._clock = client.clock
        self._went_back = went_back
        self._heard: float | None = None
        self._newest = ""

    @property
    def leading(self) -> bool:
        """Whether the API server has answered recently; true until the first look."""
        return self._heard is None or self._clock.monotonic() < self._heard + _TIMES.deadline

    async def run(self) -> None:
        """Look until cancelled."""
        self._heard = self._clock.monotonic()
        while True:
            sent = self._clock.monotonic()
            try:
                version = await self._client.newest_version(Scope(PODS))
            except KubeError as error:
                _LOG.debug("the store's version cannot be read: %s", error)
            else:
                self._answered(version, sent - self._heard)
                self._newest, self._heard = version, sent
            await self._clock.sleep(_TIMES.retry)

    def _answered(self, version: str, silent: float) -> None:
        if is_older(version, self._newest):
            _LOG.error(
                "the API server's store went back to before version %s, as after a restore from a backup",
                self._newest,
            )
        elif silent >= _TIMES.deadline:
            _LOG.warning("the API server gave no answer for %.0f s; all is listed afresh", silent)
        else:
            return
        self._went_back()

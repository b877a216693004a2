"""Our identity at this moment: tokens that files or plugins renew.

The client checks a token file once a period and after a 401, since the kubelet rotates it. It runs a
plugin when the credential is about to expire and after a 401, never twice at a time.

A plain HTTP server gets no credential unless it is on this machine, because every machine on the way could read it.
"""

import asyncio
import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from partage.kube.clock import Clock
from partage.kube.config import Config, UserConfig, is_here
from partage.kube.errors import ConfigError
from partage.kube.exec_plugin import Credential, run_plugin
from partage.kube.files import read_small
from partage.kube.stamps import ChangeCheck

_EARLY: Final = timedelta(seconds=30)
"""A plugin's credential is renewed this long before it expires."""
_BETWEEN: Final = 5.0
"""Seconds between two runs of a plugin while the credential is valid, if the first one brought no later one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The headers of a request, and the client certificate if a plugin provided one."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)


class Credentials:
    """The current identity of a configuration's user."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        environ: Mapping[str, str],
        period: float = 10.0,
        plugin_timeout: float = 30.0,
        heard: bool = False,
    ) -> None:
        self._config = config
        self._clock = clock
        self._environ = environ
        self._plugin_timeout = plugin_timeout
        self._heard = heard
        user = config.user
        self._check = ChangeCheck([user.token_file] if user.token_file else [], clock, period)
        self._credential: Credential | None = None
        self._identity: Identity | None = None
        self._next_run = 0.0
        self._running = asyncio.Lock()

    async def current(self) -> Identity:
        """The identity to use now. Raises `ConfigError`: no usable one exists."""
        _check_way(self._config)
        if self._config.user.plugin is not None:
            if self._is_due():
                async with self._running:
                    if self._is_due():
                        await self._replace()
        elif self._identity is None:
            self._identity = self._read_token()
        elif self._check.changed():
            self._reread_token()
        assert self._identity is not None  # noqa: S101 # every branch above sets it or raises
        return self._identity

    async def renew(self, rejected: Identity) -> bool:
        """Get fresh credentials after a 401. True if another try is worthwhile."""
        if self._config.user.plugin is not None:
            async with self._running:
                if self._identity == rejected:
                    await self._run_plugin()
        elif self._config.user.token_file is not None and self._identity == rejected:
            self._check.changed(now=True)
            self._reread_token()
        return self._identity != rejected

    def _expires_in(self, time: timedelta) -> bool:
        expires = self._credential.expires if self._credential else None
        return expires is not None and self._clock.now() >= expires - time

    def _is_due(self) -> bool:
        """Whether a request needs a run of the plugin; while the credential is valid, only one request waits for a run."""
        if self._identity is None or self._expires_in(timedelta()):
            return True
        return self._expires_in(_EARLY) and self._clock.monotonic() >= self._next_run

    async def _replace(self) -> None:
        """Run the plugin; if it fails, the last credential stays until it expires."""
        self._next_run = math.inf  # others go on with the present credential meanwhile
        try:
            await self._run_plugin()
        except ConfigError:
            if self._identity is None or self._expires_in(timedelta()):
                raise
        finally:
            self._next_run = self._clock.monotonic() + _BETWEEN

    async def _run_plugin(self) -> None:
        user, cluster = self._config.user, self._config.cluster
        assert user.plugin is not None  # noqa: S101 # callers have checked
        found = await run_plugin(
            user.plugin, cluster, self._environ, self._plugin_timeout, heard=self._heard
        )
        self._credential = found
        pair = (found.certificate, found.key) if found.certificate and found.key else None
        self._identity = Identity(_headers(user, found.token or user.token), pair)

    def _read_token(self) -> Identity:
        user = self._config.user
        if user.token_file is None:
            return Identity(_headers(user, user.token))
        try:
            token = read_small(user.token_file).decode().strip()
        except (OSError, ValueError):
            token = ""
        token = token or user.token or ""
        if not token:
            raise ConfigError(f"{user.token_file}: no token there")
        return Identity(_headers(user, token))

    def _reread_token(self) -> None:
        """Read the token file; if it is missing or empty for a moment, the last token stays."""
        try:
            self._identity = self._read_token()
        except ConfigError:
            self._check.forget()


def _check_way(config: Config) -> None:
    """Refuse to send credentials over an open network."""
    user = config.user
    if config.cluster.by_tls or not (
        user.token or user.token_file or user.plugin or user.username
    ):
        return
    if not is_here(urlsplit(config.cluster.server).hostname or ""):
        raise ConfigError(
            f"{config.cluster.server}: no token or password is sent by plain HTTP; use https"
        )


def _headers(user: UserConfig, token: str | None) -> tuple[tuple[str, str], ...]:
    if token:
        if not token.isascii() or any(ch.isspace() or not ch.isprintable() for ch in token):
            raise ConfigError("the token holds characters that no token has")
        return (("Authorization", f"Bearer {token}"), *user.impersonation)
    if user.username:
        pair = f"{user.username}:{user.password or ''}".encode()
        return (("Authorization", f"Basic {base64.b64encode(pair).decode()}"), *user.impersonation)
    return user.impersonation

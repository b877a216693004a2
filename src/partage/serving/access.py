"""Admission to privileged routes: bearers of a token from a file, or holders of a certificate.

Bind can place any pod anywhere, so a service with neither refuses to start unless it is configured
as open. The token file holds one token a line (empty lines and `#` comments are left out). The
service reads it again when it changes, so that tokens can be rotated without a restart. If the file
becomes unreadable, the last tokens stay valid.
"""

import hmac
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from partage.model.errors import InvalidValue

_LOG = logging.getLogger("partage.serving")
_LEAST: Final = 16
_MOST: Final = 2**20
_EVERY: Final = 5.0


@dataclass(slots=True)
class TokenFile:
    """Tokens in a file, read again when it changes.

    `clock`: seconds on a steady clock; the file is checked at most every five seconds.
    """

    path: Path
    clock: Callable[[], float]
    _tokens: tuple[bytes, ...] = ()
    _stamp: tuple[int, int] = (0, 0)
    _next: float = float("-inf")

    def __post_init__(self) -> None:
        """Read the file a first time. Raises `InvalidValue`: unreadable, without a token, or with a too short one."""
        try:
            self._tokens, self._stamp = self._read()
        except OSError as error:
            raise InvalidValue(f"token file {self.path}: {error.strerror}") from error
        self._next = self.clock() + _EVERY

    def accepts(self, token: bytes) -> bool:
        """Whether the file has this token; takes the same time for every wrong one."""
        if self.clock() >= self._next:
            self._next = self.clock() + _EVERY
            self._refresh()
        return sum(hmac.compare_digest(token, known) for known in self._tokens) > 0

    def _refresh(self) -> None:
        try:
            if _stamp(self.path.stat()) != self._stamp:
                self._tokens, self._stamp = self._read()
        except (OSError, InvalidValue) as error:
            _LOG.warning("token file %s: %s; the last good tokens stay in force", self.path, error)

    def _read(self) -> tuple[tuple[bytes, ...], tuple[int, int]]:
        """The tokens, and the stamp of the file that contained them, since the path may have another file by now."""
        with self.path.open("rb") as file:
            data, stamp = file.read(_MOST + 1), _stamp(os.fstat(file.fileno()))
        if len(data) > _MOST:
            raise InvalidValue(f"token file {self.path} holds more than {_MOST >> 20} MiB")
        lines = (line.strip() for line in data.splitlines())
        tokens = tuple(line for line in lines if line and not line.startswith(b"#"))
        if not tokens:
            raise InvalidValue(f"token file {self.path} holds no token")
        if any(len(token) < _LEAST for token in tokens):
            raise InvalidValue(
                f"token file {self.path}: a token is shorter than {_LEAST} characters"
            )
        return tokens, stamp


def _stamp(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_mtime_ns, stat.st_ino


@dataclass(frozen=True, slots=True)
class Access:
    """The ways in which callers of privileged routes prove their identity.

    Attributes:
        tokens: accepts `Authorization: Bearer …`; None when tokens are not used.
        certificates: accepts a client certificate that the TLS context has verified.
        plain: accepts every caller; only for profiles that imitate a published document.
        closed: accepts no caller; for services without privileged routes.
        here: refuses requests that pages of other origins send by a browser; for ports of this machine alone.
    """

    tokens: TokenFile | None = None
    certificates: bool = False
    plain: bool = field(default=False)
    closed: bool = field(default=False)
    here: bool = field(default=False)

    def __post_init__(self) -> None:
        """Refuse to be open by mistake. Raises `InvalidValue`: nothing was configured."""
        if not (self.tokens or self.certificates or self.plain or self.closed):
            raise InvalidValue(
                "privileged routes need a token file (--token-file) or client certificates "
                "(--client-ca with --tls-cert and --tls-key); give one"
            )

    def allows(self, authorization: str, certificate: object) -> bool:
        """Whether to accept a caller with this header and verified certificate."""
        if self.plain or (self.certificates and certificate):
            return True
        scheme, _, token = authorization.partition(" ")
        return (
            self.tokens is not None
            and scheme.lower() == "bearer"
            and self.tokens.accepts(token.strip().encode(errors="replace"))
        )

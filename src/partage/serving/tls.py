"""A server's TLS context whose files may be replaced while it serves.

New connections use the last contents. A pair that does not fit together is refused, and the last
good one stays in force.
"""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from partage.model.errors import InvalidValue

_LOG = logging.getLogger("partage.serving")


@dataclass(slots=True)
class ServerTls:
    """Certificate, key and, for callers with certificates, the authority of those.

    Attributes:
        certificate: PEM chain.
        key: PEM key.
        authority: PEM certificates of the clients' authority; None asks for no certificate.
        required: whether a connection without a client certificate is refused; otherwise, only
            privileged routes refuse it.
        end: of the served certificate, seconds since 1970; 0 before the first read.
    """

    certificate: Path
    key: Path
    authority: Path | None = None
    required: bool = False
    end: float = 0.0
    _contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    _stamps: tuple[int, ...] = ()

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection; read at the first use. Raises `InvalidValue`: a file is missing or is wrong."""
        return (self._contexts or self._load())[0]

    @property
    def reading(self) -> ssl.SSLContext:
        """The same for a port whose callers show no certificate. Raises `InvalidValue`: a missing or wrong file."""
        return (self._contexts or self._load())[1]

    def refresh(self) -> bool:
        """Read changed files; returns whether any was taken over. Cheap enough for every minute."""
        try:
            if self._contexts is not None and self._seen() == self._stamps:
                return False
            self._load()
        except (InvalidValue, OSError) as error:
            _LOG.warning("%s; the last good certificate stays in force", error)
            return False
        return True

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """New contexts, because a context keeps every authority that it once trusted."""
        from cryptography import x509  # noqa: PLC0415 # slow to import, and only servers with TLS need it

        try:
            stamps = self._seen()
            contexts = self._fresh(), self._fresh()
            if self.authority is not None:
                contexts[0].load_verify_locations(self.authority)
                contexts[0].verify_mode = ssl.CERT_REQUIRED if self.required else ssl.CERT_OPTIONAL
            served = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidValue(f"TLS files of {self.certificate}: {error}") from error
        self._contexts, self._stamps = contexts, stamps
        self.end = served.not_valid_after_utc.timestamp()
        return contexts

    def _fresh(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # No client resumes a session, and each handshake would pay for two.
        context.num_tickets = 0
        context.load_cert_chain(self.certificate, self.key)
        return context

    def _seen(self) -> tuple[int, ...]:
        files = (self.certificate, self.key, self.authority)
        return tuple(file.stat().st_mtime_ns for file in files if file is not None)

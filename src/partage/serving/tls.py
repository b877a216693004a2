"""A server's TLS context whose files may be replaced while it serves.

New connections use what was read last; a pair that does not fit together is refused and the last
good one stays in force.
"""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from partage.model.errors import InvalidValue

_LOG = logging.getLogger("partage.serving")


@dataclass(slots=True)
class ServerTls:
    """Certificate, key and, for callers with certificates, the authority that signed theirs.

    Attributes:
        certificate: PEM chain.
        key: PEM key.
        authority: PEM certificates of the authority of clients; None asks for no certificate.
        required: whether a connection without a client certificate is refused; if not, only
            privileged routes are.
    """

    certificate: Path
    key: Path
    authority: Path | None = None
    required: bool = False
    _context: ssl.SSLContext | None = None
    _reading: ssl.SSLContext | None = None
    _stamps: tuple[int, ...] = ()
    _end: float = 0.0

    @property
    def end(self) -> float:
        """When the certificate ends that is served, seconds since 1970; 0 before it is read."""
        return self._end

    @property
    def context(self) -> ssl.SSLContext:
        """The context, read at the first use. Raises `InvalidValue`: a file is missing, or something else."""
        if self._context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            # No client takes a session up again, and each handshake paid for two.
            context.num_tickets = 0
            if self.authority is not None:
                context.verify_mode = ssl.CERT_REQUIRED if self.required else ssl.CERT_OPTIONAL
            self._load(context)
            self._context = context
        return self._context

    @property
    def reading(self) -> ssl.SSLContext:
        """The same for a port whose callers show no certificate.

        Raises:
            InvalidValue: a file is missing or is not what it should be.
        """
        if self._reading is None:
            other = ServerTls(self.certificate, self.key)
            self._reading = other.context
        return self._reading

    def refresh(self) -> bool:
        """Read files that changed; whether any was taken over. Cheap enough for every minute."""
        context = self.context
        try:
            if self._seen() == self._stamps:
                return False
            # A trial first: a half-written pair must not replace a good one.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(context)
            if self._reading is not None:
                self._reading.load_cert_chain(self.certificate, self.key)
        except (InvalidValue, OSError) as error:
            _LOG.warning("%s; the last good certificate stays in force", error)
            return False
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            stamps = self._seen()
            context.load_cert_chain(self.certificate, self.key)
            if self.authority is not None:
                context.load_verify_locations(self.authority)
            served = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidValue(f"TLS files of {self.certificate}: {error}") from error
        self._stamps = stamps
        self._end = served.not_valid_after_utc.timestamp()

    def _seen(self) -> tuple[int, ...]:
        files = (self.certificate, self.key, self.authority)
        return tuple(file.stat().st_mtime_ns for file in files if file is not None)

"""The TLS context of a configuration, rebuilt when its files change.

New connections use the new context; open ones keep theirs. Files may not fit together for a moment,
for example while a certificate and its key are being replaced. The last good context then stays in
use.
"""

import ssl
import tempfile
from pathlib import Path

from partage.kube.clock import Clock
from partage.kube.config import Config, Material
from partage.kube.errors import ConfigError
from partage.kube.files import read_small
from partage.kube.stamps import ChangeCheck


class Tls:
    """The current TLS context."""

    def __init__(self, config: Config, *, clock: Clock, period: float = 10.0) -> None:
        self._config = config
        self._secure = config.cluster.by_tls
        user = config.user
        files = [
            material.path
            for material in (config.cluster.authority, user.certificate, user.key)
            if material is not None and material.path is not None
        ]
        self._check = ChangeCheck(files, clock, period)
        self._context: ssl.SSLContext | None = None
        self._pair: tuple[bytes, bytes] | None = None

    def context(self, pair: tuple[bytes, bytes] | None = None) -> ssl.SSLContext | None:
        """The context for new connections, or None for plain HTTP.

        `pair`: certificate and key from a credential plugin; they outrank the files. Raises `ConfigError`: an
        authority, certificate or key cannot be used.
        """
        if not self._secure:
            return None
        stale = self._check.changed()
        if self._context is None or pair != self._pair:
            self._context, self._pair = self._build(pair), pair
        elif stale:
            try:
                self._context = self._build(pair)
            except ConfigError:
                self._check.forget()
        return self._context

    def _build(self, pair: tuple[bytes, bytes] | None) -> ssl.SSLContext:
        cluster, user = self._config.cluster, self._config.user
        context = _trusting(cluster.authority)
        # Python 3.13 turned this on by default. Authorities of older installers lack the key identifiers
        # that it requires, and every other Kubernetes client accepts them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not cluster.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if pair is not None:
            _present(context, Material(data=pair[0]), Material(data=pair[1]))
        elif user.certificate is not None and user.key is not None:
            _present(context, user.certificate, user.key)
        return context


def _trusting(authority: Material | None) -> ssl.SSLContext:
    if authority is None:
        return ssl.create_default_context()
    where = authority.path or "certificate-authority-data"
    try:
        # Bundles contain comments in any alphabet; only the certificates are ASCII.
        text = _read(authority).decode("ascii", errors="ignore")
        # Without data, `ssl` would trust the system's authorities.
        context = ssl.create_default_context(cadata=text) if text.strip() else None
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"{where}: not a certificate authority: {error}") from error
    if context is None:
        raise ConfigError(f"{where}: not a certificate authority: it is empty")
    return context


def _present(context: ssl.SSLContext, certificate: Material, key: Material) -> None:
    """Load a client certificate; an inline one is written to disk, since `ssl` reads only files."""
    with tempfile.TemporaryDirectory(prefix="kube-tls-") as folder:
        paths = []
        for name, material in (("certificate", certificate), ("key", key)):
            path = material.path
            if path is None:
                path = Path(folder) / name
                path.touch(mode=0o600)
                path.write_bytes(material.data or b"")
            paths.append(path)
        try:
            context.load_cert_chain(paths[0], paths[1], password=_no_password)
        except (OSError, ValueError) as error:
            names = " and ".join(
                str(material.path or f"client-{kind}-data")
                for kind, material in (("certificate", certificate), ("key", key))
            )
            raise ConfigError(f"{names}: not a client certificate: {error}") from error


def _no_password() -> str:
    """Refuse encrypted keys; otherwise OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted")


def _read(material: Material) -> bytes:
    return read_small(material.path) if material.path is not None else material.data or b""

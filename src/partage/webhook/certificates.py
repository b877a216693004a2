"""The webhook's own authority and certificate: when they are made and renewed.

Serving over TLS in a cluster needs nothing else. The API server gets the authority (`caBundle`), and the webhook
serves a certificate that it signed. A new authority is published for a day before it signs anything, and the old
one stays published until it ends. So no replica, however late it reads, ever serves a certificate that the API
server does not trust yet. An authority that begins later than now was made while a clock was wrong. The API
server would trust nothing that it signed until then.

Time is an argument. The keys are random.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from partage.model.errors import InvalidValue

AUTHORITY_DAYS: Final = 1825
AUTHORITY_RENEWAL: Final = timedelta(days=365)
"""An authority with less time left than this gets a successor."""
CERTIFICATE_DAYS: Final = 90
CERTIFICATE_RENEWAL: Final = timedelta(days=30)
OVERLAP: Final = timedelta(days=1)
"""Time for which an authority is published before it signs anything."""
_SKEW: Final = timedelta(hours=1)
"""Allowed difference of clocks."""
_BEGIN: Final = b"-----BEGIN"


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority: certificate and key, PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """A replica's certificate, and the authorities for the API server's trust.

    Attributes:
        authorities: the newest first.
        certificate: PEM; empty before the first signature.
        key: PEM.
    """

    authorities: tuple[Authority, ...] = ()
    certificate: bytes = b""
    key: bytes = b""

    @property
    def trusted(self) -> bytes:
        """The authorities' certificates, PEM, one after the other."""
        return b"".join(authority.certificate for authority in self.authorities)

    @property
    def keys(self) -> bytes:
        """The authorities' keys in the same order."""
        return b"".join(authority.key for authority in self.authorities)


def read_bundle(trusted: bytes, keys: bytes, certificate: bytes, key: bytes) -> Bundle:
    """The stored bundle. Raises `InvalidValue`: it is malformed."""
    certificates, signing = _split(trusted), _split(keys)
    if len(certificates) != len(signing):
        raise InvalidValue(f"{len(certificates)} authorities, {len(signing)} keys of theirs")
    bundle = Bundle(tuple(map(Authority, certificates, signing)), certificate, key)
    try:
        for authority in bundle.authorities:
            _check_pair(authority.certificate, authority.key)
        if certificate or key:
            _check_pair(certificate, key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidValue(str(error)) from error
    return bundle


def renewed(bundle: Bundle, names: Sequence[str], now: datetime, *, calls: bool = False) -> Bundle:
    """The bundle with its due parts renewed; the same one if none is due.

    Args:
        bundle: the stored one; empty at first.
        names: hosts and addresses that the certificate must cover.
        now: the wall clock, UTC.
        calls: whether a client may use the certificate too.
    """
    authorities = tuple(
        authority
        for authority in bundle.authorities
        if _read(authority.certificate).not_valid_after_utc > now
    )
    begun = _begun_by(authorities, now)
    newest = _read(begun[0].certificate) if begun else None
    if newest is None or newest.not_valid_after_utc - now < AUTHORITY_RENEWAL:
        authorities = (_make_authority(now), *authorities)
    bundle = (
        bundle if authorities == bundle.authorities else replace(bundle, authorities=authorities)
    )
    signers = _signers(_begun_by(authorities, now), now)
    if bundle.certificate and _serves(bundle.certificate, signers, names, now):
        return bundle
    certificate, key = _sign(signers[-1], names, now, calls=calls)
    return replace(bundle, certificate=certificate, key=key)


def end_of(bundle: Bundle) -> datetime:
    """End of the bundle's certificate, UTC."""
    return _read(bundle.certificate).not_valid_after_utc


def _begun_by(authorities: Sequence[Authority], now: datetime) -> tuple[Authority, ...]:
    return tuple(one for one in authorities if _read(one.certificate).not_valid_before_utc <= now)


def _signers(authorities: Sequence[Authority], now: datetime) -> Sequence[Authority]:
    """The newest authority published for long enough; if there is none, all, of which the oldest signs.

    Replicas whose clocks differ may each have made one.
    """
    for authority in authorities:
        if _read(authority.certificate).not_valid_before_utc + _SKEW + OVERLAP <= now:
            return (authority,)
    return authorities


def _serves(
    certificate: bytes, signers: Sequence[Authority], names: Sequence[str], now: datetime
) -> bool:
    """Whether a signer signed the certificate, it covers the names, and it lasts."""
    found = _read(certificate)
    if found.not_valid_after_utc - now < CERTIFICATE_RENEWAL or found.not_valid_before_utc > now:
        return False
    if not any(_is_of(found, _read(one.certificate)) for one in signers):
        return False
    try:
        told = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound):
        return False
    return {_named(name) for name in names} <= set(told.value)


def _is_of(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _make_authority(now: datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"partage-webhook-{now:%Y%m%d%H%M}")]
    )
    built = (
        _begun(name, name, key.public_key(), now, timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(_pem(built), _key_pem(key))


def _sign(
    signer: Authority, names: Sequence[str], now: datetime, *, calls: bool
) -> tuple[bytes, bytes]:
    key, issuer = ec.generate_private_key(ec.SECP256R1()), _read(signer.certificate)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    alternatives = x509.SubjectAlternativeName([_named(one) for one in names])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(_key(signer.key).public_key())
    uses = [ExtendedKeyUsageOID.SERVER_AUTH]
    if calls:
        uses.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    life = min(timedelta(days=CERTIFICATE_DAYS), issuer.not_valid_after_utc - now)
    built = (
        _begun(name, issuer.subject, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(identifier, critical=False)
        .sign(_key(signer.key), hashes.SHA256())
    )
    return _pem(built), _key_pem(key)


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
    )


def _named(host: str) -> x509.GeneralName:
    """A host name or address in the form of certificates."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _check_pair(certificate: bytes, key: bytes) -> None:
    if _read(certificate).public_key() != _key(key).public_key():
        raise ValueError("a key does not belong to its certificate")


def _read(certificate: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate)


def _key(key: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        found = serialization.load_pem_private_key(key, None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"a key cannot be read: {error}") from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError("a key is not of an elliptic curve")  # noqa: TRY004 # what was kept is wrong
    return found


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _split(pem: bytes) -> list[bytes]:
    """The single certificates or keys of a text."""
    return [_BEGIN + part for part in pem.split(_BEGIN)[1:]]

"""The webhook's authority and certificate through the years, without a moment of distrust."""

import base64
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from partage.model.errors import InvalidValue
from partage.webhook.certificates import Bundle, end_of, read_bundle, renewed

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("partage-webhook.partage-system.svc",)
DAY = timedelta(days=1)


def trusts(trusted: bytes, certificate: bytes, now: datetime) -> bool:
    """Whether a client with these authorities accepts the certificate."""
    store = Store(x509.load_pem_x509_certificates(trusted))
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(NAMES[0]))
    try:
        verifier.verify(x509.load_pem_x509_certificate(certificate), [])
    except VerificationError:
        return False
    return True


def test_the_first_bundle_can_be_served_at_once() -> None:
    """An authority, a certificate of it, and a second look changes nothing."""
    bundle = renewed(Bundle(), NAMES, START)

    assert trusts(bundle.trusted, bundle.certificate, START)
    assert renewed(bundle, NAMES, START) is bundle
    assert read_bundle(bundle.trusted, bundle.keys, bundle.certificate, bundle.key) == bundle
    ssl.create_default_context(cadata=bundle.trusted.decode())


def test_fifteen_years_pass_without_distrust() -> None:
    """With a look each day, clients with the authorities of that day or the day before trust every certificate."""
    bundle = renewed(Bundle(), NAMES, START)
    told, certificates, authorities = bundle.trusted, set(), set()

    for day in range(1, 15 * 365):
        now = START + day * DAY
        bundle = renewed(bundle, NAMES, now)
        certificates.add(bundle.certificate)
        authorities |= {one.certificate for one in bundle.authorities}
        assert len(bundle.authorities) <= 2
        assert end_of(bundle) - now > timedelta(days=20)
        if day % 30 == 0 or told != bundle.trusted:
            assert trusts(told, bundle.certificate, now)
            assert trusts(bundle.trusted, bundle.certificate, now)
        told = bundle.trusted

    assert len(certificates) > 60
    assert 3 <= len(authorities) <= 5


def test_a_late_look_finds_everything_ended_and_starts_anew() -> None:
    """A cluster that was switched off for years comes up."""
    late = START + 4000 * DAY
    bundle = renewed(renewed(Bundle(), NAMES, START), NAMES, late)

    assert len(bundle.authorities) == 1
    assert trusts(bundle.trusted, bundle.certificate, late)


@pytest.mark.parametrize("ahead", [timedelta(hours=3), 400 * DAY, 1600 * DAY], ids=str)
def test_a_clock_that_is_set_right_costs_no_more_than_a_look(ahead: timedelta) -> None:
    """What began in the future is trusted by no API server until then, nor is anything that it signed."""
    wrong = renewed(renewed(Bundle(), NAMES, START), NAMES, START + ahead)
    for bundle in (wrong, renewed(Bundle(), NAMES, START + ahead)):
        right = renewed(bundle, NAMES, START)

        assert trusts(right.trusted, right.certificate, START)
        assert renewed(right, NAMES, START) is right


def test_replicas_whose_clocks_differ_come_to_an_agreement() -> None:
    """Each trusts what both have published; or they would replace each other's certificate at every look."""
    ahead = START + timedelta(hours=3)
    bundle = renewed(renewed(Bundle(), NAMES, ahead), NAMES, START)

    assert renewed(bundle, NAMES, ahead) is bundle
    assert renewed(bundle, NAMES, START) is bundle
    assert trusts(bundle.trusted, bundle.certificate, START)
    assert trusts(bundle.trusted, bundle.certificate, ahead)


def test_another_name_is_signed_at_once() -> None:
    """The Service was renamed: the authority stays, the certificate does not."""
    bundle = renewed(Bundle(), NAMES, START)
    other = renewed(bundle, (*NAMES, "other.partage-system.svc"), START)

    assert other.authorities == bundle.authorities
    assert other.certificate != bundle.certificate
    assert trusts(other.trusted, other.certificate, START)


@pytest.mark.parametrize("broken", range(4), ids=["authority", "its key", "certificate", "key"])
@pytest.mark.parametrize(
    "text", [b"", b"-----BEGIN nonsense", b"\xff\x00"], ids=["none", "cut", "bytes"]
)
def test_what_is_broken_is_refused(broken: int, text: bytes) -> None:
    """Each part in turn; never another error."""
    bundle = renewed(Bundle(), NAMES, START)
    parts = [bundle.trusted, bundle.keys, bundle.certificate, bundle.key]
    parts[broken] = text

    with pytest.raises(InvalidValue):
        read_bundle(*parts)


def test_keys_of_another_certificate_are_refused() -> None:
    """A pair that does not fit would be of no use."""
    one, two = renewed(Bundle(), NAMES, START), renewed(Bundle(), NAMES, START)

    with pytest.raises(InvalidValue, match="belong"):
        read_bundle(one.trusted, one.keys, one.certificate, two.key)
    with pytest.raises(InvalidValue, match="belong"):
        read_bundle(one.trusted, two.keys, one.certificate, one.key)


def test_a_key_of_an_unknown_curve_is_refused() -> None:
    """The Secret's reader makes a new certificate then, or names the Secret."""
    bundle = renewed(Bundle(), NAMES, START)
    der = x509.load_pem_x509_certificate(bundle.certificate).public_bytes(Encoding.DER)
    ours, unknown = (bytes.fromhex(f"06082a8648ce3d03010{end}") for end in "76")
    odd = base64.encodebytes(der.replace(ours, unknown))
    pem = b"-----BEGIN CERTIFICATE-----\n" + odd + b"-----END CERTIFICATE-----\n"

    with pytest.raises(InvalidValue, match="not supported"):
        read_bundle(bundle.trusted, bundle.keys, pem, bundle.key)

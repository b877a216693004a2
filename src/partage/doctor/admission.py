"""Checks that the webhook exists and that the API server can trust it."""

import base64
import binascii
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from cryptography import x509

from partage.doctor.finding import ClusterFacts, Finding, Object, error, named
from partage.webhook.installation import MUTATE, VALIDATE

_SOON: Final = timedelta(days=7)


def webhooks(facts: ClusterFacts) -> Iterator[Finding]:
    """Both webhooks are configured, with a valid authority."""
    for name, configurations in ((MUTATE, facts.mutating), (VALIDATE, facts.validating)):
        if configurations is not None:
            yield from _webhook(facts, name, configurations)


def _webhook(facts: ClusterFacts, name: str, given: Sequence[Object]) -> Iterator[Finding]:
    found = [
        (named(one), webhook)
        for one in given
        for webhook in one.get("webhooks") or ()
        if webhook.get("name") == name
    ]
    if not found:
        yield error(
            "webhook-missing",
            name,
            "the webhook must be configured; without it pods get no defaults, and requests that "
            "break a rule are found only when they wait",
            "install it: partage webhook --manifests | kubectl apply -f -, or the chart",
        )
    for where, webhook in found:
        bundle = webhook.get("clientConfig", {}).get("caBundle", "")
        wrong = _authority(facts, bundle)
        if wrong:
            yield error(
                "webhook-certificate",
                f"{where}: {name}",
                f"caBundle must hold a certificate that is valid now; {wrong}, so the API server "
                "refuses every pod with devices",
                "restart partage webhook: a replica makes new certificates and writes caBundle; "
                "where cert-manager does, look at its Certificate",
            )


def _authority(facts: ClusterFacts, bundle: str) -> str:
    """The problem of an authority; empty without one."""
    if not bundle:
        return "it is empty"
    try:
        certificates = x509.load_pem_x509_certificates(base64.b64decode(bundle, validate=True))
    except (ValueError, binascii.Error):
        return "it is no certificate in PEM"
    ends = max(one.not_valid_after_utc for one in certificates)
    if ends <= facts.now:
        return f"it expired on {ends:%Y-%m-%d}"
    left = [one for one in certificates if one.not_valid_after_utc > facts.now]
    begins = min(one.not_valid_before_utc for one in left)
    if begins > facts.now:
        return f"it is not valid before {begins:%Y-%m-%d}"
    return f"it expires on {ends:%Y-%m-%d}" if ends - facts.now < _SOON else ""

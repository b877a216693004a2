"""The objects by which a cluster asks the webhook, and the policy that needs none.

Both webhooks have failure policy Fail, and conditions that the API server evaluates by itself: only
pods that name a device resource or carry a reserved key ever depend on the webhook being there.
Who forges a record is refused by a ValidatingAdmissionPolicy in the API server's own process, on
creation, update, every subresource and binding; no outage of ours opens or closes that door.
Partage's own and the system's namespaces are left out, so that what Partage runs on can start.

Source: DESIGN, decision 8; Kubernetes 1.36, admissionregistration.k8s.io/v1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from partage.model.errors import InvalidValue
from partage.vendors.reserved import reserved_keys
from partage.webhook import expressions
from partage.webhook.settings import Admission
from partage.wire.context import Context

__all__ = ["MUTATE", "VALIDATE", "Endpoint", "conditions", "installation"]

_API: Final = "admissionregistration.k8s.io/v1"
MUTATE: Final = "mutate.pods.partage.io"
VALIDATE: Final = "validate.pods.partage.io"
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_PATIENCE: Final = 5  # seconds; the API server's own limit of a request is longer
_FORGING: Final = "partage-reserved-keys"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server finds the webhook.

    Attributes:
        namespace: of the Service.
        service: its name.
        port: its port.
        configuration: the name of both webhook configurations.
        url: where the API server finds it without a Service, such as one that runs outside of the
            cluster; https, without a trailing slash.
    """

    namespace: str = "partage-system"
    service: str = "partage-webhook"
    port: int = 443
    configuration: str = "partage"
    url: str = ""

    def __post_init__(self) -> None:
        """Refuse a URL that the API server would refuse.

        Raises:
            InvalidValue: it is not https, or names no host.
        """
        if self.url and (urlsplit(self.url).scheme != "https" or not urlsplit(self.url).hostname):
            raise InvalidValue(f"{self.url!r} is no URL of the form https://host:port")

    @property
    def names(self) -> tuple[str, ...]:
        """What the certificate must be good for: host names and addresses."""
        if self.url:
            return (urlsplit(self.url).hostname or "",)
        return (
            f"{self.service}.{self.namespace}.svc",
            f"{self.service}.{self.namespace}",
            f"{self.service}.{self.namespace}.svc.cluster.local",
        )

    def client(self, path: str) -> dict[str, Any]:
        """How the API server reaches one of its paths."""
        if self.url:
            return {"url": f"{self.url.rstrip('/')}{path}"}
        return {
            "service": {
                "namespace": self.namespace,
                "name": self.service,
                "path": path,
                "port": self.port,
            }
        }


def installation(
    endpoint: Endpoint, context: Context, admission: Admission
) -> list[dict[str, Any]]:
    """The four objects, ready to be applied; the certificates' authority is filled in later.

    Args:
        endpoint: where the webhook is.
        context: whose resource names count as devices.
        admission: namespaces and users that are left alone.
    """
    return [
        _configuration("Mutating", endpoint, context, admission),
        _configuration("Validating", endpoint, context, admission),
        _policy(admission),
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": _FORGING},
            "spec": {"policyName": _FORGING, "validationActions": ["Deny"]},
        },
    ]


def conditions(webhook: str, context: Context) -> list[dict[str, str]]:
    """The conditions of one of the two webhooks; resource names may be renamed by settings."""
    devices = expressions.names_devices({*context.owners, *context.triggers})
    if webhook == MUTATE:
        return [{"name": "names-a-device", "expression": devices}]
    reserved = expressions.carries_reserved(reserved_keys())
    return [
        {"name": "is-not-leaving", "expression": expressions.is_not_leaving()},
        {"name": "concerns-partage", "expression": f"({devices}) || ({reserved})"},
    ]


def _configuration(
    kind: str, endpoint: Endpoint, context: Context, admission: Admission
) -> dict[str, Any]:
    mutating = kind == "Mutating"
    name = MUTATE if mutating else VALIDATE
    webhook: dict[str, Any] = {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": endpoint.client(f"/webhook/{'mutate' if mutating else 'validate'}"),
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "matchConditions": conditions(name, context),
        "namespaceSelector": _elsewhere(admission),
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"] if mutating else ["CREATE", "UPDATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "sideEffects": "None",
        "timeoutSeconds": _PATIENCE,
    }
    if mutating:
        # Whoever injects a container after us may inject one that asks for devices.
        webhook["reinvocationPolicy"] = "IfNeeded"
    return {
        "apiVersion": _API,
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": endpoint.configuration},
        "webhooks": [webhook],
    }


def _policy(admission: Admission) -> dict[str, Any]:
    keys = reserved_keys()
    writers = expressions.may_not_write(admission.writers, admission.break_glass)
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": _FORGING},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "namespaceSelector": _elsewhere(admission),
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"],
                        # Subresources too: a pod's status carries its annotations along.
                        "resources": ["pods", "pods/*", "bindings"],
                        "scope": "Namespaced",
                    }
                ],
            },
            "matchConditions": [
                {"name": "may-not-write", "expression": writers},
                {
                    "name": "carries-a-reserved-key",
                    "expression": expressions.carries_reserved(keys),
                },
            ],
            "validations": [
                {"expression": rule, "message": message, "reason": "Forbidden"}
                for rule, message in expressions.forges_nothing(keys)
            ],
        },
    }


def _elsewhere(admission: Admission) -> Mapping[str, Any]:
    """Every namespace but the system's and Partage's own."""
    return {
        "matchExpressions": [
            {
                "key": _NAMESPACE_NAME,
                "operator": "NotIn",
                "values": sorted(admission.excluded),
            }
        ]
    }

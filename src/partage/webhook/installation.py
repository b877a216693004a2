"""The objects by which a cluster asks the webhook, and the policies that need no webhook.

Both webhooks have failure policy Fail, and conditions that the API server evaluates itself. So only a new pod
that names a device resource, or a change of a waiting pod's request, depends on the webhook.
ValidatingAdmissionPolicies work in the API server's own process. One rejects forged records on creation, update,
every subresource and binding. Another rejects pods that ask for devices and name their node; only that node may
create such pods. A third one bounds a pod's labels. With claims, a fourth one rejects changes of the finalizer by which
a scheduler begins an allocation, and which protects it, unless their user may write allocations. The policies hold while all of Partage is away.
Partage's own and the system's namespaces are left out, so the programs that Partage runs on can start.

Source: docs/decisions/0011; Kubernetes 1.36, admissionregistration.k8s.io/v1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from partage.kube.config import is_url
from partage.model.errors import InvalidValue
from partage.vendors.names import ADJUST, CLAIM_FINALIZER, CLAIMS_LABEL, CLAIMS_TRANSLATE
from partage.vendors.reserved import RESERVED
from partage.webhook import expressions
from partage.webhook.settings import Admission
from partage.webhook.validating import NAMES_ITS_NODE
from partage.wire.context import Context

_API: Final = "admissionregistration.k8s.io/v1"
MUTATE: Final = "mutate.pods.partage.io"
VALIDATE: Final = "validate.pods.partage.io"
CLAIMS: Final = "claims.partage.io"
TRANSLATE: Final = "translate.pods.partage.io"
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_PATIENCE: Final = 5  # seconds; the API server's own limit of a request is longer
_FORGING: Final = "partage-reserved-keys"
_NODE_NAME: Final = "partage-node-name"
_LABELS: Final = "partage-pod-labels"
_BEGUN: Final = "partage-claim-finalizer"
_MOST_LABELS: Final = 256
"""They have 97 KiB at most; Kubernetes itself bounds only the annotations (256 KiB)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The webhook's address for the API server.

    Attributes:
        namespace: of the Service.
        configuration: the name of both webhook configurations.
        url: its address without a Service, for example outside the cluster; https, without a
        trailing slash.
    """

    namespace: str = "partage-system"
    service: str = "partage-webhook"
    port: int = 443
    configuration: str = "partage"
    url: str = ""

    def __post_init__(self) -> None:
        """Reject a URL that the API server would reject. Raises `InvalidValue`: it is not https, or names no host."""
        if self.url and not is_url(self.url, {"https"}):
            raise InvalidValue(f"{self.url!r} is no URL of the form https://host:port")

    @property
    def names(self) -> tuple[str, ...]:
        """Host names and addresses that the certificate must cover."""
        if self.url:
            return (urlsplit(self.url).hostname or "",)
        return (
            f"{self.service}.{self.namespace}.svc",
            f"{self.service}.{self.namespace}",
            f"{self.service}.{self.namespace}.svc.cluster.local",
        )

    def client(self, path: str) -> dict[str, Any]:
        """The API server's client configuration for one of its paths."""
        if self.url:
            return {"url": f"{self.url.rstrip('/')}{path}"}
        service = {"namespace": self.namespace, "name": self.service}
        return {"service": {**service, "path": path, "port": self.port}}


def installation(
    endpoint: Endpoint,
    context: Context,
    admission: Admission,
    *,
    claims: bool = False,
    translate: bool = False,
) -> list[dict[str, Any]]:
    """The objects, ready to apply; the certificates' authority is added later.

    Args:
        context: defines the resource names of devices.
        admission: exempt namespaces and users.
        claims: ask the webhook about ResourceClaims too.
        translate: have it turn pods' requests into claims in namespaces with the label.
    """
    mutating = _configuration("Mutating", endpoint, context, admission)
    if translate:
        mutating["webhooks"].append(_translating(mutating["webhooks"][0], endpoint))
    validating = _configuration("Validating", endpoint, context, admission)
    if claims:
        validating["webhooks"].append(_claims(endpoint, context))
    return [
        mutating,
        validating,
        *_policy(_FORGING, admission, _forging(admission)),
        *_policy(_NODE_NAME, admission, _node_name(context)),
        *_policy(_LABELS, admission, _labels()),
        *(_policy(_BEGUN, admission, _begun()) if claims else ()),
    ]


def conditions(webhook: str, context: Context) -> list[dict[str, str]]:
    """The conditions of one of the webhooks; settings may rename resources."""
    if webhook == CLAIMS:
        return [{"name": "allocates-a-card", "expression": expressions.allocates_a_card()}]
    devices = _devices(context)
    if webhook in (MUTATE, TRANSLATE):
        return [{"name": "names-a-device", "expression": devices}]
    asks = f"({expressions.asks_anew()} && {devices}) || {expressions.says_anew(ADJUST)}"
    return [{"name": "asks-for-a-device-anew", "expression": asks}]


def _devices(context: Context) -> str:
    return expressions.names_devices({*context.owners, *context.triggers})


def _configuration(
    kind: str, endpoint: Endpoint, context: Context, admission: Admission
) -> dict[str, Any]:
    mutating = kind == "Mutating"
    operations = ["CREATE"] if mutating else ["CREATE", "UPDATE"]
    webhook = _webhook(
        MUTATE if mutating else VALIDATE,
        endpoint.client(f"/webhook/{'mutate' if mutating else 'validate'}"),
        context,
        {
            "namespaceSelector": _elsewhere(admission),
            "rules": [_rule("", operations, "pods")],
            "sideEffects": "None",
        },
    )
    if mutating:
        # A later webhook may inject a container that asks for devices.
        webhook["reinvocationPolicy"] = "IfNeeded"
    return {
        "apiVersion": _API,
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": endpoint.configuration},
        "webhooks": [webhook],
    }


def _webhook(
    name: str, client: Mapping[str, Any], context: Context, own: Mapping[str, Any]
) -> dict[str, Any]:
    """A webhook's configuration: the parts common to all, and its own."""
    return {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": client,
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "matchConditions": conditions(name, context),
        **own,
        "timeoutSeconds": _PATIENCE,
    }


def _rule(group: str, operations: Sequence[str], *resources: str) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
        "scope": "Namespaced",
    }


def _translating(mutating: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """The translating webhook, which runs after the mutating one, for namespaces with the label."""
    labelled = {"key": CLAIMS_LABEL, "operator": "In", "values": [CLAIMS_TRANSLATE]}
    elsewhere = mutating["namespaceSelector"]["matchExpressions"]
    return {
        **mutating,
        "name": TRANSLATE,
        "clientConfig": endpoint.client("/webhook/translate"),
        "namespaceSelector": {"matchExpressions": [*elsewhere, labelled]},
    }


def _claims(endpoint: Endpoint, context: Context) -> dict[str, Any]:
    """The webhook of claims, in every namespace; claims of other drivers do not depend on it."""
    rule = _rule("resource.k8s.io", ["UPDATE"], "resourceclaims/status")
    own = {"rules": [rule], "sideEffects": "NoneOnDryRun"}
    return _webhook(CLAIMS, endpoint.client("/webhook/claims"), context, own)


def _policy(name: str, admission: Admission, rules: dict[str, Any]) -> list[dict[str, Any]]:
    """A policy with the rules, and the binding that puts it in force."""
    constraints = {"namespaceSelector": _elsewhere(admission), **rules["matchConstraints"]}
    spec = {"failurePolicy": "Fail", **rules, "matchConstraints": constraints}
    kind = "ValidatingAdmissionPolicy"
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": _API, "kind": word, "metadata": {"name": name}, "spec": part}
        for word, part in ((kind, spec), (f"{kind}Binding", binding))
    ]


def _written(*resources: str, group: str = "") -> dict[str, Any]:
    return {"resourceRules": [_rule(group, ["CREATE", "UPDATE"], *resources)]}


def _rules(
    constraints: Mapping[str, Any],
    conditions: Mapping[str, str],
    rules: Iterable[tuple[str, str]],
    reason: str,
) -> dict[str, Any]:
    """A policy's rules, each with the message for a violation, for requests of which all conditions hold."""
    return {
        "matchConstraints": constraints,
        "matchConditions": [
            {"name": name, "expression": text} for name, text in conditions.items()
        ],
        "validations": [
            {"expression": rule, "message": message, "reason": reason} for rule, message in rules
        ],
    }


def _forging(admission: Admission) -> dict[str, Any]:
    conditions = {
        "may-not-write": expressions.may_not_write(admission.writers, admission.break_glass),
        "carries-a-reserved-key": expressions.carries_reserved(RESERVED),
    }
    # Subresources too, because a write of a pod's status contains its annotations.
    written = _written("pods", "pods/*", "bindings")
    return _rules(written, conditions, expressions.forges_nothing(RESERVED), "Forbidden")


def _node_name(context: Context) -> dict[str, Any]:
    conditions = {
        "comes-with-a-node": expressions.comes_with_a_node(),
        "is-not-its-own-node": expressions.is_not_its_own_node(),
    }
    # The rule looks at all containers, but few pods get this far.
    rule = f"!({_devices(context)})", NAMES_ITS_NODE
    return _rules(_written("pods"), conditions, [rule], "Invalid")


def _labels() -> dict[str, Any]:
    """Containerd 2 lists a node's pods to no plugin if eight pods and containers are too long for one message."""
    told = f"a pod has more than {_MOST_LABELS} labels, which a container runtime may not list to the node's agent"
    conditions = {"has-many-labels": expressions.has_more_labels(_MOST_LABELS)}
    return _rules(_written("pods"), conditions, [(expressions.adds_no_label(), told)], "Invalid")


def _begun() -> dict[str, Any]:
    """Each claim that looks begun holds up the next leader, and with it all pods.

    A claim that is deleted while containers use its devices makes them look free. Its pods keep them, and all pods that
    are then placed there cannot start.
    """
    begins = expressions.begins_an_allocation()
    unprotects = expressions.unprotects_an_allocation()
    told = (
        f"the finalizer {CLAIM_FINALIZER} is for schedulers: a user who sets it, or removes it from an allocated claim, "
        "needs the right to update resourceclaims/status"
    )
    conditions = {"begins-or-unprotects-an-allocation": f"({begins}) || ({unprotects})"}
    written = _written("resourceclaims", group="resource.k8s.io")
    return _rules(written, conditions, [(expressions.may_allocate(), told)], "Forbidden")


def _elsewhere(admission: Admission) -> Mapping[str, Any]:
    """Every namespace but the system's and Partage's own."""
    values = sorted(admission.excluded)
    return {"matchExpressions": [{"key": _NAMESPACE_NAME, "operator": "NotIn", "values": values}]}

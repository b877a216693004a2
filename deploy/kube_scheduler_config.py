"""The configuration of the kube-scheduler that asks this service: its pods, questions and intervals.

A genuine kube-scheduler takes `kubernetes.io/*` for its own resources. An extender cannot manage them, and such pods
would be bound without a record. So the kube-scheduler beside Partage has a profile for every scheduler name that pods
may carry and an extender for all pods. The extender answers at once for pods without devices.

The ledger decides names that protocols own. kube-scheduler's own fit ignores those that it may ignore
(`NodeResourcesFitArgs.ignoredResources`). It cannot ignore `kubernetes.io/*` names, and checks them against
the node totals that the controller writes.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from partage.vendors.base import Family
from partage.vendors.settings import Settings

SCHEDULERS: Final = (
    "partage-scheduler",
    "koord-scheduler",
    "hami-scheduler",
    "default-scheduler",
)
"""Scheduler names of pods of the four protocols."""
_NATIVE: Final = "kubernetes.io/"
_WEIGHT: Final = 10
"""Weight of our scores among kube-scheduler's own."""
_TIMEOUT_SECONDS: Final = 10
_BACKOFF_SECONDS: Final = (1, 2)
_PLUGIN: Final = "Partage"
_PLUGIN_WEIGHT: Final = 20
"""As in kube-scheduler/partage/plugin.go, which has the reason."""
_PLUGINS: Final = {
    "multiPoint": {"enabled": [{"name": _PLUGIN, "weight": _PLUGIN_WEIGHT}]},
    # Named alone, these run before kube-scheduler's own of the same point.
    "postFilter": {"enabled": [{"name": _PLUGIN}]},
    # After the wait for the pod's volumes, which may last for minutes, and before its claims are stored.
    "preBind": {"enabled": [{"name": "VolumeBinding"}, {"name": _PLUGIN}]},
    "bind": {"enabled": [{"name": _PLUGIN}]},
}


@dataclass(frozen=True, slots=True)
class ExtenderAccess:
    """kube-scheduler's access to the service.

    Attributes:
        url: without a trailing slash.
        authority: file of the authority that signed the service's certificate; with https.
        certificate: file of kube-scheduler's own certificate, if the service asks for one.
        key: file of its key.
    """

    url: str
    authority: str = ""
    certificate: str = ""
    key: str = ""


def left_to_the_ledger(families: Iterable[Family], settings: Settings) -> list[str]:
    """Extended resources that kube-scheduler's own fit must leave alone, sorted."""
    owned: set[str] = set()
    for family in families:
        owned |= family.owned(settings)
    return sorted(name for name in owned if not name.startswith(_NATIVE))


def kube_scheduler_config(
    access: ExtenderAccess | None, ignored: Collection[str], schedulers: Iterable[str] = SCHEDULERS
) -> dict[str, Any]:
    """A KubeSchedulerConfiguration, without leader election and client connection.

    Args:
        access: to the service as an extender; None for kube-scheduler with the plugin.
        ignored: extended resources left to the ledger.
        schedulers: names whose pods it places; each becomes a profile.
    """
    fit = {
        "name": "NodeResourcesFit",
        "args": {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "NodeResourcesFitArgs",
            "ignoredResources": list(ignored),
        },
    }
    first, longest = _BACKOFF_SECONDS
    common: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "podInitialBackoffSeconds": first,
        "podMaxBackoffSeconds": longest,
        "profiles": [{"schedulerName": name, "pluginConfig": [fit]} for name in schedulers],
    }
    if access is None:
        for profile in common["profiles"]:
            profile["plugins"] = _PLUGINS
        return common
    extender: dict[str, Any] = {
        "urlPrefix": f"{access.url}/scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": _WEIGHT,
        "nodeCacheCapable": True,
        "httpTimeout": f"{_TIMEOUT_SECONDS}s",
        "ignorable": False,
    }
    if access.url.startswith("https:"):
        extender["enableHTTPS"] = True
        files = {
            "caFile": access.authority,
            "certFile": access.certificate,
            "keyFile": access.key,
        }
        extender["tlsConfig"] = {key: value for key, value in files.items() if value}
    return {**common, "percentageOfNodesToScore": 100, "extenders": [extender]}

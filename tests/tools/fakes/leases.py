"""A Lease as a leader leaves it that ended in order, so that a test need not wait for one before it."""

from typing import Any

from partage.kube.election import SETTLED, UNSETTLED
from partage.kube.resources import LEASES
from partage.vendors import names

__all__ = ["given_back"]

_MOMENT = "2026-01-01T00:00:00.000000Z"


def given_back(
    name: str,
    namespace: str,
    mark: str = names.LEASE_DEADLINE,
    *,
    settled: bool = False,
    elected: str = "",
) -> dict[str, Any]:
    """A Lease that a candidate may take at once, and that makes it wait for what the last holder sent.

    Args:
        name: of the Lease.
        namespace: of the Lease.
        mark: the annotation by which its last holder says that it stopped.
        settled: whether nothing of its holder's is on its way, so that the next one need not wait either.
        elected: the Lease by which kube-scheduler had elected the last holder, with the plugin.
    """
    marks = {mark: f"{_MOMENT} 0"}
    if elected:
        marks[names.LEASE_ELECTED] = f"{_MOMENT} {elected}"
    return {
        "apiVersion": LEASES.api_version,
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": marks,
        },
        "spec": {
            "holderIdentity": "",
            "leaseDurationSeconds": SETTLED if settled else UNSETTLED,
            "renewTime": _MOMENT,
        },
    }

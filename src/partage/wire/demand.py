"""A pod's request for a node's ordinary resources, by Kubernetes' own arithmetic.

Containers and sidecars run together, so their requests are summed. An init container runs before them,
beside the sidecars that started before it. The largest such moment counts if it is more. Overhead is
added, and a pod-level request replaces the sum.

Source: k8s.io/component-helpers/resource (PodRequests), v1.36.
"""

from collections.abc import Iterable, Mapping

from partage.model.quantity import Quantity
from partage.model.request import Phase, at_most
from partage.vendors.base import ContainerView

CPU = "cpu"
"""The resource that is counted in thousandths."""

_MOST = 2**61


def effective(
    containers: Iterable[ContainerView],
    pod_level: Mapping[str, Quantity] | None = None,
    overhead: Mapping[str, Quantity] | None = None,
) -> dict[str, Quantity]:
    """The pod's need of every resource, without zero amounts.

    Args:
        containers: init containers and sidecars first, each list in the pod's order.
        pod_level: requests of the pod as a whole, which replace the containers'.
        overhead: the runtime's own need.
    """
    formats: dict[str, Quantity] = {}
    asked: list[tuple[Phase, dict[str, int]]] = []
    for container in containers:
        wanted = requests_of(container)
        formats.update(wanted)
        asked.append((container.phase, {name: one.nano for name, one in wanted.items()}))
    total = at_most(asked)
    for name, quantity in (pod_level or {}).items():
        total[name], formats[name] = quantity.nano, quantity
    for name, quantity in (overhead or {}).items():
        total[name] = total.get(name, 0) + quantity.nano
        formats.setdefault(name, quantity)
    return {n: Quantity(nano, formats[n].format) for n, nano in total.items() if nano}


def requests_of(container: ContainerView) -> Mapping[str, Quantity]:
    """Its requests; a resource with only a limit is requested in that amount."""
    if not container.limits:
        return container.requests
    return {**container.limits, **container.requests}


def units(name: str, quantity: Quantity) -> int:
    """The amount in whole units, `cpu` in milli, rounded up."""
    return quantity.milli() if is_cpu(name) else quantity.ceil()


def bounded(name: str, quantity: Quantity) -> int:
    """The amount in whole units, from 0 to the books' maximum; no node has more than that."""
    return min(max(units(name, quantity), 0), _MOST)


def is_cpu(name: str) -> bool:
    """Whether a resource name or quota key counts CPU, which is in milli everywhere."""
    return name in (CPU, f"requests.{CPU}", f"limits.{CPU}")

"""Resource names and amounts of containers, nodes and quotas.

Names without a domain are standard ones. Names with `kubernetes.io/` in them are native: the genuine server
requires neither whole numbers nor limits for them. So it accepts the Koordinator document's
`kubernetes.io/gpu-core` in requests alone. All other names with a domain are extended resources. They need whole
numbers and limits, and requests must equal limits.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems
from partage.model.errors import InvalidQuantity
from partage.model.quantity import Quantity

COUNTED: Final = frozenset(
    {
        "pods",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
    }
)
"""Resources whose objects a quota counts by their plain names."""
CONTAINER: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""Standard resources of containers."""
_STANDARD: Final = (
    COUNTED
    | CONTAINER
    | {
        "storage",
        "services.loadbalancers",
        "services.nodeports",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "requests.storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    }
)
_WHOLE: Final = "must be an integer"


def amount(text: str) -> Quantity:
    """A stored quantity; zero if it is none, which conforming values never are."""
    try:
        return Quantity.parse(text)
    except InvalidQuantity:
        return Quantity(0)


def _is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


@lru_cache(maxsize=4096)
def is_extended(name: str) -> bool:
    """Whether a name is an extended resource."""
    if _is_native(name) or name.startswith("requests."):
        return False
    return not naming.qualified_name(f"requests.{name}")


def _overcommits(name: str) -> bool:
    return _is_native(name) and not name.startswith("hugepages-")


@lru_cache(maxsize=4096)
def _name_problems(name: str, *, container: bool) -> tuple[str, ...]:
    found = naming.qualified_name(name)
    standard = name.startswith("hugepages-") or name in _STANDARD
    if "/" not in name:
        if not standard and not found:
            found.append("must be a standard resource type or fully qualified")
        if container and name not in CONTAINER and not name.startswith("hugepages-"):
            found.append("must be a standard resource for containers")
    elif container and not _is_native(name) and not is_extended(name):
        found.append("doesn't follow extended resource name standard")
    return tuple(found)


def check_amounts(
    amounts: Mapping[str, str],
    field: str,
    problems: Problems,
    *,
    container: bool = False,
    node: bool = False,
) -> None:
    """Reports malformed names, negative amounts and fractions of whole-number resources."""
    for name, text in amounts.items():
        where = f"{field}.{name}" if node else f"{field}[{name}]"
        for why in _name_problems(name, container=container):
            problems.invalid(where, name, why)
        quantity = amount(text)
        if quantity.nano < 0:
            problems.invalid(where, text, "must be greater than or equal to 0")
        elif quantity.milli() % 1000 and is_extended(name):
            problems.invalid(where, text, _WHOLE)


def check_requirements(given: Mapping[str, Any] | None, field: str, problems: Problems) -> None:
    """Reports problems of a container's limits and requests."""
    limits, requests = ((given or {}).get(group) or {} for group in ("limits", "requests"))
    check_amounts(limits, f"{field}.limits", problems, container=True)
    check_amounts(requests, f"{field}.requests", problems, container=True)
    if any(name.startswith("hugepages-") for name in limits) and not (
        {"cpu", "memory"} & {*limits, *requests}
    ):
        problems.forbidden(field, "HugePages require cpu or memory")
    for name, text in requests.items():
        limit = limits.get(name)
        if limit is None:
            if not _overcommits(name):
                problems.required(
                    f"{field}.limits", "Limit must be set for non overcommitable resources"
                )
            continue
        have, most = amount(text), amount(limit)
        if have.nano != most.nano and not _overcommits(name):
            problems.invalid(
                f"{field}.requests", text, f"must be equal to {name} limit of {limit}"
            )
        elif have.nano > most.nano:
            problems.invalid(
                f"{field}.requests",
                text,
                f"must be less than or equal to {name} limit of {limit}",
            )


def fill_requests(container: dict[str, Any]) -> None:
    """Sets absent requests to the limits, in place, as for every new pod."""
    requirements = container.get("resources") or {}
    limits = requirements.get("limits")
    if limits:
        requirements["requests"] = {**limits, **(requirements.get("requests") or {})}
        container["resources"] = requirements

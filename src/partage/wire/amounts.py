"""Resource lists of documents as quantities.

The name decides whose fault a bad amount is. An ordinary resource that is no quantity makes
the document undecodable, as it would for Kubernetes. A bad amount of a device is a fault of the
request, and the pod waits with that fault.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from partage.model.errors import InvalidQuantity, InvalidValue
from partage.model.quantity import Quantity


class Faults:
    """The rule that a pod's request breaks, the first of several. `unread`: an amount was left out."""

    def __init__(self) -> None:
        self.unread = False
        self.first = ""

    def add(self, message: str) -> None:
        """Add one broken rule."""
        self.first = self.first or message


def quantities(given: Mapping[str, Any] | None, field: str) -> dict[str, Quantity]:
    """A resource list of quantities; null means zero. Raises `InvalidValue`: it names field and resource."""
    result = {}
    for name, value in (given or {}).items():
        try:
            result[name] = Quantity.parse(0 if value is None else value)
        except InvalidQuantity as error:
            raise InvalidValue(f"field {field}.{name}: {error}") from error
    return result


_NATIVE: Final = "kubernetes.io/"
"""The domain of names that are Kubernetes' own, so that the API server takes fractions of them."""


def pod_amounts(
    given: Mapping[str, Any] | None,
    field: str,
    who: str,
    is_device: Callable[[str], bool],
    faults: Faults,
) -> dict[str, Quantity]:
    """A resource list of a pod; faults of device amounts go to `faults`.

    Args:
        who: the container (or the pod) of the list, for people.
        is_device: whether a name is a device resource.
        faults: receives broken rules; the amount is then left out.

    Raises:
        InvalidValue: an ordinary resource is no quantity.
    """
    result = {}
    for name, value in (given or {}).items():
        try:
            quantity = Quantity.parse(0 if value is None else value)
        except InvalidQuantity as error:
            if not is_device(name):
                raise InvalidValue(f"field {field}.{name}: {error}") from error
            faults.add(f"{who}: {name}: {error}")
            faults.unread = True
            continue
        if quantity.nano < 0:
            faults.add(f"{who}: {name}: {quantity} must not be negative")
            faults.unread = True
            continue
        if not quantity.integral and is_device(name) and not name.startswith(_NATIVE):
            faults.add(
                f"{who}: {name}: {quantity} must be a whole number, as the API server demands"
            )
        result[name] = quantity
    return result

"""ResourceSlices and DeviceClasses as an allocator of claims reads them: devices in the order of its trials.

Source: Kubernetes API resource.k8s.io/v1 at v1.36; k8s.io/dynamic-resource-allocation v0.36.4 (`GatherPools`,
`calculateConsumedCapacity`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from partage.model.errors import InvalidQuantity, InvalidValue
from partage.model.quantity import Quantity
from partage.model.selector import Taint
from partage.wire import shapes
from partage.wire.constraints import taints_of
from partage.wire.device_view import DeviceView, Version
from partage.wire.documents import Document, invalid

DeviceKey = tuple[str, str, str]
"""Driver, pool and name of a device."""
CounterKey = tuple[str, str, str, str]
"""Driver, pool, set and name of a counter."""

_T = TypeVar("_T")
_TYPES: Final = ("int", "bool", "string", "ints", "bools", "strings")


@dataclass(frozen=True, slots=True)
class Capacity:
    """An amount of a device, in billionths, and the allowed shares of it.

    Attributes:
        value: all of it.
        policy: whether the following fields restrict shares.
        default: the share of a request that names none.
        least: the smallest share.
        most: the largest share; None if it is the value.
        step: shares are the least and whole steps more; 0 if any amount is allowed.
        valid: the only shares, in order; empty if a range holds.
    """

    value: int
    policy: bool = False
    default: int = 0
    least: int = 0
    most: int | None = None
    step: int = 0
    valid: tuple[int, ...] = ()

    def share(self, asked: int | None) -> int | None:
        """The share for a request of so many billionths, or of none; None if no share may be so large."""
        if asked is None:
            return self.default if self.policy else self.value
        if not self.policy:
            return asked
        if self.valid:
            return next((one for one in self.valid if one >= asked), None)
        taken = max(asked, self.least)
        if self.step:
            taken = self.least + -(-(taken - self.least) // self.step) * self.step
        return None if self.most is not None and taken > self.most else taken


@dataclass(frozen=True, slots=True)
class Offer:
    """One device.

    Attributes:
        node: its node; None for every node.
        capacity: its amounts by name, as written; requests must write the same.
        counters: amounts that it takes of counters while it is allocated, in billionths.
        taints: its taints, which keep claims away.
    """

    key: DeviceKey
    node: str | None
    view: DeviceView
    capacity: Mapping[str, Capacity]
    counters: Mapping[CounterKey, int]
    taints: tuple[Taint, ...]


@dataclass(frozen=True, slots=True)
class Pools:
    """All devices, in the order of trials.

    `counters`: the value of each counter, in billionths. `notes`: pools that are left out, and the reasons.
    """

    offers: tuple[Offer, ...] = ()
    counters: Mapping[CounterKey, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def pools(documents: Iterable[Document]) -> Pools:
    """The pools of all ResourceSlices among the documents; each one's newest generation, if complete and readable."""
    found: dict[tuple[str, str], list[tuple[Document, shapes.ResourceSliceSpec]]] = {}
    for document in documents:
        if isinstance(document.shape, shapes.ResourceSlice):
            spec = document.shape.spec or shapes.ResourceSliceSpec()
            found.setdefault((spec.pool.name, spec.driver), []).append((document, spec))
    offers: list[Offer] = []
    counters: dict[CounterKey, int] = {}
    notes: list[str] = []
    for (pool, driver), slices in sorted(found.items(), key=lambda one: one[0]):
        newest = max(spec.pool.generation for _, spec in slices)
        now = [one for one in slices if one[1].pool.generation == newest]
        if len(now) != now[0][1].pool.resource_slice_count:
            notes.append(
                f"pool {pool} of driver {driver} is left out: {len(now)} of its "
                f"{now[0][1].pool.resource_slice_count} ResourceSlices are there"
            )
            continue
        some: list[Offer] = []
        limits: dict[CounterKey, int] = {}
        for document, spec in sorted(now, key=lambda one: one[0].name):
            try:
                for one in spec.shared_counters or ():
                    where = f"spec.sharedCounters[{one.name}]"
                    limits |= _counters((driver, pool, one.name), one.counters, where)
                some += _offers(spec)
            except InvalidValue as error:  # the account of one node may write any
                problem = invalid(document, error)
                notes.append(f"pool {pool} of driver {driver} is left out: {problem}")
                break
        else:
            offers += some
            counters |= limits
    return Pools(tuple(offers), counters, tuple(notes))


def node_told(document: Document) -> str:
    """The node whose devices a Device object or a ResourceSlice describes; empty for other documents."""
    if isinstance(document.shape, shapes.ResourceSlice):
        return (document.shape.spec.node_name or "") if document.shape.spec else ""
    return document.name if isinstance(document.shape, shapes.Device) else ""


def bare_node(name: str, told: Document) -> Document:
    """A Node with nothing but a known name."""
    return Document("Node", told.source, told.number, shapes.Node(shapes.Metadata(name=name)))


def class_selectors(documents: Iterable[Document]) -> dict[str, tuple[str, ...]]:
    """Expressions of each DeviceClass among the documents, by its name."""
    found = {}
    for document in documents:
        if isinstance(document.shape, shapes.DeviceClass):
            spec = document.shape.spec or shapes.DeviceClassSpec()
            found[document.name] = expressions(spec.selectors)
    return found


def expressions(selectors: Iterable[shapes.DeviceSelector] | None) -> tuple[str, ...]:
    """The expressions of selectors."""
    return tuple(one.cel.expression if one.cel is not None else "" for one in selectors or ())


def nano(value: Any, field: str) -> int:
    """An amount in billionths. Raises `InvalidValue`."""
    try:
        return Quantity.parse(value).nano
    except InvalidQuantity as error:
        raise InvalidValue(f"field {field}: {error}") from error


def _offers(spec: shapes.ResourceSliceSpec) -> list[Offer]:
    found = []
    for one in spec.devices or ():
        own = spec.per_device_node_selection
        node, everywhere = (
            (one.node_name, one.all_nodes) if own else (spec.node_name, spec.all_nodes)
        )
        if node or everywhere:  # only drivers of networks select nodes by labels
            found.append(_offer(spec, one, node))
    return found


def _offer(spec: shapes.ResourceSliceSpec, one: shapes.SliceDevice, node: str | None) -> Offer:
    where = f"spec.devices[{one.name}]"
    capacity = {
        name: _capacity(given, f"{where}.capacity[{name}]")
        for name, given in (one.capacity or {}).items()
    }
    amounts = {name: Quantity(known.value) for name, known in capacity.items()}
    attributes = {name: _attribute(value) for name, value in (one.attributes or {}).items()}
    counters: dict[CounterKey, int] = {}
    for taken in one.consumes_counters or ():
        of = spec.driver, spec.pool.name, taken.counter_set
        counters |= _counters(of, taken.counters, f"{where}.consumesCounters[{taken.counter_set}]")
    shared = bool(one.allow_multiple_allocations)
    return Offer(
        key=(spec.driver, spec.pool.name, one.name),
        node=node,
        view=DeviceView(
            spec.driver,
            _by_domain(attributes, spec.driver),
            _by_domain(amounts, spec.driver),
            shared,
        ),
        capacity=capacity,
        counters=counters,
        taints=taints_of(one.taints),
    )


def _counters(
    of: tuple[str, str, str], given: Mapping[str, shapes.DeviceCapacity] | None, where: str
) -> dict[CounterKey, int]:
    """Amounts of a set of counters `of` a driver and a pool."""
    return {
        (*of, name): nano(one.value, f"{where}.counters[{name}]")
        for name, one in (given or {}).items()
    }


def _by_domain(values: Mapping[str, _T], driver: str) -> dict[str, dict[str, _T]]:
    found: dict[str, dict[str, _T]] = {}
    for name, value in values.items():
        domain, _, inner = name.rpartition("/")
        found.setdefault(domain if "/" in name else driver, {})[inner] = value
    return found


def _attribute(value: Mapping[str, Any]) -> Any:
    for kind in _TYPES:
        if value.get(kind) is not None:
            return value[kind]
    text = value.get("version")
    return (Version.parse(text) or text) if isinstance(text, str) else None


def _capacity(given: shapes.DeviceCapacity, where: str) -> Capacity:
    value, policy = nano(given.value, where), given.request_policy
    if policy is None:
        return Capacity(value)
    bounds = policy.valid_range or shapes.AmountRange()

    def of(amount: shapes.Amount, name: str) -> int:
        return 0 if amount is None else nano(amount, f"{where}.requestPolicy.{name}")

    return Capacity(
        value,
        policy=True,
        default=value if policy.default is None else of(policy.default, "default"),
        least=of(bounds.min, "validRange.min"),
        most=None if bounds.max is None else of(bounds.max, "validRange.max"),
        step=of(bounds.step, "validRange.step"),
        valid=tuple(sorted(of(one, "validValues") for one in policy.valid_values or ())),
    )

"""ResourceClaims (dynamic resource allocation) as facts of the books.

An allocated claim holds devices as a bound pod does by its record: `status.allocation` is the record, the pool is the
node. So each becomes the engine's `Pod` with grants in base units, under the claim's own uid. A claim that several
pods share is still one. Devices of another driver are left alone, and so is access for administrators, which takes
nothing.

Unreadable parts never count as free. An unreadable amount or instance takes its whole card. A device name
that is not Partage's closes the cards of its node. Every fault names the claim, device and rule.

Source: Kubernetes API resource.k8s.io/v1 at v1.36 (`AllocationResult`); KEP-4381, 4815 and 5075.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from partage.model.allocation import CLAIM, Grant, GrantMode
from partage.model.device import MILLI, DeviceType
from partage.model.errors import InvalidQuantity
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.pod import Pod, Record
from partage.model.quantity import NANO, Quantity
from partage.model.request import EVERY, PodRequest
from partage.vendors.names import CLAIM_FINALIZER, DRA_DRIVER
from partage.wire import shapes
from partage.wire.device_requests import MOST
from partage.wire.documents import Document, explain
from partage.wire.pods import stable_uid

_MOST_SHOWN: Final = 80
_MOST_PROBLEMS: Final = 4
_PERCENT: Final = MILLI // 100
_MIB: Final = 2**20
MOST_FINALIZERS: Final = 64
"""More than controllers set on a claim. One with more is not admitted, because its finalizers are not all kept."""
DEVICE: Final = re.compile(r"gpu-(0|[1-9][0-9]{0,5})(-mig-.+)?")
"""A device's name: the number of its card, and its place on it if it is an instance."""

NodeOf = Callable[[str], Node | None]


class _Result(msgspec.Struct, frozen=True, rename="camel"):
    """One device of an allocation; fields that the API server requires are not optional."""

    driver: str
    pool: str
    device: str
    request: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")


@dataclass(frozen=True, slots=True)
class Claim:
    """The parts of a ResourceClaim that the books need.

    Attributes:
        uid: its identity, which is its key in the books.
        classes: names of the DeviceClasses that its requests name, each once.
        consumers: names of the pods for which it is reserved.
        records: its devices of this driver, by node; empty while it holds none.
        problems: errors of its allocation, for people; a few at most.
    """

    uid: str
    namespace: str
    name: str
    classes: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    records: Mapping[str, Record] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"

    def facts(self) -> tuple[Pod, ...]:
        """The engine's facts, one a node: nearly always one.

        The first has the claim's uid. A further node, which no scheduler of Kubernetes allocates for one claim, has a
        key that combines both.
        """
        return tuple(
            Pod(
                uid=self.uid if not number else f"{self.uid}/{node}",
                namespace=self.namespace,
                name=self.name,
                node=node,
                request=PodRequest(broken=((DeviceType.GPU, EVERY),)),
                record=record,
                claim=True,
            )
            for number, (node, record) in enumerate(self.records.items())
        )


def share_name(minor: int) -> str:
    """The name of a card in a ResourceSlice: all of it, and the source of shares."""
    return f"gpu-{minor}"


def instance_name(minor: int, instance: MigSlice) -> str:
    """The name of one place of an instance on a card."""
    return f"{share_name(minor)}-mig-{profile_label(instance.profile)}-{instance.start}"


def profile_label(profile: str) -> str:
    """A profile's name as part of a DNS label; `1g.24gb+me` and `1g.24gb-me` stay apart."""
    return profile.lower().replace(".", "-").replace("+", "-plus-")


def claim_uid(document: Document) -> str:
    """The key of a claim in the books: its uid, or in a manifest without one a key that is always the same for it."""
    return document.metadata.uid or stable_uid(document.namespace, document.kind, document.name)


def read_claim(document: Document, nodes: NodeOf) -> Claim:
    """The claim of a document of kind ResourceClaim. Never raises for contents of the document.

    `nodes`: gives the node of a name, because its cards are needed to read the allocation; None if it is unknown.
    """
    grants: dict[str, list[Grant]] = {}
    doubts: dict[str, str] = {}
    problems: list[str] = []

    def wrong(pool: str, problem: str, *, everything: bool = False) -> None:
        problems.append(f"ResourceClaim {document.namespace}/{document.name}: {problem}")
        if everything:
            doubts.setdefault(pool, problem)

    asked = (one.get("deviceClassName") for _, one in _requests(spec_of(document)))
    classes = [name for name in asked if isinstance(name, str)]
    results = results_of(document)
    taken: set[tuple[str, str, str]] = set()
    for number, raw in enumerate(results):
        result = _result(raw)
        if isinstance(result, str):
            pool = _unread_pool(raw)
            if pool:
                grants.setdefault(pool, [])
            told = f"field status.allocation.devices.results[{number}]: {result}"
            wrong(pool, told, everything=bool(pool))
            continue
        if result.driver != DRA_DRIVER or result.admin_access:
            continue
        mine = grants.setdefault(result.pool, [])
        if number >= MOST:
            rule = f"{len(results)} devices are more than the {MOST} of a claim"
            if result.pool not in doubts:
                wrong(result.pool, rule, everything=True)
            continue
        share = result.pool, result.device, result.share_id or ""
        if share in taken:
            wrong(result.pool, f"{_where(result)} is allocated twice")
        taken.add(share)
        found = _grant(result, raw, nodes(result.pool))
        if isinstance(found, str):
            wrong(result.pool, f"{_where(result)}: {found}", everything=True)
        else:
            mine.append(found[0])
            if found[1]:
                wrong(result.pool, f"{_where(result)}: {found[1]}")
    return Claim(
        uid=claim_uid(document),
        namespace=document.namespace,
        name=document.name,
        classes=tuple(dict.fromkeys(classes)),
        consumers=tuple(_consumers(_status(document))),
        records={
            pool: Record(tuple(mine), CLAIM, doubts.get(pool, "")) for pool, mine in grants.items()
        },
        problems=tuple(problems[:_MOST_PROBLEMS]),
    )


def beyond_asked(allocated: Document, asked: Document) -> str:
    """The devices that a claim was allocated beyond its request; empty if there are none.

    Amounts that the request does not name may have any size, since they are the node's own. Instances are not compared,
    because a request names them by selectors. `asked`: the same claim with its requests.
    """
    requests = dict(_requests(spec_of(asked)))
    had: Counter[str] = Counter()
    for result in held_devices(allocated):
        name = str(result.get("request"))
        request = requests.get(name)
        if request is None:
            return f"the claim has no request {name[:_MOST_SHOWN]}"
        had[name] += 1
        count = request.get("count", 1)
        if request.get("allocationMode") != "All" and had[name] > (
            count if isinstance(count, int) else 0
        ):
            return f"request {name}: more devices than it asks for"
        if "consumedCapacity" not in result and "-mig-" in str(result.get("device")):
            continue
        capacity = _mapping(_mapping(request.get("capacity")).get("requests"))
        consumed = _mapping(result.get("consumedCapacity"))
        # A share has at least one step of memory, whatever its request says.
        for amount, step, fewest in (("cores", 1, 0), ("memory", _MIB, 1)):
            wants, has = (_units(one, amount, step) for one in (capacity, consumed))
            if isinstance(wants, int) and not (isinstance(has, int) and has <= max(wants, fewest)):
                return f"request {name}: more {amount} than it asks for"
    return ""


def held_devices(document: Document) -> list[dict[str, Any]]:
    """This driver's results of a claim's allocation, as they were written."""
    return [one for one in results_of(document) if _mapping(one).get("driver") == DRA_DRIVER]


def is_protected(document: Document) -> bool:
    """Whether a claim has the finalizer that kube-scheduler sets before it allocates one."""
    return CLAIM_FINALIZER in (document.metadata.finalizers or ())


def are_few(document: Document) -> bool:
    """Whether all finalizers of a claim are known."""
    return len(document.metadata.finalizers or ()) <= MOST_FINALIZERS


def may_be_allocated(document: Document) -> bool:
    """Whether a write of this claim's allocation may be on its way: it has none yet, and all earlier steps are done."""
    return is_protected(document) and _status(document).get("allocation") is None


def has_parameters(document: Document) -> bool:
    """Whether a claim's allocation has parameters for this driver, from the claim itself or from its class."""
    devices = _mapping(allocation_of(document).get("devices"))
    opaque = (_mapping(_mapping(one).get("opaque")) for one in _listed(devices.get("config")))
    return any(one.get("driver") == DRA_DRIVER for one in opaque)


def allocation_of(document: Document) -> Mapping[str, Any]:
    """A claim's allocation as it was written; empty without one, and of another kind."""
    return _mapping(_status(document).get("allocation"))


def results_of(document: Document) -> list[Any]:
    """The devices of a claim's allocation as they were written, of every driver."""
    return _listed(_mapping(allocation_of(document).get("devices")).get("results"))


def spec_of(document: Document) -> Mapping[str, Any]:
    """A claim's spec as it was written; empty without one, and of another kind."""
    return _claim(document).spec or {}


def _status(document: Document) -> Mapping[str, Any]:
    return _claim(document).status or {}


def _claim(document: Document) -> shapes.ResourceClaim:
    shape = document.shape
    return shape if isinstance(shape, shapes.ResourceClaim) else shapes.ResourceClaim()


# --- what the document says ----------------------------------------------------------------------


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _result(raw: object) -> _Result | str:
    try:
        return msgspec.convert(raw, _Result)
    except (msgspec.ValidationError, RecursionError) as error:
        return explain(error)


def _unread_pool(raw: object) -> str:
    """The node of an unreadable result that may be this driver's; empty if it names none."""
    driver, pool = _mapping(raw).get("driver"), _mapping(raw).get("pool")
    others = isinstance(driver, str) and driver != DRA_DRIVER
    return pool if isinstance(pool, str) and not others else ""


def _requests(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Requests by the names that results use; of one with alternatives, each alternative."""
    for request in _listed(_mapping(spec.get("devices")).get("requests"))[:MOST]:
        given = _mapping(request)
        name = str(given.get("name"))
        if "exactly" in given:
            yield name, _mapping(given["exactly"])
        for one in map(_mapping, _listed(given.get("firstAvailable"))[:MOST]):
            yield f"{name}/{one.get('name')}", one


def _consumers(status: Mapping[str, Any]) -> Iterator[str]:
    for one in _listed(status.get("reservedFor")):
        consumer = _mapping(one)
        if consumer.get("resource") == "pods" and isinstance(consumer.get("name"), str):
            yield consumer["name"]


# --- one device ----------------------------------------------------------------------------------


def _where(result: _Result) -> str:
    device, pool = result.device[:_MOST_SHOWN], result.pool[:_MOST_SHOWN]
    request = f"request {result.request[:_MOST_SHOWN]}: " if result.request else ""
    return f"{request}device {device} of node {pool}"


def _grant(result: _Result, raw: Any, node: Node | None) -> tuple[Grant, str] | str:
    """The grant of one result and its error; a text if the card is unknown."""
    match = DEVICE.fullmatch(result.device)
    if match is None:
        return "no device of this driver has such a name; the node's cards are closed"
    minor = int(match[1])
    there = node.devices if node is not None else ()
    card = next((one for one in there if one.type is DeviceType.GPU and one.minor == minor), None)
    missing = "" if node is None or card is not None else "there is no such card on the node"

    def grant(mode: GrantMode, core: int, memory: int, mig: MigSlice | None = None) -> Grant:
        uuid, gpu = "" if card is None else card.uuid, DeviceType.GPU
        return Grant(result.request, gpu, minor, uuid, core, memory, mode, protocol=CLAIM, mig=mig)

    if match[2] is not None:
        axis = None if card is None else card.cutting.axis if card.cutting else card.axis
        for one in () if axis is None else axis.positions:
            if axis and instance_name(minor, one) == result.device:
                profile = axis.profile(one.profile)
                return grant(GrantMode.MIG, profile.core_milli, profile.memory_bytes, one), ""
        # Without a place, the grant takes the whole card.
        there_is_none = "" if card is None else "the card has no such instance; all of it is taken"
        return grant(GrantMode.MIG, 0, 0), missing or there_is_none
    consumed = _mapping(raw).get("consumedCapacity")
    amounts = None if consumed is None else _amounts(consumed)
    if isinstance(amounts, tuple):
        return grant(GrantMode.SHARE, *amounts), missing
    # No other may join: the card is not multi-allocatable, or the amount taken of it is unknown.
    core, memory = (MILLI, 0) if card is None else (card.core_milli, card.memory_bytes)
    problem = f"{amounts}; all of the card is taken" if amounts else missing
    return grant(GrantMode.WHOLE, core, memory), problem


def _units(amounts: Mapping[str, Any], name: str, step: int) -> int | None:
    """An amount in its steps, rounded up; the larger of two, None if none can be read."""
    given = [amounts[key] for key in (name, f"{DRA_DRIVER}/{name}") if key in amounts]
    try:
        read = [-(-Quantity.parse(one).nano // (NANO * step)) for one in given]
        return max(read, default=None)
    except InvalidQuantity:
        return None


def _amounts(consumed: object) -> tuple[int, int] | str:
    """Compute in milli and memory in bytes, rounded up; a text if they cannot be read."""
    if not isinstance(consumed, dict):
        return "field consumedCapacity: no object"
    found: list[int] = []
    for name, unit in (("cores", _PERCENT), ("memory", 1)):
        field_ = f"field consumedCapacity.{name}"
        given = [consumed[key] for key in (name, f"{DRA_DRIVER}/{name}") if key in consumed]
        if len(given) != 1:
            return f"{field_}: " + ("missing" if not given else "given twice")
        if not isinstance(given[0], str | int | float):
            return f"{field_}: no quantity"
        try:
            nano = Quantity.parse(given[0]).nano * unit
        except InvalidQuantity as error:
            return f"{field_}: {error}"
        if nano < 0:
            return f"{field_}: {given[0]} is negative"
        found.append(-(-nano // NANO))
    return found[0], found[1]

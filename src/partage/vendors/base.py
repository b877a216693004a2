"""A protocol family: a table of names and a few pure functions over plain views.

A family turns a pod's fields into a `Reading` (requests in base units) and an allocation into a `Rendering`
(annotations, labels, environment). It never chooses a device: the core fits values and does not know from which family
they are. `catalog` lists the families, and none imports another.

Koordinator's own renderer and the vendors' additions express the cards of one Koordinator allocation in different
words; `GrantedCard` holds their amounts, which only this module computes. They are the pod's request of each card
(docs/sources/koordinator.md 2.5 and 4): a share of the memory is rounded down to bytes. Bytes become percent by
upstream's truncation, because readers depend on it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from partage.model.allocation import Allocation, Charge, Grant, GrantMode, charges_of
from partage.model.device import MILLI, Device, DeviceType
from partage.model.node import Node, Verdict
from partage.model.pod import Record
from partage.model.quantity import Quantity
from partage.model.request import DeviceRequest, Fault, Phase, PodRequest, RequestGroup
from partage.vendors.settings import Settings
from partage.vendors.traits import Traits

KOORDINATOR: Final = "koordinator"
"""The name of Koordinator's protocol."""
_PERCENT: Final = MILLI // 100
_NANO: Final = 10**9


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container as its author wrote it, with parsed quantities and no defaults."""

    name: str
    phase: Phase = Phase.MAIN
    requests: Mapping[str, Quantity] = field(default_factory=dict)
    limits: Mapping[str, Quantity] = field(default_factory=dict)

    def ask(self, resource: str) -> Quantity | None:
        """The amount of a resource that the container asks: its limit, else its request."""
        return self.limits.get(resource, self.requests.get(resource))

    @property
    def names(self) -> frozenset[str]:
        """Every resource named in requests or limits."""
        return frozenset(self.requests) | frozenset(self.limits)


@dataclass(frozen=True, slots=True)
class PodView:
    """The parts of a pod that families read, as its author wrote them.

    `containers`: init containers and sidecars first, each list in the pod's order. `dropped`: bytes of further
    annotations, which nothing reads.
    """

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    scheduler: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[ContainerView, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """The parts of a node that families read, as the API shows them.

    `devices`: its devices in a Device object (after translation); empty if there is none.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, Quantity] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading(PodRequest):
    """One family's reading of a pod; without `groups` if the family's names do not occur.

    `quota`: amounts that the family's own quota keys count (`limits.nvidia.com/gpumem`), if they are known before
    placement.
    """

    quota: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Registration:
    """One family's report of a node.

    Attributes:
        devices: the node's devices in this family's view: those of `NodeView.devices` with the family's configuration
            (slots, scaling, mode, hidden, cordoned). If there is no Device object, those that the family's own labels,
            totals or annotations define. None leaves them unchanged.
        verdicts: the family's objections to the node.
        registrar: the family's name if the node registered its devices with it, else empty.
        properties: facts for renderers.
        links: link scores of pairs of cards, smaller UUID first.
        notes: facts for the operator (an unreadable annotation).
    """

    devices: tuple[Device, ...] | None = None
    verdicts: tuple[Verdict, ...] = ()
    registrar: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[tuple[str, str], int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod with its allocation, as a renderer sees it.

    `allocation`: as decided; a renderer reads the grants of its own protocol. `now`: time of the decision, nanoseconds
    since 1970.
    """

    pod: PodView
    request: PodRequest
    allocation: Allocation
    node: Node
    now: int

    def grants(self, protocol: str) -> tuple[Grant, ...]:
        """The grants of one family, in the order of containers."""
        return tuple(g for g in self.allocation.grants if g.protocol == protocol)

    def card(self, grant: Grant) -> tuple[Device | None, str]:
        """The device of a grant, and its maker: the device's own vendor, else its node's."""
        key = grant.type, grant.minor
        found = next((one for one in self.node.devices if (one.type, one.minor) == key), None)
        own = found.vendor if found is not None else ""
        return found, own or self.node.properties.get("vendor", "")


@dataclass(frozen=True, slots=True)
class Rendering:
    """A family's output for an allocation.

    Attributes:
        annotations: on the pod.
        labels: on the pod.
        env: container name to environment that its node agent sets.
        node_annotations: on the node (a vendor plugin's lock); empty if none is needed.
    """

    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    node_annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family:
    """One protocol family, or one vendor's addition to another's protocol.

    Attributes:
        name: the protocol's name, as in `RequestGroup.protocol`.
        owned: resource names that this family reads; they are checked on the ledger, never on a node's totals.
        triggers: names that only activate a vendor's plugin; they are checked on the node's totals.
        heeded: annotations of users that apply only to this family's containers.
        read: requests of the containers that use this family's names. Containers of other families are not passed; sums
            over the pod are over those passed.
        refine: a vendor's rules on top of another family's reading (quality of service, one card only). Called for
            every pod with the merged reading.
        register: the family's report of a node.
        render: annotations, labels and environment of an allocation.
        labels: only the labels of `render`; nothing else of a running pod is compared.
        recover: a bound pod's allocation by the family's own annotations; None if there are none. Never raises: a
            malformed record is a `Record` with its problem.
        by_container: whether those annotations contain each container's devices; if not, only the pod's amount of each
            device can be compared.
        tells_amounts: whether those annotations contain amounts; if not, `recover` takes the amounts that the pod asked
            at its creation.
    """

    name: str
    owned: Callable[[Settings], frozenset[str]] = lambda _: frozenset()
    triggers: frozenset[str] = frozenset()
    heeded: frozenset[str] = frozenset()
    read: Callable[[PodView, tuple[ContainerView, ...], Settings], Reading] = lambda *_: Reading()
    refine: Callable[[PodView, Reading, Settings], Reading] = lambda _pod, reading, _: reading
    register: Callable[[NodeView, Settings], Registration] = lambda *_: Registration()
    render: Callable[[PlacedPod, Settings], Rendering] = lambda *_: Rendering()
    labels: Callable[[PlacedPod, Settings], Mapping[str, str]] = lambda *_: {}
    recover: Callable[[PodView, Node, Settings], Record | None] = lambda *_: None
    by_container: bool = False
    tells_amounts: bool = True


# --- Koordinator's protocol, for its own renderer and for vendors' additions --------------------


@dataclass(frozen=True, slots=True)
class GrantedCard:
    """One device of an allocation, all containers together.

    Attributes:
        vendor: its maker; the node's vendor if the device has none.
        core: percent of compute; 0 if none was asked.
        ratio: percent of its memory.
        extras: native units.
        whole: the card entirely.
        functions: virtual functions (minor, PCI address), by address.
    """

    type: DeviceType
    minor: int
    uuid: str
    vendor: str
    model: str
    core: int
    memory_bytes: int
    ratio: int
    extras: tuple[tuple[str, int], ...] = ()
    whole: bool = False
    template: str = ""
    functions: tuple[tuple[int, str], ...] = ()


def cards_of(placed: PlacedPod) -> tuple[GrantedCard, ...]:
    """The devices that a pod holds by Koordinator's protocol, ordered by type and minor."""
    grants = placed.grants(KOORDINATOR)
    result = []
    for charge in charges_of(grants):
        mine = [g for g in grants if (g.type, g.minor) == (charge.type, charge.minor)]
        result.append(_card(placed, charge, mine, _request(placed, mine)))
    return tuple(result)


def gpus_of(placed: PlacedPod, vendor: str) -> list[GrantedCard]:
    """One vendor's cards among them."""
    return [
        card for card in cards_of(placed) if card.type is DeviceType.GPU and card.vendor == vendor
    ]


def cut_by_plugin(node: NodeView, vendor: str) -> Registration:
    """Whether its own plugin cuts shares of a vendor's cards."""
    if not any(device.vendor == vendor for device in node.devices):
        return Registration()
    return Registration(
        devices=tuple(
            replace(device, vendor_cut=True)
            if device.vendor == vendor and device.type is DeviceType.GPU
            else device
            for device in node.devices
        )
    )


def _request(placed: PlacedPod, grants: Iterable[Grant]) -> DeviceRequest | None:
    """The request for which one device was chosen; None if it serves several, or none is known.

    A container with only `nvidia.com/gpu` has a request of its own beside the pod's.
    """
    served = {(grant.container, grant.type) for grant in grants}
    found = [
        group.request
        for group in placed.request.groups
        if group.protocol == KOORDINATOR
        and any((c.name, group.request.type) in served for c in group.containers)
    ]
    return found[0] if len(found) == 1 else None


def wakes(pod: PodView, row: Traits) -> bool:
    """Whether a container of the pod asks for a resource that wakes the vendor's plugin, with more than zero."""
    asked = (container.ask(name) for container in pod.containers for name in row.wakes)
    return any(quantity.nano > 0 for quantity in asked if quantity is not None)


def adapted(
    pod: PodView,
    reading: Reading,
    row: Traits,
    unserved: Callable[[DeviceRequest], bool],
    problem: Callable[[Sequence[DeviceRequest]], str],
) -> Reading:
    """The reading with a vendor's rules: pods that wake its plugin are kept on its cards, others off them.

    `unserved`: whether the plugin cannot serve a request of another pod. `problem`: why it cannot cut these requests
    for cards; empty if it can.
    """
    if reading.fault is not None or not reading.groups:
        return reading  # without amounts the pod is kube-scheduler's, as any pod of a plugin
    if not wakes(pod, row):
        return kept_off(reading, row.name, unserved)
    groups = tuple(_kept_on(group, row) for group in reading.groups)
    why = problem([one.request for one in groups if one.request.type is DeviceType.GPU])
    return replace(reading, fault=Fault(why)) if why else replace(reading, groups=groups)


def _kept_on(group: RequestGroup, row: Traits) -> RequestGroup:
    request = group.request
    if request.type is not DeviceType.GPU:
        return group
    sharers = request.sharers
    if row.sharers and not request.whole:
        sharers = min(row.sharers, sharers or row.sharers)
    cards = replace(request.filter, vendors=(row.name,))
    return replace(group, request=replace(request, filter=cards, sharers=sharers))


def undersized(request: DeviceRequest, row: Traits) -> str:
    """Why a vendor's plugin cannot cut so small a share, in upstream's words; empty if it can."""
    if not request.core_milli:
        return "gpu core resource is required"
    if not request.memory_milli and request.memory_bytes < row.unit:
        return f"gpu memory must not be less than {row.unit} bytes"
    return ""


def kept_off(reading: Reading, vendor: str, unserved: Callable[[DeviceRequest], bool]) -> Reading:
    """The reading with requests that a vendor's plugin cannot serve kept off its cards.

    For pods that do not name the vendor. They may use any node, but there such a pod would start without a device:
    kubelet asks a plugin only for the resources that the plugin reports, and the plugin cuts nothing else.
    """

    def spared(group: RequestGroup) -> RequestGroup:
        request = group.request
        cards = request.filter
        meant = not cards.vendors or vendor in cards.vendors
        if group.protocol != KOORDINATOR or request.type is not DeviceType.GPU or not meant:
            return group
        if not unserved(request):
            return group
        cards = replace(cards, avoid_vendors=(*cards.avoid_vendors, vendor))
        return replace(group, request=replace(request, filter=cards))

    return replace(reading, groups=tuple(map(spared, reading.groups)))


def lock_of(placed: PlacedPod, row: Traits) -> dict[str, str]:
    """The lock on the node that a vendor's plugin expects, and later removes, for a pod that wakes it.

    Its value is the time, the namespace and the pod's name.
    """
    if not wakes(placed.pod, row):
        return {}
    time = datetime.fromtimestamp(placed.now // _NANO, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {row.lock: f"{time},{placed.pod.namespace},{placed.pod.name}"}


def _card(
    placed: PlacedPod, charge: Charge, grants: list[Grant], request: DeviceRequest | None
) -> GrantedCard:
    device, maker = placed.card(grants[0])
    total = device.memory_bytes if device is not None else charge.memory_bytes
    core, extras, memory, ratio = charge.core_milli, charge.extras, charge.memory_bytes, None
    if request is not None:
        core, extras = request.core_milli, request.extras
        if request.memory_milli:
            ratio = request.memory_milli // _PERCENT
            memory = ratio * total // 100
        elif request.memory_bytes:
            memory = request.memory_bytes
    return GrantedCard(
        type=charge.type,
        minor=charge.minor,
        uuid=charge.uuid,
        vendor=maker,
        model=(device.model if device else "") or placed.node.properties.get("model", ""),
        core=core // _PERCENT,
        memory_bytes=memory,
        # Truncated in floating point as upstream computes it: exactly 29 % of a card may become 28.
        ratio=int(float(memory) / float(total) * 100 if total else 0) if ratio is None else ratio,
        extras=extras,
        whole=all(grant.mode is GrantMode.WHOLE for grant in grants),
        template=next((grant.template for grant in grants if grant.template), ""),
        functions=tuple(
            sorted({g.function for g in grants if g.function}, key=lambda function: function[1])
        ),
    )

"""A protocol family: a table of names and a few pure functions over plain views.

A family turns a pod's fields into a `Reading` (requests in base units) and an allocation into a `Rendering`
(annotations, labels, environment). It never chooses a device: the core fits values and does not know from which family
they are. `catalog` lists the families, and none imports another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from partage.model.allocation import Allocation, Grant
from partage.model.device import Device
from partage.model.node import Node, Verdict
from partage.model.pod import Record
from partage.model.policy import CardOrder, Scoring, Strategy
from partage.model.quantity import Quantity
from partage.model.request import (
    Fault,
    Joint,
    LabelRule,
    PartitionAsk,
    Phase,
    PodRequest,
    RequestGroup,
)
from partage.vendors.settings import Settings


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

    `containers`: init containers and sidecars first, each list in the pod's order.
    """

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    scheduler: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[ContainerView, ...] = ()


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
class Reading:
    """One family's reading of a pod.

    Attributes:
        groups: device requests; empty if the family's names do not occur.
        quota: amounts that the family's own quota keys count (`limits.nvidia.com/gpumem`), if they are known before
            placement.
    """

    groups: tuple[RequestGroup, ...] = ()
    joint: Joint | None = None
    partition: PartitionAsk | None = None
    node_labels: tuple[LabelRule, ...] = ()
    node_strategy: Strategy | None = None
    card_order: CardOrder = CardOrder()
    scoring: Scoring = Scoring()
    fault: Fault | None = None
    notes: tuple[str, ...] = ()
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

    Attributes:
        allocation: as decided; a renderer reads the grants of its own protocol.
        now: time of the decision, nanoseconds since 1970.
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
        found = None
        for device in self.node.devices:
            if device.type is grant.type and device.minor == grant.minor:
                found = device
                break
        own = found.vendor if found is not None else ""
        return found, own or self.node.properties.get("vendor", "")

    @property
    def concerned(self) -> frozenset[str]:
        """Names of the families that write something: those of the grants' protocols, and of the devices' makers."""
        grants = self.allocation.grants
        protocols = {grant.protocol for grant in grants}
        return frozenset(protocols | {self.card(grant)[1] for grant in grants})


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
    owned: Callable[[Settings], frozenset[str]] = lambda _settings: frozenset()
    triggers: frozenset[str] = frozenset()
    heeded: frozenset[str] = frozenset()
    read: Callable[[PodView, tuple[ContainerView, ...], Settings], Reading] = (
        lambda _pod, _containers, _settings: Reading()
    )
    refine: Callable[[PodView, Reading, Settings], Reading] = lambda _pod, reading, _settings: (
        reading
    )
    register: Callable[[NodeView, Settings], Registration] = lambda _node, _settings: (
        Registration()
    )
    render: Callable[[PlacedPod, Settings], Rendering] = lambda _placed, _settings: Rendering()
    labels: Callable[[PlacedPod, Settings], Mapping[str, str]] = lambda _placed, _settings: {}
    recover: Callable[[PodView, Node, Settings], Record | None] = lambda _pod, _node, _settings: (
        None
    )
    by_container: bool = False
    tells_amounts: bool = True

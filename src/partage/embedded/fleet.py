"""Simulated nodes as their owner describes them: a short YAML document a node, or a row of nodes.

    apiVersion: partage.io/v1alpha1
    kind: SimulatedNode
    metadata:
      name: trainer
      labels: {pool: training}
    spec:
      count: 2                # trainer-0 and trainer-1; without it, one node named trainer
      model: H100-80GB-HBM3   # one of `models.MODELS`, or any name together with vendor and memory
      cards: 8
      registers: [hami, qgpu] # whose node plugins run there beside Koordinator's
      rdma: {cards: 4, functions: 8}

Every field is documented in docs/reference/up.md.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from partage.agent.discovery.models import MODELS, CardModel
from partage.model.errors import InvalidDocument, InvalidQuantity
from partage.model.quantity import Quantity
from partage.vendors.traits import NVIDIA, traits_of
from partage.wire.documents import explain

API_VERSION: Final = "partage.io/v1alpha1"
KIND: Final = "SimulatedNode"

_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,250}[A-Za-z0-9])?")
_MOST_NODES: Final = 10_000

Plugin = Literal["hami", "qgpu"]


class RdmaCards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The RDMA cards of a node, spread over its PCIe switches.

    Attributes:
        functions: virtual functions of each; none means that the card is given out in percent.
    """

    cards: Annotated[int, Meta(ge=1, le=64)] = 1
    functions: Annotated[int, Meta(ge=0, le=256)] = 0


class _Taint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str = ""


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    model: str
    count: Annotated[int, Meta(ge=1, le=_MOST_NODES)] | None = None
    cards: Annotated[int, Meta(ge=0, le=64)] = 1
    vendor: str = ""
    memory: str | None = None
    driver: str | None = None
    registers: list[Plugin] = []
    mode: Literal["", "sgpu", "native", "hami-core", "mig"] = ""
    rdma: RdmaCards | None = None
    numa_nodes: Annotated[int, Meta(ge=1, le=16)] = 2
    cards_per_switch: Annotated[int, Meta(ge=1, le=64)] = 2
    cpu: str = "64"
    host_memory: str = "512Gi"
    pods: Annotated[int, Meta(ge=1, le=100_000)] = 110
    taints: list[_Taint] = []


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Document(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: str
    kind: str
    metadata: _Metadata
    spec: _Spec


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One simulated node.

    Attributes:
        model: what its cards are called in Koordinator's label.
        make: facts of that model.
        registers: protocols whose node plugins run there beside Koordinator's.
        mode: how its cards are cut: `sgpu` or `native` for MetaX, `hami-core` or `mig` for
            NVIDIA; empty for the vendor's usual one.
        numa_nodes: over how many NUMA nodes its devices are spread.
        cpu: a quantity.
        host_memory: a quantity.
        pods: how many pods its kubelet takes.
        taints: as in a Node.
    """

    name: str
    model: str
    make: CardModel
    cards: int = 1
    registers: tuple[str, ...] = ()
    mode: str = ""
    rdma: RdmaCards | None = None
    numa_nodes: int = 2
    cards_per_switch: int = 2
    cpu: str = "64"
    host_memory: str = "512Gi"
    pods: int = 110
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    taints: tuple[dict[str, str], ...] = ()


def simulated_nodes(value: Any, where: str) -> Iterator[SimulatedNode]:
    """The nodes of one document. Raises `InvalidDocument`: a field is wrong; the message names it and the rule.

    Args:
        where: file and place, for messages.
    """
    try:
        document = msgspec.convert(value, _Document)
    except msgspec.ValidationError as error:
        raise InvalidDocument(f"{where} ({KIND}): {explain(error)}") from error
    name, spec = document.metadata.name, document.spec
    where = f"{where} ({KIND} {name})"
    if document.api_version != API_VERSION:
        raise InvalidDocument(
            f"{where}: field apiVersion: {document.api_version} is not {API_VERSION}"
        )
    if not _NAME.fullmatch(name):
        raise InvalidDocument(f"{where}: field metadata.name: {name!r} is no node name")
    node = SimulatedNode(
        name=name,
        model=spec.model,
        make=_make(spec, where),
        cards=spec.cards,
        registers=tuple(spec.registers),
        mode=spec.mode,
        rdma=spec.rdma,
        numa_nodes=spec.numa_nodes,
        cards_per_switch=spec.cards_per_switch,
        cpu=_quantity(spec.cpu, "cpu", where),
        host_memory=_quantity(spec.host_memory, "hostMemory", where),
        pods=spec.pods,
        labels=document.metadata.labels,
        annotations=document.metadata.annotations,
        taints=tuple(msgspec.to_builtins(taint) for taint in spec.taints),
    )
    _check(node, where)
    if spec.count is None:
        yield node
        return
    for index in range(spec.count):
        yield replace(node, name=f"{name}-{index}")


def _make(spec: _Spec, where: str) -> CardModel:
    """The model of the cards: known, or described in full."""
    known = MODELS.get(spec.model)
    if known is None and (not spec.vendor or spec.memory is None):
        raise InvalidDocument(
            f"{where}: field spec.model: {spec.model!r} is not one of {', '.join(MODELS)}; any "
            "other model needs vendor and memory beside it"
        )
    make = known or CardModel(spec.vendor.lower(), 0)
    if spec.memory is not None:
        text = _quantity(spec.memory, "memory", where)
        make = replace(make, memory=Quantity.parse(text).floor())
    if spec.driver is not None:
        make = replace(make, driver=spec.driver)
    return replace(make, vendor=spec.vendor.lower()) if spec.vendor else make


def _quantity(text: str, field_name: str, where: str) -> str:
    try:
        amount = Quantity.parse(text)
    except InvalidQuantity as error:
        raise InvalidDocument(f"{where}: field spec.{field_name}: {error}") from error
    if amount.nano <= 0:
        raise InvalidDocument(f"{where}: field spec.{field_name}: {text} is not more than zero")
    return text


def _check(node: SimulatedNode, where: str) -> None:
    vendor = node.make.vendor
    allowed = traits_of(vendor).modes
    if node.mode not in allowed:
        known = ", ".join(mode for mode in allowed if mode) or "none"
        raise InvalidDocument(
            f"{where}: field spec.mode: {node.mode} is no mode of {vendor} cards ({known})"
        )
    if node.registers and vendor != NVIDIA.name:
        raise InvalidDocument(
            f"{where}: field spec.registers: {', '.join(node.registers)} serve nvidia cards, these "
            f"are of {vendor}"
        )
    if node.mode == "mig" and "hami" not in node.registers:
        raise InvalidDocument(
            f"{where}: field spec.mode: HAMi's registration reports mig; add hami to registers"
        )


def _node(name: str, model: str, cards: int, **more: Any) -> SimulatedNode:
    return SimulatedNode(name, model, MODELS[model], cards, **more)


DEFAULT_FLEET: Final[Sequence[SimulatedNode]] = (
    _node("a100-0", "A100-SXM4-80GB", 8, rdma=RdmaCards(4, 8), cpu="128", host_memory="1Ti"),
    _node("a100-1", "A100-SXM4-40GB", 4, registers=("hami",)),
    _node("h100-0", "H100-80GB-HBM3", 8, cpu="192", host_memory="2Ti"),
    _node("t4-0", "Tesla-T4", 4, registers=("qgpu",)),
    _node("c500-0", "C500", 2, cpu="96"),
)
"""The nodes there are when none are described."""

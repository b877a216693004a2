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
from partage.agent.discovery.simulated import DescribedCards
from partage.model.errors import InvalidDocument, InvalidQuantity
from partage.model.quantity import Quantity
from partage.vendors.traits import NVIDIA, traits_of
from partage.wire.documents import typed

API_VERSION: Final = "partage.io/v1alpha1"
KIND: Final = "SimulatedNode"

_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?")
_MOST_NODES: Final = 10_000

Plugin = Literal["hami", "qgpu"]


class RdmaCards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's RDMA cards, spread over its PCIe switches; without `functions` each is allocated in percent."""

    cards: Annotated[int, Meta(ge=1, le=64)] = 1
    functions: Annotated[int, Meta(ge=0, le=256)] = 0


class _Taint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str = ""


class NodeSpec(DescribedCards, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Description of a node.

    Attributes:
        model: its cards' name in Koordinator's label.
        registers: protocols whose node plugins run there beside Koordinator's.
        mode: how its cards are cut: `sgpu` or `native` for MetaX, `hami-core` or `mig` for
            NVIDIA; empty for the vendor's usual one.
        numa_nodes: number of NUMA nodes that its devices are spread over.
        cpu: a quantity.
        host_memory: a quantity.
        pods: most pods of its kubelet.
    """

    count: Annotated[int, Meta(ge=1, le=_MOST_NODES)] | None = None
    registers: tuple[Plugin, ...] = ()
    mode: Literal["", "sgpu", "native", "hami-core", "mig"] = ""
    rdma: RdmaCards | None = None
    cpu: str = "64"
    host_memory: str = "512Gi"
    pods: Annotated[int, Meta(ge=1, le=100_000)] = 110
    taints: tuple[_Taint, ...] = ()


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Document(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    api_version: str
    kind: str
    metadata: _Metadata
    spec: NodeSpec


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """One simulated node. `make`: facts of its cards' model."""

    name: str
    spec: NodeSpec
    make: CardModel
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


def simulated_nodes(value: Any, where: str) -> Iterator[SimulatedNode]:
    """The nodes of one document. `where`: file and place for messages. Raises `InvalidDocument`: a wrong field."""
    document = typed(value, _Document, where)
    name, spec = document.metadata.name, document.spec
    if document.api_version != API_VERSION:
        raise InvalidDocument(
            f"{where}: field apiVersion: {document.api_version} is not {API_VERSION}"
        )
    if not _NAME.fullmatch(name):
        raise InvalidDocument(
            f"{where}: field metadata.name: is no name of a node: at most 253 letters, digits, '-' and '.', "
            "the first and the last a letter or digit"
        )
    make = spec.make(f"{where}: field spec.")
    _check(spec, make.vendor, where)
    metadata = document.metadata
    node = SimulatedNode(name, spec, make, metadata.labels, metadata.annotations)
    if spec.count is None:
        yield node
        return
    for index in range(spec.count):
        yield replace(node, name=f"{name}-{index}")


def _check(spec: NodeSpec, vendor: str, where: str) -> None:
    amounts = {"memory": spec.memory, "cpu": spec.cpu, "hostMemory": spec.host_memory}
    for key, text in amounts.items():
        try:
            amount = None if text is None else Quantity.parse(text)
        except InvalidQuantity as error:
            raise InvalidDocument(f"{where}: field spec.{key}: {error}") from error
        if amount is not None and amount.nano <= 0:
            raise InvalidDocument(f"{where}: field spec.{key}: {text} is not more than zero")
    allowed = traits_of(vendor).modes
    if spec.mode not in allowed:
        known = ", ".join(mode for mode in allowed if mode) or "none"
        raise InvalidDocument(
            f"{where}: field spec.mode: {spec.mode} is no mode of {vendor} cards ({known})"
        )
    if spec.registers and vendor != NVIDIA.name:
        raise InvalidDocument(
            f"{where}: field spec.registers: {', '.join(spec.registers)} serve nvidia cards, these "
            f"are of {vendor}"
        )
    if spec.mode == "mig" and "hami" not in spec.registers:
        raise InvalidDocument(
            f"{where}: field spec.mode: HAMi's registration reports mig; add hami to registers"
        )


def node_of(
    name: str, model: str, cards: int, labels: dict[str, str] | None = None, **spec: Any
) -> SimulatedNode:
    """A node of a known model; `spec` has fields of `NodeSpec`."""
    return SimulatedNode(name, NodeSpec(model, cards, **spec), MODELS[model], labels or {})


DEFAULT_FLEET: Final[Sequence[SimulatedNode]] = (
    node_of("a100-0", "A100-SXM4-80GB", 8, rdma=RdmaCards(4, 8), cpu="128", host_memory="1Ti"),
    node_of("a100-1", "A100-SXM4-40GB", 4, registers=("hami",)),
    node_of("h100-0", "H100-80GB-HBM3", 8, cpu="192", host_memory="2Ti"),
    node_of("t4-0", "Tesla-T4", 4, registers=("qgpu",)),
    node_of("c500-0", "C500", 2, cpu="96"),
)
"""The default nodes."""

"""qGPU's report of a node: its cards by the node's totals, and objections to the node.

A node publishes the sums over its cards. If no Device object describes the cards, they are made from those sums, all
alike. Objections bind qGPU's own requests only.

Source: the qGPU document; docs/sources/qgpu.md 1.1, 1.3 and 1.4.
"""

from collections.abc import Iterable
from typing import Final

from partage.model.device import Device, DeviceType
from partage.model.node import Verdict
from partage.model.quantity import Quantity, decimal
from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.vendors.base import NodeView, Registration
from partage.vendors.families.qgpu.request import NAME
from partage.vendors.families.qgpu.rules import CARD, GIB, SHARERS
from partage.vendors.families.qgpu.support import (
    ARCHITECTURES,
    architecture_of,
    driver_problem,
    driver_version,
)
from partage.vendors.settings import Settings
from partage.vendors.traits import NVIDIA, traits_of
from partage.vendors.wishes import POLICIES, SHORT

_DISABLED: Final = frozenset({"disable", "false"})
_SYNTHETIC: Final = "qgpu-"
_MOST_CARDS: Final = 1024
"""More cards than any node has; greater totals are an error."""


def register(node: NodeView, _settings: Settings) -> Registration:
    """Cards from totals if nothing else describes them, and qGPU's verdicts; never raises.

    Unchecked facts become a property of every node with cards. Operators of nodes that publish qGPU's totals get a note
    of them.
    """
    notes: list[str] = []
    devices = None if node.devices else _from_totals(node, notes)
    cards = [d for d in (devices or node.devices) if _concerned(d)]
    if not cards:
        return Registration(notes=tuple(notes))
    verdicts, properties = _policy(node)
    supported, warnings = _support(node, cards)
    verdicts += supported
    if (text := node.labels.get(names.QGPU_ENABLE, "")).lower() in _DISABLED:
        why = f"label {names.QGPU_ENABLE} is {text!r}: sharing is switched off on the node"
        verdicts.append(Verdict(NAME, ReasonCode.NOT_SHAREABLE, why, sharing_only=True))
    if warnings:
        properties["qgpu-warning"] = "; ".join(warnings)
    registrar = NAME if names.QGPU_CORE in node.allocatable else ""
    return Registration(
        devices=devices,
        verdicts=tuple(verdicts),
        registrar=registrar,
        properties=properties,
        notes=(*notes, *warnings) if registrar else tuple(notes),
    )


def totals(devices: Iterable[Device]) -> dict[str, Quantity]:
    """A node's published totals with these cards: compute in percent, memory in whole GiB a card.

    Only healthy cards that qGPU may use count; each card's memory is rounded down on its own.
    """
    cards = [d for d in devices if _concerned(d) and d.healthy and NAME not in d.hidden_from]
    if not cards:
        return {}
    percent = decimal(CARD * len(cards))
    return {
        names.QGPU_CORE: percent,
        names.QGPU_MEMORY: decimal(sum(d.memory_bytes // GIB for d in cards)),
        names.QGPU_GREEDY: percent,
    }


def is_synthetic(uuid: str) -> bool:
    """Whether this module invented a card's identity, so that no driver knows it."""
    return uuid.startswith(_SYNTHETIC)


def _concerned(device: Device) -> bool:
    return device.type is DeviceType.GPU and traits_of(device.vendor) is NVIDIA


def _from_totals(node: NodeView, notes: list[str]) -> tuple[Device, ...] | None:
    core = node.allocatable.get(names.QGPU_CORE)
    if core is None or core.nano <= 0:
        return None
    count = core.floor() // CARD
    if not 1 <= count <= _MOST_CARDS or core.nano != count * CARD * 10**9:
        notes.append(f"{names.QGPU_CORE}: {core} is not {CARD} a card")
    if not 1 <= count <= _MOST_CARDS:
        return None
    memory = node.allocatable.get(names.QGPU_MEMORY)
    gib = max(0, memory.floor()) // count if memory is not None else 0
    if not gib:
        notes.append(f"{names.QGPU_MEMORY} is missing or below 1 GiB a card")
    return tuple(
        Device(
            type=DeviceType.GPU,
            minor=minor,
            uuid=f"{_SYNTHETIC}{node.name}-{minor}",
            vendor=NVIDIA.name,
            model=_labelled_model(node),
            memory_bytes=min(gib, 2**33 - 1) * GIB,
            slots=SHARERS,
        )
        for minor in range(count)
    )


def _labelled_model(node: NodeView) -> str:
    models = (node.labels.get(name, "") for name in names.QGPU_MODEL_LABELS)
    return next((model for model in models if model), "")


def _policy(node: NodeView) -> tuple[list[Verdict], dict[str, str]]:
    """The node's isolation policy by its full name; an unknown policy is an objection."""
    text = node.labels.get(names.QGPU_POLICY, "") or "be"
    policy = POLICIES.get(text)
    if policy is not None:
        return [], {"qgpu-policy": policy.value}
    allowed = ", ".join(f"{full} ({short})" for short, full in SHORT.items())
    message = f"label {names.QGPU_POLICY} is {text!r}; it must be one of {allowed}"
    return [Verdict(NAME, ReasonCode.NODE_POLICY, message)], {}


def _support(node: NodeView, cards: list[Device]) -> tuple[list[Verdict], list[str]]:
    """Objections by driver and architecture, and the unrecognised values."""
    problems: list[str] = []
    warnings: list[str] = []
    version = driver_version(node.labels)
    if version is None:
        warnings.append("qGPU: driver version unknown, not checked")
    elif problem := driver_problem(version):
        problems.append(problem)
    fallback = _labelled_model(node)
    for model in sorted({card.model or fallback for card in cards}):
        architecture = architecture_of(model)
        if architecture is None:
            warnings.append(f"qGPU: architecture of card model {model!r} unknown, not checked")
        elif architecture not in ARCHITECTURES:
            supported = ", ".join(ARCHITECTURES)
            problems.append(
                f"{model} is of architecture {architecture}; qGPU supports {supported}"
            )
    return [Verdict(NAME, ReasonCode.DRIVER_UNSUPPORTED, text) for text in problems], warnings

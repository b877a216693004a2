"""Makes the engine's initial cluster from all documents together.

A later document of the same kind, namespace and name replaces the earlier one, as applying both
would. Every pod gets a key of its own in the books. If two pods have the same uid, the second gets a
fault and its name as the key, and neither is lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.policy import Policy
from partage.model.quantity import Quantity
from partage.model.request import Fault
from partage.scheduler.events import Quotas
from partage.vendors.base import PlacedPod, Rendering
from partage.vendors.settings import Settings
from partage.wire import shapes
from partage.wire.claims import Claim, read_claim
from partage.wire.config import translate_config
from partage.wire.context import Context
from partage.wire.device_pools import bare_node, node_told
from partage.wire.device_requests import CLAIM_KINDS, claims_left_out, claims_named
from partage.wire.documents import Batch, Document
from partage.wire.identities import is_worldwide
from partage.wire.nodes import TranslatedNode, node_totals, translate_node
from partage.wire.pods import TranslatedPod, stable_uid, translate_pod
from partage.wire.quota import translate_quotas
from partage.wire.record import render
from partage.wire.recovery import recorded
from partage.wire.workloads import with_pods


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that the documents describe.

    Attributes:
        nodes: in the order written.
        pods: in the order written; a workload's pods are at the place of the workload.
        quotas: by namespace.
        policy: the policy of `partage-config`; None when there is none.
        context: the settings for reading pods; translates pods that arrive later.
        notes: skipped, replaced or odd documents.
        allocatable: node name to its own totals, as written.
        claims: ResourceClaims that hold devices, in the order written.
        claimants: pods that name ResourceClaims, as written, by the uid of the pod.
        offers: the sources of these pods' allocations: claims, templates, DeviceClasses and ResourceSlices.
    """

    nodes: tuple[Node, ...]
    pods: tuple[TranslatedPod, ...]
    quotas: Quotas
    policy: Policy | None
    context: Context
    notes: tuple[str, ...] = ()
    allocatable: Mapping[str, Mapping[str, Quantity]] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    claimants: Mapping[str, Document] = field(default_factory=dict)
    offers: tuple[Document, ...] = ()

    @property
    def settings(self) -> Settings:
        """The families' settings."""
        return self.context.settings

    def totals(self, node: Node) -> dict[str, str]:
        """The totals that a node would report, as texts by resource name."""
        return node_totals(node, self.allocatable.get(node.name, {}), self.settings)

    def render(self, placed: PlacedPod) -> Rendering:
        """The annotations, labels and environment for a pod's allocation."""
        return render(placed, self.settings, self.context.families)


def assemble(batches: Iterable[Batch]) -> Cluster:
    """The cluster of all documents. Raises `InvalidDocument`: a document cannot be decoded as its kind."""
    batches = list(batches)
    notes = [note for batch in batches for note in batch.notes]
    documents = _latest([d for batch in batches for d in batch.documents], notes)
    config = translate_config(documents, strict=False)
    quotas, quota_notes = translate_quotas(documents)
    notes += [*config.notes, *quota_notes]
    context = Context.of(config.settings)
    nodes = _nodes(documents, context)
    priorities, default, priority_notes = _priorities(documents)
    closed, twin_notes = twins_closed(one.node for one in nodes.values())
    nodes |= {one.name: replace(nodes[one.name], node=one) for one in closed}
    notes += priority_notes + twin_notes
    context = Context.of(
        config.settings,
        priorities=priorities,
        default_priority=default,
        registrars={translated.node.registrar for translated in nodes.values()},
    )
    claimants: dict[str, Document] = {}
    made = _latest(with_pods(documents), notes)
    pods = _pods(made, nodes, context, claimants)
    notes += [note for translated in nodes.values() for note in translated.notes]
    claims = _claims(documents, nodes)
    notes += [problem for claim in claims for problem in claim.problems]
    notes += claims_left_out(made)
    return Cluster(
        nodes=tuple(translated.node for translated in nodes.values()),
        pods=pods,
        quotas=quotas,
        policy=config.policy,
        context=context,
        notes=tuple(notes),
        allocatable={name: translated.allocatable for name, translated in nodes.items()},
        claims=claims,
        claimants=claimants,
        offers=tuple(one for one in made if one.kind in CLAIM_KINDS) if claimants else (),
    )


def _latest(documents: Sequence[Document], notes: list[str]) -> list[Document]:
    """One document an identity: the last one, at the place of the first one."""
    latest: dict[tuple[str, str, str], Document] = {}
    for document in documents:
        earlier = latest.get(document.identity)
        if earlier is not None:
            notes.append(f"{document.where}: replaces {earlier.source}: document {earlier.number}")
        latest[document.identity] = document
    return list(latest.values())


def _nodes(documents: Sequence[Document], context: Context) -> dict[str, TranslatedNode]:
    """Nodes by name, in the order written; a Device object or a ResourceSlice without a Node represents it."""
    named = {document.name: document for document in documents if document.kind == "Node"}
    devices = {document.name: document for document in documents if document.kind == "Device"}
    names = dict.fromkeys(
        document.name if document.kind == "Node" else name
        for document in documents
        if document.kind == "Node" or ((name := node_told(document)) and name not in named)
    )
    for document in documents:
        name = node_told(document)
        if name and name not in devices:
            named.setdefault(name, bare_node(name, document))
    return {name: translate_node(named.get(name), devices.get(name), context) for name in names}


def twins_closed(nodes: Iterable[Node]) -> tuple[list[Node], list[str]]:
    """Nodes that share a card's identity, with such cards closed, and notes on them.

    A card is in one machine. It is unknown which one has it, and records name cards by UUID.
    """
    known = {node.name: node for node in nodes}
    places: dict[str, list[str]] = {}
    for name, node in known.items():
        for device in node.devices:
            if device.type is not DeviceType.GPU or not is_worldwide(device.uuid):
                continue
            if name not in places.setdefault(device.uuid, []):
                places[device.uuid].append(name)
    twins = {uuid: names for uuid, names in places.items() if len(names) > 1}

    def closed(device: Device, here: str) -> Device:
        others = [name for name in twins.get(device.uuid, ()) if name != here]
        if not others or device.type is not DeviceType.GPU:
            return device
        return replace(
            device, healthy=False, health_detail=f"uuid is also on node {', '.join(others)}"
        )

    concerned = dict.fromkeys(name for names in twins.values() for name in names)
    return [
        replace(known[name], devices=tuple(closed(one, name) for one in known[name].devices))
        for name in concerned
    ], [
        f"uuid {uuid} is on nodes {', '.join(names)}; these cards are closed"
        for uuid, names in twins.items()
    ]


def _priorities(documents: Sequence[Document]) -> tuple[dict[str, int], int, list[str]]:
    """Values of priority classes, the value for pods that name none, and notes."""
    values: dict[str, int] = {}
    defaults: list[tuple[int, str]] = []
    for document in documents:
        if isinstance(document.shape, shapes.PriorityClass):
            values[document.name] = document.shape.value or 0
            if document.shape.global_default:
                defaults.append((values[document.name], document.name))
    if not defaults:
        return values, 0, []
    value, name = min(defaults)
    notes = []
    if len(defaults) > 1:
        # Kubernetes does the same if two such classes exist: the lowest value holds.
        notes.append(f"{len(defaults)} priority classes are the global default; {name} holds")
    return values, value, notes


def _pods(
    documents: Sequence[Document],
    nodes: Mapping[str, TranslatedNode],
    context: Context,
    claimants: dict[str, Document],
) -> tuple[TranslatedPod, ...]:
    result: list[TranslatedPod] = []
    holders: dict[str, str] = {}
    for document in documents:
        if document.kind != "Pod":
            continue
        translated = _with_record(translate_pod(document, context), nodes, context)
        if translated.pod.uid in holders:
            translated = _rekeyed(translated, holders[translated.pod.uid])
        holders[translated.pod.uid] = translated.pod.key
        if claims_named(document):
            claimants[translated.pod.uid] = document
        result.append(translated)
    return tuple(result)


def _claims(
    documents: Sequence[Document], nodes: Mapping[str, TranslatedNode]
) -> tuple[Claim, ...]:
    """Claims that hold devices of this driver, or may hold some."""
    known = {name: translated.node for name, translated in nodes.items()}
    found = (
        read_claim(document, known.get)
        for document in documents
        if document.kind == "ResourceClaim"
    )
    return tuple(claim for claim in found if claim.records or claim.problems)


def _with_record(
    translated: TranslatedPod, nodes: Mapping[str, TranslatedNode], context: Context
) -> TranslatedPod:
    """The pod with the record of its annotations, if it is bound and still runs."""
    pod = translated.pod
    if pod.node is None or pod.finished:
        return translated
    known = nodes.get(pod.node)
    node = known.node if known else Node(pod.node)
    record = recorded(translated.view, pod.request, node, context)
    return replace(translated, pod=replace(pod, record=record))


def _rekeyed(translated: TranslatedPod, holder: str) -> TranslatedPod:
    pod, view = translated.pod, translated.view
    uid = stable_uid(pod.namespace, "Pod", pod.name, index=1)
    request = replace(pod.request, fault=Fault(f"uid {pod.uid} is already used by {holder}"))
    return TranslatedPod(replace(pod, uid=uid, request=request), replace(view, uid=uid))

"""`partage doctor`: finds errors in the setup of a cluster or a node, and suggests repairs."""

import asyncio
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

import click
import msgspec
from rich.text import Text

from partage.cli.alike_nodes import KINDS, alike
from partage.cli.asking import HEARD, CannotAsk, told_of
from partage.cli.ending import end
from partage.cli.parameters import cluster_options, file_option, flag, option, output_option
from partage.cli.patience import patience
from partage.cli.structured import structured
from partage.cli.tables import paper
from partage.cli.visible import noted
from partage.daemon.watched import DEVICES, RESOURCE_CLAIMS, as_document, watched
from partage.doctor.checks import diagnosed
from partage.doctor.finding import ClusterFacts, Finding, Level, Object, named, ours
from partage.doctor.machine import examined
from partage.doctor.scheduler_config import KIND, configuration_in
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.kube.client import Client
from partage.kube.errors import ConfigError, Forbidden, KubeError, NotFound, NotServed
from partage.kube.loading import load_config
from partage.kube.resources import CONFIG_MAPS, LEASES, NODES, PODS, Resource, Scope
from partage.kube.sender import ClientSettings
from partage.model.errors import InvalidDocument
from partage.model.node import Node
from partage.model.reason import ReasonCode
from partage.scheduler.events import Event, NodeSeen, PodSeen
from partage.vendors import names
from partage.webhook.installation import MUTATE, VALIDATE
from partage.wire import shapes
from partage.wire.claims import held_devices
from partage.wire.config import keys_read, node_config_of
from partage.wire.documents import Document, read_file
from partage.wire.silence import LEASE_NAMESPACE, LEASE_PREFIX

FOUND: Final = 3
_CONFIG_OPTION: Final = "--config-namespace="
_NAME_OPTION: Final = "--config-name="


def _unnamespaced(group: str, plural: str) -> Scope:
    return Scope(Resource(group, "v1", plural, namespaced=False))


_REGISTRATION: Final = "admissionregistration.k8s.io"
_DRA: Final = "resource.k8s.io"
_SCOPES: Final = {
    "Pod": Scope(PODS),
    "Node": Scope(NODES),
    "ConfigMap": Scope(CONFIG_MAPS),
    "Device": Scope(DEVICES),
    "MutatingWebhookConfiguration": _unnamespaced(_REGISTRATION, "mutatingwebhookconfigurations"),
    "ValidatingWebhookConfiguration": _unnamespaced(
        _REGISTRATION, "validatingwebhookconfigurations"
    ),
    "RuntimeClass": _unnamespaced("node.k8s.io", "runtimeclasses"),
    "ResourceClaim": Scope(RESOURCE_CLAIMS),
    "ResourceClaimTemplate": Scope(Resource(_DRA, "v1", "resourceclaimtemplates")),
    "ResourceSlice": _unnamespaced(_DRA, "resourceslices"),
    "DeviceClass": _unnamespaced(_DRA, "deviceclasses"),
    "Lease": Scope(LEASES, LEASE_NAMESPACE),
}
_MOST_BYTES: Final = 2**22
_NEEDED: Final = frozenset({"Pod", "Node"})


class Right(NamedTuple):
    """A request that an account may make; of one object only, if it has a name."""

    verb: str
    group: str
    resource: str
    part: str = ""
    name: str = ""


_READ_CONFIGS: Final = Right("list", "", "configmaps")
_RIGHTS: Final = (
    Right("list", "", "pods"),
    Right("watch", "", "pods"),
    Right("list", "", "nodes"),
    Right("patch", "", "nodes", "status"),
    Right("list", "scheduling.koordinator.sh", "devices"),
    Right("create", "", "pods", "binding"),
    Right("create", "", "events"),
)
_RIGHTS_OF_CLAIMS: Final = tuple(
    Right(verb, "resource.k8s.io", "resourceclaims") for verb in ("list", "watch", "patch")
)
"""With `--claims`; without the last a new leader waits for a minute before it serves."""
_ASKED: Final = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_SYSTEM: Final = "kube-system"
_COMPONENT: Final = "app.kubernetes.io/component"
_ACCOUNT: Final = "system:serviceaccount:partage-system:partage-scheduler"

_SETTINGS: Final = ("ConfigMap ", "ResourceQuota ")
_MISTAKES: Final = frozenset(
    {ReasonCode.NODE_POLICY, ReasonCode.MODE_MISMATCH, ReasonCode.QUARANTINED}
)
"""Codes of verdicts that close a node until an operator corrects it."""

_EMBEDDED: Final = "+partage"
"""Suffix of the embedded API server's version."""


class _Part(TypedDict, total=False):
    """The fields read of an object and its parts, all names in one place."""

    metadata: "_Part"
    spec: "_Part"
    status: "_Part"
    name: Any
    namespace: Any
    labels: Any
    annotations: Any
    allocatable: Any
    conditions: Any
    driver: Any
    nodeName: Any
    pool: Any


class _Entry(TypedDict, total=False):
    id: Any
    type: Any
    health: Any
    minor: Any


class _Devices(TypedDict, total=False):
    devices: list[_Entry]


class _Device(TypedDict, total=False):
    metadata: _Part
    spec: _Devices


_LARGE: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    "Node": msgspec.json.Decoder(_Part),
    "Device": msgspec.json.Decoder(_Device),
    "ResourceSlice": msgspec.json.Decoder(_Part),
}
"""For kinds with long lists, the fields that checks read; other fields are not decoded."""
_ALL: Final = msgspec.json.Decoder(dict[str, Any])
_DECIDING: Final = {
    one.kind: msgspec.json.Decoder(one.into)
    for one in watched(claims=True)
    if one.kind != "ResourceQuota"
}
"""Kinds for the service's books, in the order of reading."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Objects of one kind.

    Attributes:
        objects: each with the fields that checks read; None if they could not be read.
        documents: the same in the form for the service's books; like the service, it omits unreadable ones.
        note: reason why there are none.
    """

    objects: list[dict[str, Any]] | None = None
    documents: list[Document] = field(default_factory=list)
    note: str = ""


@click.command()
@cluster_options
@option(
    "--account",
    metavar="USER",
    help="Check the rights of this account. Default: that of the scheduler service's pods.",
)
@file_option(
    "--scheduler-config",
    "configs",
    multiple=True,
    help="A KubeSchedulerConfiguration that no ConfigMap holds. May be repeated.",
)
@flag("--node", "on_node", help="Examine the node this runs on, from its files.")
@option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    metavar="FOLDER",
    help="The node's file system, with --node.",
)
@output_option("How to print the findings.")
def doctor(**given: Any) -> None:
    """Find faults in the setup, each with its rule and its repair.

    Reads the cluster of your kubeconfig and changes nothing. With --node it reads the files of a
    node instead: containerd's configuration, the kubelet's, CDI descriptions.

    \b
    Examples:
      partage doctor
      partage doctor --context staging -o json
      sudo partage doctor --node

    \b
    Exit status:
      0  nothing was found
      2  the cluster cannot be read; one line says why and what to try
      3  something was found
    """  # noqa: D301 # click wants the control character itself
    notes: list[str] = []
    if given["root"] != Path("/") and not given["on_node"]:
        raise click.UsageError("--root needs --node; add it, or leave --root out")
    try:
        if given["on_node"]:
            found = list(examined(given["root"]))
        else:
            with patience("asking the API server"):
                found = asyncio.run(_diagnosed(given, notes))
    except (CannotAsk, ConfigError, InvalidDocument) as error:
        end(error)
    data = {"findings": [asdict(one) for one in found], "notes": notes}
    if not structured(given["output"], data):
        _print(found)
    noted(notes)
    sys.exit(FOUND if found else 0)


def _print(found: list[Finding]) -> None:
    with paper() as console:
        for one in found:
            style = "red" if one.level is Level.ERROR else "yellow"
            console.print(
                Text(f"{one.level}: {one.check}", style=f"bold {style}").append(
                    f"  {one.thing}", style="default"
                )
            )
            console.print(Text(f"  {one.rule}"))
            console.print(Text("  fix: ", style="bold").append(one.fix, style="not bold"))
            console.print()
        errors = sum(one.level is Level.ERROR for one in found)
        warnings = len(found) - errors
        console.print(
            f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
        )


# --- gathering -------------------------------------------------------------------------------


async def _diagnosed(given: Mapping[str, Any], notes: list[str]) -> list[Finding]:
    """The findings; the facts stay in here, because `asyncio.run` would write them out as text (`signal.signal`)."""
    return diagnosed(await _gathered(given, notes))


async def _gathered(given: Mapping[str, Any], notes: list[str]) -> ClusterFacts:
    files = {str(path): _read_configuration(path) for path in given["configs"]}
    config = load_config(os.environ, kubeconfig=given["kubeconfig"], context=given["context"])
    try:
        async with Client(
            config, settings=ClientSettings(HEARD, attempts=2), environ=os.environ
        ) as client:
            told = await asyncio.gather(*(_listed(client, kind) for kind in _SCOPES))
            cluster = dict(zip(_SCOPES, told, strict=True))
            notes += [one.note for one in told if one.note]
            objects = {kind: some.objects for kind, some in cluster.items()}
            programs = _programs(objects, _operated(objects))
            account = given["account"] or account_of(programs)
            denied = await _denied(client, account, rights_of(programs), notes)
            embedded = await _embedded(client)
    except KubeError as error:
        raise CannotAsk(told_of(error)) from error
    if embedded:
        notes.append(
            "this is partage up, whose scheduler and admission are in its own process: their installation is not checked"
        )
    return replace(facts_of(cluster, datetime.now(UTC), denied, files), embedded=embedded)


async def _embedded(client: Client) -> bool:
    """Whether the API server is that of `partage up`."""
    try:
        told = await client.read("/version", into=dict[str, Any])
    except KubeError:
        return False
    return str(told.get("gitVersion", "")).endswith(_EMBEDDED)


async def _listed(client: Client, kind: str) -> Listed:
    try:
        found = (await client.list_all(_SCOPES[kind], into=msgspec.Raw)).items
    except (NotFound, NotServed):
        found = ()
    except Forbidden:
        if kind in _NEEDED:
            raise
        note = f"you may not list objects of kind {kind}: checks of them are left out"
        return Listed(note=note)
    return listed(kind, found)


def listed(kind: str, items: Iterable[bytes | msgspec.Raw]) -> Listed:
    """Objects of one kind, in the API server's form."""
    objects, documents = [], []
    deciding = _DECIDING.get(kind)
    for one in items:
        objects.append(_read(kind, one))
        if deciding is not None:
            with suppress(msgspec.ValidationError):
                documents.append(as_document(kind, deciding.decode(one)))
    return Listed(objects, documents)


def _read(kind: str, item: bytes | msgspec.Raw) -> dict[str, Any]:
    with suppress(msgspec.ValidationError):
        return dict(_LARGE.get(kind, _ALL).decode(item))
    return _ALL.decode(item)  # for a field that is null, or of another type


def account_of(pods: Iterable[Object]) -> str:
    """The account of the scheduler service, by its first pod; the chart's usual one without pods."""
    for pod in pods:
        meta, spec = pod.get("metadata", {}), pod.get("spec", {})
        if ours(pod) and (meta.get("labels") or {}).get(_COMPONENT) == "scheduler":
            return (
                f"system:serviceaccount:{meta.get('namespace')}:{spec.get('serviceAccountName')}"
            )
    return _ACCOUNT


def rights_of(pods: Sequence[Object]) -> tuple[Right, ...]:
    """Rights that the scheduler service needs by its pods' options."""
    counting = any("--claims" in words for words in _arguments(pods))
    named_ = _options(pods, _NAME_OPTION)
    configs = [_READ_CONFIGS._replace(name=name) for name in named_] or [_READ_CONFIGS]
    return (*_RIGHTS, *configs, *(_RIGHTS_OF_CLAIMS if counting else ()))


def _arguments(pods: Iterable[Object]) -> Iterator[list[str]]:
    """The arguments of the scheduler service's containers."""
    for pod in pods:
        for container in pod.get("spec", {}).get("containers") or ():
            words = [str(one) for one in container.get("args") or ()]
            if words[:1] == ["scheduler"]:
                yield words


class _Review(msgspec.Struct, frozen=True):
    status: dict[str, Any] = {}


async def _denied(
    client: Client, account: str, needed: Iterable[Right], notes: list[str]
) -> tuple[str, ...]:
    """Missing rights of the account, by the API server's answer."""
    reviews = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)
    groups = ["system:serviceaccounts", "system:authenticated"]
    denied = []
    for verb, group, resource, part, name in needed:
        attributes = {"verb": verb, "group": group, "resource": resource, "subresource": part}
        if name:
            attributes["name"] = name
        if resource == "configmaps" and account.startswith("system:serviceaccount:"):
            attributes["namespace"] = account.split(":")[2]  # needed only there
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": account, "groups": groups, "resourceAttributes": attributes},
        }
        try:
            answer = await client.create(reviews, body, into=_Review)
        except KubeError:
            notes.append(
                "you may not review the rights of others: the scheduler's rights are not checked"
            )
            return ()
        if not answer.status.get("allowed"):
            denied.append(
                " ".join(filter(None, (verb, "/".join(filter(None, (resource, part))), name)))
            )
    return tuple(denied)


def facts_of(
    cluster: Mapping[str, Listed],
    now: datetime,
    denied: tuple[str, ...] = (),
    files: Mapping[str, Object] | None = None,
) -> ClusterFacts:
    """Facts from the API server's objects.

    Args:
        cluster: its objects by kind.
        denied: see `ClusterFacts`.
        files: kube-scheduler configurations outside ConfigMaps, by name.
    """
    objects = {kind: some.objects for kind, some in cluster.items()}
    operated = _operated(objects)
    programs = _programs(objects, operated)
    namespaces, read = (_options(programs, one) for one in (_CONFIG_OPTION, _NAME_OPTION))
    documents = [
        one
        for kind in _DECIDING
        if kind in cluster
        for one in cluster[kind].documents
        if kind != "ConfigMap" or not read or one.name in read
    ]
    books, seen = _books(documents, namespaces)
    problems = books.cluster_cache.problems
    entries = books.cluster_cache.pods.values()
    runtimes, classes = objects.get("RuntimeClass"), objects.get("DeviceClass")
    templates = objects.get("ResourceClaimTemplate")
    configs = [one for one in objects.get("ConfigMap") or () if _namespace(one) in operated]
    suspicions = books.engine.ledger.suspicions()
    return ClusterFacts(
        now=now,
        schedulers={**dict(_schedulers(configs)), **(files or {})},
        pods=objects.get("Pod") or [],
        programs=programs,
        nodes=objects.get("Node") or [],
        devices=objects.get("Device"),
        mutating=objects.get("MutatingWebhookConfiguration"),
        validating=objects.get("ValidatingWebhookConfiguration"),
        runtimes=None if runtimes is None else frozenset(named(one) for one in runtimes),
        classes=None if classes is None else frozenset(named(one) for one in classes),
        taken=tuple(
            (named(one), name)
            for one in classes or ()
            if (name := str((one.get("spec") or {}).get("extendedResourceName")))
            in books.cluster_cache.translation.context.owners
        ),
        slices=objects.get("ResourceSlice"),
        templates=None if templates is None else [one for one in templates if _translated(one)],
        denied=denied,
        agents=dict(_agents(objects.get("Lease") or ())),
        closed=tuple(
            (one.node, one.message)
            for one in suspicions.values()
            if "has no record" not in one.message
        ),
        twice=tuple(
            sorted(
                {
                    (held.node, f"{uuid} is allocated to {' and '.join(pods)}")
                    for held in books.engine.ledger.allocations()
                    for uuid, pods in books.engine.ledger.overbooked(held.uid).items()
                }
            )
        ),
        faults=tuple(
            (entry.pod.key, entry.pod.request.fault.message)
            for entry in entries
            if entry.pod.node is None
            and entry.pod.request.fault is not None
            and entry.pod.request.fault.code is not ReasonCode.SCHEDULING_GATED
        ),
        refused=tuple((name, why) for name, why in problems.items() if _setting(name)),
        # By name, because which node is read first differs between many alike and each by itself.
        unusable=tuple(
            sorted(
                [
                    *((name, why) for name, why in problems.items() if not _setting(name)),
                    *_closed_nodes(seen, problems),
                ]
            )
        ),
        node_configs=tuple(
            (f"{one.namespace}/{one.name}", text)
            for one in documents
            if (not namespaces or one.namespace in namespaces) and (text := node_config_of(one))
        ),
        unread=tuple(
            (f"ConfigMap {one.namespace}/{one.name}", ", ".join(namespaces))
            for one in documents
            if namespaces and one.namespace not in namespaces and keys_read(one)
        ),
        unrecorded=tuple(
            entry.pod.key
            for entry in entries
            if entry.pod.node is not None
            and not entry.pod.finished
            and entry.pod.record is None
            and entry.pod.request.may_use
        ),
        known=frozenset(name for name, node in seen.items() if node.devices),
        missed={
            one.name: missed
            for one in documents
            if one.kind == "Node"
            and one.label not in problems  # else its devices are not known
            and (missed := _missed(one, seen.get(one.name)))
        },
    )


def _missed(document: Document, node: Node | None) -> tuple[str, ...]:
    """UUIDs that an operator closes on a node, and that no device there has."""
    closed = document.annotations.get(names.HAMI_CORDON, "").split(",")
    own = {device.uuid for device in node.devices} if node else set()
    return tuple(uuid for one in closed if (uuid := one.strip()) and uuid not in own)


def _setting(label: str) -> bool:
    return label.startswith(_SETTINGS)


def _closed_nodes(
    seen: Mapping[str, Node], problems: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Nodes that a mistake in their labels or registration closes, with the mistake."""
    for name, node in seen.items():
        for one in node.verdicts:
            if one.code in _MISTAKES and f"Node {name}" not in problems:
                yield f"Node {name}", one.message


def _translated(template: Object) -> bool:
    """Whether the scheduler service made a template."""
    labels = template.get("metadata", {}).get("labels") or {}
    return bool(labels.get(names.CLAIMS_LABEL) == names.CLAIMS_TRANSLATE)


def _agents(leases: Iterable[Object]) -> Iterator[tuple[str, datetime]]:
    """Time of the last renewal of each node's agent."""
    for lease in leases:
        name = str(lease.get("metadata", {}).get("name", ""))
        moment = lease.get("spec", {}).get("renewTime")
        if name.startswith(LEASE_PREFIX) and moment:
            with suppress(ValueError):
                yield name.removeprefix(LEASE_PREFIX), datetime.fromisoformat(str(moment))


def _options(pods: Iterable[Object], option: str) -> tuple[str, ...]:
    """What the scheduler service's pods are given by an option, in order of the alphabet; empty without it."""
    given = (one for words in _arguments(pods) for one in words)
    return tuple(sorted({one.removeprefix(option) for one in given if one.startswith(option)}))


def _books(
    documents: list[Document], namespaces: tuple[str, ...]
) -> tuple[Books, Mapping[str, Node]]:
    """The books of all allocations, and all nodes by name.

    The books omit nodes without allocations, and of many alike ones only one is read. Such nodes cause no finding in
    the books, and most nodes of a cluster with much room are like this.
    """
    books = Books(ClusterCache(namespaces=namespaces), Hooks())
    cache = books.cluster_cache
    nodes: dict[str, list[Document]] = {}
    for one in documents:
        if one.kind in KINDS:
            nodes.setdefault(one.name, []).append(one)
    like = alike(nodes)
    unread = set(like)
    events: list[Event] = []

    def read(names_: Iterable[str]) -> None:
        for name in names_:
            if name in unread:
                unread.remove(name)
                events.extend(event for one in nodes[name] for event in cache.changed(one))

    for one in documents:
        if one.kind not in KINDS or one.name not in like:
            read(_holding(one, cache))
            events += cache.changed(one)
    read([name for name, first in like.items() if f"Node {first}" in cache.problems])
    held = {event.pod.node for event in events if isinstance(event, PodSeen)}
    books.digest(
        event for event in events if not isinstance(event, NodeSeen) or event.node.name in held
    )
    seen = {event.node.name: event.node for event in events if isinstance(event, NodeSeen)}
    return books, seen | {name: seen[first] for name, first in like.items() if first in seen}


def _holding(document: Document, cache: ClusterCache) -> Iterator[str]:
    """Nodes on which a pod or a claim holds devices; these are read before the pod or claim."""
    shape = document.shape
    if isinstance(shape, shapes.Pod):
        if shape.spec and shape.spec.node_name and cache.translation.concerns(document):
            yield shape.spec.node_name
    elif isinstance(shape, shapes.ResourceClaim):
        for one in held_devices(document):
            yield str(one.get("pool"))


def _operated(objects: Mapping[str, Sequence[Object] | None]) -> frozenset[str]:
    """Namespaces in which only operators make objects: the system's, and those of the webhook that API servers ask.

    In any other namespace a tenant may have made objects to suppress a finding. If the webhook's configuration
    cannot be listed, Partage's namespaces are those of pods with its labels.
    """
    configurations = [objects.get(kind) for kind in _ASKED]
    if all(some is None for some in configurations):
        found = {_namespace(pod) for pod in objects.get("Pod") or () if ours(pod)}
    else:
        found = {
            str(((hook.get("clientConfig") or {}).get("service") or {}).get("namespace"))
            for some in configurations
            for one in some or ()
            for hook in one.get("webhooks") or ()
            if hook.get("name") in (MUTATE, VALIDATE)
        }
    return frozenset(found | {_SYSTEM})


def _programs(
    objects: Mapping[str, Sequence[Object] | None], operated: Collection[str]
) -> list[Object]:
    """Pods that operators made."""
    return [pod for pod in objects.get("Pod") or () if _namespace(pod) in operated]


def _namespace(one: Object) -> str:
    return str(one.get("metadata", {}).get("namespace", ""))


def _schedulers(configs: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    """Configurations of kube-schedulers in ConfigMaps."""
    for one in configs:
        for key, text in (one.get("data") or {}).items():
            if KIND in text:
                with suppress(InvalidDocument):
                    where = f"ConfigMap {named(one)}: {key}"
                    yield where, configuration_in(where, text.encode())


def _read_configuration(path: Path) -> Object:
    """The configuration in a file. Raises `InvalidDocument`: it is unreadable, or has none."""
    try:
        data = read_file(path, _MOST_BYTES)
    except OSError as error:
        raise InvalidDocument(f"{path}: {error.strerror or error}") from error
    return configuration_in(str(path), data)

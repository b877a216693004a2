"""Checks that nodes report their devices, once, and that pods can run on them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from partage.agent.notes import Code, read_notes
from partage.doctor.finding import ClusterFacts, Finding, Object, error, named, ours, some, warning
from partage.vendors import names
from partage.vendors.traits import ROWS, files_known
from partage.wire.identities import is_worldwide

_PLUGINS: Final = "/var/lib/kubelet/device-plugins"
_RIVALS: Final = (
    "nvidia-device-plugin",
    "k8s-device-plugin",
    "hami-device-plugin",
    "volcano-vgpu",
    "qgpu-manager",
    "gpu-manager",
)
_SILENT: Final = 5
"""Minutes; the clocks of two machines may differ by some."""
_LONG: Final = 400
_NOTED: Final[Mapping[str, str]] = {
    Code.DRIVER_UNTRIED: "nothing, if limits hold on such a node (run bench/gpu.py on an idle card); "
    "else run shares on nodes with a driver that was tried, or use hardware instances",
    Code.ISOLATION_FILES: "let the agent mount where the host sees it, as the chart does; until then "
    "containers write these files to the node's disk",
    Code.JOURNAL_DAMAGED: "check the node's disk; the agent records again the containers that the runtime still has",
    Code.DISCOVERY: "check the driver on that node: partage discover shows what it finds there",
    Code.INSTANCES: "check the card with nvidia-smi on that node; until then the agent makes no hardware instance on it",
    Code.UNITS_LEFT_OUT: "let fewer pods share a card of that node (deviceSplitCount), or leave it so: the agent "
    "does not offer the other units to the kubelet",
    Code.MPS: "check the driver on that node, and its log in /run/partage/mps/log; until then containers with shares do not start "
    "there",
    Code.RESOURCE_SLICES: "switch the feature gate on, in the API server, kube-scheduler, kube-controller-manager and kubelets "
    "alike; until then claims get nothing that would need it",
    Code.DEVICE_FIELDS: "apply Koordinator's newer definition of Devices; the agent writes all fields within the hour",
    Code.OTHER_PLUGIN: "take the other plugin's DaemonSet off that node (second-plugin); the agent has the name again two minutes "
    "later",
    Code.DISAGREEMENT: "run partage doctor --node there: it names the remedies; docs/reference/agent.md lists the kinds",
}
"""Remedies by code."""
_COUNTS: Final = (
    *(name for row in ROWS for name in (*row.counts, *row.wakes)),
    names.QGPU_CORE,
    names.KOORD_GPU_CORE,
)


def _allocatable(node: Object) -> dict[str, Any]:
    return dict(node.get("status", {}).get("allocatable") or {})


def devices(facts: ClusterFacts) -> Iterator[Finding]:
    """Device objects and nodes belong together, and no node's devices are unknown."""
    nodes = {str(node["metadata"]["name"]): node for node in facts.nodes}
    for one in facts.devices or ():
        node = nodes.get(named(one))
        if node is None:
            yield warning(
                "device-stale",
                f"Device {named(one)}",
                "a Device object must have its node; there is none of this name, so it is left over",
                f"kubectl delete devices.scheduling.koordinator.sh {named(one)}",
            )
        elif not _ready(node):
            yield warning(
                "device-stale",
                f"Device {named(one)}",
                "its node is not Ready, so its agent renews nothing",
                f"kubectl describe node {named(one)}, and look at its kubelet and agent",
            )
    if facts.agents and nodes and not facts.known and facts.devices is not None:
        yield warning(
            "no-cards",
            f"agents on {len(facts.agents.keys() & nodes.keys())} of {len(nodes)} nodes",
            "at least one of them must find a card, and none does: every pod with devices waits",
            "check the driver on the nodes, and its folder there (agent.discovery.libraries of the chart); partage discover on a "
            "node shows what it finds",
        )
    for name, node in nodes.items():
        offered = [key for key in _COUNTS if str(_allocatable(node).get(key, "0")) != "0"]
        if offered and name not in facts.known:
            yield error(
                "node-unlabelled",
                f"node {name}",
                f"it offers {', '.join(offered)}, yet neither a Device object, a registration nor "
                "labels say which cards it has, so no pod is placed on it",
                "run Partage's agent there: check the label that its DaemonSet selects nodes by",
            )


def twins(facts: ClusterFacts) -> Iterator[Finding]:
    """Every card is on one node."""
    places: dict[str, list[str]] = defaultdict(list)
    for one in facts.devices or ():
        entries = one.get("spec", {}).get("devices") or ()
        for uuid in {str(it.get("id") or "") for it in entries if it.get("type") == "gpu"}:
            places[uuid].append(named(one))
    shared: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for uuid, nodes in places.items():
        if is_worldwide(uuid) and len(nodes) > 1:
            shared[tuple(nodes)].append(uuid)
    for both, uuids in shared.items():
        yield warning(
            "card-on-two-nodes",
            f"nodes {some(both)}",
            f"a card is in one machine, but several nodes report {some(sorted(uuids))}, so "
            "pods get it on each of them",
            "delete the Node and the Device that are left over of a machine with another name; machines that were "
            "copied need a driver that reports their own cards",
        )


def cordons(facts: ClusterFacts) -> Iterator[Finding]:
    """Every UUID that an operator closes is one of the node's cards."""
    for name, missed in facts.missed.items():
        yield warning(
            "cordon-unknown",
            f"node {name}",
            f"its annotation {names.HAMI_CORDON} names {some(missed)}, the UUID of no device there, so it closes none",
            "partage top cards -o wide lists the UUIDs; write that of the card, or take the annotation away",
        )


def files(facts: ClusterFacts) -> Iterator[Finding]:
    """A container can get the cards of a Device object."""
    for one in facts.devices or ():
        vendor = str((one["metadata"].get("labels") or {}).get(names.GPU_VENDOR, "")).lower()
        if _has_cards(one) and not files_known(vendor):
            yield error(
                "device-files-unknown",
                f"Device {named(one)}",
                f"the device files that a container needs for cards of {vendor} is not known, so no pod gets one "
                "of them (DeviceFilesUnknown)",
                f"correct label {names.GPU_VENDOR} of the Device object, or add the vendor's row "
                "(partage/vendors/traits.py)",
            )


def _ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    return not any(c.get("type") == "Ready" and c.get("status") != "True" for c in conditions)


def totals(facts: ClusterFacts) -> Iterator[Finding]:
    """Nodes with Device objects report totals in both dialects, from one writer."""
    reported = _with_cards(facts)
    for node in facts.nodes:
        if named(node) in reported:
            yield from islice(_unlike(node), 1)


def _unlike(node: Object) -> Iterator[Finding]:
    """Totals that one dialect lacks, or gives in another amount. Cards that count their own cores have no gpu-core."""
    have = _allocatable(node)
    for name in (names.KOORD_GPU_CORE, names.KOORD_GPU_MEMORY_RATIO):
        older = names.KUBERNETES_DOMAIN + name.removeprefix(names.KOORDINATOR_DOMAIN)
        new, old = have.get(name), have.get(older)
        if new is None and old is None and name == names.KOORD_GPU_CORE:
            continue
        if new is None or old is None:
            yield error(
                "totals-missing",
                f"node {named(node)}",
                f"its status must report {name if new is None else older}, and does not, so kube-scheduler and kubelet "
                "refuse pods that ask for it",
                "wait some seconds if the agent has just started; else run partage scheduler with --controllers and --node-totals, and see its log",
            )
        elif str(new) != str(old):
            yield error(
                "totals-contended",
                f"node {named(node)}",
                f"both dialects must report the same: {name} is {new}, {older} is "
                f"{old}; a second controller writes one of them",
                "stop the other one (koord-manager), or start ours with --no-node-totals",
            )


def _with_cards(facts: ClusterFacts) -> set[str]:
    return {named(one) for one in facts.devices or () if _has_cards(one)}


def _has_cards(device: Object) -> bool:
    """Whether any card accepts pods; a node of closed cards reports nothing."""
    return any(
        entry.get("type") == "gpu" and entry.get("health")
        for entry in device.get("spec", {}).get("devices") or ()
    )


def agents(facts: ClusterFacts) -> Iterator[Finding]:
    """The agent that reports a node's devices is running."""
    nodes = {str(node["metadata"]["name"]) for node in facts.nodes}
    for name in sorted(facts.agents.keys() & nodes):
        minutes = (facts.now - facts.agents[name]).total_seconds() / 60
        if minutes > _SILENT:
            yield error(
                "agent-silent",
                f"node {name}",
                f"its agent renews a Lease every few seconds, and last did {minutes:.0f} minutes ago: "
                "the facts about its devices are as old, and containers that start there are not "
                "served, so the node takes no new pods with devices (AgentSilent)",
                f"look at the pod of Partage's agent on {name}, and whether that node reaches the API server; if none "
                f"should run there: kubectl -n kube-node-lease delete lease partage-agent-{name}",
            )


def noted(facts: ClusterFacts) -> Iterator[Finding]:
    """Notes of nodes' agents about themselves."""
    for node in facts.nodes:
        text = (node["metadata"].get("annotations") or {}).get(names.AGENT_NOTES, "")
        for note in read_notes(str(text)) if text else ():
            fix = _NOTED.get(note.code, f"see the log of Partage's agent on {named(node)}")
            yield warning(
                "agent-note",
                f"node {named(node)}",
                f"its agent reports: {note.code}: {note.message[:_LONG]}",
                fix,
            )


def plugins(facts: ClusterFacts) -> Iterator[Finding]:
    """One device plugin for each name: no other vendor's plugin beside our agent."""
    beside: dict[str, list[str]] = defaultdict(list)
    agents: set[str] = set()
    for pod in facts.pods:
        spec = pod.get("spec", {})
        volumes = spec.get("volumes") or ()
        paths = [str((one.get("hostPath") or {}).get("path", "")) for one in volumes]
        if not any(path.rstrip("/").startswith(_PLUGINS) for path in paths):
            continue
        images = " ".join(str(one.get("image", "")) for one in spec.get("containers") or ())
        node = str(spec.get("nodeName", ""))
        if "partage" in images or ours(pod):
            agents.add(node)
        elif any(rival in images for rival in _RIVALS):
            beside[node].append(named(pod))
    for node in sorted(beside.keys() & agents):
        yield error(
            "second-plugin",
            f"node {node}",
            f"{', '.join(beside[node])} advertises the same resource names as Partage's agent; the "
            "kubelet takes the one that registered last, and devices are allocated twice",
            "remove the other DaemonSet from nodes with Partage's agent",
        )


def units(facts: ClusterFacts) -> Iterator[Finding]:
    """No kubelet still counts a resource whose device plugin is gone."""
    reported = _with_cards(facts)
    for node in facts.nodes:
        have = _allocatable(node)
        gone = [
            key for key in _COUNTS if key != names.KOORD_GPU_CORE and str(have.get(key)) == "0"
        ]
        if gone and named(node) in reported:
            yield error(
                "units-gone",
                f"node {named(node)}",
                f"its kubelet has 0 of {', '.join(gone)}, as after a device plugin that is gone, and ends pods that ask for "
                "them (UnexpectedAdmissionError)",
                "let the agent serve them (agent.devicePlugin.enabled), or restart the kubelet where no plugin should serve them",
            )


def runtimes(facts: ClusterFacts) -> Iterator[Finding]:
    """Runtime classes in pods exist."""
    if facts.runtimes is None:
        return
    wanted: dict[str, list[str]] = defaultdict(list)
    for pod in facts.pods:
        name = pod.get("spec", {}).get("runtimeClassName")
        if name and name not in facts.runtimes:
            wanted[str(name)].append(named(pod))
    for name, pods in wanted.items():
        yield error(
            "runtime-class",
            f"RuntimeClass {name}",
            f"{len(pods)} pods name it and it is not there: {', '.join(pods[:3])}",
            f"create RuntimeClass {name}, or take runtimeClassName out of the pods and the agent's chart value",
        )


def closed(facts: ClusterFacts) -> Iterator[Finding]:
    """No capacity is in quarantine."""
    for node, message in facts.closed:
        yield error(
            "quarantine",
            f"node {node}",
            f"capacity is closed because a record cannot be trusted: {message}",
            "see partage explain of that pod; it opens when the pod is gone or its record agrees",
        )


def twice(facts: ClusterFacts) -> Iterator[Finding]:
    """No card is allocated beyond its capacity."""
    for node, message in facts.twice:
        yield error(
            "card-given-twice",
            f"node {node}",
            f"records of pods must not add up to more than the card has: {message}; it takes "
            "no new pod until this is resolved",
            "stop the other system that allocates cards (other-scheduler, second-plugin), then delete one of "
            "these pods",
        )


def faults(facts: ClusterFacts) -> Iterator[Finding]:
    """No pod mixes names or breaks a rule of its protocol."""
    for pod, rule in facts.faults:
        yield warning(
            "pod-request",
            f"pod {pod}",
            f"its request breaks a rule, so it will never start: {rule}",
            "write the names of one protocol in each container; see partage explain",
        )


def unusable(facts: ClusterFacts) -> Iterator[Finding]:
    """No node, pod or claim breaks a rule because of which pods wait."""
    things: dict[str, list[str]] = defaultdict(list)
    for thing, why in facts.unusable:
        things[why].append(thing)
    for why, those in things.items():
        yield error(
            "object-unusable",
            those[0] if len(those) == 1 else f"{those[0]} and {len(those) - 1} more",
            f"pods wait because of it: {why}",
            "correct the field that the rule names; it applies at once",
        )


def settings(facts: ClusterFacts) -> Iterator[Finding]:
    """No ConfigMap and no ResourceQuota was rejected."""
    for name, why in facts.refused:
        yield error(
            "config-refused",
            name,
            f"Partage refused it, and the former settings stay in force: {why}",
            "correct the field; it applies at once",
        )


def unread(facts: ClusterFacts) -> Iterator[Finding]:
    """Every ConfigMap with settings is in a namespace that is read."""
    for name, namespaces in facts.unread:
        yield error(
            "config-unread",
            name,
            f"ConfigMaps are read in {namespaces} only, because their writer decides which devices nodes "
            "have, so this one has no effect",
            f"apply it with -n {namespaces.split(', ', maxsplit=1)[0]} and delete this one, or add its namespace "
            "to the chart's configNamespaces",
        )

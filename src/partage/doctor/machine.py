"""Checks a node itself by its files under a root folder."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from partage.agent.differences import FINDINGS_FILE, Done, read_findings
from partage.agent.isolation.library import is_genuine
from partage.doctor.finding import Finding, Level, error, warning
from partage.model.errors import InvalidDocument
from partage.wire.yaml_values import yaml_values

_CONTAINERD: Final = "etc/containerd/config.toml"
_CHECKPOINT: Final = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
_KUBELET: Final = "var/lib/kubelet/config.yaml"
_STATIC: Final = "etc/kubernetes/manifests/kube-scheduler.yaml"
_CDI: Final = ("etc/cdi", "var/run/cdi")
_ISOLATION: Final = "var/lib/partage/isolation"
_FINDINGS: Final = f"var/lib/partage/agent/{FINDINGS_FILE}"
_WORSE: Final = frozenset({Done.EVICT, Done.REFUSE})
_RUN: Final = ("run", "var/run")
"""The same folder on a running node; the second's link may be broken under another root."""
_NRI: Final = "nri/nri.sock"
_PROXY: Final = "partage/cri.sock"
_RUNTIMES: Final = ("containerd/containerd.sock", "crio/crio.sock")
_FLAGS: Final = "var/lib/kubelet/kubeadm-flags.env"
_ENDPOINT: Final = re.compile(r"--container-runtime-endpoint[= ]([^\s\"']+)")
_SHOWN: Final = 300
_NEW: Final = 3
"""First version of containerd's configuration with NRI and CDI on by default."""


def examined(root: Path) -> Iterator[Finding]:
    """All findings on one node."""
    nri = True
    for path, check in (
        (_CONTAINERD, _containerd),
        (_CHECKPOINT, _checkpoint),
        (_KUBELET, _kubelet),
        (_STATIC, _static),
    ):
        file = root / path
        try:
            if file.exists():
                for one in check(path, file.read_text("utf-8")):
                    nri = nri and one.check != "nri-off"
                    yield one
        except (OSError, ValueError, RecursionError, AttributeError, TypeError) as broken:
            yield _unreadable(f"/{path}", broken, "correct the file")
    for folder, look in (
        *(((_RUN[0], _unasked),) if nri else ()),
        (_CDI[0], _cdi),
        (_ISOLATION, _isolation),
        (_FINDINGS, _agent),
    ):
        try:
            yield from look(root)
        except OSError as broken:
            yield _unreadable(f"/{folder}", broken, "look again")


def _unreadable(where: str, broken: Exception, then: str) -> Finding:
    return warning(
        "unreadable", where, f"it cannot be read: {broken}", f"run as root on the node, and {then}"
    )


def _containerd(path: str, text: str) -> Iterator[Finding]:
    config = tomllib.loads(text)
    by_default = int(config.get("version", 1)) >= _NEW
    plugins: Mapping[str, Any] = config.get("plugins", {})
    nri = plugins.get("io.containerd.nri.v1.nri", {})
    if nri.get("disable", not by_default):
        yield error(
            "nri-off",
            f"/{path}",
            "NRI must be on; it is off, so containers start without their share's limits",
            "set disable = false under plugins.'io.containerd.nri.v1.nri' and restart containerd",
        )
    old = plugins.get("io.containerd.grpc.v1.cri", {})
    new = plugins.get("io.containerd.cri.v1.runtime", {})
    if not (old | new).get("enable_cdi", by_default):
        yield error(
            "cdi-off",
            f"/{path}",
            "CDI must be on; it is off, so containers start without their devices",
            "set enable_cdi = true in the CRI plugin's section and restart containerd",
        )


def _unasked(root: Path) -> Iterator[Finding]:
    """A running runtime with neither its NRI nor a proxy before it."""
    asked = _kubelets_runtime(root)
    if asked is not None and asked.endswith(_PROXY):
        return
    if asked is not None and _runs(root, _PROXY):
        yield error(
            "proxy-unused",
            f"/{_KUBELET}",
            f"Partage's proxy listens at /run/{_PROXY} and the kubelet must ask it; it asks {asked}",
            f"set containerRuntimeEndpoint: unix:///run/{_PROXY} and restart the kubelet",
        )
    elif any(_runs(root, one) for one in _RUNTIMES) and not _runs(root, _NRI):
        yield error(
            "runtime-unasked",
            f"/run/{_NRI}",
            "the container runtime must ask Partage's agent; it runs, and there is no socket of NRI",
            "switch NRI on in the runtime (containerd before 2.0: disable = false under "
            "plugins.'io.containerd.nri.v1.nri'), or give its socket as --nri-socket",
        )


def _runs(root: Path, socket: str) -> bool:
    return any((root / run / socket).exists() for run in _RUN)


def _kubelets_runtime(root: Path) -> str | None:
    """The kubelet's runtime endpoint; None if no file has it."""
    try:
        document = _document((root / _KUBELET).read_text("utf-8"))
        found = document.get("containerRuntimeEndpoint")
    except (OSError, ValueError, AttributeError):
        found = None
    try:
        flags = _ENDPOINT.search((root / _FLAGS).read_text("utf-8", "replace"))
    except OSError:
        flags = None
    return flags[1] if flags else str(found) if found else None


def _document(text: str) -> Any:
    """The first document of YAML text; empty without one. Raises `YamlError`."""
    return next(iter(yaml_values(text.encode())), None) or {}


def _checkpoint(path: str, text: str) -> Iterator[Finding]:
    data = json.loads(text).get("Data") or {}
    registered = {
        name: set(ids or ()) for name, ids in (data.get("RegisteredDevices") or {}).items()
    }
    stale = sorted(
        {
            f"{entry.get('ResourceName')} of pod {entry.get('PodUID')}"
            for entry in data.get("PodDeviceEntries") or ()
            if not _ids(entry) <= registered.get(entry.get("ResourceName"), set())
        }
    )
    if stale:
        yield warning(
            "stale-checkpoint",
            f"/{path}",
            f"it holds devices that no plugin registers any more: {', '.join(stale[:3])}",
            "delete these pods; if none of them runs, stop the kubelet, move the file away, start it",
        )


def _ids(entry: Mapping[str, Any]) -> set[str]:
    given = entry.get("DeviceIDs") or {}
    lists = given.values() if isinstance(given, dict) else [given]
    return {one for ids in lists for one in ids or ()}


def _kubelet(path: str, text: str) -> Iterator[Finding]:
    gates = _document(text).get("featureGates") or {}
    for gate in ("DevicePluginCDIDevices", "KubeletPodResources"):
        if gates.get(gate) is False:
            yield error(
                "feature-gate",
                f"/{path}",
                f"feature gate {gate} must be on, and is off",
                f"remove {gate} from featureGates and restart the kubelet",
            )


def _static(path: str, text: str) -> Iterator[Finding]:
    spec = _document(text).get("spec") or {}
    words = [
        str(word)
        for one in spec.get("containers") or ()
        for word in (*(one.get("command") or ()), *(one.get("args") or ()))
    ]
    if not any(word.startswith("--config") for word in words):
        yield warning(
            "extender-lost",
            f"/{path}",
            "this kube-scheduler runs without --config, so it asks no extender; an upgrade of the "
            "control plane overwrites the file",
            "nothing, if the chart's own kube-scheduler runs; else add --config and its volume",
        )


def _agent(root: Path) -> Iterator[Finding]:
    """The agent's last differences between records, journal, kubelet and runtime."""
    try:
        at, findings = read_findings(root / _FINDINGS)
    except InvalidDocument as broken:
        then = "look again; Partage's agent writes it again when it starts"
        yield _unreadable(f"/{_FINDINGS}", broken, then)
        return
    for one in findings:
        yield Finding(
            "agent-finding",
            Level.ERROR if one.done in _WORSE else Level.WARNING,
            f"pod {one.pod}, container {one.container}",
            f"records, journal, kubelet and runtime must agree; {one.kind}: {one.message} (the agent, since {at})",
            one.fix,
        )


def _isolation(root: Path) -> Iterator[Finding]:
    """Enforcement libraries whose content does not match their name, and containers without one."""
    for library in sorted(root.glob(f"{_ISOLATION}/lib/*.so")):
        if not is_genuine(library):
            yield error(
                "isolation-library",
                f"/{_ISOLATION}/lib/{library.name}",
                "its content does not match its name: another program overwrote it, and limits of shares are not enforced",
                "remove it and restart Partage's agent, which installs it again; find the program or user that wrote it",
            )
    for note in sorted(root.glob(f"{_ISOLATION}/containers/*/spared")):
        why = note.read_text("utf-8", "replace")[:_SHOWN]
        yield warning(
            "not-enforceable",
            f"/{_ISOLATION}/containers/{note.parent.name}",
            f"the limits of this container's shares are not enforced: {why}",
            "use an image with the GNU C library 2.17 or newer, or hardware instances",
        )


def _cdi(root: Path) -> Iterator[Finding]:
    for folder in _CDI:
        there = (root / folder).iterdir() if (root / folder).is_dir() else ()
        for file in sorted(one for one in there if one.suffix == ".json"):
            try:
                json.loads(file.read_text("utf-8"))["kind"]
            except (OSError, ValueError, KeyError, TypeError) as broken:
                yield error(
                    "cdi-spec",
                    f"/{folder}/{file.name}",
                    f"it is no CDI description ({broken!r}), and containerd then loads none",
                    "remove it; Partage's agent writes its own again when it starts",
                )

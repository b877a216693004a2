"""A genuine node whose agent offers two cards to ResourceClaims, and questions to it and to the API server."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import stack as partage_stack
from genuine_node import LAYOUT, SLOW, Node, added, complete, container, pod, running
from stack import Layout, Stack, eventually

from partage.model import node as model
from partage.model.cutting import Cutting
from partage.model.device import Device, DeviceType, SliceMode
from partage.vendors.mig import MIG_CARDS

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
DRA = replace(
    LAYOUT, options=(*LAYOUT.options, "--set", "agent.dra.enabled=true,scheduler.claims=true")
)


_DRIVEN = """set -e
mount --make-rprivate /
mount --bind "$1/module" /sys/module
mount --bind "$1/devices" /proc/devices
mount --bind "$1/driver" /proc/driver
export FAKE_NVML="$1/cards"
shift
exec "$@"
"""
"""Runs a program where procfs shows NVIDIA's modules, and the stand-in of their library finds its cards."""
H100 = "GPU-5c3f0d6e-5a0b-4c55-9a44-2f6c3d1e7b90"
CAPABILITIES = 510
"""Major number of the device files that give access to an instance."""


@contextmanager
def offering(folder: Path, program: tuple[str, ...] = (), layout: Layout = DRA) -> Iterator[Node]:
    """The node, in a cluster of its own; its sockets need short paths.

    Args:
        folder: of the cluster.
        program: runs the agent in place of `partage`.
        layout: of the chart.
    """
    short = Path(tempfile.mkdtemp(prefix="ptg"))
    try:
        with partage_stack.stack(folder, layout=layout) as stack, ExitStack() as cleanup:
            made = added("cuda", "2.1", stack, short, cleanup)
            (short / "cuda/nri.sock").symlink_to(made.runtime.nri)
            made.start_agent(
                "--nri-socket",
                str(short / "cuda/nri.sock"),
                "--dra-kubelet-dir",
                str(made.kubelet.folder),
                "--cdi-dir",
                str(made.runtime.folder / "cdi"),
                program=program,
            )
            complete(made)
            eventually("the kubelet has the driver", lambda: registered(made), SLOW)
            eventually("slices are there", lambda: devices(stack, "cuda"), SLOW)
            yield made
    finally:
        shutil.rmtree(short, ignore_errors=True)


@contextmanager
def cutting(stack: Stack, name: str) -> Iterator[Node]:
    """A further node, of one H100 by the stand-in of NVIDIA's library, whose agent makes instances.

    Args:
        name: the chart has a mode for it that allows instances.
    """
    short = Path(tempfile.mkdtemp(prefix="ptg"))
    try:
        with ExitStack() as cleanup:
            made = added(name, "2.1", stack, short, cleanup)
            (short / name / "nri.sock").symlink_to(made.runtime.nri)
            folder = made.kubelet.folder.parent
            dev = folder / "host/dev"
            dev.mkdir(parents=True)
            (folder / "host" / folder.parts[1]).symlink_to(f"/{folder.parts[1]}")
            for minor, file in enumerate(("nvidia0", "nvidiactl", "nvidia-uvm")):
                os.mknod(dev / file, stat.S_IFCHR | 0o666, os.makedev(1, 3 + 2 * minor))
            shares = folder / "vgpu/libvgpu.so"
            shares.parent.mkdir()
            shares.write_text("the library\n")
            stack.agent(
                name,
                f"--host-root={folder / 'host'}",
                f"--isolation-library={shares}",
                f"--library={_driver(folder)}",
                f"--journal={folder / 'journal'}",
                f"--kubelet-dir={made.kubelet.folder}",
                "--period=0.5",
                "--mig",
                f"--mig-journal={folder / 'instances'}",
                f"--nri-socket={short / name / 'nri.sock'}",
                f"--dra-kubelet-dir={made.kubelet.folder}",
                f"--cdi-dir={made.runtime.folder / 'cdi'}",
                program=(
                    *("unshare", "-m", "sh", "-c", _DRIVEN, "agent", str(folder)),
                    *(sys.executable, "-m", "partage.cli.main"),
                ),
            )
            complete(made)
            eventually("the kubelet has the driver", lambda: registered(made), SLOW)
            yield made
    finally:
        shutil.rmtree(short, ignore_errors=True)


def _driver(folder: Path) -> Path:
    """Make the stand-in of NVIDIA's library, what its card can be cut into, and what the kernel tells; the library's folder."""
    library = folder / "library/libnvidia-ml.so.1"
    library.parent.mkdir()
    source = Path(__file__).with_name("nvml_of_cut_cards.c")
    named = f"-Wl,-soname,{library.name}"
    subprocess.run(["gcc", "-shared", "-fPIC", named, "-o", library, source], check=True)  # noqa: S607
    card = MIG_CARDS["H100-80GB"]
    product = card.aliases[0].replace(" ", "_")
    lines = [f"0 0 {H100} {product} {81559 << 20} 00000000:59:00.0 0 0 {card.pci[0]}10de"]
    for one in card.axis.profiles:
        assert one.engines is not None
        counts = one.id, one.kind, one.compute, one.size, one.count
        more = -(-one.core_milli * 132 // 1000), one.memory_bytes >> 20, *one.engines.counts
        starts = ",".join(map(str, one.starts))
        lines.append(f"profile {' '.join(map(str, (*counts, *more)))} {one.name} {starts}")
    (folder / "cards").write_text("\n".join(lines) + "\n")
    (folder / "module/nvidia").mkdir(parents=True)
    majors = {"nvidia": 195, "nvidia-uvm": 509, "nvidia-caps": CAPABILITIES}
    listed = "".join(f"{major:3} {name}\n" for name, major in majors.items())
    (folder / "devices").write_text(f"Character devices:\n{listed}")
    minors = folder / "driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True)
    minors.write_text("".join(f"{path} {minor}\n" for path, minor in _CAPABILITIES.items()))
    return library.parent


_CAPABILITIES = {
    f"gpu0/gi{gpu}/{path}": 3 + 9 * gpu + after
    for gpu in range(15)
    for after, path in enumerate(["access", *(f"ci{number}/access" for number in range(8))])
}
"""Minor numbers of the files that give access to a GPU instance and to a compute instance."""


@dataclass(frozen=True)
class OnCard:
    """An instance by the driver's word: its place, its UUID, and the names of its files."""

    profile: str
    start: int
    uuid: str
    files: frozenset[str]


def on_card(node: Node) -> tuple[bool, set[OnCard]]:
    """Whether the card is in MIG mode, and the instances on it, as the driver keeps them."""
    path = node.kubelet.folder.parent / "cards.cut"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    named = {one.id: one.name for one in MIG_CARDS["H100-80GB"].axis.profiles}
    found = set()
    for kind, *words in lines:
        if kind == "instance":
            _card, number, profile, start, _size, uuid = words
            files = {
                f"nvidia-cap{_CAPABILITIES[f'gpu0/gi{number}/{path}']}"
                for path in ("access", "ci0/access")
            }
            found.add(OnCard(named[int(profile)], int(start), uuid, frozenset(files)))
    return ["mode", "0"] in lines, found


def empty(node: Node) -> None:
    """Leave the cluster without pods and claims, and the node with nothing prepared."""
    plane = node.stack.plane
    plane.call("DELETE", f"{PODS}?gracePeriodSeconds=1")
    eventually("all pods are gone", lambda: not plane.call("GET", PODS)["items"], SLOW)
    plane.call("DELETE", CLAIMS)
    eventually("all claims are gone", lambda: not plane.call("GET", CLAIMS)["items"], SLOW)
    eventually("nothing is prepared", lambda: not prepared(node), SLOW)


def registered(node: Node) -> bool:
    """Whether the kubelet has confirmed to the agent that the driver is registered."""
    return "registered with the kubelet" in node.agent.log.read_text()


def slices(stack: Stack, node: str) -> list[dict[str, Any]]:
    """A node's slices."""
    found: list[dict[str, Any]] = stack.plane.call("GET", f"{API}/resourceslices")["items"]
    return [one for one in found if one["spec"].get("nodeName") == node]


def devices(stack: Stack, node: str) -> dict[str, dict[str, Any]]:
    """Devices of a node's slices by name."""
    return {
        one["name"]: one for part in slices(stack, node) for one in part["spec"].get("devices", [])
    }


def prepared(node: Node) -> list[str]:
    """Files of claims: of the journal and of CDI."""
    written = (node.kubelet.folder.parent / "journal/claims").glob("*.json")
    named = (node.runtime.folder / "cdi").glob("partage.io-claim_*.json")
    return [path.name for path in (*written, *named)]


def claim(stack: Stack, name: str, **exactly: Any) -> None:
    """A claim of one device."""
    request = {"name": "card", "exactly": {"deviceClassName": "share.gpu.partage.io", **exactly}}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
    stack.plane.call("POST", CLAIMS, body)


def user(name: str, *claims: str, **more: Any) -> dict[str, Any]:
    """A pod of one container that has these claims."""
    main = container("main", {})
    main["resources"] = {"claims": [{"name": one} for one in claims]}
    listed = [{"name": one, "resourceClaimName": one} for one in claims]
    return pod(name, main, resourceClaims=listed, **more)


def allocated(stack: Stack, name: str) -> dict[str, Any]:
    """The device that a claim has."""
    found = stack.plane.call("GET", f"{CLAIMS}/{name}")
    (result,) = found["status"]["allocation"]["devices"]["results"]
    return dict(result)


def half(cores: int, memory: str) -> dict[str, Any]:
    """Amounts of a request."""
    return {"capacity": {"requests": {"cores": str(cores), "memory": memory}}}


def identity(stack: Stack, name: str) -> tuple[str, int]:
    """The container of a pod, and how often it was started again."""
    (status,) = running(stack, name)["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"]


def dgx(host: str, name: str) -> model.Node:
    """A node of eight cards of a model."""
    known = MIG_CARDS.get(name)
    return model.Node(
        host,
        devices=tuple(
            Device(
                DeviceType.GPU,
                minor,
                f"GPU-{minor}",
                "nvidia",
                name,
                memory_bytes=81559 * 2**20,
                mode=SliceMode.SHARE if known is None else SliceMode.EITHER,
                cutting=None if known is None else Cutting(known.axis, frozenset()),
            )
            for minor in range(8)
        ),
    )

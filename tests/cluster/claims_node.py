"""A genuine node whose agent offers two cards to ResourceClaims, and what is asked of it and of the API server."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import stack as partage_stack
from genuine_node import LAYOUT, SLOW, Node, added, complete, container, pod, running
from stack import Stack, eventually

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


@contextmanager
def offering(folder: Path, program: tuple[str, ...] = ()) -> Iterator[Node]:
    """The node, in a cluster of its own; its sockets need short paths.

    Args:
        folder: of the cluster.
        program: runs the agent in place of `partage`.
    """
    short = Path(tempfile.mkdtemp(prefix="ptg"))
    try:
        with partage_stack.stack(folder, layout=DRA) as stack, ExitStack() as cleanup:
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


def empty(node: Node) -> None:
    """Leave the cluster without pods and claims, and the node with nothing prepared."""
    plane = node.stack.plane
    plane.call("DELETE", f"{PODS}?gracePeriodSeconds=1")
    eventually("all pods are gone", lambda: not plane.call("GET", PODS)["items"], SLOW)
    plane.call("DELETE", CLAIMS)
    eventually("all claims are gone", lambda: not plane.call("GET", CLAIMS)["items"], SLOW)
    eventually("nothing is prepared", lambda: not prepared(node), SLOW)


def registered(node: Node) -> bool:
    """Whether the kubelet has told the agent that it takes the driver."""
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

"""Finds the image layers that form the root of a container that is created but not started.

CRI does not report a root's path, and a root is assembled only when the container starts. containerd serves
its snapshots on the same socket: they list the layers of a root as folders of the host, topmost first. For other
runtimes nothing is known before the start.

Source: containerd's published interface of snapshots (v1), and the details of its ContainerStatus.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from partage.agent.cri.messages import RUNTIME, Details
from partage.agent.protobuf import Message, flag, messages, text, texts
from partage.wire.protobuf import Malformed

_SNAPSHOTS: Final = "/containerd.services.snapshots.v1.Snapshots/Mounts"
_NAMESPACE: Final = (("containerd-namespace", "k8s.io"),)
_PATIENCE: Final = 5.0


class _Question(Message):
    id: str = text(1)
    verbose: bool = flag(2)


class _Snapshot(Message):
    snapshotter: str = text(1)
    key: str = text(2)


class _Mount(Message):
    type: str = text(1)
    source: str = text(2)
    options: tuple[str, ...] = texts(4)


class _Mounts(Message):
    mounts: tuple[_Mount, ...] = messages(1, _Mount)


@dataclass(frozen=True, slots=True)
class Made:
    """A created container. `layers`: folders of its root for this process, topmost first; if there are none, `why`."""

    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    layers: tuple[Path, ...] = ()
    why: str = ""


async def made(channel: Any, identity: str, root: Path) -> Made:
    """The runtime's report of a container; it always has a usable result below the host's `root`."""
    try:
        ask = channel.unary_unary(f"/{RUNTIME}/ContainerStatus")
        answer = Details.decode(
            await ask(_Question(identity, verbose=True).encode(), timeout=_PATIENCE)
        )
        info = _mapping(json.loads(answer.info.get("info", "{}")))
        process = _mapping(_mapping(info.get("runtimeSpec")).get("process"))
        args, env = _texts(process.get("args")), _texts(process.get("env"))
        found = Made(args, env, why="the runtime does not report its layers")
        snapshot = _Snapshot(str(info.get("snapshotter", "")), str(info.get("snapshotKey", "")))
        if not snapshot.snapshotter or not snapshot.key:
            return found
        ask = channel.unary_unary(_SNAPSHOTS)
        told = await ask(snapshot.encode(), timeout=_PATIENCE, metadata=_NAMESPACE)
        layers = _layers(_Mounts.decode(told).mounts, root)
    except grpc.aio.AioRpcError as error:
        return Made(why=f"the runtime does not report its layers: {error.details()}")
    except (Malformed, ValueError) as error:
        return Made(why=f"the runtime's answer cannot be read: {error}")
    return Made(found.args, found.env, layers, "" if layers else found.why)


def _layers(mounts: tuple[_Mount, ...], root: Path) -> tuple[Path, ...]:
    """Folders that a snapshot is mounted from; none for one that is neither a plain nor an overlaid folder."""
    if len(mounts) != 1:
        return ()
    options = dict(one.partition("=")[::2] for one in mounts[0].options)
    if mounts[0].type == "bind":
        folders = [mounts[0].source]
    elif mounts[0].type == "overlay":
        folders = [options.get("upperdir", ""), *options.get("lowerdir", "").split(":")]
    else:
        folders = []
    return tuple(root / folder.lstrip("/") for folder in folders if folder.startswith("/"))


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()

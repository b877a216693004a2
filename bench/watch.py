"""Watch events a second that one core can read: bytes from a socket to a kept, typed object.

A server in a process of its own sends EVENTS changes of pods of about 2 kB as fast as they are
read. The program measures three readers of the same bytes in turns, RUNS times each:

* decoder: this package's decoder alone, no socket;
* follow: the whole way (HTTP, decoding, mirror, changes), as the services use it;
* plain: aiohttp, one `json.loads` a line, objects kept as dicts.

Prints events a second of wall time and of this process's CPU time, and the ratio.

    python bench/watch.py [--events 60000] [--pods 5000] [--runs 3]
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import aiohttp
import msgspec

from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.frames import WatchDecoder
from partage.kube.mirror import Seen
from partage.kube.objects import Meta
from partage.kube.resources import PODS, Scope
from partage.kube.watch import follow

TARGET: Final = 15_000
BLOCK: Final = 2**16


class PodMeta(Meta, frozen=True):
    """The part of a pod's metadata that a scheduler keeps."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class Resources(msgspec.Struct, frozen=True):
    """A container's limits."""

    limits: dict[str, str] = msgspec.field(default_factory=dict)


class Container(msgspec.Struct, frozen=True):
    """A container's name and limits."""

    name: str
    resources: Resources = Resources()


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """A pod's node and containers."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()


class Status(msgspec.Struct, frozen=True):
    """A pod's phase."""

    phase: str = ""


class Pod(msgspec.Struct, frozen=True):
    """The part of a pod that a scheduler keeps."""

    metadata: PodMeta
    spec: Spec
    status: Status


def pod(index: int, version: int) -> dict[str, Any]:
    """A pod in the API server's form, about 2 kB."""
    name = f"trainer-{index:06d}"
    now = "2026-01-01T00:00:00Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "generateName": "trainer-",
            "namespace": f"team-{index % 20}",
            "uid": f"{index:08x}-0000-4000-8000-{index:012x}",
            "resourceVersion": str(version),
            "creationTimestamp": now,
            "labels": {
                "app": "trainer",
                "pod-template-hash": "5d8f7c9b6d",
                "team": f"t{index % 20}",
            },
            "annotations": {"kubernetes.io/config.seen": now, "example.com/note": "x" * 120},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "trainer",
                    "controller": True,
                }
            ],
        },
        "spec": {
            "nodeName": f"node-{index % 500}",
            "serviceAccountName": "default",
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": f"node.kubernetes.io/{kind}", "operator": "Exists", "effect": "NoExecute"}
                for kind in ("not-ready", "unreachable")
            ],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/team/trainer:2026.01",
                    "command": ["python", "-m", "train"],
                    "env": [{"name": f"OPTION_{i}", "value": "value" * 4} for i in range(6)],
                    "resources": {
                        "limits": {"cpu": "8", "memory": "32Gi", "example.com/gpu": "1"}
                    },
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "volumes": [{"name": "kube-api-access", "projected": {"defaultMode": 420}}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "startTime": now,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": now}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
        },
    }


def stream_of(events: int, pods: int) -> bytes:
    """The bytes of a watch with the given numbers of events and pods."""
    lines = []
    for index in range(events):
        kind = "ADDED" if index < pods else "MODIFIED"
        frame = {"type": kind, "object": pod(index % pods, index + 2)}
        lines.append(json.dumps(frame, separators=(",", ":")).encode())
    return b"\n".join(lines) + b"\n"


def serve(stream: bytes, pipe: Connection) -> None:
    """Answer a list with no items and a watch with the stream; one connection at a time."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"watch=true" not in head:
                    body = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                    writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
                for start in range(0, len(stream), BLOCK):
                    block = stream[start : start + BLOCK]
                    writer.write(b"%x\r\n%s\r\n" % (len(block), block))
                    await writer.drain()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())


async def by_decoder(_url: str, stream: bytes, events: int) -> None:
    decoder = WatchDecoder(Pod)
    found = sum(
        len(decoder.feed(stream[start : start + BLOCK])) for start in range(0, len(stream), BLOCK)
    )
    assert found == events, found  # noqa: S101


async def by_follow(url: str, _stream: bytes, events: int) -> None:
    found = 0
    async with Client(Config(ClusterConfig(url))) as client:
        changes = follow(client, Scope(PODS), into=Pod)
        async with contextlib.aclosing(changes) as batches:
            async for batch in batches:
                found += sum(isinstance(change, Seen) for change in batch)
                if found >= events:
                    return


async def by_json(url: str, _stream: bytes, events: int) -> None:
    kept: dict[tuple[str, str], Any] = {}
    found = 0
    async with (
        aiohttp.ClientSession(read_bufsize=2**18) as session,
        session.get(f"{url}/api/v1/pods?watch=true") as response,
    ):
        async for line in response.content:
            event = json.loads(line)
            meta = event["object"]["metadata"]
            kept[meta["namespace"], meta["name"]] = event["object"]
            found += 1
            if found >= events:
                return


READERS: Final[dict[str, Callable[[str, bytes, int], Awaitable[None]]]] = {
    "decoder": by_decoder,
    "follow": by_follow,
    "plain": by_json,
}


def measure(name: str, url: str, stream: bytes, events: int) -> tuple[float, float]:
    """Events a second of wall time and of CPU time."""
    cpu, wall = time.process_time(), time.perf_counter()
    asyncio.run(READERS[name](url, stream, events))  # type: ignore[arg-type]
    return events / (time.perf_counter() - wall), events / (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--pods", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    stream = stream_of(chosen.events, chosen.pods)
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(stream, theirs), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}"
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in READERS}
    try:
        for _ in range(chosen.runs):
            for name, found in rates.items():
                found.append(measure(name, url, stream, chosen.events))
    finally:
        server.terminate()
        server.join()
    size = len(stream) / chosen.events
    print(
        f"{chosen.events} events over {chosen.pods} pods of {size:.0f} bytes, median of {chosen.runs}"
    )
    medians: dict[str, tuple[float, float]] = {}
    for name, found in rates.items():
        wall = statistics.median(rate for rate, _ in found)
        cpu = statistics.median(rate for _, rate in found)
        medians[name] = wall, cpu
        print(f"  {name:8} {wall:10,.0f} events/s   {cpu:10,.0f} per CPU second")
    wall, cpu = (medians["follow"][i] / medians["plain"][i] for i in (0, 1))
    print(f"  follow is {wall:.1f} times plain json by the wall, {cpu:.1f} times by the CPU")
    print(f"  target {TARGET:,}: {'met' if medians['follow'][0] >= TARGET else 'MISSED'}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  peak memory of this process {peak:.0f} MiB, the stream itself included")


if __name__ == "__main__":
    main()

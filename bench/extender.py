"""Round trips of the extender's verbs over loopback, against a plain implementation, and of the plugin's questions.

5,000 nodes of 8 cards, half of them partly used. The client is a process of its own: a raw socket that sends
kube-scheduler's bytes and reads the answer. The plain implementation decodes with `json` into dictionaries and looks
at every card of every node in Python for each call. It is measured in the same run, so the ratio is valid on any
machine.

The plugin's questions go over the unix socket: every pod is proposed a node, reserved and released, one pod after the other
as while many wait, then a hundred pods a second, where each question wakes both processes.

    python bench/extender.py [--nodes 5000] [--calls 400]
    python bench/extender.py --transports [--calls 4000]

`--transports` measures instead what the engine's process spends for a question without work (`ping`) in frames of JSON,
and as the same JSON by gRPC over a unix socket (one call a question, and one stream for all), in both orders.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from socket import AF_UNIX, create_connection, socket
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import grpc.aio
import msgspec
from aiohttp import web

from partage.cli.loop import run_fast
from partage.daemon.plugin import PluginOptions, PluginServer
from partage.extender.ports import Answered, Binding, Outcome
from partage.extender.server import Faces, scheduler_site
from partage.extender.service import SchedulerService
from partage.serving.access import Access
from partage.wire import plugin as wire
from partage.wire.documents import Document, decode

ASKS: list[dict[str, str]] = [
    {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
    {"koordinator.sh/gpu": "200"},
    {"kubernetes.io/gpu-core": "30", "kubernetes.io/gpu-memory": "20Gi"},
    {"tke.cloud.tencent.com/qgpu-core": "30", "tke.cloud.tencent.com/qgpu-memory": "5"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "20"},
]


FIRST_ASKED = 60_000
"""The number of the first pod that the plugin asks about."""
PACE = 0.01
"""Seconds between two of these pods."""


class Clock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds on the steady clock."""
        return time.monotonic()

    def now(self) -> datetime:
        """The time of day."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class Instant:
    """An API server that answers at once."""

    async def bind(self, _binding: Binding) -> Answered:
        """Report the pod as bound."""
        return Answered(Outcome.DONE)

    async def read(self, _namespace: str, _name: str) -> Document | None:
        """Report that the pod does not exist."""
        return None


def node(index: int) -> dict[str, Any]:
    name = f"node-{index:05d}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"n{index}",
            "resourceVersion": str(index + 1),
            "labels": {"kubernetes.io/hostname": name},
        },
        "status": {"allocatable": {"cpu": "128", "memory": "1024Gi", "pods": "220"}},
    }


def device(index: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {
            "name": f"node-{index:05d}",
            "uid": f"d{index}",
            "resourceVersion": str(index + 1),
            "labels": {
                "node.koordinator.sh/gpu-vendor": "nvidia",
                "node.koordinator.sh/gpu-model": "NVIDIA A100-SXM4-80GB",
            },
        },
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": f"GPU-{index:08x}-0000-0000-0000-{minor:012x}",
                    "minor": minor,
                    "health": True,
                    "resources": {
                        "koordinator.sh/gpu-core": "100",
                        "koordinator.sh/gpu-memory": "80Gi",
                        "koordinator.sh/gpu-memory-ratio": "100",
                    },
                }
                for minor in range(8)
            ]
        },
    }


def pod(
    index: int, *, flexible: bool = False, ask: dict[str, str] | None = None
) -> dict[str, Any]:
    """A pod that resembles one of a Deployment, about 2.5 kB of JSON."""
    limits = {"cpu": "4", "memory": "16Gi", **(ASKS[index % len(ASKS)] if ask is None else ask)}
    token = f"kube-api-access-{index:05x}"
    spec: dict[str, Any] = {
        "schedulerName": "partage-scheduler",
        "restartPolicy": "Always",
        "priority": 0,
        "serviceAccountName": "default",
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/team/model-server:2026.11",
                "command": ["/bin/serve", "--port", "8080"],
                "env": [{"name": f"SETTING_{i}", "value": "x" * 24} for i in range(12)],
                "resources": {"limits": limits, "requests": limits},
                "volumeMounts": [
                    {"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
                ],
            }
        ],
        "tolerations": [
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
        ],
        "volumes": [{"name": token, "projected": {"sources": [{"serviceAccountToken": {}}]}}],
    }
    if flexible:
        spec["topologySpreadConstraints"] = [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"web-{index:05d}",
            "namespace": "team",
            "uid": f"uid-{index}",
            "labels": {"app": "web", "pod-template-hash": "6f7d8"},
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def documents(items: list[dict[str, Any]]) -> list[Document]:
    return list(
        decode("bench.json", json.dumps({"kind": "List", "items": items}).encode()).documents
    )


class Client:
    """One keep-alive connection, like kube-scheduler's."""

    def __init__(self, port: int) -> None:
        self._socket: socket = create_connection(("127.0.0.1", port))
        self._file = self._socket.makefile("rb")

    def post(self, path: str, body: bytes) -> tuple[float, bytes]:
        """Seconds and answer of one call."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nUser-Agent: kube-scheduler/v1.36.4\r\n"
            f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
            "Accept-Encoding: gzip\r\n\r\n"
        ).encode()
        request = head + body
        start = time.perf_counter()
        self._socket.sendall(request)
        length = 0
        while (line := self._file.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        answer = self._file.read(length)
        return time.perf_counter() - start, answer


class Plain:
    """The simplest implementation: dictionaries, and a loop over every card of every node for each call."""

    def __init__(self, count: int) -> None:
        self.nodes = {
            f"node-{i:05d}": [{"core": 100, "memory": 80 * 2**30} for _ in range(8)]
            for i in range(count)
        }

    def filter(self, body: bytes) -> bytes:
        """Answer with every node that has a card with enough free compute."""
        args = json.loads(body)
        limits = args["Pod"]["spec"]["containers"][0]["resources"]["limits"]
        core = int(limits.get("koordinator.sh/gpu-core", 10))
        fits = [
            name
            for name in args["NodeNames"]
            if any(card["core"] >= core for card in self.nodes[name])
        ]
        return json.dumps({"NodeNames": fits, "FailedNodes": {}, "Error": ""}).encode()

    def prioritize(self, body: bytes) -> bytes:
        """Answer with free compute as the score."""
        args = json.loads(body)
        scores = [
            {"Host": name, "Score": sum(card["core"] for card in self.nodes[name]) // 80}
            for name in args["NodeNames"]
        ]
        return json.dumps(scores).encode()


def percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    return f"p50 {p50 * 1e3:6.3f} ms   p99 {p99 * 1e3:6.3f} ms   least {ordered[0] * 1e3:6.3f} ms"


def calls(client: Client, path: str, bodies: list[bytes], plain: str = "") -> None:
    answers = [client.post(path, body) for body in bodies]
    text = answers[-1][1]
    if b"Error" in text and b'"Error":""' not in text.replace(b": ", b":"):
        sys.exit(f"{path}: {text[:300]!r}")
    times = [seconds for seconds, _ in answers]
    line = f"{path.rsplit('/', 1)[1]:10s} {plain:34s} {percentiles(times[len(times) // 10 :])}"
    print(line, flush=True)


def names_json(count: int, seed: int | None = None) -> str:
    names = [f"node-{i:05d}" for i in range(count)]
    if seed is not None:
        random.Random(seed).shuffle(names)  # noqa: S311 # a reproducible order, not a secret
    return json.dumps(names, separators=(",", ":"))  # as Go writes it


def args(pod_: dict[str, Any], names: str) -> bytes:
    return f'{{"Pod":{json.dumps(pod_)},"Nodes":null,"NodeNames":{names}}}'.encode()


class Questions:
    """One connection of the plugin."""

    def __init__(self, path: str) -> None:
        self._socket = socket(AF_UNIX)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb")
        self._last = 0
        self.ask({"verb": "hello", "protocol": wire.PROTOCOL, "incarnation": "bench"})

    def ask(self, question: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Seconds and answer of one question; pushes are passed over."""
        self._last += 1
        body = json.dumps({"id": self._last, **question}).encode()
        start = time.perf_counter()
        self._socket.sendall(len(body).to_bytes(4, "big") + body)
        while True:
            answer = self._file.read(int.from_bytes(self._file.read(4), "big"))
            spent = time.perf_counter() - start
            read = json.loads(answer)
            if read.get("id") == self._last:
                return spent, read


def questions(path: str, rounds: int) -> None:
    """Ask about each pod as the plugin does; the service knows the pods, as from its watch."""
    link, times = Questions(path), dict[tuple[str, str], list[float]]()
    for i in range(2 * rounds):
        pace = "" if i < rounds else ", 100 pods/s"
        about = {"uid": f"uid-{i % rounds + FIRST_ASKED}", "attempt": i + 1}
        node_name = ""
        for verb in ("propose", "reserve", "unreserve"):
            more = {"node": node_name} if verb == "reserve" else {}
            spent, answer = link.ask({"verb": verb, **about, **more})
            if answer.get("code") or answer.get("unseen"):
                sys.exit(f"{verb}: {answer}")
            node_name = (answer.get("nodes") or [node_name])[0]
            times.setdefault((verb, pace), []).append(spent)
        if pace:
            time.sleep(PACE)
    for (verb, pace), seconds in times.items():
        line = (
            f"{verb:10s} {'unix socket' + pace:34s} {percentiles(seconds[len(seconds) // 10 :])}"
        )
        print(line, flush=True)


def measure(port: int, plain_port: int, path: str, count: int, rounds: int) -> None:
    questions(path, rounds)
    client, plain = Client(port), Client(plain_port)
    names = names_json(count)
    orders = [names_json(count, seed) for seed in range(rounds)]
    share = ASKS[0]
    calls(
        client,
        "/scheduler/filter",
        [args(pod(i), names) for i in range(rounds)],
        "same list, one node",
    )
    calls(
        client,
        "/scheduler/filter",
        [args(pod(i + 10**4), orders[i]) for i in range(rounds)],
        "list in a new order, one node",
    )
    flexible = [args(pod(i + 20000, flexible=True), names) for i in range(rounds)]
    calls(client, "/scheduler/filter", flexible, "same list, every node that fits")
    calls(client, "/scheduler/prioritize", flexible, "same list")
    shuffled = [args(pod(i + 20000, flexible=True), orders[i]) for i in range(rounds)]
    calls(client, "/scheduler/prioritize", shuffled, "list in a new order")
    huge = [args(pod(i + 30000, ask={"koordinator.sh/gpu": "1600"}), names) for i in range(rounds)]
    calls(client, "/scheduler/filter", huge, "refused everywhere")
    none = [args(pod(i + 40000, ask={}), names) for i in range(rounds)]
    calls(client, "/scheduler/filter", none, "pod without devices")
    binds = []
    for i in range(rounds):
        answer = json.loads(client.post("/scheduler/filter", args(pod(i + 50000), names))[1])
        binds.append(
            json.dumps(
                {
                    "PodName": f"web-{i + 50000:05d}",
                    "PodNamespace": "team",
                    "PodUID": f"uid-{i + 50000}",
                    "Node": answer["NodeNames"][0],
                }
            ).encode()
        )
    calls(client, "/scheduler/bind", binds, "held before")
    few = max(10, rounds // 10)
    slow = [args(pod(i, ask=share), names) for i in range(few)]
    calls(plain, "/scheduler/filter", slow, "PLAIN json, full scan")
    calls(plain, "/scheduler/prioritize", slow, "PLAIN json, full scan")


async def serve_plain(count: int) -> tuple[asyncio.Server, int]:
    plain = Plain(count)

    def answer(function: Callable[[bytes], bytes]) -> Callable[[web.Request], Any]:
        async def handler(request: web.Request) -> web.Response:
            return web.Response(
                body=function(await request.read()), content_type="application/json"
            )

        return handler

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/scheduler/filter", answer(plain.filter))
    app.router.add_post("/scheduler/prioritize", answer(plain.prioritize))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0)  # type: ignore[arg-type]  # set up above
    return server, server.sockets[0].getsockname()[1]


_GRPC = "/partage/Ask"


class GrpcQuestions:
    """A generic gRPC service that answers the same JSON."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """By one call a question, or by one stream for all."""
        if handler_call_details.method == _GRPC + "/one":
            return grpc.unary_unary_rpc_method_handler(self.one)
        return grpc.stream_stream_rpc_method_handler(self.all)

    async def one(self, asked: bytes, _context: Any) -> bytes:
        """Answer one question."""
        question = wire.decode_question(asked)
        return msgspec.json.encode(wire.Answer(question.id, ready=True))

    async def all(self, asked: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer every question of a connection."""
        async for one in asked:
            yield await self.one(one, context)


def ping(way: str, path: str, count: int) -> None:
    """Ask so many questions, one after the other; the first ones before the server's clock is read."""
    body = json.dumps({"id": 2, "verb": "ping"}).encode()
    if way == "frames":
        link = Questions(path)

        def ask() -> None:
            link.ask({"verb": "ping"})
    else:
        channel = grpc.insecure_channel(f"unix:{path}")
        if way == "gRPC, a call each":
            call = channel.unary_unary(_GRPC + "/one")

            def ask() -> None:
                call(body)
        else:
            sent: SimpleQueue[bytes] = SimpleQueue()
            stream = channel.stream_stream(_GRPC + "/all")(iter(sent.get, None))

            def ask() -> None:
                sent.put(body)
                next(stream)

    for number in range(count + 100):
        if number == 100:
            print("begun", flush=True)
            sys.stdin.readline()
        ask()
    print("done", flush=True)
    sys.stdin.readline()
    os._exit(0)  # a stream of gRPC has no end of its own


async def transports(count: int) -> None:
    """Print the CPU of this process, which is the engine's, for each question."""
    service = SchedulerService(Instant(), Clock())
    await service.rebuild([])
    service.lead()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    ways = ("frames", "gRPC, a call each", "gRPC, one stream")
    for way in (*ways, *reversed(ways)):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "s"
            plugin = PluginServer(PluginOptions(path), service, lambda: True, lambda _: None)
            server = grpc.aio.server()
            if way == "frames":
                await plugin.start()
            else:
                server.add_generic_rpc_handlers((GrpcQuestions(),))
                server.add_insecure_port(f"unix:{path}")
                await server.start()
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "--ping", way, str(path), "--calls", str(count)),
                stdin=PIPE,
                stdout=PIPE,
            )
            assert client.stdin and client.stdout  # noqa: S101, PT018 # both are pipes
            await client.stdout.readline()
            start = time.process_time()
            client.stdin.write(b"\n")
            await client.stdout.readline()
            spent = time.process_time() - start
            client.stdin.write(b"\n")
            await client.wait()
            await plugin.stop()
            await server.stop(None)
        print(
            f"{way:20s} {spent / count * 1e6:6.0f} µs of the engine's CPU a question", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--transports", action="store_true")
    parser.add_argument("--client", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--ping", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ping:
        way, path = options.ping
        ping(way, path, options.calls)
    if options.transports:
        asyncio.run(transports(options.calls))
        return
    if options.client:
        port, plain, path = options.client
        measure(int(port), int(plain), path, options.nodes, options.calls)
        return
    run_fast(lambda _ending: served(options))


async def served(options: argparse.Namespace) -> None:
    """Serve as the scheduler service does, on its loop, until the client has measured."""
    service = SchedulerService(Instant(), Clock())
    nodes = documents([node(i) for i in range(options.nodes)])
    devices = documents([device(i) for i in range(options.nodes)])
    start = time.perf_counter()
    await service.rebuild([*nodes, *devices])
    print(f"{options.nodes} nodes x 8 cards rebuilt in {time.perf_counter() - start:.2f} s")
    service.lead()
    faces = Faces(Access(plain=True))
    site = scheduler_site(service, faces)
    await site.start()
    _server, plain_port = await serve_plain(options.nodes)
    for one in documents([pod(i + FIRST_ASKED) for i in range(options.calls)]):
        service.changed(one)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        plugin = PluginServer(PluginOptions(path), service, lambda: True, lambda _: None)
        await plugin.start()
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            "--client",
            str(site.port),
            str(plain_port),
            str(path),
            "--nodes",
            str(options.nodes),
            "--calls",
            str(options.calls),
        )
        await client.wait()
        await plugin.stop()
    await site.stop()


if __name__ == "__main__":
    main()

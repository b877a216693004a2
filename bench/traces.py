"""Cost of traces for a decision: filter and bind with and without them, as ratios in one run.

Each mode is a process of its own, and they take turns, so that a busy machine affects all of them. It measures the
processor time of the thread that decides (filter, bind), and that of the whole process for a pod, which
includes the sending thread. The least of all rounds counts, because other work only ever adds to it. `--before` adds
an older source tree, measured like this one without traces.

    python bench/traces.py [--nodes 5000] [--calls 1000] [--rounds 5] [--before SRC]
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from extender import Clock, Instant, args, device, documents, names_json, node, pod
from partage.extender.service import SchedulerService

Times = dict[str, float]


def traced() -> dict[str, Any]:
    """The arguments with which a service sends traces."""
    from partage.extender.stories import Stories  # noqa: PLC0415 # an older tree has none
    from partage.tracing.otlp import live_tracer  # noqa: PLC0415 # an extra

    live = live_tracer("bench", os.environ, time.time_ns, random.getrandbits)
    assert live is not None  # noqa: S101 # the environment is ours
    return {"stories": Stories(live)}


async def measure(count: int, calls: int, more: dict[str, Any]) -> Times:
    """Seconds of each verb (the 10th percentile), and of the whole process for a pod."""
    service = SchedulerService(Instant(), Clock(), **more)
    nodes = documents([node(i) for i in range(count)])
    await service.rebuild([*nodes, *documents([device(i) for i in range(count)])])
    service.lead()
    names = names_json(count)
    found: dict[str, list[float]] = {"filter": [], "bind": []}
    before = time.process_time()
    for index in range(calls):
        body = args(pod(index), names)
        start = time.thread_time()
        answer = service.filter(body)
        middle = time.thread_time()
        binding = {
            "PodName": f"web-{index:05d}",
            "PodNamespace": "team",
            "PodUID": f"uid-{index}",
            "Node": json.loads(answer)["NodeNames"][0],
        }
        request = json.dumps(binding).encode()
        begin = time.thread_time()
        await service.bind(request)
        found["filter"].append(middle - start)
        found["bind"].append(time.thread_time() - begin)
    whole = (time.process_time() - before) / calls
    return {
        **{verb: statistics.quantiles(times, n=10)[0] for verb, times in found.items()},
        "pod": whole,
    }


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Accept all traces in this process; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def child(mode: str, options: argparse.Namespace, url: str) -> Times:
    """Do one measurement in a process of its own."""
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "1000"}
    if mode == "before":
        environ["PYTHONPATH"] = options.before
    command = [sys.executable, __file__, "--mode", mode, "--nodes", str(options.nodes)]
    command += ["--calls", str(options.calls)]
    told = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    times: Times = json.loads(told.stdout)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", metavar="SRC", help="src of an older tree")
    parser.add_argument("--mode", choices=("before", "off", "on"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode:
        more = traced() if options.mode == "on" else {}
        print(json.dumps(asyncio.run(measure(options.nodes, options.calls, more))))
        return
    modes = ["off", "on", *(["before"] if options.before else [])]
    found: dict[str, list[Times]] = {mode: [] for mode in modes}
    with collector() as url:
        for _ in range(options.rounds):
            for mode in modes:
                found[mode].append(child(mode, options, url))
    print(
        f"{options.nodes} nodes, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    for verb in ("filter", "bind", "pod"):
        shown = {m: min(times[verb] for times in found[m]) for m in modes}
        text = "   ".join(f"{mode} {seconds * 1e6:7.1f} us" for mode, seconds in shown.items())
        ratios = f"on/off {shown['on'] / shown['off']:.3f}"
        if options.before:
            ratios += f"   off/before {shown['off'] / shown['before']:.3f}"
        print(f"{verb:7s} {text}   {ratios}", flush=True)


if __name__ == "__main__":
    main()

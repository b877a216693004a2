"""Pods a second of a genuine kube-scheduler, alone and with our extender, in one run.

    tests/cluster/build                         once: the genuine control plane
    python bench/throughput.py [--nodes 500] [--pods 1000] [--rounds 3] [--nice -15] [--mutual-tls] [--spread] [--profile FOLDER] [-o json]
    python bench/throughput.py --sizes --nodes 1000 --plugin PROGRAM

The cluster has one etcd, one API server, and NODES nodes that are objects only, each with eight cards. Rounds of two
arms take turns. One arm is kube-scheduler alone on pods that ask for a plain extended resource. The other is the same
kube-scheduler with the chart's configuration and our scheduler service, on pods that ask for a card. While one arm
runs, the processes of the other are stopped (SIGSTOP), so neither pays for the other's watches. The arm's
kube-scheduler is also stopped while its pods are created, so that it finds all of them waiting. The rate counts from
the first Binding to the last. The CPU time of every process counts from the creation of the pods to the last Binding,
divided by the pods.

The arms' client limits are equal and high. Other work on the machine varies, so the ratio of two
neighbouring rounds is worth more than any figure alone, and all are printed.

`--sizes` measures no rate. It reports the memory of the processes of the arm with Partage with four bound
pods a node, and their CPU time in the minute after that.
"""

import argparse
import asyncio
import ctypes
import json
import os
import re
import shutil
import signal
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from partage.kube.client import Client
from partage.kube.config import Config
from partage.kube.loading import load_config
from partage.kube.objects import Meta
from partage.kube.resources import NODES, PODS, Resource, Scope
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.webhook.certificates import Bundle, renewed

sys.path.extend(
    str(Path(__file__).parents[1] / name) for name in ("deploy", "tests/cluster", "tests/tools")
)

from control_plane import KUBERNETES, ControlPlane, control_plane, missing
from kube_scheduler_config import ExtenderAccess, kube_scheduler_config, left_to_the_ledger

from fakes.ports import free_port

ZONE: Final = "topology.kubernetes.io/zone"
ZONES: Final = 3
DEVICES: Final = Resource("scheduling.koordinator.sh", "v1alpha1", "devices", namespaced=False)
DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False
)
ACCOUNTS: Final = Resource("", "v1", "serviceaccounts")
DEVICES_FILE: Final = Path(__file__).parents[1] / "deploy/helm/partage/files/devices.json"
CARDS: Final = 8
PLAIN: Final = "example.com/card"
TICKS: Final = os.sysconf("SC_CLK_TCK")
AT_ONCE: Final = 32
PATIENCE: Final = 900.0
IDLE: Final = 60.0
PODS_A_NODE: Final = 4
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
KUBE_SCHEDULER: Final = (
    "scheduler_scheduling_algorithm_duration_seconds",
    "scheduler_framework_extension_point_duration_seconds",
    "scheduler_scheduling_attempt_duration_seconds",
    "scheduler_pod_scheduling_sli_duration_seconds",
)
OURS: Final = ("partage_verb_seconds",)
SLICE: Final = 100_000
"""The shortest time slice that Linux grants, in nanoseconds."""
SCHED_SETATTR: Final = 314
"""The system call's number on x86-64."""
SHORT: Final = re.compile(r"^(scheduler|partage)_|(_duration)?_seconds_sum$")
LIMITS: Final = {"qps": 5000, "burst": 10000}


@dataclass(frozen=True)
class Arm:
    """One side of the comparison.

    Attributes:
        name: the name of the arm.
        scheduler: the scheduler name of its pods.
        asks: the request of each of its pods.
        mine: its processes.
        paused: the one of them that is stopped while the pods are created.
    """

    name: str
    scheduler: str
    asks: dict[str, str]
    mine: tuple[str, ...]
    paused: str


ALONE: Final = Arm(
    "alone", "plain", {PLAIN: "1"}, ("kube-scheduler-alone",), "kube-scheduler-alone"
)
WITH: Final = Arm(
    "with",
    "partage-scheduler",
    {"nvidia.com/gpu": "1"},
    ("kube-scheduler-with", "partage"),
    "kube-scheduler-with",
)
COMMON: Final = ("kube-apiserver", "etcd")
LEARNING: Final = "partage's learning"
"""Prices are learnt after 300, 1,000, 3,000 and 6,000 pods, so a round has this or has it not."""


@dataclass(frozen=True)
class Round:
    """The figures of one round of one arm.

    Attributes:
        arm: the name of the arm.
        rate: pods a second from the first Binding to the last.
        seconds: the time from kube-scheduler's continuation to the last Binding.
        cpu_ms: CPU time per pod, by process.
        requests: requests to the API server per pod, by verb and resource, including the bench's own.
        parts_ms: average times of parts, by the two programs' own metrics.
    """

    arm: str
    rate: float
    seconds: float
    cpu_ms: dict[str, float]
    requests: dict[str, float]
    parts_ms: dict[str, float]


class Bench:
    """A control plane with both arms' processes."""

    def __init__(
        self, plane: ControlPlane, client: Client, folder: Path, given: argparse.Namespace
    ) -> None:
        self.plane, self.client, self.folder = plane, client, folder
        self.count, self.nice = given.nodes, given.nice
        chart = 0 if given.plugin else 100
        self.percentage = chart if given.percentage is None else given.percentage
        self.percentage_alone = given.percentage_alone
        self.mutual_tls, self.spread = given.mutual_tls, given.spread
        self.plugin: Path | None = given.plugin
        self.read = 0
        self.rates: dict[str, float] = {}

    # --- setting up --------------------------------------------------------------------------

    async def furnish(self) -> None:
        """Create nodes and devices, and start both arms."""
        definition = json.loads(DEVICES_FILE.read_text())
        await self.client.create(DEFINITIONS, definition, into=msgspec.Raw)
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        await self.client.create(ACCOUNTS, account, namespace="default", into=msgspec.Raw)
        await self._until_served()
        await in_parallel(self._node(f"node-{number}") for number in range(self.count))
        self._start()
        if self.nice:
            # Each process has a session, so the kernel's scheduler gives it a group of its own.
            for pid in (os.getpid(), *map(self.pid, self.plane.processes)):
                Path(f"/proc/{pid}/autogroup").write_text(str(self.nice))  # noqa: ASYNC240
        await self._until_known()

    def _start(self) -> None:
        port = free_port()
        self.read = free_port() if self.mutual_tls else port
        certificate, key, authority = self._certificate() if self.mutual_tls else ("", "", "")
        self.plane.run(
            "partage",
            [
                sys.executable,
                "-m",
                "partage.cli.main",
                "scheduler",
                "--host=127.0.0.1",
                f"--port={port}",
                "--no-leader-elect",
                f"--kubeconfig={self.plane.kubeconfig()}",
                *(
                    [
                        f"--tls-cert={certificate}",
                        f"--tls-key={key}",
                        f"--client-ca={authority}",
                        f"--read-port={self.read}",
                    ]
                    if certificate
                    else ["--plain"]
                ),
                *([f"--plugin-socket={self.folder}/engine.sock"] if self.plugin else []),
            ],
        )
        alone: dict[str, Any] = {"profiles": [{"schedulerName": ALONE.scheduler}]}
        alone["percentageOfNodesToScore"] = self.percentage_alone
        ignored = left_to_the_ledger(FAMILIES, Settings())
        url = f"http{'s' if certificate else ''}://127.0.0.1:{port}"
        access = ExtenderAccess(url, authority, certificate, key)
        beside = kube_scheduler_config(None if self.plugin else access, ignored, [WITH.scheduler])
        beside["percentageOfNodesToScore"] = self.percentage
        for name, config in ((ALONE.paused, alone), (WITH.paused, beside)):
            own = (
                self.plugin
                if name != ALONE.paused and self.plugin
                else KUBERNETES / "kube-scheduler"
            )
            self.plane.start_scheduler(
                config,
                name,
                "--authorization-always-allow-paths=/metrics,/debug/pprof/*",
                limits=LIMITS,
                env={"PARTAGE_SOCKET": f"{self.folder}/engine.sock"},
                program=own,
            )

    def _certificate(self) -> tuple[str, str, str]:
        """The files of a certificate for both ends, of its key, and of its authority."""
        bundle = renewed(Bundle(), ["127.0.0.1"], datetime.now(UTC), calls=True)
        parts = {"tls.crt": bundle.certificate, "tls.key": bundle.key, "ca.crt": bundle.trusted}
        folder = self.folder / "extender"
        folder.mkdir()
        for name, data in parts.items():
            (folder / name).write_bytes(data)
        certificate, key, authority = (str(folder / name) for name in parts)
        return certificate, key, authority

    async def _node(self, name: str) -> None:
        amounts = {"cpu": "256", "memory": "2Ti", "pods": "250", PLAIN: str(CARDS)}
        zone = f"zone-{zlib.crc32(name.encode()) % ZONES}"
        labels = {"kubernetes.io/hostname": name, ZONE: zone}
        node = {"metadata": {"name": name, "labels": labels}}
        node["status"] = {"allocatable": amounts, "capacity": amounts}
        await self.client.create(NODES, node, into=msgspec.Raw)
        parts = {"gpu-core": "100", "gpu-memory": "80Gi", "gpu-memory-ratio": "100"}
        card = {"type": "gpu", "health": True}
        card["resources"] = {f"koordinator.sh/{key}": value for key, value in parts.items()}
        devices = [{**card, "id": f"GPU-{name}-{i}", "minor": i} for i in range(CARDS)]
        body = {
            "apiVersion": DEVICES.api_version,
            "kind": "Device",
            "metadata": {"name": name},
            "spec": {"devices": devices},
        }
        await self.client.create(DEVICES, body, into=msgspec.Raw)

    async def _until_served(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                await self.client.list_all(Scope(DEVICES), into=_Named)
            except Exception:  # noqa: BLE001 # not yet
                await asyncio.sleep(0.2)
            else:
                return
        raise TimeoutError("Device objects are not served")

    async def _until_known(self) -> None:
        """Wait until every node has its totals, so that the books have all nodes."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            listed = await self.client.list_all(Scope(NODES), into=_Node)
            told = sum("koordinator.sh/gpu" in (n.status.allocatable or {}) for n in listed.items)
            if told == self.count:
                return
            popen = self.plane.processes["partage"].popen
            if popen is not None and popen.poll() is not None:
                raise RuntimeError("the scheduler service ended; its log is partage.log")
            await asyncio.sleep(1.0)
        raise TimeoutError("node totals are not written")

    # --- one round ---------------------------------------------------------------------------

    async def round(self, arm: Arm, pods: int, beside: Sequence[Awaitable[Any]] = ()) -> Round:
        """Make one arm bind this many pods; the works in `beside` begin when kube-scheduler continues."""
        other = WITH if arm is ALONE else ALONE
        inside = self._inside(arm)
        for name in (*other.mine, arm.paused):
            self.plane.processes[name].signal(signal.SIGSTOP)
        before = self._cpu((*arm.mine, *COMMON))
        asked = self._requests()
        watch = asyncio.create_task(self._bound(pods))
        await in_parallel(self._pod(arm, number) for number in range(pods))
        started = time.monotonic()
        self.plane.processes[arm.paused].signal(signal.SIGCONT)
        sampling = asyncio.gather(*beside)
        moments = await asyncio.wait_for(watch, PATIENCE)
        await sampling
        after = self._cpu((*arm.mine, *COMMON))
        spent = {name: (after[name] - before[name]) * 1000 / pods for name in after}
        since, parts = self._requests(), means(inside, self._inside(arm))
        requests = {key: (since[key] - asked.get(key, 0.0)) / pods for key in since}
        requests = {key: count for key, count in requests.items() if count > 0.05}
        await self._emptied(other)
        rate = self.rates[arm.name] = (pods - 1) / (moments[-1] - moments[0])
        return Round(arm.name, rate, moments[-1] - started, spent, requests, parts)

    async def _pod(self, arm: Arm, number: int) -> None:
        container = {"name": "main", "image": "example", "resources": {"limits": arm.asks}}
        body: dict[str, Any] = {
            "metadata": {"name": f"{arm.name}-{number}", "labels": {"app": arm.name}},
            "spec": {
                "schedulerName": arm.scheduler,
                "containers": [container],
                "tolerations": [{"operator": "Exists"}],
            },
        }
        if self.spread:
            body["spec"]["topologySpreadConstraints"] = [
                {
                    "maxSkew": 1,
                    "topologyKey": ZONE,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app": arm.name}},
                }
            ]
        await self.client.create(PODS, body, namespace="default", into=msgspec.Raw)

    async def _bound(self, pods: int) -> list[float]:
        """Wait for this many Bindings; returns their times."""
        scope = Scope(PODS, "default")
        version = (await self.client.list_all(scope, into=_Named)).resource_version
        seen: set[str] = set()
        moments: list[float] = []
        while len(moments) < pods:
            stream = self.client.watch_stream(scope, version, seconds=1800, idle_seconds=PATIENCE)
            async with stream as chunks:
                async for event in lines(chunks):
                    head = event.object.metadata
                    version = head.resource_version
                    if event.object.spec.node_name and head.name not in seen:
                        seen.add(head.name)
                        moments.append(time.monotonic())
                        if len(moments) == pods:
                            break
        return moments

    async def sizes(self, pods: int) -> dict[str, dict[str, float]]:
        """For each process of the arm with Partage: resident and peak MB, and idle CPU in percent of one core."""
        watch = asyncio.create_task(self._bound(pods))
        await in_parallel(self._pod(WITH, number) for number in range(pods))
        await asyncio.wait_for(watch, PATIENCE)
        await asyncio.sleep(IDLE / 2)
        before = self._cpu(WITH.mine)
        await asyncio.sleep(IDLE)
        after = self._cpu(WITH.mine)
        found = {}
        for name in WITH.mine:
            status = Path(f"/proc/{self.pid(name)}/status").read_text()  # noqa: ASYNC240
            kib = {key: int(value) for key, value in re.findall(r"(Vm\w+):\s+(\d+) kB", status)}
            found[name] = {
                "mb": kib["VmRSS"] * 1024 / 1e6,
                "peak_mb": kib["VmHWM"] * 1024 / 1e6,
                "idle_percent": (after[name] - before[name]) / IDLE * 100,
            }
        return found

    async def _emptied(self, other: Arm) -> None:
        """Delete all pods, continue the other arm's processes, and wait until all are idle."""
        listed = await self.client.list_all(Scope(PODS, "default"), into=_Named)
        await in_parallel(
            self.client.delete(PODS, one.metadata.name, namespace="default", grace_seconds=0)
            for one in listed.items
        )
        for name in other.mine:
            self.plane.processes[name].signal(signal.SIGCONT)
        mine = (*ALONE.mine, *WITH.mine)
        last = self._cpu(mine)
        for _ in range(120):
            await asyncio.sleep(1.0)
            now = self._cpu(mine)
            if sum(now.values()) - sum(last.values()) < 0.15:
                return
            last = now

    def _requests(self) -> dict[str, float]:
        """The number of requests to the API server so far, by verb and resource."""
        text = self.plane.call("GET", "/metrics", decode=False).decode()
        found: dict[str, float] = {}
        for line in text.splitlines():
            if line.startswith("apiserver_request_total{"):
                labels, _, count = line.rpartition(" ")
                given = dict(LABEL.findall(labels))
                parts = (given["verb"], given["resource"], given["subresource"])
                key = " ".join(part for part in parts if part)
                found[key] = found.get(key, 0.0) + float(count)
        return found

    def _inside(self, arm: Arm) -> dict[str, float]:
        """The sums and counts of seconds so far, by part."""
        found: dict[str, float] = {}
        for url, wanted in (
            (f"{self.secure(arm)}/metrics", KUBE_SCHEDULER),
            (f"http://127.0.0.1:{self.read}/metrics", OURS),
        ):
            if wanted is OURS and arm is ALONE:
                continue
            trust = ssl._create_unverified_context()  # noqa: S323, SLF001 # its own, on loopback
            with urllib.request.urlopen(url, context=trust) as answer:  # noqa: S310 # loopback
                text = answer.read().decode()
            for line in text.splitlines():
                name, _, value = line.rpartition(" ")
                plain = name.partition("{")[0].removesuffix("_sum").removesuffix("_count")
                if plain in wanted and name.partition("{")[0] != plain + "_bucket":
                    found[name] = found.get(name, 0.0) + float(value)
        return found

    def secure(self, arm: Arm) -> str:
        """The address of an arm's kube-scheduler for its own metrics and profiles."""
        command = self.plane.processes[arm.paused].command
        port = next(one for one in command if one.startswith("--secure-port=")).split("=")[1]
        return f"https://127.0.0.1:{port}"

    def sampled(self, url: str, seconds: int, path: Path) -> None:
        """Write a CPU profile of a Go program to a file."""
        trust = ssl._create_unverified_context()  # noqa: S323, SLF001 # its own, on loopback
        request = urllib.request.Request(  # noqa: S310 # loopback
            f"{url}/debug/pprof/profile?seconds={seconds}",
            headers={"Authorization": f"Bearer {self.plane.admin}"},
        )
        with urllib.request.urlopen(request, context=trust) as answer:  # noqa: S310 # the same
            path.write_bytes(answer.read())

    def pid(self, name: str) -> int:
        """The id of a process."""
        popen = self.plane.processes[name].popen
        if popen is None:
            raise RuntimeError(f"{name} does not run")
        return int(popen.pid)

    def _cpu(self, names: Iterable[str]) -> dict[str, float]:
        """CPU seconds of processes so far; those of the service's ended children, which learn prices, on their own."""
        found = {}
        for name in names:
            pid = self.pid(name)
            stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            found[name] = sum(map(int, stat[11:13])) / TICKS
            if name == "partage":
                found[LEARNING] = sum(map(int, stat[13:15])) / TICKS
        return found


class _Named(msgspec.Struct, frozen=True):
    metadata: Meta


class _Spec(msgspec.Struct, frozen=True):
    node_name: str | None = msgspec.field(default=None, name="nodeName")


class _Pod(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: _Spec = _Spec()


class _Event(msgspec.Struct, frozen=True):
    object: _Pod


class _Status(msgspec.Struct, frozen=True):
    allocatable: dict[str, Any] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: Meta
    status: _Status = _Status()


def means(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """The average milliseconds of each part between two moments, from its sums and counts."""
    found = {}
    for key, total in after.items():
        if "_sum" in key:
            counted = key.replace("_sum", "_count")
            count = after[counted] - before.get(counted, 0.0)
            if count:
                words = ",".join(LABEL.sub(r"\2", key.partition("{")[2].rstrip("}")).split(","))
                name = SHORT.sub("", key.partition("{")[0])
                found[f"{name} {words}".strip()] = (total - before.get(key, 0.0)) / count * 1000
    return found


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[_Event]:
    """The events of a watch."""
    decode = msgspec.json.Decoder(_Event).decode
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield decode(line)


async def in_parallel(works: Iterable[Any]) -> None:
    """Await many works, `AT_ONCE` at a time."""
    waiting = iter(works)

    async def take() -> None:
        for work in waiting:
            await work

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(take())


def shortest_slices() -> None:
    """Make this process and its children run as soon as they are woken (Linux 6.12 and newer).

    Otherwise, on a machine with other work, each message between processes waits until another process's
    time slice ends.
    """
    attributes = struct.pack("IIQiIQQQ", 48, 0, 0, os.nice(0), 0, SLICE, 0, 0)
    ctypes.CDLL(None).syscall(SCHED_SETATTR, 0, attributes, 0)


@asynccontextmanager
async def bench(given: argparse.Namespace) -> AsyncIterator[Bench]:
    """Run a control plane and both arms while the context lasts."""
    with (
        tempfile.TemporaryDirectory(prefix="throughput-") as name,
        control_plane(Path(name)) as plane,
    ):
        config: Config = load_config({}, kubeconfig=plane.kubeconfig(), context=None)
        async with Client(config) as client:
            made = Bench(plane, client, Path(name), given)
            await made.furnish()
            yield made


async def run(given: argparse.Namespace) -> list[Round]:
    """Do all rounds, and print each at its end."""
    if given.nice:
        shortest_slices()
    nodes, pods, rounds = given.nodes, given.pods, given.rounds
    found: list[Round] = []
    async with bench(given) as made:
        for arm in (ALONE, WITH):
            await made.round(arm, min(200, pods))  # warm up both
        for number in range(rounds):
            for arm in (ALONE, WITH) if number % 2 == 0 else (WITH, ALONE):
                one = await made.round(arm, pods)
                found.append(one)
                load = os.getloadavg()[0]
                parts = ", ".join(f"{name} {spent:.2f}" for name, spent in one.cpu_ms.items())
                sys.stderr.write(
                    f"{nodes} nodes, {one.arm}: {one.rate:.0f} pods/s; CPU ms a pod: {parts}; "
                    f"load {load:.1f}\n  requests a pod: "
                    f"{', '.join(f'{k} {n:.2f}' for k, n in one.requests.items())}\n"
                    "  ms on average: "
                    f"{', '.join(f'{k} {n:.2f}' for k, n in one.parts_ms.items() if n > 0.02)}\n"
                )
        if given.profile is not None:
            given.profile.mkdir(parents=True, exist_ok=True)
            await profiled(made, pods, given.profile)
    return found


async def measured(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The memory and idle CPU of the processes with this many nodes."""
    async with bench(given) as made:
        return await made.sizes(given.nodes * PODS_A_NODE)


async def profiled(made: Bench, pods: int, folder: Path) -> None:
    """Profile one more round of each arm: Go programs by their own profiler, ours by py-spy if it is installed."""
    for arm in (ALONE, WITH):
        seconds = max(4, int(pods / made.rates[arm.name]))
        works: list[Awaitable[object]] = [
            asyncio.to_thread(made.sampled, url, seconds, folder / f"{arm.name}-{name}.pprof")
            for name, url in (("apiserver", made.plane.url), ("scheduler", made.secure(arm)))
        ]
        if arm is WITH and shutil.which("py-spy"):
            works.append(
                asyncio.to_thread(
                    partial(
                        subprocess.run,
                        [
                            "py-spy",
                            "record",
                            "--nonblocking",
                            "--pid",
                            str(made.pid("partage")),
                            "--format",
                            "raw",
                            "--rate",
                            "200",
                            "--duration",
                            str(seconds),
                            "--output",
                            f"{folder}/with-partage.txt",
                        ],
                        check=False,
                        capture_output=True,
                    )
                )
            )
        one = await made.round(arm, pods, works)
        sys.stderr.write(f"profiled {arm.name} at {one.rate:.0f} pods/s into {folder}\n")


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Medians of both arms and of the ratios of neighbouring rounds."""
    alone = [one for one in rounds if one.arm == ALONE.name]
    ours = [one for one in rounds if one.arm == WITH.name]
    ratios = [mine.rate / theirs.rate for mine, theirs in zip(ours, alone, strict=True)]

    def cpu(of: Sequence[Round]) -> dict[str, float]:
        return {key: statistics.median(one.cpu_ms[key] for one in of) for key in of[0].cpu_ms}

    return {
        "alone": statistics.median(one.rate for one in alone),
        "with": statistics.median(one.rate for one in ours),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "cpu_ms_alone": cpu(alone),
        "cpu_ms_with": cpu(ours),
        "rounds": [asdict(one) for one in rounds],
    }


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=Path)
    parser.add_argument(
        "--percentage-alone",
        type=int,
        default=0,
        help="percentageOfNodesToScore of the kube-scheduler without extender, 0 for its own default",
    )
    parser.add_argument(
        "--percentage",
        type=int,
        help="percentageOfNodesToScore of the second kube-scheduler, 0 for kube-scheduler's own default; "
        "by default as in the chart: 100 beside the extender, 0 with the plugin",
    )
    parser.add_argument(
        "--mutual-tls",
        action="store_true",
        help="between kube-scheduler and the service, as the chart installs it; else plain HTTP",
    )
    parser.add_argument(
        "--spread", action="store_true", help="pods of both arms spread over zones, softly"
    )
    parser.add_argument(
        "--plugin",
        type=Path,
        metavar="PROGRAM",
        help="kube-scheduler with the plugin (kube-scheduler/build), in place of the extender",
    )
    parser.add_argument(
        "--nice",
        type=int,
        default=0,
        help="of the whole run, where root measures on a machine that others use too; negative",
    )
    parser.add_argument(
        "--sizes", action="store_true", help="measure memory and idle CPU instead of the pace"
    )
    parser.add_argument("-o", choices=["text", "json"], default="text", dest="output")
    given = parser.parse_args()
    lacks = missing("kube-apiserver", "kube-scheduler")
    if lacks:
        sys.exit(f"no genuine control plane here: {lacks}")
    if given.sizes:
        for name, taken in asyncio.run(measured(given)).items():
            parts = ", ".join(f"{key} {value:.1f}" for key, value in taken.items())
            sys.stdout.write(f"{given.nodes} nodes, {name}: {parts}\n")
        return
    if given.pods > given.nodes * CARDS:
        sys.exit(f"{given.pods} pods do not fit {given.nodes} nodes of {CARDS} cards")
    told = summary(asyncio.run(run(given)))
    if given.output == "json":
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    sys.stdout.write(
        f"{given.nodes} nodes, {given.pods} pods a round: alone {told['alone']:.0f} pods/s, "
        f"with our extender {told['with']:.0f} pods/s, ratio {told['ratio']:.2f} "
        f"({', '.join(f'{ratio:.2f}' for ratio in told['ratios'])})\n"
    )
    for key in ("cpu_ms_alone", "cpu_ms_with"):
        parts = ", ".join(f"{name} {spent:.2f}" for name, spent in told[key].items())
        sys.stdout.write(f"CPU ms a pod, {key[7:]}: {parts}\n")


if __name__ == "__main__":
    main()

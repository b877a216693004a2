"""A node with a fake runtime and an agent as a process, which reaches the API server by a wire."""

import asyncio
import contextlib
import json
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fakes.nri_runtime import FakeRuntime, fake_runtime
from fakes.wire import Wire
from partage.agent.nri.messages import Container, CreateContainerResponse, PodSandbox, Status
from partage.apiserver import ApiServer, serve, write_kubeconfig
from partage.embedded.definitions import DEFINITIONS
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.vendors import names
from partage.wire.record import encode

__all__ = ["Node", "node"]

DEVICES = "devices.scheduling.koordinator.sh"
LEASES = "leases.coordination.k8s.io"
GIB = 2**30
SLOWEST = 200.0
"""Seconds that a slow machine may take; nothing is measured by them."""


@dataclass
class Node:
    """A node with a runtime and an agent, which reaches the API server through a wire."""

    folder: Path
    server: ApiServer
    runtime: FakeRuntime
    wire: Wire
    options: tuple[str | Path, ...] = ()
    url: str = ""
    said: list[str] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the agent, and wait until the runtime asks it."""
        self.runtime.plugin.clear()
        write_kubeconfig(self.folder / "kubeconfig", self.wire.url)
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "partage.cli.main",
            "agent",
            "--node",
            "n1",
            "--port",
            "0",
            "--simulated",
            self.folder / "devices.yaml",
            "--period",
            "0.1",
            "--journal",
            self.folder / "journal",
            "--nri-socket",
            self.runtime.socket,
            "--host-root",
            self.folder,
            "--deadline",
            "60",  # a busy disk may be late
            "--kubeconfig",
            self.folder / "kubeconfig",
            *self.options,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        said = ""
        while "metrics at " not in said:
            said = (await self.process.stderr.readline()).decode()
            assert said, "the agent ended"
        self.url = said.split("metrics at ")[1].strip()
        self.reading = asyncio.create_task(self._read(self.process.stderr))
        await self.until(lambda: self.series("partage_agent_connected") == 1)

    async def _read(self, lines: asyncio.StreamReader) -> None:
        while line := (await lines.readline()).decode():
            self.said.append(line)

    async def kill(self) -> None:
        """End the agent as a crash would."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if self.reading is not None:
            await self.reading

    def series(self, name: str) -> float:
        """What the agent says of itself."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=SLOWEST) as answer:  # noqa: S310 # ours
            rows = answer.read().decode().splitlines()
        return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith(name))

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for something that another process does."""
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 # another process
            await asyncio.sleep(0.02)

    def known(self) -> list[bool]:
        """The health of the cards, as the agent itself last found it."""
        found = json.loads((self.folder / "journal/node.json").read_text())["device"]["spec"]
        return [one["health"] for one in found["devices"]]

    def reported(self) -> list[bool]:
        """The health of the cards, as the API server has it."""
        record = self.server.store.get(DEVICES, "", "n1")
        return [one["health"] for one in record.value["spec"]["devices"]] if record else []

    def renewed(self) -> str:
        """When the agent's lease was last renewed."""
        record = self.server.store.get(LEASES, "kube-node-lease", "partage-agent-n1")
        return str(record.value["spec"]["renewTime"]) if record else ""

    async def create(
        self, uid: str, milli: int = 300, **annotations: str
    ) -> CreateContainerResponse | Status:
        """Ask for a container of a pod, by default with a share of the first card."""
        found = json.loads((self.folder / "journal/node.json").read_text())["device"]["spec"]
        first = next(one for one in found["devices"] if one["type"] == "gpu")
        grant = Grant(
            "main", DeviceType.GPU, 0, first["id"], milli, GIB, GrantMode.SHARE, protocol="qgpu"
        )
        record = encode(Allocation(uid, "team", uid, "n1", (grant,)))
        given = {names.ALLOCATION: record} | annotations
        sandbox = PodSandbox(f"s-{uid}", uid, uid, "team", annotations=given)
        asked = Container(f"c-{uid}", f"s-{uid}", "main")
        answer = await self.runtime.create(sandbox, asked, SLOWEST)
        if isinstance(answer, CreateContainerResponse):
            # As a runtime does, it remembers what it made, with what the agent added.
            assert answer.adjust is not None
            made = replace(asked, state=3, annotations=dict(answer.adjust.annotations))
            self.runtime.pods += (sandbox,)
            self.runtime.containers += (made,)
        return answer


@contextlib.asynccontextmanager
async def node(folder: Path, options: tuple[str | Path, ...] = ()) -> AsyncIterator[Node]:
    """A node with two cards, reported, by an agent with these options."""
    server = ApiServer()
    for definition in DEFINITIONS:
        await server.create("customresourcedefinitions.apiextensions.k8s.io", definition)
    labels: dict[str, Any] = {names.QGPU_POLICY: "fixed-share"}
    await server.create("nodes", {"metadata": {"name": "n1", "labels": labels}})
    (folder / "devices.yaml").write_text("{model: H100-80GB-HBM3, cards: 2}")
    async with (
        asyncio.timeout(SLOWEST),
        serve(server) as url,
        Wire(url) as wire,
        fake_runtime(folder / "nri.sock") as runtime,
    ):
        made = Node(folder, server, runtime, wire, options)
        await made.start()
        try:
            await made.until(lambda: made.reported() == [True, True] and made.renewed())
            yield made
        finally:
            await made.kill()

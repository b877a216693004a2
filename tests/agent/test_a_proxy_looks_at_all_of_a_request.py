"""What the CRI proxy reads of a request, and what it remembers of one that the kubelet has given up."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from partage.agent.cri import messages as cri
from partage.agent.cri.edits import asked
from partage.agent.cri.proxy import Proxy, ProxyOptions
from partage.agent.isolation.container_dirs import INSIDE
from partage.agent.nri.messages import Adjustment, Container, PodSandbox

REQUEST = cri.CreateRequest(
    "sandbox",
    cri.ContainerConfig(
        cri.ContainerName("main"), mounts=(cri.Mount(f"{INSIDE}/limits", "/mine"),)
    ),
    cri.PodConfig(cri.PodName("train", "u1", "team")),
)
WAIT = 240


def test_mounts_of_a_request_are_told() -> None:
    """They may hide the files that hold the container to its limits."""
    _, container = asked(REQUEST, ())

    assert [mount.destination for mount in container.mounts] == [f"{INSIDE}/limits"]


class Slow:
    """A decider that waits until it may decide."""

    def __init__(self) -> None:
        self.entered, self.may = threading.Event(), threading.Event()
        self.told: list[set[str]] = []

    def create(self, pod: PodSandbox, container: Container) -> Adjustment | None:
        """What a container gets, once that may be said."""
        assert (pod.uid, container.name) == ("u1", "main")
        self.entered.set()
        assert self.may.wait(WAIT)
        return None

    def start(self, pod: PodSandbox, container: Container) -> None:
        """Nothing was made."""
        raise AssertionError

    def remove(self, container: Container) -> None:
        """Nothing has ended."""
        raise AssertionError

    def late(self, pod: PodSandbox, container: Container) -> None:
        """There is time."""
        raise AssertionError

    def has_room(self, container: str) -> bool:
        """No library is to be loaded."""
        return False

    def rename(self, before: str, after: str) -> None:
        """Nothing was made."""
        raise AssertionError

    def synchronize(self, pods: tuple[PodSandbox, ...], containers: tuple[Container, ...]) -> None:
        """What there is."""
        assert not pods
        self.told.append({one.id for one in containers})


@asynccontextmanager
async def _runtime(socket: Path) -> AsyncIterator[None]:
    """A runtime that has nothing."""

    async def nothing(_request: bytes, _context: Any) -> bytes:
        return b""

    server = grpc.aio.server()
    for service in (cri.RUNTIME, cri.IMAGE):
        methods = {
            name: grpc.unary_unary_rpc_method_handler(nothing)
            for name in ("ListPodSandbox", "ListContainers", "ImageStatus")
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_a_call_that_is_let_go_while_it_is_decided_is_forgotten(tmp_path: Path) -> None:
    """The runtime never received the container: in the end nothing is held for it."""
    decider, stop = Slow(), asyncio.Event()
    options = ProxyOptions(
        tmp_path / "cri.sock", tmp_path / "runtime.sock", deadline=WAIT, look=0.01
    )
    async with _runtime(options.runtime), asyncio.timeout(WAIT):
        proxy = Proxy(decider, options)
        running = asyncio.create_task(proxy.run(stop))
        await proxy.ready.wait()
        call = asyncio.create_task(proxy.create(REQUEST.encode(), None))
        await asyncio.to_thread(decider.entered.wait)

        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        decider.may.set()

        looks = len(decider.told)
        while len(decider.told) < looks + 3 or decider.told[-1]:  # noqa: ASYNC110 # a thread tells
            await asyncio.sleep(0.01)
        stop.set()
        await running

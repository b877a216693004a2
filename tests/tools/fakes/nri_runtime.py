"""The runtime's side of NRI, for tests: takes plugins on a socket and asks them as containerd does.

It reads with the same limit: a frame with more than 4096 bytes ends the connection. It sends messages of any length, as
containerd 1.7 does.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from partage.agent.nri.messages import (
    PLUGIN,
    ConfigureRequest,
    ConfigureResponse,
    Container,
    ContainerRequest,
    CreateContainerResponse,
    Event,
    PodSandbox,
    Request,
    Response,
    StateChange,
    Status,
    SynchronizeResponse,
)
from partage.agent.nri.session import Kind, TtrpcMessage, TtrpcReader, framed
from partage.agent.protobuf import Message, flag, messages

__all__ = ["FakeRuntime", "SynchronizeRequest", "fake_runtime"]

_FRAME = struct.Struct(">II")
_HEAD = struct.Struct(">IIBB")
_LARGEST = 4096
_SECOND = 10**9
_CALL = 60.0
"""Seconds of a call. Runtimes give 2; a busy machine may be late by more."""


class SynchronizeRequest(Message):
    """Existing pods and containers; `more` of them follow."""

    pods: tuple[PodSandbox, ...] = messages(1, PodSandbox)
    containers: tuple[Container, ...] = messages(2, Container)
    more: bool = flag(3)


class FakeRuntime:
    """One runtime.

    Attributes:
        pods: sent at Synchronize, one a message.
        at_once: whether all of them are sent in one, with the containers.
        containers: sent with the last of them.
        refusal: why plugins are not registered; empty to take them.
        connections: how many there were.
        name: of itself, sent at Configure.
        version: likewise.
        plugin: set while a plugin is registered and knows everything.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: tuple[PodSandbox, ...] = ()
        self.at_once = False
        self.containers: tuple[Container, ...] = ()
        self.refusal = ""
        self.connections = 0
        self.name, self.version = "fake", "v1.7.24"
        self.plugin = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._stream = 1
        self._work: set[asyncio.Task[None]] = set()

    async def create(
        self,
        pod: PodSandbox,
        container: Container,
        timeout: float = _CALL,  # noqa: ASYNC109 # of the call
    ) -> CreateContainerResponse | Status:
        """Ask about a container: the answer, or the error."""
        asked = ContainerRequest(pod, container)
        response = await self.ask("CreateContainer", asked, timeout)
        if response.status and response.status.code:
            return response.status
        return CreateContainerResponse.decode(response.payload)

    async def removed(self, container: Container) -> Response:
        """Report that a container is gone."""
        return await self.ask("StateChange", StateChange(Event.REMOVE_CONTAINER, None, container))

    async def ask(self, method: str, argument: Message, timeout: float = _CALL) -> Response:  # noqa: ASYNC109 # of the call
        """Any call; waits for the answer for as long as a test may."""
        stream = self._stream
        self._stream += 2
        request = Request(PLUGIN, method, argument.encode(), int(timeout * _SECOND))
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[stream] = answer
        payload = request.encode()
        data = _HEAD.pack(len(payload), stream, Kind.REQUEST, 0) + payload
        self.say(_FRAME.pack(1, len(data)) + data)
        async with asyncio.timeout(240):
            return await answer

    def say(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self._writer is not None  # a test asks a plugin that is there
        self._writer.write(data)

    def drop(self) -> None:
        """Close the connection, as a runtime that restarts does."""
        self.plugin.clear()
        if self._writer is not None:
            self._writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writer = writer
        readers = {1: TtrpcReader(), 2: TtrpcReader()}
        try:
            while True:
                connection, length = _FRAME.unpack(await reader.readexactly(_FRAME.size))
                if length > _LARGEST:
                    return
                payload = await reader.readexactly(length)
                for message in readers[connection].feed(payload):
                    assert isinstance(message, TtrpcMessage)  # no plugin sends longer ones
                    self._take(connection, message)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _take(self, connection: int, message: TtrpcMessage) -> None:
        if connection == 1:
            self._waiting.pop(message.stream).set_result(Response.decode(message.payload))
            return
        status = Status(2, self.refusal) if self.refusal else Status()
        answer = TtrpcMessage(message.stream, Kind.RESPONSE, Response(status).encode())
        self.say(framed(2, answer.encode()))
        if not self.refusal:
            task = asyncio.create_task(self._introduce())
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _introduce(self) -> None:
        told = await self.ask("Configure", ConfigureRequest(self.name, self.version))
        events = ConfigureResponse.decode(told.payload).events
        assert events >> 11 == 0, "containerd 1.7 refuses events that it does not know"
        for pod in () if self.at_once else self.pods:
            part = await self.ask("Synchronize", SynchronizeRequest((pod,), (), more=True))
            assert SynchronizeResponse.decode(part.payload).more  # or it sends no more
        await self.ask(
            "Synchronize", SynchronizeRequest(self.pods if self.at_once else (), self.containers)
        )
        self.plugin.set()


@asynccontextmanager
async def fake_runtime(socket: Path) -> AsyncIterator[FakeRuntime]:
    """A runtime that listens."""
    runtime = FakeRuntime(socket)
    server = await asyncio.start_unix_server(runtime._serve, socket)  # its own
    try:
        yield runtime
    finally:
        server.close()
        runtime.drop()

"""The proxy between the kubelet and the runtime: it passes on every call as bytes, and reads two of them.

    kubelet ──> our socket ──> runtime
                    │ CreateContainer: the same decision as by NRI, put into the request
                    │ StartContainer: waits for the check of the image, if a library is to be loaded

The proxy passes on a call without reading it: the request, its answers, metadata, time limit, end and status
are the same on both sides. The kubelet knows no other socket, so no container is created while the agent is
away.

The proxy asks the runtime for ended containers: it reads the runtime's own list at the start, before it refuses
anything, and then at intervals.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from partage.agent.container_admission import Keeper
from partage.agent.cri import messages as cri
from partage.agent.cri.edits import asked, device_file, edited, image_environment, key_of
from partage.agent.cri.layers import made
from partage.agent.nri.bounds import LARGEST_IMAGE, image_too_long, too_long
from partage.agent.nri.messages import Adjustment, Container, PodSandbox, named
from partage.agent.nri.plugin import Refused, too_late
from partage.agent.protobuf import M, field_of, text_of
from partage.agent.sockets import PROMPT, listen
from partage.model.errors import InvalidValue
from partage.wire.protobuf import Malformed

_LOG: Final = logging.getLogger("partage.agent")
_CREATE: Final = f"/{cri.RUNTIME}/CreateContainer"
_START: Final = f"/{cri.RUNTIME}/StartContainer"
_ENDING: Final = (f"/{cri.RUNTIME}/StopContainer", f"/{cri.RUNTIME}/RemoveContainer")
_PATIENCE: Final = 10.0
_SILENCE: Final = 30.0
"""Seconds; a kubelet asks its runtime for its status every 5."""
_OPEN: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)
"""Ends of a call that do not show whether the runtime did it."""
_UNBOUNDED: Final = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_OWN: Final = frozenset({"user-agent", "grpc-accept-encoding", "grpc-encoding", "te"})
"""Metadata that belongs to one connection."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """The settings of a proxy.

    Attributes:
        socket: where the kubelet connects.
        devices: folder of device files on the host.
        root: of the host's files, as this process sees them.
        deadline: seconds that a decision may take.
        look: seconds between two comparisons with the runtime.
    """

    socket: Path
    runtime: Path = Path("/run/containerd/containerd.sock")
    devices: str = "/run/partage/devices"
    root: Path = Path("/")
    deadline: float = 1.5
    look: float = 30.0


class Proxy:
    """One proxy; `ready` is set while it serves and has compared with the runtime."""

    def __init__(
        self, decider: Keeper, options: ProxyOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self._clock = clock
        self.ready = asyncio.Event()
        self._decider = decider
        self._file_of = partial(device_file, options.root, options.devices)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cri")
        self._runtime: Any = None
        self._looking = asyncio.Lock()
        self._making: dict[str, Container] = {}  # decided, and not created yet
        self._fresh: dict[str, Container] = {}  # created since the last look began
        self._gone: set[str] = set()  # ended since then
        self._unnamed: dict[str, str] = {}  # created, and not renamed: the disk refused it
        self._why = "it has not answered yet"
        self._heard = -math.inf

    @property
    def problem(self) -> str:
        """Why the kubelet does not use this proxy for its containers; empty while it does."""
        if not self.ready.is_set():
            return f"the container runtime ({self.options.runtime}) is not there: {self._why}"
        if self._clock() - self._heard > _SILENCE:
            needs = f"containerRuntimeEndpoint: unix://{self.options.socket}"
            return f"the kubelet does not ask the agent; its configuration needs {needs}"
        return ""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises `InvalidValue`: the socket cannot be opened."""
        ended = asyncio.create_task(stop.wait(), name="cri:stop")
        channel = grpc.aio.insecure_channel(
            f"unix:{self.options.runtime}", options=_UNBOUNDED + PROMPT
        )
        self._runtime = channel
        server = grpc.aio.server(options=_UNBOUNDED)
        server.add_generic_rpc_handlers((_Everything(self),))
        try:
            try:
                listen(server, self.options.socket)
            except (OSError, RuntimeError) as error:
                raise InvalidValue(f"socket {self.options.socket}: {error}") from error
            await server.start()
            _LOG.info("the kubelet is served at %s", self.options.socket)
            while not stop.is_set():
                self._told(await self._look())
                await asyncio.wait(
                    (ended,), timeout=self.options.look if self.ready.is_set() else 0.2
                )
        finally:
            ended.cancel()
            self.ready.clear()
            await server.stop(1.0)
            await channel.close()
            self._thread.shutdown(wait=False, cancel_futures=True)

    def heard(self) -> None:
        """Note a call of the kubelet."""
        self._heard = self._clock()

    def _told(self, problem: str) -> None:
        if problem and self.ready.is_set():
            _LOG.warning("the runtime does not list its containers: %s", problem)
        self._why = problem
        if problem:
            self.ready.clear()
        else:
            self.ready.set()

    async def _look(self) -> str:
        """Compare with the runtime; return why that is impossible, or nothing."""
        async with self._looking:
            before = set(self._fresh)
            self._gone.clear()
            try:
                # In this order: the pod of each listed container is listed too.
                listed = await self._ask("ListContainers", cri.ListedContainers)
                pods = await self._ask("ListPodSandbox", cri.ListedPods)
            except grpc.aio.AioRpcError as error:
                return error.details() or "no answer"
            except Malformed as error:
                return str(error)
            try:
                await self._decided(lambda: self._compare(pods, listed, before))
            except OSError as error:
                # A full disk must not end the path by which every container is created.
                return f"its answer cannot be written down: {error.strerror or error}"
            return ""

    def _compare(
        self, pods: cri.ListedPods, listed: cri.ListedContainers, before: set[str]
    ) -> None:
        """Report the runtime's content to the decider, in its thread, which decides nothing meanwhile.

        A list is as old as its request: the proxy knows better what was created or has ended since.
        """
        sandboxes = tuple(
            PodSandbox(one.id, head.name, head.uid, head.namespace, one.labels, one.annotations)
            for one in pods.items
            if (head := one.metadata) is not None
        )
        known: dict[str, Container] = {}
        made: set[str] = set()
        for one in listed.containers:
            if one.state == cri.EXITED or one.metadata is None or one.id in self._gone:
                continue
            key = key_of(one.pod, one.metadata.name, one.metadata.attempt)
            self._decider.rename(key, one.id)
            made.add(key)
            name = one.metadata.name
            known[one.id] = Container(one.id, one.pod, name, annotations=one.annotations)
        young = {key: one for key, one in list(self._fresh.items()) if key not in before}
        for key, container in (young | self._making).items():
            if key not in made:
                known.setdefault(key, container)
        self._decider.synchronize(sandboxes, tuple(known.values()))
        for key in before:
            self._fresh.pop(key, None)
        self._unnamed = {one: key for one, key in self._unnamed.items() if key not in before}

    async def _ask(self, method: str, of: type[M]) -> M:
        call = self._runtime.unary_unary(f"/{cri.RUNTIME}/{method}")
        answer: bytes = await call(b"", timeout=_PATIENCE)
        # In the thread, as tenants' pods may have a hundred thousand labels.
        return await self._decided(lambda: of.decode(answer))

    async def _decided(self, decide: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, decide)

    # --- calls -------------------------------------------------------------------------------

    async def stream(self, method: str, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Pass on a call with many answers, each at its arrival."""
        call = self._runtime.unary_stream(method)(
            request, timeout=context.time_remaining(), metadata=_passed(context)
        )
        begun = False
        try:
            async for answer in call:
                begun = True
                yield answer
            context.set_trailing_metadata(tuple(await call.trailing_metadata() or ()))
        except grpc.aio.AioRpcError as error:
            if begun or error.code() is not grpc.StatusCode.INTERNAL:
                await _refused(context, error)
        else:
            return
        finally:
            call.cancel()
        # A runtime without such a call may end it before it was sent, and this library then loses the reason. The
        # same call with one answer returns the reason, and the kubelet acts on it.
        yield await self.forward(method, request, context)

    async def forward(self, method: str, request: bytes, context: Any) -> bytes:
        """Pass on a call of any kind, and its answer."""
        try:
            return await self._call(method, request, context)
        except grpc.aio.AioRpcError as error:
            return await _refused(context, error)

    async def ending(self, method: str, request: bytes, context: Any) -> bytes:
        """Pass on the end of a container, and release its grants afterwards."""
        answer = await self.forward(method, request, context)
        with contextlib.suppress(Malformed):
            gone = cri.Identity.decode(request).id
            await self._decided(lambda: self._ended(gone))
        return answer

    async def starting(self, method: str, request: bytes, context: Any) -> bytes:
        """Pass on the start of a container, unless it must not start."""
        try:
            identity = cri.Identity.decode(request).id
            if self._decider.has_room(self._unnamed.get(identity, "")):
                await self._decided(lambda: self._named(identity))
            if self._decider.has_room(identity):
                found = await made(self._runtime, identity, self.options.root)
                container = Container(identity, args=found.args, env=found.env)
                await self._decided(
                    lambda: self._decider.start(PodSandbox(), container, found.layers, found.why)
                )
        except (Refused, OSError) as error:
            await context.abort(grpc.StatusCode.UNKNOWN, f"partage: {error}")
        except Malformed:
            pass  # the runtime reports its fault
        return await self.forward(method, request, context)

    async def create(self, request: bytes, context: Any) -> bytes:
        """Decide about a container, and have it created with its grants."""
        container: Container | None = None
        try:
            told = await self._decided(lambda: self._read(request))
            image = await self._image(told, request)
            pod, container = asked(told, image)
            if (adjustment := await self._adjusted(pod, container)) is not None:
                request = edited(request, adjustment, self._file_of)
            answer = await self._call(_CREATE, request, context)
            await self._settled(self._made, container, cri.Identity.decode(answer).id)
        except (Refused, Malformed, InvalidValue) as error:
            await self._settled(self._unmade, container)
            await context.abort(grpc.StatusCode.UNKNOWN, f"partage: {error}")
            raise
        except grpc.aio.AioRpcError as error:
            if error.code() not in _OPEN:
                await self._settled(self._unmade, container)
            return await _refused(context, error)
        else:
            return answer
        finally:
            if container is not None:
                # After the pending decision of a cancelled call, or at the proxy's end.
                with contextlib.suppress(RuntimeError):
                    self._thread.submit(self._left_open, container)

    async def _settled(
        self, settle: Callable[..., None], container: Container | None, *more: str
    ) -> None:
        if container is not None:
            await self._decided(lambda: settle(container, *more))

    # In the decider's thread:

    def _read(self, request: bytes) -> cri.CreateRequest:
        """The request, unless it would hold up those of others."""
        try:
            why = too_long(field_of(request, cri.CONFIG))
        except Malformed as error:
            raise Malformed(f"CreateRequest: {error}") from None
        if why:
            raise self._decider.large(f"{_where(request)}: {why}")
        return cri.CreateRequest.decode(request)

    def _decide(self, pod: PodSandbox, container: Container) -> Adjustment | None:
        adjustment = self._decider.create(pod, container)
        given = adjustment.annotations if adjustment is not None else {}
        self._making[container.id] = Container(
            container.id, container.pod_sandbox_id, container.name, annotations=given
        )
        return adjustment

    def _made(self, container: Container, identity: str) -> None:
        try:
            self._decider.rename(container.id, identity)
        except OSError as error:
            # It is created, and recorded under its earlier name: the next look tries again.
            _LOG.warning("container %s: %s", identity, error.strerror or error)
            self._left_open(container)
            self._unnamed[identity] = container.id
            return
        self._fresh[identity] = replace(self._making.pop(container.id, container), id=identity)

    def _named(self, identity: str) -> None:
        """Rename a container before it starts: its room has its earlier name. Raises `OSError`."""
        if before := self._unnamed.get(identity):
            self._decider.rename(before, identity)
            self._unnamed.pop(identity, None)
            if decided := self._fresh.pop(before, None):
                self._fresh[identity] = replace(decided, id=identity)

    def _unmade(self, container: Container) -> None:
        self._making.pop(container.id, None)
        self._removed(container)

    def _removed(self, container: Container) -> None:
        try:
            self._decider.remove(container)
        except OSError as error:
            # It holds nothing any more; the next look finds an entry that was not written.
            _LOG.warning("container %s: its end cannot be recorded: %s", container.id, error)

    def _left_open(self, container: Container) -> None:
        """It may exist or not: a look that begins later will show it."""
        if decided := self._making.pop(container.id, None):
            self._fresh[container.id] = decided

    def _ended(self, identity: str) -> None:
        self._gone.add(identity)
        self._unnamed.pop(identity, None)
        self._fresh.pop(identity, None)
        self._removed(Container(identity))

    # During a call:

    async def _image(self, told: cri.CreateRequest, create: bytes) -> tuple[str, ...]:
        """Variables of the image; the runtime has it, or it could not create the container. Raises `Refused`."""
        image = told.config.image if told.config else None
        call = self._runtime.unary_unary(f"/{cri.IMAGE}/ImageStatus")
        request = cri.ImageStatusRequest(image, verbose=True)
        answer = await call(request.encode(), timeout=_PATIENCE)
        details = cri.Details.decode(answer)
        size = sum(map(len, details.info.values()))
        env = image_environment(details) if size <= LARGEST_IMAGE else ()
        if why := image_too_long(size, len(env)):
            raise self._decider.large(f"{_where(create)}: {why}")
        return env

    async def _adjusted(self, pod: PodSandbox, container: Container) -> Adjustment | None:
        """The decision; a refusal is checked again after a look for ended containers."""
        try:
            return await self._in_time(pod, container)
        except Refused:
            await self._look()
            return await self._in_time(pod, container)

    async def _in_time(self, pod: PodSandbox, container: Container) -> Adjustment | None:
        try:
            async with asyncio.timeout(self.options.deadline):
                return await self._decided(lambda: self._decide(pod, container))
        except TimeoutError:
            self._decider.late(pod, container)
            # A late decision is for a container that will never exist.
            self._thread.submit(self._unmade, container)
            raise too_late(pod, container, self.options.deadline) from None

    async def _call(self, method: str, request: bytes, context: Any) -> bytes:
        call = self._runtime.unary_unary(method)(
            request, timeout=context.time_remaining(), metadata=_passed(context)
        )
        try:
            answer: bytes = await call
            context.set_trailing_metadata(tuple(await call.trailing_metadata() or ()))
        finally:
            call.cancel()
        return answer


class _Everything(grpc.GenericRpcHandler):  # type: ignore[misc] # grpcio has no types
    """Handles all calls of the kubelet."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def service(self, details: Any) -> Any:
        """The handler of a call by its name, without a list of all calls."""
        method: str = details.method
        proxy = self._proxy
        proxy.heard()
        one, many = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        if method == _CREATE:
            return one(proxy.create)
        if method in _ENDING:
            return one(partial(proxy.ending, method))
        if method == _START:
            return one(partial(proxy.starting, method))
        # The calls with many answers; no call of CRI has many requests.
        if method.endswith("/GetContainerEvents") or "/Stream" in method:
            return many(partial(proxy.stream, method))
        return one(partial(proxy.forward, method))


def _where(request: bytes) -> str:
    """Pod and container of a request, which is not read otherwise; for people."""
    text = partial(text_of, request)
    pod = PodSandbox(name=text(cri.POD_CONFIG, 1, 1), namespace=text(cri.POD_CONFIG, 1, 3))
    told = named(pod, Container(name=text(cri.CONFIG, 1, 1)))
    return told.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _passed(context: Any) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata of a call that belongs to it."""
    return tuple(
        (key, value) for key, value in context.invocation_metadata() or () if key not in _OWN
    )


async def _refused(context: Any, error: grpc.aio.AioRpcError) -> bytes:
    """End a call with the runtime's status."""
    trailing = tuple(error.trailing_metadata() or ())
    await context.abort(error.code(), error.details() or "", trailing)
    raise AssertionError("a call that was ended goes on")

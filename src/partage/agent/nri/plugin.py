"""The NRI plugin as a loop: connects, registers, answers, and reconnects when the runtime was away.

The decider works in a thread of its own, one container at a time, so a hanging file system cannot keep this loop from
answering. The same thread reads pods and containers, which tenants make as long as they like. A container without a
decision by the deadline is refused. The loop answers the end of a container before the journal has it, because the
runtime would otherwise wait two seconds, drop the plugin, and start containers without their adjustments.

Source: docs/sources/kubernetes.md 1.4 and 1.5.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

from partage.agent.nri import messages as nri
from partage.agent.nri.bounds import too_long
from partage.agent.nri.session import OK, UNIMPLEMENTED, UNKNOWN, Answered, Called, Listed, Session
from partage.agent.protobuf import Empty, Message, field_of, text_of
from partage.kube.retry import Backoff
from partage.model.errors import PartageError
from partage.wire.protobuf import Malformed, pieces

_LOG: Final = logging.getLogger("partage.agent")
_MASK: Final = sum(1 << (event - 1) for event in nri.Event)
"""Only events of every runtime with this interface, because an unknown bit ends the connection."""
_NO_NAMES: Final = ("1.", "2.0.")
"""Prefixes of containerd's versions whose NRI drops CDI names without an error."""
_PIECE: Final = 1 << 20
_AHEAD: Final = 32 << 20
"""Bytes of a list that are held unread; a runtime that sends more waits."""
_SHARE: Final = 0.75
"""The part of the runtime's time limit that a decision may take."""
_OFF: Final = (
    "NRI is off in the container runtime, or its socket is elsewhere (--nri-socket). containerd before "
    '2.0 needs disable = false under [plugins."io.containerd.nri.v1.nri"] in its configuration; '
    "runtimes without NRI are asked by --cri-socket"
)
"""The likeliest reasons for a missing socket."""
_T = TypeVar("_T")
_ContainerCall: TypeAlias = nri.ContainerRequest | nri.StateChange


class Refused(PartageError):
    """A container must not be created; the message names pod, container and rule."""


def too_late(pod: nri.PodSandbox, container: nri.Container, seconds: float) -> Refused:
    """The refusal of a container without a decision."""
    return Refused(
        f"{nri.named(pod, container)}: not decided within {seconds:g} s; "
        "the container is not started without its devices"
    )


class Decider(Protocol):
    """Decides about containers. Called from one thread, one call at a time."""

    def create(self, pod: nri.PodSandbox, container: nri.Container) -> nri.Adjustment | None:
        """The changes of a container; None leaves it unchanged. Raises `Refused`."""

    def start(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        """A container is created and about to start its first program. Raises `Refused`."""

    def has_room(self, container: str) -> bool:
        """Whether its image must be checked before it starts; from any thread."""

    def remove(self, container: nri.Container) -> None:
        """A container has ended, or is gone; may be called twice."""

    def synchronize(
        self, pods: tuple[nri.PodSandbox, ...], containers: tuple[nri.Container, ...]
    ) -> None:
        """Receive all pods and containers, after each connection."""

    def late(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        """A container was refused because its decision took too long."""

    def large(self, why: str) -> Refused:
        """A container is refused because its description is too long; from any thread."""


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """The settings of a plugin.

    Attributes:
        index: two digits; the runtime calls plugins with lower ones first.
        deadline: seconds that a decision may take.
        patience: seconds that the runtime may be silent while it connects, registers the plugin and lists containers.
        told: receives whether the runtime accepts CDI names, before the first decision.
        kept: reduces a container until all existing ones have arrived: together they may be gigabytes.
    """

    socket: Path = Path("/var/run/nri/nri.sock")
    name: str = "partage"
    index: str = "10"
    deadline: float = 1.5
    patience: float = 10.0
    again: Backoff = Backoff(base=0.1, cap=5.0)
    told: Callable[[bool], None] = lambda _knows: None
    kept: Callable[[nri.Container], nri.Container] = lambda one: one


class Plugin:
    """One plugin; `ready` is set while the runtime has listed all containers and asks the plugin about new ones."""

    def __init__(self, decider: Decider, options: PluginOptions | None = None) -> None:
        self.options = options or PluginOptions()
        self.ready = asyncio.Event()
        self._why = "it has not answered yet"
        self.decider = decider
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="nri")

    @property
    def problem(self) -> str:
        """Why the runtime does not ask the plugin about containers; empty while it does."""
        if self.ready.is_set():
            return ""
        return f"the container runtime does not ask the agent ({self.options.socket}): {self._why}"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, across restarts of the runtime. Raises no error of the runtime."""
        ended = asyncio.create_task(stop.wait(), name="nri:stop")
        tries = 0
        connection: asyncio.Task[None] | None = None
        try:
            while not stop.is_set():
                connection = asyncio.create_task(self._connection(), name="nri:connection")
                await asyncio.wait((connection, ended), return_when=asyncio.FIRST_COMPLETED)
                tries = 0 if self.ready.is_set() else tries + 1
                self.ready.clear()
                if not connection.done():
                    connection.cancel()
                await asyncio.wait((connection,))
                if stop.is_set():
                    if not connection.cancelled():
                        connection.exception()  # its error does not matter any more
                    return
                self._report(connection, tries)
                delay = self.options.again.delay(max(tries - 1, 0), random.random())  # noqa: S311 # spreads restarts
                await asyncio.wait((ended,), timeout=delay)
        finally:
            ended.cancel()
            if connection is not None:
                connection.cancel()
            self.thread.shutdown(wait=False, cancel_futures=True)

    def _report(self, connection: asyncio.Task[None], tries: int) -> None:
        error = connection.exception()
        if isinstance(error, (OSError, Malformed, TimeoutError, Refused)):
            self._why = _OFF if isinstance(error, FileNotFoundError) else str(error) or "no answer"
            level = logging.WARNING if tries <= 1 else logging.DEBUG
            _LOG.log(level, "%s; trying again", self.problem)
        elif error is not None:
            self._why = "the connection failed; see the agent's log"
            _LOG.error("the connection to the runtime failed", exc_info=error)
        else:
            self._why = "it closed the connection"
            _LOG.warning("the runtime closed the connection; trying again")

    async def _connection(self) -> None:
        async with asyncio.timeout(self.options.patience):
            reader, writer = await asyncio.open_unix_connection(
                str(self.options.socket), limit=_PIECE
            )
        try:
            serving = _Connection(self, writer)
            await serving.run(reader)
        finally:
            writer.close()


class _Connection:
    """One connection, from registration to its end."""

    def __init__(self, plugin: Plugin, writer: asyncio.StreamWriter) -> None:
        self._plugin = plugin
        self._writer = writer
        self._session = Session()
        self._registration = 0
        self._pods: list[nri.PodSandbox] = []
        self._containers: list[nri.Container] = []
        self._unread: list[bytes] = []
        self._ahead = 0  # bytes of these: a list may have tens of thousands of parts
        self._tasks: set[asyncio.Task[None]] = set()
        self._limit: asyncio.Timeout | None = None
        self._lists = True
        """Whether the runtime has not listed all containers yet."""
        self._knows_cdi = True
        self._methods: Mapping[str, Callable[[Called], Awaitable[Message]]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
            "StopContainer": self._stop,
            "StartContainer": self._start,
            "RemoveContainer": self._stop,
            "StateChange": self._state_change,
            "Shutdown": self._shutdown,
        }

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Register and answer until the runtime closes.

        Raises `Malformed`: it broke the protocol; `Refused`: it refuses the plugin; `TimeoutError`: it was silent.
        """
        argument = nri.RegisterPluginRequest(self._plugin.options.name, self._plugin.options.index)
        self._registration, data = self._session.call("RegisterPlugin", argument)
        self._writer.write(data)
        try:
            async with asyncio.timeout(self._plugin.options.patience) as limit:
                self._limit = limit
                while data := await reader.read(_PIECE):
                    for event in self._session.receive(data):
                        self._heard()
                        await self._take(event)
        finally:
            for task in self._tasks:
                task.cancel()

    def _heard(self) -> None:
        """Give a runtime that has not listed everything its whole patience again: tenants make the lists long."""
        if self._limit is not None and self._lists:
            patience = self._plugin.options.patience
            self._limit.reschedule(asyncio.get_running_loop().time() + patience)

    async def _take(self, event: Called | Answered | Listed) -> None:
        if isinstance(event, Listed):
            await self._hold(event.payload)
            return
        if isinstance(event, Answered):
            if event.stream == self._registration and event.code != OK:
                raise Refused(f"the runtime does not register the plugin: {event.message}")
            return
        if event.service != nri.PLUGIN or event.method not in self._methods:
            why = f"{event.service}/{event.method} is not implemented"
            self._writer.write(self._session.refuse(event.stream, UNIMPLEMENTED, why))
            return
        self._beside(self._answer(event), f"nri:{event.method}")

    def _beside(self, work: Coroutine[object, object, None], name: str) -> None:
        """Do it while the connection is read; the set holds the tasks until they end."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Called) -> None:
        try:
            data = self._session.answer(call.stream, await self._methods[call.method](call))
        except (Refused, Malformed) as error:
            data = self._session.refuse(call.stream, UNKNOWN, str(error))
        except OSError as error:
            _LOG.warning("%s failed: %s", call.method, error)
            data = self._session.refuse(call.stream, UNKNOWN, f"partage: {call.method}: {error}")
        except Exception:  # noqa: BLE001 # whatever it is, silence would start the container
            _LOG.exception("%s failed", call.method)
            why = f"partage: {call.method} failed; see the agent's log"
            data = self._session.refuse(call.stream, UNKNOWN, why)
        self._writer.write(data)

    # --- calls -------------------------------------------------------------------------------

    async def _configure(self, call: Called) -> Message:
        told = nri.ConfigureRequest.decode(call.payload)
        _LOG.info("registered with %s %s", told.runtime_name, told.runtime_version)
        old = told.runtime_version.removeprefix("v").startswith(_NO_NAMES)
        self._knows_cdi = not (told.runtime_name == "containerd" and old)
        self._plugin.options.told(self._knows_cdi)
        return nri.ConfigureResponse(_MASK)

    async def _synchronize(self, call: Called) -> Message:
        more = bool(field_of(call.payload, 3))
        await self._hold(call.payload)
        if not more:
            self._lists = False
            work = self._begun(self._listed)
            # The runtime's time began with the first byte of the list.
            if await self._in_time(call, work, self._deadline(call) / 4):
                self._plugin.ready.set()
            else:
                self._beside(self._ready_after(work), "nri:synchronized")
            if self._limit is not None:
                self._limit.reschedule(None)
        return nri.SynchronizeResponse(more)

    async def _hold(self, payload: bytes) -> None:
        """Keep a part of the list, unread: the runtime gives all of it two seconds, and a thread would delay the next."""
        self._unread.append(payload)
        self._ahead += len(payload)
        if self._ahead > _AHEAD:
            await self._begun(self._read)

    def _read(self) -> None:
        """Keep what is looked at of the parts that have arrived. Raises `Malformed`."""
        parts, self._unread, self._ahead = self._unread, [], 0
        for number, _, item in chain.from_iterable(pieces(memoryview(one)) for one in parts):
            if number == 1:
                self._pods.append(nri.PodSandbox.decode(item))
            elif number == 2:
                self._containers.append(self._plugin.options.kept(nri.Container.decode(item)))

    def _listed(self) -> None:
        """Pass on all that was listed. Raises `Malformed`."""
        self._read()
        pods, containers = tuple(self._pods), tuple(self._containers)
        self._pods, self._containers = [], []
        self._plugin.decider.synchronize(pods, containers)

    async def _ready_after(self, work: asyncio.Future[None]) -> None:
        try:
            await asyncio.shield(work)
        except Exception:  # noqa: BLE001 # `_tell_late` reports it
            if self._limit is not None:
                self._limit.reschedule(0)  # the runtime lists its containers on a new connection
        else:
            self._plugin.ready.set()

    async def _create(self, call: Called) -> Message:
        pod, container = _named(call.payload)

        def decide() -> nri.Adjustment | None:
            if why := too_long(field_of(call.payload, 2), call.length):
                raise self._plugin.decider.large(f"{nri.named(pod, container)}: {why}")
            return self._plugin.decider.create(*_asked(nri.ContainerRequest.decode(call.payload)))

        deadline = self._deadline(call)
        try:
            async with asyncio.timeout(deadline):
                adjustment = await self._begun(decide)
        except TimeoutError:
            self._plugin.decider.late(pod, container)
            # If the same thread decides later after all, no container gets its decision.
            self._plugin.thread.submit(self._plugin.decider.remove, container)
            raise too_late(pod, container, deadline) from None
        if adjustment is not None and adjustment.cdi_devices and not self._knows_cdi:
            await self._begun(lambda: self._plugin.decider.remove(container))
            raise Refused(
                f"{nri.named(pod, container)}: its runtime leaves out CDI devices that NRI asks for, before containerd 2.1"
            )
        return nri.CreateContainerResponse(adjustment)

    async def _stop(self, call: Called, fields: tuple[int, int] = (1, 2)) -> Message:
        _, gone = _named(call.payload, *fields)
        if gone.id:
            await self._in_time(call, self._begun(lambda: self._plugin.decider.remove(gone)))
        return Empty()

    async def _start(
        self,
        call: Called,
        of: type[_ContainerCall] = nri.ContainerRequest,
        fields: tuple[int, int] = (1, 2),
    ) -> Message:
        pod, container = _named(call.payload, *fields)
        if not container.id or not self._plugin.decider.has_room(container.id):
            return Empty()
        work = self._begun(lambda: self._plugin.decider.start(*_asked(of.decode(call.payload))))
        if not await self._in_time(call, work):
            raise Refused(
                f"{nri.named(pod, container)}: its image was not looked at within {self._deadline(call):g} s"
            )
        return Empty()

    async def _state_change(self, call: Called) -> Message:
        """An event of a runtime with NRI before 0.12, which has no separate calls for these."""
        event, fields = field_of(call.payload, 1), (2, 3)
        if event == nri.Event.REMOVE_CONTAINER:
            return await self._stop(call, fields)
        if event == nri.Event.START_CONTAINER:
            return await self._start(call, nri.StateChange, fields)
        return Empty()

    async def _shutdown(self, _call: Called) -> Message:
        _LOG.info("the runtime shuts down")
        return Empty()

    def _deadline(self, call: Called) -> float:
        deadline = self._plugin.options.deadline
        return min(deadline, call.timeout * _SHARE) if call.timeout else deadline

    async def _in_time(
        self, call: Called, work: asyncio.Future[None], seconds: float | None = None
    ) -> bool:
        """Whether the work is done by the deadline. Otherwise it continues, and all later decisions wait for it."""
        limit = self._deadline(call) if seconds is None else seconds
        done, _ = await asyncio.wait((work,), timeout=limit)
        if done:
            work.result()
            return True
        if seconds is None:
            _LOG.warning("%s takes longer than the runtime waits; it goes on", call.method)
        work.add_done_callback(partial(_tell_late, call.method))
        return False

    def _begun(self, decide: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._plugin.thread, decide)


def _named(
    payload: bytes, pod: int = 1, container: int = 2
) -> tuple[nri.PodSandbox, nri.Container]:
    """A call's pod and container by name, without reading all that a tenant wrote; empty names if they are missing."""
    text = partial(text_of, payload)
    return (
        nri.PodSandbox(name=text(pod, 2), uid=text(pod, 3), namespace=text(pod, 4)),
        nri.Container(text(container, 1), name=text(container, 3)),
    )


def _asked(told: _ContainerCall) -> tuple[nri.PodSandbox, nri.Container]:
    """Pod and container of a call. Raises `Malformed`: one is missing."""
    if told.pod is None or told.container is None:
        raise Malformed("a call about a container without a pod or a container")
    return told.pod, told.container


def _tell_late(method: str, work: asyncio.Future[None]) -> None:
    error = None if work.cancelled() else work.exception()
    if error is not None:
        _LOG.warning("%s failed: %s", method, error)

"""Keeps one device plugin registered with the kubelet, in any order of their starts and restarts.

    kubelet there ──> our socket ──> Register ──> the kubelet listens ──> until either is lost ──┐
         ^                                                                                       │
         └───────────────────────────────────────────────────────────────────────────────────────┘

Reasons of each step, read in the kubelet's source (v1.36.4, `pkg/kubelet/cm/devicemanager`):

* When the kubelet starts, it removes every socket in the folder, and then creates its own. A plugin whose socket was
  created just before registers with the new kubelet, which dials the deleted file for 10 s. So the plugin checks both
  files while `Register` waits, and cancels the call when either is a different one.
* `Register` answers before the kubelet listens. If the stream of an earlier registration ends after a
  later one, the kubelet drops the later one, without notice if it did not listen yet. So the plugin repeats a
  registration that the kubelet does not listen to.
* A kubelet that ended leaves its socket. The plugin retries refused connections at growing intervals, and
  at once when the socket is a different one.
* gRPC may share connections of one address between channels: see `_ALONE`.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from partage.agent.kubelet import messages as said
from partage.agent.sockets import identity, listen
from partage.kube.retry import Backoff

_LOG: Final = logging.getLogger("partage.agent")
_PATIENCE: Final = 10.0
"""Seconds that `Register` may take; the kubelet dials equally long."""
_ALONE: Final = (("grpc.use_local_subchannel_pool", 1),)
"""By default the channels of a process may share the connections to one address, and the growing pauses after
refused ones. A new channel to a restarted kubelet starts without them (a precaution: no test here has shown
the pauses to last)."""
_T = TypeVar("_T")
File = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PluginFiles:
    """The path of the kubelet's folder, and how often it is checked.

    Attributes:
        folder: of the device plugins' sockets, the kubelet's own among them.
        look: seconds between two checks whether a socket is a different one.
        listening: seconds that the kubelet may take from `Register` to listening.
    """

    folder: Path = Path("/var/lib/kubelet/device-plugins")
    look: float = 0.5
    listening: float = 3.0
    again: Backoff = Backoff(base=0.2, cap=5.0)

    @property
    def kubelet(self) -> Path:
        """The kubelet's socket."""
        return self.folder / "kubelet.sock"


class _Moved(Exception):
    """A socket is a different one now, or gone."""


class _Failed(Exception):
    """A registration failed; the message contains the reason."""


@dataclass(frozen=True, slots=True)
class Session:
    """One registration. `listens` and `lost`: set once the kubelet listens, and once it listens no more."""

    listens: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Registrar:
    """Registers one plugin repeatedly; `run` it.

    `asked`: its `endpoint` is the plugin's socket in the kubelet's folder. `serve`: the handler for one registration.
    """

    files: PluginFiles
    asked: said.RegisterRequest
    serve: Callable[[Session], Any]
    chance: Callable[[], float]

    @property
    def _own(self) -> Path:
        return self.files.folder / self.asked.endpoint

    async def run(self) -> None:
        """Serve and register until cancelled, and wait for a kubelet that is away."""
        tries = 0
        while True:
            since = identity(self.files.kubelet)
            if since is None:
                await asyncio.sleep(self.files.look)
                continue
            pause = 0.0
            try:
                await self._registered(since)
                tries, pause = 0, self.files.again.base
                self._tell(logging.INFO, "the kubelet dropped the plugin; registering again")
            except _Moved:
                tries = 0
                self._tell(logging.INFO, "the kubelet has restarted; registering again")
            except (grpc.aio.AioRpcError, OSError, RuntimeError, _Failed) as error:
                why = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
                level = logging.DEBUG if tries else logging.WARNING
                self._tell(level, f"not registered: {why}; trying again")
                pause = self.files.again.delay(tries, self.chance())
                tries += 1
            if await self._rest(pause, since):
                tries = 0

    def _tell(self, level: int, what: str) -> None:
        _LOG.log(level, "%s: %s", self.asked.resource_name, what)

    async def _registered(self, since: File) -> None:
        """Serve and stay registered; return when the kubelet has dropped the plugin.

        Raises `_Moved`: the kubelet restarted, or removed our socket; `_Failed`: it does not listen.
        """
        await self._probe()
        session = Session()
        async with self._serving(session):
            own = identity(self._own)
            if own is None:
                raise _Moved
            await self._unless_moved(self._register(), since, own)
            try:
                async with asyncio.timeout(self.files.listening):
                    await self._unless_moved(session.listens.wait(), since, own)
            except TimeoutError:
                raise _Failed("the kubelet accepted it and does not listen") from None
            self._tell(logging.INFO, "registered")
            await self._unless_moved(session.lost.wait(), since, own)

    async def _probe(self) -> None:
        """Check that a kubelet answers before the plugin creates anything for it."""
        async with asyncio.timeout(_PATIENCE):  # a TimeoutError is an OSError
            _, writer = await asyncio.open_unix_connection(self.files.kubelet)
        writer.close()

    @contextlib.asynccontextmanager
    async def _serving(self, session: Session) -> AsyncIterator[None]:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self.serve(session),))
        listen(server, self._own)
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    async def _register(self) -> None:
        target = f"unix:{self.files.kubelet}"
        async with grpc.aio.insecure_channel(target, options=_ALONE) as channel:
            call = channel.unary_unary(f"/{said.REGISTRATION}/Register")
            await call(self.asked.encode(), timeout=_PATIENCE)

    async def _unless_moved(self, doing: Awaitable[_T], since: File, own: File) -> _T:
        """Wait for a result while both sockets are the same files.

        Raises `_Moved`: one is gone, or the kubelet's is a different one; `_Failed`: ours is a different one.
        """
        task = asyncio.ensure_future(doing)
        try:
            while not task.done():
                mine = identity(self._own)
                if identity(self.files.kubelet) != since or mine is None:
                    raise _Moved
                if mine != own:
                    # Registered again at growing intervals only, or two agents would keep each other busy.
                    raise _Failed(
                        f"another process serves {self._own}; is a second agent running?"
                    )
                await asyncio.wait((task,), timeout=self.files.look)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    async def _rest(self, seconds: float, since: File) -> bool:
        """Wait before the next try; true if the wait ended early because the kubelet's socket is a different one."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0 and identity(self.files.kubelet) == since:  # noqa: ASYNC110
            await asyncio.sleep(min(self.files.look, left))
        return left > 0

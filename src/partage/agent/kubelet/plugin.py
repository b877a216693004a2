"""Serves the kubelet: one device plugin a resource, registered anew whenever the kubelet was away.

`Allocate` names no pod, so nothing here guesses one and nothing is given. Every container that gets units
is marked; the plugin of the runtime, which sees the pod and its record, puts in what was granted and
takes the mark away, and refuses a marked container without a record. (`NVIDIA_VISIBLE_DEVICES=void`
beside the mark would be safer still, but a variable that image and kubelet both set cannot be changed
by NRI, and images for CUDA set this one.)

A kubelet that starts empties the folder of sockets; then they are made again. Source: kubernetes.md 3.2.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from partage.agent.giving import MARK
from partage.agent.kubelet import messages as said
from partage.agent.kubelet.units import Offer
from partage.agent.protobuf import Malformed
from partage.kube.retry import Backoff

__all__ = ["DevicePlugins", "PluginFiles"]

_LOG: Final = logging.getLogger("partage.agent")

_PATIENCE: Final = 10.0
_WORD: Final = re.compile(r"[^A-Z0-9]")
Advise = Callable[[Offer, said.ContainerPreference], Awaitable[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class PluginFiles:
    """Where the kubelet is, and how often it is looked for.

    Attributes:
        folder: of the device plugins' sockets, the kubelet's own among them.
        look: seconds between two looks whether the kubelet was started anew.
        again: waits between registrations that fail.
    """

    folder: Path = Path("/var/lib/kubelet/device-plugins")
    look: float = 1.0
    again: Backoff = Backoff(base=0.2, cap=10.0)

    @property
    def kubelet(self) -> Path:
        """The kubelet's socket."""
        return self.folder / "kubelet.sock"


class DevicePlugins:
    """All device plugins of one node; `take` what is offered, and `run` it."""

    def __init__(
        self,
        files: PluginFiles,
        advise: Advise,
        allow: Callable[[], Awaitable[str]],
        chance: Callable[[], float],
    ) -> None:
        """Plugins that offer nothing yet.

        Args:
            files: where the kubelet is.
            advise: which units suit a container.
            allow: why no container may get units at present; empty when one may. May wait a while.
            chance: between 0 and 1; spreads what is tried again.
        """
        self._files = files
        self._advise = advise
        self._allow = allow
        self._chance = chance
        self._plugins: dict[str, _Served] = {}
        self._news = asyncio.Event()

    def take(self, offers: tuple[Offer, ...]) -> None:
        """Offer this from now on; a resource that is not among them has no units any more."""
        fresh = {one.resource: one for one in offers}
        for resource in self._plugins.keys() - fresh.keys():
            self._plugins[resource].take(Offer(resource, ()))
        for resource, offer in fresh.items():
            if resource in self._plugins:
                self._plugins[resource].take(offer)
                continue
            if offer.dropped:
                _LOG.warning("%s: %d units more than may be told", resource, offer.dropped)
            self._plugins[resource] = _Served(
                offer, self._advise, self._allow, self._files, self._chance
            )
            self._news.set()

    @property
    def registered(self) -> frozenset[str]:
        """Resources whose units the kubelet has been told."""
        return frozenset(name for name, one in self._plugins.items() if one.watchers)

    async def run(self) -> None:
        """Serve until cancelled; a kubelet that is away is waited for."""
        running: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                self._news.clear()
                for resource, one in self._plugins.items():
                    if resource not in running:
                        running[resource] = asyncio.create_task(
                            one.run(), name=f"kubelet:{resource}"
                        )
                news = asyncio.create_task(self._news.wait(), name="kubelet:news")
                try:
                    done, _ = await asyncio.wait(
                        (news, *running.values()), return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    news.cancel()
                for task in done - {news}:
                    task.result()  # a fault of ours ends the agent rather than hide
        finally:
            for task in running.values():
                task.cancel()
            if running:
                await asyncio.wait(running.values())


@dataclass(eq=False)
class _Served:
    """The plugin of one resource.

    Attributes:
        offer: its units.
        watchers: streams on which the kubelet is told of them.
    """

    offer: Offer
    advise: Advise
    allow: Callable[[], Awaitable[str]]
    files: PluginFiles
    chance: Callable[[], float]
    watchers: set[asyncio.Event] = field(default_factory=set)
    _lost: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, offer: Offer) -> None:
        if offer != self.offer:
            self.offer = offer
            for one in self.watchers:
                one.set()

    @property
    def path(self) -> Path:
        """Its socket; short, since a socket's path has at most 107 characters."""
        return self.files.folder / f"partage-{self.offer.resource.rpartition('/')[2]}.sock"

    @property
    def mark(self) -> str:
        """Variable of containers that get its units."""
        return MARK + _WORD.sub("_", self.offer.resource.rpartition("/")[2].upper())

    async def run(self) -> None:
        """Serve and register, again and again, until cancelled."""
        tries = 0
        while True:
            if not self.files.kubelet.exists():
                await asyncio.sleep(self.files.look)
                continue
            try:
                async with self._serving():
                    since = _identity(self.files.kubelet)
                    await self._register()
                    tries = 0
                    await self._until_lost(since)
                _LOG.info("%s: the kubelet was started anew or let go", self.offer.resource)
                pause = self.files.again.base
            except (grpc.aio.AioRpcError, OSError, RuntimeError) as error:
                level = logging.DEBUG if tries else logging.WARNING
                why = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
                _LOG.log(level, "%s: not registered: %s; trying again", self.offer.resource, why)
                pause = self.files.again.delay(tries, self.chance())
                tries += 1
            await asyncio.sleep(pause)

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        server = grpc.aio.server()
        methods = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(self._preferred),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(self._pre_start),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(said.PLUGIN, methods),)
        )
        self.path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{self.path}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    async def _register(self) -> None:
        asked = said.RegisterRequest(
            said.VERSION, self.path.name, self.offer.resource,
            said.Options(preferred_available=True),
        )  # fmt: skip
        self._lost.clear()
        async with grpc.aio.insecure_channel(f"unix:{self.files.kubelet}") as channel:
            call = channel.unary_unary(f"/{said.REGISTRATION}/Register")
            await call(asked.encode(), timeout=_PATIENCE)
        _LOG.info("%s: registered %d units", self.offer.resource, len(self.offer.units))

    async def _until_lost(self, since: tuple[int, int]) -> None:
        """Return when the kubelet has gone, or has let go of us."""
        while _identity(self.files.kubelet) == since and self.path.exists():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.files.look):
                    await self._lost.wait()
                    return

    # --- calls -------------------------------------------------------------------------------

    async def _options(self, _request: bytes, _context: Any) -> bytes:
        return said.Options(preferred_available=True).encode()

    async def _list_and_watch(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        changed = asyncio.Event()
        self.watchers.add(changed)
        try:
            while True:
                changed.clear()
                yield self.offer.listed().encode()
                await changed.wait()
        finally:
            self.watchers.discard(changed)
            self._lost.set()

    async def _preferred(self, request: bytes, context: Any) -> bytes:
        asked = await _read(said.PreferredRequest, request, context)
        chosen = [said.PreferredIds(await self.advise(self.offer, c)) for c in asked.containers]
        return said.PreferredResponse(tuple(chosen)).encode()

    async def _allocate(self, request: bytes, context: Any) -> bytes:
        asked = await _read(said.AllocateRequest, request, context)
        known = {unit.id for unit in self.offer.units}
        for unit in (unit for one in asked.containers for unit in one.ids):
            if unit not in known:
                why = f"{self.offer.resource} has no unit {unit!r}"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        why = await self.allow()
        if why:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"partage: {why}")
        given = said.ContainerAllocation({self.mark: "1"})
        return said.AllocateResponse((given,) * len(asked.containers)).encode()

    async def _pre_start(self, _request: bytes, _context: Any) -> bytes:
        return b""


async def _read(of: Any, data: bytes, context: Any) -> Any:
    try:
        return of.decode(data)
    except Malformed as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"partage: {error}")


def _identity(path: Path) -> tuple[int, int]:
    """Which file this is; another one after the kubelet was started anew."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_ctime_ns

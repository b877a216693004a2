"""Serves the kubelet with one device plugin a resource; `registering` keeps each registered.

`Allocate` names no pod, so the plugin does not guess one and grants nothing. It marks every container that
gets units. The plugin of the runtime, which sees the pod and its record, adds the grants, removes the mark, and
refuses a marked container without a record. (`NVIDIA_VISIBLE_DEVICES=void` beside the mark would be safer still. But
NRI cannot change a variable that image and kubelet both set, and images for CUDA set this one.)

`Allocate` never waits, and never fails for a temporary cause. The kubelet calls it without a time limit,
while it admits one pod after the other, and a pod that is refused there has failed for good. The plugin checks in
`PreStartContainer` whether the container would get its devices. The kubelet waits 30 s for it,
in the pod's own thread, before each start of a container, and retries a container that is refused there.
The call also fails while this plugin is away. Read in the kubelet's source (v1.36.4,
`pkg/kubelet/cm/devicemanager`).
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Final

import grpc

from partage.agent.container_edits import MARK
from partage.agent.kubelet import messages as said
from partage.agent.kubelet.registering import PluginFiles, Registrar, Session
from partage.agent.kubelet.units import Offer
from partage.agent.sockets import read
from partage.agent.stories import SILENT, Stories

_LOG: Final = logging.getLogger("partage.agent")

_WORD: Final = re.compile(r"[^A-Z0-9]")
_OPTIONS: Final = said.Options(pre_start_required=True, preferred_available=True)
Advise = Callable[[Offer, said.ContainerPreference], Awaitable[tuple[str, ...]]]


@dataclass(eq=False)
class DevicePlugins:
    """All device plugins of one node; `take` the offers, and `run` them.

    Attributes:
        allow: why no container with units may start at present; empty if one may. It may take
            a while, less than 30 s.
        chance: between 0 and 1; spreads retries.
        stories: receives the taken units, and returns the mark of their container.
    """

    files: PluginFiles
    advise: Advise
    allow: Callable[[], Awaitable[str]]
    chance: Callable[[], float]
    stories: Stories = SILENT
    _plugins: "dict[str, _Served]" = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, offers: tuple[Offer, ...]) -> None:
        """Replace the offers; a resource that is not among them has no units any more."""
        fresh = {one.resource: one for one in offers}
        for resource in self._plugins.keys() - fresh.keys():
            self._plugins[resource].take(Offer(resource, ()))
        for resource, offer in fresh.items():
            if resource in self._plugins:
                self._plugins[resource].take(offer)
                continue
            if offer.dropped:
                _LOG.warning("%s: %d units more than the kubelet takes", resource, offer.dropped)
            self._plugins[resource] = _Served(self._word(resource), offer, self)
            self._news.set()

    def _word(self, resource: str) -> str:
        """The last part of a resource's name; longer if another resource has the same (`nvidia.com/gpu`, `amd.com/gpu`)."""
        word = resource.rpartition("/")[2]
        if any(one.word == word for one in self._plugins.values()):
            word += f"-{sha256(resource.encode()).hexdigest()[:8]}"
        return word

    def again(self, resource: str) -> None:
        """Register a resource again if the kubelet counts none of its units although it listens."""
        if resource in self._plugins:
            self._plugins[resource].session.lost.set()

    @property
    def registered(self) -> frozenset[str]:
        """Resources whose units the kubelet has received."""
        return frozenset(name for name, one in self._plugins.items() if one.watchers)

    async def run(self) -> None:
        """Serve until cancelled, and wait for a kubelet that is away."""
        running: set[str] = set()
        async with asyncio.TaskGroup() as tasks:  # a fault of ours must end the agent, not hide
            while True:
                self._news.clear()
                for resource, one in self._plugins.items():
                    if resource not in running:
                        running.add(resource)
                        tasks.create_task(one.run(), name=f"kubelet:{resource}")
                await self._news.wait()


@dataclass(eq=False)
class _Served:
    """The plugin of one resource; `watchers` are streams that send its units to the kubelet.

    Its `word` is unique on the node: it names the socket, and the mark of containers.
    """

    word: str
    offer: Offer
    node: DevicePlugins
    watchers: set[asyncio.Event] = field(default_factory=set)
    session: Session = field(default_factory=Session)

    def take(self, offer: Offer) -> None:
        if offer != self.offer:
            self.offer = offer
            for one in self.watchers:
                one.set()

    @property
    def mark(self) -> str:
        """Variable of containers that get its units."""
        return MARK + _WORD.sub("_", self.word.upper())

    async def run(self) -> None:
        """Serve and register repeatedly, until cancelled."""
        # Short: a socket's path has at most 107 characters.
        socket = f"partage-{self.word}.sock"
        asked = said.RegisterRequest(said.VERSION, socket, self.offer.resource, _OPTIONS)
        await Registrar(self.node.files, asked, self._handlers, self.node.chance).run()

    def _handlers(self, session: Session) -> Any:
        self.session = session
        one, many = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods = {
            "GetDevicePluginOptions": one(self._options),
            "ListAndWatch": many(partial(self._list_and_watch, session)),
            "GetPreferredAllocation": one(self._preferred),
            "Allocate": one(self._allocate),
            "PreStartContainer": one(self._pre_start),
        }
        return grpc.method_handlers_generic_handler(said.PLUGIN, methods)

    async def _options(self, _request: bytes, _context: Any) -> bytes:
        return _OPTIONS.encode()

    async def _list_and_watch(
        self, session: Session, _request: bytes, _context: Any
    ) -> AsyncIterator[bytes]:
        changed = asyncio.Event()
        self.watchers.add(changed)
        session.listens.set()
        try:
            while True:
                changed.clear()
                yield self.offer.listed().encode()
                await changed.wait()
        finally:
            self.watchers.discard(changed)
            session.lost.set()

    async def _preferred(self, request: bytes, context: Any) -> bytes:
        asked = await read(said.PreferredRequest, request, context)
        chosen = [
            said.ContainerIds(await self.node.advise(self.offer, c)) for c in asked.containers
        ]
        return said.UnitsOfContainers(tuple(chosen)).encode()

    async def _allocate(self, request: bytes, context: Any) -> bytes:
        start = self.node.stories.now()
        asked = await read(said.UnitsOfContainers, request, context)
        known = {unit.id for unit in self.offer.units}
        for unit in (unit for one in asked.containers for unit in one.ids):
            if unit not in known:
                why = f"{self.offer.resource} has no unit {unit!r}"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        given = [
            said.ContainerAllocation(
                {self.mark: self.node.stories.mark(self.offer.resource, len(one.ids), start)}
            )
            for one in asked.containers
        ]
        return said.AllocateResponse(tuple(given)).encode()

    async def _pre_start(self, _request: bytes, context: Any) -> bytes:
        if why := await self.node.allow():
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"partage: {why}")
        return b""

"""The kubelet's side of device plugins and of PodResources, for tests: it speaks the real protocol.

As the kubelet does (v1.36.4): it empties its folder when it starts, dials each plugin that registers and asks for
options before it answers, keeps what ListAndWatch says, asks for advice, gives units that are healthy and
free, asks before containers start where the plugin wants it, and forgets a plugin when a stream of its
resource ends, be it that of an earlier registration. Requires grpcio.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from partage.agent.kubelet import messages as said

__all__ = ["FakeKubelet", "NotAdmitted", "NotStarted", "fake_kubelet"]

_ALONE = (("grpc.use_local_subchannel_pool", 1),)
"""Every dial is a fresh one, as of a process of its own."""
_DIALS = 10.0
_PRE_START = 30.0


class NotAdmitted(Exception):
    """The kubelet has not enough healthy units, or the plugin refused."""


class NotStarted(Exception):
    """A container is not started now; a kubelet tries again."""


@dataclass
class _Plugin:
    request: said.RegisterRequest
    channel: Any
    options: said.Options = field(default_factory=said.Options)
    devices: dict[str, said.Device] = field(default_factory=dict)
    listening: asyncio.Task[None] | None = None
    size: int = 0


class FakeKubelet:
    """One kubelet; see `fake_kubelet`.

    Attributes:
        plugins: by resource, while their stream is open.
        registrations: every request there was, in order.
        held: units by (namespace, pod), container and resource.
        given: variables that Allocate answered, by the same key.
        refusal: why registrations are refused; empty to take them.
        removes: how many plugins' sockets are still removed just before they are dialled, as by a start
            between the two.
        deaf: how many registrations are still taken and not listened to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugins: dict[str, _Plugin] = {}
        self.registrations: list[said.RegisterRequest] = []
        self.held: dict[tuple[str, str, str, str], tuple[str, ...]] = {}
        self.given: dict[tuple[str, str, str, str], dict[str, str]] = {}
        self.refusal = ""
        self.removes = 0
        self.deaf = 0
        self._servers: list[Any] = []
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        """Start, or start again: sockets of plugins are removed."""
        for name, handlers in (
            ("device-plugins", self._registration()),
            ("pod-resources", self._lister()),
        ):
            folder = self.folder / name
            folder.mkdir(parents=True, exist_ok=True)
            for one in folder.iterdir():
                one.unlink()
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((handlers,))
            server.add_insecure_port(f"unix:{folder / 'kubelet.sock'}")
            await server.start()
            self._servers.append(server)

    async def stop(self) -> None:
        """End; what was given is remembered, as in the kubelet's checkpoint."""
        for resource in list(self.plugins):
            await self._forget(resource)
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()

    async def forget(self, resource: str) -> None:
        """Hang up on a plugin, and stay."""
        await self._forget(resource)

    async def until(self, resource: str, units: int, healthy: int | None = None) -> None:
        """Wait until this many units of a resource are known."""

        def there() -> bool:
            found = self.units(resource)
            well = sum(one.health == said.HEALTHY for one in found)
            return len(found) == units and (healthy is None or well == healthy)

        async with asyncio.timeout(240), self._changed:
            await self._changed.wait_for(there)

    async def registered(self, count: int) -> None:
        """Wait until there were so many registrations."""
        async with asyncio.timeout(240), self._changed:
            await self._changed.wait_for(lambda: len(self.registrations) >= count)

    def units(self, resource: str) -> list[said.Device]:
        """What is known of a resource."""
        plugin = self.plugins.get(resource)
        return list(plugin.devices.values()) if plugin else []

    async def admit(
        self, namespace: str, pod: str, container: str, resource: str, size: int
    ) -> tuple[str, ...]:
        """Give units to a container.

        Raises:
            NotAdmitted: there are not enough, or the plugin refused.
        """
        plugin = self.plugins.get(resource)
        taken = {unit for key, units in self.held.items() if key[3] == resource for unit in units}
        healthy = [one.id for one in self.units(resource) if one.health == said.HEALTHY]
        free = [unit for unit in healthy if unit not in taken]
        if plugin is None or len(free) < size:
            raise NotAdmitted(f"{resource}: {size} asked, {len(free)} left")
        advice = await self.ask(
            resource,
            "GetPreferredAllocation",
            said.PreferredRequest((said.ContainerPreference(tuple(free), (), size),)),
        )
        parts = said.UnitsOfContainers.decode(advice).containers
        wanted = parts[0].ids if parts else ()
        chosen = [unit for unit in wanted if unit in free][:size]
        chosen += [unit for unit in free if unit not in chosen][: size - len(chosen)]
        answer = await self.ask(
            resource, "Allocate", said.UnitsOfContainers((said.ContainerIds(tuple(chosen)),))
        )
        key = (namespace, pod, container, resource)
        (given,) = said.AllocateResponse.decode(answer).containers
        self.held[key], self.given[key] = tuple(chosen), dict(given.envs)
        return tuple(chosen)

    async def start_container(
        self, namespace: str, pod: str, container: str, resource: str
    ) -> None:
        """What is done before each start of a container that holds units.

        Raises:
            NotStarted: the plugin is away, or refused.
        """
        plugin = self.plugins.get(resource)
        if plugin is None:
            raise NotStarted(f"{resource}: endpoint stopped")
        if plugin.options.pre_start_required:
            held = said.ContainerIds(self.held[namespace, pod, container, resource])
            try:
                await self.ask(resource, "PreStartContainer", held, _PRE_START)
            except NotAdmitted as error:
                raise NotStarted(str(error)) from error

    def release(self, namespace: str, pod: str) -> None:
        """A pod has gone."""
        for key in [key for key in self.held if key[:2] == (namespace, pod)]:
            del self.held[key]

    async def ask(self, resource: str, method: str, request: Any, seconds: float = 60) -> bytes:
        """Any call to a plugin, with a message or with bytes.

        Raises:
            NotAdmitted: it refused; says how.
        """
        data = request if isinstance(request, bytes) else request.encode()
        call = self.plugins[resource].channel.unary_unary(f"/{said.PLUGIN}/{method}")
        try:
            answer: bytes = await call(data, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise NotAdmitted(f"{error.code().name}: {error.details()}") from error
        return answer

    # --- what plugins and agents call --------------------------------------------------------

    def _registration(self) -> Any:
        async def register(request: bytes, context: Any) -> bytes:
            asked = said.RegisterRequest.decode(request)
            if asked.version != said.VERSION or self.refusal:
                why = self.refusal or "requested API version is not supported"
                await context.abort(grpc.StatusCode.UNKNOWN, why)
            target = f"unix:{self._socket(asked)}"
            plugin = _Plugin(asked, grpc.aio.insecure_channel(target, options=_ALONE))
            self.plugins[asked.resource_name] = plugin
            try:
                await self._dial(plugin)
            except BaseException as error:
                if self.plugins.get(asked.resource_name) is plugin:
                    del self.plugins[asked.resource_name]
                await plugin.channel.close()
                if not isinstance(error, (TimeoutError, grpc.aio.AioRpcError)):
                    raise  # the plugin does not wait any more
                await context.abort(
                    grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error}"
                )
            if self.deaf:
                self.deaf -= 1
            else:
                plugin.listening = asyncio.create_task(self._listen(plugin))
            async with self._changed:
                self.registrations.append(asked)
                self._changed.notify_all()
            return b""

        methods = {"Register": grpc.unary_unary_rpc_method_handler(register)}
        return grpc.method_handlers_generic_handler(said.REGISTRATION, methods)

    def _socket(self, asked: said.RegisterRequest) -> Path:
        return self.folder / "device-plugins" / asked.endpoint

    async def _dial(self, plugin: _Plugin) -> None:
        if self.removes:
            self.removes -= 1
            self._socket(plugin.request).unlink()
        async with asyncio.timeout(_DIALS):
            await plugin.channel.channel_ready()
        call = plugin.channel.unary_unary(f"/{said.PLUGIN}/GetDevicePluginOptions")
        plugin.options = said.Options.decode(await call(b""))

    async def _listen(self, plugin: _Plugin) -> None:
        call = plugin.channel.unary_stream(f"/{said.PLUGIN}/ListAndWatch")
        try:
            async for data in call(b""):
                devices = said.DeviceList.decode(data).devices
                async with self._changed:
                    plugin.size = len(data)
                    plugin.devices = {one.id: one for one in devices}
                    self._changed.notify_all()
        except grpc.aio.AioRpcError:
            pass
        current = self.plugins.pop(plugin.request.resource_name, None)
        for one in {id(found): found for found in (current, plugin) if found}.values():
            await one.channel.close()
        async with self._changed:
            self._changed.notify_all()

    async def _forget(self, resource: str) -> None:
        plugin = self.plugins.pop(resource, None)
        if plugin is not None and plugin.listening is not None:
            plugin.listening.cancel()
            await asyncio.wait((plugin.listening,))
            await plugin.channel.close()

    def _lister(self) -> Any:
        async def listed(_request: bytes, _context: Any) -> bytes:
            pods = dict.fromkeys(key[:2] for key in self.held)
            return said.ListResponse(tuple(self._pod(*key) for key in pods)).encode()

        async def allocatable(_request: bytes, _context: Any) -> bytes:
            devices = tuple(
                said.ContainerDevices(name, (unit.id,))
                for name, plugin in self.plugins.items()
                for unit in plugin.devices.values()
                if unit.health == said.HEALTHY
            )
            return said.AllocatableResponse(devices).encode()

        methods = {
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(allocatable),
            "List": grpc.unary_unary_rpc_method_handler(listed),
        }
        return grpc.method_handlers_generic_handler(said.POD_RESOURCES, methods)

    def _pod(self, namespace: str, name: str) -> said.PodResources:
        mine = {key: units for key, units in self.held.items() if key[:2] == (namespace, name)}
        containers = tuple(
            said.ContainerResources(
                container,
                tuple(
                    said.ContainerDevices(key[3], (unit,))  # one by one, as a kubelet does
                    for key, units in mine.items()
                    if key[2] == container
                    for unit in units
                ),
            )
            for container in dict.fromkeys(key[2] for key in mine)
        )
        return said.PodResources(name, namespace, containers)


@contextlib.asynccontextmanager
async def fake_kubelet(folder: Path) -> AsyncIterator[FakeKubelet]:
    """A kubelet that runs; leaves it stopped."""
    kubelet = FakeKubelet(folder)
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()

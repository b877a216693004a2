"""Serves the kubelet as a DRA driver: registration, claims and the health of devices.

    plugins_registry/gpu.partage.io-reg.sock   the kubelet finds it, and asks for the driver's name
    plugins/gpu.partage.io/dra.sock            the kubelet prepares and unprepares claims

A kubelet that starts scans the registry itself, so the plugin never has to register again. The plugin removes both
sockets at its end, so the kubelet learns that the driver is gone. The kubelet may repeat every call, after a restart
of either side, and gets the same answer.

Read in the kubelet's source (v1.36.4, `pkg/kubelet/cm/dra`, `pkg/kubelet/pluginmanager`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from partage.agent.dra import messages as said
from partage.agent.dra.admission import NotPrepared
from partage.agent.dra.prepared import Prepared
from partage.agent.sockets import identity, listen, read
from partage.agent.trouble import Rounds
from partage.vendors.names import DRA_DRIVER

_LOG: Final = logging.getLogger("partage.agent")
_MOST_CLAIMS: Final = 256
"""Claims of one call; a pod has fewer, and a kubelet calls for one pod at a time."""
_LONGEST: Final = 10.0
"""Seconds between two tries to make sockets."""
_AGAIN: Final = 10.0
"""Seconds after which the plugin sends the same health again: the kubelet trusts it for 30 s."""


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """The paths where the kubelet looks for the driver. `look`: seconds between checks whether our sockets exist."""

    folder: Path = Path("/var/lib/kubelet")
    look: float = 1.0

    @property
    def registry(self) -> Path:
        """The socket that the kubelet finds."""
        return self.folder / "plugins_registry" / f"{DRA_DRIVER}-reg.sock"

    @property
    def service(self) -> Path:
        """The socket of all other calls."""
        return self.folder / "plugins" / DRA_DRIVER / "dra.sock"


@dataclass(frozen=True, slots=True)
class Health:
    """A device and, if it does not work, `why`."""

    pool: str
    device: str
    why: str = ""


@dataclass(eq=False)
class DriverPlugin:
    """The plugin of one node; `run` it. `taken` is called when a kubelet has accepted the driver.

    `prepare` raises `NotPrepared` or `OSError`, `unprepare` raises `OSError`.
    """

    files: DriverFiles
    prepare: Callable[[said.Claim], Awaitable[Prepared]]
    unprepare: Callable[[said.Claim], Awaitable[None]]
    taken: Callable[[], None] = lambda: None
    _health: tuple[Health, ...] = ()
    _watchers: set[asyncio.Event] = field(default_factory=set)

    def tell(self, health: Sequence[Health]) -> None:
        """Report this health of the devices to the kubelet from now on."""
        if tuple(health) != self._health:
            self._health = tuple(health)
            for one in self._watchers:
                one.set()

    async def run(self) -> None:
        """Serve until cancelled; creates sockets again that were removed, or could not be created."""
        rounds = Rounds(f"{DRA_DRIVER}: the kubelet cannot be served")
        while True:
            with rounds:
                await self._serve()
                _LOG.info("%s: a socket was removed; serving again", DRA_DRIVER)
            if rounds.failed:
                await asyncio.sleep(min(_LONGEST, self.files.look * rounds.failed))

    async def _serve(self) -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(self._handlers())
        sockets = (self.files.service, self.files.registry)
        own: dict[Path, tuple[int, int] | None] = {}
        try:
            for path in sockets:  # the one that the kubelet finds comes last
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                listen(server, path)
                own[path] = identity(path)
            await server.start()
            while {path: identity(path) for path in sockets} == own:  # noqa: ASYNC110 # files have no event here
                await asyncio.sleep(self.files.look)
        finally:
            await server.stop(None)
            for path, mine in own.items():
                if mine and identity(path) == mine:
                    path.unlink(missing_ok=True)

    def _handlers(self) -> tuple[Any, ...]:
        one, many = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        made = grpc.method_handlers_generic_handler
        registration = {
            "GetInfo": one(self._info),
            "NotifyRegistrationStatus": one(self._notified),
        }
        claims = {
            "NodePrepareResources": one(self._prepare_all),
            "NodeUnprepareResources": one(self._unprepare_all),
        }
        return (
            made(said.REGISTRATION, registration),
            *(made(service, claims) for service in said.SERVICES),
            made(said.HEALTH, {"NodeWatchResources": many(self._watch)}),
        )

    # --- calls -------------------------------------------------------------------------------

    async def _info(self, _request: bytes, _context: Any) -> bytes:
        endpoint = str(self.files.service)
        return said.PluginInfo(said.TYPE, DRA_DRIVER, endpoint, said.VERSIONS).encode()

    async def _notified(self, request: bytes, context: Any) -> bytes:
        told = await read(said.RegistrationStatus, request, context)
        if told.registered:
            _LOG.info("%s: registered with the kubelet", DRA_DRIVER)
            self.taken()
        else:
            _LOG.warning("%s: the kubelet does not take the driver: %s", DRA_DRIVER, told.error)
        return b""

    async def _prepare_all(self, request: bytes, context: Any) -> bytes:
        claims = await _claims(request, context)
        # In parallel: instances of several claims, created one after the other, would exceed the kubelet's time limit.
        made = await asyncio.gather(*(self._prepared(claim) for claim in claims))
        found = map(said.PrepareEntry, (claim.uid for claim in claims), made)
        return said.PrepareResponse(tuple(found)).encode()

    async def _prepared(self, claim: said.Claim) -> said.Prepared:
        try:
            made = await self.prepare(claim)
        except (NotPrepared, OSError) as error:
            _LOG.warning(
                "ResourceClaim %s/%s: not prepared: %s", claim.namespace, claim.name, error
            )
            return said.Prepared(error=f"partage: {error}")
        devices = []
        for number, part in enumerate(made.parts):
            requests = (part.request.partition("/")[0],)  # without the chosen alternative
            names = (made.cdi(number),)
            devices.append(said.Device(requests, part.pool, part.device, names, part.share))
        return said.Prepared(tuple(devices))

    async def _unprepare_all(self, request: bytes, context: Any) -> bytes:
        found = []
        for claim in await _claims(request, context):
            why = ""
            try:
                await self.unprepare(claim)
            except OSError as error:
                _LOG.warning(
                    "ResourceClaim %s/%s: not unprepared: %s", claim.namespace, claim.name, error
                )
                why = f"partage: {error}"
            found.append(said.UnprepareEntry(claim.uid, said.Unprepared(why)))
        return said.UnprepareResponse(tuple(found)).encode()

    async def _watch(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        news = asyncio.Event()
        self._watchers.add(news)
        try:
            while True:
                news.clear()
                now, told = int(time.time()), []
                for one in self._health:
                    device = said.DeviceIdentifier(one.pool, one.device)
                    state = said.UNHEALTHY if one.why else said.HEALTHY
                    told.append(said.DeviceHealth(device, state, now, message=one.why))
                yield said.HealthResponse(tuple(told)).encode()
                try:
                    await asyncio.wait_for(news.wait(), _AGAIN)
                except TimeoutError:
                    continue
        finally:
            self._watchers.discard(news)


async def _claims(request: bytes, context: Any) -> tuple[said.Claim, ...]:
    found = (await read(said.ClaimRequest, request, context)).claims
    if len(found) > _MOST_CLAIMS:
        told = f"partage: {len(found)} claims in one call; {_MOST_CLAIMS} are the most"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, told)
    return found

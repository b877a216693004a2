"""The server as a whole: a cluster in one object, for HTTP clients and for code in the same process."""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from partage.apiserver import builtin, definitions, persistence
from partage.apiserver.admission import ADMIN, Admission, User
from partage.apiserver.calls import DEFINITIONS, Call, Cluster, fill
from partage.apiserver.creating import create
from partage.apiserver.deleting import DeleteOptions, delete
from partage.apiserver.janitor import Janitor, Place
from partage.apiserver.kinds import Registry
from partage.apiserver.metadata import Ambient
from partage.apiserver.plugins import CLASSES, Plugins
from partage.apiserver.podparts import LogProvider, LogRequest, bind
from partage.apiserver.router import Router
from partage.apiserver.status import unknown_path
from partage.apiserver.storage import Change, Record, Store
from partage.apiserver.streams import next_change
from partage.apiserver.updating import patch, update
from partage.apiserver.verbs import Verbs
from partage.apiserver.webhooks import Webhooks
from partage.serving.connections import Connections, allow_files
from partage.serving.guarded import Guarded
from partage.serving.limits import Limits
from partage.serving.listener import end_listening
from partage.serving.local import is_here
from partage.serving.site import quiet_logger
from partage.wire.context import SYSTEM_PRIORITIES

_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_CRITICAL: Final = {
    "system-cluster-critical": "run in the cluster, but can be moved to another node if necessary",
    "system-node-critical": "not be moved from their current node",
}
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_TIDY_AFTER: Final = 0.2
_TIDY_AGAIN: Final = 5.0
"""Seconds after which a refused deletion is tried again, for example by a webhook that did not answer."""
_SAVE_EVERY: Final = 5.0
_UNSAVED: Final = "%s cannot be written: %s; it lacks the latest changes"
_log: Final = logging.getLogger(__name__)


def ambient() -> Ambient:
    """The real clock and real random values."""
    chance = random.SystemRandom()
    return Ambient(
        now=time.time,
        uid=lambda: str(uuid.uuid4()),
        suffix=lambda: "".join(chance.choices(_LETTERS, k=5)),
    )


def _no_logs(request: LogRequest) -> str:
    return f"no log is kept for container {request.container}\n"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a server.

    Attributes:
        tokens: bearer tokens and their users; without any, every caller is an administrator.
        anonymous: user of a caller without a token, if there are tokens; None rejects such callers.
        file: keeps the objects from one run to the next; None keeps nothing.
        history: number of kept changes of each resource, for watches.
        beat: seconds between the bookmarks of a watch.
        relaxed_names: whether names may have upper-case letters, as in the MetaX and HAMi documents.
        limits: of connections and of the time that a client may take; a body has `LARGEST_BODY`.
    """

    tokens: Mapping[str, User] = field(default_factory=dict)
    anonymous: User | None = None
    logs: LogProvider = _no_logs
    file: Path | None = None
    history: int = 20_000
    beat: float = 60.0
    relaxed_names: bool = False
    # All its clients usually run on one machine, each watch holds a connection, and a list may have tens of megabytes.
    limits: Limits = Limits(connections=1024, per_address=1024, held=2**28)


class ApiServer:
    """A cluster's API.

    Attributes:
        store: all objects; in-process readers may use it directly, and must not alter values.
        admission: append mutators and validators here; webhooks run after them.
    """

    def __init__(self, settings: Settings | None = None, around: Ambient | None = None) -> None:
        """A server that does not listen yet. Raises `UnreadableState`: the settings' file has no such state.

        `around`: clock and random values, the real ones by default.
        """
        self.settings = settings or Settings()
        self._around = around or ambient()
        self.store = Store(history=self.settings.history)
        self.registry = Registry()
        self.registry.add(*builtin.kinds())
        self._webhooks = Webhooks(self.store, self._around.uid)
        self.admission = Admission(self._webhooks.mutate, self._webhooks.validate)
        plugins = Plugins(self.store)
        self.cluster = Cluster(
            self.store,
            self.registry,
            self.admission,
            plugins,
            self._around,
            self.settings.relaxed_names,
        )
        self.admission.validators.extend((plugins.namespace, plugins.default_class))
        self._closing = asyncio.Event()
        self._saving = asyncio.Lock()
        self._runner: web.ServerRunner | None = None
        self._listening: asyncio.Server | None = None
        self._open = Connections(0, 0)
        self._tasks: list[asyncio.Task[None]] = []
        self._work = asyncio.Event()
        if self.settings.file is not None:
            self._resume(self.settings.file)
        self._janitor = Janitor(self.cluster)
        self.store.observers.append(self._saw)

    def _resume(self, file: Path) -> None:
        """Takes over the objects of an earlier run. Raises `UnreadableState`: the file has none."""
        persistence.load(file, self.store)
        try:
            for record in self.store.all(DEFINITIONS):
                self.registry.add(*definitions.kinds(record.value))
            # Objects of an earlier release lack this one's defaults, and would seem changed by the next write.
            for resource in self.store.resources():
                if (kind := self.registry.stored(resource)) is not None:
                    for record in self.store.all(resource):
                        fill(kind, record.value)
        except (AttributeError, KeyError, TypeError) as error:
            why = f"{file} holds no cluster state: {error!r}; name another file"
            raise persistence.UnreadableState(why) from error

    def _saw(self, change: Change) -> None:
        if change.record.resource == DEFINITIONS:
            names = change.record.value["spec"]
            self.registry.remove(names["group"], names["names"]["plural"])
            if change.kind != "DELETED":
                self.registry.add(*definitions.kinds(change.record.value))
        self._work.set()

    # --- for code in the same process -----------------------------------------------------------

    def call(
        self,
        resource: str,
        namespace: str = "",
        name: str = "",
        sub: str = "",
        user: User = ADMIN,
        version: Any = None,
    ) -> Call:
        """The call for this package's writing functions, for a resource such as `pods`. Raises `ApiError`: 404.

        `version`: an object's `apiVersion`; without one, the preferred version.
        """
        kind = self.registry.stored(resource, version)
        if kind is None:
            raise unknown_path()
        return Call(kind=kind, namespace=namespace, name=name, sub=sub, user=user)

    async def create(
        self,
        resource: str,
        value: Mapping[str, Any],
        namespace: str = "",
        user: User = ADMIN,
        *,
        dry_run: bool = False,
        warnings: list[str] | None = None,
    ) -> Record:
        """Creates an object, with admission and validation, as over HTTP. Raises `ApiError`.

        `warnings`: receives those of admission.
        """
        call = self.call(resource, namespace, user=user, version=value.get("apiVersion"))
        told = [] if warnings is None else warnings
        call = replace(call, dry_run=dry_run, validation="Ignore", warnings=told)
        return await create(self.cluster, call, value)

    async def update(
        self,
        resource: str,
        value: Mapping[str, Any],
        sub: str = "",
        user: User = ADMIN,
    ) -> Record:
        """Writes an object, or its status; a resourceVersion in it must be the stored one. Raises `ApiError`."""
        head = value["metadata"]
        call = self.call(resource, head.get("namespace", ""), head["name"], sub, user)
        return await update(self.cluster, call, value)

    async def patch(
        self,
        resource: str,
        namespace: str,
        name: str,
        change: Any,
        *,
        sub: str = "",
        media: str = "application/merge-patch+json",
        user: User = ADMIN,
    ) -> Record:
        """Patches an object, or its status. Raises `ApiError`."""
        call = self.call(resource, namespace, name, sub, user)
        return (await patch(self.cluster, call, media, change))[0]

    async def delete(
        self,
        resource: str,
        namespace: str,
        name: str,
        options: DeleteOptions | None = None,
        user: User = ADMIN,
    ) -> Record:
        """Deletes an object, or begins to. Raises `ApiError`."""
        call = self.call(resource, namespace, name, user=user)
        return (await delete(self.cluster, call, options or DeleteOptions()))[0]

    async def bind(
        self, namespace: str, name: str, binding: Mapping[str, Any], user: User = ADMIN
    ) -> None:
        """Binds a pod. Raises `ApiError`."""
        await bind(self.cluster, self.call("pods", namespace, name, user=user), binding)

    async def changes(self, resource: str, since: int | None = None) -> AsyncIterator[Change]:
        """The changes of a resource after revision `since` (now by default), without an end. Raises `Compacted`."""
        history = self.store.history(resource)
        position = history.end if since is None else history.position(since)
        while not self._closing.is_set():
            found = history.after(position)
            position += len(found)
            for change in found:
                yield change
            if not found:
                await next_change(history, None, self._closing)

    async def settle(self) -> None:
        """Carries out the consequences of changes so far: dependents, namespaces, quotas."""
        await self._janitor.settle()

    # --- life -----------------------------------------------------------------------------------

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Begins to listen, at a free port for 0; returns the URL, without a trailing slash. Raises `OSError`."""
        await self.furnish()
        verbs = Verbs(self.cluster, self.settings.logs, self._closing, self.settings.beat)
        known = self.settings
        router = Router(
            self.registry,
            verbs,
            known.tokens,
            known.anonymous,
            here=is_here(host),
            patience=known.limits.patience,
        )
        # A request ends with its client, as on a genuine server; otherwise a watch would stay until the next change.
        server = web.Server(
            router.handle,
            access_log=None,
            logger=quiet_logger("partage.apiserver.http"),
            auto_decompress=False,
            handler_cancellation=True,
        )
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=2.0)
        await runner.setup()
        most = known.limits.connections
        allow_files(most)
        open_ = Connections(most, known.limits.per_address, known.limits.held)
        try:
            listening = await asyncio.get_running_loop().create_server(
                lambda: Guarded(known.limits, open_, server),
                host,
                port,
                reuse_address=True,
            )
        except OSError:
            await runner.cleanup()
            raise
        self._runner, self._listening, self._open = runner, listening, open_
        self._tasks = [asyncio.create_task(self._tidy(), name="apiserver-janitor")]
        if self.settings.file is not None:
            self._tasks.append(asyncio.create_task(self._save_often(), name="apiserver-save"))
        address = listening.sockets[0].getsockname()
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        return f"http://{shown}:{address[1]}"

    async def furnish(self) -> None:
        """Creates every cluster's namespaces and priority classes."""
        for name in _NAMESPACES:
            if self.store.get("namespaces", "", name) is None:
                await self.create("namespaces", {"metadata": {"name": name}})
        for name, value in SYSTEM_PRIORITIES.items():
            if self.store.get(CLASSES, "", name) is None:
                text = f"Used for system critical pods that must {_CRITICAL[name]}."
                head = {"metadata": {"name": name}, "value": value, "description": text}
                await self.create(CLASSES, head)
        await self.settle()

    async def stop(self) -> None:
        """Ends watches, finishes requests, saves, and stops listening."""
        self._closing.set()
        for resource in [kind.resource for kind in self.registry]:
            self.store.history(resource).wake()
        if self._listening is not None:
            await end_listening(self._listening)
            self._listening = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for connection in self._open:
            connection.abort()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        await self._webhooks.close()
        try:
            await self.save()
        except OSError as error:
            _log.error(_UNSAVED, self.settings.file, error.strerror or error)  # no fault of ours

    async def save(self) -> None:
        """Writes the settings' file, if there is one. Raises `OSError`."""
        if self.settings.file is None:
            return
        async with self._saving:
            state = persistence.snapshot(self.store)
            write = asyncio.to_thread(persistence.save, self.settings.file, *state)
            writing = asyncio.create_task(write, name="apiserver-write")
            try:
                await asyncio.shield(writing)
            finally:  # a thread cannot be cancelled, and the next one writes the same file
                await asyncio.wait((writing,))

    async def _tidy(self) -> None:
        while True:
            await self._work.wait()
            if self._janitor.empties:
                # As in a cluster, a client that deletes a file's objects one after another is faster than this.
                await asyncio.sleep(_TIDY_AFTER)
            self._work.clear()
            try:
                await self._janitor.settle()
            except Exception:  # noqa: BLE001 # the other changes must still be followed up
                _log.exception("cleaning up after changes failed")
                self._work.set()
            if refused := self._janitor.refused():
                asyncio.get_running_loop().call_later(_TIDY_AGAIN, self._retry, refused)

    def _retry(self, refused: list[Place]) -> None:
        self._janitor.retry(refused)
        self._work.set()

    async def _save_often(self) -> None:
        saved, said = -1, ""
        while True:
            await asyncio.sleep(_SAVE_EVERY)
            if saved != self.store.revision:
                try:
                    revision = self.store.revision
                    await self.save()
                    saved, said = revision, ""
                except OSError as error:
                    why = error.strerror or str(error)
                    if why != said:
                        _log.warning(_UNSAVED, self.settings.file, why)
                    said = why


@contextlib.asynccontextmanager
async def serve(
    server: ApiServer, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serves while the context lasts; its value is the URL. Raises `OSError`."""
    url = await server.start(host, port)
    try:
        yield url
    finally:
        await server.stop()

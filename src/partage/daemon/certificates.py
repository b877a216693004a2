"""Certificates of one of Partage's services, in a Secret that all its replicas share.

No replica leads. Each replica reads the Secret and makes new certificates if they are due. It writes them
only if no other replica has written since; otherwise it reads again and finds nothing due.

`mutual_tls` secures both ends of the extender's connection by one such Secret: the server of the verbs and its caller.
kube-scheduler cannot show a token to an extender, only a certificate. So the service makes an
authority and one certificate for both ends, as the webhook does for itself. kube-scheduler's pod mounts
the Secret without the authority's key. No other program has a certificate of that authority.
The service replaces its files when the Secret is renewed, and both sides read them again.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from partage.kube.client import Client
from partage.kube.clock import Clock, end
from partage.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from partage.kube.objects import Meta
from partage.kube.resources import Resource
from partage.model.errors import InvalidValue
from partage.serving.tls import ServerTls
from partage.webhook.certificates import Bundle, read_bundle, renewed

_LOG: Final = logging.getLogger("partage.daemon")
SECRETS: Final = Resource("", "v1", "secrets")
_TRIES: Final = 8
_PARTS: Final = ("ca.crt", "ca.key", "tls.crt", "tls.key")
"""Keys of the Secret's data, in the order of `read_bundle`."""

_KEPT: Final = ("annotations", "ownerReferences", "finalizers")
_MANAGER: Final = "app.kubernetes.io/part-of"
_WHO: Final = "partage"


class _SecretMeta(Meta, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[dict[str, Any]] | None = None
    finalizers: list[str] | None = None


class _Secret(msgspec.Struct, frozen=True):
    metadata: _SecretMeta
    data: dict[str, str] | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class CertificateStore:
    """One Secret.

    Attributes:
        hosts: names for which the certificate must be valid.
        calls: whether a client may also show it, as kube-scheduler does to the extender.
    """

    client: Client
    namespace: str
    name: str
    hosts: Sequence[str]
    calls: bool = False

    async def current(self) -> Bundle:
        """The certificates in force; makes and stores new ones if they are due.

        Raises `KubeError`: the Secret can be neither read nor written; `InvalidValue`: the Secret contains data that is
        not Partage's.
        """
        for _ in range(_TRIES):
            try:
                return await self._once()
            except (AlreadyExists, Conflict, NotFound):
                _LOG.debug("another replica wrote secret %s first", self.name)
        return await self._once()

    async def _once(self) -> Bundle:
        now = self.client.clock.now()
        try:
            held = await self.client.get(
                SECRETS, self.name, namespace=self.namespace, into=_Secret
            )
        except NotFound:
            bundle = renewed(Bundle(), self.hosts, now, calls=self.calls)
            await self.client.create(
                SECRETS, self._body(bundle), namespace=self.namespace, into=msgspec.Raw
            )
            _LOG.info("made an authority and a certificate in secret %s", self.name)
            return bundle
        before = self._read(held)
        bundle = renewed(before, self.hosts, now, calls=self.calls)
        if bundle != before:
            await self.client.update(
                SECRETS,
                self.name,
                self._body(bundle, held),
                namespace=self.namespace,
                into=msgspec.Raw,
            )
            _LOG.info("renewed the certificates in secret %s", self.name)
        return bundle

    def _read(self, held: _Secret) -> Bundle:
        """The Secret's contents; empty if they are Partage's and cannot be used."""
        data = held.data or {}
        if not data:
            return Bundle()
        try:
            return read_bundle(
                *(base64.b64decode(data.get(key, ""), validate=True) for key in _PARTS)
            )
        except (InvalidValue, binascii.Error) as error:
            if (held.metadata.labels or {}).get(_MANAGER) != _WHO:
                raise InvalidValue(
                    f"secret {self.namespace}/{self.name} holds something that is not Partage's "
                    f"({error}); name another one, or give its files by --tls-cert and --tls-key"
                ) from error
            _LOG.error("secret %s cannot be used, and a new one is made: %s", self.name, error)
            return Bundle()

    def _body(self, bundle: Bundle, held: _Secret | None = None) -> dict[str, Any]:
        labels = {**((held.metadata.labels if held else None) or {}), _MANAGER: _WHO}
        metadata: dict[str, Any] = {"name": self.name, "namespace": self.namespace}
        metadata["labels"] = labels
        if held is not None:
            # Kept, because helm removes only objects whose annotations still name helm's release.
            known = msgspec.to_builtins(held.metadata)
            metadata |= {key: known[key] for key in _KEPT if known.get(key)}
            metadata["resourceVersion"] = held.metadata.resource_version or ""
        parts = bundle.trusted, bundle.keys, bundle.certificate, bundle.key
        data = {
            key: base64.b64encode(part).decode() for key, part in zip(_PARTS, parts, strict=True)
        }
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            # The chart's type: operators empty the Secret to get new certificates, which the type for TLS forbids.
            "type": (held.type if held else None) or "Opaque",
            "data": data,
        }


def _write_private(path: Path, data: bytes) -> None:
    """Replace a file in one step; only our own user may read it."""
    fresh = path.with_suffix(".new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    fresh.replace(path)


_AGAIN: Final = 5.0
"""Seconds between tries until there is a certificate."""
_PERIOD: Final = 60.0
"""Seconds between two looks at the Secret."""


@asynccontextmanager
async def mutual_tls(
    client: Client, namespace: str, secret: str, hosts: Sequence[str], *, required: bool = False
) -> AsyncIterator[ServerTls]:
    """TLS by the certificates in a Secret, which are renewed while the context lasts.

    `hosts`: names by which kube-scheduler reaches the service. `required`: whether every caller needs a certificate; if
    not, only the verbs need one. Raises `InvalidValue`: the Secret contains data that is not Partage's.
    """
    store = CertificateStore(client, namespace, secret, hosts, calls=True)
    with tempfile.TemporaryDirectory(prefix="partage-scheduler-") as name:
        folder = Path(name)

        async def read() -> None:
            write_files(folder, await store.current())

        async def look_after() -> None:
            while True:
                await client.clock.sleep(_PERIOD * (1.0 - 0.5 * client.chance()))
                await again(read)

        await first(read, client.clock)
        task = asyncio.create_task(look_after(), name="scheduler:tls")
        try:
            files = (folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
            yield ServerTls(*files, required=required)
        finally:
            await end(task)


async def first(renew: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Get the first certificate; waits for the API server without a limit."""
    while True:
        try:
            return await renew()
        except KubeError as error:
            _LOG.warning("no certificate yet: %s", error)
            await clock.sleep(_AGAIN)


async def again(renew: Callable[[], Awaitable[None]]) -> None:
    """Get the certificates that are in force by now, if that is possible; the caller goes on after a fault of ours too."""
    try:
        await renew()
    except Exception as error:  # noqa: BLE001 # logged; otherwise the last certificate would end unnoticed
        text = "certificates cannot be renewed now: %s; the present ones stay in use"
        ours = not isinstance(error, KubeError | OSError | ValueError)
        _LOG.warning(text, error, exc_info=ours)


def write_files(folder: Path, bundle: Bundle) -> None:
    """Write the files that differ from the bundle's parts, the key before its certificate."""
    parts = {"tls.key": bundle.key, "tls.crt": bundle.certificate, "ca.crt": bundle.trusted}
    for name, data in parts.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            _write_private(path, data)

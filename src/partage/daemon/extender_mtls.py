"""Both ends of the extender's connection from one Secret: who serves the verbs, and who may call.

kube-scheduler cannot show a token to an extender, only a certificate. So the service makes an
authority and one certificate for both ends, as the webhook does for itself, and keeps them in a
Secret that kube-scheduler's pod mounts without the authority's key. No other program has a certificate
of that authority. Files are replaced as the Secret is renewed; both sides read them again.
"""

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from partage.daemon.certificates import CertificateStore, write_private
from partage.kube.client import Client
from partage.kube.errors import KubeError
from partage.serving.tls import ServerTls

_LOG: Final = logging.getLogger("partage.daemon")
_AGAIN: Final = 5.0
"""Seconds between tries while there is nothing to serve with yet."""
_PERIOD: Final = 60.0
"""Seconds between two looks at the Secret."""


@asynccontextmanager
async def mutual_tls(
    client: Client,
    namespace: str,
    secret: str,
    hosts: Sequence[str],
    *,
    required: bool = False,
) -> AsyncIterator[ServerTls]:
    """TLS by a Secret of ours, looked after while the context lasts.

    Args:
        hosts: by which kube-scheduler reaches the service.
        required: whether every caller needs a certificate; if not, only the verbs need one.

    Raises:
        InvalidValue: the Secret holds something that is not Partage's.
    """
    store = CertificateStore(client, namespace, secret, hosts, calls=True)
    with tempfile.TemporaryDirectory(prefix="partage-scheduler-") as name:
        folder = Path(name)
        while True:
            try:
                await _read(store, folder)
            except KubeError as error:
                _LOG.warning("no certificate yet: %s", error)
                await client.clock.sleep(_AGAIN)
            else:
                break
        task = asyncio.create_task(_look_after(client, store, folder), name="scheduler:tls")
        try:
            files = (folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
            yield ServerTls(*files, required=required)
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def _look_after(client: Client, store: CertificateStore, folder: Path) -> None:
    while True:
        await client.clock.sleep(_PERIOD * (1.0 - 0.5 * client.chance()))
        try:
            await _read(store, folder)
        except (KubeError, OSError, ValueError) as error:
            _LOG.warning("certificates are not looked after: %s; served as before", error)


async def _read(store: CertificateStore, folder: Path) -> None:
    bundle = await store.current()
    parts = {"tls.key": bundle.key, "tls.crt": bundle.certificate, "ca.crt": bundle.trusted}
    for name, data in parts.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            write_private(path, data)

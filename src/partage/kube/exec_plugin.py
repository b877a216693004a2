"""Running a credential plugin: client.authentication.k8s.io, versions v1 and v1beta1.

The plugin prints an ExecCredential. In a command that a person has typed, the plugin may communicate with that person:
its standard error is shown, and it may ask questions if there is a terminal. In a service it may do neither, and
KUBERNETES_EXEC_INFO contains that. No message ever repeats its output.
"""

import asyncio
import base64
import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from partage.kube.config import ClusterConfig, ExecPlugin
from partage.kube.errors import ConfigError
from partage.kube.files import read_named

_REAP_SECONDS: Final = 1.0
"""Seconds for a killed plugin to end."""
_MOST: Final = 2**20
"""Bytes of output; a token or a certificate has a few thousand."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A plugin's credential: a token, a certificate with key, or both; and its end."""

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    expires: datetime | None = None


class _CredentialStatus(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _CredentialStatus | None = None


async def run_plugin(
    plugin: ExecPlugin,
    cluster: ClusterConfig,
    environ: Mapping[str, str],
    seconds: float,
    *,
    heard: bool = False,
) -> Credential:
    """Run the plugin and read its credential.

    Args:
        cluster: passed to the plugin if its configuration asks for it.
        environ: the base environment, to which the plugin's own variables are added.
        seconds: time after which it is killed.
        heard: whether a person sees its output, and answers questions if there is a terminal.

    Raises:
        ConfigError: it cannot be started, fails, takes too long or prints no credential.
    """
    where = f"credential plugin {plugin.command}"
    asks = heard and plugin.interactive != "Never" and sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive == "Always" and not asks:
        raise ConfigError(f"{where}: exec.interactiveMode Always needs a terminal")
    info = msgspec.json.encode(_exec_info(plugin, cluster, asks=asks)).decode()
    variables = {**environ, **plugin.environment, "KUBERNETES_EXEC_INFO": info}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.arguments,
            env=variables,
            stdin=None if asks else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if heard else asyncio.subprocess.DEVNULL,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL, or a variable with `=` in its name
        hint = f" ({plugin.install_hint})" if plugin.install_hint else ""
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where}: cannot be run: {why}{hint}") from error
    try:
        async with asyncio.timeout(seconds):
            output = await _output(process)
            if len(output) > _MOST:
                raise ConfigError(f"{where}: prints more than {_MOST >> 20} MiB")
            await process.wait()
    except TimeoutError as error:
        raise ConfigError(f"{where}: no answer in {seconds:g} s") from error
    finally:
        await _reap(process)
    if process.returncode:
        raise ConfigError(f"{where}: exit status {process.returncode}")
    return _credential(plugin, output)


async def _output(process: asyncio.subprocess.Process) -> bytes:
    """What the process prints, up to its end, or to a little more than a credential may have."""
    assert process.stdout is not None  # noqa: S101 # a pipe
    output = bytearray()
    while len(output) <= _MOST and (piece := await process.stdout.read(_MOST)):
        output += piece
    return bytes(output)


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Leave no process behind, even if this task is cancelled."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            while await _output(process):
                pass  # whatever a process of its own still prints
            await process.wait()


def _exec_info(plugin: ExecPlugin, cluster: ClusterConfig, *, asks: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"interactive": asks}
    if plugin.provide_cluster:
        entry: dict[str, Any] = {"server": cluster.server}
        if cluster.server_name:
            entry["tls-server-name"] = cluster.server_name
        if not cluster.verify:
            entry["insecure-skip-tls-verify"] = True
        if cluster.authority is not None:
            data = cluster.authority.data
            if data is None and cluster.authority.path is not None:
                data = read_named(cluster.authority.path)
            entry["certificate-authority-data"] = base64.b64encode(data or b"").decode()
        if cluster.proxy:
            entry["proxy-url"] = cluster.proxy
        if cluster.exec_config is not None:
            entry["config"] = cluster.exec_config
        spec["cluster"] = entry
    return {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}


def _credential(plugin: ExecPlugin, output: bytes) -> Credential:
    where = f"credential plugin {plugin.command}"
    try:
        document = msgspec.json.decode(output, type=_ExecCredential)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ConfigError(f"{where}: its output is not an ExecCredential") from None
    if document.kind != "ExecCredential" or document.api_version != plugin.api_version:
        raise ConfigError(f"{where}: its output is not an ExecCredential of {plugin.api_version}")
    status = document.status or _CredentialStatus()
    certificate, key = status.client_certificate_data, status.client_key_data
    if bool(certificate) != bool(key):
        raise ConfigError(f"{where}: clientCertificateData and clientKeyData go together")
    if not status.token and not certificate:
        raise ConfigError(f"{where}: neither a token nor a certificate")
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        raise ConfigError(f"{where}: expirationTimestamp has no time zone")
    return Credential(
        status.token or None,
        certificate.encode() if certificate else None,
        key.encode() if key else None,
        expires,
    )

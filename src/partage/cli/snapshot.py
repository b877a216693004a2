"""`partage snapshot`: writes a live cluster's decision inputs to one file."""

import asyncio
import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from partage import __version__
from partage.cli.asking import HEARD, CannotAsk, told_of
from partage.cli.ending import end
from partage.cli.listing import listed
from partage.cli.parameters import (
    PolicyType,
    cluster_options,
    file_option,
    flag,
    keep_apart,
    option,
)
from partage.cli.visible import noted
from partage.kube.client import Client
from partage.kube.errors import ConfigError, KubeError
from partage.kube.loading import load_config
from partage.kube.sender import ClientSettings
from partage.model.policy import Policy
from partage.wire.documents import Document, read_file
from partage.wire.snapshot import Snapshot, permuted, plain, snapshot_lines

_ORDER: Final = (
    "PriorityClass",
    "ConfigMap",
    "ResourceQuota",
    "Node",
    "Device",
    "Pod",
    "ResourceClaim",
    "DeviceClass",
    "ResourceSlice",
)
_STEP: Final = 5000
_LEAST_KEY: Final = 16
_MOST_KEY: Final = 2**20


@click.command()
@cluster_options
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write there, readable by you alone. Default: standard output.",
)
@flag(
    "--mask",
    help="Replace every word that is no number, device or word of the program's own, consistently.",
)
@file_option(
    "--mask-key",
    help="Key of the masks, 16 bytes at least: the same key gives the same masks in another "
    "snapshot. Default: a new one that is not kept.",
)
@option(
    "--policy",
    type=PolicyType(),
    default="partage",
    metavar="NAME",
    help="The --policy that the scheduler was started with.",
)
@option(
    "--seed",
    type=int,
    default=0,
    metavar="N",
    help="The --seed that the scheduler was started with.",
)
def snapshot(**given: Any) -> None:
    """Write what a cluster's decisions depend on to one file.

    Nodes, Device objects, pods, the protocols' ConfigMaps, ResourceQuotas, PriorityClasses,
    ResourceClaims, DeviceClasses and this driver's ResourceSlices, each with the fields that decisions read
    and no others: no Secret, environment, command line or image. A masked one has allocated claims alone. partage replay takes the decisions of the waiting pods from it; partage schedule and
    partage simulate cluster read it as manifests.

    \b
    Examples:
      partage snapshot -o snapshot.yaml
      partage snapshot --mask -o to-hand-on.yaml

    \b
    Exit status:
      0  written
      2  the cluster cannot be read, or FILE cannot be written
    """  # noqa: D301 # click wants the control character itself
    keep_apart("target")
    try:
        key = _key(given["mask"], given["mask_key"])
        documents, notes = asyncio.run(_read(given["kubeconfig"], given["context"]))
        head = Snapshot(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            partage=__version__,
            seed=given["seed"],
            policy=str(given["policy"] or Policy()),
            masked=key is not None,
            notes=() if key else notes,
        )
        count = _write(given["target"], head, _objects(documents, given["seed"], key))
    except (CannotAsk, ConfigError) as error:
        end(str(error))
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader has enough
            raise
        end(f"{given['target'] or 'standard output'}: {error.strerror}; name another with -o")
    noted(notes)
    _progress(f"wrote {count} objects to {given['target'] or 'standard output'}")


def _progress(text: str) -> None:
    click.echo(f"partage snapshot: {text}", err=True)


def _key(mask: bool, path: Path | None) -> bytes | None:  # noqa: FBT001 # as it was typed
    if not (mask or path):
        return None
    try:
        key = read_file(path, _MOST_KEY).strip() if path else secrets.token_bytes(32)
    except OSError as error:
        raise CannotAsk(
            f"--mask-key {path}: {error.strerror}; name a file of {_LEAST_KEY} bytes or more"
        ) from None
    if len(key) < _LEAST_KEY:
        raise CannotAsk(
            f"--mask-key {path}: {len(key)} bytes are too few for a key, {_LEAST_KEY} are needed; "
            "make one with: head -c 32 /dev/urandom | base64"
        )
    return key


async def _read(
    kubeconfig: Path | None, context: str | None
) -> tuple[list[Document], tuple[str, ...]]:
    config = load_config(os.environ, kubeconfig=kubeconfig, context=context)
    settings = ClientSettings(HEARD, attempts=3)
    try:
        async with Client(config, settings=settings, environ=os.environ) as client:
            return await listed(
                client, lambda kind, count: _progress(f"read {kind}: {count}"), everything=True
            )
    except KubeError as error:
        raise CannotAsk(told_of(error)) from error


def _objects(documents: list[Document], seed: int, key: bytes | None) -> Iterator[dict[str, Any]]:
    """The objects to write, kind by kind; nodes in the service's order of preference."""
    by: dict[str, list[Document]] = {}
    for document in documents:
        by.setdefault(document.kind, []).append(document)
    by["Node"] = list(permuted(by.get("Node", []), seed))
    mask = None
    if key is not None:
        from partage.wire.masking import Mask  # noqa: PLC0415 # loads every family

        told = (plain(one) for kind in ("Node", "Device") for one in by.get(kind, []))
        mask = Mask(key, (found for found in told if found is not None))
    for kind in _ORDER:
        for document in by.get(kind, []):
            found = plain(document, masked=mask is not None)
            if found is not None:
                yield mask.object(found) if mask else found


def _write(target: Path | None, head: Snapshot, objects: Iterable[dict[str, Any]]) -> int:
    """Write all objects as they are made; the number of them."""
    if target is None:
        return _pour(sys.stdout.buffer, head, objects)
    made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(made, "wb") as file:
        if stat.S_ISREG(
            os.fstat(made).st_mode
        ):  # it may have been there, and a device stays as it is
            os.fchmod(made, 0o600)
        return _pour(file, head, objects)


def _pour(file: BinaryIO, head: Snapshot, objects: Iterable[dict[str, Any]]) -> int:
    count = -1
    for line in snapshot_lines(head, objects):
        file.write(line)
        count += 1
        if count and not count % _STEP:
            _progress(f"wrote {count} objects")
    return count

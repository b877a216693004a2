"""`partage discover`: what devices this node has, printed, or reported to the API server."""

import asyncio
import logging
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from partage.agent.device_document import device_document
from partage.agent.discovery.found import Found, Inventory, Roots
from partage.agent.discovery.search import BACKENDS, Search, booted
from partage.agent.discovery.simulated import read_hardware
from partage.agent.reporting import AgentReporting, ReportingSettings
from partage.cli.logs import start_logging
from partage.cli.parameters import cluster_options, logging_options, until_signalled
from partage.cli.reading import batches
from partage.cli.structured import to_json, to_yaml
from partage.cli.tables import paper, plain_table
from partage.kube.client import Client
from partage.kube.config import Config
from partage.kube.errors import ConfigError
from partage.kube.loading import load_config
from partage.model.device import DeviceType
from partage.model.errors import InvalidDocument
from partage.model.quantity import binary
from partage.vendors.settings import HamiSettings
from partage.wire.config import translate_config

__all__ = ["discover"]

_CANNOT_START: Final = 2
_USUAL: Final = ReportingSettings()
_LOG: Final = logging.getLogger(__name__)
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option(
    "--node",
    metavar="NAME",
    default=platform.node,
    show_default="the host's name",
    help="The node this runs on.",
)
@click.option(
    "--host-root",
    type=_FOLDER,
    default=Path("/"),
    show_default=True,
    metavar="FOLDER",
    help="Where the host's files are seen by this process.",
)
@click.option(
    "--library",
    "libraries",
    type=_FOLDER,
    multiple=True,
    metavar="FOLDER",
    help="Where vendors' libraries are looked for, before their usual places. May be repeated.",
)
@click.option(
    "--backend",
    "backends",
    type=click.Choice(BACKENDS),
    multiple=True,
    help="What is asked; may be repeated. Default: all.",
)
@click.option(
    "--simulated",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Simulate the devices that FILE describes; real ones are not looked for.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml", "device"]),
    default="table",
    show_default=True,
    help="For people; everything that was found; or the Device object as YAML.",
)
@click.option(
    "--report",
    is_flag=True,
    help="Print nothing; keep the Device object, the node's labels and a lease current until "
    "SIGTERM or SIGINT.",
)
@click.option(
    "--period",
    type=click.FloatRange(0.1, 3600),
    default=_USUAL.period,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks at the node.",
)
@click.option("--hami", is_flag=True, help="Write HAMi's registration to the node as well.")
@click.option("--qgpu", is_flag=True, help="Label the node as one that serves qGPU.")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="FILE",
    help="Manifests with HAMi's ConfigMaps, for its registration. May be repeated.",
)
@cluster_options
@logging_options
def discover(**given: Any) -> None:
    """Look for accelerators and RDMA cards on this node.

    \b
    Exit status:
      0  done, whether devices were found or not; or ended by a signal
      2  an option or file cannot be used; the message says which
    """  # noqa: D301 # click wants the control character itself
    try:
        roots = _roots(given["host_root"], given["libraries"], given["simulated"])
        search = Search(roots, given["node"], backends=given["backends"] or BACKENDS)
        if roots.simulated is not None:
            read_hardware(roots.simulated, given["node"])  # a file that cannot be used is told now
        if given["report"]:
            start_logging(given["log_format"], given["log_level"])
            config = load_config(
                os.environ, kubeconfig=given["kubeconfig"], context=given["context"]
            )
            asyncio.run(_report(config, search, roots, given))
            return
        inventory = search()
    except (ConfigError, InvalidDocument) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(_CANNOT_START)
    search.close()
    _print(inventory, given["node"], given["output"])


def _roots(host: Path, libraries: tuple[Path, ...], simulated: Path | None) -> Roots:
    usual = Roots()

    def below(path: Path) -> Path:
        return host / path.relative_to("/")

    return Roots(
        sys=below(usual.sys),
        proc=below(usual.proc),
        dev=below(usual.dev),
        libraries=(*libraries, *map(below, usual.libraries)),
        vendor_files=below(usual.vendor_files),
        simulated=simulated,
    )


async def _report(config: Config, search: Search, roots: Roots, given: dict[str, Any]) -> None:
    hami = _hami(given["configs"])
    settings = ReportingSettings(period=given["period"], hami=given["hami"], qgpu=given["qgpu"])
    async with Client(config, environ=os.environ) as client:
        reporting = AgentReporting(
            client,
            given["node"],
            search,
            settings,
            hami=lambda: hami,
            told=_LOG.warning,
            restore=lambda known: search.health.restore(known, time.monotonic(), booted(roots)),
        )
        _LOG.info("reporting the devices of %s every %g s", given["node"], settings.period)
        await reporting.run(until_signalled())
    search.close()


def _hami(files: tuple[str, ...]) -> HamiSettings:
    """HAMi's settings in the files' ConfigMaps.

    Raises:
        InvalidDocument: they cannot be read.
    """
    documents = [document for batch in batches(files) for document in batch.documents]
    maps = [document for document in documents if document.kind == "ConfigMap"]
    return translate_config(maps).settings.hami


def _print(inventory: Inventory, node: str, output: str) -> None:
    if output == "json":
        click.echo(to_json(_document(inventory, node)))
        return
    if output == "yaml":
        click.echo(to_yaml(_document(inventory, node)), nl=False)
        return
    if output == "device":
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        click.echo(to_yaml(device_document(node, inventory, None, now)), nl=False)
    elif inventory.found:
        with paper() as console:
            _table(console, inventory)
    else:
        click.echo("No devices found.")
    for problem in inventory.problems:
        click.echo(f"note: {problem}", err=True)


def _table(console: Console, inventory: Inventory) -> None:
    table = plain_table("CARD", "MODEL", "MEMORY", "NUMA", "PCI", "STATE", "ID")
    for one in inventory.found:
        device = one.device
        place = device.topology
        table.add_row(
            f"{device.type} {device.minor}",
            " ".join(filter(None, (device.vendor, device.model))) or "-",
            str(binary(device.memory_bytes)) if device.memory_bytes else "-",
            str(place.numa) if place and place.numa >= 0 else "-",
            (place.bus if place else "") or "-",
            "healthy" if device.healthy else device.health_detail,
            device.uuid,
        )
    console.print(table)


def _document(inventory: Inventory, node: str) -> dict[str, Any]:
    return {
        "node": node,
        "devices": [_device(one) for one in inventory.found],
        "links": [
            {"between": list(pair), "count": count} for pair, count in inventory.links.items()
        ],
        "problems": list(inventory.problems),
    }


def _device(one: Found) -> dict[str, Any]:
    device, place = one.device, one.device.topology
    return {
        "type": device.type.value,
        "minor": device.minor,
        "uuid": device.uuid,
        "vendor": device.vendor,
        "model": device.model,
        "product": one.product,
        "driver": one.driver,
        "memory_bytes": device.memory_bytes if device.type is DeviceType.GPU else None,
        "units": dict(device.extras),
        "numa": place.numa if place and place.numa >= 0 else None,
        "pcie": place.pcie if place else "",
        "bus": place.bus if place else "",
        "mig": one.mig,
        "healthy": device.healthy,
        "reason": one.reason,
        "detail": device.health_detail,
        "functions": [function.bus_id for function in device.functions],
        "files": list(one.files),
    }

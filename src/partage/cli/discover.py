"""`partage discover`: prints the devices of this node. `partage agent` reports them."""

from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console

from partage.agent.device_document import device_document
from partage.agent.discovery.found import Found, Inventory
from partage.agent.discovery.search import BACKENDS, Search
from partage.agent.discovery.simulated import read_hardware
from partage.cli.agent_options import discovery_options, node_options, roots_of
from partage.cli.ending import end
from partage.cli.parameters import output_option
from partage.cli.structured import structured
from partage.cli.tables import PlainTable, paper
from partage.cli.visible import noted
from partage.cli.yaml_output import to_yaml
from partage.model.device import DeviceType
from partage.model.errors import InvalidDocument
from partage.model.quantity import binary


@click.command()
@node_options
@discovery_options
@output_option(
    "For people; everything that was found; or the Device object as YAML.",
    "table",
    "json",
    "yaml",
    "device",
)
def discover(**given: Any) -> None:
    """Look for accelerators and RDMA cards on this node, once. `partage agent` looks again and again.

    \b
    Examples:
      partage discover
      partage discover --backend nvidia -o device

    \b
    Exit status:
      0  done, whether devices were found or not
      2  an option or file cannot be used; the message says which
    """  # noqa: D301 # click wants the control character itself
    try:
        roots = roots_of(given)
        search = Search(roots, given["node"], backends=given["backends"] or BACKENDS)
        if roots.simulated is not None:
            read_hardware(
                roots.simulated, given["node"]
            )  # a file that cannot be used ends the program now
        inventory = search()
    except InvalidDocument as error:
        end(error)
    search.close()
    _print(inventory, given["node"], given["output"])


def _print(inventory: Inventory, node: str, output: str) -> None:
    if structured(output, _document(inventory, node)):
        return
    if output == "device":
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        click.echo(to_yaml(device_document(node, inventory, None, now)), nl=False)
    elif inventory.found:
        with paper() as console:
            _table(console, inventory)
    else:
        click.echo("No devices found.")
    noted(inventory.problems)


def _table(console: Console, inventory: Inventory) -> None:
    table = PlainTable("CARD", "MODEL", "MEMORY", "NUMA", "PCI", "STATE", "ID")
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

"""`partage agent`: the node's side, beside the container runtime."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from partage.agent.host import Host
from partage.agent.isolation.limits import Policy
from partage.agent.isolation.providers import (
    HamiCore,
    MigOnly,
    NoIsolation,
    OwnLibrary,
    Provider,
    VendorIsolation,
)
from partage.agent.keeper import Tallies
from partage.agent.mig.cdi import Specs
from partage.agent.mig.nvml import NvmlFailed
from partage.agent.nri.plugin import PluginOptions
from partage.cli.kubelet_side import asked_by, kubelet_companions, kubelet_options
from partage.cli.logs import start_logging
from partage.cli.parameters import cluster_options, logging_options, until_signalled
from partage.cli.reading import batches
from partage.daemon.agent import AgentDaemon, AgentOptions, IsolationOptions
from partage.daemon.instances import InstanceOptions, NodeInstances, open_node
from partage.daemon.node_facts import NodeFacts
from partage.kube.client import Client
from partage.kube.config import Config
from partage.kube.errors import ConfigError
from partage.kube.loading import load_config
from partage.model.errors import InvalidDocument, InvalidQuantity, InvalidValue
from partage.model.node import Node
from partage.model.quantity import Quantity
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.config import translate_config
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.nodes import translate_node

__all__ = ["agent"]

_CANNOT_START: Final = 2
_USUAL: Final = AgentOptions()
_NRI: Final = PluginOptions()
_MIG: Final = InstanceOptions()
_ISOLATION: Final = IsolationOptions()
_HAMI: Final = HamiCore()
_OWN_LIBRARY: Final = "/usr/local/lib/partage/libpartage-isolation.so"
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.option("--node", required=True, metavar="NAME", help="The node this runs on.")
@click.option(
    "--devices",
    multiple=True,
    metavar="FILE",
    help="Manifests of the node: its Device, its Node, and ConfigMaps that set anything; a file, a "
    "folder, or - for standard input. May be repeated. Default: its Device and Node are read from "
    "the API server, every 30 s.",
)
@cluster_options
@click.option(
    "--nri-socket",
    type=click.Path(path_type=Path),
    default=_NRI.socket,
    show_default=True,
    metavar="FILE",
    help="Socket of the container runtime's NRI.",
)
@click.option(
    "--nri-index",
    default=_NRI.index,
    show_default=True,
    metavar="NN",
    help="Two digits; plugins with lower ones are asked first.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(0.1, 60),
    default=_NRI.deadline,
    show_default=True,
    metavar="SECONDS",
    help="After this long a container is refused. Below the runtime's own time-out of 2 s, after "
    "which it would start the container without its devices.",
)
@click.option(
    "--journal",
    type=_FOLDER,
    default=_USUAL.journal,
    show_default=True,
    metavar="FOLDER",
    help="Where it is kept what containers were given.",
)
@click.option(
    "--isolation",
    type=click.Choice(["none", "partage", "hami-core", "vendor", "mig"]),
    default="none",
    show_default=True,
    help="Who keeps software shares of NVIDIA cards to their amounts: nobody; Partage's own library; HAMi's, "
    "which you supply; the vendor's driver; or nobody, and shares are refused beside hardware instances.",
)
@click.option(
    "--isolation-library",
    metavar="FILE",
    default="",
    help="The library, on the host for hami-core, as this process sees it for partage (made by `make "
    f"native`). Default: {_OWN_LIBRARY} for partage, {_HAMI.path} for hami-core.",
)
@click.option(
    "--isolation-dir",
    metavar="FOLDER",
    default=_ISOLATION.folder,
    show_default=True,
    help="With partage: where limits and shared pages are kept, on the host.",
)
@click.option(
    "--isolation-policy",
    type=click.Choice([one.value for one in Policy if one is not Policy.NONE]),
    default=Policy.BEST_EFFORT.value,
    show_default=True,
    help="With partage: how compute is shared where neither the pod nor the node's label says.",
)
@click.option(
    "--isolation-beyond",
    metavar="QUANTITY",
    default="0",
    show_default=True,
    help="With partage: memory of the host that a pod may ask for beyond its grant, a container and card.",
)
@click.option(
    "--context-memory",
    metavar="QUANTITY",
    default="0",
    show_default=True,
    help="With partage: what one context of the driver counts against a container's memory.",
)
@click.option(
    "--not-in-force",
    type=click.Choice(["report", "evict"]),
    default="report",
    show_default=True,
    help="What becomes of containers that are not held to their limits: they are told of, or not started "
    "and evicted.",
)
@kubelet_options
@click.option(
    "--mig",
    is_flag=True,
    help="Make the hardware instances (NVIDIA MIG) that this node's pods have in their records, "
    "remove them after, and give them to containers. Needs the API server, the package "
    "nvidia-ml-py (extra `nvidia`), and leave to manage MIG. Without it, containers with "
    "instances are refused.",
)
@click.option(
    "--mig-journal",
    type=_FOLDER,
    default=_MIG.journal,
    show_default=True,
    metavar="FOLDER",
    help="With --mig: where it is kept which instances are Partage's; it must outlive a reboot.",
)
@click.option(
    "--cdi-dir",
    type=_FOLDER,
    default=_MIG.cdi,
    show_default=True,
    metavar="FOLDER",
    help="With --mig: where CDI specifications of instances are written.",
)
@click.option(
    "--exempt-namespace",
    "exempt",
    multiple=True,
    metavar="NAME",
    help="Pods here that have no record are left alone beside kube-system's: drivers, monitors. "
    "May be repeated.",
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
    "--host", default=_USUAL.host, show_default=True, help="Address for health, metrics."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9445,
    show_default=True,
    help="Port of these; 0 takes any that is free.",
)
@logging_options
def agent(**given: Any) -> None:
    """Give containers on this node what their pods' records say, and nothing else.

    Connects to the container runtime by NRI and stays connected across its restarts. Ends cleanly
    on SIGTERM and SIGINT; containers that run are not touched.

    \b
    Exit status:
      0  ended by a signal
      2  an option, file or address cannot be used; the message says which
    """  # noqa: D301 # click wants the control character itself
    start_logging(given["log_format"], given["log_level"])
    index = given["nri_index"]
    if len(index) != 2 or not index.isdecimal():
        _refuse(f"--nri-index {index!r}: two digits are needed")
    try:
        chosen = _options_of(given)
        if given["devices"]:
            if given["mig"]:
                _refuse("--mig needs the API server, which tells of pods: leave --devices out")
            node, context = _described(given["node"], given["devices"])
            beside = kubelet_companions(given, None)
            asyncio.run(_run(AgentDaemon(node, context, chosen, beside=beside)))
        else:
            config = load_config(
                os.environ, kubeconfig=given["kubeconfig"], context=given["context"]
            )
            mig = InstanceOptions(given["mig_journal"], given["cdi_dir"]) if given["mig"] else None
            asyncio.run(_follow(config, given, chosen, mig))
    except (ConfigError, InvalidDocument) as error:
        _refuse(str(error))
    except NvmlFailed as error:
        _refuse(f"--mig: {error}")
    except InvalidValue as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{given['host']}:{given['port']}: {error.strerror or error}")


def _refuse(problem: str) -> None:
    click.echo(f"Error: {problem}", err=True)
    sys.exit(_CANNOT_START)


def _described(name: str, files: tuple[str, ...]) -> tuple[Node, Context]:
    """The node that the manifests describe.

    Raises:
        InvalidDocument: they cannot be read, or none is of this node.
    """
    found: dict[str, Document] = {}
    configs: list[Document] = []
    for batch in batches(files):
        for document in batch.documents:
            if document.kind in {"Node", "Device"} and document.name == name:
                found[document.kind] = document
            elif document.kind == "ConfigMap":
                configs.append(document)
    if not found:
        raise InvalidDocument(f"--devices: no Node or Device named {name!r} in {', '.join(files)}")
    context = Context.of(translate_config(configs).settings, FAMILIES)
    return translate_node(found.get("Node"), found.get("Device"), context).node, context


def _options_of(given: dict[str, Any]) -> AgentOptions:
    return AgentOptions(
        journal=given["journal"],
        host=given["host"],
        port=given["port"],
        plugin=PluginOptions(
            given["nri_socket"], index=given["nri_index"], deadline=given["deadline"]
        ),
        isolation=_isolation_of(given),
        exempt=_USUAL.exempt | set(given["exempt"]),
        roots=Host(given["host_root"]),
        asked=asked_by(given),
    )


def _isolation_of(given: dict[str, Any]) -> IsolationOptions:
    library = given["isolation_library"]
    hami = library or _HAMI.path
    providers: dict[str, Provider] = {
        "none": NoIsolation(),
        "vendor": VendorIsolation(),
        "mig": MigOnly(),
        "hami-core": HamiCore(hami, f"{hami.rpartition('/')[0]}/containers"),
        "partage": OwnLibrary(
            Policy(given["isolation_policy"]),
            _bytes("--isolation-beyond", given["isolation_beyond"]),
            _bytes("--context-memory", given["context_memory"]),
        ),
    }
    own = given["isolation"] == "partage"
    return IsolationOptions(
        providers[given["isolation"]],
        Path(library or _OWN_LIBRARY) if own else None,
        given["isolation_dir"],
        evict=given["not_in_force"] == "evict",
    )


def _bytes(option: str, text: str) -> int:
    try:
        return max(Quantity.parse(text).floor(), 0)
    except InvalidQuantity as error:
        raise InvalidDocument(f"{option}: {error}") from error


async def _run(daemon: AgentDaemon) -> None:
    await daemon.run(until_signalled())


async def _follow(
    config: Config, given: dict[str, Any], chosen: AgentOptions, mig: InstanceOptions | None
) -> None:
    name = given["node"]
    context = Context.of(Settings(), FAMILIES)
    try:
        driver = None if mig is None else open_node(mig)
    except InvalidValue as error:
        raise InvalidValue(f"--mig: {error}") from error
    async with Client(config, environ=os.environ) as client:

        def instances(tallies: Tallies) -> NodeInstances:
            assert driver is not None and mig is not None  # noqa: S101, PT018 # passed only then
            return NodeInstances(client, name, driver, Specs(mig.cdi), tallies)

        daemon = AgentDaemon(
            Node(name), context, chosen, None if driver is None else instances,
            kubelet_companions(given, client),
        )  # fmt: skip
        facts = NodeFacts(client, name, context)
        following = asyncio.create_task(facts.follow(daemon.take), name="agent:node")
        try:
            await daemon.run(until_signalled())
        finally:
            following.cancel()
            await asyncio.wait((following,))

"""Options of `partage agent`, by subject. `partage discover` shares the options of discovery."""

import platform
from pathlib import Path
from typing import Any, Final

import click

from partage.agent.discovery.found import Roots
from partage.agent.discovery.search import BACKENDS
from partage.agent.isolation.providers import (
    HamiCore,
    MigOnly,
    Mps,
    NoIsolation,
    OwnLibrary,
    Provider,
    VendorIsolation,
)
from partage.agent.nri.plugin import PluginOptions
from partage.agent.reporting import ReportingSettings
from partage.cli.parameters import (
    Name,
    Real,
    Whole,
    flag,
    folder_option,
    health_port,
    name_option,
    option,
    options,
)
from partage.daemon.agent import AgentOptions, IsolationOptions
from partage.daemon.instances import InstanceOptions
from partage.daemon.mps import MpsDaemon
from partage.model.errors import InvalidDocument, InvalidQuantity
from partage.model.quantity import Quantity
from partage.vendors.wishes import Policy

_USUAL: Final = AgentOptions()
_NRI: Final = PluginOptions()
_MIG: Final = InstanceOptions()
_REPORTING: Final = ReportingSettings()
_ISOLATION: Final = IsolationOptions()
_HAMI: Final = HamiCore()
_MPS: Final = Mps()
_OWN_LIBRARY: Final = "/usr/local/lib/partage/libpartage-isolation.so"

node_options = options(
    name_option(
        "--node",
        default=platform.node,
        show_default="the host's name",
        help="The node this runs on.",
    ),
    folder_option(
        "--host-root",
        default=Path("/"),
        help="Folder of the host's files, as this process sees them.",
    ),
    title="Node",
)
"""The node, and the paths of its files."""

discovery_options = options(
    folder_option(
        "--library",
        "libraries",
        multiple=True,
        help="Folder with vendors' libraries, read before their usual places. May be repeated.",
    ),
    click.option(
        "--backend",
        "backends",
        type=click.Choice(BACKENDS),
        multiple=True,
        help="How devices are found; may be repeated. Default: all.",
    ),
    click.option(
        "--simulated",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Simulate the devices that FILE describes; real ones are ignored.",
    ),
    title="Discovery",
)
"""The search for devices."""

reporting_options = options(
    click.option(
        "--devices",
        multiple=True,
        metavar="FILE",
        help="Manifests of the node instead of a cluster and of discovery: its Device, its Node, and ConfigMaps "
        "that set anything; a file, a folder, or - for standard input. May be repeated.",
    ),
    flag(
        "--standalone",
        help="Run without a cluster: find devices, give them to containers and count them; report nothing.",
    ),
    flag(
        "--no-discovery",
        help="Another agent writes this node's Device: read it every 30 s, and find and report nothing.",
    ),
    option(
        "--period",
        type=Real(0.1, 3600),
        default=_REPORTING.period,
        metavar="SECONDS",
        help="Seconds between two readings of the node's devices.",
    ),
    flag("--hami", help="Write HAMi's registration to the node as well."),
    flag("--qgpu", help="Label the node as one that serves qGPU."),
    click.option(
        "--config-map",
        "config_maps",
        type=Name(form="NAMESPACE/NAME"),
        multiple=True,
        metavar="NAMESPACE/NAME",
        help="A ConfigMap whose settings hold for the node (HAMi's), read every minute. May be repeated.",
    ),
    title="Reporting",
)
"""The agent's reports about the node, and their places."""

runtime_options = options(
    option(
        "--nri-socket",
        type=click.Path(path_type=Path),
        default=_NRI.socket,
        metavar="FILE",
        help="Socket of the container runtime's NRI.",
    ),
    option(
        "--nri-index",
        default=_NRI.index,
        metavar="NN",
        help="Two digits; plugins with lower ones are asked first.",
    ),
    option(
        "--deadline",
        type=Real(0.1, 60),
        default=_NRI.deadline,
        metavar="SECONDS",
        help="Refuse a container after this time. Keep it below the runtime's own time-out of 2 s, after "
        "which the runtime starts the container without its devices.",
    ),
    folder_option(
        "--journal",
        default=_USUAL.journal,
        help="Folder of the journal, which has each container's grant.",
    ),
    name_option(
        "--exempt-namespace",
        "exempt",
        multiple=True,
        help="Namespace, beside kube-system, whose pods without a record stay as they are: drivers, monitors. "
        "May be repeated.",
    ),
    title="Container runtime",
)
"""Access to containers."""

isolation_options = options(
    option(
        "--isolation",
        type=click.Choice(["none", "partage", "hami-core", "mps", "vendor", "mig"]),
        default="none",
        help="What enforces software shares of NVIDIA cards: nothing; Partage's own library; HAMi's, "
        "which you supply; NVIDIA's Multi-Process Service; the vendor's driver; or nothing, and shares are refused "
        "beside hardware instances.",
    ),
    click.option(
        "--isolation-library",
        metavar="FILE",
        default="",
        help="The library, on the host for hami-core, as this process sees it for partage (made by `make "
        f"native`). Default: {_OWN_LIBRARY} for partage, {_HAMI.path} for hami-core.",
    ),
    option(
        "--isolation-dir",
        metavar="FOLDER",
        default=_ISOLATION.folder,
        help="With partage: folder on the host for limits and shared pages.",
    ),
    option(
        "--mps-dir",
        metavar="FOLDER",
        default=_MPS.folder,
        help="With mps: folder of its daemon's sockets and shared memory, on the host and in this "
        "process. The agent uses a daemon that answers there, else it starts one.",
    ),
    option(
        "--isolation-policy",
        type=click.Choice([one.value for one in Policy if one is not Policy.NONE]),
        default=Policy.BEST_EFFORT.value,
        help="With partage: policy of compute if neither the pod nor the node's label names one.",
    ),
    click.option(
        "--online",
        multiple=True,
        metavar="NAMESPACE",
        help="Pods here may go before others on a card (app-class online, HAMi's priority 0); * for all. Those of "
        "other namespaces are ordinary pods. May be repeated.",
    ),
    flag(
        "--isolation-compute",
        help="With partage: limit compute by policies and quotas, besides memory. Without it memory alone "
        "is capped, no launch ever waits, and a pod with a quota of compute has a condition that it "
        "is not enforced. Set it on nodes where `bench/gpu.py` has passed on a card.",
    ),
    option(
        "--isolation-beyond",
        metavar="QUANTITY",
        default="0",
        help="With partage: memory of the host that a pod may ask for beyond its grant, for each container and card.",
    ),
    option(
        "--context-memory",
        metavar="QUANTITY",
        default="0",
        help="With partage: memory that each context of the driver counts against its container.",
    ),
    option(
        "--memory-slack",
        metavar="QUANTITY",
        default="1Gi",
        help="With partage: how far beyond a container's memory the context of each of its processes may grow before "
        "its limits count as not in force. 0 accepts no growth.",
    ),
    option(
        "--not-in-force",
        type=click.Choice(["report", "evict"]),
        default="report",
        help="What to do with containers whose limits are not in force: report them, or start none "
        "and evict.",
    ),
    title="Isolation",
)
"""Enforcement of shares."""

mig_options = options(
    flag(
        "--mig",
        help="Make the hardware instances (NVIDIA MIG) that this node's pods have in their records, "
        "remove them after, and give them to containers. Needs the API server, the package "
        "nvidia-ml-py (extra `nvidia`), and the right to manage MIG. Without it, containers with "
        "instances are refused.",
    ),
    folder_option(
        "--mig-journal",
        default=_MIG.journal,
        help="With --mig: folder that records which instances are Partage's; it must outlive a reboot.",
    ),
    folder_option(
        "--cdi-dir",
        default=_MIG.cdi,
        help="With --mig and --dra: folder for CDI specifications of instances and of claims.",
    ),
    title="Hardware instances",
)
"""Hardware instances."""

service_options = options(
    option("--host", default=_USUAL.host, help="Address for health, metrics."),
    option(
        "--port",
        type=Whole(0, 65535),
        metavar="N",
        default=9445,
        help="Port of these; 0 takes any that is free.",
    ),
    health_port,
    option(
        "--pod-series/--no-pod-series",
        default=True,
        help="Series at /metrics that name pods. Any reader may see them.",
    ),
    title="Metrics and probes",
)
"""Addresses of health and metrics, and their content."""


def isolation_of(given: dict[str, Any]) -> IsolationOptions:
    """The chosen provider. Raises `InvalidDocument`: shares would be evicted for ever."""
    if given["isolation"] == "none" and given["not_in_force"] == "evict":
        # The pod that replaces an evicted one would be evicted too.
        raise InvalidDocument(
            "--not-in-force evict: with --isolation none no limit of a share is enforced, so each would be evicted again "
            "and again; choose a provider (--isolation partage) or --not-in-force report"
        )
    library = given["isolation_library"]
    hami = library or _HAMI.path
    daemon = MpsDaemon(Path(given["mps_dir"])) if given["isolation"] == "mps" else None
    providers: dict[str, Provider] = {
        "none": NoIsolation(),
        "vendor": VendorIsolation(),
        "mig": MigOnly(),
        "hami-core": HamiCore(hami, f"{hami.rpartition('/')[0]}/containers"),
        "mps": Mps(given["mps_dir"], lambda: daemon.problem if daemon is not None else ""),
        "partage": OwnLibrary(
            Policy(given["isolation_policy"]),
            _bytes("--isolation-beyond", given["isolation_beyond"]),
            _bytes("--context-memory", given["context_memory"]),
            compute=given["isolation_compute"],
        ),
    }
    own = given["isolation"] == "partage"
    return IsolationOptions(
        providers[given["isolation"]],
        Path(library or _OWN_LIBRARY) if own else None,
        given["isolation_dir"],
        evict=given["not_in_force"] == "evict",
        slack=_bytes("--memory-slack", given["memory_slack"]),
        online=frozenset(given["online"]),
        mps=daemon,
    )


def _bytes(option: str, text: str) -> int:
    try:
        amount = Quantity.parse(text).floor()
    except InvalidQuantity as error:
        raise InvalidDocument(f"{option}: {error}; write an amount such as 512Mi") from error
    if amount < 0:
        raise InvalidDocument(f"{option}: {text} is negative; write an amount such as 512Mi")
    return amount


def roots_of(given: dict[str, Any]) -> Roots:
    """The root folders of the node's files. Raises `InvalidDocument`: the host's root is no folder."""
    usual, host = Roots(), given["host_root"]
    if not host.is_dir():
        raise InvalidDocument(
            f"--host-root {host}: no such folder; mount the host's root there, or name it"
        )

    def below(path: Path) -> Path:
        found: Path = host / path.relative_to("/")
        return found

    return Roots(
        sys=below(usual.sys),
        proc=below(usual.proc),
        dev=below(usual.dev),
        libraries=(*given["libraries"], *map(below, usual.libraries)),
        vendor_files=below(usual.vendor_files),
        simulated=given["simulated"],
    )

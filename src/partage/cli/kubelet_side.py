"""Options of `partage agent` for its work with the kubelet, and the parts that they configure.

The module imports grpcio only if an option needs it. Without such an option the agent needs no extra `node`.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from partage.agent.cdi.specs import Specifications
from partage.agent.container_admission import Keeper
from partage.cli.parameters import flag, folder_option, option, options
from partage.daemon.adjusting import Adjusting
from partage.daemon.agent import AgentDaemon, Asked, Companion
from partage.daemon.evicting import Evictions
from partage.daemon.isolation_status import used_by_processes
from partage.daemon.reconciling import Kubelet, Reconciling
from partage.kube.client import Client
from partage.model.errors import InvalidValue

_FILE: Final = click.Path(path_type=Path)
_RUNTIME: Final = Path("/run/containerd/containerd.sock")
_DEVICES: Final = "/run/partage/devices"
_KUBELET: Final = Path("/var/lib/kubelet")
_CDI: Final = ("/etc/cdi", "/var/run/cdi")


kubelet_options = options(
    folder_option(
        "--kubelet-dir",
        help="The kubelet's folder, usually /var/lib/kubelet: serve its device plugins for nvidia.com/gpu "
        "and, if the node's label qgpu-device-enable allows it, qGPU's names. Default: no device "
        "plugins. Needs grpcio (extra `node`).",
    ),
    flag(
        "--dra",
        help="Offer this node's cards to ResourceClaims as well (dynamic resource allocation), as the driver "
        "gpu.partage.io: publish ResourceSlices, and prepare claims for the kubelet. Needs Kubernetes 1.36 or "
        "later, the API server, a runtime with NRI and CDI, and grpcio (extra `node`).",
    ),
    folder_option(
        "--dra-kubelet-dir",
        default=_KUBELET,
        help="With --dra: the kubelet's folder, under the path by which the kubelet sees it.",
    ),
    click.option(
        "--cri-socket",
        type=_FILE,
        metavar="FILE",
        help="For runtimes without NRI: listen here as the kubelet's container runtime, and "
        "pass everything on to --runtime-socket. Needs grpcio (extra `node`).",
    ),
    option(
        "--runtime-socket",
        type=_FILE,
        default=_RUNTIME,
        metavar="FILE",
        help="With --cri-socket: the container runtime's own socket.",
    ),
    option(
        "--cri-devices",
        default=_DEVICES,
        metavar="FOLDER",
        help="With --cri-socket: folder on the host for device files.",
    ),
    click.option(
        "--cdi-kind",
        default="",
        metavar="KIND",
        help="Also name NVIDIA's cards to the runtime by CDI, as KIND=UUID; usually "
        "nvidia.com/gpu, whose specification NVIDIA's toolkit writes. For runtimes without "
        "NVIDIA's hook. Default: none.",
    ),
    option(
        "--cdi-spec-dir",
        "cdi_folders",
        multiple=True,
        default=_CDI,
        metavar="FOLDER",
        help="With --cdi-kind: folder on the host with CDI specifications, read if the runtime's NRI "
        "takes no names (containerd before 2.1). May be repeated; later ones go first.",
    ),
    flag(
        "--evict-unprotected",
        help="Evict pods whose containers were started while the agent was away, as far as "
        "disruption budgets allow. Needs the API server. Default: they are reported only.",
    ),
    title="Kubelet",
)


def asked_by(given: dict[str, Any]) -> Callable[[Keeper], Asked] | None:
    """The part that the runtime asks in place of the NRI plugin; None for that. Raises `InvalidValue`: no grpcio."""
    if given["cri_socket"] is None:
        return None
    _needed("--cri-socket")
    from partage.agent.cri.proxy import Proxy, ProxyOptions  # noqa: PLC0415 # an extra

    options = ProxyOptions(
        given["cri_socket"],
        given["runtime_socket"],
        given["cri_devices"],
        given["host_root"],
        given["deadline"],
    )
    return lambda keeper: Proxy(keeper, options)


def specifications_of(given: dict[str, Any]) -> Specifications | None:
    """The host's CDI specifications; None if they do not name cards."""
    if not given["cdi_kind"]:
        return None
    root: Path = given["host_root"]
    return Specifications([root / folder.lstrip("/") for folder in given["cdi_folders"]])


def kubelet_companions(
    given: dict[str, Any], client: Client | None
) -> Callable[[AgentDaemon], Sequence[Companion]]:
    """The options' parts beside injection. Raises `InvalidValue`: an option needs the API server, or grpcio."""
    folder = given["kubelet_dir"]
    if given["evict_unprotected"] and client is None:
        raise InvalidValue("--evict-unprotected needs the API server: leave --devices out")
    if folder is not None:
        _needed("--kubelet-dir")
    if given["dra"]:
        _needed("--dra")

    def companions(agent: AgentDaemon) -> Sequence[Companion]:
        found: list[Companion] = []
        side: Kubelet | None = None
        if given["evict_unprotected"] and client is not None:
            found.append(Evictions(client, agent.keeper))
        if folder is not None:
            from partage.daemon.kubelet_side import (  # noqa: PLC0415 # an extra
                KubeletOptions,
                KubeletSide,
            )

            side = served = KubeletSide(
                given["node"],
                KubeletOptions(folder),
                agent.keeper,
                agent.asked,
                random.random,
                client,
                agent.notes,
            )
            agent.follow(served.take)
            found.append(served)
            if client is not None and agent.keeper.isolation is not None:
                found.append(
                    Adjusting(
                        agent.keeper,
                        client,
                        given["node"],
                        lambda: served.pods,
                        lambda: used_by_processes(agent.found()),
                    )
                )
        if given["dra"] and client is not None:
            from partage.agent.dra.plugin import DriverFiles  # noqa: PLC0415 # an extra
            from partage.daemon.claims import DriverOptions, ResourceDriver  # noqa: PLC0415 # an extra

            files = DriverFiles(given["dra_kubelet_dir"])
            options = DriverOptions(files, given["cdi_dir"], given["journal"])
            found.append(ResourceDriver(client, agent, given["node"], options))
        reconciling = Reconciling(
            agent.keeper,
            given["journal"],
            side,
            notes=agent.notes,
            found=lambda: agent.found(),  # noqa: PLW0108 # it is set after this
        )
        agent.follow(reconciling.take)
        return [*found, reconciling]

    return companions


def _needed(option: str) -> None:
    try:
        import grpc  # noqa: F401, PLC0415 # an extra
    except ImportError:
        raise InvalidValue(f"{option}: grpcio is not installed; install partage[node]") from None

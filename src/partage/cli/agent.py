"""`partage agent`: the node agent, which runs beside the container runtime."""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import click

from partage.agent.discovery.search import BACKENDS
from partage.agent.discovery.simulated import read_hardware
from partage.agent.host import Host
from partage.agent.metrics import Tallies
from partage.agent.mig import runner
from partage.agent.mig.cdi import Specs
from partage.agent.mig.nvml import NvmlFailed
from partage.agent.notes import Notes
from partage.agent.nri.plugin import PluginOptions
from partage.agent.registration import isolation_labels
from partage.agent.reporting import ReportingSettings
from partage.cli import loop
from partage.cli.agent_options import (
    discovery_options,
    isolation_of,
    isolation_options,
    mig_options,
    node_options,
    reporting_options,
    roots_of,
    runtime_options,
    service_options,
)
from partage.cli.ending import end
from partage.cli.kubelet_side import (
    asked_by,
    kubelet_companions,
    kubelet_options,
    specifications_of,
)
from partage.cli.logs import start_logging
from partage.cli.parameters import Sectioned, cluster_options, logging_options
from partage.cli.reading import batches
from partage.cli.traces import sent_traces, trace_options
from partage.daemon.agent import AgentDaemon, AgentOptions, Companion
from partage.daemon.discovering import DiscoveryOptions, NodeDiscovery
from partage.daemon.instances import InstanceOptions, NodeInstances, open_node
from partage.daemon.isolation_status import Statements
from partage.daemon.node_facts import Heartbeat, NodeFacts
from partage.daemon.orphans import Orphans
from partage.daemon.settings import NodeSettings
from partage.kube.client import Client
from partage.kube.config import Config
from partage.kube.errors import ConfigError, KubeError
from partage.kube.loading import load_config
from partage.model.errors import InvalidDocument, InvalidValue
from partage.model.node import Node
from partage.serving.listener import cause
from partage.vendors.settings import Settings
from partage.wire.config import translate_config
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.nodes import translate_node

_USUAL: Final = AgentOptions()
_OFTEN: Final = 2
"""Rounds after which a simulated node is read again, so that its user's faults appear soon."""
_SETTINGS: Final = 2.0
"""Seconds that the first reading of ConfigMaps may take: the agent starts without an API server as well."""


@click.command(cls=Sectioned)
@node_options
@reporting_options
@discovery_options
@cluster_options
@runtime_options
@isolation_options
@kubelet_options
@mig_options
@service_options
@trace_options
@logging_options
def agent(**given: Any) -> None:
    """Find this node's devices, and give them to containers. Reports them, and reads what each container gets from its pod's record.

    Connects to the container runtime by NRI and stays connected across its restarts. Ends cleanly
    on SIGTERM and SIGINT; containers that run are not touched.

    \b
    Examples:
      partage agent --node gpu-node-1
      partage agent --standalone --simulated cards.yaml --host-root /tmp/host

    \b
    Exit status:
      0  ended by a signal
      2  an option, file or address cannot be used; the message says which
    """  # noqa: D301 # click wants the control character itself
    start_logging(given["log_format"], given["log_level"])
    try:
        plan = _planned(given)
        with sent_traces("partage-agent", wanted=given["traces"]) as tracer:
            _serve(replace(plan, options=replace(plan.options, tracer=tracer)), given)
    except (ConfigError, InvalidDocument) as error:
        end(str(error))
    except NvmlFailed as error:
        end(f"--mig: {error}; leave out --mig on a node without hardware instances")
    except InvalidValue as error:
        end(str(error))
    except OSError as error:
        end(f"{error.filename or 'the host'}: {cause(error)}")


def _serve(plan: "_Plan", given: dict[str, Any]) -> None:
    if given["devices"]:
        loop.run(partial(_described, plan, given))
    elif given["standalone"]:
        loop.run(partial(_run, plan, given, None, None))
    else:
        config = load_config(os.environ, kubeconfig=given["kubeconfig"], context=given["context"])
        loop.run(partial(_in_cluster, plan, given, config))


@dataclass(frozen=True, slots=True)
class _Plan:
    """The result of the options.

    Attributes:
        discovery: the search for devices; None if another program does it.
        mig: the keeper of instances; None if none are made.
        reporting: settings of reports about the node's devices and the agent itself.
    """

    node: str
    options: AgentOptions
    discovery: DiscoveryOptions | None
    mig: InstanceOptions | None
    config_maps: tuple[tuple[str, str], ...]
    reporting: ReportingSettings


def _check(given: dict[str, Any]) -> None:
    """Reject options that exclude each other."""
    index = given["nri_index"]
    if len(index) != 2 or not index.isdecimal():
        raise InvalidDocument(f"--nri-index {index!r}: two digits are needed")
    modes = [
        f"--{one}"
        for one in ("devices", "standalone", "no-discovery")
        if given[one.replace("-", "_")]
    ]
    if len(modes) > 1:
        raise InvalidDocument(f"{' and '.join(modes)} exclude each other")
    for name in ("devices", "standalone"):
        for option, what in (("mig", "pods"), ("dra", "ResourceClaims")):
            if given[option] and given[name]:
                raise InvalidDocument(
                    f"--{option} needs the API server, which has {what}: leave --{name} out"
                )
    if given["dra"] and given["cri_socket"] is not None:
        raise InvalidDocument(
            "--dra needs NRI, which shows the agent its CDI marks: leave --cri-socket out"
        )
    if given["simulated"] is not None:
        if given["devices"] or given["no_discovery"]:
            raise InvalidDocument(
                f"--simulated is a kind of discovery, and {modes[0]} does none; leave one out"
            )
        # A file that cannot be used ends the program now.
        read_hardware(given["simulated"], given["node"])


def _planned(given: dict[str, Any]) -> _Plan:
    """The plan of valid options."""
    _check(given)
    simulated = given["simulated"] is not None
    maps = tuple((space, name) for space, name in (one.split("/") for one in given["config_maps"]))
    isolation = isolation_of(given)
    reporting = ReportingSettings(
        period=given["period"],
        hami=given["hami"],
        qgpu=given["qgpu"],
        isolation=isolation_labels(isolation.provider),
        resync=_OFTEN if simulated else ReportingSettings().resync,
    )
    discovers = not given["devices"] and not given["no_discovery"]
    cdi = specifications_of(given)

    def told(knows: bool) -> None:  # noqa: FBT001 # the plugin says only this
        if cdi is not None:
            cdi.inline = not knows

    return _Plan(
        given["node"],
        AgentOptions(
            journal=given["journal"],
            host=given["host"],
            port=given["port"],
            health_port=given["health_port"],
            plugin=PluginOptions(
                given["nri_socket"],
                index=given["nri_index"],
                deadline=given["deadline"],
                told=told,
            ),
            isolation=isolation,
            exempt=_USUAL.exempt | set(given["exempt"]),
            roots=Host(given["host_root"], simulated=simulated, cdi=cdi),
            asked=asked_by(given),
            cdi=given["cdi_kind"],
            pod_series=given["pod_series"],
        ),
        DiscoveryOptions(
            roots_of(given), given["backends"] or BACKENDS, reporting, given["journal"]
        )
        if discovers
        else None,
        InstanceOptions(given["mig_journal"], given["cdi_dir"], roots_of(given).libraries)
        if given["mig"]
        else None,
        maps,
        reporting,
    )


async def _described(plan: _Plan, given: dict[str, Any], stop: asyncio.Event) -> None:
    """Serve the manifests' node."""
    files: tuple[str, ...] = given["devices"]
    found: dict[str, Document] = {}
    configs: list[Document] = []
    for batch in batches(files):
        for document in batch.documents:
            if document.kind in {"Node", "Device"} and document.name == plan.node:
                found[document.kind] = document
            elif document.kind == "ConfigMap":
                configs.append(document)
    if not found:
        raise InvalidDocument(
            f"--devices: no Node or Device named {plan.node!r} in {', '.join(files)}; "
            "name the node with --node"
        )
    context = Context.of(translate_config(configs).settings)
    node = translate_node(found.get("Node"), found.get("Device"), context).node
    others = kubelet_companions(given, None)

    def beside(daemon: AgentDaemon) -> Sequence[Companion]:
        return (_statements(plan, None, daemon), *others(daemon))

    daemon = AgentDaemon(Node(plan.node), context, plan.options, beside=beside)
    daemon.take(node)
    await daemon.run(stop)


async def _in_cluster(
    plan: _Plan, given: dict[str, Any], config: Config, stop: asyncio.Event
) -> None:
    try:
        driver = None if plan.mig is None else open_node(plan.mig)
    except InvalidValue as error:
        raise InvalidValue(
            f"--mig: {error}; leave out --mig on a node without hardware instances"
        ) from error
    async with Client(config, environ=os.environ) as client:
        await _run(plan, given, client, driver, stop)


async def _run(
    plan: _Plan,
    given: dict[str, Any],
    client: Client | None,
    driver: runner.Node | None,
    stop: asyncio.Event,
) -> None:
    others = kubelet_companions(given, client)
    settings = NodeSettings(client, plan.config_maps) if client and plan.config_maps else None

    def in_force() -> Settings:
        return Settings() if settings is None else settings.settings

    def instances(tallies: Tallies, notes: Notes) -> NodeInstances:
        assert client is not None and driver is not None and plan.mig is not None  # noqa: S101, PT018 # passed only then
        return NodeInstances(
            client, plan.node, driver, Specs(plan.mig.cdi), tallies, plan.options.tracer, notes
        )

    def beside(daemon: AgentDaemon) -> Sequence[Companion]:
        companions: list[Companion] = [_statements(plan, client, daemon), *others(daemon)]
        if client is not None:
            companions.append(Orphans(client, daemon.keeper, plan.node))
        if settings is not None:
            companions.append(settings)
        if plan.discovery is not None:
            found = NodeDiscovery(
                plan.node,
                plan.discovery,
                lambda node: daemon.take(node, in_force()),
                client,
                in_force,
                _foreign(daemon),
                daemon.notes,
            )
            daemon.found = lambda: found.found
            companions.append(found)
        elif client is not None:
            companions.append(
                NodeFacts(
                    client,
                    plan.node,
                    lambda: Context.of(in_force()),
                    lambda node: daemon.take(node, in_force()),
                )
            )
            companions.append(Heartbeat(client, plan.node, plan.reporting))
        return companions

    if settings is not None:
        # Otherwise the kubelet hears of resources by the published names first. `run` logs an error.
        with suppress(KubeError, TimeoutError):
            async with asyncio.timeout(_SETTINGS):
                await settings.read()
    context = Context.of(in_force())
    daemon = AgentDaemon(
        Node(plan.node), context, plan.options, None if driver is None else instances, beside
    )
    await daemon.run(stop)


def _foreign(
    daemon: AgentDaemon,
) -> Callable[[Mapping[str, str], Collection[str]], Mapping[str, str]]:
    """A Device object's annotations about the instances on its cards."""
    instances = daemon.instances
    return (lambda *_: {}) if instances is None else instances.annotations


def _statements(plan: _Plan, client: Client | None, daemon: AgentDaemon) -> Statements:
    isolation = plan.options.isolation
    return Statements(
        daemon.keeper,
        daemon.tallies,
        daemon.meter,
        client,
        isolation,
        notes=daemon.notes,
        found=lambda: daemon.found(),  # noqa: PLW0108 # it is set after this
    )

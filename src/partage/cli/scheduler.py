"""`partage scheduler`: the service beside kube-scheduler."""

import asyncio
import os
import socket
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from partage.cli import loop
from partage.cli.ending import end
from partage.cli.logs import start_logging
from partage.cli.parameters import (
    Real,
    Sectioned,
    Whole,
    cluster_options,
    config_options,
    file_option,
    flag,
    health_port,
    logging_options,
    name_option,
    option,
    options,
    policy_option,
)
from partage.cli.traces import sent_traces, trace_options
from partage.controllers.manager import ControllerSettings
from partage.daemon.agent_liveness import LEAST, SilenceSettings
from partage.daemon.options import ElectionOptions, SchedulerOptions
from partage.daemon.plugin import PLUGIN_SEND, PluginOptions
from partage.daemon.preempting import PreemptionSettings
from partage.daemon.recording import RecordSettings
from partage.daemon.scheduler import SchedulerDaemon
from partage.extender.bindings import BindLimits
from partage.extender.server import Faces
from partage.extender.service import ServiceSettings
from partage.kube.client import Client
from partage.kube.clock import SystemClock
from partage.kube.config import Config
from partage.kube.election import LeaseSettings
from partage.kube.errors import ConfigError
from partage.kube.loading import load_config
from partage.model.errors import InvalidValue
from partage.model.policy import Policy
from partage.serving.access import Access, TokenFile
from partage.serving.listener import cause
from partage.serving.tls import ServerTls

_ADAPTION: Final = "DevicePluginAdaption"


class _OwnTls(NamedTuple):
    """The Secret for the service's own certificates, and the names that they cover."""

    namespace: str
    secret: str
    hosts: tuple[str, ...]
    required: bool


_serving = options(
    option("--host", default="0.0.0.0", help="Address to listen on."),  # noqa: S104 # a service
    option(
        "--port",
        type=Whole(0, 65535),
        metavar="N",
        default=8443,
        help="Port to listen on; 0 takes any that is free.",
    ),
    file_option("--tls-cert", help="Certificate chain, PEM; read again when it changes."),
    file_option("--tls-key", help="Its key, PEM."),
    name_option(
        "--tls-secret",
        help="Secret, in the Lease's namespace, in which the service keeps an authority and a "
        "certificate of its own for both ends: kube-scheduler shows it to call the verbs.",
    ),
    click.option(
        "--tls-host",
        "tls_hosts",
        multiple=True,
        metavar="NAME",
        help="Host name or address by which kube-scheduler reaches the service; with --tls-secret. "
        "May be repeated.",
    ),
    click.option(
        "--read-port",
        type=Whole(1, 65535),
        metavar="N",
        help="Second port for everything but the verbs: probes, metrics, debug API, explanations. It accepts plain "
        "HTTP, and TLS if the service has certificates; tokens from other machines by TLS alone.",
    ),
    health_port,
    file_option(
        "--client-ca",
        help="Authority of clients' certificates; a caller with one of them may call the verbs.",
    ),
    file_option(
        "--token-file",
        help="Bearer tokens that may call the verbs, one a line; read again when it changes.",
    ),
    flag(
        "--plain",
        help="Let every caller use the verbs. Bind can place any pod anywhere: only for a machine of "
        "your own, or where no other client reaches the port.",
    ),
    flag(
        "--authorize-reads",
        help="Explain a pod only to callers who may get pods of its namespace, as the API server says of the "
        "caller's bearer token. Metrics and node summaries name pods and namespaces only to callers who may get pods "
        "of all namespaces.",
    ),
    flag(
        "--published-reads",
        help="With --authorize-reads: metrics and node summaries name pods and namespaces to every caller, as the "
        "published documents print them.",
    ),
    flag(
        "--pod-series",
        help="Write series of single pods at /metrics: one for each container and card.",
    ),
    title="Serving",
)

_deciding = options(
    policy_option(
        "Policy for pods that name none, if no ConfigMap partage-config sets one: %s, or NODE/CARD "
        "such as spread/binpack. Default: partage."
    ),
    option(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="Seed of the order among equally good nodes.",
    ),
    *config_options,
    click.option(
        "--feature-gates",
        "gates",
        default="",
        metavar="KEY=BOOL,…",
        help="Koordinator's, as its scheduler takes them. DevicePluginAdaption (on): write what "
        "vendors' own device plugins read.",
    ),
    option(
        "--claims/--no-claims",
        default=False,
        help="Follow ResourceClaims, and count the devices of the driver gpu.partage.io that they hold. "
        "For clusters whose agents offer cards to DRA too.",
    ),
    option(
        "--claim-templates/--no-claim-templates",
        default=False,
        help="Create the ResourceClaimTemplates of pods whose requests became claims (partage webhook --translate), and "
        "remove them when no pod names them.",
    ),
    option(
        "--preemption/--no-preemption",
        default=True,
        help="Evict less important pods for pods that wait only for devices. kube-scheduler's own "
        "preemption does not change.",
    ),
    option(
        "--agent-silence",
        type=Real(0),
        default=SilenceSettings().limit,
        metavar="SECONDS",
        help="Place no new pod with devices on a node whose agent has not renewed its Lease for this time; "
        f"{LEAST:g} at least. 0 turns this off.",
    ),
    option(
        "--audit",
        type=Real(1),
        default=60.0,
        metavar="SECONDS",
        help="Seconds between two comparisons of the ledger with the pods of the API server.",
    ),
    click.option(
        "--record",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Keep every event and decision in this file, for partage replay: names and amounts, no "
        "environment, no command line, no secret.",
    ),
    option(
        "--record-size",
        type=Whole(1),
        default=256,
        metavar="MIB",
        help="A recording of this size is renamed to FILE.1, in place of the one before, and a "
        "new one begins.",
    ),
    title="Deciding",
)

_plugin = options(
    click.option(
        "--plugin-socket",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="PATH",
        help="Serve kube-scheduler's plugin on this unix socket, in a folder that only the two containers "
        "of the pod share. The service then leads only while that kube-scheduler holds its own Lease.",
    ),
    name_option(
        "--kube-scheduler-lease",
        default="partage-kube-scheduler",
        help="Lease that kube-scheduler with the plugin holds, in the namespace of the service's own.",
    ),
    click.option(
        "--plugin-user",
        "plugin_users",
        type=Whole(0),
        multiple=True,
        metavar="UID",
        help="User id of the container of kube-scheduler. May be repeated. Default: this process's own.",
    ),
    title="kube-scheduler's plugin",
)

_controllers = options(
    option(
        "--controllers/--no-controllers",
        default=True,
        help="Keep node totals and labels from Device objects, and flag pods with a device "
        "problem.",
    ),
    option(
        "--node-totals/--no-node-totals",
        default=True,
        help="Write node totals. Off while another manager still writes them.",
    ),
    title="Controllers",
)

_leading = options(
    option(
        "--leader-elect/--no-leader-elect",
        default=True,
        help="Serve only while holding the Lease. Without it there must be one instance only.",
    ),
    name_option(
        "--lease-name",
        default="partage-scheduler",
        help="Lease that one instance at a time holds.",
    ),
    name_option(
        "--lease-namespace",
        help="Default: the namespace of the service account, or of the kubeconfig's context.",
    ),
    option(
        "--lease-duration",
        type=Whole(3),
        default=15,
        metavar="SECONDS",
        help="Other instances wait this long after the last renewal that they saw; a leader that cannot "
        "renew stops after two thirds of it.",
    ),
    click.option(
        "--identity",
        metavar="NAME",
        help="Name of this instance. Default: the host's name and a random part.",
    ),
    name_option(
        "--pod-name",
        envvar="POD_NAME",
        help="The service's own pod, which has the label partage.io/leader while it leads. Default: "
        "POD_NAME; without it no label is written.",
    ),
    name_option(
        "--pod-namespace",
        envvar="POD_NAMESPACE",
        help="Namespace of the service's own pod. Default: POD_NAMESPACE, or that of the Lease.",
    ),
    title="Leading",
)


@click.command(cls=Sectioned)
@cluster_options
@_serving
@_deciding
@_plugin
@_controllers
@_leading
@trace_options
@logging_options
def scheduler(**given: Any) -> None:
    """Decide about pods with devices, and keep the ledger.

    kube-scheduler asks through Partage's plugin (--plugin-socket), or as its extender by filter,
    prioritize, bind and preempt under /scheduler. Follows Nodes, Devices, pods, ConfigMaps and
    ResourceQuotas; explains at /api/explain; and is watched by /healthz, /readyz and /metrics. Keeps
    no state of its own: the ledger is rebuilt from the API server at every start and by every new
    leader. Ends cleanly on SIGTERM and SIGINT.

    The extender's verbs need a credential: give --tls-secret, --token-file, --client-ca, or --plain.
    With --plugin-socket they may do without, and then answer no client.

    \b
    Examples:
      partage scheduler --plain --kubeconfig ~/.kube/config
      partage scheduler --tls-secret partage-tls --read-port 8080

    \b
    Exit status:
      0  ended by a signal
      2  an option, file or address cannot be used; the message says which
    """  # noqa: D301 # click wants the control character itself
    start_logging(given["log_format"], given["log_level"])
    try:
        config = load_config(os.environ, kubeconfig=given["kubeconfig"], context=given["context"])
        chosen, own = _options_of(given, config), _own_of(given, config)
        with sent_traces("partage-scheduler", wanted=given["traces"]) as tracer:
            loop.run_fast(partial(_run, config, replace(chosen, tracer=tracer), own))
    except (ConfigError, InvalidValue, ValueError) as error:
        end(str(error))
    except OSError as error:
        end(f"{given['host']}:{given['port']}: {cause(error)}; name another --port")


def _options_of(given: dict[str, Any], config: Config) -> SchedulerOptions:
    """The daemon's options from those of the command line."""
    policy: Policy | None = given["policy"]
    tls = _tls(given)
    plugin = _plugin_of(given)
    tokens = given["token_file"]
    certificates = given["client_ca"] is not None or given["tls_secret"] is not None
    access = Access(
        TokenFile(tokens, SystemClock().monotonic) if tokens else None,
        certificates=certificates,
        plain=given["plain"],
        # kube-scheduler uses the socket; without a credential the verbs answer no caller.
        closed=plugin is not None and not (tokens or certificates or given["plain"]),
    )
    return SchedulerOptions(
        identity=given["identity"] or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        host=given["host"],
        port=given["port"],
        read_port=given["read_port"],
        health_port=given["health_port"],
        faces=Faces(access, pod_series=given["pod_series"], published=given["published_reads"]),
        tls=tls,
        service=ServiceSettings(
            seed=given["seed"],
            limits=BindLimits(
                send=BindLimits().send if plugin is None else PLUGIN_SEND,
                late=BindLimits().late if plugin is None else PLUGIN_SEND,
            ),
            adapts=_adapts(given["gates"]),
        ),
        policy=policy,
        config_namespaces=given["config_namespaces"],
        config_names=given["config_names"],
        election=_election(given, config) if given["leader_elect"] else None,
        controllers=ControllerSettings(totals=given["node_totals"])
        if given["controllers"]
        else None,
        authorize=given["authorize_reads"],
        audit=given["audit"],
        silence=_silence(given["agent_silence"]),
        preemption=PreemptionSettings() if given["preemption"] else None,
        record=RecordSettings(given["record"], given["record_size"] * 2**20)
        if given["record"]
        else None,
        plugin=plugin,
        claims=given["claims"],
        claim_templates=given["claim_templates"],
    )


def _plugin_of(given: dict[str, Any]) -> PluginOptions | None:
    """The plugin's socket, if any."""
    path, users = given["plugin_socket"], frozenset(given["plugin_users"])
    if path is None:
        if users:
            raise InvalidValue("--plugin-user needs --plugin-socket")
        return None
    lease: str = given["kube_scheduler_lease"]
    if given["leader_elect"] and lease == given["lease_name"]:
        raise InvalidValue(
            f"--lease-name and --kube-scheduler-lease are both {lease}: kube-scheduler and this service each hold a "
            "Lease of their own"
        )
    options = PluginOptions(path, lease=lease)
    return replace(options, users=users) if users else options


def _silence(limit: float) -> SilenceSettings:
    """Settings for silent agents."""
    if 0 < limit < LEAST:
        raise InvalidValue(
            f"--agent-silence {limit:g}: agents renew their Leases every 12 s at most, and may miss "
            f"one; give {LEAST:g} or more, or 0 to close no node"
        )
    return SilenceSettings(limit)


def _adapts(gates: str) -> bool:
    """Whether the gate known here is on, which is the default."""
    found = True
    for part in filter(None, gates.split(",")):
        name, _, value = part.partition("=")
        if name != _ADAPTION or value.lower() not in ("true", "false"):
            raise InvalidValue(f"--feature-gates {part!r}: write {_ADAPTION}=true or =false")
        found = value.lower() == "true"
    return found


def _tls(given: dict[str, Any]) -> ServerTls | None:
    certificate, key, authority = given["tls_cert"], given["tls_key"], given["client_ca"]
    if (certificate is None) != (key is None):
        raise InvalidValue("--tls-cert and --tls-key go together")
    if certificate is None:
        if authority is not None:
            raise InvalidValue("--client-ca needs --tls-cert and --tls-key")
        return None
    alone = given.get("read_port") is not None and given.get("token_file") is None
    tls = ServerTls(certificate, key, authority, authority is not None and alone)
    _ = tls.context  # a broken file ends the program now, not at the first connection
    return tls


def _election(given: dict[str, Any], config: Config) -> ElectionOptions:
    namespace = given["lease_namespace"] or config.namespace
    duration: int = given["lease_duration"]
    pod = given["pod_name"]
    return ElectionOptions(
        namespace,
        given["lease_name"],
        LeaseSettings(duration, deadline=duration * 2 / 3, retry=min(2.0, duration / 8)),
        pod=(given["pod_namespace"] or namespace, pod) if pod else None,
    )


def _own_of(given: dict[str, Any], config: Config) -> _OwnTls | None:
    """The Secret that the service maintains itself, if any."""
    secret: str | None = given["tls_secret"]
    hosts: tuple[str, ...] = given["tls_hosts"]
    if secret is None:
        if hosts:
            raise InvalidValue("--tls-host needs --tls-secret")
        if given["read_port"] is not None and given["plain"]:
            raise InvalidValue("--read-port would open the verbs too with --plain; leave one out")
        return None
    if not hosts:
        raise InvalidValue(
            "--tls-secret needs --tls-host: give the name by which kube-scheduler reaches the service"
        )
    if any(given[other] for other in ("tls_cert", "client_ca", "plain")):
        raise InvalidValue(
            "--tls-secret brings its own certificates and callers: leave out "
            "--tls-cert, --tls-key, --client-ca and --plain"
        )
    namespace = given["lease_namespace"] or config.namespace
    # If reads have a port of their own, every caller at this one has a certificate.
    required = given["read_port"] is not None
    return _OwnTls(namespace, secret, hosts, required)


async def _run(
    config: Config, options: SchedulerOptions, own: _OwnTls | None, stop: asyncio.Event
) -> None:
    async with Client(config, environ=os.environ) as client:
        if own is None:
            await SchedulerDaemon(client, options).run(stop)
            return
        from partage.daemon.certificates import mutual_tls  # noqa: PLC0415 # with cryptography, which is slow to import

        async with mutual_tls(client, *own[:3], required=own.required) as tls:
            await SchedulerDaemon(client, replace(options, tls=tls)).run(stop)

"""`partage webhook`: admission of pods as a service, or the objects that install it."""

import asyncio
import os
from dataclasses import replace
from functools import partial
from typing import Any, Final

import click
import yaml

from partage.cli import loop
from partage.cli.ending import end
from partage.cli.logs import start_logging
from partage.cli.parameters import (
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
)
from partage.cli.traces import sent_traces, trace_options
from partage.daemon.webhook import WebhookDaemon, WebhookOptions
from partage.kube.client import Client
from partage.kube.config import Config, is_url
from partage.kube.errors import ConfigError
from partage.kube.loading import load_config
from partage.model.errors import InvalidValue
from partage.serving.listener import cause
from partage.serving.tls import ServerTls
from partage.vendors.settings import Settings
from partage.webhook.installation import Endpoint, installation
from partage.webhook.settings import SYSTEM_NAMESPACES, Admission
from partage.wire.context import Context

_USUAL: Final = Admission()
_PLACE: Final = Endpoint()

_serving = options(
    option("--host", default="0.0.0.0", help="Address to listen on."),  # noqa: S104 # a service
    option(
        "--port",
        type=Whole(0, 65535),
        metavar="N",
        default=9443,
        help="Port to listen on; 0 takes any that is free.",
    ),
    health_port,
    file_option(
        "--tls-cert",
        help="Certificate chain, PEM, that Partage does not manage; read again when it changes. "
        "Nothing is written to the cluster then.",
    ),
    file_option("--tls-key", help="Its key, PEM."),
    title="Serving",
)

_place = options(
    name_option(
        "--namespace",
        default=_PLACE.namespace,
        help="Namespace of the Service and the Secret; the webhook leaves its pods alone.",
    ),
    name_option(
        "--service",
        default=_PLACE.service,
        help="Service by which the API server finds the webhook.",
    ),
    click.option(
        "--url",
        default="",
        metavar="URL",
        help="Address of the webhook for the API server without a Service: https://host:port.",
    ),
    name_option(
        "--configuration",
        default=_PLACE.configuration,
        help="Name of both webhook configurations.",
    ),
    name_option(
        "--secret",
        default=WebhookOptions().secret,
        help="Secret that keeps the authority and the certificate.",
    ),
    title="Where it is reached",
)

_admission = options(
    option(
        "--scheduler-name",
        default=_USUAL.scheduler,
        metavar="NAME",
        help="Scheduler name that device pods of the default scheduler get.",
    ),
    option(
        "--serve",
        "served",
        multiple=True,
        default=_USUAL.served,
        metavar="NAME",
        help="Scheduler whose pods Partage places; may be repeated. Pods of others are left alone.",
    ),
    option(
        "--convert-default/--keep-default",
        default=_USUAL.convert_default,
        help="Whether device pods of the default scheduler become Partage's.",
    ),
    name_option(
        "--exclude-namespace",
        "excluded",
        multiple=True,
        help="Namespace that is left alone beside the system's and Partage's own; may be repeated.",
    ),
    click.option(
        "--writer",
        "writers",
        multiple=True,
        metavar="USER",
        help="User who may write reserved keys beside Partage's own service accounts, as a "
        "vendor's plugin must; may be repeated.",
    ),
    click.option(
        "--break-glass",
        default="",
        metavar="GROUP",
        help="Members of this group may write reserved keys too. Default: no group.",
    ),
    option(
        "--deny-privileged/--allow-privileged",
        default=_USUAL.deny_privileged,
        help="Refuse privileged containers that ask for a part of a card, or for anything by HAMi's protocol.",
    ),
    click.option(
        "--claims",
        default="",
        metavar="URL",
        help="Pass questions about ResourceClaims on to this scheduler service, which runs with --claims: "
        "http://host:port of its leader. Default: the API server does not ask about claims.",
    ),
    option(
        "--translate/--no-translate",
        default=False,
        help="With --manifests: in namespaces labelled partage.io/claims=translate, make new pods ask by "
        "ResourceClaims instead of a protocol's names. For clusters whose agents offer cards to DRA, "
        "and whose scheduler service runs with --claim-templates.",
    ),
    *config_options,
    title="Admission",
)


@click.command(cls=Sectioned)
@cluster_options
@_serving
@_place
@_admission
@flag(
    "--manifests",
    help="Print the webhook configurations and the admission policies that install it, and end.",
)
@trace_options
@logging_options
def webhook(**given: Any) -> None:
    """Complete and check pods that ask for devices. It answers the API server of a cluster.

    Makes and renews its own authority and certificate, in a Secret that all replicas share, and makes the
    API server trust it. There is no leader: run as many as you like. Ends cleanly on SIGTERM and SIGINT.

    \b
    Examples:
      partage webhook --kubeconfig ~/.kube/config --url https://10.0.0.5:9443
      partage webhook --manifests | kubectl apply -f -

    \b
    Exit status:
      0  ended by a signal, or printed the manifests
      2  an option, file, address or Secret cannot be used; the message says which
    """  # noqa: D301 # click wants the control character itself
    if given["manifests"]:
        objects = _manifests(given)
        click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=99), nl=False)
        return
    try:
        start_logging(given["log_format"], given["log_level"])
        config = load_config(os.environ, kubeconfig=given["kubeconfig"], context=given["context"])
        chosen = _options_of(given)
        with sent_traces("partage-webhook", wanted=given["traces"]) as tracer:
            loop.run(partial(_run, config, replace(chosen, tracer=tracer)))
    except (ConfigError, InvalidValue, ValueError) as error:
        end(str(error))
    except OSError as error:
        end(f"{given['host']}:{given['port']}: {cause(error)}; name another --port")


def _manifests(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that install the webhook."""
    try:
        return installation(
            _endpoint(given),
            Context.of(Settings()),
            _switches(given),
            claims=bool(_service(given["claims"])),
            translate=given["translate"],
        )
    except (InvalidValue, ValueError) as error:
        end(str(error))


def _endpoint(given: dict[str, Any]) -> Endpoint:
    return Endpoint(
        given["namespace"],
        given["service"],
        configuration=given["configuration"],
        url=given["url"],
    )


def _switches(given: dict[str, Any]) -> Admission:
    namespace = given["namespace"]
    accounts = ("scheduler", "controller", "agent")
    return Admission(
        scheduler=given["scheduler_name"],
        served=tuple(dict.fromkeys((given["scheduler_name"], *given["served"]))),
        convert_default=given["convert_default"],
        excluded=SYSTEM_NAMESPACES | {namespace, *given["excluded"]},
        writers=frozenset(
            {
                *(f"system:serviceaccount:{namespace}:partage-{account}" for account in accounts),
                *given["writers"],
            }
        ),
        break_glass=given["break_glass"],
        deny_privileged=given["deny_privileged"],
    )


def _options_of(given: dict[str, Any]) -> WebhookOptions:
    """The daemon's options from those of the command line."""
    certificate, key = given["tls_cert"], given["tls_key"]
    if (certificate is None) != (key is None):
        raise InvalidValue("--tls-cert and --tls-key go together")
    tls = None
    if certificate is not None:
        tls = ServerTls(certificate, key)
        _ = tls.context  # a broken file ends the program now, not at the first connection
    return WebhookOptions(
        host=given["host"],
        port=given["port"],
        health_port=given["health_port"],
        endpoint=_endpoint(given),
        secret=given["secret"],
        tls=tls,
        admission=_switches(given),
        claims=_service(given["claims"]),
        config_namespaces=given["config_namespaces"],
        config_names=given["config_names"],
    )


def _service(url: str) -> str:
    """The URL of the scheduler service."""
    if url and not is_url(url):
        raise InvalidValue(f"--claims: {url!r} is no URL; write http://host:port")
    return url


async def _run(config: Config, chosen: WebhookOptions, stop: asyncio.Event) -> None:
    async with Client(config, environ=os.environ) as client:
        await WebhookDaemon(client, chosen).run(stop)

"""`partage completion`: a shell's completion of commands, options, and names of pods and nodes."""

import asyncio
import os
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from partage.kube.client import Client
from partage.kube.decoding import OnlyMeta
from partage.kube.errors import ConfigError, KubeError
from partage.kube.resources import NODES, PODS, Scope
from partage.kube.sender import ClientSettings

_VARIABLE: Final = "_PARTAGE_COMPLETE"
"""The variable by which click detects a shell's question."""

_SECONDS: Final = 2.0
"""Limit for an answer of the API server; a person has pressed a key."""

_MOST: Final = 500
"""Most listed names; in a larger cluster users type more letters."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
def completion(shell: str) -> None:
    """Print the completion for SHELL: bash, zsh or fish. It completes commands, options, and names of pods and nodes.

    \b
    Examples:
      source <(partage completion bash)   # in ~/.bashrc
      source <(partage completion zsh)    # in ~/.zshrc, after compinit
      partage completion fish > ~/.config/fish/completions/partage.fish
    """  # noqa: D301 # click wants the control character itself
    from partage.cli.main import main  # noqa: PLC0415 # which holds this command too

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} cannot be completed; name bash, zsh or fish")
    click.echo(kind(main, {}, "partage", _VARIABLE).source())


def pod_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Pods of the typed namespace, or NAMESPACE/NAME if the user began to type one."""
    own, slash, _name = begun.rpartition("/")
    namespace = own or context.params.get("namespace") or None
    return _completed(context, Scope(PODS, namespace), begun, f"{own}/" if slash else "")


def node_names(
    context: click.Context, _parameter: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Nodes of the cluster."""
    return _completed(context, Scope(NODES), begun, "")


def _completed(
    context: click.Context, scope: Scope, begun: str, prefix: str
) -> list[CompletionItem]:
    """Names with this beginning; none without an answer in time, because there is no place for an error."""
    from partage.kube.loading import load_config  # noqa: PLC0415 # with YAML; most commands complete names

    async def names() -> list[str]:
        config = load_config(
            os.environ,
            kubeconfig=context.params.get("kubeconfig"),
            context=context.params.get("context"),
        )
        where = scope
        if scope.resource.namespaced and scope.namespace is None:
            where = Scope(scope.resource, config.namespace)
        settings = ClientSettings(attempts=1)
        async with asyncio.timeout(_SECONDS), Client(config, settings=settings) as client:
            async for page in client.pages(where, into=OnlyMeta, limit=_MOST):
                return [item.metadata.name for item in page.items]
        return []

    try:
        found = asyncio.run(names())
    except (ConfigError, KubeError, TimeoutError, OSError):
        return []
    return [CompletionItem(prefix + name) for name in found if (prefix + name).startswith(begun)]

"""Finds the configuration: a kubeconfig's files, or the service account of the pod."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from partage.kube.config import ClusterConfig, Config, Material, UserConfig
from partage.kube.errors import ConfigError
from partage.kube.files import read_named
from partage.kube.kubeconfig import parse_kubeconfig

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder in which the kubelet puts a pod's token, the cluster's authority and the namespace."""


def load_config(
    environ: Mapping[str, str],
    *,
    kubeconfig: Path | None = None,
    context: str | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Config:
    """Find the configuration as kubectl does. Raises `ConfigError`: no configuration was found, or it cannot be used.

    In this order: `kubeconfig`, the files of `KUBECONFIG` (missing ones are skipped, folders are refused),
    `~/.kube/config`, the service account of our pod.

    Args:
        environ: the environment; only KUBECONFIG, HOME and KUBERNETES_SERVICE_* are read.
        kubeconfig: one file, which must exist.
        context: the context to use; by default the current one.
    """
    paths = _candidates(environ, kubeconfig)
    for path in paths:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder; name a kubeconfig file in it")
    documents = [
        (path, read_named(path)) for path in paths if path == kubeconfig or path.is_file()
    ]
    if documents:
        return parse_kubeconfig(documents, context)
    if environ.get("KUBECONFIG") or context:
        looked = ", ".join(map(str, paths)) or "nowhere"
        fix = (
            "correct KUBECONFIG or unset it"
            if environ.get("KUBECONFIG")
            else f"name the one with context {context} by --kubeconfig or KUBECONFIG"
        )
        raise ConfigError(f"no kubeconfig found; looked at {looked}; {fix}")
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environ, service_account)
    raise ConfigError(
        "no cluster configured: name one by --kubeconfig, KUBECONFIG or ~/.kube/config, or run in a pod"
    )


def in_cluster(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Config:
    """The configuration of a pod that runs under a service account. Raises `ConfigError`."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigError("not in a pod: KUBERNETES_SERVICE_HOST and _PORT are not set")
    token = service_account / "token"
    if not token.is_file():
        raise ConfigError(f"no service account token at {token}")
    authority = service_account / "ca.crt"
    namespace = service_account / "namespace"
    return Config(
        ClusterConfig(
            f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            Material(path=authority) if authority.is_file() else None,
        ),
        UserConfig(token_file=token),
        read_named(namespace).decode(errors="replace").strip() or "default"
        if namespace.is_file()
        else "default",
    )


def _candidates(environ: Mapping[str, str], kubeconfig: Path | None) -> list[Path]:
    if kubeconfig is not None:
        return [kubeconfig]
    listed = environ.get("KUBECONFIG", "")
    if listed:
        return [Path(part) for part in listed.split(":") if part]
    home = environ.get("HOME", "")
    return [Path(home) / ".kube" / "config"] if home else []
